/* What the tests of all optimizer kernels share: tiles with the same contents for every row, and
 * the claims that hold for each of them: rows agree to the bit, for any size, alignment, dtype and
 * value; shard edges, tile edges and thread counts do not show.
 *
 * A test describes its op in a struct step_test and calls step_test_*(). */
#ifndef CZ_TESTS_STEP_AGREE_H
#define CZ_TESTS_STEP_AGREE_H

#include "ops/step/step_impl.h"
#include "tests/support/agree.h"

#include <omp.h>

struct step_test {
    const char *name;
    size_t n_states;
    int n_variants; /* modes and hyper-parameters that `run` knows */
    cz_status (*wire)(struct ops *ops, uint32_t features);
    const struct ops_row *(*row)(size_t idx); /* NULL past the last */
    /* The whole step on t; variant in [0, n_variants). */
    cz_status (*run)(struct ops *ops, const struct step_tensors *t, const struct step_scalars *s,
                     int variant);
    bool fp32_states; /* refuses others */
};

struct step_dtypes {
    enum cz_dtype p, g, state, out;
    bool has_out;
};

static const struct step_dtypes step_dtypes[] = {
    /* masters, gradients, states, and the parameter where the masters are not it: fp32; 16 bits;
     * gradients accumulated in fp32 (data_types.grad_accum_dtype) */
    {DTYPE_F32, DTYPE_F32, DTYPE_F32, DTYPE_F32, false},
    {DTYPE_F32, DTYPE_BF16, DTYPE_F32, DTYPE_BF16, true},
    {DTYPE_F32, DTYPE_F16, DTYPE_F32, DTYPE_F16, true},
    {DTYPE_F32, DTYPE_F32, DTYPE_F32, DTYPE_BF16, true},
    {DTYPE_F32, DTYPE_F32, DTYPE_F32, DTYPE_F16, true},
    /* *_master_weights_and_grads, states in fp32 or not */
    {DTYPE_BF16, DTYPE_BF16, DTYPE_F32, DTYPE_F32, false},
    {DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, false},
    {DTYPE_F16, DTYPE_F16, DTYPE_F32, DTYPE_F32, false},
    {DTYPE_F16, DTYPE_F16, DTYPE_F16, DTYPE_F16, false},
    {DTYPE_BF16, DTYPE_F32, DTYPE_BF16, DTYPE_F32, false},
    {DTYPE_F16, DTYPE_F32, DTYPE_F16, DTYPE_F32, false},
    /* what nothing asks for today */
    {DTYPE_F32, DTYPE_BF16, DTYPE_F32, DTYPE_F32, false},
    {DTYPE_F32, DTYPE_F32, DTYPE_BF16, DTYPE_F16, true},
};

static inline bool step_takes(const struct step_test *op, const struct step_dtypes *d)
{
    return !op->fp32_states || d->state == DTYPE_F32;
}

/* Values of some step in the middle of a run, and of a first one. */
static const struct step_scalars step_middle = {.grad_scale = 0.37f,
                                                .lr = 3e-3f,
                                                .beta1 = 0.9f,
                                                .beta2 = 0.95f,
                                                .inv_bias1 = 1.1f,
                                                .inv_sqrt_bias2 = 1.3f,
                                                .step_size = 2.5e-3f,
                                                .is_first = 0,
                                                .step = 7};
static const struct step_scalars step_first = {.grad_scale = 1,
                                               .lr = 1e-2f,
                                               .beta1 = 0.9f,
                                               .beta2 = 0.999f,
                                               .inv_bias1 = 10,
                                               .inv_sqrt_bias2 = 31.622776f,
                                               .step_size = 1e-2f,
                                               .is_first = 1,
                                               .step = 1};

struct step_tile {
    struct agree_buf p, g, states[STEP_STATES_MAX], out;
    struct step_tensors t;
};

static inline void step_fill(struct agree_buf *b, uint64_t seed, float range, bool special)
{
    if (special)
        agree_fill_special(b, seed, range);
    else
        agree_fill(b, seed, range);
}

