/* czero data show: data as a run would see them, here chats and instructions. Masks that train the
 * wrong tokens, or none, make no noise while a model trains; here a person looks at them first. */
#include "base/printable.h"
#include "base/size.h"
#include "data/chat/chat_set.h"
#include "data/source/text_source.h"
#include "tools/czero/args.h"
#include "tools/czero/cmd/data.h"
#include "tools/czero/commands.h"
#include "tools/czero/terminal.h"
#include "tools/czero/tool.h"
#include "tools/czero/train/adapter.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define FIELD(name) offsetof(struct data_words, name)

static const struct arg_spec show_specs[] = {
    {"FILE", ARG_STRING, FIELD(file), "FILE", "file or folder, as for czero train --data",
     .required = true},
    ENCODING_OPTION(FIELD(encoding)),
    {"--model", ARG_STRING, FIELD(model), "DIR",
     "model or adapter to train, whose tokenizer and chat template count"},
    {"--tokenizer", ARG_STRING, FIELD(tokenizer), "bytes|DIR",
     "tokenizer (default: the one in the model's folder)"},
    {"--text-column", ARG_STRING, FIELD(text_column), "NAME", "as for czero train"},
    {"--pair-column", ARG_STRING, FIELD(pair_column), "NAME", "as for czero train"},
    {"--label-column", ARG_STRING, FIELD(label_column), "NAME", "as for czero train"},
    {"--chat-template", ARG_STRING, FIELD(chat_template), "NAME|FILE",
     "chat template (default: that of the tokenizer's folder)"},
    {"--loss-on", ARG_CHOICE, FIELD(loss_on), "assistant|completion|all",
     "what is trained, as for czero train"},
    {"--seq-len", ARG_INT, FIELD(seq_len), "T",
     "tokens at which rows are cut (default: 1024; labelled rows: 128)", .min = 1},
    {"--packing", ARG_FLAG, FIELD(packing), NULL, "count rows of several examples"},
    {"--rows", ARG_INT, FIELD(rows), "N", "rows to print (default: 3)", .min = 0},
    {"--line", ARG_INT, FIELD(line), "N",
     "print rows from this line of the file on; of texts from row N on", .min = 1},
    {"--left-out", ARG_FLAG, FIELD(left_out), NULL,
     "print rows that are left out of training, each with its reason"},
    {"--json", ARG_FLAG, FIELD(json), NULL, "print one JSON object instead of the report"},
};

static const struct arg_command actions[] = {
    {"czero data show", "Show rows as tokens, with what is trained of them, and what an epoch has.",
     show_specs, CZ_ARRAY_LEN(show_specs), .one_of = "--model|--tokenizer",
     .examples = "  czero data show chat.jsonl --model path/to/qwen3 --seq-len 2048\n"
                 "  czero data show chat.jsonl --model path/to/qwen3 --left-out\n"
                 "  czero data show train.csv --tokenizer path/to/bert",
     .epilogue = "Trained tokens are green on a terminal and stand between {+ and +} elsewhere;\n"
                 "what is cut is red, or stands between [- and -]. Rows of tables, of labelled\n"
                 "JSON, of words and of plain texts are shown with their label and their tokens\n"
                 "between bars; #2 is a token without a text of its own."},
};

const struct arg_command data_command = {
    .name = "czero data",
    .summary = "Look at training data.",
    .actions = actions,
    .n_actions = CZ_ARRAY_LEN(actions),
    .epilogue = "Every action accepts --help.",
    .examples = "  czero data show chat.jsonl --model path/to/qwen3",
};

/* ---- rows ----------------------------------------------------------------------------------- */

/* What a part of a row is: how it is printed, or named in JSON. */
enum part_kind { PART_READ, PART_TRAINED, PART_CUT };
static const char *const part_names[] = {"read", "trained", "cut"};

struct part {
    enum part_kind kind;
    struct text_buf text;
    size_t n_tokens;
};

struct parts {
    struct part *items;
    size_t n, cap;
};

