/* Claim: each layer of an encoder stays inside the bytes it asks for, in every dtype and for
 * smaller batches; its gradients are those of its forward, dropout included; recomputation repeats
 * the forward to the bit; frozen and accumulated gradients are as asked; padding, token types and
 * positions act as in PyTorch; labels that are ignored change nothing. */
#include "model/bert/encoder_impl.h"
#include "tests/unit/model/layer_rig.h"

enum { B = 3, T = 9, C = 24, E = 16, H = 3, F = 40, V = 19, P = 11, S = 3, K = 4, R = 10 };

static int32_t ids[B * T], replaced[B * T], labels[B * T], classes[B], types[B * T],
    positions[B * T];
static uint8_t key_mask[B * T];
static float loss_weights[B * T];

static void fill_batch(void)
{
    const struct rng_key key = {.seed = 77};
    for (size_t i = 0; i < B * T; i++) {
        ids[i] = (int32_t)(rng_u32(&key, i) % V);
        replaced[i] = i % 7 == 3 ? CZ_IGNORE_LABEL : i % 3 == 0;
        labels[i] = i % 4 == 1 ? (int32_t)(rng_u32(&key, 1000 + i) % V) : CZ_IGNORE_LABEL;
        positions[i] = (int32_t)(rng_u32(&key, 2000 + i) % P);
        types[i] = (int32_t)(rng_u32(&key, 3000 + i) % S);
        loss_weights[i] = 0.25f + rng_uniform(&key, 4000 + i);
        key_mask[i] = i % T < T - 2 * (i / T);
    }
    for (size_t b = 0; b < B; b++) classes[b] = (int32_t)(rng_u32(&key, 5000 + b) % K);
}

static const char *const block_names[ENCODER_N_PARAMS] = {
    "q.weight",   "q.bias",   "k.weight",   "k.bias",   "v.weight",  "v.bias",
    "att.weight", "att.bias", "ln1.weight", "ln1.bias", "fc.weight", "fc.bias",
    "out.weight", "out.bias", "ln2.weight", "ln2.bias",
};

static struct encoder_embedding_hp embedding_hp(bool with_types, float dropout_p)
{
    return (struct encoder_embedding_hp){.token_name = "word.weight",
                                         .position_name = "position.weight",
                                         .type_name = with_types ? "type.weight" : NULL,
                                         .norm_weight_name = "norm.weight",
                                         .norm_bias_name = "norm.bias",
                                         .V = V,
                                         .P = P,
                                         .S = S,
                                         .E = C,
                                         .C = C,
                                         .padding_id = -1,
                                         .position_padding_id = -1,
                                         .eps = 1e-12f,
                                         .dropout_p = dropout_p,
                                         .init_std = 0.02f};
}

static struct encoder_block_hp block_hp(enum activation act, float dropout_p)
{
    return (struct encoder_block_hp){.prefix = "layer",
                                     .names = block_names,
                                     .layer_idx = 1,
                                     .C = C,
                                     .H = H,
                                     .F = F,
                                     .act = act,
                                     .eps = 1e-12f,
                                     .attn_dropout_p = dropout_p,
                                     .proj_dropout_p = dropout_p,
                                     .out_dropout_p = dropout_p,
                                     .init_std = 0.02f};
}

/* Distances from −P + 1 on: far ones share buckets. */
static int32_t buckets[2 * P - 1];

/* MPNet's table, or DeBERTa's terms, with the block's maps and a norm or with neither. */
static struct encoder_positions_hp positions_hp(bool terms, bool own_maps)
{
    for (int i = 0; i < 2 * P - 1; i++) {
        const int behind = P - 1 - i, at = R / 2 + behind;
        buckets[i] = at < 0 ? 0 : at < R ? at : R - 1;
    }
    return (struct encoder_positions_hp){.n_buckets = R,
                                         .buckets = buckets,
                                         .table_name = "table.weight",
                                         .norm_weight_name = own_maps ? NULL : "norm.weight",
                                         .norm_bias_name = own_maps ? NULL : "norm.bias",
                                         .c2p = terms,
                                         .p2c = terms,
                                         .own_maps = own_maps,
                                         .key_weight_name = "pk.weight",
                                         .key_bias_name = "pk.bias",
                                         .query_weight_name = "pq.weight",
                                         .query_bias_name = "pq.bias"};
}

static struct class_head_hp class_hp(enum activation act, float dropout_p)
{
    return (struct class_head_hp){.pool_weight_name = "pool.weight",
                                  .pool_bias_name = "pool.bias",
                                  .class_weight_name = "class.weight",
                                  .class_bias_name = "class.bias",
                                  .act = act,
                                  .C = C,
                                  .K = K,
                                  .dropout_p = dropout_p,
                                  .init_std = 0.02f};
}

