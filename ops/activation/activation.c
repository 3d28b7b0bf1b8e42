/* Activations on the host: checks, threads, choice of row. */
#include "ops/activation/activation_impl.h"
#include "ops/table_impl.h"

static const struct activation_row *const rows[] = {
    &activation_scalar,
    &activation_avx2,
    &activation_avx512,
};

const struct activation_row *const *activation_rows(size_t *n)
{
    *n = CZ_ARRAY_LEN(rows);
    return rows;
}

/* exp makes an element cost a few ns at most: threads pay off earlier than for a copy. */
#define ACTIVATION_GRAIN ((size_t)2048)

static void run(const struct activation_args *a,
                void (*piece)(const struct activation_args *, size_t, size_t))
{
    OPS_IN_PARTS(ops_n_parts(a->numel, ACTIVATION_GRAIN), a->numel, OPS_PART_UNIT,
                 piece(a, begin, end));
}

static cz_status forward(struct ops *ops, struct dev_stream *stream,
                         const struct activation_args *a)
{
    (void)stream;
    TRY(activation_check(a, "activation_forward", a->y != NULL));
    run(a, ops->activation_row->forward);
    return CZ_OK;
}

static cz_status backward(struct ops *ops, struct dev_stream *stream,
                          const struct activation_args *a)
{
    (void)stream;
    TRY(activation_check(a, "activation_backward", a->dy && a->dx));
    run(a, ops->activation_row->backward);
    return CZ_OK;
}

/* Elements [begin, end) of the dense (N,C) result, row by row, because the inputs have a row
 * distance of their own. */
static void swiglu_piece(const struct swiglu_args *a, size_t begin, size_t end,
                         void (*piece)(const struct swiglu_args *, int64_t, size_t, size_t))
{
    size_t C = (size_t)a->C;
    while (begin < end) {
        size_t row = begin / C, first = begin - row * C;
        size_t last = end - row * C < C ? end - row * C : C;
        piece(a, (int64_t)row, first, last);
        begin = row * C + last;
    }
}

static void run_swiglu(const struct swiglu_args *a,
                       void (*piece)(const struct swiglu_args *, int64_t, size_t, size_t))
{
    size_t numel = (size_t)(a->N * a->C);
    OPS_IN_PARTS(ops_n_parts(numel, ACTIVATION_GRAIN), numel, OPS_PART_UNIT,
                 swiglu_piece(a, begin, end, piece));
}

static cz_status swiglu_forward(struct ops *ops, struct dev_stream *stream,
                                const struct swiglu_args *a)
{
    (void)stream;
    TRY(swiglu_check(a, "swiglu_forward", a->y != NULL));
    run_swiglu(a, ops->activation_row->swiglu_forward);
    return CZ_OK;
}

static cz_status swiglu_backward(struct ops *ops, struct dev_stream *stream,
                                 const struct swiglu_args *a)
{
    (void)stream;
    TRY(swiglu_check(a, "swiglu_backward", a->dy && a->dgate && a->dup));
    run_swiglu(a, ops->activation_row->swiglu_backward);
    return CZ_OK;
}

cz_status activation_wire(struct ops *ops, uint32_t features)
{
    ops->activation_row = rows[ops_row_pick(rows, CZ_ARRAY_LEN(rows), features)];
    ops->activation_forward = forward;
    ops->activation_backward = backward;
    ops->swiglu_forward = swiglu_forward;
    ops->swiglu_backward = swiglu_backward;
    return CZ_OK;
}