static void parts_free(struct parts *p)
{
    for (size_t i = 0; i < p->n; i++) text_buf_free(&p->items[i].text);
    free(p->items);
    *p = (struct parts){0};
}

static cz_status parts_begin(struct parts *p, enum part_kind kind)
{
    if (p->n == p->cap) {
        const size_t cap = p->cap ? 2 * p->cap : 8;
        struct part *grown = realloc(p->items, cap * sizeof *grown);
        if (!grown) return err_set(CZ_NOMEM, 0, "no memory for the parts of a row");
        p->items = grown;
        p->cap = cap;
    }
    p->items[p->n++] = (struct part){.kind = kind};
    return CZ_OK;
}

static enum part_kind kind_of(const struct chat_set *s, const struct chat_example *e, size_t i)
{
    if (i >= e->n) return PART_CUT;
    return i > 0 && s->tokens[e->begin + i] < 0 ? PART_TRAINED : PART_READ;
}

/* An example's text by what happens to its tokens. A character of several tokens is in the part of
 * the token that ends it. */
static cz_status parts_read(const struct chat_set *s, const struct chat_example *e,
                            struct cz_tokenizer_decoder *decoder, struct parts *out)
{
    const char *text;
    size_t n;
    for (size_t i = 0; i < e->n_full; i++) {
        const enum part_kind kind = kind_of(s, e, i);
        if (out->n == 0 || out->items[out->n - 1].kind != kind) TRY(parts_begin(out, kind));
        struct part *part = &out->items[out->n - 1];
        TRY(cz_tokenizer_decode(decoder, s->tokens[e->begin + i] & INT32_MAX, &text, &n));
        TRY(text_buf_put(&part->text, text, n));
        part->n_tokens++;
    }
    cz_tokenizer_decoder_end(decoder, &text, &n);
    return out->n > 0 ? text_buf_put(&out->items[out->n - 1].text, text, n) : CZ_OK;
}

static void print_begin(enum part_kind kind, bool has_colours)
{
    if (kind == PART_TRAINED && has_colours) fputs("\033[1;32m", stdout);
    if (kind == PART_TRAINED && !has_colours) fputs("{+", stdout);
    if (kind == PART_CUT && has_colours) fputs("\033[31m", stdout);
    if (kind == PART_CUT && !has_colours) fputs("[-", stdout);
}

static void print_end(enum part_kind kind, bool has_colours)
{
    if (kind != PART_READ && has_colours) fputs("\033[0m", stdout);
    if (kind == PART_TRAINED && !has_colours) fputs("+}", stdout);
    if (kind == PART_CUT && !has_colours) fputs("-]", stdout);
}

/* Every line of a row is indented, so that no text looks like a line of the report. */
static void print_part(const struct part *part, bool has_colours)
{
    const char *text = part->text.s;
    const size_t n_text = part->text.n;
    print_begin(part->kind, has_colours);
    for (size_t at = 0; at < n_text;) {
        const char *line_end = memchr(text + at, '\n', n_text - at);
        const size_t n = line_end ? (size_t)(line_end - text) - at : n_text - at;
        printable_put(stdout, PRINTABLE_TEXT, text + at, n);
        if (line_end && has_colours) print_end(part->kind, true);
        if (line_end) fputs("\n  ", stdout);
        if (line_end && has_colours) print_begin(part->kind, true);
        at += n + (line_end != NULL);
    }
    print_end(part->kind, has_colours);
}

static void print_example(const struct chat_set *s, const struct chat_example *e,
                          const struct parts *parts, const char *why)
{
    const bool has_colours = terminal_has_colours(stdout);
    printable_print(stdout, "%s:%" PRIu64 ": %zu token%s, %zu trained", s->files[e->file], e->line,
                    e->n_full, plural(e->n_full), e->n_trained);
    if (e->n < e->n_full) printf(", %zu cut", e->n_full - e->n);
    if (e->has_empty) printf(", an empty answer");
    if (why) printable_print(stdout, "; left out: %s", why);
    printf("\n  ");
    for (size_t i = 0; i < parts->n; i++) print_part(&parts->items[i], has_colours);
    printf("\n\n");
}

