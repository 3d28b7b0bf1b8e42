/* The parameter table: names, shapes and order of everything that is trained or frozen.
 *
 * The table's order is the model's order of declaration (Hugging Face's order of parameters), on
 * which flat buffers, partitions and checkpoints are built. A tied parameter stands once, under the
 * name it was declared with first; its other names are aliases.
 *
 * Life cycle: param_table_init() → param_table_add() / _alias() → read → param_table_free(). */
#ifndef CZ_LAYOUT_PARAM_TABLE_H
#define CZ_LAYOUT_PARAM_TABLE_H

#include "base/dtype.h"
#include "base/hash.h"

CZ_EXTERN_C_BEGIN

#define PARAM_NDIM_MAX 4

enum param_init {
    PARAM_INIT_ZERO = 0,
    PARAM_INIT_ONE,
    PARAM_INIT_NORMAL,
    PARAM_INIT_SINUSOID, /* (P,C): sin and cos of p/10000^(2·⌊c/2⌋/C) in even and odd columns */
    PARAM_INIT_UNIFORM   /* in [−init_std, init_std) */
};

struct param_info {
    char *name; /* Hugging Face's, as in state_dict(): "transformer.h.0.attn.c_attn.weight" */
    int ndim;
    int64_t shape[PARAM_NDIM_MAX];
    size_t numel;
    enum param_init init;
    float init_std;    /* PARAM_INIT_NORMAL: mean 0; PARAM_INIT_UNIFORM: the bound */
    bool has_zero_row; /* row `zero_row` of a matrix starts as zeros: a padding token's */
    int64_t zero_row;
    bool trainable;  /* false: frozen */
    bool is_adapter; /* a branch's: in no model folder, only in an adapter's */
    bool decay_hint; /* false for biases and norms: what the `hf` grouping leaves undecayed */
};

struct param_alias {
    char *name;       /* the other name of a tied parameter: "lm_head.weight" */
    size_t param_idx; /* the parameter it stands for */
    bool is_stored;   /* exported beside it, for readers that do not tie the two */
};

struct param_table {
    struct param_info *params;
    size_t n_params, cap_params;
    struct param_alias *aliases;
    size_t n_aliases, cap_aliases;
    struct hash_index param_names, alias_names; /* into params and aliases */
};

void param_table_init(struct param_table *t);
void param_table_free(struct param_table *t);

/* Append a parameter (the name is copied) and give its index. A name that already stands is a tie:
 * the existing index is returned when the shape is equal.
 * Errors: CZ_INVALID (same name with another shape, ndim outside 1…4, empty or overflowing shape).
 */
cz_status param_table_add(struct param_table *t, const char *name, int ndim, const int64_t *shape,
                          enum param_init init, float init_std, size_t *idx);

/* Record another name for parameter `param_idx`. */
cz_status param_table_alias(struct param_table *t, const char *name, size_t param_idx);

/* The same, for a name that an export repeats, because its readers do not know the tie. */
cz_status param_table_alias_stored(struct param_table *t, const char *name, size_t param_idx);

/* Whether there is a name or alias, and its index. */
bool param_table_has(const struct param_table *t, const char *name, size_t *idx);

/* The same; CZ_NOTFOUND with the nearest name, whose search takes long. */
cz_status param_table_find(const struct param_table *t, const char *name, size_t *idx);

/* Elements over all, or over trainable parameters only. */
size_t param_table_numel(const struct param_table *t, bool trainable_only);

CZ_EXTERN_C_END
#endif
