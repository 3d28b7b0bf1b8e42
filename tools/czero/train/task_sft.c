/* Instruction tuning: language models on chats and instructions, whose loss is on what the
 * assistant writes. Labels of other tokens are ignored; every step has one mean over all its
 * trained tokens. */
#include "base/size.h"
#include "tools/czero/tool.h"
#include "tools/czero/train/adapter.h"
#include "tools/czero/train/train.h"

#include "base/clock.h"
#include "base/log.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static cz_status sft_open_inputs(struct run *r)
{
    const struct train_options *o = r->options;
    const char *dir = adapter_template(o->model, o->adapter);
    char origin[PATH_MAX];
    if ((r->resume.dir || o->init) && run_origin(r, origin) && chat_template_is_in(origin))
        dir = origin;
    if (dir && !o->chat_template && run_is_first_rank(r))
        LOGV(LOG_INFO, SUB_DATA, "data: the chat template is that of %s", dir);
    return chat_encoder_open_in(&r->chat, r->tokenizer, dir, o->chat_template, o->loss_on);
}

/* Token ids that the model has no embedding for would be read behind its table. */
static cz_status check_vocab(const struct run *r, const struct chat_set *s)
{
    const int64_t V = cz_model_vocab_size(run_model(r));
    for (size_t i = 0; i < s->n_tokens; i++)
        if ((s->tokens[i] & INT32_MAX) >= V)
            return err_set(CZ_INVALID, 0, "token %d is outside the model's vocabulary of %lld",
                           s->tokens[i] & INT32_MAX, (long long)V);
    return CZ_OK;
}

/* `held` gets the share of --eval-split; NULL: nothing is split. */
static cz_status open_set(struct run *r, const struct arg_list *paths, struct chat_set **out,
                          struct chat_set **held)
{
    const struct train_options *o = r->options;
    char look[600];
    snprintf(look, sizeof look, "czero data show %s --model %s%s%s%s%s --left-out", paths->items[0],
             o->model, o->tokenizer ? " --tokenizer " : "", o->tokenizer ? o->tokenizer : "",
             o->chat_template ? " --chat-template " : "", o->chat_template ? o->chat_template : "");
    const struct chat_set_options options = {.paths = paths->items,
                                             .n_paths = paths->n,
                                             .encoding = r->options->encoding,
                                             .split_share = held ? r->options->eval_split : 0,
                                             .split_seed = r->seed,
                                             .held = held,
                                             .encoder = r->chat,
                                             .max_len = r->T,
                                             .packs = r->options->packing,
                                             .look = look,
                                             .cache_dir = r->options->token_cache};
    TRY(chat_set_open(&options, out));
    if (held) TRY(check_vocab(r, *held));
    return check_vocab(r, *out);
}

static cz_status open_loader(const struct run *r, const struct chat_set *set, bool once,
                             struct chat_loader **out)
{
    const struct chat_loader_options options = {
        .set = set,
        .max_len = r->T,
        .micro_batch = r->micro,
        .accumulation = once ? 1 : r->accumulation,
        .rank = engine_world_rank(r->world),
        .world_size = engine_world_size(r->world),
        .pad_id = cz_tokenizer_padding_id(r->tokenizer),
        .seed = r->seed,
        .shuffle = !once && r->shuffle,
        .is_packed = r->options->packing,
        .drop_last = !once && r->drop_last,
        .once = once,
    };
    return chat_loader_open(&options, out);
}

static void say_data(const struct run *r, double seconds)
{
    const struct chat_set *s = r->chats;
    char cut[TOOL_CUT_NBYTES], start[CHAT_START_NBYTES];
    LOGV(LOG_INFO, SUB_DATA,
         "data: %zu example%s of %zu tokens, %.1f %% of them trained, in %zu row%s (%.1f s%s)",
         s->n_examples, plural(s->n_examples), s->n_tokens,
         100.0 * (double)s->n_trained / (double)s->n_tokens, s->n_bins, plural(s->n_bins), seconds,
         s->n_kept > 0 ? ", tokens from --token-cache" : "");
    if (s->n_cut > 0)
        LOGV(LOG_WARN, SUB_DATA, "data: %s",
             tool_cut_sentence(cut, s->n_cut, s->n_rows, "row", r->T));
    if (chat_set_start(s, start)) LOGV(LOG_WARN, SUB_DATA, "data: %s", start);
}

/* ---- what ends an answer -------------------------------------------------------------------- */

/* Examples with this token among those that are trained. */
static size_t count_trained(const struct chat_set *s, int64_t id)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n_examples; i++) {
        const struct chat_example *e = &s->examples[i];
        bool found = false;
        for (size_t t = e->begin + 1; t < e->begin + e->n && !found; t++)
            found = s->tokens[t] < 0 && (s->tokens[t] & INT32_MAX) == id;
        n += found;
    }
    return n;
}

static void say_end(const struct run *r, const char *text, int64_t id)
{
    const struct train_options *o = r->options;
    if (!run_is_first_rank(r) || (!o->export_dir && !o->save)) return;
    LOGV(LOG_INFO, SUB_DATA,
         "data: answers end with %s (token %lld); %s does not list it as an end token: exports "
         "list it (%s)",
         *text ? text : "the next message", (long long)id, o->model,
         r->adapts ? "generation_config.json" : "generation_config.json and config.json");
}