static struct mlm_head_hp mlm_hp(bool bias_first)
{
    return (struct mlm_head_hp){.dense_weight_name = "dense.weight",
                                .dense_bias_name = "dense.bias",
                                .norm_weight_name = "norm.weight",
                                .norm_bias_name = "norm.bias",
                                .weight_name = "decoder.weight",
                                .bias_name = "bias",
                                .bias_alias = "decoder.bias",
                                .bias_first = bias_first,
                                .act = ACT_GELU_ERF,
                                .C = C,
                                .E = C,
                                .V = V,
                                .eps = 1e-12f,
                                .init_std = 0.02f};
}

/* The layers in turn; FIRST_* are blocks in front of a classification head, TABLE and TERMS with
 * positions, NARROW_* have embeddings of width E, with a map to C, behind the norm or in front of
 * it (NARROW_FIRST), and DROP_CLASS drops its input, too (ELECTRA). */
enum {
    EMBEDDING = 0,
    NARROW_EMBEDDING,
    NARROW_FIRST_EMBEDDING,
    BLOCK,
    FIRST_BLOCK,
    TABLE_BLOCK,
    FIRST_TABLE_BLOCK,
    TERMS_BLOCK,
    FIRST_TERMS_BLOCK,
    OWN_TERMS_BLOCK,
    CLASS,
    DROP_CLASS,
    MLM,
    NARROW_MLM,
    REPLACED,
    N_KINDS
};

static bool is_class(int kind)
{
    return kind == CLASS || kind == DROP_CLASS;
}

static union any_hp {
    struct encoder_embedding_hp embedding;
    struct encoder_block_hp block;
    struct class_head_hp class;
    struct mlm_head_hp mlm;
    struct replaced_head_hp replaced;
} hps[4]; /* of the rigs that are open, in turn */

static void open_kind(struct rig *r, int kind, int64_t rows, int64_t cols, enum cz_dtype dtype,
                      bool training, float dropout_p)
{
    static int turn;
    union any_hp *hp = &hps[turn++ & 3];
    fill_batch();
    switch (kind) {
    case EMBEDDING:
    case NARROW_EMBEDDING:
    case NARROW_FIRST_EMBEDDING:
        hp->embedding = embedding_hp(true, dropout_p);
        if (kind != EMBEDDING) {
            hp->embedding.E = E;
            hp->embedding.project_weight_name = "project.weight";
            hp->embedding.project_bias_name = kind == NARROW_EMBEDDING ? "project.bias" : NULL;
            hp->embedding.project_first = kind == NARROW_FIRST_EMBEDDING;
        }
        rig_open(r, &encoder_embedding_class, hp, rows, cols, 0, C, dtype, training);
        break;
    case BLOCK:
    case FIRST_BLOCK:
    case TABLE_BLOCK:
    case FIRST_TABLE_BLOCK:
    case TERMS_BLOCK:
    case FIRST_TERMS_BLOCK:
    case OWN_TERMS_BLOCK:
        hp->block = block_hp(ACT_GELU_ERF, dropout_p);
        hp->block.first_only =
            kind == FIRST_BLOCK || kind == FIRST_TABLE_BLOCK || kind == FIRST_TERMS_BLOCK;
        hp->block.P = P;
        if (kind >= TABLE_BLOCK)
            hp->block.positions = positions_hp(kind >= TERMS_BLOCK, kind == OWN_TERMS_BLOCK);
        if (kind == TABLE_BLOCK || kind == FIRST_TABLE_BLOCK)
            hp->block.positions.norm_weight_name = NULL;
        rig_open(r, &encoder_block_class, hp, rows, cols, C, C, dtype, training);
        break;
    case REPLACED:
        hp->replaced = (struct replaced_head_hp){.dense_weight_name = "dense.weight",
                                                 .dense_bias_name = "dense.bias",
                                                 .out_weight_name = "out.weight",
                                                 .out_bias_name = "out.bias",
                                                 .act = ACT_GELU_ERF,
                                                 .C = C,
                                                 .init_std = 0.02f};
        rig_open(r, &replaced_head_class, hp, rows, cols, C, 0, dtype, training);
        break;
    case CLASS:
    case DROP_CLASS:
        hp->class = class_hp(ACT_TANH, dropout_p);
        hp->class.input_dropout_p = kind == DROP_CLASS ? hp->class.dropout_p : 0;
        rig_open(r, &class_head_class, hp, rows, cols, C, 0, dtype, training);
        break;
    default:
        hp->mlm = mlm_hp(true);
        if (kind == NARROW_MLM) {
            hp->mlm.E = E;
            hp->mlm.bias_first = false;
            hp->mlm.norm_first = true;
        }
        rig_open(r, &mlm_head_class, hp, rows, cols, C, 0, dtype, training);
        break;
    }
    r->batch.ids = ids;
    r->batch.labels = is_class(kind) ? classes : kind == REPLACED ? replaced : labels;
    if (kind >= BLOCK && kind <= FIRST_TABLE_BLOCK) r->zero_grad[ENCODER_K_B] = true;
    if (kind == OWN_TERMS_BLOCK) r->zero_grad[ENCODER_N_PARAMS + 1] = true; /* pk.bias */
}

