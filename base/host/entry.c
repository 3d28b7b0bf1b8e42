/* The surroundings of a call. Reading them takes a few nanoseconds; they are written only where a
 * program has changed them, so a step pays nothing.
 *
 * OpenMP keeps the workers of each thread. Those that the library's first region starts inherit the
 * defaults of the entry. Those that the program's own regions started keep the program's settings:
 * they are looked at once per thread, and again after each entry that found other settings. */
#include "base/host/entry.h"

#include <fenv.h>
#include <omp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

enum workers { WORKERS_UNSEEN = 0, WORKERS_PLAIN, WORKERS_DIFFER };

static _Thread_local int depth; /* of entries of this thread */
static _Thread_local enum workers workers;

/* A worker's own settings, restored when the outermost entry ends. */
static _Thread_local struct entry_floats worker_floats;
static _Thread_local bool worker_differs;

static _Atomic unsigned generation;
static atomic_bool has_workers, lost_workers;

/* ---- floating point ------------------------------------------------------------------------- */

#if defined(__x86_64__)

#define MXCSR_DEFAULT 0x1f80u /* nearest, denormals kept, no traps */
#define MXCSR_FLAGS   0x3fu   /* exceptions that have happened */
#define X87_DEFAULT   0x037fu

static bool floats_differ(struct entry_floats *now)
{
    now->mxcsr = __builtin_ia32_stmxcsr();
    __asm__ volatile("fnstcw %0" : "=m"(now->x87));
    return (now->mxcsr & ~MXCSR_FLAGS) != MXCSR_DEFAULT || now->x87 != X87_DEFAULT;
}

/* fnclex: a trap that is switched on again must not report what happened meanwhile. */
static void floats_set(const struct entry_floats *floats)
{
    __builtin_ia32_ldmxcsr(floats->mxcsr);
    __asm__ volatile("fnclex; fldcw %0" : : "m"(floats->x87));
}

static void floats_default(void)
{
    floats_set(&(struct entry_floats){.mxcsr = MXCSR_DEFAULT, .x87 = X87_DEFAULT});
}

#else

static bool floats_differ(struct entry_floats *now)
{
    now->rounding = fegetround();
    return now->rounding != FE_TONEAREST;
}

static void floats_set(const struct entry_floats *floats)
{
    fesetround(floats->rounding);
}

static void floats_default(void)
{
    fesetround(FE_TONEAREST);
}

#endif

/* ---- OpenMP's workers ----------------------------------------------------------------------- */

static bool workers_set_defaults(void)
{
    bool any = false;
#pragma omp parallel reduction(|| : any)
    if (omp_get_thread_num() > 0 && floats_differ(&worker_floats)) {
        floats_default();
        worker_differs = any = true;
    }
    return any;
}

static void workers_restore(void)
{
#pragma omp parallel
    if (worker_differs) {
        floats_set(&worker_floats);
        worker_differs = false;
    }
}

void entry_use_workers(void)
{
    if (!atomic_load_explicit(&has_workers, memory_order_relaxed)) atomic_store(&has_workers, true);
    if (depth == 0 || workers != WORKERS_UNSEEN || omp_in_parallel()) return;
    workers = workers_set_defaults() ? WORKERS_DIFFER : WORKERS_PLAIN;
}

/* ---- processes ------------------------------------------------------------------------------ */

/* The child has one thread, which must compute alone. */
static void in_child(void)
{
    atomic_fetch_add(&generation, 1);
    if (!atomic_load(&has_workers)) return;
    atomic_store(&lost_workers, true);
    workers = WORKERS_UNSEEN;
    omp_set_num_threads(1);
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

static void watch_forks_once(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
}

bool entry_lost_workers(void)
{
    return atomic_load_explicit(&lost_workers, memory_order_relaxed);
}

unsigned entry_generation(void)
{
    watch_forks_once();
    return atomic_load_explicit(&generation, memory_order_relaxed);
}

cz_status entry_check_process(unsigned made_in, const char *what)
{
    if (made_in == entry_generation()) return CZ_OK;
    return err_set(CZ_INVALID, 0,
                   "%s belongs to the process that this one was forked from: make one here, or "
                   "start a new program instead of a fork",
                   what);
}

/* ---- arguments ------------------------------------------------------------------------------ */

cz_status entry_need(bool given, const char *name)
{
    static const struct {
        const char *name, *maker;
    } makers[] = {{"engine", "engine_initialize"},    {"world", "engine_world_create"},
                  {"model", "cz_model_open"},         {"loader", "cz_data_open"},
                  {"texts", "cz_texts_open"},         {"text loader", "cz_text_loader_open"},
                  {"tokenizer", "cz_tokenizer_open"}, {"decoder", "cz_tokenizer_decoder_create"},
                  {"infer", "cz_infer_create"},       {"weights", "cz_weights_open"},
                  {"plan", "cz_plan_create"},         {"tune", "cz_tune_create"}};
    if (given) return CZ_OK;
    for (size_t i = 0; i < sizeof makers / sizeof makers[0]; i++)
        if (strcmp(name, makers[i].name) == 0)
            return err_set(CZ_INVALID, 0, "%s is NULL: did %s() fail?", name, makers[i].maker);
    return err_set(CZ_INVALID, 0, "%s is NULL", name);
}

/* ---- locale, and the whole ------------------------------------------------------------------ */

static locale_t c_locale; /* valid until the process ends */

static void make_locale(void)
{
    c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

/* glibc has this locale built in: without it the thread keeps its own. */
static locale_t use_c_locale(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_locale);
    return uselocale(c_locale);
}

struct entry entry_begin(void)
{
    struct entry entry = {.locale = use_c_locale()};
    entry.floats_differed = floats_differ(&entry.floats);
    if (entry.floats_differed) floats_default();
    if (depth++ > 0) return entry;
    watch_forks_once();
    if (workers == WORKERS_DIFFER)
        workers_set_defaults();
    else if (entry.floats_differed)
        workers = WORKERS_UNSEEN;
    return entry;
}

void entry_end(const struct entry *entry)
{
    if (--depth == 0 && workers == WORKERS_DIFFER) workers_restore();
    if (entry->floats_differed) floats_set(&entry->floats);
    uselocale(entry->locale);
}

void entry_begin_thread(void)
{
    (void)entry_begin();
}
