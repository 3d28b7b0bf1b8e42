/* Claim: the decoder block stays inside the bytes it asks for, in every dtype, ratio of heads,
 * place of its norms and for smaller batches; its gradients are those of its forward; recomputation
 * repeats the forward to the bit; keeping what could be made again changes no bit; frozen and
 * accumulated gradients are as asked; experts that no token chose are not computed; decoding with a
 * cache gives what evaluation gives; positions count only by their differences. */
#include "model/decoder/decoder_impl.h"
#include "tests/unit/model/layer_rig.h"

enum { B = 2, T = 7, C = 24, F = 40 };

/* Query heads, key heads, width of a head; H·D is C, less, or more. */
static const struct shape {
    int64_t H, G, D;
    bool qkv_bias, o_bias, mlp_bias, fused_maps, no_rope;
    int norms, qk_norm;
    int64_t rotary; /* of each head; 0: all */
    bool gelu;
    float norm_offset, softcap;
    int64_t window;
    float attention_scale, residual_scale;
    float resid_dropout_p; /* where the attention weights have dropout */
    int64_t n_experts, top_k;
    bool weights_add_to_one;
    bool plain_mlp, layer_norm; /* norms with biases */
} shapes[] = {
    {3, 3, 8, .qkv_bias = false},                                  /* as many keys as queries */
    {4, 2, 4, .qkv_bias = true},                                   /* Qwen2 */
    {6, 1, 6, .qkv_bias = true, .o_bias = true, .mlp_bias = true}, /* one key head, wider than C */
    {2, 2, 10, .mlp_bias = true},
    {3, 1, 10, .qk_norm = QK_NORM_HEADS},                       /* Qwen3 */
    {4, 2, 6, .norms = NORMS_AFTER, .qk_norm = QK_NORM_WHOLE},  /* OLMo 2 */
    {4, 2, 6, .attention_scale = 0.2f, .residual_scale = 0.3f}, /* Granite */
    {2, 1, 14, .o_bias = true, .no_rope = true},                /* SmolLM3 */
    {4, 2, 6, .norms = NORMS_AROUND, .qk_norm = QK_NORM_HEADS, .gelu = true, .norm_offset = 1,
     .window = 3}, /* Gemma 3 */
    {4, 2, 6, .fused_maps = true, .rotary = 4, .softcap = 0.7f,
     .resid_dropout_p = 0.4f}, /* Phi-3 */
    {2, 1, 6, .qk_norm = QK_NORM_HEADS, .n_experts = 4, .top_k = 2, .weights_add_to_one = true},
    {2, 2, 6, .n_experts = 3, .top_k = 3}, /* Qwen3-MoE */
    {3, 3, 8, .qkv_bias = true, .o_bias = true, .mlp_bias = true, .no_rope = true, .gelu = true,
     .resid_dropout_p = 0.4f, .plain_mlp = true, .layer_norm = true}, /* MegatronBERT */
};
enum { N_SHAPES = CZ_ARRAY_LEN(shapes) };

/* Another rounding of the router's logits may choose another expert. */
static bool choices_may_differ(const struct shape *s, enum cz_dtype dtype)
{
    return dtype != DTYPE_F32 && s->top_k < s->n_experts;
}

static int32_t positions[B * T];
static uint8_t key_mask[B * T];

static void fill_batch(void)
{
    const struct rng_key key = {.seed = 77};
    for (size_t i = 0; i < B * T; i++) {
        positions[i] = (int32_t)(rng_u32(&key, i) % 50);
        key_mask[i] = 1;
    }
    for (size_t t = 5; t < T; t++) key_mask[t] = 0;     /* padding behind */
    for (size_t t = 0; t < 2; t++) key_mask[T + t] = 0; /* and in front */
}

