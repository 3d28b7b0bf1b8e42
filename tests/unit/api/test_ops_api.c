/* Claims: each function of <czero/ops.h> does what the op of the same name does, with every member
 * of its arguments; structs of other sizes, NULL and negative sizes are refused with a sentence. */
#include "api/ops_api_impl.h"
#include "base/threads.h"
#include "ops/activation/activation.h"
#include "ops/attention/attention.h"
#include "ops/cross_entropy/cross_entropy.h"
#include "ops/dropout/dropout.h"
#include "ops/elementwise/elementwise.h"
#include "ops/embedding/embedding.h"
#include "ops/matmul/matmul.h"
#include "ops/norm/norm.h"
#include "ops/rope/rope.h"
#include "tests/support/check_main.h"

#include <string.h>

static struct device *device;
static struct ops *inner;
static struct cz_ops ops;

enum { NUMEL = 4096 };

/* Two sets of arrays with the same contents: inputs in, outputs out, one for each side. */
struct side {
    float in[8][NUMEL], out[8][NUMEL];
    int32_t ids[64];
    uint8_t mask[64];
    _Alignas(64) unsigned char workspace[1 << 20];
};
static struct side ours, theirs;

static void open_ops(void)
{
    threads_init(1);
    ck_ok(device_open("cpu", 0, &device));
    ck_ok(ops_create(device, &inner));
    ops = (struct cz_ops){.ops = inner};
    const struct rng_key key = {.seed = 4};
    for (int k = 0; k < 8; k++)
        for (size_t i = 0; i < NUMEL; i++) {
            ours.in[k][i] = rng_normal(&key, (uint64_t)k * NUMEL + i);
            ours.out[k][i] = 0.25f * (float)(i % 5);
        }
    for (int i = 0; i < 64; i++) {
        ours.ids[i] = (i * 7) % 6;
        ours.mask[i] = i % 4 != 3;
    }
    memset(ours.workspace, 0, sizeof ours.workspace);
    theirs = ours;
}

static void close_ops(void)
{
    ops_destroy(inner);
    device_close(device);
}

/* Both sides hold the same afterwards, and the call had an effect. */
static void check_sides(const char *what)
{
    static float before[8][NUMEL];
    for (int k = 0; k < 8; k++)
        for (size_t i = 0; i < NUMEL; i++) before[k][i] = 0.25f * (float)(i % 5);
    ck_assert_msg(memcmp(ours.out, theirs.out, sizeof ours.out) == 0 &&
                      memcmp(ours.in, theirs.in, sizeof ours.in) == 0,
                  "%s: another result", what);
    const struct rng_key key = {.seed = 4};
    bool changed = memcmp(before, ours.out, sizeof before) != 0;
    for (int k = 0; k < 8; k++)
        for (size_t i = 0; i < NUMEL && !changed; i++)
            changed = ours.in[k][i] != rng_normal(&key, (uint64_t)k * NUMEL + i);
    ck_assert_msg(changed, "%s: no result", what);
}

static const struct rng_key key_in = {.seed = 9, .site = 35, .step = 2, .sample = 77};
static const struct cz_rng_key key_out = {.seed = 9, .site = 35, .step = 2, .sample = 77};

