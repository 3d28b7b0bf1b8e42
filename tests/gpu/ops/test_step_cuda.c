/* Claims: the optimizers' CUDA kernels give the bits of the scalar row for every dtype that it
 * takes, any size, alignment and value, whichever order threads run in; shard edges do not show;
 * nothing outside the tile is written; bad arguments are refused; launches have blocks enough and
 * no more than a grid holds, for tiles of any size. */
#include "ops/step/step_grid_impl.h"
#include "tests/support/gpu/cuda_step.h"

static struct ops scalar_row(const struct step_test *op)
{
    static const struct ops_row scalar = {"scalar", 0};
    return agree_wire(op->wire, &scalar);
}

static void run_on_device(const struct cuda_rig *rig, const struct step_test *op,
                          const struct step_tensors *t, const struct step_scalars *s, int variant)
{
    struct step_scalars *scalars = rig_put_bytes(rig, s, sizeof *s);
    ck_ok(op->run(rig->ops, t, scalars, variant));
    ck_ok(rig->dev->ops->stream_sync(rig->dev, NULL));
    rig_free_bytes(rig, scalars, sizeof *s);
}

/* ---- the same bits ----------------------------------------------------------------------------
 */

struct tile_case {
    size_t numel, offset; /* offset: each array begins elsewhere (step_tile_make) */
    size_t skip;          /* elements left out in front: all arrays begin elsewhere alike */
    int variant;
    bool special;
};

static void agree_on(const struct cuda_rig *rig, const struct step_test *op,
                     const struct step_dtypes *d, const struct tile_case *c)
{
    const struct step_scalars *s = c->variant & 1 ? &step_first : &step_middle;
    struct ops truth = scalar_row(op);
    struct step_tile want = step_tile_make(d, c->numel, 0, 11, c->special);
    struct step_tile got = step_tile_make(d, c->numel, c->offset, 11, c->special);
    struct device_tile there = tile_put(rig, &got);
    struct step_tensors part = step_slice(&want.t, c->skip, c->numel);
    ck_ok(op->run(&truth, &part, s, c->variant));
    part = step_slice(&there.t, c->skip, c->numel);
    run_on_device(rig, op, &part, s, c->variant);
    tile_get(rig, &there, &got);
    step_tile_check(&got, &want, op->name, "cuda");
    step_tile_free(&want), step_tile_free(&got);
}

/* Every variant with special values at one size; sizes, beginnings and alignments with some. */
static void agree_all(const struct cuda_rig *rig, const struct step_test *op)
{
    static const size_t numels[] = {0, 1, 3, 4, 5, 8, 255, 1023, 1024, 1025, 5003};
    for (size_t d = 0; d < CZ_ARRAY_LEN(step_dtypes); d++) {
        for (int v = 0; v < op->n_variants; v++)
            agree_on(rig, op, &step_dtypes[d],
                     &(struct tile_case){
                         .numel = 523, .skip = (size_t)v % 4, .variant = v, .special = true});
        for (size_t i = 0; i < CZ_ARRAY_LEN(numels); i++)
            agree_on(rig, op, &step_dtypes[d],
                     &(struct tile_case){.numel = numels[i],
                                         .skip = i < 3 ? 0 : (i + d) % 4,
                                         .variant = (int)(i % (size_t)op->n_variants)});
        for (size_t offset = 1; offset < 9; offset += 3)
            agree_on(rig, op, &step_dtypes[d],
                     &(struct tile_case){.numel = 301, .offset = offset, .special = offset & 1});
    }
}

CUDA_ORDERS(adam_agrees, agree_all(&rig, &step_tests[STEP_ADAM]))
CUDA_ORDERS(lion_agrees, agree_all(&rig, &step_tests[STEP_LION]))
CUDA_ORDERS(adagrad_agrees, agree_all(&rig, &step_tests[STEP_ADAGRAD]))
CUDA_ORDERS(sgd_agrees, agree_all(&rig, &step_tests[STEP_SGD]))

/* More elements than a launch has threads for: blocks take several turns. */
static void agree_large(const struct cuda_rig *rig)
{
    const size_t turn = (size_t)132 * STEP_BLOCKS_PER_MP * STEP_BLOCK * STEP_PACKS * STEP_LANES;
    for (size_t d = 0; d < 2; d++)
        agree_on(rig, &step_tests[STEP_LION], &step_dtypes[d],
                 &(struct tile_case){.numel = turn + 100003, .variant = 2});
    agree_on(rig, &step_tests[STEP_LION],
             &step_dtypes[6], /* bf16 throughout: the kernel for any dtype */
             &(struct tile_case){.numel = turn / (STEP_PACKS * STEP_LANES) + 1003, .variant = 2});
}

CUDA_ORDER(large_tiles_agree, forward, "forward", agree_large(&rig))

/* ---- shards -----------------------------------------------------------------------------------
 */

static void shards_of(const struct cuda_rig *rig, const struct step_test *op,
                      const struct step_dtypes *d, size_t n_shards)
{
    enum { NUMEL = 3001 };
    struct ops truth = scalar_row(op);
    int variant = (int)n_shards % op->n_variants;
    struct step_tile whole = step_tile_make(d, NUMEL, 0, 5, false);
    struct step_tile split = step_tile_make(d, NUMEL, 0, 5, false);
    struct device_tile there = tile_put(rig, &split);
    ck_ok(op->run(&truth, &whole.t, &step_middle, variant));
    for (size_t k = 0; k < n_shards; k++) {
        struct step_tensors part =
            step_slice(&there.t, k * NUMEL / n_shards, (k + 1) * NUMEL / n_shards);
        run_on_device(rig, op, &part, &step_middle, variant);
    }
    tile_get(rig, &there, &split);
    /* equal bits, but for NaN: a GPU's has other bits than a CPU's */
    const struct agree_tol exact = {.op = op->name};
    agree_check(&split.p, &whole.p, &exact, "shards", "p");
    agree_check(&split.states[0], &whole.states[0], &exact, "shards", "first state");
    agree_check(&split.states[1], &whole.states[1], &exact, "shards", "second state");
    agree_check(&split.out, &whole.out, &exact, "shards", "out");
    step_tile_free(&whole), step_tile_free(&split);
}

