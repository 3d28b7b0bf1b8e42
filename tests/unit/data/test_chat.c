/* Claims: rows of instruction data in all forms become one form; the assistant's tokens are found
 * by the template's marks and without them; examples that cannot be trained are left out, and too
 * many of them end the run; packing is best fit, longest first; loaders visit every row once, give
 * the step's mean over all trained tokens, deal incomplete steps evenly, and resume; tokens that
 * were kept are those of the rows, and damaged ones, or those of another template, are not taken.
 */
#include "data/chat/chat_loader.h"
#include "formats/file_io.h"
#include "tests/support/check_main.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MARKED                                                                                     \
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}"          \
    "{{ m.content }}.{% endgeneration %}{% else %}{{ m.content }}.{% endif %}{% endfor %}"         \
    "{% if add_generation_prompt %}<assistant>{% endif %}"
#define PLAIN                                                                                      \
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}.{% endfor %}"                            \
    "{% if add_generation_prompt %}<assistant>{% endif %}"
/* Reasoning stays in the last answer only, as many templates have it. */
#define FORGETS                                                                                    \
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% if loop.last %}"        \
    "<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}{% else %}{{ m.content }}"  \
    "{% endif %}.{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"

static char dir[64], file[96], template_file[96];
static struct cz_tokenizer *bytes;

static void setup(void)
{
    snprintf(dir, sizeof dir, "%s", test_tmp_make());
    snprintf(file, sizeof file, "%s/rows.jsonl", dir);
    snprintf(template_file, sizeof template_file, "%s/t.jinja", dir);
    ck_ok(cz_tokenizer_open("bytes", &bytes));
}

static void teardown(void)
{
    cz_tokenizer_close(bytes);
    test_tmp_remove(dir);
}

static struct chat_encoder encoder_of(const char *text, const char *loss)
{
    struct chat_encoder e;
    ck_ok(file_save(template_file, text, strlen(text)));
    ck_ok(chat_encoder_open(&e, bytes, template_file, loss));
    return e;
}

/* A row's text with trained parts in brackets. */
static cz_status show(const char *text, const char *loss, const char *json, char *out)
{
    struct chat_encoder e = encoder_of(text, loss);
    struct chat_row row;
    struct chat_tokens t = {0};
    cz_status st = chat_row_read(json, strlen(json), "f:1", &row);
    if (st == CZ_OK) st = chat_encode(&e, &row, "f:1", &t);
    bool on = false;
    for (size_t i = 0; i <= t.n && st == CZ_OK; i++) {
        bool trained = i < t.n && t.trained[i];
        if (trained != on) *out++ = trained ? '[' : ']';
        on = trained;
        if (i < t.n) *out++ = (char)t.ids[i];
    }
    *out = '\0';
    chat_tokens_free(&t);
    chat_row_free(&row);
    chat_encoder_close(&e);
    return st;
}

static void check_shown(const char *text, const char *loss, const char *json, const char *expected)
{
    char shown[1000];
    cz_status st = show(text, loss, json, shown);
    ck_assert_msg(st == CZ_OK, "%s: %s", json, cz_last_error());
    ck_assert_msg(strcmp(shown, expected) == 0, "%s: %s", json, shown);
}

static void check_refused(const char *text, const char *json, cz_status status, const char *words)
{
    char shown[1000];
    cz_status st = show(text, NULL, json, shown);
    ck_assert_msg(st == status, "%s: %d %s", json, (int)st, cz_last_error());
    ck_assert_msg(strstr(cz_last_error(), words), "%s: %s", json, cz_last_error());
}

#define CHAT                                                                                       \
    "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", "         \
    "\"content\": \"b\"}, {\"role\": \"user\", \"content\": \"c\"}, {\"role\": \"assistant\", "    \
    "\"content\": \"d\\u00e9\"}]}"

START_TEST(rows_of_every_form_are_read)
{
    setup();
    const char *two = "<user>a.<assistant>[b.]<user>c.<assistant>[dé.]";
    check_shown(MARKED, NULL, CHAT, two);
    check_shown(PLAIN, NULL, CHAT, two);
    check_shown(PLAIN, "completion", CHAT, "<user>a.<assistant>b.<user>c.<assistant>[dé.]");
    check_shown(MARKED, "all", CHAT, "[<user>a.<assistant>b.<user>c.<assistant>dé.]");
    check_shown(PLAIN, NULL,
                "{\"prompt\": [{\"role\": \"user\", \"content\": \"a\"}], \"completion\": "
                "[{\"role\": \"assistant\", \"content\": \"b\"}]}",
                "<user>a.<assistant>[b.]");
    check_shown(PLAIN, NULL, "{\"prompt\": \"ab\", \"completion\": \"cd\"}", "ab[cd]");
    check_shown(PLAIN, "all", "{\"prompt\": \"ab\", \"completion\": \"cd\"}", "[abcd]");
    check_shown(PLAIN, NULL, "{\"text\": \"abc\", \"id\": 5}", "[abc]");
    check_shown(PLAIN, NULL, "{\"instruction\": \"i\", \"input\": \"x\", \"output\": \"o\"}",
                "<user>i\nx.<assistant>[o.]");
    check_shown(PLAIN, NULL,
                "{\"instruction\": \"i\", \"input\": \"\", \"output\": \"o\", \"system\": \"s\", "
                "\"history\": [[\"q\", \"r\"]]}",
                "<system>s.<user>q.<assistant>[r.]<user>i.<assistant>[o.]");
    check_shown(MARKED, NULL,
                "{\"conversations\": [{\"from\": \"system\", \"value\": \"s\"}, {\"from\": "
                "\"human\", \"value\": \"q\"}, {\"from\": \"gpt\", \"value\": \"a\"}]}",
                "<system>s.<user>q.<assistant>[a.]");
    check_shown("{{ messages[0].thinking }}{{ messages[0].content is defined }}{{ tools | tojson }}"
                "{{ x }}{% generation %}y{% endgeneration %}",
                NULL,
                "{\"messages\": [{\"role\": \"user\", \"reasoning\": \"r\", \"content\": null}], "
                "\"tools\": \"[{\\\"a\\\": 1}]\", \"chat_template_kwargs\": {\"x\": 2.5}}",
                "rFalse[{\"a\": 1}]2.5[y]");
    teardown();
}
END_TEST

START_TEST(answers_without_marks_are_found_or_refused)
{
    setup();
    check_shown(FORGETS, NULL,
                "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": "
                "\"assistant\", \"content\": \"b\", \"reasoning_content\": \"b?\"}, {\"role\": "
                "\"user\", \"content\": \"c\"}, {\"role\": \"assistant\", \"content\": \"d\", "
                "\"reasoning_content\": \"e\"}]}",
                "<user>a.<assistant>[b.]<user>c.<assistant>[<think>e</think>d.]");
    /* A call without words, of which a later turn leaves the empty reasoning out, as Qwen3's does.
     */
    check_shown("{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' and loop.last %}"
                "<think></think>{% endif %}{{ m.content }}{% for c in m.tool_calls %}"
                "({{ c.function.name }}){% endfor %}.{% endfor %}"
                "{% if add_generation_prompt %}<assistant>{% endif %}",
                NULL,
                "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": "
                "\"assistant\", \"content\": \"\", \"tool_calls\": [{\"function\": {\"name\": "
                "\"f\", \"arguments\": {}}}]}, {\"role\": \"tool\", \"content\": \"5\"}, "
                "{\"role\": \"assistant\", \"content\": \"b\"}]}",
                "<user>a.<assistant>[(f).]<tool>5.<assistant>[<think></think>b.]");
    check_shown(
        "{% for m in messages %}{% for c in m.content %}<{{ c.text }}>{% endfor %}{% endfor %}",
        "all",
        "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", "
        "\"text\": \" a\"}]}]}",
        "[< a>]");
    check_refused("{% for m in messages %}{% if m.content is string %}{{ m.content }}{% endif %}"
                  "{% endfor %}",
                  "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": "
                  "\"assistant\", \"content\": [{\"type\": \"text\", \"text\": \"b\"}]}]}",
                  CZ_INVALID, "f:1: the template does not write the content of message 2");
    check_refused(PLAIN, "{\"text\": 5}", CZ_INVALID, "there is text (an integer)");
    check_refused(
        PLAIN, "{\"prompt\": \"a\", \"completion\": []}", CZ_INVALID,
        "prompt and completion are both texts or both lists of messages; there is prompt");
    check_refused("{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}", CHAT,
                  CZ_INVALID, "f:1: the answer in message 2 cannot be found");
    check_refused("{{ raise_exception('no') }}", CHAT, CZ_INVALID,
                  "t.jinja:1: the template refuses the conversation: no");
    check_refused(PLAIN, "{\"a\": 1, \"b\": 2}", CZ_INVALID, "there is a, b");
    check_refused(PLAIN, "{\"messages\": []}", CZ_INVALID, "the conversation has no message");
    check_refused(PLAIN, "{\"messages\": [5]}", CZ_INVALID, "message 1 is an integer");
    check_refused(PLAIN, "{\"conversations\": [{\"from\": \"me\", \"value\": \"x\"}]}", CZ_INVALID,
                  "turn 1 is from \"me\"");
    check_refused(PLAIN, "{\"messages\": [}", CZ_CORRUPT, "f:1:1:15");
    teardown();
}
END_TEST

/* ---- sets ---------------------------------------------------------------------------------------
 */

static cz_status open_set(const struct chat_encoder *e, int64_t max_len, bool packs,
                          struct chat_set **out)
{
    const char *const path = file;
    const struct chat_set_options o = {
        .paths = &path, .n_paths = 1, .encoder = *e, .max_len = max_len, .packs = packs};
    return chat_set_open(&o, out);
}

/* n rows: prompts of 1 … 7 bytes, completions of 1 … 5. */
static void write_rows(size_t n)
{
    FILE *f = fopen(file, "w");
    ck_assert_ptr_nonnull(f);
    for (size_t i = 0; i < n; i++)
        fprintf(f, "{\"prompt\": \"%.*s\", \"completion\": \"%.*s\"}\n", (int)(1 + i * 5 % 7),
                "ppppppp", (int)(1 + i * 3 % 5), "ccccc");
    ck_assert_int_eq(fclose(f), 0);
}

START_TEST(examples_without_a_trained_token_are_left_out)
{
    static const char rows[] = "[{\"prompt\": \"abcdef\", \"completion\": \"g\"},\n"
                               " {\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]},\n"
                               " {\"prompt\": \"ab\", \"completion\": \"cdefgh\"},\n"
                               " {\"prompt\": \"a\", \"completion\": \"b\"},"
                               " {\"prompt\": \"a\", \"completion\": \"c\"}]";
    setup();
    struct chat_encoder e = encoder_of(PLAIN, NULL);
    struct chat_set *s;
    ck_ok(file_save(file, rows, sizeof rows - 1));
    ck_ok(open_set(&e, 4, false, &s));
    ck_assert_uint_eq(s->n_rows, 5);
    ck_assert_uint_eq(s->n_examples, 3);
    ck_assert_uint_eq(s->n_faults[CHAT_UNTRAINED], 1);
    ck_assert_uint_eq(s->n_faults[CHAT_CUT_AWAY], 1);
    ck_assert_uint_eq(s->n_trained, 2 + 1 + 1);
    ck_assert_uint_eq(s->examples[0].line, 3);
    ck_assert_uint_eq(s->examples[0].n_full, 8);
    chat_set_close(s);
    ck_ok(file_save(file, rows, (size_t)(strstr(rows, ",\n {\"prompt\": \"ab\"") - rows)));
    FILE *f = fopen(file, "a");
    fputs("]", f);
    ck_assert_int_eq(fclose(f), 0);
    ck_assert_int_eq(open_set(&e, 4, false, &s), CZ_INVALID);
    ck_assert_msg(strstr(cz_last_error(), "2 of 2 rows cannot be trained on"), "%s",
                  cz_last_error());
    chat_encoder_close(&e);
    teardown();
}
END_TEST

static struct chat_set *open_kept(const struct chat_encoder *e, const char *cache)
{
    const char *const path = file;
    struct chat_set *s;
    const struct chat_set_options o = {
        .paths = &path, .n_paths = 1, .encoder = *e, .max_len = 12, .cache_dir = cache};
    ck_ok(chat_set_open(&o, &s));
    return s;
}

static void check_equal(const struct chat_set *a, const struct chat_set *b)
{
    ck_assert_uint_eq(a->n_tokens, b->n_tokens);
    ck_assert_mem_eq(a->tokens, b->tokens, a->n_tokens * sizeof *a->tokens);
    ck_assert_uint_eq(a->n_examples, b->n_examples);
    for (size_t i = 0; i < a->n_examples; i++) {
        const struct chat_example *x = &a->examples[i], *y = &b->examples[i];
        ck_assert(x->begin == y->begin && x->n == y->n && x->n_full == y->n_full);
        ck_assert(x->n_trained == y->n_trained && x->file == y->file && x->line == y->line);
    }
    ck_assert_uint_eq(a->n_trained, b->n_trained);
    ck_assert_mem_eq(a->n_faults, b->n_faults, sizeof a->n_faults);
}

/* Files in the cache that end in .tokens, each given to f. */
static size_t each_kept(const char *cache, void (*f)(const char *path))
{
    DIR *d = opendir(cache);
    size_t n = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[512];
        if (!strstr(e->d_name, ".tokens")) continue;
        snprintf(path, sizeof path, "%s/%s", cache, e->d_name);
        if (f) f(path);
        n++;
    }
    if (d) closedir(d);
    return n;
}