START_TEST(matmul_is_the_ops_own)
{
    for (int v = 0; v < 5; v++) {
        open_ops();
        const bool ta = v == 1, tb = v == 2, accumulate = v == 3, bias = v == 4;
        struct matmul_args a = {.m = 5, .n = 6, .k = 7, .trans_a = ta, .trans_b = tb};
        a.accumulate = accumulate;
        a.lda = 9;
        a.ldb = 10;
        a.ldc = 11;
        a.a = ours.in[0];
        a.b = ours.in[1];
        a.bias = bias ? ours.in[2] : NULL;
        a.c = ours.out[0];
        a.workspace = ours.workspace;
        a.workspace_nbytes = sizeof ours.workspace;
        struct cz_matmul_args b = {.size = sizeof b, .m = 5, .n = 6, .k = 7, .trans_a = ta};
        b.trans_b = tb;
        b.accumulate = accumulate;
        b.lda = 9;
        b.ldb = 10;
        b.ldc = 11;
        b.a = theirs.in[0];
        b.b = theirs.in[1];
        b.bias = bias ? theirs.in[2] : NULL;
        b.c = theirs.out[0];
        b.workspace = theirs.workspace;
        b.workspace_nbytes = sizeof theirs.workspace;
        size_t want, nbytes;
        ck_ok(ops_matmul_workspace(inner, &a, &want));
        ck_ok(cz_matmul_workspace(&ops, &b, &nbytes));
        ck_assert_uint_eq(nbytes, want);
        ck_ok(ops_matmul(inner, NULL, &a));
        ck_ok(cz_matmul(&ops, &b));
        check_sides("matmul");
        close_ops();
    }
    open_ops(); /* the two dtypes */
    struct matmul_args a = {.m = 4, .n = 4, .k = 4, .dtype = DTYPE_BF16, .c_dtype = DTYPE_F32};
    a.a = ours.in[0];
    a.b = ours.in[1];
    a.c = ours.out[0];
    a.workspace = ours.workspace;
    a.workspace_nbytes = sizeof ours.workspace;
    struct cz_matmul_args b = {
        .size = sizeof b, .m = 4, .n = 4, .k = 4, .dtype = CZ_DTYPE_BF16, .c_dtype = CZ_DTYPE_F32};
    b.a = theirs.in[0];
    b.b = theirs.in[1];
    b.c = theirs.out[0];
    b.workspace = theirs.workspace;
    b.workspace_nbytes = sizeof theirs.workspace;
    ck_ok(ops_matmul(inner, NULL, &a));
    ck_ok(cz_matmul(&ops, &b));
    check_sides("matmul in bf16");
    close_ops();
}
END_TEST

/* The arguments of both norms on one side, forward and backward. */
#define NORM_ARGS(s, is_layer)                                                                     \
    {                                                                                              \
        .N = 5, .C = 12, .eps = 0.01f, .x = (s).in[0], .residual = (s).in[1], .sum = (s).out[0],   \
        .weight = (s).in[2], .bias = (is_layer) ? (s).in[3] : NULL, .y = (s).out[1],               \
        .mean = (s).out[2], .rstd = (s).out[3], .dy = (s).in[4], .dx = (s).out[4],                 \
        .dx_add = (s).in[5], .grad_dtype = DTYPE_F32, .dweight = (s).out[5],                       \
        .dbias = (is_layer) ? (s).out[6] : NULL, .dweight_accumulate = true,                       \
        .dbias_accumulate = false, .workspace = (s).workspace,                                     \
        .workspace_nbytes = sizeof(s).workspace                                                    \
    }

START_TEST(norms_are_the_ops_own)
{
    for (int is_layer = 0; is_layer < 2; is_layer++) {
        open_ops();
        const struct norm_args a = NORM_ARGS(ours, is_layer);
        struct cz_norm_args b = NORM_ARGS(theirs, is_layer);
        b.size = sizeof b;
        ck_ok((is_layer ? ops_layernorm_forward : ops_rmsnorm_forward)(inner, NULL, &a));
        ck_ok((is_layer ? cz_layernorm_forward : cz_rmsnorm_forward)(&ops, &b));
        check_sides("norm forward");
        ck_ok((is_layer ? ops_layernorm_backward : ops_rmsnorm_backward)(inner, NULL, &a));
        ck_ok((is_layer ? cz_layernorm_backward : cz_rmsnorm_backward)(&ops, &b));
        check_sides("norm backward");
        ck_assert_float_ne(ours.out[4][0], ours.out[4][1]);
        ck_assert_float_ne(ours.out[5][0], 0.0f);
        size_t nbytes;
        ck_ok(cz_norm_workspace(&ops, &b, &nbytes));
        ck_assert_uint_eq(nbytes, ops_norm_workspace(inner, &a));
        close_ops();
    }
}
END_TEST

