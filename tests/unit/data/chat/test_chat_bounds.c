/* Claims: a row's answers are found, or the row is refused with its reason, in time that is linear
 * in the row: long conversations, texts that repeat themselves, parts in any order. A kept file
 * that is longer than its rows can need is neither read nor written. */
#include "data/chat/chat_set.h"
#include "data/source/json_stream.h"
#include "formats/file_io.h"
#include "tests/support/chat_show.h"

#include <dirent.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define SECONDS_MAX 20.0 /* instrumented code; a linear search takes less than 1 */

struct result {
    cz_status status;
    size_t n_trained; /* tokens are bytes */
    enum chat_fault fault;
    double seconds;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static struct result encode(const char *template, const char *loss, const char *json)
{
    struct chat_encoder e = encoder_of(template, loss);
    const struct chat_reading reading = {e.chat, e.loss == CHAT_LOSS_ALL};
    struct chat_row row;
    struct chat_tokens t = {0};
    struct result r = {0};
    ck_ok(chat_row_read(json, strlen(json), "f:1", &reading, &row));
    const double begin = now();
    r.status = chat_encode(&e, &row, "f:1", &t);
    r.seconds = now() - begin;
    for (size_t i = 0; r.status == CZ_OK && i < t.n; i++) r.n_trained += t.trained[i];
    r.fault = t.fault;
    chat_tokens_free(&t);
    chat_row_free(&row);
    chat_encoder_close(&e);
    return r;
}

/* n messages in turns; `more`: members of each answer. */
static char *conversation(size_t n, const char *more)
{
    char *json, *message;
    size_t nbytes;
    FILE *f = open_memstream(&json, &nbytes);
    ck_assert(asprintf(&message, "{\"role\": \"assistant\", \"content\": \"bb\"%s}", more) > 0);
    fputs("{\"messages\": [", f);
    for (size_t i = 0; i < n; i++)
        fprintf(f, "%s%s", i ? ", " : "",
                i % 2 ? message : "{\"role\": \"user\", \"content\": \"a\"}");
    fputs("]}", f);
    ck_assert_int_eq(fclose(f), 0);
    free(message);
    return json;
}

START_TEST(many_answers_are_found_up_to_a_bound)
{
    /* Each answer takes two further renderings, or three where earlier turns change. */
    static const struct {
        const char *template, *more;
        size_t n;
        bool fits;
    } cases[] = {
        {PLAIN, "", 1000, true},
        {PLAIN, "", 4000, false},
        {PLAIN, "", 100000, false},
        {FORGETS, ", \"reasoning_content\": \"r\"", 2 * (CHAT_SEARCH_TIMES / 3), true},
        {FORGETS, ", \"reasoning_content\": \"r\"", 4000, false},
        {MARKED, "", 100000, true}, /* nothing is searched */
    };
    setup();
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        char *json = conversation(cases[i].n, cases[i].more);
        const struct result r = encode(cases[i].template, NULL, json);
        const size_t reasoning = cases[i].template[0] && strstr(cases[i].template, "think")
                                     ? strlen("<think>r</think>") /* of the last one */
                                     : 0;
        ck_assert_msg(r.seconds < SECONDS_MAX, "case %zu: %.1f s", i, r.seconds);
        if (cases[i].fits) {
            ck_assert_msg(r.status == CZ_OK, "case %zu: %s", i, cz_last_error());
            ck_assert_uint_eq(r.n_trained, cases[i].n / 2 * strlen("bb.") + reasoning);
        } else {
            ck_assert_int_eq(r.status, CZ_INVALID);
            ck_assert_int_eq(r.fault, CHAT_UNFOUND);
            ck_assert_msg(strncmp(cz_last_error(), "f:1: the answer in message ", 27) == 0 &&
                              strstr(cz_last_error(), "divide the row"),
                          "case %zu: %s", i, cz_last_error());
        }
        free(json);
    }
    teardown();
}
END_TEST

/* A tail of more than the places that are tried first, and an answer that is written differently
 * within a conversation, so that what it says is looked for. */
#define TAIL "................................................................................"
#define FORGETS_TAIL                                                                               \
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% if loop.last %}"        \
    "<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}{% else %}{{ m.content }}"  \
    "{% endif %}" TAIL "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"

