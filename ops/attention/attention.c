/* Attention on the host: tasks, threads, choice of row. A task is a block of queries (forward, dq)
 * or of keys (dk, dv) of one head, so no two tasks write the same memory, and results do not depend
 * on the number of threads. */
#include "ops/attention/attention_impl.h"
#include "ops/table_impl.h"

#include "base/size.h"

#define ALIGN ((size_t)64)

static const struct attention_row *const rows[] = {
    &attention_scalar,
    &attention_avx2,
    &attention_avx512,
};

const struct attention_row *const *attention_rows(size_t *n)
{
    *n = CZ_ARRAY_LEN(rows);
    return rows;
}

/* ---- tasks ----------------------------------------------------------------------------------- */

enum kind { FORWARD, BACKWARD_WHOLE, BACKWARD_Q, BACKWARD_K };

struct tasks {
    enum kind kind;
    int64_t n_heads, n_blocks; /* per batch row, per head */
    int64_t block;
    int64_t n;
};

static int64_t blocks_of(int64_t T, int64_t block)
{
    return (T + block - 1) / block;
}

static struct tasks tasks_of(const struct attention_args *a, enum kind kind)
{
    struct tasks t = {.kind = kind, .n_heads = a->H, .n_blocks = 1, .block = ATTENTION_BLOCK};
    if (kind == FORWARD) t.block = ATTENTION_FORWARD_Q;
    if (kind == FORWARD || kind == BACKWARD_Q) t.n_blocks = blocks_of(a->Tq, t.block);
    if (kind == BACKWARD_K) t.n_blocks = blocks_of(a->Tk, t.block);
    if (kind == BACKWARD_K || kind == BACKWARD_WHOLE) t.n_heads = a->G;
    t.n = a->B * t.n_heads * t.n_blocks;
    return t;
}

/* The whole of backward in one task per key head computes scores once instead of twice; only worth
 * it where that keeps all threads busy. */
static bool runs_whole(const struct attention_row *row, const struct attention_args *a)
{
    return row->backward_whole && a->B * a->G >= threads_count();
}

static int n_parts_of(const struct tasks *t)
{
    int64_t n_threads = threads_count();
    return (int)(t->n < n_threads ? t->n : n_threads);
}

static size_t scratch_nbytes(const struct attention_row *row, const struct attention_args *a,
                             bool backward)
{
    bool whole = backward && runs_whole(row, a);
    return size_round_up(row->scratch_numel(a, backward, whole) * sizeof(float), ALIGN);
}

/* Bytes of δ, in front of the scratch. */
static size_t delta_nbytes(const struct attention_args *a)
{
    return size_round_up((size_t)(a->B * a->H * a->Tq) * sizeof(float), ALIGN);
}

/* Threads take the next task when they are done with one: causal blocks differ in length. */
static void run(const struct attention_row *row, const struct attention_args *a, enum kind kind)
{
    const struct tasks tasks = tasks_of(a, kind);
    const size_t nbytes = scratch_nbytes(row, a, kind != FORWARD);
    char *scratch = (char *)size_round_up((uintptr_t)a->workspace, ALIGN);
    float *delta = (float *)(void *)scratch;
    if (kind != FORWARD) scratch += delta_nbytes(a);
    int n_parts = n_parts_of(&tasks);
    int64_t next = 0;
#pragma omp parallel for schedule(static, 1) if (n_parts > 1)
    for (int part = 0; part < n_parts; part++) {
        float *own = (float *)(void *)(scratch + (size_t)part * nbytes);
        int64_t t;
        while ((t = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED)) < tasks.n) {
            /* Task t: causal blocks of later queries are longer, so they come first; of keys, the
             * earlier. */
            int64_t heads = a->B * tasks.n_heads, slow_first = t / heads;
            int64_t block = tasks.kind == BACKWARD_K ? slow_first : tasks.n_blocks - 1 - slow_first;
            int64_t b = t % heads / tasks.n_heads, h = t % tasks.n_heads;
            int64_t end = tasks.kind == BACKWARD_K ? a->Tk : a->Tq;
            int64_t i0 = block * tasks.block, i1 = i0 + tasks.block < end ? i0 + tasks.block : end;
            switch (tasks.kind) {
            case FORWARD: row->forward(a, b, h, i0, i1, own); break;
            case BACKWARD_WHOLE: row->backward_whole(a, b, h, own); break;
            case BACKWARD_Q: row->backward_q(a, b, h, i0, i1, delta, own); break;
            case BACKWARD_K: row->backward_k(a, b, h, i0, i1, delta, own); break;
            }
        }
    }
}