START_TEST(activations_are_the_ops_own)
{
    for (int kind = 0; kind <= CZ_ACTIVATION_RELU2; kind++) {
        open_ops();
        const struct activation_args a = {.kind = (enum activation)kind,
                                          .numel = 33,
                                          .x = ours.in[0],
                                          .y = ours.out[0],
                                          .dy = ours.in[1],
                                          .dx = ours.out[1]};
        const struct cz_activation_args b = {.size = sizeof b,
                                             .kind = (enum cz_activation)kind,
                                             .numel = 33,
                                             .x = theirs.in[0],
                                             .y = theirs.out[0],
                                             .dy = theirs.in[1],
                                             .dx = theirs.out[1]};
        ck_ok(ops_activation_forward(inner, NULL, &a));
        ck_ok(cz_activation_forward(&ops, &b));
        check_sides("activation forward");
        ck_ok(ops_activation_backward(inner, NULL, &a));
        ck_ok(cz_activation_backward(&ops, &b));
        check_sides("activation backward");
        close_ops();
    }
    for (int packed = 0; packed < 2; packed++) {
        open_ops();
        const int64_t stride = packed ? 14 : 7;
        const struct swiglu_args a = {.act = ACT_SILU,
                                      .N = 3,
                                      .C = 7,
                                      .stride = stride,
                                      .gate = ours.in[0],
                                      .up = ours.in[1],
                                      .y = ours.out[0],
                                      .dy = ours.in[2],
                                      .dgate = ours.out[1],
                                      .dup = ours.out[2]};
        const struct cz_swiglu_args b = {.size = sizeof b,
                                         .N = 3,
                                         .C = 7,
                                         .stride = packed ? stride : 0,
                                         .gate = theirs.in[0],
                                         .up = theirs.in[1],
                                         .y = theirs.out[0],
                                         .dy = theirs.in[2],
                                         .dgate = theirs.out[1],
                                         .dup = theirs.out[2]};
        ck_ok(ops_swiglu_forward(inner, NULL, &a));
        ck_ok(cz_swiglu_forward(&ops, &b));
        check_sides("swiglu forward");
        ck_ok(ops_swiglu_backward(inner, NULL, &a));
        ck_ok(cz_swiglu_backward(&ops, &b));
        check_sides("swiglu backward");
        close_ops();
    }
}
END_TEST

#define ATTENTION_ARGS(s)                                                                          \
    {                                                                                              \
        .B = 2, .Tq = 3, .Tk = 5, .H = 4, .G = 2, .D = 8, .scale = 0.3f, .causal = true,           \
        .key_mask = (s).mask, .q = (s).in[0], .k = (s).in[1], .v = (s).in[2], .q_stride = 40,      \
        .k_stride = 24, .v_stride = 32, .out = (s).out[0], .out_stride = 36, .q_batch = 130,       \
        .kv_batch = 200, .lse = (s).out[1], .dropout_p = 0.3f, .dout = (s).in[3],                  \
        .dq = (s).out[2], .dk = (s).out[3], .dv = (s).out[4], .workspace = (s).workspace,          \
        .workspace_nbytes = sizeof(s).workspace                                                    \
    }

START_TEST(attention_is_the_ops_own)
{
    for (int dense = 0; dense < 2; dense++) {
        open_ops();
        struct attention_args a = ATTENTION_ARGS(ours);
        struct cz_attention_args b = ATTENTION_ARGS(theirs);
        b.size = sizeof b;
        a.rng = key_in;
        b.rng = key_out;
        if (dense) {
            a.q_stride = a.out_stride = a.H * a.D;
            a.k_stride = a.v_stride = a.G * a.D;
            b.q_stride = b.k_stride = b.v_stride = b.out_stride = 0;
            a.q_batch = a.kv_batch = b.q_batch = b.kv_batch = 0;
        }
        size_t nbytes;
        ck_ok(cz_attention_forward_workspace(&ops, &b, &nbytes));
        ck_assert_uint_eq(nbytes, ops_attention_workspace(inner, &a, false));
        ck_ok(cz_attention_backward_workspace(&ops, &b, &nbytes));
        ck_assert_uint_eq(nbytes, ops_attention_workspace(inner, &a, true));
        ck_ok(ops_attention_forward(inner, NULL, &a));
        ck_ok(cz_attention_forward(&ops, &b));
        check_sides("attention forward");
        ck_ok(ops_attention_backward(inner, NULL, &a));
        ck_ok(cz_attention_backward(&ops, &b));
        check_sides("attention backward");
        ck_assert_float_ne(ours.out[3][0], ours.out[3][1]);
        close_ops();
    }
}
END_TEST

