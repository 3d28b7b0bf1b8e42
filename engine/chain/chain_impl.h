/* The inside of a chain: where each layer's pieces are. */
#ifndef CZ_ENGINE_CHAIN_CHAIN_IMPL_H
#define CZ_ENGINE_CHAIN_CHAIN_IMPL_H

#include "base/size.h"
#include "engine/chain/chain.h"

/* Offsets are into the block of activations. With several micro-batches together a micro-batch (a
 * set) is a stride behind the one before; a stride of 0 is one place for all of them. */
struct chain_node {
    struct model_layer layer;
    struct layer_sizes sizes; /* for the planned shape */
    size_t out_nbytes;        /* for the shape in work */
    size_t out_off, saved_off;
    size_t out_stride, saved_stride;
    size_t cache_off;
    size_t kept_off;              /* of out, in host memory or in the file */
    enum chain_saved saved_where; /* with several micro-batches together; in a file: saved_off is of
                                     the file */
    size_t swap_idx;              /* which of those in the file it is */
    const void **params;          /* (n_params) gathered from the table before each call */
    struct param_grad *dparams;   /* (n_params) */
};

struct chain {
    struct chain_options options;
    struct chain_node *nodes;
    size_t n_nodes;
    size_t n_params;
    struct chain_sizes sizes;
    size_t out_nbytes_max;
    size_t shared_off, shared_nbytes; /* in the block of activations; one per set */

    /* Micro-batches together: */
    size_t n_sets;     /* 1: one after the other */
    size_t tied_layer; /* chain_tied_layer() */
    bool puts_off;     /* what the loss layer shares with it is trained */
    /* What the loss layer keeps for it, or would: of all sets; where; and of one. */
    size_t put_off_nbytes, put_off_at, put_off_stride;
    /* Weights in the order of products, of the layer that is visited: of the largest one, whether
     * they are kept, and where. */
    size_t packed_nbytes, packed_at;
    bool keeps_packed;

    size_t segment; /* layers per checkpoint; n_nodes − 1 without checkpointing */
    size_t n_segments;
    struct chain_visit *visits; /* of a TRAIN pass */
    size_t n_visits;

    const void **slots;       /* storage behind every node's params */
    struct param_grad *grads; /* and dparams */
    bool *touched;            /* (n_params) written in this TRAIN pass */
    bool *used;               /* (n_sets, n_params) got a gradient in this TRAIN pass */

    size_t n_kept; /* outputs that take turns on the device and wait in the host; 0: none does */
    struct dev_event *made[2], *freed[2];   /* by place, on the run's stream */
    struct dev_event *sent[2], *fetched[2]; /* on the stream of copies */
    uint64_t moving[2];                     /* by place, the file's ticket */

    /* What layers save that waits in the file (chain_swap.c). */
    size_t *swapped; /* (n_swapped) layers, ascending */
    size_t n_swapped;
    size_t swap_off[2];      /* places, in the block of activations */
    uint64_t swap_moving[2]; /* by place, the file's ticket */
    bool goes_back;          /* the pass is in its backward */

    struct chain_memory memory;
    struct chain_shape shape; /* the last that was checked against the planned sizes */
    struct chain_run *runs;   /* (n_sets) of the TRAIN pass that waits for its backward */
    size_t n_runs;
    bool pending;
};

/* Take `nbytes` at the end of a growing block. */
static inline cz_status chain_place_piece(size_t *block, size_t nbytes, size_t *off)
{
    *off = *block;
    TRY(size_add(*block, nbytes, block));
    TRY(size_add(*block, CHAIN_ALIGN - 1, block));
    *block = *block / CHAIN_ALIGN * CHAIN_ALIGN;
    return CZ_OK;
}

/* Whether micro-batches may go through the layers together. */
static inline bool chain_is_together(const struct chain *c)
{
    return c->n_sets > 1;
}

/* The sizes of one layer for batches of a shape. */
cz_status chain_layer_size(const struct chain *chain, size_t layer_idx, struct chain_shape shape,
                           struct layer_sizes *out);

/* ---- chain_kept.c: outputs that wait in host memory, or a file, from forward to backward ------
 */

/* Their places in the device's block (of *block bytes so far) and in the host's. */
cz_status chain_kept_plan(struct chain *c, size_t *block);
cz_status chain_kept_create(struct chain *c);
void chain_kept_free(struct chain *c);

/* Whether the output of layer i is one of them. */
bool chain_is_kept(const struct chain *c, size_t i);

/* Before anything is written in a new pass. */
cz_status chain_kept_begin(struct chain *c, struct dev_stream *stream);

/* Wait for a ticket of the file, and forget it. */
cz_status chain_file_wait(struct chain *c, uint64_t *ticket);

/* Around the forward of layer i, and around whatever reads its input later. */
cz_status chain_kept_before_write(struct chain *c, size_t i);
cz_status chain_kept_after_write(struct chain *c, size_t i);
cz_status chain_kept_before_read(struct chain *c, size_t i);
cz_status chain_kept_after_backward(struct chain *c, size_t i);

/* ---- chain_swap.c: what layers save that waits in a file --------------------------------------
 */

/* Places in the block of activations, at multiples of CHAIN_FILE_ALIGN where *block is one, and in
 * the file. */
cz_status chain_swap_plan(struct chain *c, size_t *block);

/* Where such a layer's `saved` of a set is, in the block of activations. */
size_t chain_swap_off(const struct chain *c, size_t i, size_t set);

/* Before anything is written in a new pass, and before the first backward; before layer i's forward
 * or backward for a set, and after either. Other layers are let through. */
cz_status chain_swap_begin(struct chain *c);
cz_status chain_swap_turn(struct chain *c);
cz_status chain_swap_before(struct chain *c, size_t i, size_t set);
cz_status chain_swap_after_forward(struct chain *c, size_t i, size_t set);
cz_status chain_swap_after_backward(struct chain *c, size_t i, size_t set);

#endif