/* ---- entry points ---------------------------------------------------------------------------- */

static size_t host_attention_workspace(const struct ops *ops, const struct attention_args *a,
                                       bool backward)
{
    const struct attention_row *row = ops->attention_row;
    int n_parts = 0;
    for (int kind = backward ? BACKWARD_WHOLE : FORWARD; kind <= (backward ? BACKWARD_K : FORWARD);
         kind++) {
        struct tasks tasks = tasks_of(a, (enum kind)kind);
        if (n_parts_of(&tasks) > n_parts) n_parts = n_parts_of(&tasks);
    }
    const size_t scratch = (size_t)n_parts * scratch_nbytes(row, a, backward) + ALIGN;
    if (!backward) return scratch;
    return size_round_up(attention_own_dq_scores(a) * sizeof(float), ALIGN) + delta_nbytes(a) +
           scratch;
}

/* dtable (R,H) = Σ of dq_scores (H,B,Tq,R): over the queries of a batch row, then over these. */
static void sum_table(const struct attention_args *a)
{
    const struct attention_positions *p = &a->positions;
    const int64_t R = p->n_buckets;
#pragma omp parallel for schedule(static)
    for (int64_t h = 0; h < a->H; h++)
        for (int64_t r = 0; r < R; r++) {
            float total = 0;
            for (int64_t b = 0; b < a->B; b++) {
                const float *x = p->dq_scores + attention_q_scores_at(a, b, h, 0) + r;
                float sum = 0;
                for (int64_t t = 0; t < a->Tq; t++) sum += x[t * R];
                total += sum;
            }
            p->dtable[r * a->H + h] = total;
        }
}

static cz_status attention_forward(struct ops *ops, struct dev_stream *stream,
                                   const struct attention_args *a)
{
    (void)stream;
    if (a->B == 0 || a->Tq == 0 || a->H == 0) return CZ_OK;
    TRY(attention_check(a, false, host_attention_workspace(ops, a, false)));
    TRY(attention_check_documents(a));
    run(ops->attention_row, a, FORWARD);
    return CZ_OK;
}

static cz_status attention_backward(struct ops *ops, struct dev_stream *stream,
                                    const struct attention_args *a)
{
    (void)stream;
    if (a->B == 0 || a->H == 0 || (a->Tq == 0 && a->Tk == 0)) return CZ_OK;
    TRY(attention_check(a, true, host_attention_workspace(ops, a, true)));
    TRY(attention_check_documents(a));
    struct attention_args args = *a;
    const size_t n_scores = attention_own_dq_scores(a);
    if (n_scores > 0) {
        char *own = (char *)size_round_up((uintptr_t)a->workspace, ALIGN);
        args.positions.dq_scores = (float *)(void *)own;
        args.workspace = own + size_round_up(n_scores * sizeof(float), ALIGN);
    }
    if (runs_whole(ops->attention_row, &args)) {
        run(ops->attention_row, &args, BACKWARD_WHOLE);
    } else {
        run(ops->attention_row, &args, BACKWARD_Q);
        run(ops->attention_row, &args, BACKWARD_K);
    }
    if (args.positions.n_buckets > 0 && args.positions.dtable) sum_table(&args);
    return CZ_OK;
}

size_t ops_attention_workspace(const struct ops *ops, const struct attention_args *a, bool backward)
{
    return ops->attention_workspace ? ops->attention_workspace(ops, a, backward) : 0;
}

cz_status attention_wire(struct ops *ops, uint32_t features)
{
    ops->attention_row = rows[ops_row_pick(rows, CZ_ARRAY_LEN(rows), features)];
    ops->attention_forward = attention_forward;
    ops->attention_backward = attention_backward;
    ops->attention_workspace = host_attention_workspace;
    return CZ_OK;
}