#define EMBEDDING_ARGS(s)                                                                          \
    {                                                                                              \
        .N = 9, .C = 5, .V = 6, .ids = (s).ids, .has_padding = true, .padding_id = 3,              \
        .table = (s).in[0], .y = (s).out[0], .accumulate = true, .dy = (s).in[1],                  \
        .dtable = (s).out[1], .dtable_accumulate = true, .workspace = (s).workspace,               \
        .workspace_nbytes = sizeof(s).workspace                                                    \
    }

START_TEST(embedding_is_the_ops_own)
{
    open_ops();
    const struct embedding_args a = EMBEDDING_ARGS(ours);
    struct cz_embedding_args b = EMBEDDING_ARGS(theirs);
    b.size = sizeof b;
    ck_ok(ops_embedding_forward(inner, NULL, &a));
    ck_ok(cz_embedding_forward(&ops, &b));
    check_sides("embedding forward");
    ck_ok(ops_embedding_backward(inner, NULL, &a));
    ck_ok(cz_embedding_backward(&ops, &b));
    check_sides("embedding backward");
    size_t nbytes;
    ck_ok(cz_embedding_workspace(&ops, &b, &nbytes));
    ck_assert_uint_eq(nbytes, ops_embedding_workspace(inner, &a));
    close_ops();
}
END_TEST

START_TEST(rope_is_the_ops_own)
{
    for (int by_T = 0; by_T < 2; by_T++) {
        open_ops();
        const int32_t positions[] = {4, 0, 3};
        struct rope_table_args ta = {.N = 5, .half = 4, .first = 2, .freq = ours.in[7]};
        ta.scale = 1.5f;
        ta.cos = ours.out[0];
        ta.sin = ours.out[1];
        struct cz_rope_table_args tb = {
            .size = sizeof tb, .N = 5, .half = 4, .first = 2, .freq = theirs.in[7]};
        tb.scale = 1.5f;
        tb.cos_table = theirs.out[0];
        tb.sin_table = theirs.out[1];
        ck_ok(ops_rope_table(inner, NULL, &ta));
        ck_ok(cz_rope_table(&ops, &tb));
        check_sides("rope table");
        struct rope_args a = {.N = 3, .H = 2, .D = 8, .stride = by_T ? 16 : 20, .T = by_T ? 2 : 0};
        a.positions = by_T ? NULL : positions;
        a.cos = ours.out[0];
        a.sin = ours.out[1];
        a.x = ours.in[0];
        a.inverse = by_T;
        struct cz_rope_args b = {.size = sizeof b, .N = 3, .H = 2, .D = 8, .T = by_T ? 2 : 0};
        b.stride = by_T ? 0 : 20;
        b.positions = by_T ? NULL : positions;
        b.cos_table = theirs.out[0];
        b.sin_table = theirs.out[1];
        b.x = theirs.in[0];
        b.inverse = by_T;
        ck_ok(ops_rope(inner, NULL, &a));
        ck_ok(cz_rope(&ops, &b));
        check_sides("rope");
        close_ops();
    }
}
END_TEST

