/* Claim: the layer of examples/custom_layer.c, which users will copy, keeps the contract: its
 * bytes, its gradients, accumulation, recomputation. */
int custom_layer_main(int argc, char **argv); /* the example's own */
#define main custom_layer_main
#include "examples/custom_layer.c"
#undef main
#undef TRY /* the example's own */
#include "model/model.h"
#include "tests/unit/model/layer_rig.h"

static const struct mixer_hp hp = {.idx = 0, .C = 12, .F = 10};

/* The layer as the engine gets it: the rig calls what a model of it holds. */
static struct cz_model *model_of_one(void)
{
    const struct cz_embedding_hp embedding = {
        .size = sizeof embedding, .token_name = "token", .V = 4, .C = hp.C};
    const struct cz_lm_head_hp head = {.size = sizeof head,
                                       .norm_weight_name = "norm",
                                       .weight_name = "token",
                                       .V = 4,
                                       .C = hp.C,
                                       .eps = 1e-5f};
    const struct cz_layer_desc layers[] = {{cz_layer_embedding(), &embedding, sizeof embedding},
                                           {&mixer_class, &hp, sizeof hp},
                                           {cz_layer_lm_head(), &head, sizeof head}};
    const struct cz_model_desc desc = {
        .size = sizeof desc, .name = "one", .layers = layers, .n_layers = 3, .t_max = 8};
    struct cz_model *m = cz_model_create(&desc);
    ck_assert_msg(m != NULL, "%s", cz_last_error());
    return m;
}

static struct cz_model *model;

static void open_mixer(struct rig *r, int64_t B, int64_t T, enum cz_dtype dtype)
{
    if (!model) model = model_of_one();
    const struct model_layer *layer = model_layer_at(model, 1);
    rig_open(r, layer->cls, layer->hp, B, T, hp.C, hp.C, dtype, true);
}

START_TEST(it_stays_inside_its_bytes)
{
    const enum cz_dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    for (int d = 0; d < 3; d++) {
        struct rig r;
        open_mixer(&r, 3, 5, dtypes[d]);
        for (int64_t T = 5; T > 0; T -= 2) {
            r.batch.B = T > 1 ? 3 : 2;
            r.batch.T = T;
            rig_forward(&r, LAYER_TRAIN);
            rig_backward(&r);
            rig_forward(&r, LAYER_EVAL);
        }
        rig_close(&r);
    }
}
END_TEST

START_TEST(its_gradients_match_differences)
{
    struct rig r;
    open_mixer(&r, 3, 5, DTYPE_F32);
    rig_check_gradients(&r, 5e-3);
    for (size_t p = 0; p < r.list.n; p++) r.grad_ptr[p].accumulate = true;
    const float once = ((float *)rig_data(&r.grads[W_BEFORE]))[7];
    rig_forward(&r, LAYER_TRAIN);
    rig_backward(&r);
    ck_assert_float_eq_tol(((float *)rig_data(&r.grads[W_BEFORE]))[7], 2 * once, 1e-4f);
    rig_close(&r);
    open_mixer(&r, 3, 1, DTYPE_F32); /* a single position has nothing before it */
    rig_forward(&r, LAYER_TRAIN);
    rig_backward(&r);
    for (size_t i = 0; i < r.grads[W_BEFORE].nbytes / sizeof(float); i++)
        ck_assert_float_eq(((float *)rig_data(&r.grads[W_BEFORE]))[i], 0.0f);
    rig_close(&r);
}
END_TEST

START_TEST(it_recomputes_and_freezes)
{
    struct rig r;
    open_mixer(&r, 3, 5, DTYPE_F32);
    rig_forward(&r, LAYER_TRAIN);
    rig_backward(&r);
    float *din = malloc(r.din.nbytes);
    memcpy(din, rig_data(&r.din), r.din.nbytes);
    memset(rig_data(&r.saved), 0x7f, r.saved.nbytes);
    struct layer_args a = rig_args(&r, LAYER_RECOMPUTE);
    a.out = NULL;
    ck_ok(r.cls->forward(r.hp, &a));
    for (int p = 0; p < 3; p++) r.grad_ptr[p].dp = NULL;
    rig_backward(&r);
    ck_assert_mem_eq(rig_data(&r.din), din, r.din.nbytes);
    free(din);
    rig_close(&r);
}
END_TEST

START_TEST(its_model_has_the_shape_it_says)
{
    struct cz_model *m = mixer_model();
    ck_assert_msg(m != NULL, "%s", cz_last_error());
    ck_assert_uint_eq(model_n_layers(m), DEPTH + 2);
    ck_assert_uint_eq(param_table_numel(model_params(m), false),
                      VOCAB * WIDTH + DEPTH * (5 * WIDTH * INNER) + WIDTH);
    size_t idx;
    ck_ok(param_table_find(model_params(m), "head.weight", &idx));
    ck_assert_uint_eq(idx, 0);
    cz_model_destroy(m);
}
END_TEST

TEST_MAIN("model/custom_layer", it_stays_inside_its_bytes, its_gradients_match_differences,
          it_recomputes_and_freezes, its_model_has_the_shape_it_says)
