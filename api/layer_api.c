/* czero/layer.h: models of custom layers.
 *
 * The engine knows one kind of layer, struct layer_class of model/layer.h. A user's class becomes
 * one whose functions translate the arguments and call the user's. All that these functions need
 * (the classes, copies of hyper-parameters and strings) is in one block, which the model frees; the
 * translated arguments are on the stack, so that a step allocates nothing. */
#include "api/ops_api_impl.h"
#include "base/host/entry.h"
#include "base/options.h"
#include "base/size.h"
#include "model/layer.h"
#include "model/model.h"
#include "model/parts/parts.h"

#include <czero/layer.h>

#include <stdalign.h>
#include <stdlib.h>
#include <string.h>

/* ---- what a user's layer is inside ----------------------------------------------------------- */

/* The hyper-parameters of an adapted layer. */
struct adapted {
    struct cz_layer_class cls; /* the user's */
    const void *hp;            /* the copy of the user's */
};

struct cz_param_list {
    struct param_list *list;
};

/* The user's function reported `status`; it may come from a layer that recorded no error, or be a
 * number of its own. */
static cz_status user_status(cz_status status, const char *function)
{
    if (status == CZ_OK) return CZ_OK;
    if (strcmp(cz_status_name(status), "CZ_?") == 0)
        return err_set(CZ_INVALID, 0, "%s returned %d, which is not a cz_status", function,
                       (int)status);
    if (cz_last_status() != status)
        return err_set(status, 0, "%s returned %s", function, cz_status_name(status));
    return err_trace(status, function, 0);
}

static cz_status adapted_declare(const void *hp, struct param_list *out)
{
    const struct adapted *own = hp;
    struct cz_param_list list = {out};
    return user_status(own->cls.declare(own->hp, &list), "declare");
}

static cz_status adapted_size(const void *hp, const struct batch_shape *s, struct layer_sizes *out)
{
    const struct adapted *own = hp;
    const struct cz_ops ops = {.ops = s->ops};
    const struct cz_layer_shape shape = {.size = sizeof shape,
                                         .B = s->B,
                                         .T = s->T,
                                         .dtype = s->dtype,
                                         .grad_dtype = s->grad_dtype,
                                         .ops = &ops,
                                         .training = s->training,
                                         .keeps_all = s->keeps_all};
    struct cz_layer_sizes sizes = {.size = sizeof sizes};
    TRY(user_status(own->cls.sizes(own->hp, &shape, &sizes), "sizes"));
    *out = (struct layer_sizes){.out_nbytes = sizes.out_nbytes,
                                .saved_nbytes = sizes.saved_nbytes,
                                .workspace_nbytes = sizes.workspace_nbytes,
                                .cache_nbytes = sizes.cache_nbytes,
                                .flops_forward = sizes.flops_forward};
    return CZ_OK;
}

static struct cz_batch batch_out(const struct batch *b)
{
    return (struct cz_batch){.size = sizeof(struct cz_batch),
                             .B = b->B,
                             .T = b->T,
                             .ids = b->ids,
                             .labels = b->labels,
                             .types = b->types,
                             .positions = b->positions,
                             .key_mask = b->key_mask,
                             .loss_weights = b->loss_weights,
                             .loss_divisor = b->loss_divisor,
                             .sample = b->sample,
                             .documents = b->documents};
}

_Static_assert((int)CZ_LAYER_TRAIN == LAYER_TRAIN && (int)CZ_LAYER_EVAL == LAYER_EVAL &&
                   (int)CZ_LAYER_RECOMPUTE == LAYER_RECOMPUTE,
               "modes are cast");
/* A layer sets `none` in the chain's own array, whatever the number of parameters. */
_Static_assert(sizeof(struct cz_param_grad) == sizeof(struct param_grad) &&
                   offsetof(struct cz_param_grad, dp) == offsetof(struct param_grad, dp) &&
                   offsetof(struct cz_param_grad, accumulate) ==
                       offsetof(struct param_grad, accumulate) &&
                   offsetof(struct cz_param_grad, none) == offsetof(struct param_grad, none),
               "arrays of gradients are cast");