static struct decoder_block_hp block_hp(const struct shape *s, float dropout_p)
{
    struct decoder_block_hp hp = {
        .layer_idx = 1,
        .C = C,
        .F = F,
        .H = s->H,
        .G = s->G,
        .D = s->D,
        .qkv_bias = s->qkv_bias,
        .o_bias = s->o_bias,
        .mlp_bias = s->mlp_bias,
        .fused_maps = s->fused_maps,
        .norms = s->norms,
        .qk_norm = s->qk_norm,
        .no_rope = s->no_rope,
        .attention_scale = s->attention_scale,
        .residual_scale = s->residual_scale,
        .n_experts = s->n_experts,
        .top_k = s->top_k,
        .weights_add_to_one = s->weights_add_to_one,
        .plain_mlp = s->plain_mlp,
        .layer_norm = s->layer_norm,
        .norm_bias = s->layer_norm,
        .eps = 1e-5f,
        .attn_dropout_p = dropout_p,
        .resid_dropout_p = dropout_p > 0 ? s->resid_dropout_p : 0,
        .init_std = 0.02f,
        .gate = s->gelu ? ACT_GELU_TANH : ACT_SILU,
        .norm_offset = s->norm_offset,
        .softcap = s->softcap,
        .window = s->window,
        .rope = {.half = (s->rotary ? s->rotary : s->D) / 2, .scale = 1.0f}};
    for (int64_t i = 0; i < hp.rope.half; i++)
        hp.rope.freq[i] = powf(100.0f, -(float)i / (float)hp.rope.half);
    return hp;
}

static struct decoder_block_hp hps[4]; /* of the rigs that are open, in turn */

static void open_block(struct rig *r, const struct shape *s, enum cz_dtype dtype, bool training,
                       float dropout_p)
{
    static int turn;
    struct decoder_block_hp *hp = &hps[turn++ & 3];
    fill_batch();
    *hp = block_hp(s, dropout_p);
    rig_open(r, &decoder_block_class, hp, B, T, C, C, dtype, training);
    for (size_t p = 0; p < r->list.n; p++) /* of keys that nothing turns */
        if (s->no_rope && strstr(r->table.params[r->list.idx[p]].name, "k_proj.bias"))
            r->zero_grad[p] = true;
}

/* ---- memory -----------------------------------------------------------------------------------
 */

START_TEST(the_block_stays_inside_its_bytes)
{
    const enum cz_dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    for (int s = 0; s < N_SHAPES; s++)
        for (int d = 0; d < 3; d++)
            for (int p = 0; p < 2; p++) {
                struct rig r;
                open_block(&r, &shapes[s], dtypes[d], true, p ? 0.25f : 0.0f);
                r.batch.key_mask = p ? key_mask : NULL;
                for (int smaller = 0; smaller < 2; smaller++) {
                    r.batch.B = B - smaller;
                    r.batch.T = T - 2 * smaller;
                    r.batch.positions = p ? positions : NULL;
                    rig_forward(&r, LAYER_TRAIN);
                    rig_backward(&r);
                    rig_forward(&r, LAYER_EVAL);
                }
                rig_close(&r); /* looks at the guards */
            }
}
END_TEST

START_TEST(evaluation_needs_less)
{
    for (int s = 0; s < N_SHAPES; s++) {
        struct rig r, e;
        open_block(&r, &shapes[s], DTYPE_F32, true, 0.1f);
        rig_forward(&r, LAYER_EVAL);
        open_block(&e, &shapes[s], DTYPE_F32, false, 0.1f);
        rig_forward(&e, LAYER_EVAL);
        ck_assert_uint_eq(e.sizes.saved_nbytes, 0);
        ck_assert_uint_eq(r.sizes.cache_nbytes, 0);
        ck_assert_uint_eq(e.sizes.cache_nbytes,
                          (size_t)(2 * B * T * shapes[s].G * shapes[s].D) * sizeof(float));
        ck_assert_double_eq(r.sizes.flops_forward, e.sizes.flops_forward);
        ck_assert_mem_eq(rig_data(&r.out), rig_data(&e.out), r.sizes.out_nbytes);
        rig_close(&e);
        rig_close(&r);
    }
}
END_TEST

