/* Claims: whatever rows the classification head reads (the first, the last that is no padding,
 * each) and whatever parts it has, its gradients match difference quotients; the last token is
 * found by the padding's id, by the mask without one, and is the first where all is padding; a
 * frozen parameter gets nothing; padding changes no bit of logits and gradients. */
#include "model/parts/class_head.h"
#include "tests/unit/model/layer_rig.h"

#include <math.h>
#include <string.h>

enum { B = 4, T = 5, C = 12, K = 3, PAD = 9 };

static int32_t ids[B * T], classes[B * T];
static uint8_t key_mask[B * T];

/* Row b has b + 1 tokens, then padding; a token of padding's id stands in front of all. */
static void fill_batch(void)
{
    for (int i = 0; i < B * T; i++) {
        key_mask[i] = i % T <= i / T;
        ids[i] = key_mask[i] && i % T > 0 ? 1 + i % 7 : PAD;
        classes[i] = i % 4 == 3 ? CZ_IGNORE_LABEL : i % K;
    }
}

/* The parts that a head may have. */
enum { NORM = 1, NORM_BIAS = 2, POOL = 4, BIAS = 8 };

static struct class_head_hp head_of(enum head_rows rows, int parts)
{
    return (struct class_head_hp){.rows = rows,
                                  .padding_id = PAD,
                                  .norm_weight_name = parts & NORM ? "norm.weight" : NULL,
                                  .norm_bias_name = parts & NORM_BIAS ? "norm.bias" : NULL,
                                  .pool_weight_name = parts & POOL ? "pool.weight" : NULL,
                                  .pool_bias_name = parts & POOL ? "pool.bias" : NULL,
                                  .class_weight_name = "score.weight",
                                  .class_bias_name = parts & BIAS ? "score.bias" : NULL,
                                  .act = ACT_TANH,
                                  .C = C,
                                  .K = K,
                                  .eps = 1e-6f,
                                  .init_std = 0.02f};
}

static void open_rig(struct rig *r, const struct class_head_hp *hp)
{
    fill_batch();
    rig_open(r, &class_head_class, hp, B, T, C, 0, DTYPE_F32, true);
    r->batch.ids = ids;
    r->batch.labels = classes;
}

/* ---- targets instead of classes -------------------------------------------------------------- */

static float targets[B * K];

static void open_targets(struct rig *r, const struct class_head_hp *hp)
{
    open_rig(r, hp);
    for (int i = 0; i < B * K; i++)
        targets[i] = hp->loss == HEAD_BINARY ? (float)(i % 2) : (float)(i % 5) - 1.5f;
    targets[2 * K] = NAN; /* row 2 has none */
    r->batch.labels = NULL;
    r->batch.targets = targets;
}

START_TEST(gradients_of_targets_match_differences)
{
    for (int loss = HEAD_SQUARED_ERROR; loss <= HEAD_BINARY; loss++)
        for (int weighted = 0; weighted < 2; weighted++) {
            static const float weights[B] = {1, 0.5f, 3, 2};
            struct class_head_hp hp = head_of(HEAD_FIRST, POOL | BIAS);
            struct rig r;
            hp.loss = (enum head_loss)loss;
            open_targets(&r, &hp);
            r.batch.loss_weights = weighted ? weights : NULL;
            r.batch.loss_divisor = weighted ? 1.25f : 0;
            rig_check_gradients(&r, 5e-3);
            rig_close(&r);
        }
}
END_TEST

START_TEST(losses_of_targets_are_their_means)
{
    for (int loss = HEAD_SQUARED_ERROR; loss <= HEAD_BINARY; loss++) {
        struct class_head_hp hp = head_of(HEAD_FIRST, BIAS);
        struct rig r;
        double want = 0;
        hp.loss = (enum head_loss)loss;
        open_targets(&r, &hp);
        memset(rig_data(&r.in), 0, sizeof(float) * B * T * C); /* the logits are the biases */
        const float *bias = rig_data(&r.params[1]);
        rig_forward(&r, LAYER_EVAL);
        for (int i = 0; i < B * K; i++) {
            const double z = (double)bias[i % K], t = (double)targets[i];
            if (i / K == 2) continue;
            want += loss == HEAD_BINARY ? log(1 + exp(z)) - t * z : (z - t) * (z - t);
        }
        ck_assert_double_eq_tol((double)r.loss, want / (3 * K), 1e-6);
        rig_close(&r);
    }
}
END_TEST

START_TEST(gradients_match_differences)
{
    static const int parts[] = {0,           BIAS,        NORM,       NORM | NORM_BIAS,
                                POOL | BIAS, NORM | POOL, NORM | BIAS};
    for (int rows = HEAD_FIRST; rows <= HEAD_EACH; rows++)
        for (size_t i = 0; i < CZ_ARRAY_LEN(parts); i++)
            for (int drops = 0; drops < 2; drops++) {
                struct class_head_hp hp = head_of((enum head_rows)rows, parts[i]);
                struct rig r;
                hp.dropout_p = drops ? 0.3f : 0.0f;
                hp.input_dropout_p = drops && (parts[i] & NORM) != 0 ? hp.dropout_p : 0;
                open_rig(&r, &hp);
                rig_check_gradients(&r, 5e-3);
                rig_close(&r);
            }
}
END_TEST

/* The position of each row that has a gradient; -1: none. */
static void find_read(struct rig *r, int read[B])
{
    const float *din = rig_data(&r->din);
    rig_forward(r, LAYER_TRAIN);
    rig_backward(r);
    for (int b = 0; b < B; b++) {
        read[b] = -1;
        for (int t = 0; t < T; t++)
            for (int c = 0; c < C; c++)
                if (din[(b * T + t) * C + c] != 0) {
                    ck_assert_msg(read[b] == -1 || read[b] == t, "row %d has two", b);
                    read[b] = t;
                }
    }
}

START_TEST(the_last_token_is_no_padding)
{
    static const int by_id[B] = {0, 1, 2, 3}, last[B] = {4, 4, 4, 4};
    for (int variant = 0; variant < 4; variant++) {
        struct class_head_hp hp = head_of(HEAD_LAST, NORM);
        struct rig r;
        int read[B];
        if (variant > 0) hp.padding_id = -1;
        open_rig(&r, &hp);
        for (int b = 0; b < B; b++) classes[b] = b % K;
        if (variant == 1) r.batch.key_mask = key_mask;
        if (variant == 3) {
            memset(key_mask, 0, sizeof key_mask);
            r.batch.key_mask = key_mask;
        }
        find_read(&r, read);
        for (int b = 0; b < B; b++)
            ck_assert_int_eq(read[b], variant == 2 ? last[b] : variant == 3 ? 0 : by_id[b]);
        rig_close(&r);
    }
}
END_TEST

TEST_MAIN("model/class_head", gradients_match_differences, the_last_token_is_no_padding,
          gradients_of_targets_match_differences, losses_of_targets_are_their_means)
