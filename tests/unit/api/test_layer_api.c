/* Claims: a model of layers that are written against <czero/layer.h> trains to the same bits as the
 * same layers inside czero, at every ZeRO stage, on one rank and on two, with activation
 * checkpointing; the ready-made classes are czero's own; nothing that cz_model_create() read is
 * needed afterwards; mistakes are refused with a sentence that names the member; what a layer's
 * function returns reaches the caller of the engine; decode gets its cache and position. */
#include "comm/comm.h"
#include "engine/engine.h"
#include "model/model.h"
#include "model/parts/parts.h"
#include "tests/support/public_toys.h"
#include "tests/support/ranks.h"
#include "tests/support/toy_layers.h"

#include <czero/infer.h>

/* ---- the same bits --------------------------------------------------------------------------- */

enum { B = 2, T = 4, SCALES = 3, STEPS = 5 };

struct outcome {
    float losses[2 * STEPS], eval;
    float weights[4][PUB_V * PUB_C], moments[4][PUB_V * PUB_C];
};

/* As one of the ranks of `comm`; NULL: alone. Takes the model over. No ck_ in here: a rank runs it.
 */
static cz_status train(const char *config, struct comm *comm, struct cz_model *model,
                       struct outcome *out)
{
    static const char *const names[] = {"table", "w0", "w2", "v"};
    memset(out, 0, sizeof *out);
    if (!model) return cz_last_status();
    const struct cz_engine_options options = {.size = sizeof options,
                                              .config_json = config,
                                              .world = comm ? comm_world(comm) : NULL,
                                              .seed = 3};
    struct cz_engine *e = engine_initialize_ex(&options, model);
    if (!e) return cz_last_status();
    const int rank = (int)engine_get_rank(e);
    int32_t ids[B * T], labels[B * T];
    struct cz_batch b = {.size = sizeof b, .B = B, .T = T, .ids = ids, .labels = labels};
    for (int micro = 0; micro < 2 * STEPS; micro++) {
        for (int i = 0; i < B * T; i++) {
            ids[i] = (i * 3 + micro + rank) % PUB_V;
            labels[i] = (i * 5 + micro + 2 * rank) % PUB_V;
        }
        b.sample = (uint64_t)(B * (micro * (int)engine_get_world_size(e) + rank));
        TRY(engine_forward(e, &b, &out->losses[micro]));
        TRY(engine_backward(e));
        TRY(engine_step(e));
    }
    TRY(engine_eval(e, &b, &out->eval));
    for (int p = 0; p < 4; p++) {
        const size_t numel = p == 0 ? PUB_V * PUB_C : PUB_C;
        TRY(engine_param_get(e, names[p], "weight", out->weights[p], numel));
        TRY(engine_param_get(e, names[p], "exp_avg", out->moments[p], numel));
    }
    engine_destroy(e);
    return CZ_OK;
}

static cz_status compare(const char *config, struct comm *comm)
{
    struct outcome inside, outside;
    TRY(train(config, comm, toy_model(SCALES, T), &inside));
    TRY(train(config, comm, pub_model(SCALES, T), &outside));
    if (memcmp(&inside, &outside, sizeof inside) != 0)
        return err_set(CZ_CORRUPT, 0, "different bits under %s", config);
    if (inside.losses[0] == inside.losses[2 * STEPS - 1])
        return err_set(CZ_CORRUPT, 0, "nothing was learned under %s", config);
    return CZ_OK;
}

static const char *config_of(int stage, int every)
{
    static char config[512];
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 2,"
             " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01}},"
             " \"gradient_clipping\": 1.0, \"zero_optimization\": {\"stage\": %d},"
             " \"czero\": {\"activation_checkpointing\": {\"every\": %d}}}",
             stage, every);
    return config;
}

START_TEST(it_trains_to_the_same_bits_at_every_stage)
{
    for (int stage = 0; stage <= 3; stage++)
        for (int every = 0; every < 2; every++) ck_ok(compare(config_of(stage, every), NULL));
}
END_TEST