/* Translate a call of the engine for one of the user's functions. */
static cz_status user_call(const struct adapted *own,
                           cz_status (*f)(const void *hp, const struct cz_layer_args *args),
                           const char *function, const struct layer_args *a)
{
    const struct cz_ops ops = {.ops = a->ops, .stream = a->stream};
    const struct cz_batch batch = batch_out(a->batch), host = batch_out(batch_on_host(a->batch));
    const struct cz_layer_args args = {
        .size = sizeof args,
        .ops = &ops,
        .batch = &batch,
        .host_batch = &host,
        .mode = (enum cz_layer_mode)a->mode,
        .dropout = a->mode != LAYER_EVAL && !a->no_dropout,
        .keeps_all = a->keeps_all,
        .dtype = a->dtype,
        .grad_dtype = a->grad_dtype,
        .rng = rng_key_out(a->rng),
        .in = a->in,
        .out = a->out,
        .params = a->params,
        .saved = a->saved,
        .workspace = a->workspace,
        .workspace_nbytes = a->workspace_nbytes,
        .dout = a->dout,
        .din = a->din,
        .dparams = (struct cz_param_grad *)(void *)a->dparams,
        .loss = a->loss,
        .logits = a->logits,
        .dloss = a->dloss,
        .cache = a->cache,
        .position = a->position,
        .cache_T = a->cache_T,
    };
    return user_status(f(own->hp, &args), function);
}

static cz_status adapted_forward(const void *hp, const struct layer_args *a)
{
    const struct adapted *own = hp;
    return user_call(own, own->cls.forward, "forward", a);
}

static cz_status adapted_backward(const void *hp, const struct layer_args *a)
{
    const struct adapted *own = hp;
    return user_call(own, own->cls.backward, "backward", a);
}

static cz_status adapted_decode(const void *hp, const struct layer_args *a)
{
    const struct adapted *own = hp;
    return user_call(own, own->cls.decode, "decode", a);
}

/* ---- parameters ------------------------------------------------------------------------------ */

_Static_assert((int)CZ_INIT_ZERO == PARAM_INIT_ZERO && (int)CZ_INIT_ONE == PARAM_INIT_ONE &&
                   (int)CZ_INIT_NORMAL == PARAM_INIT_NORMAL &&
                   (int)CZ_INIT_SINUSOID == PARAM_INIT_SINUSOID,
               "init rules are cast");

cz_status cz_param_add(struct cz_param_list *list, const char *name, int ndim, const int64_t *shape,
                       enum cz_init init, float init_std)
{
    API_ENTRY;
    if (!list || !name || !shape)
        return err_set(CZ_INVALID, 0, "cz_param_add: %s is NULL",
                       !list   ? "list"
                       : !name ? "name"
                               : "shape");
    if (!name[0]) return err_set(CZ_INVALID, 0, "cz_param_add: name is empty");
    if ((unsigned)init > CZ_INIT_SINUSOID)
        return err_set(CZ_INVALID, 0, "cz_param_add: %s: there is no init rule %d", name,
                       (int)init);
    if (init == CZ_INIT_NORMAL && !(init_std >= 0))
        return err_set(CZ_INVALID, 0, "cz_param_add: %s: init_std is %g, but must not be negative",
                       name, (double)init_std);
    return param_list_add(list->list, name, ndim, shape, (enum param_init)init, init_std);
}

cz_status cz_param_alias(struct cz_param_list *list, const char *name)
{
    API_ENTRY;
    if (!list || !name || !name[0])
        return err_set(CZ_INVALID, 0, "cz_param_alias: %s",
                       !list ? "list is NULL" : "name is missing");
    if (list->list->n == 0)
        return err_set(CZ_INVALID, 0, "cz_param_alias: %s: the layer has declared no parameter yet",
                       name);
    return param_table_alias(list->list->table, name, list->list->idx[list->list->n - 1]);
}

