/* Claims: rows of instruction data in all forms become one form; the assistant's tokens are found
 * by the template's marks and without them; examples that cannot be trained are left out, and too
 * many of them end the run; packing is best fit, longest first; loaders visit every row once, give
 * the step's mean over all trained tokens, deal incomplete steps evenly, and resume; tokens that
 * were kept are those of the rows, and damaged ones, or those of another template, are not taken.
 */
#include "data/chat/chat_cache.h"
#include "data/chat/chat_loader.h"
#include "data/source/split.h"
#include "tests/support/chat_show.h"

#include <dirent.h>
#include <unistd.h>

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

/* ---- what is logged ---- */

static char said[4000];

static void note(enum cz_log_level level, const char *line, void *arg)
{
    (void)arg;
    if (level != CZ_LOG_WARN) return;
    snprintf(said + strlen(said), sizeof said - strlen(said), "%s\n", line);
}

static void write_lines(const char *const *lines, size_t n)
{
    FILE *f = fopen(file, "w");
    ck_assert_ptr_nonnull(f);
    for (size_t i = 0; i < n; i++) fprintf(f, "%s\n", J(lines[i]));
    ck_assert_int_eq(fclose(f), 0);
    said[0] = '\0';
}

#define PAIR(more) "{'prompt':'a','completion':'b'" more "}"