static void damage(const char *path)
{
    char *text;
    size_t n;
    ck_ok(file_load(path, 1 << 24, &text, &n));
    text[n / 2] ^= 1;
    ck_ok(file_save(path, text, n));
    free(text);
}

static void truncate_file(const char *path)
{
    ck_assert_int_eq(truncate(path, 20), 0);
}

/* 3,000 rows are two blocks; two of them are refused each time. */
START_TEST(kept_tokens_are_those_of_the_rows)
{
    static const char refused[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"no\"}]}\n";
    static const char template[] =
        "{% if messages[0].content == 'no' %}{{ raise_exception('no') }}{% endif %}" PLAIN;
    char cache[96];
    setup();
    snprintf(cache, sizeof cache, "%s/cache/tokens", dir);
    write_rows(3000);
    FILE *f = fopen(file, "a");
    fputs(refused, f);
    fputs(refused, f);
    fputs(CHAT "\n", f);
    ck_assert_int_eq(fclose(f), 0);
    struct chat_encoder e = encoder_of(template, NULL);
    struct chat_set *plain = open_kept(&e, NULL), *first = open_kept(&e, cache), *again;
    ck_assert_uint_eq(plain->n_faults[CHAT_REFUSED], 2);
    ck_assert_uint_eq(first->n_kept, 0);
    check_equal(plain, first);
    ck_assert_uint_eq(each_kept(cache, NULL), 2);
    again = open_kept(&e, cache);
    ck_assert_uint_eq(again->n_kept, 3001);
    check_equal(plain, again);
    chat_set_close(again);
    /* one more row: the first block is found */
    f = fopen(file, "a");
    fputs("{\"text\": \"abc\"}\n", f);
    ck_assert_int_eq(fclose(f), 0);
    again = open_kept(&e, cache);
    ck_assert_uint_eq(again->n_kept, 2048);
    chat_set_close(again);
    chat_set_close(plain);
    plain = open_kept(&e, NULL);
    for (int k = 0; k < 2; k++) {
        each_kept(cache, k ? damage : truncate_file);
        again = open_kept(&e, cache);
        ck_assert_uint_eq(again->n_kept, 0);
        check_equal(plain, again);
        chat_set_close(again);
    }
    again = open_kept(&e, cache); /* damaged files have been written again */
    ck_assert_uint_eq(again->n_kept, 3002);
    chat_set_close(again);
    /* what the loss is on, or another template, is another cache */
    chat_encoder_close(&e);
    e = encoder_of(PLAIN, "all");
    again = open_kept(&e, cache);
    ck_assert_uint_eq(again->n_kept, 0);
    chat_set_close(again);
    chat_encoder_close(&e);
    e = encoder_of(PLAIN "{# other #}", "all");
    again = open_kept(&e, cache);
    ck_assert_uint_eq(again->n_kept, 0);
    chat_set_close(again);
    chat_encoder_close(&e);
    e = encoder_of("{{ strftime_now('%Y') }}" PLAIN, "all");
    for (int k = 0; k < 2; k++) {
        again = open_kept(&e, cache);
        ck_assert_uint_eq(again->n_kept, 0);
        chat_set_close(again);
    }
    chat_set_close(plain);
    chat_set_close(first);
    chat_encoder_close(&e);
    teardown();
}
END_TEST

/* The same by looking at all bins, as TRL's description has it. */
START_TEST(bins_are_the_best_fit_of_the_longest)
{
    enum { N = 300, MAX = 13 };
    static size_t space[N], bin_of[N], order[N];
    setup();
    write_rows(N);
    struct chat_encoder e = encoder_of(PLAIN, NULL);
    struct chat_set *s;
    ck_ok(open_set(&e, MAX, true, &s));
    ck_assert_uint_eq(s->n_examples, N);
    size_t n = 0, n_bins = 0;
    for (size_t len = MAX + 1; len-- > 0;)
        for (size_t i = 0; i < N; i++)
            if (s->examples[i].n == len) order[n++] = i;
    for (size_t k = 0; k < N; k++) {
        size_t len = s->examples[order[k]].n, best = N;
        for (size_t b = 0; b < n_bins; b++)
            if (space[b] >= len && (best == N || space[b] < space[best])) best = b;
        if (best == N) space[best = n_bins++] = MAX;
        space[best] -= len;
        bin_of[order[k]] = best;
    }
    ck_assert_uint_eq(s->n_bins, n_bins);
    size_t n_seen = 0;
    for (size_t b = 0; b < s->n_bins; b++) {
        ck_assert_uint_le(s->bins[b].n_tokens, MAX);
        n_seen += s->bins[b].n;
    }
    ck_assert_uint_eq(n_seen, N);
    ck_assert_uint_eq(bin_of[s->order[0]], 0);
    chat_set_close(s);
    chat_encoder_close(&e);
    teardown();
}
END_TEST

/* ---- loaders ------------------------------------------------------------------------------------
 */

static struct chat_loader *open_loader(const struct chat_set *s, int rank, int world, int A,
                                       bool packs)
{
    const struct chat_loader_options o = {.set = s,
                                          .max_len = 16,
                                          .micro_batch = 3,
                                          .accumulation = A,
                                          .rank = rank,
                                          .world_size = world,
                                          .pad_id = 0,
                                          .seed = 7,
                                          .shuffle = true,
                                          .is_packed = packs};
    struct chat_loader *l;
    ck_ok(chat_loader_open(&o, &l));
    return l;
}

START_TEST(a_step_has_one_mean_over_its_trained_tokens)
{
    setup();
    write_rows(40);
    struct chat_encoder e = encoder_of(PLAIN, NULL);
    for (int packs = 0; packs < 2; packs++) {
        struct chat_set *s;
        ck_ok(open_set(&e, 16, packs, &s));
        struct chat_loader *l[2] = {open_loader(s, 0, 2, 2, packs), open_loader(s, 1, 2, 2, packs)};
        uint64_t n_labels = 0;
        for (uint64_t step = 0; step < chat_loader_steps_per_epoch(l[0]); step++) {
            double weight = 0;
            for (int i = 0; i < 4; i++) {
                struct cz_batch b;
                uint64_t n = 0;
                chat_loader_next(l[i % 2], &b);
                ck_assert(b.T <= 16 && b.B >= 1 && b.B <= 3);
                ck_assert((b.documents != NULL) == packs);
                for (int64_t k = 0; k < b.B * b.T; k++) {
                    if (b.labels[k] == CZ_IGNORE_LABEL) continue;
                    ck_assert_int_eq(b.labels[k], 'c');
                    ck_assert_int_eq(b.ids[k + 1], 'c');
                    n++;
                }
                weight += (double)n / (double)b.loss_divisor / 4;
                n_labels += n;
            }
            ck_assert_double_eq_tol(weight, 1.0, 1e-6);
        }
        ck_assert_uint_eq(n_labels, s->n_trained);
        chat_loader_close(l[0]);
        chat_loader_close(l[1]);
        chat_set_close(s);
    }
    chat_encoder_close(&e);
    teardown();
}
END_TEST

START_TEST(a_resumed_loader_gives_the_same_batches)
{
    setup();
    write_rows(40);
    struct chat_encoder e = encoder_of(PLAIN, NULL);
    struct chat_set *s;
    struct cz_data_cursor place;
    struct cz_batch x, y;
    ck_ok(open_set(&e, 16, true, &s));
    struct chat_loader *a = open_loader(s, 0, 1, 1, true), *b = open_loader(s, 0, 1, 1, true);
    for (int i = 0; i < 9; i++) chat_loader_next(a, &x);
    chat_loader_tell(a, &place);
    ck_ok(chat_loader_seek(b, &place));
    for (int i = 0; i < 9; i++) {
        chat_loader_next(a, &x);
        chat_loader_next(b, &y);
        ck_assert(x.B == y.B && x.T == y.T && x.sample == y.sample);
        ck_assert_mem_eq(x.ids, y.ids, (size_t)(x.B * x.T) * sizeof *x.ids);
    }
    place.n_rows++;
    ck_assert_int_eq(chat_loader_seek(b, &place), CZ_INVALID);
    chat_loader_close(a);
    chat_loader_close(b);
    chat_set_close(s);
    chat_encoder_close(&e);
    teardown();
}
END_TEST

START_TEST(templates_of_a_folder_are_found)
{
    static const char config[] =
        "{\"chat_template\": [{\"name\": \"default\", \"template\": \"D\"}, "
        "{\"name\": \"tool_use\", \"template\": \"T{{ eos_token }}\"}], "
        "\"eos_token\": {\"content\": \"</s>\"}, \"bos_token\": null}";
    setup();
    struct chat_template *t;
    struct jinja_text text = {0};
    struct json_doc *doc;
    char path[128];
    ck_ok(json_parse("[1]", 3, "x", JSON_STRICT, &doc));
    struct chat_view chat = {.messages = json_root(doc)};
    snprintf(path, sizeof path, "%s/tokenizer_config.json", dir);
    ck_assert_int_eq(chat_template_open(dir, NULL, &t), CZ_NOTFOUND);
    ck_ok(file_save(path, config, sizeof config - 1));
    ck_ok(chat_template_open(dir, NULL, &t));
    ck_assert_str_eq(chat_template_token(t, "eos_token"), "</s>");
    ck_assert_ptr_null(chat_template_token(t, "bos_token"));
    ck_ok(chat_template_render(t, &chat, 1, false, 0, &text));
    ck_assert(text.text.n == 1 && text.text.s[0] == 'D');
    chat.tools = json_root(doc);
    ck_ok(chat_template_render(t, &chat, 1, false, 0, &text));
    ck_assert(text.text.n == 5 && memcmp(text.text.s, "T</s>", 5) == 0);
    chat_template_close(t);
    ck_assert_int_eq(chat_template_open(dir, "other", &t), CZ_NOTFOUND);
    ck_assert_msg(strstr(cz_last_error(), "it has default, tool_use"), "%s", cz_last_error());
    snprintf(path, sizeof path, "%s/chat_template.jinja", dir);
    ck_ok(file_save(path, "F", 1));
    ck_ok(chat_template_open(dir, NULL, &t));
    chat.tools = NULL;
    ck_ok(chat_template_render(t, &chat, 1, false, 0, &text));
    ck_assert(text.text.s[0] == 'F');
    chat_template_close(t);
    jinja_text_free(&text);
    json_free(doc);
    teardown();
}
END_TEST

TEST_MAIN("data/chat", rows_of_every_form_are_read, answers_without_marks_are_found_or_refused,
          examples_without_a_trained_token_are_left_out, kept_tokens_are_those_of_the_rows,
          bins_are_the_best_fit_of_the_longest, a_step_has_one_mean_over_its_trained_tokens,
          a_resumed_loader_gives_the_same_batches, templates_of_a_folder_are_found)