static cz_status write_example(struct json_writer *w, const struct chat_set *s,
                               const struct chat_example *e, const struct parts *parts)
{
    struct text_buf whole = {0};
    cz_status st = CZ_OK;
    for (size_t i = 0; i < parts->n && st == CZ_OK; i++)
        st = text_buf_put(&whole, parts->items[i].text.s, parts->items[i].text.n);
    json_begin_object(w);
    json_put_string(w, "file", s->files[e->file]);
    json_put_int(w, "line", (int64_t)e->line);
    json_put_size(w, "tokens", e->n_full);
    json_put_size(w, "trained_tokens", e->n_trained);
    json_put_size(w, "cut_tokens", e->n_full - e->n);
    json_put_bool(w, "empty_answer", e->has_empty);
    json_write_key(w, "text");
    json_write_string_n(w, whole.s ? whole.s : "", whole.n);
    text_buf_free(&whole);
    json_write_key(w, "parts");
    json_begin_array(w);
    for (size_t i = 0; i < parts->n; i++) {
        json_begin_object(w);
        json_put_string(w, "kind", part_names[parts->items[i].kind]);
        json_put_size(w, "tokens", parts->items[i].n_tokens);
        json_write_key(w, "text");
        const struct text_buf *text = &parts->items[i].text;
        json_write_string_n(w, text->s ? text->s : "", text->n);
        json_end_object(w);
    }
    json_end_array(w);
    json_end_object(w);
    return st;
}

/* w NULL: for people. */
static cz_status show_example(const struct chat_set *s, size_t i,
                              struct cz_tokenizer_decoder *decoder, const char *why,
                              struct json_writer *w)
{
    const struct chat_example *e = &s->examples[i];
    struct parts parts = {0};
    cz_status st = parts_read(s, e, decoder, &parts);
    if (st == CZ_OK && w) st = write_example(w, s, e, &parts);
    if (st == CZ_OK && !w) print_example(s, e, &parts, why);
    parts_free(&parts);
    return st;
}

/* Why an example is left out, in buf; NULL: it is not. */
static const char *why_left_out(const struct chat_set *s, size_t example, char *buf)
{
    if (s->examples[example].n_trained > 0) return NULL;
    for (size_t i = 0; i < s->n_left_out; i++)
        if (s->left_out[i].example == example) return chat_fault_text(s, s->left_out[i].fault, buf);
    return NULL;
}

/* The first o->rows examples from o->line on, or rows that are left out. */
static cz_status show_rows(const struct data_words *o, const struct chat_set *s,
                           const struct cz_tokenizer *tokenizer, struct json_writer *w)
{
    struct cz_tokenizer_decoder *decoder;
    int64_t n_shown = 0;
    char why[CHAT_FAULT_NBYTES];
    cz_status st = CZ_OK;
    TRY(cz_tokenizer_decoder_create(tokenizer, &decoder));
    for (size_t i = 0; !o->left_out && i < s->n_examples && n_shown < o->rows && st == CZ_OK; i++) {
        if (s->examples[i].line < (uint64_t)o->line) continue;
        st = show_example(s, i, decoder, why_left_out(s, i, why), w);
        n_shown++;
    }
    for (size_t i = 0; o->left_out && i < s->n_left_out && n_shown < o->rows && st == CZ_OK; i++) {
        const struct chat_left_out *left = &s->left_out[i];
        if (left->line < (uint64_t)o->line) continue;
        n_shown++;
        if (left->example != SIZE_MAX)
            st = show_example(s, left->example, decoder, chat_fault_text(s, left->fault, why), w);
        else if (!w)
            printable_print(stdout, "%s\n\n", left->sentence);
    }
    cz_tokenizer_decoder_destroy(decoder);
    return st;
}

/* ---- the whole ------------------------------------------------------------------------------ */

