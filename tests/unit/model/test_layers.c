/* Claim: each ready-made layer stays inside the bytes it asks for, in every dtype and for smaller
 * batches; its gradients are those of its forward, dropout included; recomputation repeats the
 * forward to the bit; frozen and accumulated gradients are as asked; decoding with a cache gives
 * what evaluation gives. */
#include "model/gpt2/gpt2_impl.h"
#include "model/parts/parts.h"
#include "tests/unit/model/layer_rig.h"

enum { B = 2, T = 7, C = 24, H = 3, F = 40, V = 19, P = 11 };

static int32_t ids[B * T], labels[B * T], positions[B * T];
static uint8_t key_mask[B * T];
static float loss_weights[B * T];

static void fill_batch(void)
{
    const struct rng_key key = {.seed = 77};
    for (size_t i = 0; i < B * T; i++) {
        ids[i] = (int32_t)(rng_u32(&key, i) % V);
        labels[i] = (int32_t)(rng_u32(&key, 1000 + i) % V);
        positions[i] = (int32_t)(rng_u32(&key, 2000 + i) % P);
        loss_weights[i] = 0.25f + rng_uniform(&key, 3000 + i);
        key_mask[i] = 1;
    }
    labels[3] = labels[9] = CZ_IGNORE_LABEL;
    for (size_t t = 5; t < T; t++) key_mask[T + t] = 0;
}

static struct gpt2_block_hp block_hp(enum activation act, float dropout_p)
{
    return (struct gpt2_block_hp){.layer_idx = 1,
                                  .C = C,
                                  .H = H,
                                  .F = F,
                                  .act = act,
                                  .eps = 1e-5f,
                                  .attn_scale = 0.35f,
                                  .attn_dropout_p = dropout_p,
                                  .resid_dropout_p = dropout_p,
                                  .init_std = 0.02f,
                                  .init_std_residual = 0.01f};
}

static struct model_embedding_hp embedding_hp(bool with_positions, float dropout_p)
{
    return (struct model_embedding_hp){.token_name = "wte.weight",
                                       .position_name = with_positions ? "wpe.weight" : NULL,
                                       .V = V,
                                       .P = P,
                                       .C = C,
                                       .dropout_p = dropout_p,
                                       .init_std = 0.02f};
}

static struct model_lm_head_hp head_hp(void)
{
    return (struct model_lm_head_hp){.norm_weight_name = "ln_f.weight",
                                     .norm_bias_name = "ln_f.bias",
                                     .weight_name = "lm_head.weight",
                                     .V = V,
                                     .C = C,
                                     .eps = 1e-5f,
                                     .init_std = 0.02f};
}

/* The three layers in turn. */
enum { EMBEDDING = 0, BLOCK, HEAD, N_KINDS };

static union any_hp {
    struct model_embedding_hp embedding;
    struct gpt2_block_hp block;
    struct model_lm_head_hp head;
} hps[4]; /* of the rigs that are open, in turn */

static void open_kind(struct rig *r, int kind, int64_t rows, int64_t cols, enum cz_dtype dtype,
                      bool training, float dropout_p)
{
    static int turn;
    union any_hp *hp = &hps[turn++ & 3];
    fill_batch();
    switch (kind) {
    case EMBEDDING:
        hp->embedding = embedding_hp(true, dropout_p);
        rig_open(r, &model_embedding_class, hp, rows, cols, 0, C, dtype, training);
        break;
    case BLOCK:
        hp->block = block_hp(ACT_GELU_TANH, dropout_p);
        rig_open(r, &gpt2_block_class, hp, rows, cols, C, C, dtype, training);
        break;
    default:
        hp->head = head_hp();
        rig_open(r, &model_lm_head_class, hp, rows, cols, C, 0, dtype, training);
        break;
    }
    r->batch.ids = ids;
    r->batch.labels = labels;
}

/* ---- memory -----------------------------------------------------------------------------------
 */

