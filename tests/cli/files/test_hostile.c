/* Claim: whatever a file holds, a command that reads it ends by itself with the expected exit code
 * and sentence, in at most 2 s of processor time and 256 MiB of memory. It prints nothing that a
 * terminal obeys, opens and changes nothing outside of the folders that it was given, and copies
 * nothing from there into what it writes.
 *
 * hostile/table.tsv of the fixtures has a line per run: case, base, set-up, command, exit code,
 * sentence, and the idea. tests/fuzz/hostile.py makes it, and the files that differ from the base.
 * Each run has a folder of its own (tests/support/sandbox.h); `in` begins as a copy of the base, a
 * sound fixture.
 *
 * CZ_HOSTILE_ONLY=text runs the cases whose names contain it; CZ_HOSTILE_RECORD=FILE writes the
 * table with the exit codes and sentences that were seen, to be reviewed. */
#include "tests/support/sandbox.h"

#include <stdarg.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SECONDS_MAX 40.0 /* instrumented code, and memory that is never reused */
#define PEAK_MIB    4096
#else
#define SECONDS_MAX 2.0
#define PEAK_MIB    256
#endif
#define MARK      "mark-of-the-victim-7Qx" /* all that hostile/victim holds, over and over */
#define N_COLUMNS 7
#define WORDS_MAX 64

enum column { CASE, BASE, SETUP, COMMAND, EXIT, SAYS, IDEA };

struct line {
    char *at[N_COLUMNS];
    size_t number;
};

static struct line *lines;
static size_t n_lines;
static char *categories[64];
static int n_categories;

/* ---- the table ------------------------------------------------------------------------------- */

static void add_category(const char *name)
{
    char *category = strndup(name, strcspn(name, "/"));
    for (int i = 0; i < n_categories; i++)
        if (strcmp(categories[i], category) == 0) {
            free(category);
            return;
        }
    categories[n_categories++] = category;
}

static void read_table(void)
{
    char *text;
    size_t nbytes, number = 0;
    if (file_load(test_fixture("hostile/table.tsv"), (size_t)1 << 30, &text, &nbytes) != CZ_OK) {
        fprintf(stderr, "%s\n", cz_last_error());
        exit(EXIT_FAILURE);
    }
    for (char *line; (line = strsep(&text, "\n"));) {
        number++;
        if (line[0] == '\0' || line[0] == '#') continue;
        lines = realloc(lines, (n_lines + 1) * sizeof *lines);
        struct line *l = &lines[n_lines++];
        l->number = number;
        for (int c = 0; c < N_COLUMNS; c++) {
            l->at[c] = strsep(&line, "\t");
            if (!l->at[c]) {
                fprintf(stderr, "hostile/table.tsv:%zu: %d columns are needed\n", number,
                        N_COLUMNS);
                exit(EXIT_FAILURE);
            }
        }
        add_category(l->at[CASE]);
    }
}

/* ---- the folder of one run ------------------------------------------------------------------- */

static int split(char *text, const char *by, char *words[WORDS_MAX])
{
    int n = 0;
    for (char *word; (word = strsep(&text, by));)
        if (word[0] != '\0') {
            ck_assert_int_lt(n, WORDS_MAX - 1);
            words[n++] = word;
        }
    words[n] = NULL;
    return n;
}

/* A name in the table: bytes that it cannot hold are written \xNN there. */
static char *unescaped(const char *text)
{
    char *name = strdup(text), *to = name;
    for (const char *at = text; *at; to++) {
        unsigned byte;
        bool is_escape = sscanf(at, "\\x%2x", &byte) == 1;
        *to = is_escape ? (char)byte : *at;
        at += is_escape ? 4 : 1;
    }
    *to = '\0';
    return name;
}

static void make_sparse(const char *path, const char *nbytes)
{
    int fd = open(path, O_CREAT | O_WRONLY, 0644);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(ftruncate(fd, atoll(nbytes)), 0);
    close(fd);
}