static size_t n_logits(int kind)
{
    return is_class(kind) ? B * K : kind == REPLACED ? B * T : B * T * V;
}

/* ---- memory -----------------------------------------------------------------------------------
 */

START_TEST(layers_stay_inside_their_bytes)
{
    const enum cz_dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    float *logits = malloc(n_logits(MLM) * sizeof *logits);
    for (int kind = 0; kind < N_KINDS; kind++)
        for (int d = 0; d < 3; d++)
            for (int p = 0; p < 2; p++) {
                struct rig r;
                open_kind(&r, kind, B, T, dtypes[d], true, p ? 0.25f : 0.0f);
                r.batch.key_mask = p ? key_mask : NULL;
                r.batch.types = p ? types : NULL;
                for (int smaller = 0; smaller < 3; smaller++) {
                    r.batch.B = smaller < 2 ? B - smaller : 1;
                    r.batch.T = smaller < 2 ? T - 2 * smaller : 1;
                    rig_forward(&r, LAYER_TRAIN);
                    rig_backward(&r);
                    rig_forward(&r, LAYER_EVAL);
                    if (kind < CLASS) continue;
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
        ck_assert_uint_eq(e.sizes.cache_nbytes, 0);
        ck_assert_uint_le(e.sizes.workspace_nbytes, r.sizes.workspace_nbytes);
        ck_assert_mem_eq(rig_data(&r.out), rig_data(&e.out), r.sizes.out_nbytes);
        ck_assert_float_eq(r.loss, e.loss);
        rig_close(&e);
        rig_close(&r);
    }
}
END_TEST

/* Keys and values of all rows, the rest of those that continue: two per multiply-add. */
START_TEST(flops_count_every_product)
{
    for (int kind = BLOCK; kind <= FIRST_BLOCK; kind++) {
        struct rig r;
        open_kind(&r, kind, B, T, DTYPE_F32, true, 0.0f);
        const double n = B * T, rows = kind == BLOCK ? n : B;
        ck_assert_double_eq(r.sizes.flops_forward, 2 * n * 2 * C * C + 2 * rows * 2 * C * C +
                                                       2 * rows * 2 * C * F + 2 * 2 * rows * T * C);
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
        shape.B = 0;
        ck_fails(r.cls->size(r.hp, &shape, &sizes), CZ_INVALID);
        shape.B = 1;
        shape.T = P + 1;
        if (kind >= TABLE_BLOCK && kind <= OWN_TERMS_BLOCK) {
            ck_fails(r.cls->size(r.hp, &shape, &sizes), CZ_INVALID);
            ck_assert(strstr(cz_last_error(), "the 11 positions of table.weight") != NULL);
        }
        if (kind == EMBEDDING) {
            ck_fails(r.cls->size(r.hp, &shape, &sizes), CZ_INVALID);
            ck_assert(strstr(cz_last_error(), "position.weight") != NULL);
        }
        rig_close(&r);
    }
}
END_TEST

/* ---- gradients --------------------------------------------------------------------------------
 */

START_TEST(block_gradients_match_differences)
{
    const enum activation acts[] = {ACT_GELU_ERF, ACT_GELU_TANH, ACT_SILU, ACT_RELU};
    for (size_t i = 0; i < CZ_ARRAY_LEN(acts); i++)
        for (int variant = 0; variant < 6; variant++) {
            struct rig r;
            open_kind(&r, variant < 3 ? BLOCK : FIRST_BLOCK, B, T, DTYPE_F32, true,
                      variant % 3 == 1 ? 0.3f : 0.0f);
            ((struct encoder_block_hp *)(uintptr_t)r.hp)->act = acts[i];
            if (variant % 3 == 2) r.batch.key_mask = key_mask;
            /* kinks of relu are between the two sides of a difference */
            rig_check_gradients(&r, acts[i] == ACT_RELU ? 1e-1 : 5e-3);
            rig_close(&r);
        }
}
END_TEST

START_TEST(gradients_of_positions_match_differences)
{
    for (int kind = TABLE_BLOCK; kind <= OWN_TERMS_BLOCK; kind++)
        for (int variant = 0; variant < 3; variant++) {
            struct rig r;
            open_kind(&r, kind, B, T, DTYPE_F32, true, variant == 1 ? 0.3f : 0.0f);
            if (variant == 2) r.batch.key_mask = key_mask;
            rig_check_gradients(&r, 5e-3);
            rig_close(&r);
        }
}
END_TEST

/* The first positions, and the gradients under a loss of them alone, are those of the whole block.
 */
static void check_first_positions(int whole_kind, int first_kind)
{
    struct rig whole, first;
    open_kind(&whole, whole_kind, B, T, DTYPE_F32, true, 0.0f);
    open_kind(&first, first_kind, B, T, DTYPE_F32, true, 0.0f);
    whole.batch.key_mask = first.batch.key_mask = key_mask;
    rig_forward(&whole, LAYER_TRAIN);
    rig_forward(&first, LAYER_TRAIN);
    const float *x = rig_data(&whole.out), *y = rig_data(&first.out);
    for (size_t i = 0; i < B * T * C; i++)
        if (i / C % T == 0)
            ck_assert_float_eq_tol(y[i], x[i], 1e-5f);
        else
            ck_assert_float_eq(y[i], 0.0f);
    rig_close(&first);
    rig_close(&whole);
}

START_TEST(first_positions_are_the_blocks_own)
{
    check_first_positions(BLOCK, FIRST_BLOCK);
    check_first_positions(TABLE_BLOCK, FIRST_TABLE_BLOCK);
    check_first_positions(TERMS_BLOCK, FIRST_TERMS_BLOCK);
}
END_TEST

/* Scores of positions of more rows than are made at a time: as those of each row alone. */
START_TEST(rows_of_positions_in_parts_are_the_same)
{
    enum { MANY = 7, LONG = 260, WIDE = 12, HEADS = 3, ALL = 2 * LONG };
    static int32_t far[2 * LONG - 1];
    for (int i = 0; i < 2 * LONG - 1; i++) far[i] = 2 * LONG - 1 - i;
    struct encoder_block_hp hp = block_hp(ACT_RELU, 0.0f);
    hp.C = WIDE, hp.H = HEADS, hp.F = 5, hp.P = LONG;
    hp.positions = positions_hp(true, false);
    hp.positions.n_buckets = ALL, hp.positions.buckets = far;
    struct scratch none = {0};
    ck_assert_int_lt(encoder_positions_take(&hp, MANY, LONG, false, DTYPE_F32, true, &none).n_rows,
                     MANY);
    struct rig all, one;
    rig_open(&all, &encoder_block_class, &hp, MANY, LONG, WIDE, WIDE, DTYPE_F32, true);
    rig_open(&one, &encoder_block_class, &hp, 1, LONG, WIDE, WIDE, DTYPE_F32, true);
    rig_forward(&all, LAYER_TRAIN);
    rig_backward(&all);
    const size_t numel = LONG * WIDE, table = ENCODER_N_PARAMS;
    double *sum = calloc(ALL * WIDE, sizeof *sum);
    for (size_t b = 0; b < MANY; b++) {
        memcpy(rig_data(&one.in), (float *)rig_data(&all.in) + b * numel, numel * sizeof(float));
        memcpy(rig_data(&one.dout), (float *)rig_data(&all.dout) + b * numel,
               numel * sizeof(float));
        rig_forward(&one, LAYER_TRAIN);
        rig_backward(&one);
        const float *x = (const float *)rig_data(&all.out) + b * numel, *y = rig_data(&one.out);
        for (size_t i = 0; i < numel; i++) ck_assert_float_eq_tol(x[i], y[i], 1e-5f);
        const float *d = rig_data(&one.grads[table]);
        for (size_t i = 0; i < ALL * WIDE; i++) sum[i] += (double)d[i];
    }
    const float *d = rig_data(&all.grads[table]);
    for (size_t i = 0; i < ALL * WIDE; i++) ck_assert_double_eq_tol((double)d[i], sum[i], 1e-5);
    free(sum);
    rig_close(&one);
    rig_close(&all);
}
END_TEST

START_TEST(embedding_gradients_match_differences)
{
    for (int variant = 0; variant < 6; variant++) {
        fill_batch();
        const bool with_types = variant != 5;
        const struct encoder_embedding_hp hp = embedding_hp(with_types, variant == 1 ? 0.3f : 0.0f);
        struct rig r;
        rig_open(&r, &encoder_embedding_class, &hp, B, T, 0, C, DTYPE_F32, true);
        r.batch.ids = ids;
        if (variant == 2 || variant == 4) r.batch.positions = positions;
        if (variant >= 3) r.batch.types = types;
        rig_check_gradients(&r, 5e-3);
        const float *dposition = rig_data(&r.grads[1]), *dtype_ = rig_data(&r.grads[2]);
        if (!r.batch.positions) /* positions without a token have no gradient */
            for (size_t i = T * C; i < P * C; i++) ck_assert_float_eq(dposition[i], 0.0f);
        if (with_types && !r.batch.types) /* nor have types without one */
            for (size_t i = C; i < S * C; i++) ck_assert_float_eq(dtype_[i], 0.0f);
        rig_close(&r);
    }
}
END_TEST

START_TEST(head_gradients_match_differences)
{
    for (int variant = 0; variant < 4; variant++) {
        fill_batch();
        const struct class_head_hp hp =
            class_hp(variant == 3 ? ACT_RELU : ACT_TANH, variant == 1 ? 0.3f : 0.0f);
        struct rig r;
        rig_open(&r, &class_head_class, &hp, B, T, C, 0, DTYPE_F32, true);
        r.batch.labels = classes;
        if (variant == 2) r.batch.loss_weights = loss_weights;
        rig_check_gradients(&r, 5e-3);
        rig_close(&r);
    }
}
END_TEST

/* A map behind the embeddings, a dropped input, a narrow decoder. */
START_TEST(gradients_of_electras_parts_match_differences)
{
    static const int kinds[] = {NARROW_EMBEDDING, NARROW_FIRST_EMBEDDING, DROP_CLASS, NARROW_MLM,
                                REPLACED};
    for (size_t i = 0; i < CZ_ARRAY_LEN(kinds); i++)
        for (int dropout = 0; dropout < 2; dropout++) {
            struct rig r;
            open_kind(&r, kinds[i], B, T, DTYPE_F32, true, dropout ? 0.3f : 0.0f);
            rig_check_gradients(&r, 5e-3);
            rig_close(&r);
        }
}
END_TEST

/* RoBERTa's positions: a row that padding alone has. */
START_TEST(padding_positions_have_no_gradient)
{
    fill_batch();
    struct encoder_embedding_hp hp = embedding_hp(true, 0.0f);
    hp.position_padding_id = positions[0];
    struct rig r;
    rig_open(&r, &encoder_embedding_class, &hp, B, T, 0, C, DTYPE_F32, true);
    r.batch.ids = ids;
    r.batch.positions = positions;
    ck_assert(r.table.params[1].has_zero_row);
    rig_forward(&r, LAYER_TRAIN);
    rig_backward(&r);
    const float *dposition = rig_data(&r.grads[1]);
    float others = 0;
    for (int i = 0; i < P * C; i++) {
        if (i / C == positions[0])
            ck_assert_float_eq(dposition[i], 0.0f);
        else
            others += fabsf(dposition[i]);
    }
    ck_assert_float_gt(others, 0.0f);
    rig_close(&r);
}
END_TEST

/* log(1 + e^z) − y·z of each labelled token. */
START_TEST(replaced_tokens_have_a_binary_loss)
{
    float logits[B * T];
    struct rig r;
    open_kind(&r, REPLACED, B, T, DTYPE_F32, true, 0.0f);
    rig_forward(&r, LAYER_TRAIN);
    const float train_loss = r.loss;
    struct layer_args a = rig_args(&r, LAYER_EVAL);
    a.logits = logits;
    ck_ok(r.cls->forward(r.hp, &a));
    double want = 0, n = 0;
    for (int i = 0; i < B * T; i++) {
        if (replaced[i] == CZ_IGNORE_LABEL) continue;
        want += log1p(exp((double)logits[i])) - replaced[i] * (double)logits[i];
        n++;
    }
    ck_assert_double_eq_tol((double)r.loss, want / n, 1e-6);
    ck_assert_double_eq_tol((double)train_loss, want / n, 1e-6);
    rig_close(&r);
}
END_TEST

START_TEST(masked_head_gradients_match_differences)
{
    for (int variant = 0; variant < 4; variant++) {
        fill_batch();
        const struct mlm_head_hp hp = mlm_hp(variant != 3);
        struct rig r;
        rig_open(&r, &mlm_head_class, &hp, B, T, C, 0, DTYPE_F32, true);
        if (variant == 1)
            for (size_t i = 0; i < B * T; i++) labels[i] = (int32_t)(i % V); /* all rows */
        r.batch.labels = labels;
        if (variant == 2) {
            r.batch.loss_weights = loss_weights;
            r.batch.loss_divisor = 3.0f;
        }
        rig_check_gradients(&r, 5e-3);
        rig_close(&r);
    }
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
    for (int kind = EMBEDDING; kind <= BLOCK; kind++) rig_check_recomputes(open_training, kind);
}
END_TEST

START_TEST(dropout_follows_its_key_alone)
{
    for (int kind = EMBEDDING; kind <= CLASS; kind++) {
        struct rig r, plain;
        open_kind(&r, kind, B, T, DTYPE_F32, true, 0.5f);
        open_kind(&plain, kind, B, T, DTYPE_F32, true, 0.0f);
        const size_t nbytes = is_class(kind) ? r.saved.nbytes : r.out.nbytes;
        const struct rig_block *what = is_class(kind) ? &r.saved : &r.out;
        const struct rig_block *plain_what = is_class(kind) ? &plain.saved : &plain.out;
        unsigned char *first = malloc(nbytes);
        rig_forward(&r, LAYER_TRAIN);
        memcpy(first, rig_data(what), nbytes);
        rig_forward(&r, LAYER_TRAIN);
        ck_assert_mem_eq(rig_data(what), first, nbytes);
        r.rng.step++;
        rig_forward(&r, LAYER_TRAIN);
        ck_assert_mem_ne(rig_data(what), first, nbytes);
        r.no_dropout = true;
        rig_forward(&r, LAYER_TRAIN);
        rig_forward(&plain, LAYER_TRAIN);
        ck_assert_mem_eq(rig_data(what), rig_data(plain_what), nbytes);
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
    /* A handful of roundings in a row, each 2^-9 (bf16) or 2^-12 (fp16) of its operand; a norm
     * with its statistics in front of the loss doubles them. */
    const enum cz_dtype dtypes[] = {DTYPE_BF16, DTYPE_F16};
    const double tolerance[] = {8e-2, 1e-2};
    for (int kind = 0; kind < N_KINDS; kind++)
        for (int d = 0; d < 2; d++)
            rig_check_near_fp32(open_training, kind, dtypes[d], tolerance[d]);
}
END_TEST

/* ---- what PyTorch does ------------------------------------------------------------------------
 */

START_TEST(padding_tokens_give_their_row_no_gradient)
{
    fill_batch();
    struct encoder_embedding_hp plain_hp = embedding_hp(true, 0.0f), hp = plain_hp;
    hp.padding_id = ids[4];
    struct rig r, plain;
    rig_open(&r, &encoder_embedding_class, &hp, B, T, 0, C, DTYPE_F32, true);
    rig_open(&plain, &encoder_embedding_class, &plain_hp, B, T, 0, C, DTYPE_F32, true);
    ck_assert(r.table.params[0].has_zero_row && r.table.params[0].zero_row == ids[4]);
    ck_assert(!plain.table.params[0].has_zero_row);
    r.batch.ids = plain.batch.ids = ids;
    rig_forward(&r, LAYER_TRAIN);
    rig_backward(&r);
    rig_forward(&plain, LAYER_TRAIN);
    rig_backward(&plain);
    const float *got = rig_data(&r.grads[0]), *want = rig_data(&plain.grads[0]);
    for (size_t i = 0; i < V * C; i++)
        ck_assert_float_eq(got[i], (int32_t)(i / C) == ids[4] ? 0.0f : want[i]);
    for (size_t p = 1; p < r.list.n; p++)
        ck_assert_mem_eq(rig_data(&r.grads[p]), rig_data(&plain.grads[p]), r.grads[p].nbytes);
    rig_close(&plain);
    rig_close(&r);
}
END_TEST

START_TEST(absent_types_and_positions_equal_written_ones)
{
    struct rig absent, written;
    open_kind(&absent, EMBEDDING, B, T, DTYPE_F32, true, 0.0f);
    open_kind(&written, EMBEDDING, B, T, DTYPE_F32, true, 0.0f);
    for (int i = 0; i < B * T; i++) types[i] = 0, positions[i] = i % T;
    written.batch.types = types;
    written.batch.positions = positions;
    rig_forward(&absent, LAYER_TRAIN);
    rig_forward(&written, LAYER_TRAIN);
    rig_backward(&absent);
    rig_backward(&written);
    ck_assert_mem_eq(rig_data(&absent.out), rig_data(&written.out), absent.out.nbytes);
    for (size_t p = 0; p < absent.list.n; p++) /* sums in another order */
        ck_assert_double_le(rig_error(rig_data(&absent.grads[p]), DTYPE_F32,
                                      rig_data(&written.grads[p]), DTYPE_F32,
                                      absent.grads[p].nbytes / sizeof(float)),
                            2e-6);
    rig_close(&absent);
    rig_close(&written);
}
END_TEST

START_TEST(unknown_types_are_refused)
{
    struct rig r;
    open_kind(&r, EMBEDDING, B, T, DTYPE_F32, true, 0.0f);
    types[5] = S;
    r.batch.types = types;
    const struct layer_args a = rig_args(&r, LAYER_TRAIN);
    ck_fails(r.cls->forward(r.hp, &a), CZ_INVALID);
    ck_assert_msg(strstr(cz_last_error(), "token types (there are 3)") != NULL, "%s",
                  cz_last_error());
    rig_close(&r);
}
END_TEST

/* What a padded key holds does not reach the others. */
START_TEST(padding_stays_out_of_the_block)
{
    struct rig r;
    open_kind(&r, BLOCK, B, T, DTYPE_F32, true, 0.0f);
    r.batch.key_mask = key_mask;
    float *in = rig_data(&r.in), *dout = rig_data(&r.dout), *out = rig_data(&r.out);
    float *din = rig_data(&r.din), *kept = malloc(r.out.nbytes), *dkept = malloc(r.din.nbytes);
    for (size_t i = 0; i < B * T * C; i++)
        if (!key_mask[i / C]) dout[i] = 0;
    rig_forward(&r, LAYER_TRAIN);
    rig_backward(&r);
    memcpy(kept, out, r.out.nbytes);
    memcpy(dkept, din, r.din.nbytes);
    for (size_t i = 0; i < B * T * C; i++)
        if (!key_mask[i / C]) in[i] = 100.0f + (float)i;
    rig_forward(&r, LAYER_TRAIN);
    rig_backward(&r);
    for (size_t i = 0; i < B * T * C; i++)
        if (key_mask[i / C]) {
            ck_assert_float_eq(out[i], kept[i]);
            ck_assert_float_eq(din[i], dkept[i]);
        }
    free(kept);
    free(dkept);
    rig_close(&r);
}
END_TEST

/* A row of padding alone, as the last batch of an epoch may hold. */
START_TEST(rows_without_any_token_stay_finite)
{
    struct rig r;
    open_kind(&r, BLOCK, B, T, DTYPE_F32, true, 0.1f);
    for (size_t i = T; i < 2 * T; i++) key_mask[i] = 0;
    r.batch.key_mask = key_mask;
    rig_forward(&r, LAYER_TRAIN);
    rig_backward(&r);
    for (size_t i = 0; i < B * T * C; i++) {
        ck_assert(isfinite(((float *)rig_data(&r.out))[i]));
        ck_assert(isfinite(((float *)rig_data(&r.din))[i]));
    }
    for (size_t p = 0; p < r.list.n; p++)
        for (size_t i = 0; i < r.grads[p].nbytes / sizeof(float); i++)
            ck_assert(isfinite(((float *)rig_data(&r.grads[p]))[i]));
    rig_close(&r);
}
END_TEST

/* ---- heads ------------------------------------------------------------------------------------
 */

/* −Σ weight·log softmax[label] / divisor, in doubles; 0: by the weights. */
static double loss_by_hand(const float *logits, const int32_t *of, size_t n, size_t width,
                           const float *weights, double divisor)
{
    double sum = 0, total = 0;
    for (size_t i = 0; i < n; i++) {
        if (of[i] == CZ_IGNORE_LABEL) continue;
        double z = 0, w = weights ? (double)weights[i] : 1.0;
        for (size_t k = 0; k < width; k++) z += exp((double)logits[i * width + k]);
        sum += w * (log(z) - (double)logits[i * width + (size_t)of[i]]);
        total += w;
    }
    return sum / (divisor != 0 ? divisor : total);
}

START_TEST(heads_give_what_is_asked)
{
    float logits[B * T * V], again[B * T * V];
    for (int kind = CLASS; kind <= MLM; kind++)
        for (int weighted = 0; weighted < 2; weighted++) {
            struct rig r;
            open_kind(&r, kind, B, T, DTYPE_F32, true, 0.0f);
            if (weighted) r.batch.loss_weights = loss_weights;
            if (weighted) r.batch.loss_divisor = 7.0f;
            rig_forward(&r, LAYER_TRAIN);
            const float train_loss = r.loss;
            struct layer_args a = rig_args(&r, LAYER_EVAL);
            a.logits = logits;
            ck_ok(r.cls->forward(r.hp, &a));
            const double want = loss_by_hand(logits, r.batch.labels, is_class(kind) ? B : B * T,
                                             is_class(kind) ? K : V, r.batch.loss_weights,
                                             (double)r.batch.loss_divisor);
            ck_assert_double_le(fabs((double)r.loss - want), 1e-5);
            ck_assert_double_le(fabs((double)train_loss - want), 1e-5);
            a.loss = NULL; /* logits alone, without labels */
            a.logits = again;
            r.batch.labels = NULL;
            ck_ok(r.cls->forward(r.hp, &a));
            ck_assert_mem_eq(again, logits, n_logits(kind) * sizeof *logits);
            rig_close(&r);
        }
}
END_TEST

START_TEST(training_gives_class_logits_too)
{
    struct rig r;
    float logits[B * K], want[B * K];
    open_kind(&r, CLASS, B, T, DTYPE_BF16, true, 0.0f);
    struct layer_args a = rig_args(&r, LAYER_EVAL);
    a.logits = want;
    ck_ok(r.cls->forward(r.hp, &a));
    a = rig_args(&r, LAYER_TRAIN);
    a.logits = logits;
    ck_ok(r.cls->forward(r.hp, &a));
    ck_assert_mem_eq(logits, want, sizeof want);
    rig_close(&r);
}
END_TEST

START_TEST(training_needs_labels)
{
    for (int kind = CLASS; kind <= MLM; kind++) {
        struct rig r;
        open_kind(&r, kind, B, T, DTYPE_F32, true, 0.0f);
        r.batch.labels = NULL;
        const struct layer_args a = rig_args(&r, LAYER_TRAIN);
        ck_fails(r.cls->forward(r.hp, &a), CZ_INVALID);
        rig_close(&r);
    }
}
END_TEST

/* A batch without any label has no loss, and zero gradients. */
START_TEST(nothing_to_learn_gives_zeros)
{
    for (int kind = CLASS; kind <= MLM; kind++) {
        struct rig r;
        open_kind(&r, kind, B, T, DTYPE_BF16, true, 0.0f);
        for (size_t i = 0; i < B * T; i++) labels[i] = CZ_IGNORE_LABEL;
        for (size_t b = 0; b < B; b++) classes[b] = CZ_IGNORE_LABEL;
        rig_forward(&r, LAYER_TRAIN);
        rig_backward(&r);
        ck_assert_float_eq(r.loss, 0.0f);
        for (size_t p = 0; p < r.list.n; p++)
            for (size_t i = 0; i < r.grads[p].nbytes / sizeof(float); i++)
                ck_assert_float_eq(((float *)rig_data(&r.grads[p]))[i], 0.0f);
        for (size_t i = 0; i < rig_numel_in(&r); i++)
            ck_assert_float_eq(rig_get(rig_data(&r.din), i, DTYPE_BF16), 0.0f);
        rig_close(&r);
    }
}
END_TEST

/* Rows that are left out change nothing: a batch of the labelled rows alone gives the same. */
START_TEST(ignored_rows_change_nothing)
{
    struct rig r, few;
    open_kind(&r, MLM, B, T, DTYPE_F32, true, 0.0f);
    open_kind(&few, MLM, B, T, DTYPE_F32, true, 0.0f);
    int32_t kept_labels[B * T];
    size_t n = 0, kept[B * T];
    for (size_t i = 0; i < B * T; i++) {
        if (labels[i] == CZ_IGNORE_LABEL) continue;
        memcpy((float *)rig_data(&few.in) + n * C, (float *)rig_data(&r.in) + i * C,
               C * sizeof(float));
        kept[n] = i;
        kept_labels[n++] = labels[i];
    }
    few.batch.B = 1;
    few.batch.T = (int64_t)n;
    few.batch.labels = kept_labels;
    rig_forward(&r, LAYER_TRAIN);
    rig_backward(&r);
    rig_forward(&few, LAYER_TRAIN);
    rig_backward(&few);
    ck_assert_float_eq_tol(r.loss, few.loss, 1e-6f);
    for (size_t p = 0; p < r.list.n; p++)
        ck_assert_double_le(rig_error(rig_data(&r.grads[p]), DTYPE_F32, rig_data(&few.grads[p]),
                                      DTYPE_F32, r.grads[p].nbytes / sizeof(float)),
                            2e-6);
    for (size_t i = 0; i < n; i++)
        ck_assert_double_le(rig_error((float *)rig_data(&r.din) + kept[i] * C, DTYPE_F32,
                                      (float *)rig_data(&few.din) + i * C, DTYPE_F32, C),
                            2e-6);
    rig_close(&few);
    rig_close(&r);
}
END_TEST

TEST_MAIN("model/bert", layers_stay_inside_their_bytes, evaluation_needs_less,
          flops_count_every_product, impossible_shapes_are_refused,
          block_gradients_match_differences, first_positions_are_the_blocks_own,
          gradients_of_positions_match_differences, rows_of_positions_in_parts_are_the_same,
          embedding_gradients_match_differences, head_gradients_match_differences,
          gradients_of_electras_parts_match_differences, replaced_tokens_have_a_binary_loss,
          padding_positions_have_no_gradient, masked_head_gradients_match_differences,
          gradients_accumulate_when_asked, frozen_parameters_get_none,
          recomputing_repeats_the_forward, dropout_follows_its_key_alone,
          sixteen_bits_stay_near_fp32, padding_tokens_give_their_row_no_gradient,
          absent_types_and_positions_equal_written_ones, unknown_types_are_refused,
          padding_stays_out_of_the_block, rows_without_any_token_stay_finite,
          heads_give_what_is_asked, training_gives_class_logits_too, training_needs_labels,
          nothing_to_learn_gives_zeros, ignored_rows_change_nothing)
