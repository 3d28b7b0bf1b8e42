/* Claims, of every name in api/exports.txt: a NULL handle, or NULL instead of an array, a struct or
 * a place for a result, ends no process. Calls with a status refuse it and say what was NULL.
 *
 * The names are looked up in this program (cmake/CzeroTargets.cmake exports all of them) and called
 * in a child each, by their address: a new export is tried without a line here. */
#include "tests/support/check_main.h"

#include <czero/czero.h>

#include <dlfcn.h>
#include <math.h>
#include <string.h>
#include <sys/wait.h>

/* Arguments in registers and on the stack, more than any call has. */
typedef intptr_t (*call)(const void *, const void *, const void *, const void *, const void *,
                         const void *, const void *, const void *, const void *, const void *,
                         const void *, const void *);

static intptr_t with(const char *name, const void *first, const void *a)
{
    call f;
    void *symbol = dlsym(RTLD_DEFAULT, name);
    ck_assert_msg(symbol != NULL, "%s is not in this program", name);
    memcpy(&f, &symbol, sizeof f);
    return f(first, a, a, a, a, a, a, a, a, a, a, a);
}

/* ---- the names ------------------------------------------------------------------------------ */

enum { N_MAX = 512, NAME = 64 };
static char names[N_MAX][NAME];
static size_t n_names;
static char headers[1 << 18];

static size_t append(const char *path, char *text, size_t used, size_t nbytes)
{
    FILE *f = fopen(path, "r");
    ck_assert_msg(f != NULL, "%s", path);
    used += fread(text + used, 1, nbytes - used - 1, f);
    ck_assert_uint_lt(used, nbytes - 1);
    fclose(f);
    text[used] = '\0';
    return used;
}

static void read_names(void)
{
    static const char *const parts[] = {"checkpoint", "data", "engine", "infer", "layer",
                                        "model",      "ops",  "plan",   "status"};
    char path[256];
    size_t used = 0;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        snprintf(path, sizeof path, "%s/include/czero/%s.h", CZ_SOURCE_DIR, parts[i]);
        used = append(path, headers, used, sizeof headers);
    }
    n_names = 0;
    FILE *f = fopen(CZ_SOURCE_DIR "/api/exports.txt", "r");
    ck_assert_ptr_nonnull(f);
    while (n_names < N_MAX && fscanf(f, "%63s", names[n_names]) == 1) n_names++;
    fclose(f);
    ck_assert_uint_ge(n_names, 230);
}

static bool has_status(const char *name)
{
    char text[NAME + 32];
    snprintf(text, sizeof text, "cz_status %s(", name);
    return strstr(headers, text) != NULL;
}

static bool is_among(const char *name, const char *const *list)
{
    while (*list && strcmp(*list, name) != 0) list++;
    return *list != NULL;
}

/* ---- one call in a child -------------------------------------------------------------------- */

static char folder[64]; /* with a checkpoint */

enum ending { FINE = 0, NO_ERROR = 10, NO_NULL, NO_SENTENCE, NO_OBJECT };

static const char *said(int status, char *text, size_t nbytes)
{
    if (WIFSIGNALED(status))
        snprintf(text, nbytes, "ends by signal %d", WTERMSIG(status));
    else
        snprintf(text, nbytes, "%s",
                 WEXITSTATUS(status) == NO_ERROR      ? "is not refused"
                 : WEXITSTATUS(status) == NO_NULL     ? "does not say what is NULL"
                 : WEXITSTATUS(status) == NO_SENTENCE ? "fails without a sentence"
                 : WEXITSTATUS(status) == NO_OBJECT   ? "could not be tried: no object"
                                                      : "ends the process");
    return text;
}

/* Counts a failure, and shows it, so that one run lists them all. */
static int n_bad;
static void judge(const char *what, const char *how, pid_t child)
{
    char text[64];
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == FINE) return;
    printf("%s with %s %s\n", what, how, said(status, text, sizeof text));
    n_bad++;
}

static pid_t begin(void)
{
    fflush(stdout);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    return child;
}

/* A refusal names what is NULL. */
static int refusal(cz_status st)
{
    if (st == CZ_OK) return NO_ERROR;
    return st == CZ_INVALID && strstr(cz_last_error(), "NULL") ? FINE : NO_NULL;
}

/* ---- NULL handles --------------------------------------------------------------------------- */

/* NULL means something here, or its text is a value like others. */
static const char *const take_null[] = {"cz_error",           /* records an error; NULL: no text */
                                        "cz_last_status",     /* takes nothing */
                                        "engine_world_agree", /* a world of one */
                                        "engine_world_same", NULL};

