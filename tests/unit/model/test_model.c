/* Claim: a chain of a user's own layers is declared, bounded, frozen and initialised as model.h
 * says, and what does not make sense is refused with a sentence. */
#include "model/model.h"
#include "model/parts/blocks_impl.h"
#include "tests/support/check_main.h"

#include <math.h>
#include <string.h>

/* ---- two small layer classes that only declare ------------------------------------------------
 */

struct toy_hp {
    const char *weight;
    int64_t rows, cols;
    const char *scale; /* NULL: no second parameter */
};

static cz_status toy_declare(const void *hp_, struct param_list *out)
{
    const struct toy_hp *hp = hp_;
    const int64_t shape[] = {hp->rows, hp->cols};
    TRY(param_list_add(out, hp->weight, 2, shape, PARAM_INIT_NORMAL, 0.5f));
    if (hp->scale) TRY(param_list_add(out, hp->scale, 1, shape + 1, PARAM_INIT_ONE, 0.0f));
    return CZ_OK;
}

static cz_status toy_size(const void *hp, const struct batch_shape *shape, struct layer_sizes *out)
{
    (void)hp, (void)shape;
    *out = (struct layer_sizes){0};
    return CZ_OK;
}

static cz_status toy_run(const void *hp, const struct layer_args *a)
{
    (void)hp, (void)a;
    return CZ_OK;
}

static const struct layer_class toy = {.name = "toy",
                                       .declare = toy_declare,
                                       .size = toy_size,
                                       .forward = toy_run,
                                       .backward = toy_run};
static const struct layer_class toy_loss = {.name = "toy_loss",
                                            .flags = LAYER_LOSS,
                                            .declare = toy_declare,
                                            .size = toy_size,
                                            .forward = toy_run,
                                            .backward = toy_run};

/* embed (10,4); mid (4,4) + scale; head tied to embed */
static struct cz_model *toy_model(void)
{
    const struct toy_hp embed = {"embed.weight", 10, 4, NULL};
    const struct toy_hp mid = {"mid.weight", 4, 4, "mid.scale"};
    const struct layer_desc layers[] = {
        {&toy, &embed, sizeof embed}, {&toy, &mid, sizeof mid}, {&toy_loss, &embed, sizeof embed}};
    const struct model_desc desc = {.name = "toys",
                                    .layers = layers,
                                    .n_layers = 3,
                                    .vocab_size = 10,
                                    .t_max = 32,
                                    .hidden_size = 4};
    struct cz_model *m = model_create(&desc);
    ck_assert_msg(m != NULL, "%s", cz_last_error());
    return m;
}

START_TEST(chain_is_described_as_declared)
{
    struct cz_model *m = toy_model();
    ck_assert_str_eq(cz_model_name(m), "toys");
    ck_assert_int_eq(cz_model_vocab_size(m), 10);
    ck_assert_int_eq(cz_model_hidden_size(m), 4);
    ck_assert_int_eq(cz_model_n_classes(m), 0);
    const struct param_table *t = model_params(m);
    ck_assert_uint_eq(t->n_params, 3);
    ck_assert_str_eq(t->params[0].name, "embed.weight");
    ck_assert_str_eq(t->params[1].name, "mid.weight");
    ck_assert_str_eq(t->params[2].name, "mid.scale");

    ck_assert_uint_eq(model_n_layers(m), 3);
    const struct model_layer *last = model_layer_at(m, 2), *mid = model_layer_at(m, 1);
    ck_assert_ptr_eq(last->cls, &toy_loss);
    ck_assert_uint_eq(last->n_params, 1); /* tied: the embedding's own index */
    ck_assert_uint_eq(last->param_idx[0], 0);
    ck_assert_uint_eq(mid->n_params, 2);
    ck_assert_uint_eq(mid->param_idx[1], 2);
    ck_assert_str_eq(((const struct toy_hp *)mid->hp)->scale, "mid.scale"); /* hp was copied */
    cz_model_destroy(m);
    cz_model_destroy(NULL);
}
END_TEST

