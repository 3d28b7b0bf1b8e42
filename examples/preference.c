/* Preference training (DPO, arXiv 2305.18290) of an adapter, with a loss of the program's own.
 *   preference MODEL PAIRS CONFIG [STEPS [OUT [ADAPTER]]]
 * PAIRS: lines of prompt, chosen and rejected answer, separated by tabs. With s the sum of an
 * answer's log-probabilities and r the same by the model without its adapter, a pair's loss is
 *   −log σ(β·((s − r)(chosen) − (s − r)(rejected))).
 * A micro-batch holds whole pairs: the config's train_micro_batch_size_per_gpu is even. */
#include <czero/czero.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Pass the first error on; its sentence stays in cz_last_error(). */
#define CHECK(call)                                                                                \
    do {                                                                                           \
        cz_status status_ = (call);                                                                \
        if (status_ != CZ_OK) return status_;                                                      \
    } while (0)

enum { SEQ_LEN = 128, N_ROWS_MAX = 64 };
#define BETA 0.1
struct run {
    struct cz_tokenizer *tok;
    struct cz_model *model; /* NULL once the engine owns it */
    struct cz_engine *engine;
    FILE *pairs;
    int32_t ids[N_ROWS_MAX * SEQ_LEN], labels[N_ROWS_MAX * SEQ_LEN];
    uint8_t mask[N_ROWS_MAX * SEQ_LEN];
    double reference[N_ROWS_MAX]; /* r of each row: chosen, rejected, chosen, … */
};

static cz_status dpo(void *user, struct cz_loss_call *call)
{
    const struct run *r = user;
    const int64_t T = call->batch->T, n_pairs = call->batch->B / 2;
    double loss = 0;
    for (int64_t i = 0; i < n_pairs; i++) {
        const float *chosen = call->values + 2 * i * T, *rejected = chosen + T;
        double margin = r->reference[2 * i + 1] - r->reference[2 * i];
        for (int64_t t = 0; t < T; t++) margin += (double)chosen[t] - (double)rejected[t];
        loss += log1p(exp(-BETA * margin)) / (double)n_pairs;
        const double slope = -BETA / (1 + exp(BETA * margin)) / (double)n_pairs;
        for (int64_t t = 0; t < T; t++) {
            call->gradients[2 * i * T + t] = (float)slope;
            call->gradients[(2 * i + 1) * T + t] = (float)-slope;
        }
    }
    call->loss = (float)loss;
    return CZ_OK;
}

/* One row: prompt and answer, of which the answer has labels. */
static cz_status put_row(struct run *r, int64_t row, const char *prompt, const char *answer)
{
    char text[8192];
    int32_t *ids, *prompt_ids, *to = r->ids + row * SEQ_LEN, *labels = r->labels + row * SEQ_LEN;
    size_t n, n_prompt;
    const int n_bytes = snprintf(text, sizeof text, "%s%s", prompt, answer);
    if (n_bytes >= (int)sizeof text) return cz_error(CZ_INVALID, "a pair is too long");
    CHECK(cz_tokenizer_encode(r->tok, text, strlen(text), &ids, &n));
    CHECK(cz_tokenizer_encode(r->tok, prompt, strlen(prompt), &prompt_ids, &n_prompt));
    if (n + 1 <= SEQ_LEN) {
        memcpy(to, ids, n * sizeof *to);
        to[n] = (int32_t)cz_tokenizer_end_id(r->tok); /* the model learns to stop, too */
    }
    cz_free(ids);
    cz_free(prompt_ids);
    if (n + 1 > SEQ_LEN) return cz_error(CZ_INVALID, "a pair has too many tokens");
    for (size_t t = 0; t < SEQ_LEN; t++) {
        if (t > n) to[t] = cz_tokenizer_padding_id(r->tok);
        r->mask[row * SEQ_LEN + (int64_t)t] = t <= n;
        labels[t] = t + 1 >= n_prompt && t < n ? to[t + 1] : CZ_IGNORE_LABEL;
    }
    return CZ_OK;
}