/* a: what the arguments behind the first are. */
static void try_null(const char *name, const void *a)
{
    pid_t child = begin();
    if (child == 0) {
        intptr_t result = with(name, NULL, a);
        _exit(has_status(name) && !is_among(name, take_null) ? refusal((cz_status)result) : FINE);
    }
    judge(name, a ? "NULL in front" : "NULL everywhere", child);
}

START_TEST(null_handles_end_no_process)
{
    static const char *const others[] = {"cz_texts_at", NULL}; /* gives a struct: below */
    static char zeros[8192];
    read_names();
    for (size_t i = 0; i < n_names; i++) {
        if (is_among(names[i], others)) continue;
        try_null(names[i], NULL);
        try_null(names[i], zeros);
    }
    ck_assert_ptr_null(cz_texts_at(NULL, 0).text);
    ck_assert_int_eq(n_bad, 0);
}
END_TEST

/* ---- handles, and NULL for the rest --------------------------------------------------------- */

static const char config[] =
    "{\"train_micro_batch_size_per_gpu\": 1, \"optimizer\": {\"type\": \"Adam\"}}";

static void *model(void)
{
    struct cz_model *m = cz_model_open("gpt2-tiny");
    return m && cz_model_set_shape(m, 8) == CZ_OK ? m : NULL;
}

static void *engine(void)
{
    const struct cz_engine_options options = {.size = sizeof options, .config_json = config};
    return engine_initialize_ex(&options, model());
}

static void *world(void)
{
    struct cz_world *w;
    return engine_world_create(&w) == CZ_OK ? w : NULL;
}

static void *tokenizer(void)
{
    struct cz_tokenizer *t;
    return cz_tokenizer_open("bytes", &t) == CZ_OK ? t : NULL;
}

static void *decoder(void)
{
    struct cz_tokenizer_decoder *d;
    return cz_tokenizer_decoder_create(tokenizer(), &d) == CZ_OK ? d : NULL;
}

static const char *const paths[] = {CZ_SOURCE_DIR "/api/exports.txt"};
static const struct cz_data_options data_options = {
    .size = sizeof data_options, .paths = paths, .n_paths = 1, .seq_len = 8, .micro_batch = 1};

static void *data(void)
{
    struct cz_data_loader *l;
    return cz_data_open(&data_options, &l) == CZ_OK ? l : NULL;
}

static void *texts(void)
{
    char path[128];
    snprintf(path, sizeof path, "%s/texts.jsonl", folder);
    const char *const files[] = {path};
    const struct cz_texts_options options = {.size = sizeof options, .paths = files, .n_paths = 1};
    struct cz_texts *t;
    return cz_texts_open(&options, &t) == CZ_OK ? t : NULL;
}

static void *text_loader(void)
{
    const struct cz_text_loader_options options = {.size = sizeof options,
                                                   .texts = texts(),
                                                   .tokenizer = tokenizer(),
                                                   .max_len = 8,
                                                   .micro_batch = 1,
                                                   .accumulation = 1};
    struct cz_text_loader *l;
    return cz_text_loader_open(&options, &l) == CZ_OK ? l : NULL;
}

static void *infer(void)
{
    const struct cz_infer_options options = {.size = sizeof options, .B = 1, .T = 8};
    struct cz_infer *in;
    return cz_infer_create(model(), &options, &in) == CZ_OK ? in : NULL;
}

static void *weights(void)
{
    const struct cz_weights_options options = {.size = sizeof options, .dir = folder};
    struct cz_weights *w;
    return cz_weights_open(&options, &w) == CZ_OK ? w : NULL;
}

static void *plan(void)
{
    const struct cz_engine_options options = {.size = sizeof options, .config_json = config};
    struct cz_plan *p;
    return cz_plan_create(&options, NULL, model(), &p) == CZ_OK ? p : NULL;
}

static void *tune(void)
{
    const struct cz_tune_options options = {.size = sizeof options, .host_nbytes = 1u << 30};
    struct cz_tune *t;
    return cz_tune_create(&options, model(), &t) == CZ_OK ? t : NULL;
}

/* The first row whose prefix fits. */
static const struct {
    const char *prefix;
    void *(*make)(void); /* NULL: their first argument is no handle */
} handles[] = {{"engine_initialize", NULL},
               {"engine_world_create", NULL},
               {"engine_world_", world},
               {"engine_", engine},
               {"cz_model_create", NULL},
               {"cz_model_from_", NULL},
               {"cz_model_open", NULL},
               {"cz_model_", model},
               {"cz_generate", model},
               {"cz_infer_create", model},
               {"cz_infer_", infer},
               {"cz_data_open", NULL},
               {"cz_data_", data},
               {"cz_texts_open", NULL},
               {"cz_texts_", texts},
               {"cz_text_loader_open", NULL},
               {"cz_text_loader_", text_loader},
               {"cz_tokenizer_open", NULL},
               {"cz_tokenizer_is_in", NULL},
               {"cz_tokenizer_decoder_create", tokenizer},
               {"cz_tokenizer_decode", decoder},
               {"cz_tokenizer_", tokenizer},
               {"cz_weights_open", NULL},
               {"cz_weights_", weights},
               {"cz_plan_create", NULL},
               {"cz_plan_", plan},
               {"cz_tune_create", NULL},
               {"cz_tune_", tune}};

