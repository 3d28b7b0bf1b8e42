/* Claims: rope on a CUDA device gives the bits of the scalar row, for any head width, stride,
 * dtype, alignment and positions, both ways; a negative position touches nothing; tables are within
 * 2 ulp of libm's, also for more frequencies than one launch takes; bad arguments are refused. */
#include "ops/rope/rope_impl.h"
#include "tests/support/gpu/cuda_orders.h"

static const enum cz_dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};

static const struct agree_tol tol = {.op = "rope",
                                     .why = "no fused multiply-adds: equal to the bit"};

static const struct agree_tol table_tol = {
    .op = "rope_table", .atol = 4e-7f, .why = "sincosf of CUDA, 2 ulp of values up to 1.5"};

enum { MAX_POSITION = 40 };

static void tables(struct agree_buf *cosines, struct agree_buf *sines, int64_t D, size_t offset)
{
    *cosines = agree_buf_make(DTYPE_F32, (size_t)(MAX_POSITION * D / 2), offset);
    *sines = agree_buf_make(DTYPE_F32, (size_t)(MAX_POSITION * D / 2), offset);
    for (size_t i = 0; i < cosines->numel; i++) {
        double half = (double)(D / 2), d = (double)(i % (size_t)(D / 2));
        double angle = (double)(i / (size_t)(D / 2)) * pow(10000.0, -d / half);
        agree_set(cosines, i, (float)cos(angle));
        agree_set(sines, i, (float)sin(angle));
    }
}

static void rope_case(const struct cuda_rig *rig, enum cz_dtype dtype, int64_t N, int64_t H,
                      int64_t D, int64_t rotary, int64_t gap, bool inverse, bool positions,
                      size_t offset)
{
    int32_t at[64];
    int64_t stride = H * D + gap;
    struct ops truth = agree_wire(rope_wire, &rope_rows(&(size_t){0})[0]->row);
    struct agree_buf cosines, sines;
    struct agree_buf x = agree_buf_make(dtype, (size_t)(N * stride), offset);
    struct agree_buf want = agree_buf_make(dtype, (size_t)(N * stride), 0);
    tables(&cosines, &sines, rotary ? rotary : D, offset);
    for (int64_t n = 0; n < N; n++) at[n] = (int32_t)(agree_random(1, (size_t)n) % MAX_POSITION);
    agree_fill_special(&x, 2, 3.0f);
    memcpy(want.p, x.p, x.nbytes);
    struct rope_args a = {.N = N,
                          .H = H,
                          .D = D,
                          .rotary = rotary,
                          .dtype = dtype,
                          .stride = stride,
                          .T = 7,
                          .positions = positions ? at : NULL,
                          .cos = cosines.p,
                          .sin = sines.p,
                          .x = want.p,
                          .inverse = inverse};
    ck_ok(ops_rope(&truth, NULL, &a));
    struct rig_buf gx = rig_put(rig, &x), gcos = rig_put(rig, &cosines),
                   gsin = rig_put(rig, &sines);
    int32_t *gat = rig_put_bytes(rig, at, sizeof at);
    a.x = gx.p, a.cos = gcos.p, a.sin = gsin.p, a.positions = positions ? gat : NULL;
    ck_ok(ops_rope(rig->ops, rig->stream, &a));
    rig_get(rig, &gx, &x);
    agree_check(&x, &want, &tol, "cuda", "rope");
    rig_free(rig, &gx), rig_free(rig, &gcos), rig_free(rig, &gsin);
    rig_free_bytes(rig, gat, sizeof at);
    agree_buf_free(&x), agree_buf_free(&want), agree_buf_free(&cosines), agree_buf_free(&sines);
}

static void every_width_agrees(const struct cuda_rig *rig)
{
    static const int64_t widths[] = {2, 6, 16, 18, 32, 64, 80, 128};
    for (size_t d = 0; d < CZ_ARRAY_LEN(dtypes); d++)
        for (size_t w = 0; w < CZ_ARRAY_LEN(widths); w++)
            for (int variant = 0; variant < 4; variant++)
                rope_case(rig, dtypes[d], 1 + variant * 3, 1 + (int64_t)(w % 3), widths[w],
                          w % 2 && widths[w] > 2 ? widths[w] / 4 * 2 : 0, variant == 3 ? 5 : 16,
                          variant & 1, variant & 2, variant == 2);
    rope_case(rig, DTYPE_BF16, 3, 40, 128, 0, 0, false, true, 0); /* a token is several blocks' */
    rope_case(rig, DTYPE_BF16, 5, 3, 128, 96, 0, true, true, 0);  /* vectors, in part */
    rope_case(rig, DTYPE_BF16, 0, 4, 8, 0, 0, false, false, 0);
}

CUDA_ORDERS(every_width_agrees, every_width_agrees(&rig))