START_TEST(layers_stay_inside_their_bytes)
{
    const enum cz_dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    float *logits = malloc(B * T * V * sizeof *logits);
    for (int kind = 0; kind < N_KINDS; kind++)
        for (int d = 0; d < 3; d++)
            for (int p = 0; p < 2; p++) {
                struct rig r;
                open_kind(&r, kind, B, T, dtypes[d], true, p ? 0.25f : 0.0f);
                r.batch.key_mask = p ? key_mask : NULL;
                for (int smaller = 0; smaller < 2; smaller++) {
                    r.batch.B = B - smaller;
                    r.batch.T = T - 2 * smaller;
                    rig_forward(&r, LAYER_TRAIN);
                    rig_backward(&r);
                    rig_forward(&r, LAYER_EVAL);
                    if (kind != HEAD) continue;
                    struct layer_args a = rig_args(&r, LAYER_EVAL);
                    a.logits = logits;
                    ck_ok(r.cls->forward(r.hp, &a));
                }
                rig_close(&r); /* looks at the guards */
            }
    free(logits);
}
END_TEST

START_TEST(evaluation_needs_less)
{
    for (int kind = 0; kind < N_KINDS; kind++) {
        struct rig r, e;
        open_kind(&r, kind, B, T, DTYPE_F32, true, 0.1f);
        rig_forward(&r, LAYER_EVAL);
        open_kind(&e, kind, B, T, DTYPE_F32, false, 0.1f);
        rig_forward(&e, LAYER_EVAL);
        ck_assert_uint_eq(e.sizes.saved_nbytes, 0);
        ck_assert_uint_eq(r.sizes.cache_nbytes, 0);
        ck_assert_mem_eq(rig_data(&r.out), rig_data(&e.out), r.sizes.out_nbytes);
        ck_assert_float_eq(r.loss, e.loss);
        rig_close(&e);
        rig_close(&r);
    }
}
END_TEST

START_TEST(impossible_shapes_are_refused)
{
    for (int kind = 0; kind < N_KINDS; kind++) {
        struct rig r;
        struct layer_sizes sizes;
        open_kind(&r, kind, B, T, DTYPE_F32, true, 0.0f);
        struct batch_shape shape = r.shape;
        shape.B = INT64_MAX / 2;
        ck_fails(r.cls->size(r.hp, &shape, &sizes), CZ_INVALID);
        shape.B = (int64_t)1 << 30;
        shape.T = 2;
        ck_fails(r.cls->size(r.hp, &shape, &sizes), CZ_INVALID);
        shape.B = 0;
        ck_fails(r.cls->size(r.hp, &shape, &sizes), CZ_INVALID);
        shape.B = 1;
        shape.T = P + 1;
        if (kind == EMBEDDING) {
            ck_fails(r.cls->size(r.hp, &shape, &sizes), CZ_INVALID);
            ck_assert(strstr(cz_last_error(), "wpe.weight") != NULL);
        }
        rig_close(&r);
    }
}
END_TEST

/* ---- gradients --------------------------------------------------------------------------------
 */

START_TEST(block_gradients_match_differences)
{
    for (enum activation act = 0; act < ACTIVATIONS; act++)
        for (int variant = 0; variant < 3; variant++) {
            fill_batch();
            const struct gpt2_block_hp hp = block_hp(act, variant == 1 ? 0.3f : 0.0f);
            struct rig r;
            rig_open(&r, &gpt2_block_class, &hp, B, T, C, C, DTYPE_F32, true);
            if (variant == 2) r.batch.key_mask = key_mask;
            /* a kink of relu may be between the two sides of a difference */
            rig_check_gradients(&r, act == ACT_RELU ? 3e-2 : 5e-3);
            rig_close(&r);
        }
}
END_TEST

START_TEST(embedding_gradients_match_differences)
{
    for (int variant = 0; variant < 4; variant++) {
        fill_batch();
        const struct model_embedding_hp hp = embedding_hp(variant != 3, variant == 1 ? 0.3f : 0.0f);
        struct rig r;
        rig_open(&r, &model_embedding_class, &hp, B, T, 0, C, DTYPE_F32, true);
        r.batch.ids = ids;
        if (variant == 2) r.batch.positions = positions;
        rig_check_gradients(&r, 1e-3);
        if (variant < 2) /* positions without a token have no gradient */
            for (size_t i = T * C; i < P * C; i++)
                ck_assert_float_eq(((float *)rig_data(&r.grads[1]))[i], 0.0f);
        rig_close(&r);
    }
}
END_TEST

START_TEST(head_gradients_match_differences)
{
    for (int variant = 0; variant < 3; variant++) {
        fill_batch();
        struct model_lm_head_hp hp = head_hp();
        if (variant == 2) hp.norm_bias_name = NULL; /* RMS norm */
        struct rig r;
        rig_open(&r, &model_lm_head_class, &hp, B, T, C, 0, DTYPE_F32, true);
        r.batch.labels = labels;
        if (variant == 1) r.batch.loss_weights = loss_weights;
        rig_check_gradients(&r, 5e-3);
        rig_close(&r);
    }
}
END_TEST