/* ---- ready-made classes ---------------------------------------------------------------------- */

/* Recognized by their address. */
static const struct cz_layer_class embedding_class = {.size = sizeof embedding_class,
                                                      .name = "embedding"};
static const struct cz_layer_class lm_head_class = {
    .size = sizeof lm_head_class, .name = "lm_head", .flags = CZ_LAYER_LOSS};

const struct cz_layer_class *cz_layer_embedding(void)
{
    return &embedding_class;
}

const struct cz_layer_class *cz_layer_lm_head(void)
{
    return &lm_head_class;
}

static cz_status missing(const char *member)
{
    return err_set(CZ_INVALID, 0, "hp->%s is NULL", member);
}

static cz_status check_count(const char *member, int64_t count)
{
    if (count >= 1) return CZ_OK;
    return err_set(CZ_INVALID, 0, "hp->%s is %lld, expected at least 1", member, (long long)count);
}

/* hp as these classes take it: a struct with its size. */
static cz_status hp_take(void *ours, size_t nbytes, const struct cz_layer_desc *desc,
                         const char *name)
{
    size_t size = 0;
    if (desc->hp && desc->hp_nbytes >= sizeof size) memcpy(&size, desc->hp, sizeof size);
    if (size == 0 || size != desc->hp_nbytes)
        return err_set(CZ_INVALID, 0,
                       "hp->size is %zu and hp_nbytes %zu: both must be sizeof(struct %s)", size,
                       desc->hp_nbytes, name);
    return options_take(ours, nbytes, desc->hp, name);
}

static cz_status embedding_take(const struct cz_layer_desc *desc, struct cz_embedding_hp *hp)
{
    TRY(hp_take(hp, sizeof *hp, desc, "cz_embedding_hp"));
    if (!hp->token_name) return missing("token_name");
    TRY(check_count("V", hp->V));
    TRY(check_count("C", hp->C));
    if (hp->position_name) TRY(check_count("P", hp->P));
    if (!(hp->dropout_p >= 0 && hp->dropout_p < 1))
        return err_set(CZ_INVALID, 0, "hp->dropout_p is %g, outside [0, 1)", (double)hp->dropout_p);
    if (!(hp->init_std >= 0))
        return err_set(CZ_INVALID, 0, "hp->init_std is %g, but must not be negative",
                       (double)hp->init_std);
    if (hp->has_padding && (hp->padding_id < 0 || hp->padding_id >= hp->V))
        return err_set(CZ_INVALID, 0, "hp->padding_id is %lld, outside [0, %lld)",
                       (long long)hp->padding_id, (long long)hp->V);
    return CZ_OK;
}

static cz_status lm_head_take(const struct cz_layer_desc *desc, struct cz_lm_head_hp *hp)
{
    TRY(hp_take(hp, sizeof *hp, desc, "cz_lm_head_hp"));
    if (!hp->norm_weight_name) return missing("norm_weight_name");
    if (!hp->weight_name) return missing("weight_name");
    TRY(check_count("V", hp->V));
    TRY(check_count("C", hp->C));
    if (!(hp->eps > 0))
        return err_set(CZ_INVALID, 0, "hp->eps is %g, but must be positive", (double)hp->eps);
    if (!(hp->init_std >= 0))
        return err_set(CZ_INVALID, 0, "hp->init_std is %g, but must not be negative",
                       (double)hp->init_std);
    return CZ_OK;
}

/* ---- the block that a model keeps ------------------------------------------------------------ */

/* Memory handed out piece by piece; with base NULL it only counts. Saturates at SIZE_MAX. */
struct block {
    unsigned char *base;
    size_t used;
};

static void *block_take(struct block *b, size_t nbytes)
{
    const size_t unit = alignof(max_align_t), at = b->used;
    if (nbytes > SIZE_MAX - unit - at) {
        b->used = SIZE_MAX - unit;
        return NULL;
    }
    b->used = at + (nbytes + unit - 1) / unit * unit;
    return b->base ? b->base + at : NULL;
}