START_TEST(impossible_chains_are_refused)
{
    const struct toy_hp hp = {"w", 2, 2, NULL}, other = {"w", 3, 2, NULL};
    const struct layer_class no_backward = {
        .name = "half", .declare = toy_declare, .size = toy_size, .forward = toy_run};
    const struct layer_desc good[] = {{&toy, &hp, sizeof hp}, {&toy_loss, &hp, sizeof hp}};
    const struct layer_desc no_loss[] = {{&toy, &hp, sizeof hp}, {&toy, &hp, sizeof hp}};
    const struct layer_desc early[] = {{&toy_loss, &hp, sizeof hp}, {&toy_loss, &hp, sizeof hp}};
    const struct layer_desc half[] = {{&no_backward, &hp, sizeof hp}, {&toy_loss, &hp, sizeof hp}};
    const struct layer_desc clash[] = {{&toy, &hp, sizeof hp}, {&toy_loss, &other, sizeof other}};
    const struct {
        struct model_desc desc;
        const char *says;
    } cases[] = {
        {{.name = "m", .layers = NULL, .n_layers = 0, .t_max = 8}, "at least one layer"},
        {{.name = "m", .layers = good, .n_layers = 2, .t_max = 0}, "t_max"},
        {{.name = "m", .layers = good, .n_layers = 2, .t_max = 8, .vocab_size = -1}, "vocab_size"},
        {{.name = "m", .layers = good, .n_layers = 2, .t_max = 8, .vocab_size = INT32_MAX + 1LL},
         "vocab_size"},
        {{.name = "m", .layers = good, .n_layers = 2, .t_max = 8, .n_classes = CZ_CLASSES_MAX + 1},
         "n_classes"},
        {{.name = "m", .layers = no_loss, .n_layers = 2, .t_max = 8}, "must compute the loss"},
        {{.name = "m", .layers = early, .n_layers = 2, .t_max = 8}, "layer 0 computes a loss"},
        {{.name = "m", .layers = half, .n_layers = 2, .t_max = 8}, "layer 0 (half)"},
        {{.name = "m", .layers = clash, .n_layers = 2, .t_max = 8}, "layer 1 (toy_loss)"},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        err_clear();
        ck_assert_ptr_null(model_create(&cases[i].desc));
        ck_assert_int_eq(cz_last_status(), CZ_INVALID);
        ck_assert_msg(strstr(cz_last_error(), cases[i].says) != NULL, "case %zu: %s", i,
                      cz_last_error());
    }
    const struct model_desc largest = {.name = "m",
                                       .layers = good,
                                       .n_layers = 2,
                                       .t_max = 1,
                                       .vocab_size = INT32_MAX,
                                       .labels = CZ_LABELS_CLASS,
                                       .n_classes = CZ_CLASSES_MAX};
    struct cz_model *m = model_create(&largest);
    ck_assert_msg(m != NULL, "%s", cz_last_error());
    cz_model_destroy(m);
}
END_TEST

START_TEST(sequence_is_bounded_by_the_model)
{
    struct cz_model *m = toy_model();
    ck_assert_int_eq(cz_model_t_max(m), 32);
    ck_ok(cz_model_set_shape(m, 5));
    ck_assert_int_eq(cz_model_t_max(m), 5);
    ck_ok(cz_model_set_shape(m, 32)); /* the layers' own bound, not the last one set */
    ck_fails(cz_model_set_shape(m, 33), CZ_INVALID);
    ck_assert(strstr(cz_last_error(), "33") && strstr(cz_last_error(), "32"));
    ck_fails(cz_model_set_shape(m, 0), CZ_INVALID);
    ck_assert_int_eq(cz_model_t_max(m), 32);
    cz_model_destroy(m);
}
END_TEST