START_TEST(a_negative_position_touches_nothing)
{
    struct cuda_rig rig = cuda_rig_open();
    const int32_t at[2] = {-1, 1};
    float x[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    const float cosines[4] = {0, 0, 0, 0}, sines[4] = {1, 1, 1, 1};
    struct rope_args a = {.N = 2, .H = 1, .D = 4, .stride = 4};
    a.positions = rig_put_bytes(&rig, at, sizeof at);
    a.x = rig_put_bytes(&rig, x, sizeof x);
    a.cos = rig_put_bytes(&rig, cosines, sizeof cosines);
    a.sin = rig_put_bytes(&rig, sines, sizeof sines);
    ck_ok(ops_rope(rig.ops, rig.stream, &a));
    rig_get_bytes(&rig, a.x, x, sizeof x);
    const float want[8] = {1, 2, 3, 4, -7, -8, 5, 6};
    ck_assert_mem_eq(x, want, sizeof want);
    rig_free_bytes(&rig, (void *)(uintptr_t)a.positions, sizeof at);
    rig_free_bytes(&rig, a.x, sizeof x);
    rig_free_bytes(&rig, (void *)(uintptr_t)a.cos, sizeof cosines);
    rig_free_bytes(&rig, (void *)(uintptr_t)a.sin, sizeof sines);
    cuda_rig_close(&rig);
}
END_TEST

static void table_case(const struct cuda_rig *rig, int64_t N, int64_t half, bool positions)
{
    struct ops truth = agree_wire(rope_wire, &rope_rows(&(size_t){0})[0]->row);
    struct agree_buf freq = agree_buf_make(DTYPE_F32, (size_t)half, 0);
    struct agree_buf cosines = agree_buf_make(DTYPE_F32, (size_t)(N * half), 0);
    struct agree_buf sines = agree_buf_make(DTYPE_F32, (size_t)(N * half), 0);
    struct agree_buf want_cos = agree_buf_make(DTYPE_F32, (size_t)(N * half), 0);
    struct agree_buf want_sin = agree_buf_make(DTYPE_F32, (size_t)(N * half), 0);
    int32_t at[64];
    for (size_t n = 0; n < (size_t)N; n++) at[n] = (int32_t)(agree_random(3, n) % 100000);
    for (size_t d = 0; d < (size_t)half; d++)
        agree_set(&freq, d, powf(10000.0f, -(float)d / (float)half));
    struct rope_table_args a = {.N = N,
                                .half = half,
                                .first = 17,
                                .positions = positions ? at : NULL,
                                .freq = freq.p,
                                .scale = 1.5f,
                                .cos = want_cos.p,
                                .sin = want_sin.p};
    ck_ok(ops_rope_table(&truth, NULL, &a));
    struct rig_buf gcos = rig_put(rig, &cosines), gsin = rig_put(rig, &sines);
    int32_t *gat = rig_put_bytes(rig, at, sizeof at);
    a.cos = gcos.p, a.sin = gsin.p, a.positions = positions ? gat : NULL;
    ck_ok(ops_rope_table(rig->ops, rig->stream, &a));
    agree_fill(&freq, 1, 1.0f); /* the call has taken what it needs */
    rig_get(rig, &gcos, &cosines), rig_get(rig, &gsin, &sines);
    agree_check(&cosines, &want_cos, &table_tol, "cuda", "cos");
    agree_check(&sines, &want_sin, &table_tol, "cuda", "sin");
    rig_free(rig, &gcos), rig_free(rig, &gsin), rig_free_bytes(rig, gat, sizeof at);
    agree_buf_free(&freq), agree_buf_free(&cosines), agree_buf_free(&sines);
    agree_buf_free(&want_cos), agree_buf_free(&want_sin);
}

static void tables_agree(const struct cuda_rig *rig)
{
    static const int64_t halves[] = {1, 5, 32, 256, 300};
    for (size_t h = 0; h < CZ_ARRAY_LEN(halves); h++)
        for (int64_t N = 0; N <= 50; N += 25) table_case(rig, N, halves[h], h & 1);
}

CUDA_ORDERS(tables_agree, tables_agree(&rig))

START_TEST(bad_arguments_are_refused)
{
    float x[8] = {0}; /* never read */
    struct cuda_rig rig = cuda_rig_open();
    struct ops *ops = rig.ops;
    const struct rope_args good = {
        .N = 2, .H = 1, .D = 4, .stride = 4, .T = 2, .cos = x, .sin = x, .x = x};
    struct rope_args a = good;
    a = good, a.D = 3;
    ck_fails(ops_rope(ops, NULL, &a), CZ_INVALID);
    a = good, a.T = 0;
    ck_fails(ops_rope(ops, NULL, &a), CZ_INVALID);
    a = good, a.stride = 3;
    ck_fails(ops_rope(ops, NULL, &a), CZ_INVALID);
    a = good, a.x = NULL;
    ck_fails(ops_rope(ops, NULL, &a), CZ_INVALID);
    a = good, a.N = -1;
    ck_fails(ops_rope(ops, NULL, &a), CZ_INVALID);
    struct rope_table_args t = {.N = 2, .half = 2, .freq = x, .cos = x};
    ck_fails(ops_rope_table(ops, NULL, &t), CZ_INVALID);
    t.sin = x + 4, t.first = -1;
    ck_fails(ops_rope_table(ops, NULL, &t), CZ_INVALID);
    cuda_rig_close(&rig);
}
END_TEST

TEST_MAIN("cuda rope", CUDA_ORDERED(every_width_agrees), a_negative_position_touches_nothing,
          CUDA_ORDERED(tables_agree), bad_arguments_are_refused)