static cz_status compare_rank(struct ranks *ranks, int rank, void *arg)
{
    struct comm *comm;
    (void)arg;
    TRY(comm_shm_join(ranks->fd, rank, ranks->n, 30, &comm));
    for (int stage = 0; stage <= 3; stage++) TRY(compare(config_of(stage, 1), comm));
    comm_destroy(comm);
    return CZ_OK;
}

START_TEST(two_ranks_train_to_the_same_bits_at_every_stage)
{
    struct ranks ranks;
    ranks_start(&ranks, 2, compare_rank, NULL);
    ranks_expect_ok(&ranks, 60);
}
END_TEST

START_TEST(a_parameter_without_a_gradient_is_reported_from_the_layer)
{
    toy_unused = pub_unused = 1;
    ck_ok(compare("{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 2,"
                  " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01}}}",
                  NULL));
    toy_unused = pub_unused = -1;
}
END_TEST

/* ---- ready-made classes ---------------------------------------------------------------------- */

START_TEST(ready_made_classes_are_the_models_own)
{
    char token[] = "token.weight", position[] = "position.weight", norm[] = "norm.weight";
    struct cz_embedding_hp embedding = {.size = sizeof embedding,
                                        .token_name = token,
                                        .position_name = position,
                                        .V = 11,
                                        .P = 7,
                                        .C = 6,
                                        .dropout_p = 0.25f,
                                        .init_std = 0.5f,
                                        .has_padding = true,
                                        .padding_id = 2};
    struct cz_lm_head_hp head = {.size = sizeof head,
                                 .norm_weight_name = norm,
                                 .weight_name = token,
                                 .tied_alias = "head.weight",
                                 .V = 11,
                                 .C = 6,
                                 .eps = 1e-5f};
    const struct cz_layer_desc layers[] = {{cz_layer_embedding(), &embedding, sizeof embedding},
                                           {cz_layer_lm_head(), &head, sizeof head}};
    struct cz_model_desc desc = {.size = sizeof desc,
                                 .name = "ends",
                                 .layers = layers,
                                 .n_layers = 2,
                                 .vocab_size = 11,
                                 .t_max = 7,
                                 .hidden_size = 6};
    struct cz_model *m = cz_model_create(&desc);
    ck_assert_msg(m != NULL, "%s", cz_last_error());
    memset(token, 'x', sizeof token - 1); /* strings and structs were copied */
    memset(position, 'x', sizeof position - 1);
    memset(norm, 'x', sizeof norm - 1);
    memset(&embedding, 0x55, sizeof embedding);
    ck_assert_ptr_eq(model_layer_at(m, 0)->cls, &model_embedding_class);
    ck_assert_ptr_eq(model_layer_at(m, 1)->cls, &model_lm_head_class);
    const struct model_embedding_hp *e = model_layer_at(m, 0)->hp;
    ck_assert_str_eq(e->position_name, "position.weight");
    ck_assert_int_eq(e->V, 11);
    ck_assert_int_eq(e->P, 7);
    ck_assert_int_eq(e->C, 6);
    ck_assert_float_eq(e->dropout_p, 0.25f);
    ck_assert(e->has_padding);
    ck_assert_int_eq(e->padding_id, 2);
    size_t idx;
    ck_ok(param_table_find(model_params(m), "head.weight", &idx));
    ck_assert_uint_eq(idx, 0);
    ck_ok(param_table_find(model_params(m), "position.weight", &idx));
    ck_assert_str_eq(cz_model_name(m), "ends");
    ck_assert_int_eq(cz_model_hidden_size(m), 6);
    cz_model_destroy(m);
}
END_TEST

/* ---- mistakes -------------------------------------------------------------------------------- */