START_TEST(impossible_shapes_are_refused)
{
    struct rig r;
    struct layer_sizes sizes;
    open_block(&r, &shapes[0], DTYPE_F32, true, 0.0f);
    struct batch_shape shape = r.shape;
    shape.B = INT64_MAX / 2;
    ck_fails(r.cls->size(r.hp, &shape, &sizes), CZ_INVALID);
    shape.B = 0;
    ck_fails(r.cls->size(r.hp, &shape, &sizes), CZ_INVALID);
    rig_close(&r);
}
END_TEST

START_TEST(flops_count_every_product)
{
    struct rig r;
    open_block(&r, &shapes[1], DTYPE_F32, true, 0.0f);
    const double n = B * T, HD = 16, GD = 8;
    ck_assert_double_eq(r.sizes.flops_forward,
                        2 * n * (C * HD + 2 * C * GD + HD * C + 3 * C * F) + 4 * n * T * HD);
    rig_close(&r);
    open_block(&r, &shapes[10], DTYPE_F32, true, 0.0f); /* two experts of four, and the router */
    ck_assert_double_eq(r.sizes.flops_forward,
                        2 * n * (2 * C * 12 + 2 * C * 6 + 2 * 3 * C * F + C * 4) + 4 * n * T * 12);
    rig_close(&r);
    open_block(&r, &shapes[12], DTYPE_F32, true, 0.0f); /* an MLP of two maps */
    ck_assert_double_eq(r.sizes.flops_forward, 2 * n * (4 * C * C + 2 * C * F) + 4 * n * T * C);
    rig_close(&r);
}
END_TEST

/* ---- gradients --------------------------------------------------------------------------------
 */

START_TEST(gradients_match_differences)
{
    for (int s = 0; s < N_SHAPES; s++)
        for (int variant = 0; variant < 4; variant++) {
            struct rig r;
            if (s != 2 && s % 4 != variant) continue; /* one shape in all, the rest in turn */
            open_block(&r, &shapes[s], DTYPE_F32, true, variant == 1 ? 0.3f : 0.0f);
            if (variant == 2) r.batch.key_mask = key_mask;
            if (variant == 3) {
                hps[0].rope.scale = hps[1].rope.scale = hps[2].rope.scale = hps[3].rope.scale =
                    1.2f;
                r.batch.positions = positions;
            }
            rig_check_gradients(&r, 5e-3);
            rig_close(&r);
        }
}
END_TEST

static void open_training(struct rig *r, int shape, enum cz_dtype dtype, float dropout_p)
{
    open_block(r, &shapes[shape], dtype, true, dropout_p);
}

START_TEST(gradients_accumulate_when_asked)
{
    for (int s = 2; s < N_SHAPES; s++) rig_check_accumulates(open_training, s);
}
END_TEST

START_TEST(frozen_parameters_get_none)
{
    static const int kinds[] = {2, 5, 8, 9, 11, 12}; /* every role, every place of a norm */
    for (size_t i = 0; i < CZ_ARRAY_LEN(kinds); i++) rig_check_frozen(open_training, kinds[i]);
}
END_TEST

/* Index of the parameter whose name ends so. */
static size_t param_of(const struct rig *r, const char *suffix)
{
    size_t p = 0;
    while (p < r->list.n && !strstr(r->table.params[r->list.idx[p]].name, suffix)) p++;
    ck_assert_uint_lt(p, r->list.n);
    return p;
}

/* A bias of keys that are neither rotated nor normed changes no softmax; with rotation it does.
 * Where gradients accumulate, what is there stays. */