/* The next pairs of the file, again from its start when it ends. */
static cz_status next_batch(struct run *r, struct cz_batch *batch)
{
    char line[8192];
    for (int64_t row = 0; row < batch->B; row += 2) {
        if (!fgets(line, sizeof line, r->pairs)) {
            rewind(r->pairs);
            if (!fgets(line, sizeof line, r->pairs)) return cz_error(CZ_INVALID, "no pairs");
        }
        line[strcspn(line, "\n")] = '\0';
        char *chosen = strchr(line, '\t'), *rejected = chosen ? strchr(chosen + 1, '\t') : NULL;
        if (!rejected) return cz_error(CZ_INVALID, "a line has no three columns");
        *chosen++ = *rejected++ = '\0';
        CHECK(put_row(r, row, line, chosen));
        CHECK(put_row(r, row + 1, line, rejected));
    }
    return CZ_OK;
}

static cz_status run_open(struct run *r, char **argv, const char *adapter)
{
    const struct cz_lora_options lora = {.size = sizeof lora, .rank = 16, .alpha = 32};
    if (!(r->pairs = fopen(argv[2], "r"))) return cz_error(CZ_NOTFOUND, "the pairs are missing");
    CHECK(cz_tokenizer_open(argv[1], &r->tok));
    if (!(r->model = cz_model_open(argv[1]))) return cz_last_status();
    CHECK(adapter ? cz_model_add_adapter(r->model, adapter, true)
                  : cz_model_add_lora(r->model, &lora));
    CHECK(cz_model_set_shape(r->model, SEQ_LEN));
    if (!(r->engine = engine_initialize(argv[3], r->model))) return cz_last_status();
    r->model = NULL;
    const int64_t B = engine_get_micro_batch(r->engine);
    if (B % 2 != 0 || B > N_ROWS_MAX) return cz_error(CZ_INVALID, "rows are not whole pairs");
    return engine_set_loss(r->engine, dpo, r);
}

static cz_status train(struct run *r, long n_steps)
{
    struct cz_batch batch = {
        .size = sizeof batch, .B = engine_get_micro_batch(r->engine), .T = SEQ_LEN};
    batch.ids = r->ids, batch.labels = r->labels, batch.key_mask = r->mask;
    while (engine_get_global_steps(r->engine) < n_steps) {
        CHECK(next_batch(r, &batch));
        CHECK(engine_use_adapter(r->engine, false));
        CHECK(engine_eval_rows(r->engine, &batch, r->reference));
        CHECK(engine_use_adapter(r->engine, true));
        const int64_t step = engine_get_global_steps(r->engine);
        CHECK(engine_forward(r->engine, &batch, NULL));
        CHECK(engine_backward(r->engine));
        CHECK(engine_step(r->engine));
        batch.sample += (uint64_t)batch.B; /* other dropout */
        if (engine_get_global_steps(r->engine) > step)
            printf("step %lld loss %.7f\n", (long long)step + 1,
                   engine_get_boundary_loss(r->engine));
    }
    return CZ_OK;
}

int main(int argc, char **argv)
{
    static struct run r;
    const bool asks = argc == 2 && strcmp(argv[1], "--help") == 0;
    if (argc < 4)
        return puts("Usage: preference MODEL PAIRS CONFIG [STEPS [OUT [ADAPTER]]]"), asks ? 0 : 2;
    cz_status st = run_open(&r, argv, argc > 6 ? argv[6] : NULL);
    if (st == CZ_OK) st = train(&r, argc > 4 ? strtol(argv[4], NULL, 10) : 10);
    if (st == CZ_OK && argc > 5) st = engine_export_hf(r.engine, argv[5], CZ_DTYPE_F32);
    if (st != CZ_OK) fprintf(stderr, "preference: %s\n", cz_last_error());
    engine_destroy(r.engine);
    cz_model_destroy(r.model);
    cz_tokenizer_close(r.tok);
    if (r.pairs) fclose(r.pairs);
    return st == CZ_OK ? 0 : 1;
}