START_TEST(freezing_searches_names)
{
    struct cz_model *m = toy_model();
    const struct param_table *t = model_params(m);
    size_t n = 99;
    ck_ok(cz_model_freeze(m, "^embed", &n));
    ck_assert_uint_eq(n, 1);
    ck_assert(!t->params[0].trainable && t->params[1].trainable);
    ck_fails(cz_model_freeze(m, "nothing like this", &n), CZ_INVALID);
    ck_assert_msg(strstr(cz_last_error(), "\"nothing like this\": no parameter of") &&
                      strstr(cz_last_error(), t->params[0].name),
                  "%s", cz_last_error());
    ck_assert_uint_eq(n, 1);
    ck_ok(cz_model_freeze(m, "^embed", &n)); /* it is frozen already */
    ck_assert_uint_eq(n, 0);
    ck_ok(cz_model_freeze(m, "sc(al|ol)e$", NULL));
    ck_assert(!t->params[2].trainable);
    ck_fails(cz_model_freeze(m, "mid", &n), CZ_INVALID); /* nothing would be left */
    ck_assert(t->params[1].trainable);
    ck_fails(cz_model_freeze(m, "(", &n), CZ_INVALID);
    ck_assert_uint_eq(param_table_numel(t, true), 16);
    cz_model_destroy(m);
}
END_TEST

/* ---- the init rules ---------------------------------------------------------------------------
 */

START_TEST(any_piece_of_the_init_rule_repeats)
{
    struct cz_model *m = toy_model();
    float whole[40], piece[40];
    ck_ok(model_read_weights(m, 0, 0, 40, whole));
    for (size_t off = 0; off < 40; off++) {
        for (size_t n = 0; n <= 40 - off; n++) {
            for (size_t i = 0; i < 40; i++) piece[i] = NAN;
            ck_ok(model_read_weights(m, 0, off, n, piece));
            ck_assert_mem_eq(piece, whole + off, n * sizeof *piece);
            if (n < 40) ck_assert(isnan(piece[n])); /* and nothing behind it was touched */
        }
    }
    cz_model_destroy(m);
}
END_TEST

START_TEST(init_follows_rule_and_seed)
{
    struct cz_model *m = toy_model();
    float a[40], b[40], mid[16], scale[4];
    ck_ok(cz_model_init_from(m, NULL, 7));
    ck_ok(model_read_weights(m, 0, 0, 40, a));
    ck_ok(model_read_weights(m, 1, 0, 16, mid));
    ck_ok(model_read_weights(m, 2, 0, 4, scale));
    for (int i = 0; i < 4; i++) ck_assert_float_eq(scale[i], 1.0f);
    ck_assert_mem_ne(a, mid, sizeof mid); /* each parameter has its own numbers */
    ck_ok(cz_model_init_from(m, NULL, 8));
    ck_ok(model_read_weights(m, 0, 0, 40, b));
    ck_assert_mem_ne(a, b, sizeof a);
    ck_ok(cz_model_init_from(m, NULL, 7));
    ck_ok(model_read_weights(m, 0, 0, 40, b));
    ck_assert_mem_eq(a, b, sizeof a);
    cz_model_destroy(m);
}
END_TEST

/* Two pairs by Box and Muller from each Philox block, in double precision here: a seed gives the
 * same weights in every release. */
START_TEST(init_is_box_and_mullers)
{
    struct cz_model *m = toy_model();
    float a[40];
    ck_ok(cz_model_init_from(m, NULL, 7));
    ck_ok(model_read_weights(m, 0, 0, 40, a));
    const struct rng_key rng = {7, 0, UINT32_MAX, UINT64_MAX};
    uint32_t key[2], hi[2], u[4];
    rng_key_expand(&rng, key, hi);
    for (uint32_t k = 0; k < 20; k++) {
        if (k % 2 == 0) rng_philox4x32((const uint32_t[]){k / 2, 0, hi[0], hi[1]}, key, u);
        const uint32_t *pair = u + k % 2 * 2;
        double radius = sqrt(-2 * log((pair[0] / 256 + 1) / 16777216.0));
        double angle = (pair[1] / 256) / 16777216.0 * 6.283185307179586;
        ck_assert_float_eq_tol(a[2 * k], (float)(0.5 * radius * cos(angle)), 1e-6f);
        ck_assert_float_eq_tol(a[2 * k + 1], (float)(0.5 * radius * sin(angle)), 1e-6f);
    }
    cz_model_destroy(m);
}
END_TEST

