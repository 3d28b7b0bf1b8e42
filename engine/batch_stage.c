#include "engine/batch_check.h"
#include "engine/engine_impl.h"

#include "base/size.h"

#include <string.h>

/* Bytes of one array of n elements, and where the next one begins. */
static size_t piece(size_t n, size_t elem_nbytes)
{
    return size_round_up(n * elem_nbytes, CHAIN_ALIGN);
}

size_t batch_stage_nbytes(int64_t B, int64_t T)
{
    size_t n = (size_t)B * (size_t)T;
    return 5 * piece(n, sizeof(int32_t)) + piece(n, 1) + CHAIN_ALIGN;
}

void batch_stage_bind(struct batch_stage *s, int64_t B, int64_t T, void *memory)
{
    unsigned char *at = memory;
    size_t n = (size_t)B * (size_t)T, step = piece(n, sizeof(int32_t));
    memset(s, 0, sizeof *s);
    s->B = B;
    s->T = T;
    s->ids = (int32_t *)(void *)at;
    s->labels = (int32_t *)(void *)(at += step);
    s->types = (int32_t *)(void *)(at += step);
    s->positions = (int32_t *)(void *)(at += step);
    s->loss_weights = (float *)(void *)(at += step);
    s->key_mask = at += step;
    s->loss = (float *)(void *)(at + piece(n, 1));
}

/* What was planned may be less than what the model takes. */
static cz_status check_shape(const struct batch_stage *s, const struct batch *b)
{
    if (b->B > s->B)
        return err_set(CZ_INVALID, 0,
                       "the batch has %lld rows; the config's train_micro_batch_size_per_gpu "
                       "planned memory for %lld",
                       (long long)b->B, (long long)s->B);
    if (b->T > s->T)
        return err_set(CZ_INVALID, 0,
                       "the batch has %lld tokens per row; the model was bounded to %lld",
                       (long long)b->T, (long long)s->T);
    return CZ_OK;
}

/* Copy an optional array; the layers see NULL when it is absent. */
static const void *stage(void *dst, const void *src, size_t nbytes)
{
    if (src) memcpy(dst, src, nbytes);
    return src ? dst : NULL;
}

cz_status batch_stage_copy(struct batch_stage *s, const struct model *model, const struct batch *b,
                           bool need_labels)
{
    TRY(check_shape(s, b));
    TRY(batch_check(model, b, need_labels));
    size_t n = (size_t)(b->B * b->T), word = n * sizeof(int32_t);
    size_t labels = model_n_classes(model) > 0 ? (size_t)b->B * sizeof(int32_t) : word;
    s->batch = (struct batch){.B = b->B,
                              .T = b->T,
                              .ids = stage(s->ids, b->ids, word),
                              .labels = stage(s->labels, b->labels, labels),
                              .types = stage(s->types, b->types, word),
                              .positions = stage(s->positions, b->positions, word),
                              .key_mask = stage(s->key_mask, b->key_mask, n),
                              .loss_weights = stage(s->loss_weights, b->loss_weights, labels),
                              .loss_divisor = b->loss_divisor,
                              .sample = b->sample};
    return CZ_OK;
}
