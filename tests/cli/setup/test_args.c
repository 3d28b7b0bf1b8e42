/* Claims: options are stored as they were given, in every form (--name value, --name=value, -t
 * VALUE, -tVALUE, -t=VALUE), to the ends of their ranges; what is not wholly a number, too large,
 * too small, not among the choices, missing, unknown or one too many is refused, and a refused
 * value is not stored. An option that another program has, or that is mistyped, is answered with
 * its name here; one sentence lists all that is missing. */
#include "tests/support/check_main.h"
#include "tools/czero/args.c" /* the tools are no library */
#include "tools/czero/args_foreign.c"
#include "tools/czero/terminal.c"
#include "tools/czero/tool.c"

#include <sys/wait.h>

struct opts {
    bool quiet;
    const char *tag, *kind, *file, *second;
    int64_t steps, seed;
    double lr;
    struct arg_list sets, words;
};

struct rest_opts {
    int64_t n;
    char **words;
};

static const struct arg_spec specs[] = {
    {"FILE", ARG_STRING, offsetof(struct opts, file), NULL, "a file", .required = true},
    {"OTHER", ARG_STRING, offsetof(struct opts, second), NULL, "another"},
    {NULL, ARG_HEADING, 0, NULL, "Options:"},
    {"--quiet", ARG_FLAG, offsetof(struct opts, quiet), NULL, "say less"},
    {"-t", ARG_STRING, offsetof(struct opts, tag), "TAG", "a tag"},
    {"-q", ARG_FLAG, offsetof(struct opts, quiet), NULL, "say less"},
    {"--kind", ARG_CHOICE, offsetof(struct opts, kind), "cpu|cuda|none", "a kind"},
    {"--steps", ARG_INT, offsetof(struct opts, steps), "N", "steps", .min = 1},
    {"--seed", ARG_INT, offsetof(struct opts, seed), "N", "seed", .min = INT64_MIN},
    {"--lr", ARG_DOUBLE, offsetof(struct opts, lr), "X", "rate"},
    {"--set", ARG_LIST, offsetof(struct opts, sets), "KEY=VALUE", "a setting"},
    {"--max-length", ARG_INT, offsetof(struct opts, steps), "N", "another program's name",
     .min = 1},
    {"--words", ARG_WORDS, offsetof(struct opts, words), "WORD", "words"},
};

static struct arg_command command = {
    .name = "czero test", .summary = "Test.", .specs = specs, .n_specs = CZ_ARRAY_LEN(specs)};

static char complaint[1024];

/* Parses up to a NULL word; what goes to stderr is kept. */
static enum args_result parse(struct opts *o, const char *const *words)
{
    char *argv[400];
    int argc = 1;
    argv[0] = (char *)(uintptr_t) "test";
    for (; words[argc - 1]; argc++) argv[argc] = (char *)(uintptr_t)words[argc - 1];
    argv[argc] = NULL;
    *o = (struct opts){.steps = -7, .seed = -7, .lr = -7};
    memset(complaint, 0, sizeof complaint);
    FILE *kept = stderr;
    stderr = fmemopen(complaint, sizeof complaint - 1, "w");
    enum args_result result = args_parse(&command, argc, argv, o);
    fclose(stderr);
    stderr = kept;
    ck_assert_msg((result == ARGS_BAD) == (complaint[0] != '\0'), "\"%s\"", complaint);
    return result;
}

#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void takes(struct opts *o, const char *const *words)
{
    ck_assert_msg(parse(o, words) == ARGS_OK, "%s", complaint);
}

static void refuses(const char *says, const char *const *words)
{
    struct opts o;
    ck_assert_msg(parse(&o, words) == ARGS_BAD, "no \"%s\"", says);
    ck_assert_msg(strstr(complaint, says) != NULL, "\"%s\" is not in: %s", says, complaint);
    ck_assert_int_eq(o.steps, -7);
    ck_assert_int_eq(o.seed, -7);
    ck_assert_double_eq(o.lr, -7);
    ck_assert_ptr_null(o.kind);
}

