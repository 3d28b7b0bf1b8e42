/* Claims: when any one allocation of a call fails, the call returns CZ_NOMEM (or succeeds without
 * it), touches nothing that it released, and leaks nothing; the next call works. Every allocation
 * of each call fails once, those of the libraries that czero calls included. */
#include "tests/support/check_main.h"

#include <czero/czero.h>

#include <errno.h>
#include <link.h>
#include <malloc.h>
#include <stdatomic.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)

int main(void)
{
    printf("skipped: the sanitizer has an allocator of its own\n");
    return TEST_SKIPPED;
}

#else

/* ---- an allocator that fails once --------------------------------------------------------------
 */

void *__libc_malloc(size_t nbytes);
void *__libc_calloc(size_t n, size_t nbytes);
void *__libc_realloc(void *p, size_t nbytes);
void *__libc_memalign(size_t align, size_t nbytes);
void __libc_free(void *p);

#define EXPORTED __attribute__((visibility("default"))) /* for the shared libraries, too */

static atomic_long n_calls, n_live, fails_at = -1;

/* Where libraries are that end the process when they get no memory: those get it. */
static struct range {
    uintptr_t begin, end;
} spared[16];
static int n_spared;

static int find_spared(struct dl_phdr_info *info, size_t nbytes, void *user)
{
    static const char *const names[] = {"libdnnl.", "libgomp.", "libhwloc.", "libstdc++."};
    (void)nbytes, (void)user;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (int k = 0; strstr(info->dlpi_name, names[i]) && k < info->dlpi_phnum; k++) {
            const ElfW(Phdr) *part = &info->dlpi_phdr[k];
            if (part->p_type != PT_LOAD || !(part->p_flags & PF_X)) continue;
            uintptr_t begin = info->dlpi_addr + part->p_vaddr;
            if (n_spared == 16) abort();
            spared[n_spared++] = (struct range){begin, begin + part->p_memsz};
        }
    return 0;
}

static bool must_fail(const void *caller)
{
    uintptr_t at = (uintptr_t)caller;
    if (test_is_marking) return false;
    for (int i = 0; i < n_spared; i++)
        if (at >= spared[i].begin && at < spared[i].end) return false;
    if (atomic_fetch_add(&n_calls, 1) != atomic_load(&fails_at)) return false;
    errno = ENOMEM;
    return true;
}

static void *counted(void *p)
{
    if (p && !test_is_marking) atomic_fetch_add(&n_live, 1);
    return p;
}

#define CALLER __builtin_return_address(0)

EXPORTED void *malloc(size_t nbytes)
{
    return must_fail(CALLER) ? NULL : counted(__libc_malloc(nbytes));
}

EXPORTED void *calloc(size_t n, size_t nbytes)
{
    return must_fail(CALLER) ? NULL : counted(__libc_calloc(n, nbytes));
}

EXPORTED void *realloc(void *p, size_t nbytes)
{
    if (must_fail(CALLER)) return NULL;
    void *bigger = __libc_realloc(p, nbytes);
    return p ? bigger : counted(bigger);
}

EXPORTED void *memalign(size_t align, size_t nbytes)
{
    return must_fail(CALLER) ? NULL : counted(__libc_memalign(align, nbytes));
}

EXPORTED void *aligned_alloc(size_t align, size_t nbytes)
{
    return must_fail(CALLER) ? NULL : counted(__libc_memalign(align, nbytes));
}

EXPORTED int posix_memalign(void **out, size_t align, size_t nbytes)
{
    if (must_fail(CALLER)) return ENOMEM;
    *out = counted(__libc_memalign(align, nbytes));
    return *out ? 0 : ENOMEM;
}

EXPORTED void free(void *p)
{
    if (p && !test_is_marking) atomic_fetch_sub(&n_live, 1);
    __libc_free(p);
}

/* ---- calls -------------------------------------------------------------------------------------
 */

static char out_dir[] = "/tmp/czero-no-memory-XXXXXX";

static cz_status open_tokenizer(const char *path)
{
    struct cz_tokenizer *t;
    cz_status st = cz_tokenizer_open(path, &t);
    if (st == CZ_OK) cz_tokenizer_close(t);
    return st;
}

static cz_status open_texts(const char *path)
{
    struct cz_texts_options options = {.size = sizeof options, .paths = &path, .n_paths = 1};
    struct cz_texts *t;
    cz_status st = cz_texts_open(&options, &t);
    if (st == CZ_OK) cz_texts_close(t);
    return st;
}

static cz_status open_tokens(const char *path)
{
    struct cz_data_options options = {.size = sizeof options,
                                      .paths = &path,
                                      .n_paths = 1,
                                      .seq_len = 32,
                                      .micro_batch = 2,
                                      .shuffle = true};
    struct cz_data_loader *l;
    cz_status st = cz_data_open(&options, &l);
    if (st == CZ_OK) cz_data_close(l);
    return st;
}

static cz_status open_model(const char *path)
{
    struct cz_model *m = cz_model_from_hf(path);
    if (!m) return cz_last_status();
    cz_model_destroy(m);
    return CZ_OK;
}

static cz_status plan(const char *config)
{
    struct cz_model *m = cz_model_from_preset("gpt2-tiny");
    if (!m) return cz_last_status();
    struct cz_engine_options options = {.size = sizeof options, .config_path = config};
    struct cz_plan *p = NULL;
    char *table = NULL;
    cz_status st = cz_model_set_shape(m, 64);
    if (st == CZ_OK) st = cz_plan_create(&options, NULL, m, &p);
    if (st == CZ_OK) st = cz_plan_table(p, &table);
    free(table);
    cz_plan_destroy(p);
    cz_model_destroy(m);
    return st;
}

