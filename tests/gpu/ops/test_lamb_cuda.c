/* Claims: Lamb's CUDA kernels give the moments, the parameters and, after lamb_sum(), the sums of
 * the scalar row to the bit, for every dtype, alignment, cut into segments and value, whichever
 * order threads run in; what is outside the segments stays; sums of tiles add up; bad arguments
 * are refused; batches of segments cover every element once, whatever the sizes. */
#include "ops/lamb/lamb_batch_impl.h"
#include "ops/lamb/lamb_impl.h"
#include "tests/support/gpu/cuda_step.h"

enum { TENSORS_MAX = 200 };

struct lamb_case {
    size_t numel, offset, skip;
    const struct lamb_segment *segments; /* of the tile without `skip` */
    size_t n_segments;
    int variant;
    bool special;
    int spread; /* of magnitudes over many grids: 1 everywhere, 2 from block to block */
};

static struct lamb_args args_of(const struct step_tensors *t, const struct step_scalars *s,
                                const struct lamb_case *c)
{
    return (struct lamb_args){.t = *t,
                              .scalars = s,
                              .eps = 1e-6f,
                              .weight_decay = c->variant & 2 ? 0.01f : 0,
                              .eps_inside_sqrt = c->variant & 4,
                              .segments = c->segments,
                              .n_segments = c->n_segments};
}

static void same_sums(const struct lamb_sums *got, const struct lamb_sums *want)
{
    for (size_t i = 0; i < TENSORS_MAX; i++) {
        const double pairs[2][2] = {{lamb_sum(got[i].p), lamb_sum(want[i].p)},
                                    {lamb_sum(got[i].u), lamb_sum(want[i].u)}};
        for (int k = 0; k < 2; k++) {
            if (isnan(pairs[k][0]) && isnan(pairs[k][1])) continue;
            agree_assert(memcmp(&pairs[k][0], &pairs[k][1], sizeof(double)) == 0,
                         "tensor %zu, sum of %s: %a, row 0 gives %a", i, k ? "u" : "p", pairs[k][0],
                         pairs[k][1]);
        }
    }
}

/* Sums begin with what an earlier tile left. */
static void sums_begin(struct lamb_sums *sums)
{
    memset(sums, 0, TENSORS_MAX * sizeof *sums);
    for (size_t i = 0; i < TENSORS_MAX; i += 3) {
        lamb_square_add(sums[i].p, 0.25f * (float)i);
        lamb_square_add(sums[i].u, i % 2 ? 1e-20f : 3e7f);
    }
}

static void both_passes_on_device(const struct cuda_rig *rig, const struct lamb_case *c,
                                  const struct step_tensors *t, const struct step_scalars *s,
                                  struct lamb_sums *sums, const float *ratios)
{
    struct device *dev = rig->dev;
    struct step_scalars *d_scalars = rig_put_bytes(rig, s, sizeof *s);
    struct lamb_sums *d_sums = rig_put_bytes(rig, sums, TENSORS_MAX * sizeof *sums);
    float *d_ratios = rig_put_bytes(rig, ratios, TENSORS_MAX * sizeof *ratios);
    struct lamb_args args = args_of(t, d_scalars, c);
    args.sums = d_sums, args.ratios = d_ratios;
    ck_ok(ops_lamb_moments(rig->ops, rig->stream, &args));
    ck_ok(ops_lamb_apply(rig->ops, rig->stream, &args));
    rig_get_bytes(rig, d_sums, sums, TENSORS_MAX * sizeof *sums);
    dev->ops->mem_free(dev, d_scalars, sizeof *s);
    dev->ops->mem_free(dev, d_sums, TENSORS_MAX * sizeof *sums);
    dev->ops->mem_free(dev, d_ratios, TENSORS_MAX * sizeof *ratios);
}