START_TEST(every_form_gives_the_value)
{
    struct opts o;
    takes(&o, WORDS("f", "-t", "TAG"));
    ck_assert_str_eq(o.tag, "TAG");
    takes(&o, WORDS("f", "-tTAG"));
    ck_assert_str_eq(o.tag, "TAG");
    takes(&o, WORDS("f", "-t=TAG"));
    ck_assert_str_eq(o.tag, "TAG");
    takes(&o, WORDS("f", "-tA=B"));
    ck_assert_str_eq(o.tag, "A=B");
    takes(&o, WORDS("f", "-t", "=TAG"));
    ck_assert_str_eq(o.tag, "=TAG");
    takes(&o, WORDS("f", "-t="));
    ck_assert_str_eq(o.tag, "");
    takes(&o, WORDS("f", "-t", ""));
    ck_assert_str_eq(o.tag, "");
    takes(&o, WORDS("--kind=cuda", "f"));
    ck_assert_str_eq(o.kind, "cuda");
    takes(&o, WORDS("--kind", "none", "f"));
    ck_assert_str_eq(o.kind, "none");
    takes(&o, WORDS("--set", "a=1", "f", "--set=b=2=3", "g"));
    ck_assert_uint_eq(o.sets.n, 2);
    ck_assert_str_eq(o.sets.items[0], "a=1");
    ck_assert_str_eq(o.sets.items[1], "b=2=3");
    ck_assert_ptr_null(o.sets.items[2]);
    ck_assert_str_eq(o.file, "f");
    ck_assert_str_eq(o.second, "g");
    takes(&o, WORDS("f", "--words", "a", "-", "b", "--quiet", "--words=c"));
    ck_assert_uint_eq(o.words.n, 4);
    ck_assert_str_eq(o.words.items[1], "-");
    ck_assert_str_eq(o.words.items[3], "c");
    ck_assert(o.quiet);
    takes(&o, WORDS("-", "-q"));
    ck_assert_str_eq(o.file, "-");
    ck_assert(o.quiet);
    takes(&o, WORDS("f", "--steps", "1", "--steps=2"));
    ck_assert_int_eq(o.steps, 2); /* the last one counts */
}
END_TEST

START_TEST(numbers_are_taken_to_the_ends_of_their_ranges)
{
    struct opts o;
    takes(&o, WORDS("f", "--steps", "1"));
    ck_assert_int_eq(o.steps, 1);
    takes(&o, WORDS("f", "--steps=9223372036854775807"));
    ck_assert_int_eq(o.steps, INT64_MAX);
    takes(&o, WORDS("f", "--seed", "-9223372036854775808"));
    ck_assert_int_eq(o.seed, INT64_MIN);
    takes(&o, WORDS("f", "--lr", "-1.7976931348623157e308"));
    ck_assert_double_eq(o.lr, -1.7976931348623157e308);
    takes(&o, WORDS("f", "--lr=0"));
    ck_assert_double_eq(o.lr, 0);
    refuses("\"9223372036854775808\" is not a whole number",
            WORDS("f", "--steps", "9223372036854775808"));
    refuses("is not a whole number", WORDS("f", "--steps=99999999999999999999"));
    refuses("is not a whole number", WORDS("f", "--seed", "-9223372036854775809"));
    refuses("--steps: 0 is less than 1", WORDS("f", "--steps", "0"));
    refuses("--steps: -1 is less than 1", WORDS("f", "--steps=-1"));
    refuses("\"1e309\" is not a number", WORDS("f", "--lr", "1e309"));
    refuses("\"nan\" is not a number", WORDS("f", "--lr", "nan"));
    refuses("\"-inf\" is not a number", WORDS("f", "--lr", "-inf"));
}
END_TEST

START_TEST(what_is_not_wholly_a_number_is_refused)
{
    static const char *const none[] = {"",    " ",   "x",    "1x",  "1 ",
                                       "1.5", "1e3", "0x10", "--1", "1,0"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(none); i++)
        refuses("is not a whole number", WORDS("f", "--steps", none[i]));
    static const char *const no_real[] = {"", " ", "x", "1x", "1,5", "1 ", "1e", "."};
    for (size_t i = 0; i < CZ_ARRAY_LEN(no_real); i++)
        refuses("is not a number", WORDS("f", "--lr", no_real[i]));
    refuses("--steps: \"\" is not a whole number", WORDS("f", "--steps="));
}
END_TEST

START_TEST(choices_are_whole_words)
{
    static const char *const none[] = {"", "cp", "cpux", "cpu|cuda", "|", "CPU", "non"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(none); i++)
        refuses("is not one of cpu|cuda|none", WORDS("f", "--kind", none[i]));
}
END_TEST