static cz_status inspect(const char *path)
{
    struct cz_inspect_options options = {.size = sizeof options, .path = path, .json = true};
    static FILE *nowhere;
    if (!nowhere) nowhere = fopen("/dev/null", "w");
    return cz_inspect(&options, nowhere);
}

/* A sound checkpoint has no damage, whatever memory there is. */
static void no_finding(const struct cz_fsck_finding *finding, void *user)
{
    (void)user;
    ck_abort_msg("%s", finding->sentence);
}

static cz_status fsck(const char *path)
{
    struct cz_fsck_options options = {.size = sizeof options, .dir = path, .finding = no_finding};
    struct cz_fsck_report report = {.size = sizeof report};
    cz_status st = cz_fsck(&options, &report);
    cz_fsck_report_free(&report);
    return st;
}

static cz_status consolidate(const char *path)
{
    struct cz_consolidate_options options = {.size = sizeof options,
                                             .dir = path,
                                             .out_dir = out_dir,
                                             .format = CZ_CONSOLIDATE_SAFETENSORS,
                                             .n_threads = 1};
    return cz_consolidate(&options, NULL);
}

/* One step of a small model, saved and loaded again. The engine owns the model once it is made. */
static cz_status train(const char *stage)
{
    char config[512];
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": 1, \"zero_optimization\": {\"stage\": %s}, "
             "\"optimizer\": {\"type\": \"AdamW\"}, \"gradient_clipping\": 1.0}",
             strrchr(stage, '/') + 1);
    static const int32_t tokens[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    struct cz_batch batch = {.size = sizeof batch, .ids = tokens, .labels = tokens, .B = 1, .T = 8};
    float loss;
    struct cz_model *m = cz_model_from_preset("gpt2-tiny");
    if (!m) return cz_last_status();
    struct cz_engine_options options = {.size = sizeof options, .config_json = config};
    struct cz_engine *e = NULL;
    cz_status st = cz_model_set_shape(m, 8);
    if (st == CZ_OK && !(e = engine_initialize_ex(&options, m))) st = cz_last_status();
    if (!e) cz_model_destroy(m);
    if (st == CZ_OK) st = engine_forward(e, &batch, &loss);
    if (st == CZ_OK) st = engine_backward(e);
    if (st == CZ_OK) st = engine_step(e);
    if (st == CZ_OK) st = engine_save_checkpoint(e, out_dir, "tag");
    if (st == CZ_OK) st = engine_load_checkpoint(e, out_dir, "tag");
    if (st == CZ_OK) st = engine_export_hf(e, out_dir, CZ_DTYPE_F32);
    engine_destroy(e);
    return st;
}

static const struct call {
    const char *name;
    cz_status (*run)(const char *path);
    const char *fixture;
} calls[] = {
    {"tokenizer.json", open_tokenizer, "tokenizers/gpt2"},
    {"vocab.txt", open_tokenizer, "tokenizers/wordpiece"},
    {"labelled texts", open_texts, "text/weibo6/train.json"},
    {"tokens of a text", open_tokens, "text/fortunes-64k.txt"},
    {"GPT-2's folder", open_model, "models/gpt2-tiny"},
    {"BERT's folder", open_model, "models/bert-old"},
    {"a config and its plan", plan, "../../configs/offload.json"},
    {"inspect a checkpoint", inspect, "checkpoints/wrappers/s3-fp16"},
    {"inspect weights", inspect, "models/gpt2-tiny"},
    {"fsck", fsck, "checkpoints/wrappers/s0-fp32"},
    {"consolidate stage 3", consolidate, "checkpoints/wrappers/s3-fp32-subgroups"},
    {"train with stage 1", train, "1"},
    {"train with stage 3", train, "3"},
    {"consolidate stage 2", consolidate, "checkpoints/wrappers/s2-bf16-frozen"},
};
enum { N_CALLS = sizeof calls / sizeof *calls };

/* Twice without a failure: what libraries keep for good is allocated, and what a call leaves is
 * known. Then with each allocation failing. */
START_TEST(every_allocation_fails_once)
{
    const struct call *call = &calls[_i];
    char path[1024];
    snprintf(path, sizeof path, "%s", test_fixture(call->fixture));
    for (int i = 0; i < 2; i++) ck_ok(call->run(path));
    long live = n_live;
    n_calls = 0;
    ck_ok(call->run(path));
    long n = n_calls;
    ck_assert_int_eq(n_live, live);
    ck_assert_int_gt(n, 5);
    int n_wrong = 0;
    long step = n / (call->run == train ? 60 : 1500) + 1; /* of very many, some */
    for (long at = 0; at < n; at += step) {
        n_calls = 0;
        fails_at = at;
        cz_status st = call->run(path);
        fails_at = -1;
        bool fine = st == CZ_OK || st == CZ_NOMEM;
        if (!fine || n_live != live) {
            n_wrong++;
            fprintf(stderr, "%s, allocation %ld of %ld: %s, %ld blocks leak: %s (%s)\n", call->name,
                    at, n, cz_status_name(st), n_live - live, cz_last_error(), cz_last_trace());
        }
        live = n_live;
    }
    ck_ok(call->run(path));
    ck_assert_int_eq(n_wrong, 0);
    printf("%s: %ld allocations\n", call->name, n);
}
END_TEST

int main(void)
{
    if (!mkdtemp(out_dir)) return 1;
    dl_iterate_phdr(find_spared, NULL);
    Suite *suite = suite_create("api/no_memory");
    TCase *tcase = tcase_create("all");
    tcase_set_timeout(tcase, 120); /* some calls are made 1,500 times */
    tcase_add_loop_test(tcase, every_allocation_fails_once, 0, N_CALLS);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_FORK);
    srunner_run_all(runner, CK_NORMAL);
    int n_failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return n_failed == 0 ? 0 : 1;
}

#endif