static void *block_copy(struct block *b, const void *src, size_t nbytes)
{
    void *copy = block_take(b, nbytes);
    if (copy && nbytes > 0) memcpy(copy, src, nbytes);
    return copy;
}

static const char *block_string(struct block *b, const char *s)
{
    return s ? block_copy(b, s, strlen(s) + 1) : NULL;
}

static void place_embedding(struct block *b, const struct cz_embedding_hp *hp,
                            struct layer_desc *out)
{
    const struct model_embedding_hp own = {.token_name = block_string(b, hp->token_name),
                                           .position_name = block_string(b, hp->position_name),
                                           .V = hp->V,
                                           .P = hp->P,
                                           .C = hp->C,
                                           .dropout_p = hp->dropout_p,
                                           .init_std = hp->init_std,
                                           .has_padding = hp->has_padding,
                                           .padding_id = hp->padding_id};
    *out = (struct layer_desc){&model_embedding_class, block_copy(b, &own, sizeof own), sizeof own};
}

static void place_lm_head(struct block *b, const struct cz_lm_head_hp *hp, struct layer_desc *out)
{
    const struct model_lm_head_hp own = {.norm_weight_name = block_string(b, hp->norm_weight_name),
                                         .norm_bias_name = block_string(b, hp->norm_bias_name),
                                         .weight_name = block_string(b, hp->weight_name),
                                         .tied_alias = block_string(b, hp->tied_alias),
                                         .V = hp->V,
                                         .C = hp->C,
                                         .eps = hp->eps,
                                         .init_std = hp->init_std};
    *out = (struct layer_desc){&model_lm_head_class, block_copy(b, &own, sizeof own), sizeof own};
}

static void place_adapted(struct block *b, const struct cz_layer_class *cls,
                          const struct cz_layer_desc *desc, struct layer_desc *out)
{
    const char *name = block_string(b, cls->name);
    struct adapted own = {.cls = *cls};
    own.cls.name = name;
    own.hp = block_copy(b, desc->hp, desc->hp_nbytes);
    const struct layer_class inside = {.name = name,
                                       .flags = cls->flags & CZ_LAYER_LOSS ? LAYER_LOSS : 0,
                                       .declare = adapted_declare,
                                       .size = adapted_size,
                                       .forward = adapted_forward,
                                       .backward = adapted_backward,
                                       .decode = cls->decode ? adapted_decode : NULL};
    *out = (struct layer_desc){block_copy(b, &inside, sizeof inside),
                               block_copy(b, &own, sizeof own), sizeof own};
}

/* ---- models ---------------------------------------------------------------------------------- */

static cz_status class_take(const struct cz_layer_class *theirs, struct cz_layer_class *cls)
{
    if (!theirs) return err_set(CZ_INVALID, 0, "cls is NULL");
    TRY(options_take(cls, sizeof *cls, theirs, "cz_layer_class"));
    if (!cls->name || !cls->name[0]) return err_set(CZ_INVALID, 0, "cls->name is missing");
    if (cls->flags & ~CZ_LAYER_LOSS)
        return err_set(CZ_INVALID, 0, "%s: cls->flags is 0x%x, but only CZ_LAYER_LOSS is known",
                       cls->name, cls->flags);
    const char *absent = !cls->declare    ? "declare"
                         : !cls->sizes    ? "sizes"
                         : !cls->forward  ? "forward"
                         : !cls->backward ? "backward"
                                          : NULL;
    return absent ? err_set(CZ_INVALID, 0, "%s: cls->%s is NULL", cls->name, absent) : CZ_OK;
}

