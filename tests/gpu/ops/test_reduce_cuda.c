/* Claims: on a CUDA device the scan and its squares are what the scalar row gives, to the bit, for
 * every dtype, size, alignment and value, whichever order threads run in; results come into the
 * caller's memory with the stream, hundreds of them under way at once, on several streams; bad
 * arguments are refused. */
#include "ops/reduce/reduce_impl.h"
#include "tests/support/gpu/cuda_orders.h"

static const enum cz_dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};

static struct ops scalar_row(void)
{
    static const struct ops_row scalar = {"scalar", 0};
    return agree_wire(reduce_wire, &scalar);
}

/* ---- scan -------------------------------------------------------------------------------------
 */

static void check_scan(const struct cuda_rig *rig, const struct agree_buf *x)
{
    struct ops truth = scalar_row();
    struct scan_result want = {.max_abs = -1}, got = {.max_abs = -1};
    struct rig_buf d = rig_put(rig, x);
    struct scan_args a = {.dtype = x->dtype, .numel = x->numel, .x = x->p, .result = &want};
    ck_ok(ops_scan(&truth, NULL, &a));
    a.x = d.p, a.result = &got;
    ck_ok(ops_scan(rig->ops, rig->stream, &a));
    rig_wait(rig);
    agree_assert(f32_bits(got.max_abs) == f32_bits(want.max_abs) && got.finite == want.finite &&
                     (want.finite || got.first_nonfinite == want.first_nonfinite),
                 "%s numel %zu: max %g finite %d at %llu, row 0 gives %g %d at %llu",
                 dtype_name(x->dtype), x->numel, (double)got.max_abs, got.finite,
                 (unsigned long long)got.first_nonfinite, (double)want.max_abs, want.finite,
                 (unsigned long long)want.first_nonfinite);
    rig_free(rig, &d);
}

static void scan_all(const struct cuda_rig *rig)
{
    static const size_t numels[] = {0, 1, 2, 3, 4, 7, 8, 9, 255, 1024, 4099, 40007};
    for (size_t d = 0; d < CZ_ARRAY_LEN(dtypes); d++)
        for (size_t i = 0; i < CZ_ARRAY_LEN(numels); i++)
            for (size_t offset = 0; offset < (numels[i] > 5000 ? 2 : 9); offset++) {
                struct agree_buf x = agree_buf_make(dtypes[d], numels[i], offset);
                agree_fill(&x, offset, 3.0f);
                if (offset % 3 == 1) agree_fill_special(&x, offset + 40, 3.0f);
                if (offset % 3 == 2 && numels[i] > 0) agree_set(&x, numels[i] - 1, -NAN);
                check_scan(rig, &x);
                agree_buf_free(&x);
            }
}

CUDA_ORDERS(scan_agrees, scan_all(&rig))

/* Several that are not finite, the first of them anywhere. */
static void scan_first(const struct cuda_rig *rig)
{
    enum { NUMEL = 30000 };
    static const size_t places[] = {0, 1, 7, 8, 1023, 4096, 16383, 16384, NUMEL - 2, NUMEL - 1};
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t d = 0; d < CZ_ARRAY_LEN(dtypes); d++)
        for (size_t k = 0; k < CZ_ARRAY_LEN(places); k++) {
            struct agree_buf x = agree_buf_make(dtypes[d], NUMEL, k);
            agree_fill(&x, k, 1.0f);
            for (size_t i = places[k]; i < NUMEL; i += 5003) agree_set(&x, i, bad[(i + k) % 3]);
            check_scan(rig, &x);
            agree_buf_free(&x);
        }
}

CUDA_ORDERS(scan_finds_the_first, scan_first(&rig))

/* ---- squares ----------------------------------------------------------------------------------
 */

static void check_squares(const struct cuda_rig *rig, const struct agree_buf *x)
{
    struct ops truth = scalar_row();
    struct scan_result r;
    uint64_t want[SQUARES_DIGITS] = {0, 5, 0, 77}, got[SQUARES_DIGITS] = {0, 5, 0, 77};
    struct rig_buf d = rig_put(rig, x);
    struct scan_args a = {
        .dtype = x->dtype, .numel = x->numel, .x = x->p, .result = &r, .squares = want};
    ck_ok(ops_scan(&truth, NULL, &a));
    a.x = d.p, a.squares = got;
    ck_ok(ops_scan(rig->ops, rig->stream, &a));
    rig_wait(rig);
    agree_assert(memcmp(got, want, sizeof got) == 0, "%s numel %zu: %g, row 0 gives %g",
                 dtype_name(x->dtype), x->numel, ops_squares_value(got), ops_squares_value(want));
    rig_free(rig, &d);
}

/* As narrow as most gradients are, beyond what a thread adds up at once, everything. */
static const uint64_t octaves[] = {8, 26, 300};

static void squares_all(const struct cuda_rig *rig)
{
    static const size_t numels[] = {0, 1, 2, 3, 4, 7, 8, 9, 255, 1025, 4099, 40007};
    for (size_t d = 0; d < CZ_ARRAY_LEN(dtypes); d++)
        for (size_t i = 0; i < CZ_ARRAY_LEN(numels); i++)
            for (size_t offset = 0; offset < (numels[i] > 5000 ? 3 : 9); offset++) {
                struct agree_buf x = agree_buf_make(dtypes[d], numels[i], offset);
                agree_fill_octaves(&x, offset, 2.5f, octaves[offset % CZ_ARRAY_LEN(octaves)]);
                check_squares(rig, &x);
                agree_buf_free(&x);
            }
}

CUDA_ORDERS(squares_agree, squares_all(&rig))