static void *(*maker_of(const char *name))(void)
{
    for (size_t i = 0; i < sizeof handles / sizeof handles[0]; i++)
        if (strncmp(name, handles[i].prefix, strlen(handles[i].prefix)) == 0)
            return handles[i].make;
    return NULL;
}

static void try_handle(const char *name, void *(*make)(void))
{
    pid_t child = begin();
    if (child == 0) {
        void *handle = make();
        if (!handle) _exit(NO_OBJECT);
        cz_clear_error();
        intptr_t result = with(name, handle, NULL);
        if (!has_status(name) || (cz_status)result == CZ_OK) _exit(FINE);
        _exit(strlen(cz_last_error()) > 0 ? FINE : NO_SENTENCE);
    }
    judge(name, "a handle, and NULL behind it,", child);
}

static void write_texts(void)
{
    char path[128];
    snprintf(path, sizeof path, "%s/texts.jsonl", folder);
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    fputs("{\"text\": \"one\", \"label\": \"a\"}\n{\"text\": \"two\", \"label\": \"b\"}\n", f);
    fclose(f);
}

static void save_checkpoint(void)
{
    write_texts();
    pid_t child = begin(); /* this process gets no threads, which children would lack */
    if (child == 0)
        _exit(engine_save_checkpoint(engine(), folder, NULL) == CZ_OK ? FINE : NO_OBJECT);
    judge("engine_save_checkpoint", "a folder", child);
}

START_TEST(handles_with_nulls_end_no_process)
{
    snprintf(folder, sizeof folder, "%s", test_tmp_make());
    read_names();
    save_checkpoint();
    size_t n_tried = 0;
    for (size_t i = 0; i < n_names; i++) {
        void *(*make)(void) = maker_of(names[i]);
        if (!make || strcmp(names[i], "cz_texts_at") == 0) continue;
        try_handle(names[i], make);
        n_tried++;
    }
    test_tmp_remove(folder);
    ck_assert_uint_gt(n_tried, 110);
    ck_assert_int_eq(n_bad, 0);
}
END_TEST

/* ---- what the answers are ------------------------------------------------------------------- */

START_TEST(numbers_of_nothing_are_neutral)
{
    cz_clear_error();
    ck_assert_int_eq(engine_get_global_steps(NULL), 0);
    ck_assert_int_eq(engine_get_world_size(NULL), 0);
    ck_assert(isnan(engine_get_lr(NULL)));
    ck_assert(isnan(engine_get_loss_scale(NULL)));
    ck_assert(isnan(engine_get_boundary_loss(NULL)));
    ck_assert(isnan(engine_get_global_grad_norm(NULL)));
    ck_assert(!engine_was_step_applied(NULL));
    ck_assert(!engine_is_gradient_accumulation_boundary(NULL));
    ck_assert_ptr_null(engine_get_model(NULL));
    ck_assert_int_eq(cz_model_vocab_size(NULL), 0);
    ck_assert_str_eq(cz_model_name(NULL), "");
    ck_assert_str_eq(cz_tokenizer_name(NULL), "");
    ck_assert_str_eq(cz_tune_missing(NULL), "");
    ck_assert_int_eq(cz_tokenizer_special_id(NULL, CZ_SPECIAL_PAD), -1);
    ck_assert_int_eq(cz_tokenizer_end_id(NULL), -1);
    ck_assert_int_eq(cz_texts_label(NULL, 0), -1);
    ck_assert(cz_data_is_done(NULL)); /* loops end */
    ck_assert(cz_text_loader_is_done(NULL));
    ck_assert(isnan(cz_text_loader_waited_s(NULL)));
    ck_assert(!cz_plan_fits(NULL));
    ck_assert(isnan(cz_plan_step_s(NULL)));
    ck_assert_int_eq(cz_last_status(), CZ_OK); /* none of them is an error */
}
END_TEST

static void refused(cz_status st, const char *text)
{
    ck_assert_int_eq(st, CZ_INVALID);
    ck_assert_str_eq(cz_last_error(), text);
}