START_TEST(counted_positions_equal_written_ones)
{
    for (int t = 0; t < T; t++) positions[t] = positions[T + t] = t;
    struct rig counted, written;
    open_kind(&counted, EMBEDDING, B, T, DTYPE_F32, true, 0.0f);
    open_kind(&written, EMBEDDING, B, T, DTYPE_F32, true, 0.0f);
    for (int t = 0; t < T; t++) positions[t] = positions[T + t] = t;
    written.batch.positions = positions;
    rig_forward(&counted, LAYER_TRAIN);
    rig_forward(&written, LAYER_TRAIN);
    rig_backward(&counted);
    rig_backward(&written);
    ck_assert_mem_eq(rig_data(&counted.out), rig_data(&written.out), counted.out.nbytes);
    ck_assert_double_le(rig_error(rig_data(&counted.grads[1]), DTYPE_F32,
                                  rig_data(&written.grads[1]), DTYPE_F32, P * C),
                        1e-6);
    rig_close(&counted);
    rig_close(&written);
}
END_TEST

static void open_training(struct rig *r, int kind, enum cz_dtype dtype, float dropout_p)
{
    open_kind(r, kind, B, T, dtype, true, dropout_p);
}

START_TEST(gradients_accumulate_when_asked)
{
    for (int kind = 0; kind < N_KINDS; kind++) rig_check_accumulates(open_training, kind);
}
END_TEST

START_TEST(frozen_parameters_get_none)
{
    for (int kind = 0; kind < N_KINDS; kind++) rig_check_frozen(open_training, kind);
}
END_TEST

/* ---- randomness and recomputation -------------------------------------------------------------
 */

START_TEST(recomputing_repeats_the_forward)
{
    rig_check_recomputes(open_training, BLOCK);
}
END_TEST

START_TEST(dropout_follows_its_key_alone)
{
    for (int kind = EMBEDDING; kind <= BLOCK; kind++) {
        struct rig r, plain;
        open_kind(&r, kind, B, T, DTYPE_F32, true, 0.5f);
        open_kind(&plain, kind, B, T, DTYPE_F32, true, 0.0f);
        unsigned char *first = malloc(r.out.nbytes);
        rig_forward(&r, LAYER_TRAIN);
        memcpy(first, rig_data(&r.out), r.out.nbytes);
        rig_forward(&r, LAYER_TRAIN);
        ck_assert_mem_eq(rig_data(&r.out), first, r.out.nbytes);
        struct rng_key key = r.rng;
        for (int part = 0; part < 4; part++) {
            r.rng = key;
            if (part == 0) r.rng.seed++;
            if (part == 1) r.rng.step++;
            if (part == 2) r.rng.sample++;
            if (part == 3) r.rng.site += RNG_SITES_PER_LAYER;
            rig_forward(&r, LAYER_TRAIN);
            ck_assert_mem_ne(rig_data(&r.out), first, r.out.nbytes);
        }
        rig_forward(&plain, LAYER_TRAIN);
        rig_forward(&r, LAYER_EVAL);
        ck_assert_mem_eq(rig_data(&r.out), rig_data(&plain.out), r.out.nbytes);
        r.no_dropout = true;
        rig_forward(&r, LAYER_TRAIN);
        ck_assert_mem_eq(rig_data(&r.out), rig_data(&plain.out), r.out.nbytes);
        rig_backward(&r);
        rig_backward(&plain);
        ck_assert_mem_eq(rig_data(&r.grads[0]), rig_data(&plain.grads[0]), r.grads[0].nbytes);
        free(first);
        rig_close(&plain);
        rig_close(&r);
    }
}
END_TEST

/* ---- dtypes -----------------------------------------------------------------------------------
 */

START_TEST(sixteen_bits_stay_near_fp32)
{
    /* A handful of roundings in a row, each 2^-9 (bf16) or 2^-12 (fp16) of its operand. */
    const enum cz_dtype dtypes[] = {DTYPE_BF16, DTYPE_F16};
    const double tolerance[] = {4e-2, 6e-3};
    for (int kind = 0; kind < N_KINDS; kind++)
        for (int d = 0; d < 2; d++)
            rig_check_near_fp32(open_training, kind, dtypes[d], tolerance[d]);
}
END_TEST