static void all_shards(const struct cuda_rig *rig)
{
    for (size_t o = 0; o < STEP_N_OPS; o++)
        for (size_t d = 0; d < CZ_ARRAY_LEN(step_dtypes); d++)
            for (size_t n_shards = 2; n_shards <= 7; n_shards += 5)
                shards_of(rig, &step_tests[o], &step_dtypes[d], n_shards);
}

CUDA_ORDER(shards_do_not_show, reverse, "reverse", all_shards(&rig))

/* ---- arguments and launches -------------------------------------------------------------------
 */

static void refuse_bad(const struct cuda_rig *rig, const struct step_test *op)
{
    struct step_scalars *s = rig_put_bytes(rig, &step_middle, sizeof step_middle);
    struct step_tile tile = step_tile_make(&step_dtypes[1], 9, 0, 5, false);
    struct device_tile there = tile_put(rig, &tile);
    struct step_tensors bad = there.t;
    bad.p = NULL;
    ck_fails(op->run(rig->ops, &bad, s, 0), CZ_INVALID);
    bad = there.t, bad.g = NULL;
    ck_fails(op->run(rig->ops, &bad, s, 0), CZ_INVALID);
    bad = there.t, bad.g_dtype = DTYPE_I32;
    ck_fails(op->run(rig->ops, &bad, s, 0), CZ_INVALID);
    bad = there.t, bad.out_dtype = DTYPE_F64;
    ck_fails(op->run(rig->ops, &bad, s, 0), CZ_INVALID);
    ck_fails(op->run(rig->ops, &there.t, NULL, 0), CZ_INVALID);
    for (size_t i = 0; i < op->n_states; i++) {
        bad = there.t, bad.states[i] = NULL;
        ck_fails(op->run(rig->ops, &bad, s, 0), CZ_INVALID);
    }
    bad = (struct step_tensors){.numel = 0};
    ck_ok(op->run(rig->ops, &bad, NULL, 0));
    tile_get(rig, &there, &tile);
    rig_free_bytes(rig, s, sizeof step_middle);
    step_tile_free(&tile);
}

static void refuse_all(const struct cuda_rig *rig)
{
    for (size_t o = 0; o < STEP_N_OPS; o++) refuse_bad(rig, &step_tests[o]);
}

CUDA_ORDER(bad_arguments_are_refused, forward, "forward", refuse_all(&rig))

/* Plain SGD neither reads nor writes a state, given or not. */
static void without_state(const struct cuda_rig *rig)
{
    struct step_tile want = step_tile_make(&step_dtypes[0], 77, 0, 3, false);
    struct step_tile got = step_tile_make(&step_dtypes[0], 77, 0, 3, false);
    struct ops truth = scalar_row(&step_tests[STEP_SGD]);
    struct device_tile there = tile_put(rig, &got);
    there.t.states[0] = NULL, want.t.states[0] = NULL;
    ck_ok(step_tests[STEP_SGD].run(&truth, &want.t, &step_middle, 12));
    run_on_device(rig, &step_tests[STEP_SGD], &there.t, &step_middle, 12);
    tile_get(rig, &there, &got);
    step_tile_check(&got, &want, "sgd", "cuda");
    step_tile_free(&want), step_tile_free(&got);
}

CUDA_ORDER(plain_sgd_needs_no_state, forward, "forward", without_state(&rig))

START_TEST(launches_fit_tiles_of_any_size)
{
    static const size_t numels[] = {0,          1,          2047,        2048,        2049,
                                    1u << 20,   0x7fffffff, 0x80000000u, 0xffffffffu, 0x100000000u,
                                    1ull << 40, SIZE_MAX};
    static const size_t per_blocks[] = {1, STEP_BLOCK, (size_t)STEP_BLOCK * STEP_PACKS};
    for (size_t i = 0; i < CZ_ARRAY_LEN(numels); i++)
        for (size_t k = 0; k < CZ_ARRAY_LEN(per_blocks); k++)
            for (int n_mp = 0; n_mp <= 1024; n_mp = n_mp * 2 + 1) {
                size_t n = step_blocks(numels[i], per_blocks[k], n_mp);
                size_t most = (size_t)(n_mp ? n_mp : 1) * STEP_BLOCKS_PER_MP;
                ck_assert(n >= 1 && n <= most && n <= 0x7fffffff);
                /* enough for everything, or as many as the device has a use for */
                ck_assert(n == most || (n - 1) * per_blocks[k] <= numels[i]);
                ck_assert(n == most || numels[i] <= n * per_blocks[k]);
            }
}
END_TEST

TEST_MAIN("cuda optimizers", CUDA_ORDERED(adam_agrees), CUDA_ORDERED(lion_agrees),
          CUDA_ORDERED(adagrad_agrees), CUDA_ORDERED(sgd_agrees), large_tiles_agree_forward,
          shards_do_not_show_reverse, bad_arguments_are_refused_forward,
          plain_sgd_needs_no_state_forward, launches_fit_tiles_of_any_size)