START_TEST(what_repeats_itself_is_found_once)
{
    setup();
    check_shown(
        FORGETS_TAIL, NULL,
        J("{'messages': [{'role': 'user', 'content': 'q'}, {'role': 'assistant', 'content': "
          "'abab', 'reasoning_content': 'abab ababab'}, {'role': 'user', 'content': 'r'}, "
          "{'role': 'assistant', 'content': 'ab', 'reasoning_content': 'ab'}]}"),
        "<user>q" TAIL "<assistant>[abab" TAIL "]<user>r" TAIL
        "<assistant>[<think>ab</think>ab" TAIL "]");
    /* 300,000 places where all of it stands */
    enum { N = 300000 };
    char *a = malloc(2 * N + 1), *json;
    memset(a, 'a', 2 * N);
    a[2 * N] = '\0';
    ck_assert(asprintf(&json,
                       "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": "
                       "\"assistant\", \"content\": \"%.*s\", \"reasoning_content\": \"%s\"}, "
                       "{\"role\": \"user\", \"content\": \"r\"}]}",
                       N, a, a) > 0);
    const struct result r = encode(FORGETS_TAIL, NULL, json);
    ck_ok(r.status);
    ck_assert_uint_eq(r.n_trained, N + strlen(TAIL));
    ck_assert_msg(r.seconds < SECONDS_MAX, "%.1f s", r.seconds);
    free(json);
    free(a);
    teardown();
}
END_TEST

#define CALLS                                                                                      \
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' and loop.last %}"            \
    "<think></think>{% endif %}{{ m.content }}{% for c in m.tool_calls %}"                         \
    "({{ c.function.name }} {{ c.function.arguments.x }}){% endfor %}.{% endfor %}"                \
    "{% if add_generation_prompt %}<assistant>{% endif %}"

START_TEST(a_call_ends_where_it_does_within_the_conversation)
{
    enum { N = 200000 };
    static const char parts[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": "
        "\"assistant\", \"content\": \"\", \"tool_calls\": [{\"function\": "
        "{\"name\": \"%s\", \"arguments\": {\"x\": \"%s\"}}}]}, {\"role\": "
        "\"tool\", \"content\": \"5\"}]}";
    char *json, *x = malloc(N + 1);
    setup();
    memset(x, '(', N);
    x[N] = '\0';
    ck_assert(asprintf(&json, parts, "f", "(f (f ") > 0);
    check_shown(CALLS, NULL, json, "<user>a.<assistant>[(f (f (f ).]<tool>5.");
    free(json);
    ck_assert(asprintf(&json, parts, "(((", x) > 0);
    const struct result r = encode(CALLS, NULL, json);
    ck_ok(r.status);
    ck_assert_uint_eq(r.n_trained, N + strlen("(((( )."));
    ck_assert_msg(r.seconds < SECONDS_MAX, "%.1f s", r.seconds);
    free(json);
    free(x);
    teardown();
}
END_TEST

/* Parts that a template writes from the last to the first. */
START_TEST(parts_are_found_in_any_order)
{
    static const char backwards[] = "{% for m in messages | reverse %}{% for c in m.content %}"
                                    "<{{ c.text }}>{% endfor %}{% endfor %}";
    static const char forwards[] = "{% for m in messages %}{% for c in m.content %}"
                                   "<{{ c.text }}>{% endfor %}{% endfor %}";
    setup();
    for (size_t n = 20; n <= 60000; n *= 3000) {
        char *json;
        size_t nbytes;
        FILE *f = open_memstream(&json, &nbytes);
        fputs("{\"messages\": [", f);
        for (size_t i = 0; i < n; i++)
            fprintf(f,
                    "%s{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": "
                    "\"part %zu.\"}]}",
                    i ? ", " : "", i);
        fputs("]}", f);
        ck_assert_int_eq(fclose(f), 0);
        struct result r = encode(forwards, "all", json);
        ck_ok(r.status);
        r = encode(backwards, "all", json);
        ck_assert_msg(r.seconds < SECONDS_MAX, "%.1f s", r.seconds);
        ck_assert_int_eq(r.status, n == 20 ? CZ_OK : CZ_INVALID);
        if (n > 20) ck_assert_ptr_nonnull(strstr(cz_last_error(), "f:1: the search for its"));
        free(json);
    }
    teardown();
}
END_TEST

/* ---- kept tokens ----------------------------------------------------------------------------- */

static struct chat_set *open_kept(const struct chat_encoder *e, const char *cache)
{
    const char *const path = file;
    struct chat_set *s;
    const struct chat_set_options o = {
        .paths = &path, .n_paths = 1, .encoder = *e, .max_len = 40000, .cache_dir = cache};
    ck_ok(chat_set_open(&o, &s));
    return s;
}

/* The number of kept files; each becomes `nbytes` long, unless that is 0. */
static size_t kept_files(const char *cache, off_t nbytes)
{
    DIR *d = opendir(cache);
    size_t n = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[512];
        if (!strstr(e->d_name, ".tokens")) continue;
        snprintf(path, sizeof path, "%s/%s", cache, e->d_name);
        if (nbytes) ck_assert_int_eq(truncate(path, nbytes), 0);
        n++;
    }
    if (d) closedir(d);
    return n;
}

