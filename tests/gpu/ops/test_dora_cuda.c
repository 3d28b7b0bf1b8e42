/* Claims: on a CUDA device DoRA's ops are within rounding of the scalar row, in every type, for
 * weights stored either way, at sizes that fill no block; what is accumulated adds to what is
 * there; a row of zeros has no factor; bad types are refused. */
#include "ops/dora/dora_impl.h"
#include "tests/support/gpu/cuda_orders.h"

enum { V = 0, W, M, INV, Y, DY, H, DM, N_TENSORS };

static const enum cz_dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};

/* Sums of up to 300 numbers in other orders, then one rounding of the result's type. */
static const struct agree_tol near = {
    .op = "dora", .rtol = 1e-5f, .atol = 1e-4f, .why = "sums in trees"};
static const struct agree_tol near_16 = {
    .op = "dora", .rtol = 8e-3f, .atol = 1e-3f, .why = "sums in trees, then a rounding to 16 bits"};

struct twin {
    struct agree_buf want, got;
    struct rig_buf device;
};

static void dora_case(const struct cuda_rig *rig, enum cz_dtype dtype, enum cz_dtype y_dtype,
                      int64_t N, int64_t O, int64_t I, bool in_out, bool accumulate)
{
    const struct {
        enum cz_dtype dtype;
        int64_t numel;
    } of[N_TENSORS] = {
        [V] = {dtype, O * I},   [W] = {dtype, O * I},  [M] = {dtype, O},     [INV] = {DTYPE_F32, O},
        [Y] = {y_dtype, O * I}, [DY] = {dtype, N * O}, [H] = {dtype, N * O}, [DM] = {y_dtype, O}};
    struct twin t[N_TENSORS];
    struct ops host = agree_wire(dora_wire, &dora_rows(&(size_t){0})[0]->row);
    for (int k = 0; k < N_TENSORS; k++) {
        const size_t numel = (size_t)of[k].numel;
        t[k].want = agree_buf_make(of[k].dtype, numel, 0);
        t[k].got = agree_buf_make(of[k].dtype, numel, 0);
        agree_fill(&t[k].want, (uint32_t)k + 1, 1.0f), agree_fill(&t[k].got, (uint32_t)k + 1, 1.0f);
        for (int64_t i = 0; k == V && i < I; i++) {
            const size_t at = (size_t)(in_out ? i * O + O / 2 : O / 2 * I + i);
            agree_set(&t[k].want, at, 0), agree_set(&t[k].got, at, 0);
        }
        t[k].device = rig_put(rig, &t[k].got);
    }
    for (int side = 0; side < 2; side++) {
#define AT(k) (side ? t[k].device.p : t[k].want.p)
        struct ops *ops = side ? rig->ops : &host;
        struct dev_stream *stream = side ? rig->stream : NULL;
        const struct dora_norm_args norm = {
            .O = O, .I = I, .in_out = in_out, .dtype = dtype, .v = AT(V), .inv_norm = AT(INV)};
        const struct dora_scale_args scale = {.O = O,
                                              .I = I,
                                              .in_out = in_out,
                                              .dtype = dtype,
                                              .x_dtype = dtype,
                                              .y_dtype = y_dtype,
                                              .x = AT(V),
                                              .m = AT(M),
                                              .w = accumulate ? NULL : AT(W),
                                              .inv_norm = AT(INV),
                                              .y = AT(Y),
                                              .accumulate = accumulate};
        const struct dora_grad_args grad = {.N = N,
                                            .O = O,
                                            .dtype = dtype,
                                            .grad_dtype = y_dtype,
                                            .dy = AT(DY),
                                            .h = AT(H),
                                            .inv_norm = AT(INV),
                                            .dm = AT(DM),
                                            .accumulate = accumulate};
        ck_ok(ops_dora_norm(ops, stream, &norm));
        ck_ok(ops_dora_scale(ops, stream, &scale));
        ck_ok(ops_dora_grad(ops, stream, &grad));
#undef AT
    }
    for (int k = 0; k < N_TENSORS; k++) {
        rig_get(rig, &t[k].device, &t[k].got);
        agree_check(&t[k].got, &t[k].want, of[k].dtype == DTYPE_F32 ? &near : &near_16, "cuda",
                    in_out ? "in, out" : "out, in");
        rig_free(rig, &t[k].device);
        agree_buf_free(&t[k].want), agree_buf_free(&t[k].got);
    }
}

static void dora_agrees(const struct cuda_rig *rig)
{
    for (size_t d = 0; d < CZ_ARRAY_LEN(dtypes); d++)
        for (int k = 0; k < 4; k++) {
            const bool in_out = k & 1, accumulate = k & 2;
            dora_case(rig, dtypes[d], dtypes[d], 19, 67, 150, in_out, accumulate);
            dora_case(rig, dtypes[d], DTYPE_F32, 1, 3, 7, in_out, accumulate);
            dora_case(rig, dtypes[d], DTYPE_F32, 300, 1, 1, in_out, accumulate);
        }
}

CUDA_ORDERS(dora_agrees, dora_agrees(&rig))

START_TEST(bad_types_are_refused)
{
    struct cuda_rig rig = cuda_rig_open();
    ck_fails(ops_dora_norm(rig.ops, NULL, &(struct dora_norm_args){.dtype = DTYPE_I32}),
             CZ_INVALID);
    ck_fails(ops_dora_scale(rig.ops, NULL, &(struct dora_scale_args){.x_dtype = DTYPE_I32}),
             CZ_INVALID);
    ck_fails(ops_dora_grad(rig.ops, NULL, &(struct dora_grad_args){.grad_dtype = DTYPE_I32}),
             CZ_INVALID);
    cuda_rig_close(&rig);
}
END_TEST

TEST_MAIN("cuda dora", CUDA_ORDERED(dora_agrees), bad_types_are_refused)