START_TEST(elementwise_ops_are_the_ops_own)
{
    open_ops();
    struct dropout_args da = {.numel = 100, .p = 0.4f, .first_idx = 5};
    da.rng = key_in;
    da.x = ours.in[0];
    da.y = ours.out[0];
    struct cz_dropout_args db = {.size = sizeof db, .numel = 100, .p = 0.4f, .first_idx = 5};
    db.rng = key_out;
    db.x = theirs.in[0];
    db.y = theirs.out[0];
    ck_ok(ops_dropout(inner, NULL, &da));
    ck_ok(cz_dropout(&ops, &db));
    check_sides("dropout");
    for (uint64_t i = 0; i < 100; i++) /* the documented rule */
        ck_assert_int_eq(theirs.out[0][i] != 0, cz_rng_uniform(&key_out, 5 + i) >= 0.4f);

    const struct add_args aa = {.numel = 9, .a = ours.in[0], .b = ours.in[1], .y = ours.out[1]};
    const struct cz_add_args ab = {
        .size = sizeof ab, .numel = 9, .a = theirs.in[0], .b = theirs.in[1], .y = theirs.out[1]};
    ck_ok(ops_add(inner, NULL, &aa));
    ck_ok(cz_add(&ops, &ab));
    check_sides("add");
    ck_assert_float_eq(theirs.out[1][8], theirs.in[0][8] + theirs.in[1][8]);

    const struct cast_scale_args ca = {
        .y_dtype = DTYPE_BF16, .numel = 9, .alpha = 3, .x = ours.in[0], .y = ours.out[2]};
    const struct cz_cast_scale_args cb = {.size = sizeof cb,
                                          .y_dtype = CZ_DTYPE_BF16,
                                          .numel = 9,
                                          .alpha = 3,
                                          .x = theirs.in[0],
                                          .y = theirs.out[2]};
    ck_ok(ops_cast_scale(inner, NULL, &ca));
    ck_ok(cz_cast_scale(&ops, &cb));
    check_sides("cast_scale");

    struct bias_grad_args ba = {.N = 7, .C = 3, .dtype = DTYPE_BF16, .accumulate = true};
    ba.dy = ours.in[0];
    ba.db = ours.out[3];
    ba.workspace = ours.workspace;
    ba.workspace_nbytes = sizeof ours.workspace;
    struct cz_bias_grad_args bb = {
        .size = sizeof bb, .N = 7, .C = 3, .dtype = CZ_DTYPE_BF16, .accumulate = true};
    bb.dy = theirs.in[0];
    bb.db = theirs.out[3];
    bb.workspace = theirs.workspace;
    bb.workspace_nbytes = sizeof theirs.workspace;
    ck_ok(ops_bias_grad(inner, NULL, &ba));
    ck_ok(cz_bias_grad(&ops, &bb));
    size_t nbytes;
    ck_ok(cz_bias_grad_workspace(&ops, &bb, &nbytes));
    ck_assert_uint_eq(nbytes, ops_bias_grad_workspace(inner, &ba));
    ck_assert_mem_eq(ours.out[3], theirs.out[3], sizeof ours.out[3]);

    ck_assert(cz_ops_on_host(&ops));
    ck_ok(cz_copy(&ops, theirs.out[4], theirs.in[0], 40));
    ck_assert_mem_eq(theirs.out[4], theirs.in[0], 40);
    ck_assert_float_eq(theirs.out[4][10], 0.0f);
    ck_assert_float_eq(theirs.out[4][11], 0.25f);
    ck_ok(cz_fill_zero(&ops, theirs.out[4], 40));
    ck_assert_float_eq(theirs.out[4][9], 0.0f);
    ck_assert_float_eq(theirs.out[4][11], 0.25f);
    ck_ok(cz_copy(&ops, NULL, NULL, 0));
    ck_ok(cz_fill_zero(&ops, NULL, 0));
    close_ops();
}
END_TEST

#define HEAD_ARGS(s)                                                                               \
    {                                                                                              \
        .N = 9, .C = 5, .V = 6, .x = (s).in[0], .w = (s).in[1], .bias = (s).in[2],                 \
        .labels = (s).ids, .loss_weights = (s).in[3], .divisor = 4, .loss = (s).out[0],            \
        .logits = (s).out[1], .dloss = 0.5f, .dx = (s).out[2], .dw = (s).out[3],                   \
        .dbias = (s).out[4], .dw_accumulate = true, .dbias_accumulate = false,                     \
        .workspace = (s).workspace, .workspace_nbytes = sizeof(s).workspace                        \
    }

START_TEST(cross_entropies_are_the_ops_own)
{
    open_ops();
    const struct ce_head_args a = HEAD_ARGS(ours);
    struct cz_head_cross_entropy_args b = HEAD_ARGS(theirs);
    b.size = sizeof b;
    size_t want, nbytes;
    ck_ok(ops_ce_head_workspace(inner, &a, &want));
    ck_ok(cz_head_cross_entropy_workspace(&ops, &b, &nbytes));
    ck_assert_uint_eq(nbytes, want);
    ck_ok(ops_ce_head(inner, NULL, &a));
    ck_ok(cz_head_cross_entropy(&ops, &b));
    check_sides("head_cross_entropy");
    const struct cross_entropy_args ca = {.N = 9,
                                          .V = 6,
                                          .logits = ours.in[4],
                                          .labels = ours.ids,
                                          .loss_weights = ours.in[3],
                                          .divisor = 4,
                                          .loss = ours.out[5],
                                          .dloss = 0.5f,
                                          .dlogits = ours.out[6]};
    const struct cz_cross_entropy_args cb = {.size = sizeof cb,
                                             .N = 9,
                                             .V = 6,
                                             .logits = theirs.in[4],
                                             .labels = theirs.ids,
                                             .loss_weights = theirs.in[3],
                                             .divisor = 4,
                                             .loss = theirs.out[5],
                                             .dloss = 0.5f,
                                             .dlogits = theirs.out[6]};
    ck_ok(ops_cross_entropy(inner, NULL, &ca));
    ck_ok(cz_cross_entropy(&ops, &cb));
    check_sides("cross_entropy");
    ck_assert_float_ne(ours.out[6][0], 0.0f);
    close_ops();
}
END_TEST

