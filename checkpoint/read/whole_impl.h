/* Stage 0: which of the optimizer's parameters is which of the model's. */
#ifndef CZ_CHECKPOINT_READ_WHOLE_IMPL_H
#define CZ_CHECKPOINT_READ_WHOLE_IMPL_H

#include "checkpoint/read/checkpoint_impl.h"
#include "checkpoint/store/manifest.h"

/* A param group of the optimizer: parameters one by one, or one flat tensor of them all. */
struct whole_group {
    const struct pickle_tensor *flat;           /* fp32_groups_flat's; NULL: one by one */
    size_t n_items;                             /* 1 when flat */
    const struct pickle_tensor *const *masters; /* (n_items) fp32_groups'; NULL: none */
    const struct pickle_node *const *states;    /* (n_items) dictionaries, or NULL where none */
    /* While matching: what the next parameter of this group would be. */
    size_t pos;   /* item */
    uint64_t off; /* element of the flat tensor */
};

struct whole {
    struct ckpt *ck;
    uint32_t file_idx; /* of the model file */
    struct whole_group *groups;
    size_t n_groups;
    size_t *params; /* (n_params) entries of parameters, in the order of `module` */
    size_t n_params;
    size_t *choice; /* (n_params) group, n_groups for a frozen one */
    bool has_masters, has_states;
    const struct manifest_file *written;      /* ours: says which tensor is where; or NULL */
    const struct pickle_tensor **master_pool; /* what the groups' lists point into */
    const struct pickle_node **state_pool;
};

/* Find choice[]: every group's parameters stand in it in the order of `module`, with the right
 * shapes and, where masters tell, the right values. *is_unique (shapes alone): there is no other
 * way. scratch: (n_params). Errors: CZ_CORRUPT (no way), CZ_UNSUPPORTED (too many ways to try),
 * CZ_IO. */
cz_status whole_match(struct whole *w, size_t *scratch, bool *is_unique);

/* Forwards and back again along choice[]; start with whole_rewind(). */
void whole_rewind(struct whole *w);
void whole_advance(struct whole *w, size_t group, uint64_t numel);

/* Master of the group's next parameter, of this entry: where it is. PLACE_NONE: none. */
struct ckpt_place whole_master(const struct whole *w, size_t group);

#endif