enum { N_BARS = 32, BAR_WIDTH = 40 };

struct summary {
    size_t shortest, median, longest, n_tokens, n_cut_tokens;
    size_t bars[N_BARS]; /* examples of up to 2^k tokens, and more than 2^(k−1) */
    int first_bar, last_bar;
};

static int by_size(const void *left, const void *right)
{
    const size_t a = *(const size_t *)left, b = *(const size_t *)right;
    return a < b ? -1 : a > b;
}

/* Lengths of all rows before they are cut; tokens of those that are trained on. */
static cz_status sum_up(const struct chat_set *s, struct summary *out)
{
    size_t *lengths = malloc((s->n_examples + 1) * sizeof *lengths);
    *out = (struct summary){.first_bar = N_BARS};
    if (!lengths) return err_set(CZ_NOMEM, 0, "no memory for %zu lengths", s->n_examples);
    for (size_t i = 0; i < s->n_examples; i++) {
        const struct chat_example *e = &s->examples[i];
        int bar = 0;
        while (bar + 1 < N_BARS && ((size_t)1 << bar) < e->n_full) bar++;
        out->bars[bar]++;
        if (bar < out->first_bar) out->first_bar = bar;
        if (bar > out->last_bar) out->last_bar = bar;
        lengths[i] = e->n_full;
        out->n_cut_tokens += e->n_full - e->n;
        if (e->n_trained > 0) out->n_tokens += e->n;
    }
    qsort(lengths, s->n_examples, sizeof *lengths, by_size);
    if (s->n_examples > 0) {
        out->shortest = lengths[0];
        out->median = lengths[(s->n_examples - 1) / 2];
        out->longest = lengths[s->n_examples - 1];
    }
    free(lengths);
    return CZ_OK;
}

double data_percent(double part, double whole)
{
    return whole > 0 ? 100.0 * part / whole : 0;
}

/* Bars of '#', or of full blocks where the terminal has them. */
static void print_lengths(const struct data_words *o, const struct chat_set *s,
                          const struct summary *sum)
{
    const bool is_utf8 = terminal_is_utf8();
    size_t most = 1;
    if (s->n_examples == 0) return;
    printf("lengths    %zu to %zu tokens, half of them up to %zu\n", sum->shortest, sum->longest,
           sum->median);
    for (int k = sum->first_bar; k <= sum->last_bar; k++)
        if (sum->bars[k] > most) most = sum->bars[k];
    for (int k = sum->first_bar; k <= sum->last_bar; k++) {
        const size_t above = k > 0 ? ((size_t)1 << (k - 1)) + 1 : 0, upto = (size_t)1 << k;
        const size_t width = (sum->bars[k] * BAR_WIDTH + most - 1) / most;
        printf("  %7zu to %-7zu %8zu ", above, upto, sum->bars[k]);
        for (size_t i = 0; i < width; i++)
            if (is_utf8)
                fputs("\u2588", stdout);
            else
                putchar('#');
        if (above > (size_t)o->seq_len) fputs(" cut", stdout);
        putchar('\n');
    }
}

/* Why the first row with this fault is left out; NULL: no sentence says more. */
static const char *first_sentence(const struct chat_set *s, int fault)
{
    for (size_t i = 0; i < s->n_left_out; i++)
        if ((int)s->left_out[i].fault == fault) return s->left_out[i].sentence;
    return NULL;
}