/* Check one layer and put it into the block. */
static cz_status layer_place(const struct cz_layer_desc *desc, struct block *b,
                             struct layer_desc *out)
{
    if (!desc->hp && desc->hp_nbytes > 0)
        return err_set(CZ_INVALID, 0, "hp is NULL, but hp_nbytes is %zu", desc->hp_nbytes);
    if (desc->cls == &embedding_class) {
        struct cz_embedding_hp hp;
        TRY(embedding_take(desc, &hp));
        place_embedding(b, &hp, out);
        return CZ_OK;
    }
    if (desc->cls == &lm_head_class) {
        struct cz_lm_head_hp hp;
        TRY(lm_head_take(desc, &hp));
        place_lm_head(b, &hp, out);
        return CZ_OK;
    }
    struct cz_layer_class cls;
    TRY(class_take(desc->cls, &cls));
    place_adapted(b, &cls, desc, out);
    return CZ_OK;
}

static cz_status desc_take(const struct cz_model_desc *theirs, struct cz_model_desc *d)
{
    if (!theirs) return err_set(CZ_INVALID, 0, "cz_model_create: desc is NULL");
    TRY(options_take(d, sizeof *d, theirs, "cz_model_desc"));
    if (!d->layers || d->n_layers == 0)
        return err_set(CZ_INVALID, 0, "cz_model_desc: %s",
                       d->layers ? "n_layers is 0" : "layers is NULL");
    const struct {
        const char *name;
        int64_t value;
    } counts[] = {{"vocab_size", d->vocab_size},
                  {"hidden_size", d->hidden_size},
                  {"n_classes", d->n_classes},
                  {"n_types", d->n_types}};
    for (size_t i = 0; i < CZ_ARRAY_LEN(counts); i++)
        if (counts[i].value < 0)
            return err_set(CZ_INVALID, 0, "cz_model_desc: %s is %lld, but must not be negative",
                           counts[i].name, (long long)counts[i].value);
    if ((unsigned)d->labels > CZ_LABELS_CLASS)
        return err_set(CZ_INVALID, 0, "cz_model_desc: labels is %d, which means nothing",
                       (int)d->labels);
    if ((d->labels == CZ_LABELS_CLASS) != (d->n_classes > 0))
        return err_set(CZ_INVALID, 0,
                       "cz_model_desc: n_classes is %lld, but labels is %sCZ_LABELS_CLASS",
                       (long long)d->n_classes, d->labels == CZ_LABELS_CLASS ? "" : "not ");
    return CZ_OK;
}

/* All layers of d; the array is at the start of the block. */
static cz_status layers_place(const struct cz_model_desc *d, struct block *b)
{
    size_t nbytes;
    TRY(size_mul(d->n_layers, sizeof(struct layer_desc), &nbytes));
    struct layer_desc *layers = block_take(b, nbytes), counted;
    for (size_t i = 0; i < d->n_layers; i++)
        if (layer_place(&d->layers[i], b, layers ? &layers[i] : &counted) != CZ_OK)
            return err_prefix("%s: layers[%zu]", d->name ? d->name : "model", i);
    return CZ_OK;
}

static cz_status create(const struct cz_model_desc *theirs, struct cz_model **out)
{
    struct cz_model_desc d;
    TRY(desc_take(theirs, &d));
    struct block b = {0};
    TRY(layers_place(&d, &b)); /* checks and counts */
    b = (struct block){.base = malloc(b.used)};
    if (!b.base) return err_set(CZ_NOMEM, 0, "no memory for %zu layers", d.n_layers);
    const cz_status st = layers_place(&d, &b);
    const struct model_desc desc = {.name = d.name,
                                    .layers = (const struct layer_desc *)(const void *)b.base,
                                    .n_layers = d.n_layers,
                                    .vocab_size = d.vocab_size,
                                    .t_max = d.t_max,
                                    .hidden_size = d.hidden_size,
                                    .n_classes = d.n_classes,
                                    .n_types = d.n_types,
                                    .labels = d.labels,
                                    .block = b.base};
    if (st == CZ_OK) *out = model_create(&desc);
    if (*out) return CZ_OK;
    free(b.base);
    return cz_last_status();
}

struct cz_model *cz_model_create(const struct cz_model_desc *desc)
{
    API_ENTRY;
    struct cz_model *m = NULL;
    return create(desc, &m) == CZ_OK ? m : NULL;
}
