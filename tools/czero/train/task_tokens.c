/* Language models: rows of tokens from text or token files. */
#include "tools/czero/train/train.h"

#include <math.h>
#include <stdlib.h>

/* `once`: evaluation reads every row once, in order, the last incomplete batch included. */
static cz_status open_rows(const struct run *r, const struct arg_list *paths, bool once,
                           struct cz_data_loader **out)
{
    struct cz_data_options options = {
        .size = sizeof options,
        .paths = paths->items,
        .n_paths = paths->n,
        .tokenizer = r->tokenizer,
        .seq_len = r->T,
        .micro_batch = r->micro,
        .rank = engine_world_rank(r->world),
        .world_size = engine_world_size(r->world),
        .shuffle = !once && r->shuffle,
        .seed = r->seed,
        .drop_last = !once && r->drop_last,
        .once = once,
        .epochs = once || isnan(r->options->epochs) ? 0 : r->options->epochs,
        .accumulation = once ? 1 : r->accumulation,
        .per_document = r->options->per_document,
        .encoding = r->options->encoding,
    };
    const double given = r->options->mask_probability;
    const float probability = isnan(given) ? 0.15f : (float)given;
    struct cz_masking masking = {.size = sizeof masking};
    if (r->task != &train_task_tokens) {
        TRY(cz_masking_init(&masking, r->tokenizer, probability));
        masking.detects = r->task == &train_task_replaced;
        options.masking = &masking;
    }
    TRY(cz_data_open(&options, out));
    return cz_data_check_vocab(*out, cz_model_vocab_size(run_model(r)));
}

/* The model does not depend on the data. */
static cz_status tokens_open_inputs(struct run *r)
{
    (void)r;
    return CZ_OK;
}

static cz_status tokens_open_data(struct run *r)
{
    const struct train_options *o = r->options;
    if (!isnan(o->eval_split))
        return err_set(CZ_INVALID, 0,
                       "--eval-split: rows of a language model join documents, so a share of them "
                       "would hold parts of the others; give another file by --eval-data");
    TRY(open_rows(r, &o->data, false, &r->data));
    if (o->eval_data.n > 0) TRY(open_rows(r, &o->eval_data, true, &r->eval_data));
    return o->test_data.n > 0 ? open_rows(r, &o->test_data, true, &r->test_data) : CZ_OK;
}

static uint64_t tokens_rows_per_epoch(const struct run *r)
{
    return cz_data_rows_per_epoch(r->data);
}

static cz_status tokens_next(void *user, struct cz_batch *batch)
{
    struct run *r = user;
    return cz_data_next(r->data, batch);
}

static cz_status tokens_train_step(struct run *r)
{
    return engine_train_batch(r->engine, tokens_next, r, NULL);
}

/* ---- evaluation ----------------------------------------------------------------------------- */

/* What a rank evaluates to keep company with others that still have rows. */
struct filler {
    int32_t *ids; /* (T) zeros: inputs and labels */
    struct cz_batch batch;
};

static cz_status filler_init(struct filler *f, int64_t T)
{
    f->ids = calloc((size_t)T, sizeof *f->ids);
    if (!f->ids) return err_set(CZ_NOMEM, 0, "no memory for a row of %lld tokens", (long long)T);
    f->batch = (struct cz_batch){
        .size = sizeof(struct cz_batch), .B = 1, .T = T, .ids = f->ids, .labels = f->ids};
    return CZ_OK;
}

/* Labels of a batch that count. */
static double count_labels(const struct cz_batch *b)
{
    int64_t n = 0;
    for (int64_t i = 0; i < b->B * b->T; i++) n += b->labels[i] != CZ_IGNORE_LABEL;
    return (double)n;
}

/* Sums of losses, of labels and of those predicted over this rank's rows: a batch's loss is a mean
 * over its labels, so it is weighted with their number. A rank without rows left evaluates zeros:
 * with ZeRO 3 every forward is a collective operation. */
static cz_status evaluate_rows(struct run *r, const struct filler *filler, double sums[3])
{
    struct cz_data_loader *data = r->eval_data;
    while (!cz_data_is_done(data)) {
        struct cz_batch batch = {.size = sizeof batch};
        float loss;
        TRY(cz_data_next(data, &batch));
        const struct cz_batch *shown = batch.B > 0 ? &batch : &filler->batch;
        int64_t n_right = 0;
        TRY(r->task == &train_task_tokens ? engine_eval_tokens(r->engine, shown, &loss, &n_right)
                                          : engine_eval(r->engine, shown, &loss));
        if (batch.B == 0) continue;
        const double n = count_labels(&batch);
        sums[0] += (double)loss * n;
        sums[1] += n;
        sums[2] += (double)n_right;
    }
    return CZ_OK;
}

/* Mean loss over every label of --eval-data, each counted once, by one rank; of causal models the
 * share of labels predicted, too. */
static cz_status tokens_evaluate(struct run *r, struct evaluation *out)
{
    const struct cz_data_cursor start = {0};
    struct filler filler = {0};
    double mine[3] = {0}, sums[3];
    cz_status st;
    *out = (struct evaluation){.loss = NAN};
    TRY_GOTO(cz_data_seek(r->eval_data, &start), done);
    TRY_GOTO(filler_init(&filler, r->T), done);
    TRY_GOTO(evaluate_rows(r, &filler, mine), done);
    TRY_GOTO(engine_gather_metrics(r->engine, mine, 3, sums), done);
    out->loss = sums[0] / sums[1];
    out->has_tokens = r->task == &train_task_tokens;
    out->token_accuracy = sums[2] / sums[1];
done:
    free(filler.ids);
    return st;
}

/* ---- the place ------------------------------------------------------------------------------ */

static void tokens_tell(const struct run *r, struct cz_data_cursor *out)
{
    cz_data_tell(r->data, out);
}

static cz_status tokens_seek(struct run *r, const struct cz_load_result *result)
{
    return resume_data(result, r->engine, r->drop_last, r->data);
}

static void tokens_close(struct run *r)
{
    cz_data_close(r->data);
    cz_data_close(r->eval_data);
    cz_data_close(r->test_data);
}

const struct train_task train_task_tokens = {
    .name = "causal-lm",
    .model_task = CZ_TASK_CAUSAL_LM,
    .open_inputs = tokens_open_inputs,
    .open_data = tokens_open_data,
    .rows_per_epoch = tokens_rows_per_epoch,
    .crosses_epochs = true,
    .train_step = tokens_train_step,
    .evaluate = tokens_evaluate,
    .tell = tokens_tell,
    .seek = tokens_seek,
    .close = tokens_close,
};

const struct train_task train_task_masked = {
    .name = "masked-lm",
    .model_task = CZ_TASK_MASKED_LM,
    .open_inputs = tokens_open_inputs,
    .open_data = tokens_open_data,
    .rows_per_epoch = tokens_rows_per_epoch,
    .crosses_epochs = true,
    .train_step = tokens_train_step,
    .evaluate = tokens_evaluate,
    .tell = tokens_tell,
    .seek = tokens_seek,
    .close = tokens_close,
};

const struct train_task train_task_replaced = {
    .name = "replaced-tokens",
    .model_task = CZ_TASK_REPLACED_TOKENS,
    .open_inputs = tokens_open_inputs,
    .open_data = tokens_open_data,
    .rows_per_epoch = tokens_rows_per_epoch,
    .crosses_epochs = true,
    .train_step = tokens_train_step,
    .evaluate = tokens_evaluate,
    .tell = tokens_tell,
    .seek = tokens_seek,
    .close = tokens_close,
};