/* The same contents for the same seed, whatever the offset. */
static inline struct step_tile step_tile_make(const struct step_dtypes *d, size_t numel,
                                              size_t offset, uint64_t seed, bool special)
{
    struct step_tile tile = {
        .p = agree_buf_make(d->p, numel, offset),
        .g = agree_buf_make(d->g, numel, offset / 2),
        .out = agree_buf_make(d->out, numel, offset / 3),
    };
    step_fill(&tile.p, seed, 1.0f, special);
    step_fill(&tile.g, seed + 1, 0.5f, special);
    for (size_t i = 0; i < STEP_STATES_MAX; i++) {
        tile.states[i] = agree_buf_make(d->state, numel, offset);
        step_fill(&tile.states[i], seed + 2 + i, 0.1f, special);
    }
    if (!special) /* second moments and sums of squares are not negative */
        for (size_t i = 0; i < numel; i++)
            agree_set(&tile.states[1], i, fabsf(agree_get(&tile.states[1], i)));
    tile.t = (struct step_tensors){
        .numel = numel,
        .p = tile.p.p,
        .p_dtype = d->p,
        .g = tile.g.p,
        .g_dtype = d->g,
        .states = {tile.states[0].p, tile.states[1].p},
        .state_dtype = d->state,
        .out = d->has_out ? tile.out.p : NULL,
        .out_dtype = d->out,
    };
    return tile;
}

static inline void step_tile_free(struct step_tile *tile)
{
    agree_buf_free(&tile->p), agree_buf_free(&tile->g), agree_buf_free(&tile->out);
    for (size_t i = 0; i < STEP_STATES_MAX; i++) agree_buf_free(&tile->states[i]);
}

/* Elements [begin, end) of a tile's tensors. */
static inline struct step_tensors step_slice(const struct step_tensors *t, size_t begin, size_t end)
{
    struct step_tensors s = *t;
    s.numel = end - begin;
    s.p = (char *)t->p + begin * dtype_size(t->p_dtype);
    s.g = (const char *)t->g + begin * dtype_size(t->g_dtype);
    for (size_t i = 0; i < STEP_STATES_MAX; i++)
        s.states[i] = (char *)t->states[i] + begin * dtype_size(t->state_dtype);
    if (t->out) s.out = (char *)t->out + begin * dtype_size(t->out_dtype);
    return s;
}

/* Bits must be equal; NaN must meet NaN (processors choose the payload by operand order). */
static inline void step_tile_check(const struct step_tile *got, const struct step_tile *want,
                                   const char *op, const char *what)
{
    const struct agree_tol tol = {.op = op, .why = "one written sequence: equal to the bit"};
    agree_check(&got->p, &want->p, &tol, what, "p");
    agree_check(&got->g, &want->g, &tol, what, "g");
    agree_check(&got->states[0], &want->states[0], &tol, what, "first state");
    agree_check(&got->states[1], &want->states[1], &tol, what, "second state");
    agree_check(&got->out, &want->out, &tol, what, "out");
}

static inline void step_agree_case(const struct step_test *op, struct ops *ops, struct ops *truth,
                                   const struct step_dtypes *d, size_t numel, size_t offset,
                                   int variant, bool special)
{
    const struct step_scalars *s = variant & 1 ? &step_first : &step_middle;
    struct step_tile want = step_tile_make(d, numel, 0, 11, special);
    struct step_tile got = step_tile_make(d, numel, offset, 11, special);
    ck_ok(op->run(truth, &want.t, s, variant));
    ck_ok(op->run(ops, &got.t, s, variant));
    step_tile_check(&got, &want, op->name, ops->isa);
    step_tile_free(&want), step_tile_free(&got);
}

/* Claim: every row gives the bits of the definition. */
static inline void step_test_rows(const struct step_test *op)
{
    size_t numels[AGREE_NUMELS];
    size_t n = agree_numels(AGREE_WIDTH, numels);
    struct ops truth = agree_wire(op->wire, op->row(0));
    for (size_t row = 1; op->row(row) && agree_row_runs(op->row(row)); row++) {
        struct ops ops = agree_wire(op->wire, op->row(row));
        for (size_t d = 0; d < CZ_ARRAY_LEN(step_dtypes); d++)
            for (int v = 0; v < op->n_variants; v++)
                for (size_t i = 0; i < n && step_takes(op, &step_dtypes[d]); i++) {
                    if (numels[i] > 1000 && (v > 0 || d > 2)) continue;
                    size_t step = numels[i] > 100 ? 7 : 1;
                    for (size_t offset = 0; offset < AGREE_WIDTH; offset += step)
                        step_agree_case(op, &ops, &truth, &step_dtypes[d], numels[i], offset, v,
                                        offset & 1);
                }
    }
}

