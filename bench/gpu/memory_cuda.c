/* What a training run really takes on a GPU and on its host, beside what its plan said: one JSON
 * line per figure, as scripts/gpu_check.sh reads them.
 *
 *     build/bench/memory_cuda MODEL T B CONFIG      CONFIG: a ds_config as JSON text
 *
 * Three optimizer steps over random tokens; the GPU's free memory is asked for after every call
 * (all of a run's memory is allocated before the first). A figure passes within max(2 %, 32 MiB).
 */
#include "base/rng.h"
#include "base/size.h"
#include "device/device.h"
#include "engine/engine.h"
#include "engine/plan/plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#define N_STEPS 3

struct run {
    struct device *gpu; /* a second handle, to ask for memory */
    struct cz_engine *engine;
    int64_t B, T;
    int32_t *ids, *labels;
    size_t used_nbytes; /* of the GPU, the most that was seen */
    uint64_t n_draws;
};

static cz_status look(struct run *r)
{
    size_t free_nbytes, total_nbytes;
    TRY(r->gpu->ops->mem_info(r->gpu, &free_nbytes, &total_nbytes));
    if (total_nbytes - free_nbytes > r->used_nbytes) r->used_nbytes = total_nbytes - free_nbytes;
    return CZ_OK;
}

static cz_status micro_step(struct run *r)
{
    const uint64_t vocabulary = (uint64_t)cz_model_vocab_size(engine_get_model(r->engine));
    for (int64_t i = 0; i < r->B * r->T; i++) {
        r->ids[i] = (int32_t)(rng_mix64(++r->n_draws) % vocabulary);
        r->labels[i] = (int32_t)(rng_mix64(++r->n_draws) % vocabulary);
    }
    const struct cz_batch batch = {.size = sizeof batch, .B = r->B, .T = r->T, .ids = r->ids, .labels = r->labels};
    float loss;
    TRY(engine_forward(r->engine, &batch, &loss));
    TRY(look(r));
    TRY(engine_backward(r->engine));
    TRY(look(r));
    TRY(engine_step(r->engine));
    return look(r);
}

/* The user's config with the micro-batch and an optimizer in it. */
static cz_status open_engine(struct run *r, const char *name, const char *config)
{
    char micro_batch[64];
    const char *const sets[] = {micro_batch, "optimizer={\"type\": \"AdamW\", \"params\": {}}",
                                NULL};
    const struct cz_engine_options options = {
        .size = sizeof options, .config_json = config, .device = "cuda", .set_values = sets};
    struct cz_model *model =
        cz_model_open_ex(name, &(struct cz_model_options){.size = sizeof(struct cz_model_options),
                                                          .task = CZ_TASK_CAUSAL_LM});
    if (!model) return cz_last_status();
    snprintf(micro_batch, sizeof micro_batch, "train_micro_batch_size_per_gpu=%lld",
             (long long)r->B);
    cz_status st = cz_model_set_shape(model, r->T);
    if (st == CZ_OK && !(r->engine = engine_initialize_ex(&options, model))) st = cz_last_status();
    if (st != CZ_OK) cz_model_destroy(model);
    return st;
}

static void tell(const char *what, size_t measured, size_t planned, bool has_goal)
{
    const double most = fmax(0.02 * (double)planned, 32.0 * (1 << 20));
    const bool is_close = fabs((double)measured - (double)planned) <= most;
    char have[32], want[32];
    printf("{\"figure\": \"%s\", \"value\": %.6g, \"unit\": \"MiB\", \"ratio\": %.4f, ", what,
           (double)measured / (1 << 20), (double)measured / (double)planned);
    if (has_goal)
        printf("\"goal_of\": \"within max(2 %%, 32 MiB) of the plan\", \"pass\": %s, ",
               is_close ? "true" : "false");
    printf("\"note\": \"%s, planned %s\"}\n", size_human(measured, have, sizeof have),
           size_human(planned, want, sizeof want));
}

static cz_status train(struct run *r, const char *name, const char *config)
{
    const size_t numel = (size_t)(r->B * r->T);
    struct rusage usage;
    r->ids = calloc(numel, sizeof *r->ids);
    r->labels = calloc(numel, sizeof *r->labels);
    if (!r->ids || !r->labels) return err_set(CZ_NOMEM, 0, "no memory for a batch");
    TRY(device_open("cuda", 0, &r->gpu));
    TRY(open_engine(r, name, config));
    TRY(look(r));
    const size_t begun_nbytes = r->used_nbytes;
    for (int64_t i = 0; i < N_STEPS * engine_get_accumulation(r->engine); i++) TRY(micro_step(r));
    getrusage(RUSAGE_SELF, &usage);
    const struct cz_plan *plan = engine_get_plan(r->engine);
    printf("{\"figure\": \"of that, taken after the first kernel\", \"value\": %.6g, \"unit\": "
           "\"MiB\", "
           "\"note\": \"the plan assumes a constant for kernels' code\"}\n",
           (double)(r->used_nbytes - begun_nbytes) / (1 << 20));
    tell("memory of the GPU", r->used_nbytes, plan->device_peak_nbytes, true);
    tell("memory of the host (peak RSS)", (size_t)usage.ru_maxrss * 1024, plan->host_peak_nbytes,
         false);
    return CZ_OK;
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "use: memory_cuda MODEL T B CONFIG\n");
        return 2;
    }
    struct run r = {.T = atoll(argv[2]), .B = atoll(argv[3])};
    cz_status st = r.T > 0 && r.B > 0 ? train(&r, argv[1], argv[4]) : CZ_INVALID;
    if (st != CZ_OK) fprintf(stderr, "memory_cuda: %s\n", cz_last_error());
    if (r.engine) engine_destroy(r.engine);
    device_close(r.gpu);
    free(r.ids);
    free(r.labels);
    return st == CZ_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