START_TEST(the_bias_of_unrotated_keys_gets_zero)
{
    struct rig r;
    open_block(&r, &shapes[12], DTYPE_F32, true, 0.0f);
    const size_t k = param_of(&r, "k_proj.bias"), v = param_of(&r, "v_proj.bias");
    rig_forward(&r, LAYER_TRAIN);
    memset(rig_data(&r.grads[k]), 0x7f, C * sizeof(float));
    rig_backward(&r);
    for (int i = 0; i < C; i++) {
        ck_assert_float_eq(((const float *)rig_data(&r.grads[k]))[i], 0.0f);
        ck_assert_float_ne(((const float *)rig_data(&r.grads[v]))[i], 0.0f);
    }
    rig_close(&r);
    open_block(&r, &shapes[1], DTYPE_F32, true, 0.0f);
    rig_forward(&r, LAYER_TRAIN);
    rig_backward(&r);
    ck_assert_float_ne(((const float *)rig_data(&r.grads[param_of(&r, "k_proj.bias")]))[0], 0.0f);
    rig_close(&r);
}
END_TEST

static bool is_zero(const struct rig_block *b)
{
    for (size_t i = 0; i < b->nbytes / sizeof(float); i++)
        if (((const float *)rig_data(b))[i] != 0) return false;
    return true;
}

/* Three tokens choose among six experts. What the others' weights are, NaN even, changes no bit. */
START_TEST(experts_without_tokens_are_not_computed)
{
    static const struct shape six = {2, 1, 6, .n_experts = 6, .top_k = 1};
    struct rig r, poisoned;
    int n_unused = 0;
    open_block(&r, &six, DTYPE_F32, true, 0.0f);
    open_block(&poisoned, &six, DTYPE_F32, true, 0.0f);
    r.batch.B = poisoned.batch.B = 1;
    r.batch.T = poisoned.batch.T = 3;
    rig_forward(&r, LAYER_TRAIN);
    rig_backward(&r);
    for (size_t p = 0; p < r.list.n; p++) {
        const char *name = r.table.params[r.list.idx[p]].name;
        if (!strstr(name, ".experts.") || !is_zero(&r.grads[p])) continue;
        memset(rig_data(&poisoned.params[p]), 0xFF, poisoned.params[p].nbytes);
        n_unused++;
    }
    ck_assert_int_ge(n_unused, 3 * 3);
    rig_forward(&poisoned, LAYER_TRAIN);
    rig_backward(&poisoned);
    ck_assert_mem_eq(rig_data(&r.out), rig_data(&poisoned.out), 3 * C * sizeof(float));
    ck_assert_mem_eq(rig_data(&r.din), rig_data(&poisoned.din), 3 * C * sizeof(float));
    for (size_t p = 0; p < r.list.n; p++)
        ck_assert_mem_eq(rig_data(&r.grads[p]), rig_data(&poisoned.grads[p]), r.grads[p].nbytes);
    rig_close(&poisoned);
    rig_close(&r);
}
END_TEST

/* ---- randomness and recomputation -------------------------------------------------------------
 */

START_TEST(recomputing_repeats_the_forward)
{
    for (int s = 2; s < N_SHAPES; s++) rig_check_recomputes(open_training, s);
}
END_TEST

START_TEST(keeping_all_changes_no_bit)
{
    for (int s = 0; s < N_SHAPES; s++) {
        struct rig less, all;
        open_block(&less, &shapes[s], DTYPE_BF16, true, 0.2f);
        rig_keeps_all = true;
        open_block(&all, &shapes[s], DTYPE_BF16, true, 0.2f);
        rig_keeps_all = false;
        ck_assert_uint_gt(all.sizes.saved_nbytes, less.sizes.saved_nbytes);
        rig_forward(&less, LAYER_TRAIN);
        rig_forward(&all, LAYER_TRAIN);
        ck_assert_mem_eq(rig_data(&all.out), rig_data(&less.out), less.out.nbytes);
        rig_backward(&less);
        rig_backward(&all);
        ck_assert_mem_eq(rig_data(&all.din), rig_data(&less.din), less.din.nbytes);
        for (size_t p = 0; p < less.list.n; p++)
            ck_assert_mem_eq(rig_data(&all.grads[p]), rig_data(&less.grads[p]),
                             less.grads[p].nbytes);
        rig_close(&all);
        rig_close(&less);
    }
}
END_TEST