/* Claim: a buffer updated whole, and in n shards, ends with the same bytes. */
static inline void step_test_shards(const struct step_test *op)
{
    const size_t numel = 10007;
    for (size_t row = 0; op->row(row) && agree_row_runs(op->row(row)); row++) {
        struct ops ops = agree_wire(op->wire, op->row(row));
        for (size_t d = 0; d < CZ_ARRAY_LEN(step_dtypes); d++)
            for (size_t n_shards = 2; n_shards <= 7 && step_takes(op, &step_dtypes[d]);
                 n_shards++) {
                int variant = (int)n_shards % op->n_variants;
                struct step_tile whole = step_tile_make(&step_dtypes[d], numel, 0, 5, false);
                struct step_tile split = step_tile_make(&step_dtypes[d], numel, 0, 5, false);
                ck_ok(op->run(&ops, &whole.t, &step_middle, variant));
                for (size_t k = 0; k < n_shards; k++) {
                    struct step_tensors part =
                        step_slice(&split.t, k * numel / n_shards, (k + 1) * numel / n_shards);
                    ck_ok(op->run(&ops, &part, &step_middle, variant));
                }
                agree_same(&split.p, &whole.p, "p");
                agree_same(&split.states[0], &whole.states[0], "first state");
                agree_same(&split.states[1], &whole.states[1], "second state");
                agree_same(&split.out, &whole.out, "out");
                step_tile_free(&whole), step_tile_free(&split);
            }
    }
}

/* Claim: the number of threads does not show. */
static inline void step_test_threads(const struct step_test *op)
{
    const size_t numel = 5 * STEP_GRAIN + 731; /* enough for five threads, cut where they fall */
    const int n_before = omp_get_max_threads();
    for (size_t row = 0; op->row(row) && agree_row_runs(op->row(row)); row++) {
        struct ops ops = agree_wire(op->wire, op->row(row));
        for (size_t d = 0; d < CZ_ARRAY_LEN(step_dtypes); d++) {
            if (!step_takes(op, &step_dtypes[d])) continue;
            struct step_tile one = step_tile_make(&step_dtypes[d], numel, 0, 5, false);
            omp_set_num_threads(1);
            ck_ok(op->run(&ops, &one.t, &step_middle, 0));
            for (int n_threads = 2; n_threads <= 5; n_threads++) {
                struct step_tile many = step_tile_make(&step_dtypes[d], numel, 3, 5, false);
                omp_set_num_threads(n_threads);
                ck_ok(op->run(&ops, &many.t, &step_middle, 0));
                agree_same(&many.p, &one.p, "p");
                agree_same(&many.states[0], &one.states[0], "first state");
                agree_same(&many.states[1], &one.states[1], "second state");
                agree_same(&many.out, &one.out, "out");
                step_tile_free(&many);
            }
            step_tile_free(&one);
        }
    }
    omp_set_num_threads(n_before);
}

/* Claim: missing tensors and dtypes that kernels do not take are refused; nothing is nothing. */
static inline void step_test_arguments(const struct step_test *op)
{
    struct ops ops = agree_wire(op->wire, op->row(0));
    struct step_tile tile = step_tile_make(&step_dtypes[1], 9, 0, 5, false);
    struct step_tensors bad = tile.t;
    bad.p = NULL;
    ck_fails(op->run(&ops, &bad, &step_middle, 0), CZ_INVALID);
    bad = tile.t, bad.g = NULL;
    ck_fails(op->run(&ops, &bad, &step_middle, 0), CZ_INVALID);
    bad = tile.t, bad.g_dtype = DTYPE_I32;
    ck_fails(op->run(&ops, &bad, &step_middle, 0), CZ_INVALID);
    bad = tile.t, bad.out_dtype = DTYPE_F64;
    ck_fails(op->run(&ops, &bad, &step_middle, 0), CZ_INVALID);
    ck_fails(op->run(&ops, &tile.t, NULL, 0), CZ_INVALID);
    for (size_t i = 0; i < op->n_states; i++) {
        bad = tile.t, bad.states[i] = NULL;
        ck_fails(op->run(&ops, &bad, &step_middle, 0), CZ_INVALID);
    }
    bad = (struct step_tensors){.numel = 0};
    ck_ok(op->run(&ops, &bad, &step_middle, 0));
    step_tile_free(&tile);
}

/* All rows that run here, updating one fp32 tensor. */
static inline void step_run_fp32(const struct step_test *op, size_t row, float *p, const float *g,
                                 float *s0, float *s1, size_t numel, const struct step_scalars *s,
                                 int variant)
{
    struct ops ops = agree_wire(op->wire, op->row(row));
    struct step_tensors t = {.numel = numel, .p = p, .g = g, .states = {s0, s1}};
    ck_ok(op->run(&ops, &t, s, variant));
}

#endif