/* From denormals to the largest finite values, at the edges of a power of two. */
static void squares_scales(const struct cuda_rig *rig)
{
    static const float scales[] = {1.0f,  0x1.fffffep127f, 0x1p127f, 0x1p-149f,    0x1.8p-120f,
                                   3e19f, 0x1p-126f,       2.0f,     0x1.fffffep0f};
    for (size_t d = 0; d < CZ_ARRAY_LEN(dtypes); d++)
        for (size_t k = 0; k < CZ_ARRAY_LEN(scales); k++) {
            struct agree_buf x = agree_buf_make(dtypes[d], 5021, k);
            float max_abs = scales[k];
            if (dtypes[d] == DTYPE_F16) max_abs = fminf(fmaxf(max_abs, 0x1p-24f), 65504.0f);
            if (dtypes[d] == DTYPE_BF16) max_abs = fminf(fmaxf(max_abs, 0x1p-133f), 0x1.fep127f);
            agree_fill_octaves(&x, k, max_abs, octaves[k % CZ_ARRAY_LEN(octaves)]);
            check_squares(rig, &x);
            for (size_t i = 0; i < x.numel; i += 2) agree_set(&x, i, i % 4 ? max_abs : -max_abs);
            check_squares(rig, &x);
            agree_buf_free(&x);
        }
}

CUDA_ORDERS(squares_agree_at_every_scale, squares_scales(&rig))

/* ---- results ----------------------------------------------------------------------------------
 */

/* More than the slots there are, on two streams, before anything waits. */
static void under_way(const struct cuda_rig *rig)
{
    enum { N = 600, NUMEL = 33 };
    static struct scan_result results[N];
    uint64_t parts[2][SQUARES_DIGITS] = {{0}, {0}}, want[SQUARES_DIGITS] = {0};
    struct dev_stream *streams[2] = {rig->stream, NULL};
    struct agree_buf x = agree_buf_make(DTYPE_F32, N + NUMEL, 0);
    struct ops truth = scalar_row();
    agree_fill(&x, 3, 1.0f);
    for (size_t i = 0; i < x.numel; i += 41) agree_set(&x, i, (float)i);
    struct rig_buf d = rig_put(rig, &x);
    ck_ok(rig->dev->ops->stream_create(rig->dev, &streams[1]));
    for (size_t i = 0; i < N; i++) {
        struct scan_args scan = {.numel = NUMEL,
                                 .x = (const float *)d.p + i,
                                 .result = &results[i],
                                 .squares = parts[i % 2]};
        ck_ok(ops_scan(rig->ops, streams[i % 2], &scan));
    }
    for (int k = 0; k < 2; k++) ck_ok(rig->dev->ops->stream_sync(rig->dev, streams[k]));
    for (size_t i = 0; i < N; i++) {
        float most = 0;
        for (size_t j = 0; j < NUMEL; j++) most = fmaxf(most, fabsf(agree_get(&x, i + j)));
        ck_assert_msg(results[i].finite && results[i].max_abs == most, "result %zu", i);
        struct scan_result result;
        struct scan_args scan = {
            .numel = NUMEL, .x = (const float *)x.p + i, .result = &result, .squares = want};
        ck_ok(ops_scan(&truth, NULL, &scan));
    }
    for (int i = 0; i < SQUARES_DIGITS; i++) parts[0][i] += parts[1][i];
    ck_assert_double_eq(ops_squares_value(parts[0]), ops_squares_value(want));
    rig->dev->ops->stream_destroy(rig->dev, streams[1]);
    rig_free(rig, &d);
    agree_buf_free(&x);
}

CUDA_ORDER(results_come_with_their_streams, forward, "forward", under_way(&rig))

/* Nothing waits: with work that runs only when something does, the result is not there yet. */
static void asynchronous(const struct cuda_rig *rig)
{
    struct scan_result result = {.max_abs = -1};
    float x[4] = {1, -2, 3, -4};
    float *d = rig_put_bytes(rig, x, sizeof x);
    struct scan_args a = {.numel = 4, .x = d, .result = &result};
    ck_ok(ops_scan(rig->ops, rig->stream, &a));
    if (getenv("CZERO_CUDA_SIM_ORDER") && getenv("CZERO_CUDA_PLUGIN"))
        ck_assert_float_eq(result.max_abs, -1);
    rig_wait(rig);
    ck_assert(result.finite && result.max_abs == 4);
    a.numel = 0, a.x = NULL;
    ck_ok(ops_scan(rig->ops, rig->stream, &a));
    rig_wait(rig);
    ck_assert(result.finite && result.max_abs == 0);
    rig_free_bytes(rig, d, sizeof x);
}

CUDA_ORDER(the_caller_does_not_wait, forward, "forward", asynchronous(&rig))

static void refuse_bad(const struct cuda_rig *rig)
{
    float x[4] = {0};
    struct scan_result r;
    struct ops *ops = rig->ops;
    ck_fails(ops_scan(ops, NULL, &(struct scan_args){.numel = 4, .result = &r}), CZ_INVALID);
    ck_fails(ops_scan(ops, NULL, &(struct scan_args){.numel = 4, .x = x}), CZ_INVALID);
    struct scan_args scan = {.dtype = DTYPE_F64, .numel = 4, .x = x, .result = &r};
    ck_fails(ops_scan(ops, NULL, &scan), CZ_INVALID);
}

CUDA_ORDER(bad_arguments_are_refused, forward, "forward", refuse_bad(&rig))

TEST_MAIN("cuda reductions", CUDA_ORDERED(scan_agrees), CUDA_ORDERED(scan_finds_the_first),
          CUDA_ORDERED(squares_agree), CUDA_ORDERED(squares_agree_at_every_scale),
          results_come_with_their_streams_forward, the_caller_does_not_wait_forward,
          bad_arguments_are_refused_forward)