/* Moments of 2^20 draws: each bound is five standard errors of its estimate. */
START_TEST(init_is_normal)
{
    const struct toy_hp big = {"big.weight", 1024, 1024, NULL};
    const struct layer_desc layers[] = {{&toy, &big, sizeof big}, {&toy_loss, &big, sizeof big}};
    const struct model_desc desc = {.name = "big", .layers = layers, .n_layers = 2, .t_max = 1};
    struct cz_model *m = model_create(&desc);
    const size_t n = 1 << 20;
    float *w = malloc(n * sizeof *w);
    ck_assert_ptr_nonnull(w);
    ck_ok(model_read_weights(m, 0, 0, n, w));
    double sum = 0, sum2 = 0, sum4 = 0, neighbours = 0;
    size_t n_beyond = 0;
    for (size_t i = 0; i < n; i++) {
        double z = w[i] / 0.5;
        sum += z;
        sum2 += z * z;
        sum4 += z * z * z * z;
        if (i > 0) neighbours += z * (w[i - 1] / 0.5);
        n_beyond += fabs(z) > 1.959964;
    }
    double d = (double)n, se = 1.0 / sqrt(d);
    ck_assert_double_le(fabs(sum / d), 5 * se);
    ck_assert_double_le(fabs(sum2 / d - 1), 5 * sqrt(2.0) * se);
    ck_assert_double_le(fabs(sum4 / d - 3), 5 * sqrt(96.0) * se);
    ck_assert_double_le(fabs(neighbours / d), 5 * se);
    ck_assert_double_le(fabs((double)n_beyond / d - 0.05), 5 * sqrt(0.05 * 0.95) * se);
    free(w);
    cz_model_destroy(m);
}
END_TEST

START_TEST(reading_outside_is_refused)
{
    struct cz_model *m = toy_model();
    float w[40];
    ck_fails(model_read_weights(m, 3, 0, 1, w), CZ_INVALID);
    ck_fails(model_read_weights(m, 0, 0, 41, w), CZ_INVALID);
    ck_fails(model_read_weights(m, 0, 41, 0, w), CZ_INVALID);
    ck_fails(model_read_weights(m, 0, 40, SIZE_MAX, w), CZ_INVALID);
    ck_ok(model_read_weights(m, 0, 40, 0, w));
    cz_model_destroy(m);
}
END_TEST

START_TEST(rows_of_a_batch_are_counted_in_32_bits)
{
    static const struct {
        struct batch_shape shape;
        bool fits;
    } cases[] = {{{.B = 1, .T = 1}, true},
                 {{.B = INT32_MAX, .T = 1}, true},
                 {{.B = 1, .T = INT32_MAX}, true},
                 {{.B = INT32_MAX / 3, .T = 3}, true},
                 {{.B = INT32_MAX / 3 + 1, .T = 3}, false},
                 {{.B = (int64_t)INT32_MAX + 1, .T = 1}, false},
                 {{.B = 0, .T = 1}, false},
                 {{.B = 1, .T = 0}, false}};
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++)
        ck_assert_int_eq(batch_shape_check("a layer", &cases[i].shape),
                         cases[i].fits ? CZ_OK : CZ_INVALID);
}
END_TEST

TEST_MAIN("model/model", chain_is_described_as_declared, impossible_chains_are_refused,
          sequence_is_bounded_by_the_model, freezing_searches_names,
          any_piece_of_the_init_rule_repeats, init_follows_rule_and_seed, init_is_box_and_mullers,
          init_is_normal, reading_outside_is_refused, rows_of_a_batch_are_counted_in_32_bits)