START_TEST(refusals_name_the_call_that_failed)
{
    float loss;
    const struct cz_batch batch = {.size = sizeof batch};
    refused(engine_forward(NULL, &batch, &loss), "engine is NULL: did engine_initialize() fail?");
    refused(cz_model_set_shape(NULL, 8), "model is NULL: did cz_model_open() fail?");
    refused(cz_data_next(NULL, NULL), "loader is NULL: did cz_data_open() fail?");
    ck_assert_ptr_null(engine_initialize_ex(NULL, NULL));
    refused(cz_last_status(), "options is NULL");
    struct cz_model *m = model();
    ck_assert_ptr_null(engine_initialize(NULL, m));
    refused(cz_last_status(), "config_path is NULL");
    ck_assert_ptr_null(engine_initialize("/nonexistent.json", NULL));
    refused(cz_last_status(), "model is NULL: did cz_model_open() fail?");
    cz_model_destroy(m);
    struct cz_engine *e = engine();
    refused(engine_forward(e, NULL, &loss), "batch is NULL");
    refused(engine_predict(e, NULL, &loss), "batch is NULL");
    refused(engine_eval(e, &batch, NULL), "loss is NULL");
    refused(engine_param_get(e, "wte.weight", "weight", NULL, 1), "dst is NULL");
    refused(engine_param_set(e, "wte.weight", "weight", NULL, 1), "src is NULL");
    refused(engine_get_lrs(e, NULL, 1), "lrs is NULL");
    refused(engine_save_checkpoint(e, NULL, NULL), "dir is NULL");
    engine_destroy(e);
}
END_TEST

static cz_status take_token(void *user, size_t prompt, int32_t token, bool *ends)
{
    (void)user, (void)prompt, (void)token, (void)ends;
    return CZ_OK;
}

/* An index outside is an answer, too, where there is no status for it. */
START_TEST(indices_outside_end_no_process)
{
    snprintf(folder, sizeof folder, "%s", test_tmp_make());
    write_texts();
    struct cz_texts *t = texts();
    ck_assert_ptr_nonnull(t);
    const size_t n = cz_texts_count(t);
    size_t nbytes;
    bool is_json;
    float target;
    ck_assert_uint_eq(n, 2);
    ck_assert_ptr_nonnull(cz_texts_at(t, n - 1).text);
    ck_assert_ptr_null(cz_texts_at(t, n).text);
    ck_assert_int_eq(cz_texts_label(t, n - 1), 1);
    ck_assert_int_eq(cz_texts_label(t, n), -1);
    ck_assert_ptr_null(cz_texts_words(t, n, &nbytes));
    ck_assert_ptr_null(cz_texts_kept(t, 0, 0, &nbytes, &is_json)); /* nothing is kept */
    ck_assert_uint_eq(cz_texts_n_of_label(t, 1), 1);
    ck_assert_uint_eq(cz_texts_n_of_label(t, 2), 0);
    cz_texts_targets(t, n, &target);
    cz_texts_close(t);
    struct cz_tokenizer *tok = tokenizer();
    ck_assert_int_eq(cz_tokenizer_special_id(tok, CZ_SPECIAL_COUNT), -1);
    cz_tokenizer_close(tok);
    test_tmp_remove(folder);
}
END_TEST

/* Arrays of length 0 need not exist; longer ones do. */
START_TEST(empty_arrays_may_be_null)
{
    struct cz_tokenizer *tok = tokenizer();
    struct cz_text_word *words;
    int32_t *ids;
    size_t n;
    ck_ok(cz_tokenizer_encode(tok, NULL, 0, &ids, &n));
    ck_assert_uint_eq(n, 0);
    cz_free(ids);
    refused(cz_tokenizer_encode(tok, NULL, 1, &ids, &n), "text is NULL");
    const struct cz_tokenizer_input input = {.nbytes = 1};
    int32_t row[8];
    int64_t n_ids;
    refused(cz_tokenizer_encode_input(tok, &input, 8, row, NULL, &n_ids, NULL),
            "input->text is NULL");
    ck_ok(cz_text_split(NULL, 0, &words, &n));
    cz_free(words);
    refused(cz_text_split(NULL, 1, &words, &n), "text is NULL");
    cz_tokenizer_close(tok);
    struct cz_model *m = model();
    const struct cz_generate_options options = {.size = sizeof options, .max_new_tokens = 1};
    ck_ok(cz_generate_all(m, &options, NULL, 0, take_token, NULL));
    refused(cz_generate_all(m, &options, NULL, 1, take_token, NULL), "prompts is NULL");
    const struct cz_prompt prompt = {.n_ids = 3};
    refused(cz_generate_all(m, &options, &prompt, 1, take_token, NULL),
            "prompt 0 has 3 tokens, but its ids are NULL");
    cz_model_destroy(m);
}
END_TEST

TEST_MAIN("api/nulls", null_handles_end_no_process, handles_with_nulls_end_no_process,
          numbers_of_nothing_are_neutral, refusals_name_the_call_that_failed,
          indices_outside_end_no_process, empty_arrays_may_be_null)