static void check_dropout(const struct shape *s)
{
    struct rig r, plain;
    open_block(&r, s, DTYPE_F32, true, 0.5f);
    open_block(&plain, s, DTYPE_F32, true, 0.0f);
    unsigned char *first = malloc(r.out.nbytes);
    rig_forward(&r, LAYER_TRAIN);
    memcpy(first, rig_data(&r.out), r.out.nbytes);
    rig_forward(&r, LAYER_TRAIN);
    ck_assert_mem_eq(rig_data(&r.out), first, r.out.nbytes);
    r.rng.step++;
    rig_forward(&r, LAYER_TRAIN);
    ck_assert_mem_ne(rig_data(&r.out), first, r.out.nbytes);
    rig_forward(&plain, LAYER_TRAIN);
    rig_forward(&r, LAYER_EVAL);
    ck_assert_mem_eq(rig_data(&r.out), rig_data(&plain.out), r.out.nbytes);
    r.no_dropout = true;
    rig_forward(&r, LAYER_TRAIN);
    ck_assert_mem_eq(rig_data(&r.out), rig_data(&plain.out), r.out.nbytes);
    free(first);
    rig_close(&plain);
    rig_close(&r);
}

START_TEST(dropout_follows_its_key_alone)
{
    check_dropout(&shapes[1]);
    check_dropout(&shapes[9]);  /* and what halves add */
    check_dropout(&shapes[12]); /* with a plain MLP */
}
END_TEST

/* ---- dtypes -----------------------------------------------------------------------------------
 */

START_TEST(sixteen_bits_stay_near_fp32)
{
    /* A handful of roundings in a row, each 2^-9 (bf16) or 2^-12 (fp16) of its operand. */
    const enum cz_dtype dtypes[] = {DTYPE_BF16, DTYPE_F16};
    const double tolerance[] = {4e-2, 6e-3};
    for (int s = 0; s < N_SHAPES; s++)
        for (int d = 0; d < 2; d++)
            if (!choices_may_differ(&shapes[s], dtypes[d]))
                rig_check_near_fp32(open_training, s, dtypes[d], tolerance[d]);
}
END_TEST

/* ---- positions --------------------------------------------------------------------------------
 */

START_TEST(positions_count_by_their_differences)
{
    for (int s = 0; s < N_SHAPES; s++) {
        struct rig counted, written, shifted;
        open_block(&counted, &shapes[s], DTYPE_F32, true, 0.0f);
        open_block(&written, &shapes[s], DTYPE_F32, true, 0.0f);
        open_block(&shifted, &shapes[s], DTYPE_F32, true, 0.0f);
        rig_forward(&counted, LAYER_TRAIN);
        rig_backward(&counted);
        for (int i = 0; i < B * T; i++) positions[i] = i % T;
        written.batch.positions = positions;
        rig_forward(&written, LAYER_TRAIN);
        rig_backward(&written);
        ck_assert_mem_eq(rig_data(&counted.out), rig_data(&written.out), counted.out.nbytes);
        ck_assert_mem_eq(rig_data(&counted.din), rig_data(&written.din), counted.din.nbytes);
        for (int i = 0; i < B * T; i++) positions[i] += i < T ? 9 : 40; /* each row by its own */
        shifted.batch.positions = positions;
        rig_forward(&shifted, LAYER_TRAIN);
        ck_assert_double_le(rig_error(rig_data(&shifted.out), DTYPE_F32, rig_data(&counted.out),
                                      DTYPE_F32, rig_numel_out(&counted)),
                            2e-5); /* angles of up to 46 rad, rounded */
        rig_close(&counted);
        rig_close(&written);
        rig_close(&shifted);
    }
}
END_TEST

