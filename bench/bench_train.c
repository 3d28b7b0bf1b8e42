/* Whole training steps through the engine on random tokens: forward, backward, clipping at norm 1
 * and AdamW. bench/train_models.py runs PyTorch beside it, bench/offload/offload.py other configs,
 * step by step in turns.
 *
 *   bench_train MODEL PRECISION B T [--profile] [--config FILE] [--lora RANK]
 *
 * MODEL is a preset or a folder with config.json. An encoder classifies rows of T/2 to T tokens,
 * the rest padding, into two classes; a decoder predicts the next token. PRECISION: fp32, or bf16
 * with fp32 masters and states. --config: a ds_config with the same batch instead. Each line on
 * standard input is answered with one step: its seconds on the wall, its processor time, its loss,
 * the peak of resident bytes so far, the bytes read from and written to the swap file, and the
 * seconds that it waited for it. --profile prints times of each kind of layer at the third step.
 * --lora trains an adapter of all linear maps. */
#include "base/clock.h"
#include "base/rng.h"
#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

struct work {
    const char *model, *precision, *config;
    int64_t B, T;
    bool profile;
    int64_t lora_rank; /* 0: the model itself is trained */
    int32_t *ids, *labels;
    uint8_t *mask;
    uint64_t n_draws, vocab;
    int64_t n_batches;
    bool classes;
};

static cz_status open_model(const struct work *w, struct cz_model **out)
{
    static const char *const names[] = {"0", "1"};
    const bool encoder = strstr(w->model, "bert") != NULL;
    const struct cz_model_options options = {.size = sizeof options,
                                             .task = encoder ? CZ_TASK_CLASSIFICATION
                                                             : CZ_TASK_CAUSAL_LM,
                                             .labels = encoder ? names : NULL,
                                             .n_labels = encoder ? 2 : 0};
    const struct cz_lora_options lora = {.size = sizeof lora, .rank = w->lora_rank};
    *out = cz_model_open_ex(w->model, &options);
    if (!*out) return cz_last_status();
    if (w->lora_rank > 0) TRY(cz_model_add_lora(*out, &lora));
    return cz_model_set_shape(*out, w->T);
}

static void say(const char *text, void *user)
{
    (void)user;
    fputs(text, stderr);
}

static cz_status open_engine(const struct work *w, struct cz_model *model, struct cz_engine **out)
{
    char config[1024];
    const bool bf16 = strcmp(w->precision, "bf16") == 0;
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": %lld, \"gradient_clipping\": 1.0,"
             " \"zero_optimization\": {\"stage\": %d}, \"bf16\": {\"enabled\": %s},"
             " \"flops_profiler\": {\"enabled\": %s, \"profile_step\": 3},"
             " \"optimizer\": {\"type\": \"AdamW\","
             " \"params\": {\"lr\": 1e-4, \"weight_decay\": 0.01}}}",
             (long long)w->B, bf16 ? 1 : 0, bf16 ? "true" : "false", w->profile ? "true" : "false");
    const struct cz_engine_options options = {.size = sizeof options,
                                              .config_path = w->config,
                                              .config_json = w->config ? NULL : config,
                                              .print = say,
                                              .trains_batches = true};
    *out = engine_initialize_ex(&options, model);
    return *out ? CZ_OK : cz_last_status();
}

static uint64_t draw(struct work *w, uint64_t below)
{
    return rng_mix64(++w->n_draws) % below;
}

static void fill(struct work *w)
{
    for (int64_t b = 0; b < w->B; b++) {
        const int64_t half = w->T / 2;
        const int64_t n = w->classes ? half + (int64_t)draw(w, (uint64_t)half + 1) : w->T;
        for (int64_t t = 0; t < w->T; t++) {
            w->ids[b * w->T + t] = (int32_t)draw(w, w->vocab);
            w->mask[b * w->T + t] = t < n;
        }
        if (w->classes) w->labels[b] = (int32_t)draw(w, 2);
    }
    if (w->classes) return;
    for (int64_t i = 0; i < w->B * w->T; i++) w->labels[i] = w->ids[(i + 1) % (w->B * w->T)];
}

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int64_t peak_rss(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (int64_t)usage.ru_maxrss * 1024;
}

static cz_status next(void *user, struct cz_batch *batch)
{
    struct work *w = user;
    fill(w);
    *batch = (struct cz_batch){.size = sizeof *batch,
                               .B = w->B,
                               .T = w->T,
                               .ids = w->ids,
                               .labels = w->labels,
                               .key_mask = w->classes ? w->mask : NULL,
                               .sample = (uint64_t)(w->n_batches++ * w->B)};
    return CZ_OK;
}

static cz_status one_step(struct work *w, struct cz_engine *e)
{
    struct cz_swap_traffic moved = {.size = sizeof moved};
    float loss = 0;
    const double cpu = cpu_seconds();
    const int64_t begin = clock_now_ns();
    TRY(engine_train_batch(e, next, w, &loss));
    TRY(engine_get_swap_traffic(e, &moved));
    printf("%.4f %.4f %.9g %lld %.0f %.0f %.4f\n", (double)(clock_now_ns() - begin) * 1e-9,
           cpu_seconds() - cpu, (double)loss, (long long)peak_rss(), moved.read_nbytes,
           moved.written_nbytes, moved.waited_s);
    fflush(stdout);
    return CZ_OK;
}

static cz_status serve(struct work *w, struct cz_engine *e)
{
    char line[16];
    w->classes = cz_model_labels(engine_get_model(e)) == CZ_LABELS_CLASS;
    w->vocab = (uint64_t)cz_model_vocab_size(engine_get_model(e));
    while (fgets(line, sizeof line, stdin)) TRY(one_step(w, e));
    return CZ_OK;
}

int main(int argc, char **argv)
{
    if (argc < 5) {
        fprintf(stderr,
                "use: bench_train MODEL PRECISION B T [--profile] [--config FILE] [--lora RANK]\n");
        return 2;
    }
    struct work w = {
        .model = argv[1], .precision = argv[2], .B = atoll(argv[3]), .T = atoll(argv[4])};
    for (int i = 5; i < argc; i++) {
        if (strcmp(argv[i], "--profile") == 0) w.profile = true;
        if (strcmp(argv[i], "--lora") == 0 && i + 1 < argc) w.lora_rank = atoll(argv[++i]);
        if (strcmp(argv[i], "--config") == 0 && i + 1 < argc) w.config = argv[++i];
    }
    const size_t n = (size_t)(w.B * w.T);
    w.ids = calloc(n, sizeof *w.ids), w.labels = calloc(n, sizeof *w.labels);
    w.mask = calloc(n, 1);
    struct cz_model *model = NULL;
    struct cz_engine *e = NULL;
    cz_status st = w.ids && w.labels && w.mask ? open_model(&w, &model) : CZ_NOMEM;
    if (st == CZ_OK) st = open_engine(&w, model, &e);
    if (st == CZ_OK) st = serve(&w, e);
    if (st != CZ_OK) fprintf(stderr, "bench_train: %s\n", cz_last_error());
    if (e)
        engine_destroy(e);
    else
        cz_model_destroy(model);
    free(w.ids), free(w.labels), free(w.mask);
    return st == CZ_OK ? 0 : 1;
}