static void agree_on(const struct cuda_rig *rig, const struct step_dtypes *d,
                     const struct lamb_case *c)
{
    static const struct ops_row scalar = {"scalar", 0};
    static struct lamb_sums sums[2][TENSORS_MAX];
    float ratios[TENSORS_MAX];
    const struct step_scalars *s = c->variant & 1 ? &step_first : &step_middle;
    struct ops truth = agree_wire(lamb_wire, &scalar);
    struct step_tile want = step_tile_make(d, c->numel, 0, 11, c->special);
    struct step_tile got = step_tile_make(d, c->numel, c->offset, 11, c->special);
    for (size_t i = 0; c->spread && i < c->numel; i++) {
        size_t by = c->spread == 1 ? agree_random(3, i) % 80 : agree_random(3, i / 1024) % 80;
        float p = ldexpf(agree_get(&want.p, i), (int)by - 60);
        agree_set(&want.p, i, p), agree_set(&got.p, i, p);
    }
    struct device_tile there = tile_put(rig, &got);
    struct step_tensors part = step_slice(&want.t, c->skip, c->numel);
    struct lamb_args args = args_of(&part, s, c);
    sums_begin(sums[0]), sums_begin(sums[1]);
    args.sums = sums[0], args.ratios = ratios;
    ck_ok(ops_lamb_moments(&truth, NULL, &args));
    for (size_t i = 0; i < TENSORS_MAX; i++) ratios[i] = lamb_ratio(&sums[0][i], 0.01, 10);
    ck_ok(ops_lamb_apply(&truth, NULL, &args));
    part = step_slice(&there.t, c->skip, c->numel);
    both_passes_on_device(rig, c, &part, s, sums[1], ratios);
    tile_get(rig, &there, &got);
    same_sums(sums[1], sums[0]);
    step_tile_check(&got, &want, "lamb", "cuda");
    step_tile_free(&want), step_tile_free(&got);
}

static bool takes(const struct step_dtypes *d)
{
    return d->state == DTYPE_F32;
}

static void agree_all(const struct cuda_rig *rig)
{
    static const size_t numels[] = {0, 1, 3, 4, 5, 1023, 1025, 2311};
    for (size_t d = 0; d < CZ_ARRAY_LEN(step_dtypes); d++) {
        if (!takes(&step_dtypes[d])) continue;
        for (int v = 0; v < 8; v++) {
            const struct lamb_segment two[] = {{0, 200, 1}, {201, 523, 0}};
            agree_on(rig, &step_dtypes[d],
                     &(struct lamb_case){523, 0, 0, two, 2, v, v & 1, v & 2 ? 1 : 0});
        }
        for (size_t i = 0; i < CZ_ARRAY_LEN(numels); i++) {
            size_t skip = numels[i] > 3 ? i % 4 : 0;
            const struct lamb_segment one = {0, numels[i] - skip, 7};
            agree_on(rig, &step_dtypes[d],
                     &(struct lamb_case){numels[i], 0, skip, &one, 1, 2, false, 1});
            agree_on(rig, &step_dtypes[d],
                     &(struct lamb_case){numels[i], i, 0, &(struct lamb_segment){0, numels[i], 3},
                                         1, 0, i & 1, 0});
        }
    }
}

CUDA_ORDERS(lamb_agrees, agree_all(&rig))

/* More segments than a launch takes, empty ones, tensors that come twice, ragged edges. */
static void many_segments(const struct cuda_rig *rig)
{
    struct lamb_segment segments[TENSORS_MAX];
    size_t at = 0;
    for (size_t i = 0; i < TENSORS_MAX; i++) {
        size_t numel = agree_random(17, i) % 37 * (i % 5 != 0);
        segments[i] = (struct lamb_segment){at, at + numel, i % 7 ? i : i / 2};
        at += numel + (i % 11 == 3);
    }
    for (size_t d = 0; d < 3; d++)
        agree_on(rig, &step_dtypes[d],
                 &(struct lamb_case){at, 0, 0, segments, TENSORS_MAX, 2, d == 1, 1});
}

CUDA_ORDERS(many_segments_agree, many_segments(&rig))

/* Segments of several blocks each, whose largest squares differ. */
static void several_blocks(const struct cuda_rig *rig)
{
    const struct lamb_segment segments[] = {{0, 9001, 0}, {9001, 20011, 1}};
    for (int spread = 0; spread < 3; spread++)
        agree_on(rig, &step_dtypes[1],
                 &(struct lamb_case){20011, 0, 0, segments, 2, 2, false, spread});
    agree_on(rig, &step_dtypes[5], &(struct lamb_case){20011, 1, 0, segments, 2, 0, true, 2});
}