static void print_summary(const struct data_words *o, const struct chat_set *s,
                          const struct summary *sum)
{
    const uint64_t n_out = chat_set_n_left_out(s);
    char text[CHAT_REASONS_NBYTES], cut[TOOL_CUT_NBYTES], start[CHAT_START_NBYTES];
    printable_print(stdout,
                    "rows       %" PRIu64 "; %" PRIu64 " %s trained on, %" PRIu64 " %s left out\n",
                    s->n_rows, s->n_rows - n_out, s->n_rows - n_out == 1 ? "is" : "are", n_out,
                    n_out == 1 ? "is" : "are");
    for (int i = 0; i < CHAT_N_FAULTS; i++)
        if (s->n_faults[i] > 0)
            printable_print(stdout, "           %s%s%s\n",
                            chat_set_reason(s, (enum chat_fault)i, text),
                            first_sentence(s, i) ? "; the first: " : "",
                            first_sentence(s, i) ? first_sentence(s, i) : "");
    if (s->n_empty > 0)
        printable_print(stdout,
                        "empty      %" PRIu64 " %s an answer that says nothing: only the end "
                        "of the turn is trained there\n",
                        s->n_empty, s->n_empty == 1 ? "row has" : "rows have");
    if (chat_set_start(s, start)) printable_print(stdout, "answers    %s\n", start);
    print_lengths(o, s, sum);
    printable_print(stdout, "cut        %s, %zu token%s lost\n",
                    tool_cut_sentence(cut, s->n_cut, s->n_rows, "row", o->seq_len),
                    sum->n_cut_tokens, sum->n_cut_tokens == 1 ? " is" : "s are");
    printf("epoch      %zu tokens, %" PRIu64 " (%.1f %%) of them trained\n", sum->n_tokens,
           s->n_trained, data_percent((double)s->n_trained, (double)sum->n_tokens));
    if (o->packing)
        printable_print(
            stdout, "packed     %zu row%s of %" PRId64 " tokens, %.1f %% full\n", s->n_bins,
            plural(s->n_bins), o->seq_len,
            data_percent((double)sum->n_tokens, (double)s->n_bins * (double)o->seq_len));
    if (chat_set_is_refused(s))
        printable_print(stdout, "czero train refuses this data: %s of its rows are left out\n",
                        n_out == s->n_rows ? "all" : "more than half");
}

static void write_summary(struct json_writer *w, const struct data_words *o,
                          const struct chat_set *s, const struct summary *sum)
{
    static const char *const names[] = {[CHAT_REFUSED] = "refused",
                                        [CHAT_UNFOUND] = "unfound",
                                        [CHAT_UNSEEN] = "unseen",
                                        [CHAT_UNTRAINED] = "untrained",
                                        [CHAT_CUT_AWAY] = "cut_away"};
    char text[CHAT_FAULT_NBYTES];
    json_put_int(w, "rows", (int64_t)s->n_rows);
    json_put_int(w, "rows_trained", (int64_t)(s->n_rows - chat_set_n_left_out(s)));
    json_write_key(w, "left_out");
    json_begin_object(w);
    for (int i = 0; i < CHAT_N_FAULTS; i++) json_put_int(w, names[i], (int64_t)s->n_faults[i]);
    json_end_object(w);
    json_write_key(w, "left_out_rows");
    json_begin_array(w);
    for (size_t i = 0; i < s->n_left_out; i++) {
        const struct chat_left_out *left = &s->left_out[i];
        json_begin_object(w);
        json_put_string(w, "file", s->files[left->file]);
        json_put_int(w, "line", (int64_t)left->line);
        json_put_string(w, "reason", names[left->fault]);
        json_put_string(w, "sentence",
                        left->sentence ? left->sentence : chat_fault_text(s, left->fault, text));
        json_end_object(w);
    }
    json_end_array(w);
    json_put_size(w, "shortest", sum->shortest);
    json_put_size(w, "median", sum->median);
    json_put_size(w, "longest", sum->longest);
    json_write_key(w, "lengths");
    json_begin_array(w);
    for (int k = sum->first_bar; k <= sum->last_bar; k++) {
        json_begin_object(w);
        json_put_size(w, "tokens_max", (size_t)1 << k);
        json_put_size(w, "rows", sum->bars[k]);
        json_end_object(w);
    }
    json_end_array(w);
    json_put_int(w, "seq_len", o->seq_len);
    json_put_int(w, "rows_cut", (int64_t)s->n_cut);
    json_put_size(w, "tokens_cut", sum->n_cut_tokens);
    json_put_size(w, "tokens_per_epoch", sum->n_tokens);
    json_put_int(w, "trained_tokens_per_epoch", (int64_t)s->n_trained);
    json_put_int(w, "rows_without_end", (int64_t)s->n_without_end);
    json_put_int(w, "rows_with_empty_answer", (int64_t)s->n_empty);
    json_put_int(w, "answers_compared", (int64_t)s->n_starts);
    json_put_int(w, "answers_begin_otherwise", (int64_t)s->n_other_starts);
    json_put_size(w, o->packing ? "packed_rows" : "batch_rows", s->n_bins);
}