static cz_status bad_declare(const void *hp, struct cz_param_list *out)
{
    const int64_t shape[] = {PUB_C}, empty[] = {0};
    const struct pub_scale_hp *which = hp;
    if (which->number == 0) return cz_param_add(out, NULL, 1, shape, CZ_INIT_ONE, 0);
    if (which->number == 1) return cz_param_add(out, "", 1, shape, CZ_INIT_ONE, 0);
    if (which->number == 2) return cz_param_add(out, "x", 1, NULL, CZ_INIT_ONE, 0);
    if (which->number == 3) return cz_param_add(out, "x", 1, shape, (enum cz_init)9, 0);
    if (which->number == 4) return cz_param_add(out, "x", 5, shape, CZ_INIT_ONE, 0);
    if (which->number == 5) return cz_param_add(out, "x", 1, empty, CZ_INIT_ONE, 0);
    if (which->number == 6) return cz_param_add(out, "x", 1, shape, CZ_INIT_NORMAL, -1);
    if (which->number == 7) return cz_param_add(out, "table", 1, shape, CZ_INIT_ONE, 0);
    if (which->number == 8) return cz_param_alias(out, "x");
    if (which->number == 9) return cz_error(CZ_IO, "no file %d", 7);
    if (which->number == 10) return (cz_status)4711;
    return cz_param_add(NULL, "x", 1, shape, CZ_INIT_ONE, 0);
}

/* The description of the toy model, to be damaged. */
struct damaged {
    struct cz_layer_class rows, scale, dot;
    struct pub_scale_hp hp;
    struct cz_layer_desc layers[3];
    struct cz_model_desc desc;
};

static struct damaged *intact(struct damaged *d)
{
    *d = (struct damaged){
        .rows = pub_rows_class(), .scale = pub_scale_class(), .dot = pub_dot_class()};
    d->layers[0] = (struct cz_layer_desc){&d->rows, NULL, 0};
    d->layers[1] = (struct cz_layer_desc){&d->scale, &d->hp, sizeof d->hp};
    d->layers[2] = (struct cz_layer_desc){&d->dot, NULL, 0};
    d->desc = (struct cz_model_desc){.size = sizeof d->desc,
                                     .name = "toy",
                                     .layers = d->layers,
                                     .n_layers = 3,
                                     .vocab_size = PUB_V,
                                     .t_max = T};
    return d;
}

static void refused(const struct cz_model_desc *desc, cz_status want, const char *says)
{
    cz_clear_error();
    struct cz_model *m = cz_model_create(desc);
    ck_assert_msg(m == NULL, "a model in spite of: %s", says);
    ck_assert_msg(cz_last_status() == want, "%s instead of %s: %s",
                  cz_status_name(cz_last_status()), cz_status_name(want), cz_last_error());
    ck_assert_msg(strstr(cz_last_error(), says) != NULL, "\"%s\" lacks \"%s\"", cz_last_error(),
                  says);
}

#define REFUSED(change, says)                                                                      \
    do {                                                                                           \
        intact(&d);                                                                                \
        change;                                                                                    \
        refused(&d.desc, CZ_INVALID, says);                                                        \
    } while (0)

START_TEST(mistakes_in_a_description_name_the_member)
{
    struct damaged d;
    struct cz_model *m = cz_model_create(&intact(&d)->desc);
    ck_assert_msg(m != NULL, "%s", cz_last_error());
    cz_model_destroy(m);

    refused(NULL, CZ_INVALID, "desc is NULL");
    REFUSED(d.desc.size = 0, "cz_model_desc.size is 0");
    REFUSED(d.desc.layers = NULL, "layers is NULL");
    REFUSED(d.desc.n_layers = 0, "n_layers is 0");
    REFUSED(d.desc.t_max = 0, "t_max");
    REFUSED(d.desc.vocab_size = -1, "vocab_size");
    REFUSED(d.desc.hidden_size = -1, "hidden_size");
    REFUSED(d.desc.n_types = -1, "n_types");
    REFUSED(d.desc.n_classes = 3, "n_classes is 3");
    REFUSED(d.desc.labels = CZ_LABELS_CLASS, "n_classes is 0");
    REFUSED(d.desc.labels = (enum cz_labels)17, "labels is 17");
    REFUSED(d.layers[1].cls = NULL, "toy: layers[1]: cls is NULL");
    REFUSED(d.layers[1].hp = NULL, "layers[1]: hp is NULL");
    REFUSED(d.scale.size = 0, "layers[1]: cz_layer_class.size is 0");
    REFUSED(d.scale.name = NULL, "layers[1]: cls->name");
    REFUSED(d.scale.flags = 6, "scale: cls->flags is 0x6");
    REFUSED(d.scale.declare = NULL, "cls->declare is NULL");
    REFUSED(d.scale.sizes = NULL, "cls->sizes is NULL");
    REFUSED(d.scale.forward = NULL, "cls->forward is NULL");
    REFUSED(d.scale.backward = NULL, "cls->backward is NULL");
    REFUSED(d.dot.flags = 0, "must compute the loss");
    REFUSED(d.scale.flags = CZ_LAYER_LOSS, "layer 1 computes a loss");
    REFUSED(d.scale.size = offsetof(struct cz_layer_class, backward), "cls->backward is NULL");
}
END_TEST

