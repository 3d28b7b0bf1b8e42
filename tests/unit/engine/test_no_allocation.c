/* Claim: after the first step nothing is allocated: malloc, calloc, realloc, aligned_alloc,
 * posix_memalign and mmap are interposed, and their counters do not move from step 2 on, also
 * across overflow-skipped steps, evaluation and offload, with custom layers, and with a mixture
 * whose experts get another number of rows in every step; resident memory does not grow. What
 * oneDNN's products take for the length of a call (where the CPU has nothing above AVX2, they pack
 * on the heap) must have been given back. */
#include "engine/engine.h"
#include "tests/support/check_main.h"
#include "tests/support/public_toys.h"

#include <dlfcn.h>
#include <link.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

/* Addresses of the real calls. dlsym() itself may call calloc(): served from a small pool. */
static void *(*real_malloc)(size_t);
static void *(*real_calloc)(size_t, size_t);
static void *(*real_realloc)(void *, size_t);
static void *(*real_aligned_alloc)(size_t, size_t);
static int (*real_posix_memalign)(void **, size_t, size_t);
static void *(*real_mmap)(void *, size_t, int, int, int, off_t);
static void (*real_free)(void *);
static atomic_long n_calls, n_library_alive;
static uintptr_t library_begin, library_end; /* oneDNN's code */
static char pool[8192];
static size_t pool_used;

static void resolve(void)
{
    static bool busy;
    if (real_free || busy) return;
    busy = true;
    *(void **)&real_calloc = dlsym(RTLD_NEXT, "calloc");
    *(void **)&real_malloc = dlsym(RTLD_NEXT, "malloc");
    *(void **)&real_realloc = dlsym(RTLD_NEXT, "realloc");
    *(void **)&real_aligned_alloc = dlsym(RTLD_NEXT, "aligned_alloc");
    *(void **)&real_posix_memalign = dlsym(RTLD_NEXT, "posix_memalign");
    *(void **)&real_mmap = dlsym(RTLD_NEXT, "mmap");
    *(void **)&real_free = dlsym(RTLD_NEXT, "free");
    busy = false;
}

static int find_library(struct dl_phdr_info *info, size_t size, void *arg)
{
    (void)size, (void)arg;
    if (!strstr(info->dlpi_name, "libdnnl")) return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        if (segment->p_type != PT_LOAD || !(segment->p_flags & PF_X)) continue;
        library_begin = info->dlpi_addr + segment->p_vaddr;
        library_end = library_begin + segment->p_memsz;
    }
    return 1;
}

static bool in_library(const void *caller)
{
    return (uintptr_t)caller >= library_begin && (uintptr_t)caller < library_end;
}

static void *from_pool(size_t n)
{
    void *p = pool + pool_used;
    pool_used += (n + 15) / 16 * 16;
    return pool_used <= sizeof pool ? p : NULL;
}

static bool in_pool(const void *p)
{
    return (const char *)p >= pool && (const char *)p < pool + sizeof pool;
}

#define EXPORTED __attribute__((visibility("default")))

EXPORTED void *malloc(size_t n)
{
    resolve();
    n_calls++;
    return real_malloc ? real_malloc(n) : from_pool(n);
}

EXPORTED void *calloc(size_t n, size_t size)
{
    resolve();
    n_calls++;
    return real_calloc ? real_calloc(n, size) : from_pool(n * size);
}

EXPORTED void *realloc(void *p, size_t n)
{
    resolve();
    n_calls++;
    return real_realloc(p, n);
}

EXPORTED void *aligned_alloc(size_t align, size_t n)
{
    resolve();
    n_calls++;
    return real_aligned_alloc(align, n);
}

EXPORTED int posix_memalign(void **p, size_t align, size_t n)
{
    resolve();
    if (in_library(__builtin_return_address(0)))
        n_library_alive++;
    else
        n_calls++;
    return real_posix_memalign(p, align, n);
}

EXPORTED void *mmap(void *addr, size_t n, int prot, int flags, int fd, off_t off)
{
    resolve();
    n_calls++;
    return real_mmap(addr, n, prot, flags, fd, off);
}

EXPORTED void free(void *p)
{
    resolve();
    if (p && in_library(__builtin_return_address(0))) n_library_alive--;
    if (p && !in_pool(p)) real_free(p);
}

/* C++'s operator new and delete. */
EXPORTED void *_Znwm(size_t n);
EXPORTED void *_Znwm(size_t n)
{
    resolve();
    n_library_alive++;
    return real_malloc(n);
}

EXPORTED void _ZdlPv(void *p);
EXPORTED void _ZdlPv(void *p)
{
    resolve();
    if (!p) return;
    n_library_alive--;
    real_free(p);
}