START_TEST(rows_that_are_left_out_have_their_reasons)
{
    static const char *const lines[] = {
        PAIR(""),
        PAIR(""),
        PAIR(""),
        PAIR(""),
        PAIR(""),
        PAIR(""),
        PAIR(",'train':false"),
        "{'messages':[{'role':'user','content':'no'}]}",
        "{'messages':[{'role':'user','content':'x'}]}",
        "{'messages':[{'role':'user','content':'x'}],'image':'i'}",
        "{'prompt':'abcd','completion':'e'}",
        "{'prompt':'abcd','completion':'f'}",
    };
    static const char template[] =
        "{% if messages[0].content == 'no' %}{{ raise_exception('no') }}{% endif %}" PLAIN;
    setup();
    cz_log_set_sink(note, NULL);
    struct chat_encoder e = encoder_of(template, NULL);
    struct chat_set *s;
    char expected[600], text[CHAT_REASONS_NBYTES], why[CHAT_FAULT_NBYTES];
    write_lines(lines, CZ_ARRAY_LEN(lines));
    ck_ok(open_set(&e, 4, false, &s));
    snprintf(expected, sizeof expected,
             "data: 6 of 12 rows are left out: 1 is refused by the template, 1 has parts that the "
             "model cannot read, 2 have nothing to train, 2 have their answer after token 4 "
             "(--seq-len)\n");
    ck_assert_msg(strstr(said, expected), "%s", said);
    snprintf(expected, sizeof expected, "data: %s:9: nothing of this row is trained", file);
    ck_assert_msg(strstr(said, expected), "%s", said);
    snprintf(expected, sizeof expected, "data: %s:7: nothing of this row is trained", file);
    ck_assert_msg(!strstr(said, expected), "excluded by its own flag, as it is meant: %s", said);
    snprintf(expected, sizeof expected, "data: %s:11: the answer begins after token 4", file);
    ck_assert_msg(strstr(said, expected), "%s", said);
    ck_assert_uint_eq(s->n_excluded, 1);
    ck_assert(!chat_set_is_refused(s));
    ck_assert_str_eq(chat_set_reason(s, CHAT_UNTRAINED, text), "2 have nothing to train");
    ck_assert_str_eq(chat_set_reason(s, CHAT_UNSEEN, text),
                     "1 has parts that the model cannot read");
    ck_assert_str_eq(chat_fault_text(s, CHAT_UNFOUND, why),
                     "an answer cannot be found in the text");
    chat_set_close(s);
    /* one more is too many; rows that their flags exclude do not count there, unless all are */
    write_lines(lines + 1, CZ_ARRAY_LEN(lines) - 1);
    ck_ok(open_set(&e, 4, false, &s));
    chat_set_close(s);
    write_lines(lines + 3, CZ_ARRAY_LEN(lines) - 3);
    ck_assert_int_eq(open_set(&e, 4, false, &s), CZ_INVALID);
    ck_assert_msg(strstr(cz_last_error(), "6 of 9 rows cannot be trained on: 1 is refused"), "%s",
                  cz_last_error());
    static const char *const excluded[] = {PAIR(""), PAIR(",'train':0"), PAIR(",'train':0"),
                                           PAIR(",'train':0")};
    write_lines(excluded, 4);
    ck_ok(open_set(&e, 4, false, &s));
    ck_assert_msg(strstr(said, "3 of 4 rows are left out: 3 have nothing to train"), "%s", said);
    chat_set_close(s);
    write_lines(excluded, 2);
    ck_ok(open_set(&e, 4, false, &s));
    ck_assert_msg(strstr(said, "1 of 2 rows is left out: 1 has nothing to train"), "%s", said);
    chat_set_close(s);
    /* the loss counts the completion, which its flag excludes, and not the prompt's answer */
    static const char later[] =
        "{'prompt':[{'role':'user','content':'q'},{'role':'assistant','content':'a'}],"
        "'completion':[{'role':'assistant','content':'b','train':false}]}";
    static const char *const completions[] = {PAIR(""), later, later, later};
    write_lines(completions, 4);
    ck_ok(open_set(&e, 4, false, &s));
    ck_assert_uint_eq(s->n_excluded, 3);
    chat_set_close(s);
    write_lines(excluded + 1, 3);
    ck_assert_int_eq(open_set(&e, 4, false, &s), CZ_INVALID);
    cz_log_set_sink(NULL, NULL);
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

/* Examples of write_rows(), one behind the other, and the sums over them. */
static void count_lines(const struct chat_set *s, unsigned seen[20])
{
    size_t n_tokens = 0, n_trained = 0;
    for (size_t i = 0; i < s->n_examples; i++) {
        const struct chat_example *e = &s->examples[i];
        const size_t n = (e->line - 1) * 5 % 7 + 1 + (e->line - 1) * 3 % 5 + 1; /* write_rows() */
        ck_assert_uint_eq(e->begin, n_tokens);
        ck_assert_uint_eq(e->n, n < 6 ? n : 6);
        const size_t n_prompt = (e->line - 1) * 5 % 7 + 1;
        for (size_t k = 0; k < e->n; k++)
            ck_assert_int_eq(s->tokens[e->begin + k],
                             k < n_prompt ? (int32_t)'p' : (int32_t)'c' | CHAT_TRAINED);
        ck_assert_str_eq(s->files[e->file], file);
        seen[e->line - 1]++;
        n_tokens += e->n;
        n_trained += e->n_trained;
    }
    ck_assert_uint_eq(s->n_tokens, n_tokens);
    ck_assert_uint_eq(s->n_trained, n_trained);
    ck_assert_uint_eq(s->n_bins, s->n_examples);
}

START_TEST(a_share_is_held_out_as_a_set_of_its_own)
{
    setup();
    struct chat_encoder e = encoder_of(PLAIN, NULL);
    const char *const path = file;
    struct chat_set *all, *s, *held;
    unsigned seen[20] = {0};
    struct chat_set_options o = {.paths = &path, .n_paths = 1, .encoder = e, .max_len = 6};
    write_rows(20);
    ck_ok(chat_set_open(&o, &all));
    o.split_share = 0.4;
    o.split_seed = 3;
    o.held = &held;
    ck_ok(chat_set_open(&o, &s));
    ck_assert_uint_eq(held->n_examples, split_count(0.4, all->n_examples));
    ck_assert_uint_eq(s->n_examples + held->n_examples, all->n_examples);
    ck_assert_uint_eq(s->n_cut + held->n_cut + all->n_faults[CHAT_CUT_AWAY], all->n_cut);
    count_lines(s, seen);
    count_lines(held, seen);
    ck_assert_uint_eq(held->n_rows, held->n_examples);
    ck_assert_uint_eq(s->n_rows + held->n_rows, all->n_rows);
    for (size_t i = 0; i < all->n_examples; i++)
        ck_assert_uint_eq(seen[all->examples[i].line - 1], 1);
    ck_assert_uint_eq(s->n_tokens + held->n_tokens, all->n_tokens);
    chat_set_close(all);
    chat_set_close(s);
    chat_set_close(held);
    o.split_share = 0.001;
    ck_assert_int_eq(chat_set_open(&o, &s), CZ_INVALID);
    ck_assert_ptr_null(held);
    chat_encoder_close(&e);
    teardown();
}
END_TEST

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
    setup_unguarded();
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

/* Five rows of each fault are named. */
START_TEST(as_many_rows_are_named_as_are_read)
{
    const char *lines[24];
    setup();
    cz_log_set_sink(note, NULL);
    struct chat_encoder e = encoder_of(PLAIN, NULL);
    struct chat_set *s;
    for (size_t i = 0; i < CZ_ARRAY_LEN(lines); i++)
        lines[i] = i % 3 ? PAIR("") : "{'messages':[{'role':'user','content':'x'}]}";
    write_lines(lines, CZ_ARRAY_LEN(lines));
    ck_ok(open_set(&e, 4, false, &s));
    size_t n_named = 0;
    for (const char *at = said; (at = strstr(at, "it is left out")); at++) n_named++;
    ck_assert_uint_eq(n_named, 5);
    ck_assert_uint_eq(s->n_faults[CHAT_UNTRAINED], 8);
    cz_log_set_sink(NULL, NULL);
    chat_set_close(s);
    chat_encoder_close(&e);
    teardown();
}
END_TEST

START_TEST(files_are_read_in_their_order)
{
    static const char *const names[] = {"a.jsonl", "b.jsonl", "c.jsonl", "d.jsonl"};
    char paths[4][128];
    const char *list[4];
    setup();
    struct chat_encoder e = encoder_of(PLAIN, NULL);
    for (size_t i = 0; i < 4; i++) {
        snprintf(paths[i], sizeof paths[i], "%s/%s", dir, names[i]);
        char text[64];
        const int n = snprintf(text, sizeof text, "\n{\"text\": \"%c%c\"}\n", 'a' + (int)i, 'z');
        ck_ok(file_save(paths[i], text, (size_t)n));
        list[i] = paths[i];
    }
    const struct chat_set_options o = {
        .paths = list, .n_paths = 4, .encoder = e, .max_len = 4, .keeps_all = true};
    struct chat_set *s;
    ck_ok(chat_set_open(&o, &s));
    ck_assert_uint_eq(s->n_files, 4);
    ck_assert_uint_eq(s->n_examples, 4);
    for (size_t i = 0; i < 4; i++) {
        ck_assert_str_eq(s->files[i], paths[i]);
        ck_assert_uint_eq(s->examples[i].file, i);
        ck_assert_uint_eq(s->examples[i].line, 2);
        ck_assert_int_eq(s->tokens[s->examples[i].begin] & INT32_MAX, 'a' + (int)i);
    }
    chat_set_close(s);
    chat_encoder_close(&e);
    teardown();
}
END_TEST

/* What nothing is trained of is kept for a look at it, and goes into no bin. */
START_TEST(bins_have_what_is_trained_alone)
{
    static const char *const lines[] = {"{'messages':[{'role':'user','content':'x'}]}", PAIR(""),
                                        "{'prompt':'abcdefgh','completion':'i'}", PAIR(""),
                                        "{'messages':[{'role':'user','content':'x'}]}"};
    setup();
    struct chat_encoder e = encoder_of(PLAIN, NULL);
    for (int packs = 0; packs < 2; packs++) {
        const char *const path = file;
        struct chat_set *s;
        const struct chat_set_options o = {.paths = &path,
                                           .n_paths = 1,
                                           .encoder = e,
                                           .max_len = 4,
                                           .packs = packs,
                                           .keeps_all = true};
        write_lines(lines, CZ_ARRAY_LEN(lines));
        ck_ok(chat_set_open(&o, &s));
        ck_assert_uint_eq(s->n_examples, 5);
        ck_assert_uint_eq(s->n_bins, packs ? 1 : 2);
        for (size_t i = 0; i < 2; i++) ck_assert_uint_eq(s->order[i], 1 + 2 * i);
        for (size_t b = 0; b < s->n_bins; b++) {
            ck_assert_uint_eq(s->bins[b].begin, b);
            ck_assert_uint_eq(s->bins[b].n, packs ? 2 : 1);
            ck_assert_uint_eq(s->bins[b].n_tokens, packs ? 4 : 2);
            ck_assert_uint_eq(s->bins[b].n_trained, packs ? 2 : 1);
        }
        ck_assert_uint_eq(s->n_left_out, 3);
        ck_assert_uint_eq(s->left_out[1].example, 2);
        ck_assert_uint_eq(s->examples[2].n_full, 9);
        chat_set_close(s);
    }
    chat_encoder_close(&e);
    teardown();
}
END_TEST

/* What a file of kept tokens holds of a row, as chat_set.c writes it. */
struct kept_row {
    uint32_t n, flags, n_unread, n_start;
    int32_t tokens[2];
    char unread[4], more[100];
};

/* A file that is whole by its sum, but not what a run writes. */
START_TEST(forged_tokens_are_not_taken)
{
    static const char row[] = "{\"prompt\": \"p\", \"completion\": \"c\"}";
    static const struct {
        uint32_t n, n_unread;
        size_t n_extra; /* bytes behind the head */
        char last;
        bool takes;
        uint32_t n_start;
        char middle; /* between two texts */
    } table[] = {
        {2, 0, 12, 0, true, 4, 0},
        {2, 2, 12, 0, false, 2, 0}, /* one text alone */
        {2, 0, 12, 0, false, 4, 'b'},
        {2, 0, 12, 'x', false, 4, 0},
        {2, 0, 11, 0, false, 3, 0},
        {2, 0, 12, 0, false, 5, 0},
        {2, 0, 12, 0, false, UINT32_MAX, 0},
        {2, 0, 8, 0, true},
        {2, 4, 12, 0, true},
        {3, 0, 8, 0, false},
        {2, 5, 12, 0, false},
        {2, 3, 12, 0, false},
        {2, 4, 12, 'x', false},
        {2, 60, 12, 0, false},
        {2, 0, 9, 0, false},
        {2, 0, 7, 0, false},
        {1u << 30, 0, 8, 0, false},
        {2, 1u << 31, 8, 0, false},
        {UINT32_MAX - 1, 0, 8, 0, false},
        {0, 0, 8, 0, false},
    };
    setup();
    char cache[96];
    struct chat_cache *c;
    snprintf(cache, sizeof cache, "%s/cache", dir);
    ck_ok(file_save(file, row, sizeof row - 1));
    struct chat_encoder e = encoder_of(PLAIN, NULL);
    struct chat_set *plain = open_kept(&e, NULL);
    for (size_t i = 0; i < CZ_ARRAY_LEN(table); i++) {
        struct kept_row kept = {
            table[i].n, 0, table[i].n_unread, table[i].n_start, {'p', 'c' | CHAT_TRAINED},
            "abc",      ""};
        if (table[i].n_start > 0) kept.unread[1] = table[i].middle;
        kept.unread[3] = table[i].last;
        ck_ok(chat_cache_open(cache, &e, &c));
        chat_cache_put(c, row, sizeof row - 1, 1, (const char *)&kept, 16 + table[i].n_extra);
        chat_cache_close(c);
        struct chat_set *s = open_kept(&e, cache);
        ck_assert_msg(s->n_kept == table[i].takes, "case %zu", i);
        check_equal(plain, s);
        chat_set_close(s);
    }
    chat_set_close(plain);
    chat_encoder_close(&e);
    teardown();
}
END_TEST

START_TEST(flags_of_kept_rows_are_theirs)
{
    static const char row[] = "{\"prompt\": \"p\", \"completion\": \"c\"}";
    const char *const path = file;
    char cache[96];
    struct chat_cache *c;
    setup();
    snprintf(cache, sizeof cache, "%s/cache", dir);
    ck_ok(file_save(file, row, sizeof row - 1));
    struct chat_encoder e = encoder_of(PLAIN, NULL);
    const struct chat_set_options o = {.paths = &path,
                                       .n_paths = 1,
                                       .encoder = e,
                                       .max_len = 4,
                                       .cache_dir = cache,
                                       .keeps_all = true};
    for (uint32_t flags = 0; flags < 16; flags++) {
        const bool is_excluded = flags & 4;
        const int32_t last = is_excluded ? 'c' : 'c' | CHAT_TRAINED;
        const struct kept_row kept = {2, flags, 0, 0, {'p', last}, "", ""};
        ck_ok(chat_cache_open(cache, &e, &c));
        chat_cache_put(c, row, sizeof row - 1, 1, (const char *)&kept, 16 + 8);
        chat_cache_close(c);
        struct chat_set *s;
        ck_ok(chat_set_open(&o, &s));
        ck_assert_uint_eq(s->n_kept, 1);
        ck_assert_uint_eq(s->n_without_end, flags & 1);
        ck_assert_int_eq(s->examples[0].has_empty, (flags & 2) != 0);
        ck_assert_uint_eq(s->n_empty, (flags & 2) && !is_excluded);
        ck_assert_uint_eq(s->n_excluded, is_excluded);
        ck_assert_uint_eq(s->n_starts, (flags & 8) && !is_excluded);
        chat_set_close(s);
    }
    chat_encoder_close(&e);
    teardown();
}
END_TEST

/* With kept tokens, too, which are found by the rows' text alone. */
START_TEST(unread_members_and_empty_answers_are_said)
{
    static const char *const lines[] = {
        PAIR(",'note':1"), PAIR(""), "{'messages':[{'role':'assistant','content':''}]}",
        PAIR(",'note':2,'score':3"),
        "{'messages':[{'role':'assistant','content':'b','note':1},{'role':'user','content':'c',"
        "'note':1}]}"};
    char cache[96], expected[300];
    setup();
    cz_log_set_sink(note, NULL);
    snprintf(cache, sizeof cache, "%s/cache", dir);
    struct chat_encoder e = encoder_of(PLAIN, NULL);
    for (int k = 0; k < 3; k++) {
        write_lines(lines, CZ_ARRAY_LEN(lines));
        struct chat_set *s = open_kept(&e, k ? cache : NULL);
        ck_assert_uint_eq(s->n_kept, k == 2 ? 5 : 0);
        ck_assert_uint_eq(s->n_empty, 1);
        ck_assert(s->examples[2].has_empty && !s->examples[1].has_empty);
        snprintf(expected, sizeof expected,
                 "%s: members of rows that czero does not use: note (2 times, first: line 1), "
                 "score (line 4), messages[].note (2 times, first: line 5)\n",
                 file);
        ck_assert_msg(strstr(said, expected), "%s", said);
        snprintf(expected, sizeof expected,
                 "data: 1 of 5 rows has an empty answer (first: %s:3): only the end", file);
        ck_assert_msg(strstr(said, expected), "%s", said);
        chat_set_close(s);
    }
    cz_set_strict(true);
    for (int k = 0; k < 2; k++) {
        struct chat_set *s;
        const char *const path = file;
        const struct chat_set_options o = {.paths = &path,
                                           .n_paths = 1,
                                           .encoder = e,
                                           .max_len = 12,
                                           .keeps_all = k == 1,
                                           .cache_dir = k ? NULL : cache};
        ck_assert_int_eq(chat_set_open(&o, &s), CZ_INVALID);
        ck_assert_msg(strstr(cz_last_error(), "does not use: note (2 times, first: line 1)"), "%s",
                      cz_last_error());
    }
    cz_set_strict(false);
    cz_log_set_sink(NULL, NULL);
    chat_encoder_close(&e);
    teardown();
}
END_TEST

/* The same by looking at all bins, as TRL's description has it. */
static void check_bins(const struct chat_encoder *e, size_t max_len)
{
    enum { N = 300 };
    static size_t space[N], bin_of[N], order[N];
    struct chat_set *s;
    ck_ok(open_set(e, (int64_t)max_len, true, &s));
    ck_assert_uint_eq(s->n_examples, N);
    ck_assert(s->n_cut > 0 || max_len >= 12);
    size_t n = 0, n_bins = 0;
    for (size_t len = max_len + 1; len-- > 0;)
        for (size_t i = 0; i < N; i++)
            if (s->examples[i].n == len) order[n++] = i;
    for (size_t k = 0; k < N; k++) {
        size_t len = s->examples[order[k]].n, best = N;
        for (size_t b = 0; b < n_bins; b++)
            if (space[b] >= len && (best == N || space[b] < space[best])) best = b;
        if (best == N) space[best = n_bins++] = max_len;
        space[best] -= len;
        bin_of[order[k]] = best;
    }
    ck_assert_uint_eq(s->n_bins, n_bins);
    size_t n_seen = 0;
    for (size_t b = 0; b < s->n_bins; b++) {
        ck_assert_uint_le(s->bins[b].n_tokens, max_len);
        n_seen += s->bins[b].n;
    }
    ck_assert_uint_eq(n_seen, N);
    ck_assert_uint_eq(bin_of[s->order[0]], 0);
    chat_set_close(s);
}

/* Lengths at and around a power of two, where rows that are cut fill a bin. */
START_TEST(bins_are_the_best_fit_of_the_longest)
{
    static const size_t lengths[] = {8, 9, 13, 15, 16, 17, 32};
    setup();
    write_rows(300);
    struct chat_encoder e = encoder_of(PLAIN, NULL);
    for (size_t i = 0; i < CZ_ARRAY_LEN(lengths); i++) check_bins(&e, lengths[i]);
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

/* One row for two ranks: one of them has a row of padding, which trains nothing. */
START_TEST(a_rank_without_a_row_trains_nothing)
{
    setup();
    write_rows(1);
    struct chat_encoder e = encoder_of(PLAIN, NULL);
    for (int packs = 0; packs < 2; packs++) {
        struct chat_set *s;
        uint64_t n_labels[2] = {0, 0};
        ck_ok(open_set(&e, 16, packs, &s));
        for (int rank = 0; rank < 2; rank++) {
            struct chat_loader *l = open_loader(s, rank, 2, 1, packs);
            struct cz_batch b;
            chat_loader_next(l, &b);
            ck_assert(b.B == 1 && b.T > 0);
            for (int64_t k = 0; k < b.T; k++) n_labels[rank] += b.labels[k] != CZ_IGNORE_LABEL;
            chat_loader_close(l);
        }
        ck_assert_uint_eq(n_labels[0] + n_labels[1], s->n_trained);
        ck_assert(n_labels[0] == 0 || n_labels[1] == 0);
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

START_TEST(places_are_of_the_same_run)
{
    setup();
    write_rows(7); /* three steps of 3 rows, or two and one left over */
    struct chat_encoder e = encoder_of(PLAIN, NULL);
    struct chat_set *s;
    struct chat_loader *l;
    struct cz_data_cursor here, c;
    struct cz_batch b;
    ck_ok(open_set(&e, 16, false, &s));
    struct chat_loader_options o = {
        .set = s, .max_len = 16, .micro_batch = 3, .accumulation = 1, .world_size = 1, .seed = 7};
    for (int shuffles = 0; shuffles < 2; shuffles++) {
        o.shuffle = shuffles;
        ck_ok(chat_loader_open(&o, &l));
        ck_assert_uint_eq(chat_loader_steps_per_epoch(l), 3);
        ck_assert_uint_eq(chat_loader_rows_per_epoch(l), 7);
        chat_loader_tell(l, &here);
        ck_assert(here.epoch == 0 && here.sample == 0 && here.n_rows == 7 && here.seed == 7);
        c = here;
        c.shuffle = !shuffles;
        ck_fails(chat_loader_seek(l, &c), CZ_INVALID);
        c = here;
        c.seed++;
        ck_assert_int_eq(chat_loader_seek(l, &c), shuffles ? CZ_INVALID : CZ_OK);
        c = here;
        c.sample = 6;
        ck_ok(chat_loader_seek(l, &c));
        chat_loader_tell(l, &c);
        ck_assert(c.epoch == 0 && c.sample == 6);
        chat_loader_next(l, &b);
        ck_assert_int_eq(b.B, 1);
        ck_assert_uint_eq(b.sample, 6);
        chat_loader_tell(l, &c);
        ck_assert(c.epoch == 1 && c.sample == 0);
        c.sample = 7;
        ck_fails(chat_loader_seek(l, &c), CZ_INVALID);
        /* the number of a sample does not overflow */
        c.sample = 0;
        c.epoch = (uint64_t)INT64_MAX / 3 / 3;
        ck_ok(chat_loader_seek(l, &c));
        c.epoch++;
        ck_fails(chat_loader_seek(l, &c), CZ_INVALID);
        c.epoch = UINT64_MAX;
        ck_fails(chat_loader_seek(l, &c), CZ_INVALID);
        c = (struct cz_data_cursor){0};
        ck_ok(chat_loader_seek(l, &c));
        chat_loader_tell(l, &c);
        ck_assert(c.epoch == 0 && c.sample == 0);
        chat_loader_close(l);
    }
    o.drop_last = o.once = true;
    ck_ok(chat_loader_open(&o, &l));
    ck_assert_uint_eq(chat_loader_rows_per_epoch(l), 6);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(chat_loader_is_done(l), i == 2);
        chat_loader_next(l, &b);
        ck_assert_int_eq(b.B, i < 2 ? 3 : 0);
    }
    chat_loader_close(l);
    o.micro_batch = 7;
    ck_ok(chat_loader_open(&o, &l));
    chat_loader_close(l);
    o.micro_batch = 8;
    ck_fails(chat_loader_open(&o, &l), CZ_INVALID);
    ck_assert_ptr_null(l);
    ck_assert_msg(strstr(cz_last_error(), "7 rows do not fill one step of 8"), "%s",
                  cz_last_error());
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
    ck_ok(file_save(path, "{% if %}", 8)); /* which is no template */
    ck_fails(chat_template_open(dir, NULL, &t), CZ_INVALID);
    ck_assert_msg(strstr(cz_last_error(), "chat_template.jinja"), "%s", cz_last_error());
    ck_ok(chat_template_open(dir, "tool_use", &t)); /* only what is asked for is read */
    chat_template_close(t);
    jinja_text_free(&text);
    json_free(doc);
    teardown();
}
END_TEST

static void write_named(const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    ck_ok(file_save(path, text, strlen(text)));
}

/* 64 are read. What is behind them is not there, and touches nothing. */
START_TEST(a_folder_has_at_most_64_templates)
{
    static char config[8000];
    char name[16];
    struct chat_template *t;
    size_t n = (size_t)sprintf(config, "{\"chat_template\": [");
    setup();
    for (int i = 0; i < 70; i++)
        n += (size_t)sprintf(config + n, "%s{\"name\": \"t%d\", \"template\": \"x\"}",
                             i ? ", " : "", i);
    sprintf(config + n, "]}");
    write_named("tokenizer_config.json", config);
    for (int i = 0; i < 70; i++) {
        snprintf(name, sizeof name, "t%d", i);
        const cz_status st = chat_template_open(dir, name, &t);
        ck_assert_msg(st == (i < 64 ? CZ_OK : CZ_NOTFOUND), "%s: %s", name, cz_last_error());
        chat_template_close(t);
    }
    teardown();
}
END_TEST

/* A name has at most 63 bytes. */
START_TEST(templates_of_the_further_folder_are_found_by_their_names)
{
    static const struct {
        const char *file, *name;
        bool is_there;
    } table[] = {
        {"a.jinja", "a", true},
        {"b.txt", "b", false},
        {"abcdefgh0abcdefgh1abcdefgh2abcdefgh3abcdefgh4abcdefgh5abcdefgh6.jinja",
         "abcdefgh0abcdefgh1abcdefgh2abcdefgh3abcdefgh4abcdefgh5abcdefgh6", true},
        {"abcdefgh0abcdefgh1abcdefgh2abcdefgh3abcdefgh4abcdefgh5abcdefgh6x.jinja",
         "abcdefgh0abcdefgh1abcdefgh2abcdefgh3abcdefgh4abcdefgh5abcdefgh6x", false},
        {".jinja", "", false},
    };
    struct chat_template *t;
    char path[256];
    setup();
    snprintf(path, sizeof path, "%s/additional_chat_templates", dir);
    ck_assert_int_eq(mkdir(path, 0755), 0);
    for (size_t i = 0; i < CZ_ARRAY_LEN(table); i++) {
        snprintf(path, sizeof path, "additional_chat_templates/%s", table[i].file);
        write_named(path, "x");
    }
    for (size_t i = 0; i < CZ_ARRAY_LEN(table); i++) {
        const cz_status st = chat_template_open(dir, table[i].name, &t);
        ck_assert_msg(st == (table[i].is_there ? CZ_OK : CZ_NOTFOUND), "%s: %s", table[i].name,
                      cz_last_error());
        chat_template_close(t);
    }
    teardown();
}
END_TEST

TEST_MAIN("data/chat", as_many_rows_are_named_as_are_read, files_are_read_in_their_order,
          bins_have_what_is_trained_alone, flags_of_kept_rows_are_theirs,
          places_are_of_the_same_run, rows_of_every_form_are_read,
          answers_without_marks_are_found_or_refused, examples_without_a_trained_token_are_left_out,
          rows_that_are_left_out_have_their_reasons, unread_members_and_empty_answers_are_said,
          a_share_is_held_out_as_a_set_of_its_own, kept_tokens_are_those_of_the_rows,
          bins_are_the_best_fit_of_the_longest, a_step_has_one_mean_over_its_trained_tokens,
          a_resumed_loader_gives_the_same_batches, templates_of_a_folder_are_found,
          forged_tokens_are_not_taken, a_rank_without_a_row_trains_nothing,
          a_folder_has_at_most_64_templates,
          templates_of_the_further_folder_are_found_by_their_names)