START_TEST(what_is_missing_unknown_or_too_much_is_said)
{
    struct opts o;
    refuses("FILE is missing", WORDS("--quiet"));
    refuses("unexpected word \"h\"", WORDS("f", "g", "h"));
    refuses("--steps needs a value (N)", WORDS("f", "--steps"));
    refuses("-t needs a value (TAG)", WORDS("f", "-t"));
    refuses("--quiet takes no value", WORDS("f", "--quiet=1"));
    refuses("-q takes no value", WORDS("f", "-qx"));
    refuses("unknown option --stepz; did you mean --steps?", WORDS("f", "--stepz", "3"));
    refuses("unknown option --step=3; did you mean --steps?", WORDS("f", "--step=3"));
    refuses("unknown option --x (see czero test --help)", WORDS("f", "--x"));
    refuses("unknown option -x (see czero test --help)", WORDS("f", "-x"));
    refuses("unknown option --steps7", WORDS("f", "--steps7"));
    refuses("unknown option --", WORDS("f", "--"));
    refuses("unknown option --learning_rate=1; did you mean --lr?",
            WORDS("f", "--learning_rate=1"));
    refuses("unknown option --max_steps; did you mean --steps?", WORDS("f", "--max_steps", "1"));
    refuses("unknown option --nproc_per_node=2: ranks are started by: czero launch",
            WORDS("f", "--nproc_per_node=2"));
    refuses("unknown option --local_rank=1: czero launch", WORDS("f", "--local_rank=1"));
    refuses("unknown option --max_length; did you mean --max-length?", WORDS("f", "--max_length"));
    refuses("unknown option --stpes; did you mean --steps?", WORDS("f", "--stpes", "1"));
    refuses("unknown option --output_dir (see", WORDS("f", "--output_dir", "d"));
    const char *many[2 * (ARG_LIST_MAX + 1) + 2];
    size_t n = 0;
    many[n++] = "f";
    for (int i = 0; i < ARG_LIST_MAX; i++) many[n++] = "--set=a";
    many[n] = NULL;
    takes(&o, many);
    ck_assert_uint_eq(o.sets.n, ARG_LIST_MAX);
    ck_assert_ptr_null(o.sets.items[ARG_LIST_MAX]);
    many[n++] = "--set=b";
    many[n] = NULL;
    ck_assert_int_eq(parse(&o, many), ARGS_BAD);
    ck_assert_ptr_nonnull(strstr(complaint, "--set: more than 256 values"));
}
END_TEST

static const struct arg_spec many_specs[] = {
    {"--config", ARG_STRING, offsetof(struct opts, tag), "FILE", "a config", .required = true},
    {"--model", ARG_STRING, offsetof(struct opts, kind), "DIR", "a model", .required = true},
    {"--data", ARG_WORDS, offsetof(struct opts, words), "PATH", "data", .required = true},
    {"--steps", ARG_INT, offsetof(struct opts, steps), "N", "steps", .min = 1},
    {"--epochs", ARG_INT, offsetof(struct opts, seed), "N", "epochs", .min = 1},
};

START_TEST(all_that_is_missing_is_said_at_once)
{
    const struct arg_command whole = command;
    command = (struct arg_command){.name = "czero test",
                                   .summary = "Test.",
                                   .specs = many_specs,
                                   .n_specs = CZ_ARRAY_LEN(many_specs),
                                   .one_of = "--steps|--epochs"};
    struct opts o;
    ck_assert_int_eq(parse(&o, WORDS("-v")), ARGS_BAD);
    ck_assert_str_eq(complaint, "czero test: --config, --model, --data and --steps or --epochs are "
                                "missing (see czero test --help)\n");
    ck_assert_int_eq(parse(&o, WORDS("--config=c", "--model=m", "--data", "d")), ARGS_BAD);
    ck_assert_ptr_nonnull(strstr(complaint, "--steps or --epochs is missing"));
    ck_assert_int_eq(parse(&o, WORDS("--config=c", "--epochs=2")), ARGS_BAD);
    ck_assert_ptr_nonnull(strstr(complaint, ": --model and --data are missing"));
    takes(&o, WORDS("--config=c", "--model=m", "--epochs=2", "--data", "d"));
    command = whole;
}
END_TEST

START_TEST(verbosity_is_counted)
{
    struct opts o;
    takes(&o, WORDS("f"));
    ck_assert_int_eq(args_verbosity(), 0);
    takes(&o, WORDS("f", "-v", "--verbose", "-vv"));
    ck_assert_int_eq(args_verbosity(), 4);
    takes(&o, WORDS("f", "-t", "-v")); /* a value */
    ck_assert_int_eq(args_verbosity(), 0);
    refuses("unknown option -vx", WORDS("f", "-vx"));
}
END_TEST