/* Gradients may also be kept in the model's own dtype. */
START_TEST(gradients_in_the_models_dtype)
{
    for (int kind = 0; kind < N_KINDS; kind++) {
        struct rig wide, narrow;
        open_kind(&wide, kind, B, T, DTYPE_BF16, true, 0.0f);
        open_kind(&narrow, kind, B, T, DTYPE_BF16, true, 0.0f);
        narrow.grad_dtype = narrow.shape.grad_dtype = DTYPE_BF16;
        struct layer_sizes sizes;
        ck_ok(narrow.cls->size(narrow.hp, &narrow.shape, &sizes));
        rig_block_free(&narrow.workspace, "workspace");
        narrow.workspace = rig_block_make(sizes.workspace_nbytes, 0x7f);
        narrow.sizes = sizes;
        rig_forward(&wide, LAYER_TRAIN);
        rig_forward(&narrow, LAYER_TRAIN);
        rig_backward(&wide);
        rig_backward(&narrow);
        for (size_t p = 0; p < wide.list.n; p++)
            ck_assert_double_le(rig_error(rig_data(&narrow.grads[p]), DTYPE_BF16,
                                          rig_data(&wide.grads[p]), DTYPE_F32,
                                          wide.grads[p].nbytes / sizeof(float)),
                                4.1e-3); /* one rounding: half of 2^-7 */
        rig_close(&wide);
        rig_close(&narrow);
    }
}
END_TEST

/* ---- decoding ---------------------------------------------------------------------------------
 */

/* The next n positions of both sequences, in and out being (B,n,·) slices of (B,T,·) arrays. */
static void decode_slice(struct rig *r, const void *in, void *out, float *logits, int64_t at,
                         int64_t n)
{
    const size_t e = dtype_size(r->dtype), row_in = (size_t)r->C_in * e,
                 row_out = (size_t)r->C_out * e;
    static int32_t slice_ids[B * T];
    for (int64_t b = 0; b < B; b++) {
        memcpy(slice_ids + b * n, ids + b * T + at, (size_t)n * sizeof *ids);
        memcpy((unsigned char *)rig_data(&r->in) + (size_t)(b * n) * row_in,
               (const unsigned char *)in + (size_t)(b * T + at) * row_in, (size_t)n * row_in);
    }
    r->batch.T = n;
    r->batch.ids = slice_ids;
    struct layer_args a = rig_args(r, LAYER_EVAL);
    a.loss = NULL;
    a.logits = logits;
    a.cache = rig_data(&r->cache);
    a.position = at;
    a.cache_T = T;
    memset(rig_data(&r->workspace), 0x7f, r->workspace.nbytes);
    ck_ok(r->cls->decode(r->hp, &a));
    for (int64_t b = 0; b < B && row_out; b++)
        memcpy((unsigned char *)out + (size_t)(b * T + at) * row_out,
               (unsigned char *)rig_data(&r->out) + (size_t)(b * n) * row_out, (size_t)n * row_out);
}

START_TEST(decoding_equals_evaluation)
{
    const enum cz_dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    const double tolerance[] = {1e-5, 2e-2, 3e-3}; /* products in another shape, then rounded */
    static const int64_t cuts[][4] = {{T}, {1, 1, 1, T - 3}, {4, 1, 2}, {T - 1, 1}};
    for (int kind = 0; kind < N_KINDS; kind++)
        for (int d = 0; d < 3; d++)
            for (size_t c = 0; c < CZ_ARRAY_LEN(cuts); c++) {
                struct rig r;
                float want_logits[B * T * V], logits[B * V];
                open_kind(&r, kind, B, T, dtypes[d], false, 0.0f);
                unsigned char *in = malloc(r.in.nbytes + 1), *want = malloc(r.out.nbytes + 1),
                              *got = malloc(r.out.nbytes + 1);
                memcpy(in, rig_data(&r.in), r.in.nbytes);
                struct layer_args a = rig_args(&r, LAYER_EVAL);
                a.logits = kind == HEAD ? want_logits : NULL;
                ck_ok(r.cls->forward(r.hp, &a));
                memcpy(want, rig_data(&r.out), r.out.nbytes);

                int64_t at = 0;
                for (size_t i = 0; i < 4 && cuts[c][i] > 0; i++) {
                    decode_slice(&r, in, got, kind == HEAD ? logits : NULL, at, cuts[c][i]);
                    at += cuts[c][i];
                    for (int64_t b = 0; b < B && kind == HEAD; b++)
                        ck_assert_double_le(rig_error(logits + b * V, DTYPE_F32,
                                                      want_logits + (b * T + at - 1) * V, DTYPE_F32,
                                                      V),
                                            tolerance[d]);
                }
                ck_assert_int_eq(at, T);
                if (kind != HEAD)
                    ck_assert_double_le(
                        rig_error(got, dtypes[d], want, dtypes[d], (size_t)(B * T * C)),
                        tolerance[d]);
                free(in);
                free(want);
                free(got);
                rig_close(&r);
            }
}
END_TEST