START_TEST(structs_of_other_versions_are_understood_or_refused)
{
    struct {
        struct cz_layer_class cls;
        void *later;
    } newer = {pub_scale_class(), NULL};
    struct damaged d;
    newer.cls.size = sizeof newer;
    intact(&d)->layers[1].cls = &newer.cls;
    struct cz_model *m = cz_model_create(&d.desc);
    ck_assert_msg(m != NULL, "%s", cz_last_error());
    cz_model_destroy(m);
    newer.later = &d;
    refused(&d.desc, CZ_UNSUPPORTED, "cz_layer_class");
    intact(&d)->scale.size = offsetof(struct cz_layer_class, decode); /* an older caller's */
    m = cz_model_create(&d.desc);
    ck_assert_msg(m != NULL, "%s", cz_last_error());
    cz_model_destroy(m);
}
END_TEST

START_TEST(mistakes_in_a_declaration_name_the_layer)
{
    const struct {
        cz_status status;
        const char *says;
    } cases[] = {
        {CZ_INVALID, "name is NULL"},          {CZ_INVALID, "name is empty"},
        {CZ_INVALID, "shape is NULL"},         {CZ_INVALID, "no init rule 9"},
        {CZ_INVALID, "layer 1 (scale)"},       {CZ_INVALID, "layer 1 (scale)"},
        {CZ_INVALID, "init_std is -1"},        {CZ_INVALID, "layer 1 (scale)"},
        {CZ_INVALID, "no parameter yet"},      {CZ_IO, "layer 1 (scale): no file 7"},
        {CZ_INVALID, "declare returned 4711"}, {CZ_INVALID, "list is NULL"},
    };
    for (int i = 0; i < (int)(sizeof cases / sizeof cases[0]); i++) {
        struct damaged d;
        intact(&d)->hp.number = i;
        d.scale.declare = bad_declare;
        refused(&d.desc, cases[i].status, cases[i].says);
        ck_assert_msg(strstr(cz_last_error(), "layer 1 (scale)") != NULL, "%s", cz_last_error());
    }
}
END_TEST