/* `set-up` is a list of steps, separated by ';': what an archive cannot hold, or need not. */
static void set_up(const char *steps)
{
    char *text = strdup(steps), *words[WORDS_MAX], *step[WORDS_MAX];
    int n = split(text, ";", step);
    for (int i = 0; i < n; i++) {
        int n_words = split(step[i], " ", words);
        ck_assert_int_ge(n_words, 2);
        char *to = unescaped(words[1]);
        box_folders_of(to);
        if (strcmp(words[0], "rm") == 0)
            box_remove(to);
        else if (strcmp(words[0], "mkdir") == 0)
            ck_assert_int_eq(mkdir(to, 0755), 0);
        else if (strcmp(words[0], "link") == 0)
            ck_assert_msg(symlink(words[2], to) == 0, "%s: %s", to, strerror(errno));
        else if (strcmp(words[0], "hard") == 0)
            ck_assert_int_eq(link(words[2], to), 0);
        else if (strcmp(words[0], "fifo") == 0)
            ck_assert_int_eq(mkfifo(to, 0644), 0);
        else if (strcmp(words[0], "sparse") == 0)
            make_sparse(to, words[2]);
        else if (strcmp(words[0], "move") == 0)
            ck_assert_int_eq(rename(words[2], to), 0);
        else if (strcmp(words[0], "copy") == 0) /* of the run's own folder */
            box_copy(words[2], to);
        else if (strcmp(words[0], "put") == 0) { /* the input itself */
            char stored[512];
            snprintf(stored, sizeof stored, "hostile/%s", words[2]);
            box_copy(test_fixture(stored), to);
        } else if (strcmp(words[0], "add") == 0) /* of the fixtures */
            box_copy(test_fixture(words[2]), to);
        else
            ck_assert_msg(strcmp(words[0], "keep") == 0, "unknown step '%s'", words[0]);
        free(to);
    }
    free(text);
}

/* What `keep` steps name, in out/, must not change. */
static char *kept_listing(const char *steps)
{
    char *text = strdup(steps), *words[WORDS_MAX], *step[WORDS_MAX], *all = NULL;
    size_t nbytes;
    FILE *to = open_memstream(&all, &nbytes);
    int n = split(text, ";", step);
    for (int i = 0; i < n; i++)
        if (split(step[i], " ", words) == 2 && strcmp(words[0], "keep") == 0) {
            char *name = unescaped(words[1]);
            box_list(to, name, "");
            free(name);
        }
    fclose(to);
    free(text);
    return all;
}

static void make_box(const struct line *l)
{
    static const char *const folders[] = {"in", "out", "user", "tmp"};
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++)
        ck_assert_int_eq(mkdir(folders[i], 0755), 0);
    box_copy(test_fixture("hostile/common"), "common");
    box_copy(test_fixture("hostile/victim"), "victim");
    if (strcmp(l->at[BASE], "-") != 0) box_copy(test_fixture(l->at[BASE]), "in");
    set_up(l->at[SETUP]);
}

/* ---- one run --------------------------------------------------------------------------------- */

struct report {
    char text[1 << 16];
    size_t n;
    int n_failed;
};