/* ---- the head's own affairs -------------------------------------------------------------------
 */

START_TEST(head_gives_what_is_asked)
{
    struct rig r;
    float logits[B * T * V];
    open_kind(&r, HEAD, B, T, DTYPE_F32, true, 0.0f);
    rig_forward(&r, LAYER_TRAIN);
    const float train_loss = r.loss;
    struct layer_args a = rig_args(&r, LAYER_EVAL);
    a.logits = logits;
    ck_ok(r.cls->forward(r.hp, &a));
    double sum = 0;
    int n = 0;
    for (int i = 0; i < B * T; i++) { /* the loss follows from the logits */
        if (labels[i] == CZ_IGNORE_LABEL) continue;
        double z = 0;
        for (int v = 0; v < V; v++) z += exp((double)logits[i * V + v]);
        sum += log(z) - (double)logits[i * V + labels[i]];
        n++;
    }
    ck_assert_int_eq(n, B * T - 2);
    ck_assert_double_eq_tol((double)r.loss, sum / n, 1e-5);
    ck_assert_float_eq_tol(r.loss, train_loss, 1e-6f);

    r.batch.labels = NULL; /* logits alone */
    float again[B * T * V];
    a.loss = NULL;
    a.logits = again;
    ck_ok(r.cls->forward(r.hp, &a));
    for (int i = 0; i < B * T * V; i++) ck_assert_float_eq_tol(again[i], logits[i], 1e-5f);
    a = rig_args(&r, LAYER_TRAIN);
    ck_fails(r.cls->forward(r.hp, &a), CZ_INVALID);

    for (int i = 0; i < B * T; i++) labels[i] = CZ_IGNORE_LABEL; /* no label at all */
    r.batch.labels = labels;
    rig_forward(&r, LAYER_TRAIN);
    rig_backward(&r);
    ck_assert_float_eq(r.loss, 0.0f);
    for (size_t i = 0; i < rig_numel_in(&r); i++)
        ck_assert_float_eq(((float *)rig_data(&r.din))[i], 0.0f);
    rig_close(&r);
}
END_TEST

START_TEST(loss_gradient_scales_gradients)
{
    struct rig r;
    open_kind(&r, HEAD, B, T, DTYPE_F32, true, 0.0f);
    rig_forward(&r, LAYER_TRAIN);
    rig_backward(&r);
    const float loss = r.loss, g = ((float *)rig_data(&r.grads[2]))[5],
                dx = ((float *)rig_data(&r.din))[5];
    struct layer_args a = rig_args(&r, LAYER_TRAIN);
    a.dloss = 1024.0f;
    ck_ok(r.cls->forward(r.hp, &a));
    rig_backward(&r);
    ck_assert_float_eq(r.loss, loss); /* the loss itself is not scaled */
    ck_assert_float_eq_tol(((float *)rig_data(&r.grads[2]))[5], 1024 * g, 1e-3f * fabsf(g));
    ck_assert_float_eq_tol(((float *)rig_data(&r.din))[5], 1024 * dx, 1e-3f * fabsf(dx));
    rig_close(&r);
}
END_TEST

TEST_MAIN("model/layers", layers_stay_inside_their_bytes, evaluation_needs_less,
          impossible_shapes_are_refused, block_gradients_match_differences,
          embedding_gradients_match_differences, head_gradients_match_differences,
          counted_positions_equal_written_ones, gradients_accumulate_when_asked,
          frozen_parameters_get_none, recomputing_repeats_the_forward,
          dropout_follows_its_key_alone, sixteen_bits_stay_near_fp32, gradients_in_the_models_dtype,
          decoding_equals_evaluation, head_gives_what_is_asked, loss_gradient_scales_gradients)