START_TEST(mistakes_in_ready_made_layers_name_the_member)
{
    struct damaged d;
    const struct cz_embedding_hp good = {
        .size = sizeof good, .token_name = "t", .V = 8, .C = 4, .init_std = 1};
    const struct cz_lm_head_hp good_head = {.size = sizeof good_head,
                                            .norm_weight_name = "n",
                                            .weight_name = "t",
                                            .V = 8,
                                            .C = 4,
                                            .eps = 1e-5f};
    struct cz_embedding_hp hp;
    struct cz_lm_head_hp head;
#define REFUSED_HP(change, says)                                                                   \
    do {                                                                                           \
        hp = good;                                                                                 \
        head = good_head;                                                                          \
        intact(&d)->layers[0] = (struct cz_layer_desc){cz_layer_embedding(), &hp, sizeof hp};      \
        d.layers[2] = (struct cz_layer_desc){cz_layer_lm_head(), &head, sizeof head};              \
        change;                                                                                    \
        refused(&d.desc, CZ_INVALID, says);                                                        \
    } while (0)
    REFUSED_HP(hp.size = 0, "layers[0]: hp->size is 0");
    REFUSED_HP(d.layers[0].hp_nbytes = 8, "hp_nbytes 8");
    REFUSED_HP(d.layers[0].hp = NULL, "hp is NULL");
    REFUSED_HP(hp.token_name = NULL, "hp->token_name is NULL");
    REFUSED_HP(hp.V = 0, "hp->V is 0");
    REFUSED_HP(hp.C = -4, "hp->C is -4");
    REFUSED_HP(hp.position_name = "p", "hp->P is 0");
    REFUSED_HP(hp.dropout_p = 1, "hp->dropout_p is 1");
    REFUSED_HP(hp.init_std = -1, "hp->init_std");
    REFUSED_HP((hp.has_padding = true, hp.padding_id = 8), "hp->padding_id is 8");
    REFUSED_HP(head.norm_weight_name = NULL, "layers[2]: hp->norm_weight_name is NULL");
    REFUSED_HP(head.weight_name = NULL, "hp->weight_name is NULL");
    REFUSED_HP(head.V = 0, "hp->V is 0");
    REFUSED_HP(head.C = 0, "hp->C is 0");
    REFUSED_HP(head.eps = 0, "hp->eps is 0");
}
END_TEST

/* ---- errors of a layer's functions ----------------------------------------------------------- */

static cz_status result; /* of the failing function */
static bool says_why;

static cz_status fails(void)
{
    return says_why ? cz_error(result, "the layer is tired") : result;
}

static cz_status failing_forward(const void *hp, const struct cz_layer_args *a)
{
    return result == CZ_OK ? pub_scale_forward(hp, a) : fails();
}

static cz_status failing_sizes(const void *hp, const struct cz_layer_shape *s,
                               struct cz_layer_sizes *out)
{
    return s->T < T ? pub_scale_sizes(hp, s, out) : fails();
}

START_TEST(what_a_layer_returns_reaches_the_caller)
{
    const char *config = "{\"train_micro_batch_size_per_gpu\": 2,"
                         " \"optimizer\": {\"type\": \"AdamW\"}}";
    const struct cz_engine_options options = {.size = sizeof options, .config_json = config};
    struct damaged d;
    intact(&d)->scale.forward = failing_forward;
    struct cz_model *m = cz_model_create(&d.desc);
    result = CZ_OK;
    struct cz_engine *e = engine_initialize_ex(&options, m);
    ck_assert_msg(e != NULL, "%s", cz_last_error());
    int32_t ids[B * T] = {0};
    const struct cz_batch b = {.size = sizeof b, .B = B, .T = T, .ids = ids, .labels = ids};
    float loss;
    ck_ok(engine_eval(e, &b, &loss));
    result = CZ_DIVERGED;
    cz_clear_error();
    ck_fails(engine_eval(e, &b, &loss), CZ_DIVERGED);
    ck_assert_msg(strstr(cz_last_error(), "layer 1 (scale): forward returned CZ_DIVERGED") != NULL,
                  "%s", cz_last_error());
    says_why = true;
    ck_fails(engine_eval(e, &b, &loss), CZ_DIVERGED);
    ck_assert_msg(strstr(cz_last_error(), "layer 1 (scale): the layer is tired") != NULL, "%s",
                  cz_last_error());
    engine_destroy(e);

    intact(&d)->scale.sizes = failing_sizes;
    m = cz_model_create(&d.desc);
    result = CZ_UNSUPPORTED;
    ck_assert_ptr_null(engine_initialize_ex(&options, m));
    ck_assert_int_eq(cz_last_status(), CZ_UNSUPPORTED);
    ck_assert_msg(strstr(cz_last_error(), "layer 1 (scale)") != NULL, "%s", cz_last_error());
    cz_model_destroy(m);
}
END_TEST

