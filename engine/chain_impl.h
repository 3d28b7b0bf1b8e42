/* The inside of a chain: where each layer's pieces lie. */
#ifndef CZ_ENGINE_CHAIN_IMPL_H
#define CZ_ENGINE_CHAIN_IMPL_H

#include "engine/chain.h"

/* Offsets are into the block of activations. */
struct chain_node {
    struct model_layer layer;
    struct layer_sizes sizes; /* for the planned shape */
    size_t out_off, saved_off;
    size_t cache_off;
    const void **params;        /* (n_params) gathered from the table before each call */
    struct param_grad *dparams; /* (n_params) */
};

struct chain {
    struct chain_options options;
    struct chain_node *nodes;
    size_t n_nodes;
    size_t n_params;
    struct chain_sizes sizes;
    size_t out_nbytes_max;

    size_t segment; /* layers per checkpoint; n_nodes − 1 without checkpointing */
    size_t n_segments;
    struct chain_visit *visits; /* of a TRAIN pass */
    size_t n_visits;

    const void **slots;       /* storage behind every node's params */
    struct param_grad *grads; /* and dparams */
    bool *touched;            /* (n_params) written in this TRAIN pass */
    bool *used;               /* (n_params) got a gradient in this TRAIN pass */

    struct chain_memory memory;
    int64_t shape_B, shape_T; /* the last shape that was checked against the planned sizes */
    struct chain_run run;     /* the TRAIN pass that waits for its backward */
    bool pending;
};

/* The sizes of one layer for a (B,T) of this chain. */
cz_status chain_layer_size(const struct chain *chain, size_t layer_idx, int64_t B, int64_t T,
                           struct layer_sizes *out);

#endif