static void warn_of_no_end(const struct run *r)
{
    const char *end = r->chat.turn_end;
    if (!run_is_first_rank(r) || r->chats->n_without_end > 0) return;
    if (*end && r->chat.turn_id < 0)
        LOGV(LOG_WARN, SUB_DATA,
             "data: answers end with \"%s\", which is no single token of the tokenizer: exports "
             "cannot list it as an end token, and programs need it as a stop text (--stop)",
             end);
    else
        LOGV(LOG_WARN, SUB_DATA,
             "data: no answer ends with a special token that is trained: generation does not stop "
             "after an answer; have the template write one, such as {{ eos_token }}");
}

/* The tokens that end the answers of the data are end tokens of what is exported. A cut row has no
 * end. The bytes tokenizer has no token that could end anything. */
static void take_ends(struct run *r)
{
    const int64_t text_id = cz_tokenizer_end_id(r->tokenizer), turn_id = r->chat.turn_id;
    const int64_t ids[] = {turn_id, text_id != turn_id ? text_id : -1};
    const char *const texts[] = {r->chat.turn_end, r->chat.end};
    size_t n_ended = 0;
    for (size_t i = 0; i < CZ_ARRAY_LEN(ids); i++) {
        const size_t n = ids[i] >= 0 ? count_trained(r->chats, ids[i]) : 0;
        n_ended += n;
        if (n == 0 || model_ends_at(r->model, ids[i])) continue;
        say_end(r, texts[i], ids[i]);
        model_add_end(r->model, ids[i]);
    }
    if (n_ended == 0 && r->chats->n_cut < r->chats->n_rows &&
        strcmp(cz_tokenizer_name(r->tokenizer), "bytes") != 0)
        warn_of_no_end(r);
}

static cz_status sft_open_data(struct run *r)
{
    const struct train_options *o = r->options;
    const int64_t start = clock_now_ns();
    TRY(open_set(r, &o->data, &r->chats, isnan(o->eval_split) ? NULL : &r->eval_chats));
    if (run_is_first_rank(r)) say_data(r, (double)(clock_now_ns() - start) * 1e-9);
    take_ends(r);
    if (o->eval_data.n > 0) TRY(open_set(r, &o->eval_data, &r->eval_chats, NULL));
    if (o->test_data.n > 0) TRY(open_set(r, &o->test_data, &r->test_chats, NULL));
    return open_loader(r, r->chats, false, &r->chat_loader);
}

static uint64_t sft_rows_per_epoch(const struct run *r)
{
    return chat_loader_rows_per_epoch(r->chat_loader);
}

static cz_status sft_next(void *user, struct cz_batch *batch)
{
    struct run *r = user;
    chat_loader_next(r->chat_loader, batch);
    return CZ_OK;
}

static cz_status sft_train_step(struct run *r)
{
    return engine_train_batch(r->engine, sft_next, r, NULL);
}

/* ---- evaluation ----------------------------------------------------------------------------- */

/* Sums of losses, of labels, and of those predicted over this rank's rows. All ranks have the same
 * number of batches; one without labels has no loss, but takes part. */
static cz_status evaluate_rows(struct run *r, struct chat_loader *loader, double sums[3])
{
    while (!chat_loader_is_done(loader)) {
        struct cz_batch batch;
        float loss;
        int64_t n_right;
        double n = 0;
        chat_loader_next(loader, &batch);
        for (int64_t i = 0; i < batch.B * batch.T; i++) n += batch.labels[i] != CZ_IGNORE_LABEL;
        batch.loss_divisor = n > 0 ? (float)n : 1.0f;
        TRY(engine_eval_tokens(r->engine, &batch, &loss, &n_right));
        sums[0] += (double)loss * n;
        sums[1] += n;
        sums[2] += (double)n_right;
    }
    return CZ_OK;
}

/* Mean loss and accuracy over every trained token of --eval-data. */
static cz_status sft_evaluate(struct run *r, struct evaluation *out)
{
    struct chat_loader *loader = NULL;
    double mine[3] = {0}, sums[3];
    cz_status st;
    *out = (struct evaluation){.loss = NAN};
    TRY_GOTO(open_loader(r, r->eval_chats, true, &loader), done);
    TRY_GOTO(evaluate_rows(r, loader, mine), done);
    TRY_GOTO(engine_gather_metrics(r->engine, mine, 3, sums), done);
    out->loss = sums[0] / sums[1];
    out->has_tokens = true;
    out->token_accuracy = sums[2] / sums[1];
done:
    chat_loader_close(loader);
    return st;
}

/* ---- the place ------------------------------------------------------------------------------ */

static void sft_tell(const struct run *r, struct cz_data_cursor *out)
{
    chat_loader_tell(r->chat_loader, out);
}

static cz_status sft_seek(struct run *r, const struct cz_load_result *result)
{
    if (result->has_cursor) return chat_loader_seek(r->chat_loader, &result->cursor);
    struct cz_data_cursor cursor;
    chat_loader_tell(r->chat_loader, &cursor);
    run_count_epochs(r, &cursor);
    return chat_loader_seek(r->chat_loader, &cursor);
}

static void sft_close(struct run *r)
{
    chat_loader_close(r->chat_loader);
    chat_set_close(r->chats);
    chat_set_close(r->eval_chats);
    chat_set_close(r->test_chats);
    chat_encoder_close(&r->chat);
}

const struct train_task train_task_sft = {
    .name = "sft",
    .model_task = CZ_TASK_CAUSAL_LM,
    .open_inputs = sft_open_inputs,
    .open_data = sft_open_data,
    .rows_per_epoch = sft_rows_per_epoch,
    .train_step = sft_train_step,
    .evaluate = sft_evaluate,
    .tell = sft_tell,
    .seek = sft_seek,
    .close = sft_close,
};
