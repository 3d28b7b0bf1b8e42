/* Claims: dropout on a CUDA device draws the host's mask and gives the bits of the scalar row, for
 * any size, alignment, first index (past 2^32 and 2^34 too) and p, in place too; cuts do not show;
 * p outside [0,1) is refused. */
#include "ops/dropout/dropout_impl.h"
#include "tests/support/gpu/cuda_orders.h"

static const enum cz_dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};

static const struct agree_tol tol = {.op = "dropout",
                                     .why = "one multiplication or a zero: equal to the bit"};

static const struct rng_key key = {.seed = 11, .site = 35, .step = 7, .sample = 0x123456789};

static void dropout_case(const struct cuda_rig *rig, enum cz_dtype dtype, float p,
                         uint64_t first_idx, size_t numel, size_t offset)
{
    struct ops truth = agree_wire(dropout_wire, &dropout_rows(&(size_t){0})[0]->row);
    struct agree_buf x = agree_buf_make(dtype, numel, offset);
    struct agree_buf y = agree_buf_make(dtype, numel, offset);
    struct agree_buf want = agree_buf_make(dtype, numel, 0);
    agree_fill_special(&x, 1, 3.0f);
    struct dropout_args a = {.dtype = dtype,
                             .numel = numel,
                             .p = p,
                             .rng = key,
                             .first_idx = first_idx,
                             .x = x.p,
                             .y = want.p};
    ck_ok(ops_dropout(&truth, NULL, &a));
    struct rig_buf dx = rig_put(rig, &x), dy = rig_put(rig, &y);
    a.x = dx.p, a.y = dy.p;
    ck_ok(ops_dropout(rig->ops, rig->stream, &a));
    rig_get(rig, &dy, &y);
    agree_check(&y, &want, &tol, "cuda", "dropout");
    a.y = dx.p;
    ck_ok(ops_dropout(rig->ops, rig->stream, &a));
    rig_get(rig, &dx, &x);
    agree_check(&x, &want, &tol, "cuda", "dropout in place");
    rig_free(rig, &dx), rig_free(rig, &dy);
    agree_buf_free(&x), agree_buf_free(&y), agree_buf_free(&want);
}

static void every_size_offset_and_first_index_agrees(const struct cuda_rig *rig)
{
    static const uint64_t firsts[] = {0, 1, 2, 3, 1000, 0xFFFFFFF4, 0x3FFFFFFE5, 0x3FFFFFFFC};
    static const size_t numels[] = {0, 1, 3, 4, 7, 8, 9, 1027, 2500};
    for (size_t i = 0; i < CZ_ARRAY_LEN(numels); i++)
        for (size_t f = 0; f < CZ_ARRAY_LEN(firsts); f++)
            for (size_t offset = 0; offset < 9; offset += 4)
                dropout_case(rig, dtypes[(i + f + offset / 4) % 3], 0.3f, firsts[f], numels[i],
                             offset);
}

CUDA_ORDERS(every_size_offset_and_first_index_agrees,
            every_size_offset_and_first_index_agrees(&rig))

static void every_p_agrees(const struct cuda_rig *rig)
{
    static const float ps[] = {0.0f, 0x1p-24f, 0x1p-30f, 0.1f, 0.5f, 0.9f, 0x1.fffffep-1f};
    for (size_t k = 0; k < CZ_ARRAY_LEN(ps); k++)
        for (uint64_t first_idx = 4; first_idx < 6; first_idx++)
            dropout_case(rig, DTYPE_F32, ps[k], first_idx, 7001, 0);
}

CUDA_ORDERS(every_p_agrees, every_p_agrees(&rig))

static void cuts_do_not_show(const struct cuda_rig *rig)
{
    enum { NUMEL = 3001 };
    for (size_t n_pieces = 2; n_pieces <= 7; n_pieces += 5) {
        struct agree_buf x = agree_buf_make(DTYPE_BF16, NUMEL, 0);
        struct agree_buf whole = agree_buf_make(DTYPE_BF16, NUMEL, 0);
        struct agree_buf cut = agree_buf_make(DTYPE_BF16, NUMEL, 0);
        agree_fill(&x, 2, 1.0f);
        struct rig_buf dx = rig_put(rig, &x), dwhole = rig_put(rig, &whole);
        struct rig_buf dcut = rig_put(rig, &cut);
        struct dropout_args a = {.dtype = DTYPE_BF16,
                                 .numel = NUMEL,
                                 .p = 0.25f,
                                 .rng = key,
                                 .first_idx = 76,
                                 .x = dx.p,
                                 .y = dwhole.p};
        ck_ok(ops_dropout(rig->ops, rig->stream, &a));
        for (size_t piece = 0; piece < n_pieces; piece++) {
            size_t begin = NUMEL * piece / n_pieces;
            a.numel = NUMEL * (piece + 1) / n_pieces - begin;
            a.first_idx = 76 + begin;
            a.x = (uint16_t *)dx.p + begin, a.y = (uint16_t *)dcut.p + begin;
            ck_ok(ops_dropout(rig->ops, rig->stream, &a));
        }
        rig_get(rig, &dwhole, &whole), rig_get(rig, &dcut, &cut);
        agree_same(&whole, &cut, "dropout in pieces");
        rig_free(rig, &dx), rig_free(rig, &dwhole), rig_free(rig, &dcut);
        agree_buf_free(&x), agree_buf_free(&whole), agree_buf_free(&cut);
    }
}

CUDA_ORDERS(cuts_do_not_show, cuts_do_not_show(&rig))

START_TEST(bad_arguments_are_refused)
{
    float x[4] = {0}; /* never read */
    struct cuda_rig rig = cuda_rig_open();
    static const float bad[] = {-0.1f, 1.0f, 2.0f, NAN};
    for (size_t i = 0; i < CZ_ARRAY_LEN(bad); i++) {
        struct dropout_args a = {.numel = 4, .p = bad[i], .x = x, .y = x};
        ck_fails(ops_dropout(rig.ops, NULL, &a), CZ_INVALID);
    }
    struct dropout_args no_x = {.numel = 4, .p = 0.5f, .y = x};
    ck_fails(ops_dropout(rig.ops, NULL, &no_x), CZ_INVALID);
    cuda_rig_close(&rig);
}
END_TEST

TEST_MAIN("cuda dropout", CUDA_ORDERED(every_size_offset_and_first_index_agrees),
          CUDA_ORDERED(every_p_agrees), CUDA_ORDERED(cuts_do_not_show), bad_arguments_are_refused)