CUDA_ORDERS(several_blocks_agree, several_blocks(&rig))

/* More blocks of one tensor than a block has threads: each adds up several partial sums. */
static void many_blocks(const struct cuda_rig *rig)
{
    const struct lamb_segment one = {0, 700 * 1024, 9};
    agree_on(rig, &step_dtypes[0], &(struct lamb_case){one.end, 0, 0, &one, 1, 2, false, 2});
}

CUDA_ORDER(many_blocks_agree, random, "random:1", many_blocks(&rig))

static void refuse_bad(const struct cuda_rig *rig)
{
    float p[9], ratios[1];
    struct lamb_sums sums;
    struct lamb_segment bad[] = {{0, 5, 0}, {4, 9, 0}};
    struct lamb_args args = {.t = {.numel = 9, .p = p, .g = p, .states = {p, p}},
                             .scalars = &step_middle,
                             .segments = bad,
                             .n_segments = 2,
                             .sums = &sums,
                             .ratios = ratios};
    ck_fails(ops_lamb_moments(rig->ops, NULL, &args), CZ_INVALID);
    bad[1] = (struct lamb_segment){5, 10, 0};
    ck_fails(ops_lamb_apply(rig->ops, NULL, &args), CZ_INVALID);
    bad[1] = (struct lamb_segment){5, 9, 0};
    args.sums = NULL, args.ratios = NULL;
    ck_fails(ops_lamb_moments(rig->ops, NULL, &args), CZ_INVALID);
    ck_fails(ops_lamb_apply(rig->ops, NULL, &args), CZ_INVALID);
    args.segments = NULL;
    ck_fails(ops_lamb_apply(rig->ops, NULL, &args), CZ_INVALID);
    args.t.state_dtype = DTYPE_BF16;
    ck_fails(ops_lamb_moments(rig->ops, NULL, &args), CZ_UNSUPPORTED);
    args.t.states[1] = NULL;
    ck_fails(ops_lamb_moments(rig->ops, NULL, &args), CZ_INVALID);
}

CUDA_ORDER(bad_arguments_are_refused, forward, "forward", refuse_bad(&rig))

/* Blocks of a batch, one after another, are its segments without a gap. */
static void check_batch(const struct lamb_batch *b)
{
    for (unsigned s = 0; s < b->n; s++) {
        size_t blocks = b->first_block[s + 1] - b->first_block[s];
        ck_assert(b->end[s] > b->begin[s] && blocks >= 1);
        ck_assert((blocks - 1) * b->span < b->end[s] - b->begin[s]);
        ck_assert(blocks * b->span >= b->end[s] - b->begin[s]);
        for (unsigned r = 0; r < s; r++) ck_assert(b->tensor[r] != b->tensor[s]);
    }
    ck_assert(b->first_block[b->n] <= LAMB_BLOCKS + LAMB_BATCH);
}

START_TEST(batches_cover_segments_of_any_size)
{
    static const size_t numels[] = {1, 1000, 1u << 20, 0x80000001u, 1ull << 40};
    struct lamb_segment segments[150];
    struct lamb_batch b;
    for (size_t k = 0; k < CZ_ARRAY_LEN(numels); k++)
        for (int n_mp = 1; n_mp < 3000; n_mp = n_mp * 3 + 1) {
            size_t at = 0, n = 0, taken = 0;
            for (size_t i = 0; i < 150; i++) {
                size_t numel = i % 9 == 4 ? 0 : numels[(k + i) % (k + 1)];
                segments[i] = (struct lamb_segment){at, at + numel, i == 70 ? 69 : i};
                at += numel;
            }
            while (n < 150) {
                n += lamb_batch_take(&b, segments + n, 150 - n, n_mp);
                check_batch(&b);
                for (unsigned s = 0; s < b.n; s++) taken += b.end[s] - b.begin[s];
            }
            ck_assert_uint_eq(taken, at);
        }
}
END_TEST

TEST_MAIN("cuda lamb", CUDA_ORDERED(lamb_agrees), CUDA_ORDERED(many_segments_agree),
          CUDA_ORDERED(several_blocks_agree), many_blocks_agree_random,
          bad_arguments_are_refused_forward, batches_cover_segments_of_any_size)
