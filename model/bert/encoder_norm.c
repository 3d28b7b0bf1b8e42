/* A layer norm alone, between the last block and the head of an encoder whose blocks norm what they
 * read (ModernBERT). Kept for backward: the statistics. */
#include "model/bert/encoder_impl.h"

enum { NORM_W = 0, NORM_B };

static struct norm norm_of(const struct encoder_norm_hp *hp)
{
    return (struct norm){.C = hp->C, .eps = hp->eps};
}

static cz_status norm_declare(const void *hp_, struct param_list *out)
{
    const struct encoder_norm_hp *hp = hp_;
    TRY(param_list_add(out, hp->weight_name, 1, &hp->C, PARAM_INIT_ONE, 0.0f));
    if (!hp->bias_name) return CZ_OK;
    return param_list_add(out, hp->bias_name, 1, &hp->C, PARAM_INIT_ZERO, 0.0f);
}

struct statistics {
    float *mean, *rstd; /* (N) */
};

static struct statistics layout_saved(int64_t N, struct scratch *s)
{
    struct statistics k;
    k.mean = scratch_take(s, N, 1, sizeof(float));
    k.rstd = scratch_take(s, N, 1, sizeof(float));
    return k;
}

static cz_status norm_size(const void *hp_, const struct batch_shape *s, struct layer_sizes *out)
{
    const struct encoder_norm_hp *hp = hp_;
    const struct norm norm = norm_of(hp);
    struct scratch saved = {0};
    size_t op_nbytes = 0;
    *out = (struct layer_sizes){0};
    TRY(batch_shape_check("encoder norm", s));
    const int64_t N = s->B * s->T;
    out->out_nbytes = rows_nbytes(N, hp->C, dtype_size(s->dtype));
    layout_saved(N, &saved);
    if (s->training) out->saved_nbytes = saved.used;
    norm_workspace(s, &norm, N, &op_nbytes);
    return sizes_finish("encoder norm", out->out_nbytes, op_nbytes, out);
}

/* Without `out` only the statistics are wanted: y goes to the workspace. */
static cz_status norm_layer_forward(const void *hp_, const struct layer_args *a)
{
    const struct encoder_norm_hp *hp = hp_;
    const struct norm norm = norm_of(hp);
    const int64_t N = a->batch->B * a->batch->T;
    struct scratch saved = {.base = a->saved};
    struct statistics k = {0};
    if (a->mode != LAYER_EVAL) k = layout_saved(N, &saved);
    const struct norm_io io = {
        .x = a->in, .y = a->out ? a->out : a->workspace, .mean = k.mean, .rstd = k.rstd};
    return norm_forward(a, &norm, N, &io, a->params[NORM_W],
                        hp->bias_name ? a->params[NORM_B] : NULL);
}

static cz_status norm_layer_backward(const void *hp_, const struct layer_args *a)
{
    const struct encoder_norm_hp *hp = hp_;
    const struct norm norm = norm_of(hp);
    const int64_t N = a->batch->B * a->batch->T;
    struct scratch saved = {.base = a->saved};
    const struct statistics k = layout_saved(N, &saved);
    const struct op_space space = {a->workspace, a->workspace_nbytes};
    const struct norm_grad_io io = {
        .x = a->in, .dy = a->dout, .mean = k.mean, .rstd = k.rstd, .dx = a->din};
    return norm_backward(a, &norm, N, &io, a->params[NORM_W], &a->dparams[NORM_W],
                         hp->bias_name ? &a->dparams[NORM_B] : NULL, space);
}

const struct layer_class encoder_norm_class = {
    .name = "encoder_norm",
    .declare = norm_declare,
    .size = norm_size,
    .forward = norm_layer_forward,
    .backward = norm_layer_backward,
};