static void says(const char *text)
{
    ck_assert_msg(strstr(cz_last_error(), text) != NULL, "\"%s\" lacks \"%s\"", cz_last_error(),
                  text);
}

START_TEST(mistakes_are_refused_with_a_sentence)
{
    open_ops();
    size_t nbytes;
    struct {
        struct cz_add_args args;
        char later[8];
    } newer = {{.size = sizeof newer,
                .numel = 4,
                .a = theirs.in[0],
                .b = theirs.in[1],
                .y = theirs.out[0]},
               {0}};
    ck_ok(cz_add(&ops, &newer.args));
    newer.later[7] = 1;
    ck_fails(cz_add(&ops, &newer.args), CZ_UNSUPPORTED);
    says("cz_add_args");
    newer.args.size = 0;
    ck_fails(cz_add(&ops, &newer.args), CZ_INVALID);
    says("cz_add_args.size is 0");
    ck_fails(cz_add(&ops, NULL), CZ_INVALID);
    says("struct cz_add_args");
    newer.args.size = sizeof newer.args;
    ck_fails(cz_add(NULL, &newer.args), CZ_INVALID);
    says("ops is NULL");
    newer.args.y = NULL;
    ck_fails(cz_add(&ops, &newer.args), CZ_INVALID);
    says("y are needed");

    const struct cz_matmul_args product = {.size = sizeof product, .m = -1, .n = 1, .k = 1};
    ck_fails(cz_matmul_workspace(&ops, &product, &nbytes), CZ_INVALID);
    says("m -1");
    const struct cz_norm_args norm = {.size = sizeof norm, .N = -2, .C = 4};
    ck_fails(cz_norm_workspace(&ops, &norm, &nbytes), CZ_INVALID);
    says("-2");
    ck_fails(cz_norm_workspace(&ops, &norm, NULL), CZ_INVALID);
    says("nbytes is NULL");
    struct cz_attention_args attention = {
        .size = sizeof attention, .B = 1, .Tq = 1, .Tk = 1, .H = 3, .G = 2, .D = 4};
    ck_fails(cz_attention_forward_workspace(&ops, &attention, &nbytes), CZ_INVALID);
    says("does not divide");
    attention.H = INT64_MAX;
    ck_fails(cz_attention_forward(&ops, &attention), CZ_INVALID);
    says("cz_attention_args");
    const struct cz_activation_args activation = {
        .size = sizeof activation, .kind = (enum cz_activation)44, .numel = 1};
    ck_fails(cz_activation_forward(&ops, &activation), CZ_INVALID);
    says("44");
    ck_fails(cz_copy(&ops, NULL, theirs.in[0], 4), CZ_INVALID);
    says("dst is NULL");
    ck_fails(cz_copy(&ops, theirs.in[0], NULL, 4), CZ_INVALID);
    says("src is NULL");
    ck_fails(cz_fill_zero(&ops, NULL, 4), CZ_INVALID);
    says("dst is NULL");
    ck_fails(cz_fill_zero(NULL, theirs.in[0], 4), CZ_INVALID);
    says("ops is NULL");
    ck_assert(!cz_ops_on_host(NULL));
    close_ops();
}
END_TEST

TEST_MAIN("api/ops", matmul_is_the_ops_own, norms_are_the_ops_own, activations_are_the_ops_own,
          attention_is_the_ops_own, embedding_is_the_ops_own, rope_is_the_ops_own,
          elementwise_ops_are_the_ops_own, cross_entropies_are_the_ops_own,
          mistakes_are_refused_with_a_sentence)