/* ---- decoding ---------------------------------------------------------------------------------
 */

/* The next n positions of both sequences, in and out being (B,n,·) slices of (B,T,·) arrays. */
static void decode_slice(struct rig *r, const void *in, void *out, int64_t at, int64_t n,
                         bool written)
{
    const size_t row = C * dtype_size(r->dtype);
    static int32_t slice[B * T];
    for (int64_t b = 0; b < B; b++) {
        for (int64_t t = 0; t < n; t++) slice[b * n + t] = (int32_t)(at + t);
        memcpy((unsigned char *)rig_data(&r->in) + (size_t)(b * n) * row,
               (const unsigned char *)in + (size_t)(b * T + at) * row, (size_t)n * row);
    }
    r->batch.T = n;
    r->batch.positions = written ? slice : NULL;
    struct layer_args a = rig_args(r, LAYER_EVAL);
    a.cache = rig_data(&r->cache);
    a.position = at;
    a.cache_T = T;
    memset(rig_data(&r->workspace), 0x7f, r->workspace.nbytes);
    ck_ok(r->cls->decode(r->hp, &a));
    for (int64_t b = 0; b < B; b++)
        memcpy((unsigned char *)out + (size_t)(b * T + at) * row,
               (unsigned char *)rig_data(&r->out) + (size_t)(b * n) * row, (size_t)n * row);
}

START_TEST(decoding_equals_evaluation)
{
    const enum cz_dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    const double tolerance[] = {1e-5, 2e-2, 3e-3}; /* products in another shape, then rounded */
    static const int64_t cuts[][4] = {{T}, {1, 1, 1, T - 3}, {4, 1, 2}, {T - 1, 1}};
    for (int s = 0; s < N_SHAPES; s++)
        for (int d = 0; d < 3; d++) {
            struct rig r;
            if (choices_may_differ(&shapes[s], dtypes[d])) continue;
            open_block(&r, &shapes[s], dtypes[d], false, 0.0f);
            unsigned char *in = malloc(r.in.nbytes), *want = malloc(r.out.nbytes),
                          *got = malloc(r.out.nbytes);
            memcpy(in, rig_data(&r.in), r.in.nbytes);
            rig_forward(&r, LAYER_EVAL);
            memcpy(want, rig_data(&r.out), r.out.nbytes);
            for (size_t c = 0; c < 2 * CZ_ARRAY_LEN(cuts); c++) {
                int64_t at = 0;
                memset(rig_data(&r.cache), 0x7f, r.cache.nbytes);
                memset(got, 0x7f, r.out.nbytes);
                for (size_t i = 0; i < 4 && cuts[c / 2][i] > 0; i++) {
                    decode_slice(&r, in, got, at, cuts[c / 2][i], c % 2);
                    at += cuts[c / 2][i];
                }
                ck_assert_int_eq(at, T);
                ck_assert_double_le(rig_error(got, dtypes[d], want, dtypes[d], B * T * C),
                                    tolerance[d]);
            }
            free(in);
            free(want);
            free(got);
            rig_close(&r);
        }
}
END_TEST

TEST_MAIN("model/decoder", the_block_stays_inside_its_bytes, evaluation_needs_less,
          impossible_shapes_are_refused, flops_count_every_product, gradients_match_differences,
          gradients_accumulate_when_asked, frozen_parameters_get_none,
          experts_without_tokens_are_not_computed, the_bias_of_unrotated_keys_gets_zero,
          recomputing_repeats_the_forward, keeping_all_changes_no_bit,
          dropout_follows_its_key_alone, sixteen_bits_stay_near_fp32,
          positions_count_by_their_differences, decoding_equals_evaluation)