/* ---- decode ---------------------------------------------------------------------------------- */

static struct {
    int n;
    int64_t position[8], T[8], cache_T;
    bool ok;
} decoded; /* calls of the scale layer */

static cz_status scale_decode(const void *hp, const struct cz_layer_args *a)
{
    const int i = decoded.n++;
    decoded.position[i] = a->position;
    decoded.T[i] = a->batch->T;
    decoded.cache_T = a->cache_T;
    decoded.ok = decoded.ok && a->cache && a->in && a->out && !a->saved && !a->dropout &&
                 a->size == sizeof *a && a->batch->size == sizeof *a->batch &&
                 cz_ops_on_host(a->ops);
    return pub_scale_forward(hp, a);
}

static cz_status dot_decode(const void *hp, const struct cz_layer_args *a)
{
    (void)hp;
    const float *x = a->in, *table = a->params[0];
    for (int64_t b = 0; a->logits && b < a->batch->B; b++)
        for (int64_t v = 0; v < PUB_V; v++) {
            float sum = 0;
            for (int64_t c = 0; c < PUB_C; c++)
                sum += table[v * PUB_C + c] * x[((b + 1) * a->batch->T - 1) * PUB_C + c];
            a->logits[b * PUB_V + v] = sum;
        }
    return CZ_OK;
}

START_TEST(layers_decode_with_a_cache)
{
    const struct cz_infer_options options = {.size = sizeof options, .B = 2, .T = T, .cache = true};
    const int32_t ids[2 * 3] = {1, 2, 3, 5, 6, 7}, last[2] = {3, 7}, first[4] = {1, 2, 5, 6};
    struct cz_batch b = {.size = sizeof b, .B = 2, .T = 3, .ids = ids};
    float whole[2 * PUB_V], step[2 * PUB_V];
    struct damaged d;
    intact(&d)->rows.decode = pub_rows_forward;
    d.scale.decode = scale_decode;
    struct cz_model *m = cz_model_create(&d.desc);
    struct cz_infer *in;
    ck_ok(cz_infer_create(m, &options, &in));
    ck_assert_msg(!cz_infer_can_decode(in), "the loss layer has no decode");
    cz_infer_destroy(in);
    cz_model_destroy(m);

    d.dot.decode = dot_decode;
    m = cz_model_create(&d.desc);
    ck_ok(cz_infer_create(m, &options, &in));
    ck_assert(cz_infer_can_decode(in));
    decoded.ok = true;
    ck_ok(cz_infer_decode(in, &b, 0, whole));
    b.T = 2;
    b.ids = first;
    ck_ok(cz_infer_decode(in, &b, 0, NULL));
    b.T = 1;
    b.ids = last;
    ck_ok(cz_infer_decode(in, &b, 2, step));
    ck_assert_mem_eq(whole, step, sizeof whole);
    ck_assert_float_ne(whole[0], whole[1]);
    ck_assert(decoded.ok);
    ck_assert_int_eq(decoded.n, 3);
    ck_assert_int_eq(decoded.position[1], 0);
    ck_assert_int_eq(decoded.T[1], 2);
    ck_assert_int_eq(decoded.position[2], 2);
    ck_assert_int_eq(decoded.T[2], 1);
    ck_assert_int_eq(decoded.cache_T, T);
    cz_infer_destroy(in);
    cz_model_destroy(m);
}
END_TEST

TEST_MAIN("api/layer", it_trains_to_the_same_bits_at_every_stage,
          two_ranks_train_to_the_same_bits_at_every_stage,
          a_parameter_without_a_gradient_is_reported_from_the_layer,
          ready_made_classes_are_the_models_own, mistakes_in_a_description_name_the_member,
          structs_of_other_versions_are_understood_or_refused,
          mistakes_in_a_declaration_name_the_layer, mistakes_in_ready_made_layers_name_the_member,
          what_a_layer_returns_reaches_the_caller, layers_decode_with_a_cache)
