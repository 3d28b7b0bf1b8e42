/* Predicted against measured memory: a run in a child process of its own. */
#ifndef CZ_TESTS_PEAK_H
#define CZ_TESTS_PEAK_H

#include "engine/plan/plan.h"
#include "tests/support/replay.h"

#include <sys/wait.h>

struct peak {
    size_t planned, measured;      /* bytes: resident at most */
    size_t planned_pinned, locked; /* page-locked during the run */
    size_t planned_nvme;
};

/* A figure of this process in bytes: "VmHWM", "VmLck". */
static inline size_t peak_status(const char *name)
{
    char line[128];
    size_t kib = 0, n = strlen(name);
    FILE *f = fopen("/proc/self/status", "r");
    ck_assert_ptr_nonnull(f);
    while (fgets(line, sizeof line, f))
        if (strncmp(line, name, n) == 0 && sscanf(line + n, ": %zu kB", &kib) == 1) break;
    fclose(f);
    return kib * 1024;
}

/* High-water mark of this process's resident memory. */
static inline size_t peak_resident(void)
{
    return peak_status("VmHWM");
}

/* Train `steps` steps of random tokens in a fresh process image is not needed: Check forks each
 * case, so each case measures one run only. */
static inline struct peak peak_of_run(const char *model, const char *config, int64_t T, int steps)
{
    static struct replay_batch b;
    const struct cz_engine_options options = {.size = sizeof options, .config_json = config};
    struct cz_model *m = cz_model_open(model);
    ck_assert_msg(m != NULL, "%s", cz_last_error());
    ck_ok(cz_model_set_shape(m, T));
    struct cz_engine *e = engine_initialize_ex(&options, m);
    ck_assert_msg(e != NULL, "%s", cz_last_error());
    struct peak p = {.planned = engine_get_plan(e)->host_peak_nbytes,
                     .planned_pinned = engine_get_plan(e)->pinned_nbytes,
                     .planned_nvme = engine_get_plan(e)->nvme_nbytes};
    int64_t B = engine_get_micro_batch(e);
    for (int64_t i = 0; i < B * T; i++) {
        b.ids[i] = (int32_t)(i * 7 % 200);
        b.labels[i] = (int32_t)(i * 11 % 200);
    }
    b.batch = (struct cz_batch){.size = sizeof(struct cz_batch), .B = B, .T = T, .ids = b.ids, .labels = b.labels};
    for (int s = 0; s < steps; s++)
        for (int64_t g = 0; g < engine_get_accumulation(e); g++) {
            ck_ok(engine_forward(e, &b.batch, NULL));
            ck_ok(engine_backward(e));
            ck_ok(engine_step(e));
        }
    p.measured = peak_resident();
    p.locked = peak_status("VmLck");
    engine_destroy(e);
    return p;
}

/* docs/memory.md: within max(2 %, 32 MiB). */
static inline void peak_check(const char *model, const char *config, int64_t T, int steps)
{
    struct peak p = peak_of_run(model, config, T, steps);
    double planned = (double)p.planned / 1048576, measured = (double)p.measured / 1048576;
    printf("%-10s T=%-4lld planned %8.1f MiB, measured %8.1f MiB\n", model, (long long)T, planned,
           measured);
    ck_assert_msg(fabs(planned - measured) <= fmax(0.02 * planned, 32),
                  "%s: planned %.1f MiB, measured %.1f MiB", config, planned, measured);
}

#endif