static long peak_kib(void)
{
    struct rusage usage;
    ck_assert_int_eq(getrusage(RUSAGE_SELF, &usage), 0);
    return usage.ru_maxrss;
}

START_TEST(a_kept_file_is_no_longer_than_its_rows_need)
{
    static const char row[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": "
        "\"assistant\", \"content\": \"b\"}]}\n";
    char cache[96];
    setup();
    snprintf(cache, sizeof cache, "%s/cache", dir);
    ck_ok(file_save(file, row, sizeof row - 1));
    struct chat_encoder e = encoder_of(MARKED, NULL);
    chat_set_close(open_kept(&e, cache));
    ck_assert_uint_eq(kept_files(cache, (off_t)1 << 30), 1); /* of zeros, which take no disk */
    const long before = peak_kib();
    struct chat_set *s = open_kept(&e, cache);
    ck_assert_uint_eq(s->n_kept, 0);
    ck_assert_int_lt(peak_kib() - before, 64 << 10);
    chat_set_close(s);
    s = open_kept(&e, cache); /* written again */
    ck_assert_uint_eq(s->n_kept, 1);
    chat_set_close(s);
    chat_encoder_close(&e);
    /* 4 bytes for each of these characters: 60,000, and 80,000 */
    for (int k = 0; k < 2; k++) {
        char *text;
        ck_assert(asprintf(&text, "%0*d%s", k ? 20000 : 15000, 0, MARKED) > 0);
        e = encoder_of(text, NULL);
        snprintf(cache, sizeof cache, "%s/long%d", dir, k);
        for (int again = 0; again < 2; again++) {
            s = open_kept(&e, cache);
            ck_assert_uint_eq(s->n_kept, k == 0 && again);
            chat_set_close(s);
        }
        ck_assert_uint_eq(kept_files(cache, 0), k == 0);
        chat_encoder_close(&e);
        free(text);
    }
    teardown();
}
END_TEST

static cz_status take_object(const char *json, size_t nbytes_max, struct text_buf *out,
                             uint64_t *line)
{
    const char *tmp = test_tmp_make();
    char path[200];
    struct text_source in = {0};
    snprintf(path, sizeof path, "%s/rows.jsonl", tmp);
    ck_ok(file_save(path, json, strlen(json)));
    ck_ok(text_source_open(&in, NULL, path, "rows", NULL));
    cz_status st = json_stream_object(&in, nbytes_max, out);
    *line = in.line;
    text_source_close(&in);
    test_tmp_remove(tmp);
    return st;
}

START_TEST(an_object_is_no_longer_than_its_bound)
{
    static const char object[] = "{\"a}\": [1,\n{\"\\\"]\": 2}],\n\"b\": \"\\\\\"}";
    const size_t n = sizeof object - 1;
    char more[100];
    struct text_buf out = {0};
    uint64_t line;
    snprintf(more, sizeof more, "%s, {", object);
    ck_ok(text_buf_put(&out, "xy", 2)); /* does not count */
    ck_ok(take_object(more, n, &out, &line));
    ck_assert_uint_eq(out.n, n + 2);
    ck_assert_mem_eq(out.s + 2, object, n);
    ck_assert_uint_eq(line, 3);
    ck_fails(take_object(more, n - 1, &out, &line), CZ_CORRUPT);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "rows:1: a row has more than 0 MiB"));
    ck_fails(take_object("{\"a\":\n", n, &out, &line), CZ_CORRUPT);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "rows:1: a row does not end"));
    out.n = 0;
    ck_ok(take_object("[{}] ", 4, &out, &line));
    ck_assert_uint_eq(out.n, 4);
    text_buf_free(&out);
}
END_TEST

TEST_MAIN("data/chat_bounds", an_object_is_no_longer_than_its_bound,
          many_answers_are_found_up_to_a_bound, what_repeats_itself_is_found_once,
          a_call_ends_where_it_does_within_the_conversation, parts_are_found_in_any_order,
          a_kept_file_is_no_longer_than_its_rows_need)