static void complain(struct report *r, const struct line *l, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void complain(struct report *r, const struct line *l, const char *fmt, ...)
{
    va_list args;
    r->n_failed++;
    if (r->n + 1200 > sizeof r->text) return;
    r->n += (size_t)snprintf(r->text + r->n, 400, "\n%.150s (table.tsv:%zu, %.150s): ", l->at[CASE],
                             l->number, l->at[COMMAND]);
    va_start(args, fmt);
    int n = vsnprintf(r->text + r->n, 700, fmt, args);
    va_end(args);
    r->n += (size_t)(n < 700 ? n : 699);
}

/* Parts of the sentence, separated by '…', in their order; in one of the streams. */
static bool says(const char *printed, const char *want)
{
    while (want) {
        const char *gap = strstr(want, "…");
        size_t n = gap ? (size_t)(gap - want) : strlen(want);
        char part[1024];
        snprintf(part, sizeof part, "%.*s", (int)n, want);
        printed = strstr(printed, part);
        if (!printed) return false;
        printed += n;
        want = gap ? gap + strlen("…") : NULL;
    }
    return true;
}

/* The line of an answer that a person looks at: an error, which is the last one; else the first
 * finding, or what stands at the end. */
static const char *sentence_of(const struct box_run *run)
{
    static char line[4096];
    const char *text = run->n_err > 0 ? run->err : run->out;
    size_t n = strlen(text), begin = 0;
    while (n > 0 && text[n - 1] == '\n') n--;
    if (run->n_err > 0 || run->code == 0)
        for (begin = n; begin > 0 && text[begin - 1] != '\n';) begin--;
    else
        n = strcspn(text, "\n");
    snprintf(line, sizeof line, "%.*s", (int)(n - begin), text + begin);
    for (char *c = line; *c; c++)
        if (*c == '\t' || *c == '\r') *c = ' ';
    return line;
}

static void record(const struct line *l, const struct box_run *run)
{
    const char *path = getenv("CZ_HOSTILE_RECORD");
    if (!path) return;
    FILE *f = fopen(path, "a");
    ck_assert_ptr_nonnull(f);
    fprintf(f, "%s\t%s\t%s\t%s\t%d\t%s\t%s\t%.2f s %ld MiB\n", l->at[CASE], l->at[BASE],
            l->at[SETUP], l->at[COMMAND], run->code, sentence_of(run), l->at[IDEA], run->seconds,
            run->peak_kib >> 10);
    fclose(f);
}

static void check_answer(struct report *r, const struct line *l, const struct box_run *run)
{
    int want = atoi(l->at[EXIT]);
    if (run->code != want)
        complain(r, l, "exit %d, not %d: %.300s", run->code, want, sentence_of(run));
    else if (!says(run->err, l->at[SAYS]) && !says(run->out, l->at[SAYS]))
        complain(r, l, "does not print \"%.200s\" but \"%.300s\"", l->at[SAYS], sentence_of(run));
    if (run->seconds > SECONDS_MAX) complain(r, l, "took %.1f s of processor time", run->seconds);
    if (run->peak_kib >> 10 > PEAK_MIB) complain(r, l, "took %ld MiB", run->peak_kib >> 10);
    size_t at = box_fault(run->out, run->n_out);
    if (at < run->n_out) complain(r, l, "byte 0x%02x on stdout", (unsigned char)run->out[at]);
    at = box_fault(run->err, run->n_err);
    if (at < run->n_err) complain(r, l, "byte 0x%02x on stderr", (unsigned char)run->err[at]);
    if (memmem(run->out, run->n_out, MARK, strlen(MARK)) ||
        memmem(run->err, run->n_err, MARK, strlen(MARK)))
        complain(r, l, "prints what is outside");
}

static void run_line(struct report *r, const struct line *l)
{
    make_box(l);
    char *before = box_listing(".", "./out"), *kept = kept_listing(l->at[SETUP]);
    char *command = strdup(l->at[COMMAND]), *words[WORDS_MAX];
    split(command, " ", words);
    int watch = box_watch("victim");
    struct box_run run = box_execute(".", words);
    const char *touched = box_touched(watch);
    record(l, &run);
    check_answer(r, l, &run);
    if (touched) complain(r, l, "victim: %s was opened or changed", touched);
    char *after = box_listing(".", "./out"), *kept_after = kept_listing(l->at[SETUP]);
    if (strcmp(before, after) != 0) {
        size_t same = 0;
        while (before[same] == after[same]) same++;
        while (same > 0 && after[same - 1] != '\n') same--;
        complain(r, l, "outside of out/: \"%.200s\" where there was \"%.200s\"", after + same,
                 before + same);
    }
    if (strcmp(kept, kept_after) != 0)
        complain(r, l, "in out/: \"%.200s\" is left of \"%.200s\"", kept_after, kept);
    char *copy = box_find("out", MARK);
    if (copy) complain(r, l, "%s holds what is outside", copy);
    free(before), free(after), free(kept), free(kept_after), free(copy), free(command);
    free(run.out), free(run.err);
}

START_TEST(every_input_of_a_category_is_answered)
{
    static struct report report;
    const char *only = getenv("CZ_HOSTILE_ONLY"), *category = categories[_i];
    size_t n = strlen(category);
    const char *tmp = test_tmp_make_fast();
    for (size_t i = 0; i < n_lines; i++) {
        const char *name = lines[i].at[CASE];
        if (strncmp(name, category, n) != 0 || name[n] != '/') continue;
        if (only && !strstr(name, only)) continue;
        ck_assert_int_eq(chdir(tmp), 0);
        ck_assert_msg(mkdir("box", 0755) == 0 && chdir("box") == 0, "%s: %s", tmp, strerror(errno));
        run_line(&report, &lines[i]);
        ck_assert_int_eq(chdir(tmp), 0);
        box_remove("box");
    }
    ck_assert_int_eq(chdir("/"), 0);
    test_tmp_remove(tmp);
    if (report.n_failed > 0) fprintf(stderr, "%s\n", report.text); /* Check cuts long messages */
    ck_assert_msg(report.n_failed == 0, "%s: %d failed", category, report.n_failed);
}
END_TEST

int main(void)
{
    read_table();
    Suite *suite = suite_create("cli/hostile");
    TCase *tcase = tcase_create("hostile");
    tcase_add_loop_test(tcase, every_input_of_a_category_is_answered, 0, n_categories);
    tcase_set_timeout(tcase, 1500);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int n_failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return n_failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