EXPORTED void _ZdlPvm(void *p, size_t n);
EXPORTED void _ZdlPvm(void *p, size_t n)
{
    (void)n;
    _ZdlPv(p);
}

static size_t resident(void)
{
    size_t pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    ck_assert_ptr_nonnull(f);
    ck_assert_int_eq(fscanf(f, "%*s %zu", &pages), 1);
    fclose(f);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

static const char *const configs[] = {
    "{\"train_micro_batch_size_per_gpu\": 2, \"optimizer\": {\"type\": \"AdamW\"}}",
    "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 2, "
    "\"optimizer\": {\"type\": \"Lamb\"}, "
    "\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {}}}",
    "{\"train_micro_batch_size_per_gpu\": 2, \"optimizer\": {\"type\": \"OneBitLamb\", "
    "\"params\": {\"freeze_step\": 20}}}",
    "{\"train_micro_batch_size_per_gpu\": 2, \"bf16\": {\"enabled\": true}, \"optimizer\": "
    "{\"type\": \"ZeroOneAdam\", \"params\": {\"var_freeze_step\": 20, \"local_step_scaler\": 9}}}",
    "{\"train_micro_batch_size_per_gpu\": 2, \"optimizer\": {\"type\": \"Adam\"}, "
    "\"bf16\": {\"enabled\": true}, \"zero_optimization\": {\"stage\": 2}, "
    "\"czero\": {\"activation_checkpointing\": {\"every\": 1}}}",
    "{\"train_micro_batch_size_per_gpu\": 2, \"optimizer\": {\"type\": \"Lion\"}, "
    "\"fp16\": {\"enabled\": true, \"initial_scale_power\": 30, \"loss_scale_window\": 3}}",
    "{\"train_micro_batch_size_per_gpu\": 2, \"optimizer\": {\"type\": \"Adam\"}, "
    "\"bf16\": {\"enabled\": true}, \"zero_optimization\": {\"stage\": 3, "
    "\"stage3_max_live_parameters\": 60000, \"offload_optimizer\": {\"device\": \"nvme\", "
    "\"nvme_path\": \"SWAP\", \"pipeline_read\": true, \"pipeline_write\": true}, "
    "\"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"SWAP\", \"max_in_cpu\": 0}}, "
    "\"czero\": {\"tile_numel\": 8192, \"offload_checksums\": true}}",
    "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 2, "
    "\"optimizer\": {\"type\": \"AdamW\"}, \"fp16\": {\"enabled\": true, "
    "\"initial_scale_power\": 30, \"loss_scale_window\": 3}, \"zero_optimization\": "
    "{\"stage\": 2, \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": "
    "\"SWAP\"}}, \"czero\": {\"tile_numel\": 8192}}",
    "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 2, "
    "\"optimizer\": {\"type\": \"AdamW\"}, \"bf16\": {\"enabled\": true}, "
    "\"zero_optimization\": {\"stage\": 3, \"stage3_max_live_parameters\": 60000, "
    "\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"SWAP\"}, "
    "\"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"SWAP\"}}, \"czero\": "
    "{\"tile_numel\": 8192, \"offload_gradients\": true, \"accumulation_order\": \"layers\"}}",
    "{\"train_micro_batch_size_per_gpu\": 2, \"optimizer\": {\"type\": \"AdamW\"}, "
    "\"bf16\": {\"enabled\": true}, \"zero_optimization\": {\"stage\": 2, "
    "\"offload_optimizer\": {\"device\": \"cpu\", \"pin_memory\": true}}}"};

/* The config with its swap folder, if it has one, in `dir`. */
static const char *placed(const char *config, const char *dir)
{
    static char text[2048];
    size_t n = 0;
    for (const char *at = config; *at && n + 128 < sizeof text;) {
        bool is_path = strncmp(at, "SWAP", 4) == 0;
        n += (size_t)snprintf(text + n, sizeof text - n, is_path ? "%s/swap" : "%.1s",
                              is_path ? dir : at);
        at += is_path ? 4 : 1;
    }
    return text;
}

/* Whole and short micro-batches in turn. */
static cz_status next(void *user, struct cz_batch *batch)
{
    static int n_taken;
    *batch = *(const struct cz_batch *)user;
    batch->B -= n_taken++ % 2;
    return CZ_OK;
}

/* Boundaries with evaluation of whole and short batches among them; every other step is made by one
 * call. No ck_ macro in here: Check allocates in each. */
static cz_status run(struct cz_engine *e, int n_steps)
{
    const int vocab = (int)cz_model_vocab_size(engine_get_model(e));
    static int32_t ids[2 * 32], labels[2 * 32];
    struct cz_batch b = {.size = sizeof b, .B = 2, .T = 32, .ids = ids, .labels = labels}, one = b;
    float loss;
    one.B = 1;
    for (int s = 0; s < n_steps; s++) {
        for (int i = 0; i < 2 * 32; i++) {
            ids[i] = (i * 7 + s) % vocab;
            labels[i] = (i * 11 + s) % vocab;
        }
        if (s % 2 == 1) TRY(engine_train_batch(e, next, &b, &loss));
        for (int64_t g = 0; s % 2 == 0 && g < engine_get_accumulation(e); g++) {
            TRY(engine_forward(e, &b, &loss));
            TRY(engine_backward(e));
            TRY(engine_step(e));
        }
        TRY(engine_eval(e, &b, &loss));
        TRY(engine_eval(e, &one, &loss));
    }
    return CZ_OK;
}

static struct cz_model *gpt2(void)
{
    struct cz_model *m = cz_model_from_hf(test_fixture("models/gpt2-tiny"));
    ck_ok(cz_model_set_shape(m, 32));
    return m;
}

static void check(const char *config, const char *dir, struct cz_model *m)
{
    const struct cz_engine_options options = {.size = sizeof options,
                                              .config_json = placed(config, dir)};
    struct cz_engine *e = engine_initialize_ex(&options, m);
    ck_assert_msg(e != NULL, "%s", cz_last_error());
    ck_ok(run(e, 2));
    long before = n_calls, alive = n_library_alive;
    cz_status st = run(e, 40); /* past the freeze of 1-bit optimizers */
    long after = n_calls;
    ck_assert_int_eq(n_library_alive, alive);
    ck_ok(st);
    ck_assert_msg(before == after, "%s: %ld allocations", config, after - before);
    size_t rss = resident();
    ck_ok(run(e, 60));
    size_t now = resident();
    ck_assert_msg(now <= rss + rss / 3000 + 20480, "%s: resident memory grew from %zu to %zu",
                  config, rss, now);
    if (strstr(config, "fp16")) ck_assert_int_gt(engine_get_skipped_steps(e), 2);
    engine_destroy(e);
}

START_TEST(nothing_is_allocated_after_the_first_step)
{
    const char *dir = test_tmp_make_fast();
    for (size_t i = 0; i < CZ_ARRAY_LEN(configs); i++) check(configs[i], dir, gpt2());
    setenv("CZERO_IO", "threads", 1); /* where io_uring is refused */
    for (size_t i = 0; i < CZ_ARRAY_LEN(configs); i++)
        if (strstr(configs[i], "SWAP")) check(configs[i], dir, gpt2());
    test_tmp_remove(dir);
}
END_TEST

START_TEST(calls_of_custom_layers_allocate_nothing)
{
    for (int stage = 0; stage <= 3; stage++) {
        char config[256];
        snprintf(config, sizeof config,
                 "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 2, "
                 "\"optimizer\": {\"type\": \"AdamW\"}, \"zero_optimization\": {\"stage\": %d}, "
                 "\"czero\": {\"activation_checkpointing\": {\"every\": 1}}}",
                 stage);
        check(config, "", pub_model(3, 32));
    }
}
END_TEST

/* Each step has other tokens, so that experts get rows of many numbers. */
START_TEST(experts_of_any_number_of_rows_allocate_nothing)
{
    static const char *const precisions[] = {
        "", "\"bf16\": {\"enabled\": true}, ",
        "\"fp16\": {\"enabled\": true, \"initial_scale_power\": 30, \"loss_scale_window\": 3}, "};
    for (size_t i = 0; i < CZ_ARRAY_LEN(precisions); i++) {
        char config[512];
        snprintf(config, sizeof config,
                 "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 2, %s"
                 "\"optimizer\": {\"type\": \"AdamW\"}, "
                 "\"czero\": {\"activation_checkpointing\": {\"every\": %d}}}",
                 precisions[i], i == 1);
        struct cz_model *m = cz_model_from_preset("qwen3-moe-tiny");
        ck_ok(cz_model_set_shape(m, 32));
        check(config, "", m);
    }
}
END_TEST

int main(void)
{
    const TTest *const cases[] = {nothing_is_allocated_after_the_first_step,
                                  calls_of_custom_layers_allocate_nothing,
                                  experts_of_any_number_of_rows_allocate_nothing};
    dl_iterate_phdr(find_library, NULL);
#if defined(__SANITIZE_ADDRESS__)
    (void)cases;
    printf("skipped: AddressSanitizer brings its own allocator\n");
    return TEST_SKIPPED;
#else
    return test_run_within(600, "engine/no_allocation", cases, 3);
#endif
}
