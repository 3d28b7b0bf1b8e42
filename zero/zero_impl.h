/* The inside of zero: where each group's flat buffers lie in the blocks. */
#ifndef CZ_ZERO_ZERO_IMPL_H
#define CZ_ZERO_ZERO_IMPL_H

#include "layout/flat.h"
#include "zero/zero.h"

#define ZERO_ALIGN ((size_t)256)

struct zero_group {
    struct flat_group flat;
    size_t own_begin, own_numel; /* this rank's elements of the flat buffer */
    size_t n_states;
    size_t param_off, master_off, grad_off; /* bytes into the blocks */
    size_t state_off[OPTIM_STATES_MAX];
    struct lamb_segment *segments; /* of all tiles; only with tensor norms */
    size_t *tile_segment;          /* (n_tiles + 1) first segment of each tile */
    size_t sums_off, ratios_off;   /* bytes into ZERO_SMALL */
};

struct zero {
    struct zero_options options;
    struct zero_group *groups; /* (n_groups) */
    size_t nbytes[ZERO_N_BLOCKS];
    unsigned char *blocks[ZERO_N_BLOCKS];
    struct step_scalars *scalars; /* (n_groups) in ZERO_SMALL */
    size_t *frozen_off;           /* (n_params) bytes into ZERO_PARAMS */
    size_t *place_group;          /* (n_params) group, n_groups when frozen */
    size_t *place_off;            /* (n_params) first element in the group's flat buffer */
    const void **params;          /* (n_params) */
    void **grads;                 /* (n_params) */
    struct zero_scan *scans;      /* (world_size) */
    double *norms;                /* (SUMSQ_PARTS · world_size) */
    size_t numel_padded, numel_own;
    size_t n_ready;   /* units since the last boundary */
    bool own_masters; /* masters lie apart from the parameters */
};

/* First element of this rank's masters, gradients, states of a group. */
void *zero_own_master(const struct zero *z, size_t group);
void *zero_own_grad(const struct zero *z, size_t group);
void *zero_own_state(const struct zero *z, size_t group, size_t state_idx);

/* First element of a group's whole flat parameters. */
void *zero_flat_params(const struct zero *z, size_t group);

#endif