static cz_status report(const struct data_words *o, const struct chat_set *s,
                        const struct cz_tokenizer *tokenizer)
{
    struct summary sum;
    struct json_writer w;
    TRY(sum_up(s, &sum));
    if (!o->json) {
        TRY(show_rows(o, s, tokenizer, NULL));
        print_summary(o, s, &sum);
        return CZ_OK;
    }
    json_writer_init(&w, 2);
    json_begin_object(&w);
    write_summary(&w, o, s, &sum);
    json_write_key(&w, "shown");
    json_begin_array(&w);
    cz_status st = show_rows(o, s, tokenizer, &w);
    json_end_array(&w);
    json_end_object(&w);
    if (st == CZ_OK && tool_put_json(&w) != EXIT_OK) st = cz_last_status();
    json_writer_free(&w);
    return st;
}

static cz_status show(struct data_words *o)
{
    struct cz_tokenizer *tokenizer = NULL;
    struct chat_encoder encoder = {0};
    struct chat_set *set = NULL;
    cz_status st;
    const char *adapter = NULL;
    TRY(adapter_find_base(&o->model, &adapter));
    o->tokenizer = adapter_tokenizer(o->tokenizer, o->model, adapter);
    const char *dir = o->model ? adapter_template(o->model, adapter) : NULL;
    if (data_is_texts(o)) return data_show_texts(o);
    if (o->seq_len == 0) o->seq_len = 1024;
    if (o->text_column || o->pair_column || o->label_column)
        return err_set(CZ_INVALID, 0, "--%s-column is for labelled texts; %s holds chats",
                       o->text_column   ? "text"
                       : o->pair_column ? "pair"
                                        : "label",
                       o->file);
    TRY(cz_tokenizer_open(o->tokenizer, &tokenizer));
    TRY_GOTO(chat_encoder_open_in(&encoder, tokenizer, dir, o->chat_template, o->loss_on), done);
    const struct chat_set_options options = {.paths = &o->file,
                                             .n_paths = 1,
                                             .encoding = o->encoding,
                                             .encoder = encoder,
                                             .max_len = o->seq_len,
                                             .packs = o->packing,
                                             .keeps_all = true};
    TRY_GOTO(chat_set_open(&options, &set), done);
    TRY_GOTO(report(o, set, tokenizer), done);
done:
    chat_set_close(set);
    chat_encoder_close(&encoder);
    cz_tokenizer_close(tokenizer);
    return st;
}

int cmd_data(int argc, char **argv)
{
    struct data_words o = {.rows = 3};
    if (argc > 1 && strcmp(argv[1], "show") == 0) {
        enum args_result parsed = args_parse(&actions[0], argc - 1, argv + 1, &o);
        if (parsed != ARGS_OK) return parsed == ARGS_HELP ? EXIT_OK : EXIT_USAGE;
        tool_log_init(true);
        return show(&o) == CZ_OK ? EXIT_OK : tool_fail();
    }
    if (argc > 1 && argv[1][0] != '-') {
        tool_complain("czero data", "unknown action \"%s\": show", argv[1]);
        return EXIT_USAGE;
    }
    enum args_result parsed = args_parse(&data_command, argc, argv, NULL);
    if (parsed == ARGS_HELP) return EXIT_OK;
    if (parsed == ARGS_OK) tool_complain("czero data", "ACTION is missing (see czero data --help)");
    return EXIT_USAGE;
}