START_TEST(the_rest_is_left_as_it_is)
{
    static const struct arg_spec specs_rest[] = {
        {"-n", ARG_INT, offsetof(struct rest_opts, n), "N", "ranks", .min = 1, .required = true},
        {"COMMAND", ARG_REST, offsetof(struct rest_opts, words), NULL, "a command",
         .required = true},
    };
    static const struct arg_command launch = {.name = "czero test",
                                              .summary = "Test.",
                                              .specs = specs_rest,
                                              .n_specs = CZ_ARRAY_LEN(specs_rest)};
    static const struct {
        const char *words[8];
        int first; /* of the command in argv; 0: refused */
    } cases[] = {
        {{"t", "-n", "2", "train", "--help"}, 3},
        {{"t", "-n", "2", "--", "train", "-n", "3"}, 4},
        {{"t", "-n2", "--", "--", "x"}, 3},
        {{"t", "-n", "2", "-"}, 3},
        {{"t", "-n", "2", "--"}, 0},
        {{"t", "-n", "2"}, 0},
        {{"t", "train", "-n", "2"}, 0},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        struct rest_opts o = {0};
        int argc = 0;
        while (cases[i].words[argc]) argc++;
        char **argv = (char **)(uintptr_t)cases[i].words;
        FILE *kept = stderr;
        stderr = fmemopen(complaint, sizeof complaint - 1, "w");
        const enum args_result result = args_parse(&launch, argc, argv, &o);
        fclose(stderr);
        stderr = kept;
        ck_assert_int_eq(result, cases[i].first ? ARGS_OK : ARGS_BAD);
        if (cases[i].first) ck_assert_ptr_eq(o.words, argv + cases[i].first);
    }
}
END_TEST

/* A program that was started without standard descriptors must not get a data file in their place.
 */
START_TEST(missing_descriptors_are_opened)
{
    for (int n_open = 0; n_open <= 3; n_open++) {
        pid_t child = fork();
        if (child == 0) {
            int fd = 0;
            for (int i = n_open; i < 20; i++) close(i);
            tool_begin("czero", "");
            while (fcntl(fd, F_GETFD) >= 0) fd++;
            _exit(fd);
        }
        int status;
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        ck_assert(WIFEXITED(status));
        ck_assert_int_eq(WEXITSTATUS(status), 3); /* 0, 1 and 2, and no more */
    }
}
END_TEST

static const char *help_of(const struct arg_spec *spec)
{
    static char text[4096];
    const struct arg_command one = {
        .name = "czero test", .summary = "Test.", .specs = spec, .n_specs = 1};
    memset(text, 0, sizeof text);
    FILE *kept = stdout;
    stdout = fmemopen(text, sizeof text - 1, "w");
    args_print_help(&one);
    fclose(stdout);
    stdout = kept;
    return text;
}

/* "  --kind a|b" has as many columns as a line of the help, or one more. */
START_TEST(choices_that_fill_a_line_stay_there)
{
    char values[81], line[128];
    memset(values, 'a', sizeof values);
    values[30] = '|';
    values[71] = '\0';
    const struct arg_spec spec = {"--kind", ARG_CHOICE, offsetof(struct opts, kind), values,
                                  "a kind"};
    snprintf(line, sizeof line, "  --kind %s\n%31sa kind\n", values, "");
    ck_assert_uint_eq(strcspn(line, "\n"), HELP_COLUMNS);
    ck_assert_msg(strstr(help_of(&spec), line) != NULL, "%s", help_of(&spec));
    values[71] = 'a';
    values[72] = '\0';
    const char *help = help_of(&spec);
    ck_assert_msg(strstr(help, "  --kind CHOICE") != NULL, "%s", help);
    ck_assert_msg(strstr(help, "a kind; one of") != NULL, "%s", help);
    ck_assert_ptr_null(strchr(help, '|'));
    const struct arg_spec word = {"--kind", ARG_STRING, offsetof(struct opts, kind), values,
                                  "a kind"};
    ck_assert_ptr_nonnull(strstr(help_of(&word), values)); /* no choices to move */
}
END_TEST

TEST_MAIN("cli/args", every_form_gives_the_value, numbers_are_taken_to_the_ends_of_their_ranges,
          what_is_not_wholly_a_number_is_refused, choices_are_whole_words,
          what_is_missing_unknown_or_too_much_is_said, all_that_is_missing_is_said_at_once,
          verbosity_is_counted, the_rest_is_left_as_it_is, missing_descriptors_are_opened,
          choices_that_fill_a_line_stay_there)
