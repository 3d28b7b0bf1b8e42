/* An offer, trained for a few steps: the search predicts, this checks. The config goes through the
 * engine as a user's would, so what is measured is what the file will do. */
#include "base/clock.h"
#include "base/host/proc.h"
#include "engine/tune/tune_impl.h"

#include <stdio.h>
#include <stdlib.h>

/* Tokens of no meaning; labels are in the second half. */
static void fill_tokens(int32_t *ids, size_t n, int64_t vocab_size)
{
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)((i * 2654435761u >> 8) % (uint64_t)vocab_size);
}

#define ENOUGH_NS ((int64_t)30 * 1000 * 1000 * 1000)

/* The first step warms up and does not count; slow steps are not repeated for long. */
/* The same micro-batch every time. */
static cz_status next(void *user, struct cz_batch *batch)
{
    *batch = *(const struct cz_batch *)user;
    return CZ_OK;
}

static cz_status run(struct cz_engine *e, struct cz_batch *batch, int n_steps,
                     struct tune_measured *out)
{
    int64_t start = clock_now_ns();
    for (int s = 0; s <= n_steps && (s <= 1 || clock_now_ns() - start < ENOUGH_NS); s++) {
        int64_t begin = clock_now_ns();
        TRY(engine_train_batch(e, next, batch, NULL));
        double seconds = (double)(clock_now_ns() - begin) * 1e-9;
        if (s == 1 || (s > 1 && seconds < out->seconds)) out->seconds = seconds;
    }
    out->peak_nbytes = proc_nbytes("/proc/self/status", "VmHWM:");
    return CZ_OK;
}

/* Tokens of no meaning cost as much as real ones. */
static cz_status train(struct cz_engine *e, int n_steps, struct tune_measured *out)
{
    const struct cz_model *model = engine_get_model(e);
    int64_t B = engine_get_micro_batch(e), T = cz_model_t_max(model);
    size_t n = (size_t)(B * T);
    int32_t *ids = malloc(2 * n * sizeof *ids);
    if (!ids) return err_set(CZ_NOMEM, 0, "no memory for %zu tokens", 2 * n);
    fill_tokens(ids, 2 * n, cz_model_vocab_size(model));
    struct cz_batch batch = {.size = sizeof batch, .B = B, .T = T, .ids = ids, .labels = ids + n};
    cz_status st = run(e, &batch, n_steps, out);
    free(ids);
    return st;
}

/* Memory peaks are read from the kernel, and compared with the plan by the caller. */
cz_status tune_measure(const struct tune *t, const struct tune_offer *offer, struct cz_model *model,
                       int n_steps, struct tune_measured *out)
{
    struct cz_engine_options options = {
        .size = sizeof options, .trains_batches = true, .total_steps = CONFIG_ANY_STEPS};
    struct cz_engine *e = NULL;
    char *config = NULL;
    cz_status st;
    *out = (struct tune_measured){0};
    /* Forget the peak of what was before; where the kernel does not allow it, it counts. */
    FILE *f = fopen("/proc/self/clear_refs", "we");
    if (f) {
        fprintf(f, "5");
        fclose(f);
    }
    if (t->options.gpu_nbytes > 0) options.device = "cuda"; /* if there is one */
    if (t->options.world_size > 1)
        st = err_set(CZ_UNSUPPORTED, 0,
                     "a plan for %lld ranks cannot be measured by one process; "
                     "time it with `czero launch -n %lld -- train`",
                     (long long)t->options.world_size, (long long)t->options.world_size);
    else
        st = tune_config(t, offer, &config);
    options.config_json = config;
    if (st == CZ_OK) e = engine_initialize_ex(&options, model);
    if (st == CZ_OK && !e) st = cz_last_status();
    if (e) st = train(e, n_steps, out);
    free(config);
    if (!e) {
        struct err mine;
        err_capture(&mine);
        cz_model_destroy(model);
        err_restore(&mine);
        return st;
    }
    engine_destroy(e);
    return st;
}
