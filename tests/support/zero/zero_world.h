/* A small model state for tests of zero: five parameters in two units, gradients from a counter, on
 * any pretended rank. */
#ifndef CZ_TESTS_SUPPORT_ZERO_WORLD_H
#define CZ_TESTS_SUPPORT_ZERO_WORLD_H

#include "base/rng.h"
#include "base/size.h"
#include "comm/device/device_comm.h"
#include "tests/support/check_main.h"
#include "zero/zero.h"

#include <math.h>
#include <string.h>

#ifndef ZERO_WORLD_SCALE
#define ZERO_WORLD_SCALE 1 /* elements are multiplied by this */
#endif
#define OF(n) ((size_t)(n)*ZERO_WORLD_SCALE)

enum { N_PARAMS = 5, N_UNITS = 2, TOTAL = (35 + 45 + 9 + 9 + 45) * ZERO_WORLD_SCALE };

enum { SPOILT = 1, SPOILT_ELEM = 17 }; /* whose gradient is infinite (world.spoils) */

static const size_t numels[N_PARAMS] = {OF(35), OF(45), OF(9), OF(9), OF(45)};
static const size_t unit_a[] = {0, 1, 2}, unit_b[] = {3, 4, 0};

static const struct zero_visit visits[] = {
    {.unit_idx = 0},
    {.unit_idx = 1},
    {.unit_idx = 1, .writes_grads = true, .is_backward = true},
    {.unit_idx = 0, .writes_grads = true, .is_backward = true}};

/* Five parameters in two units (parameter 0 tied into both); parameter 2 may be frozen. */
struct world {
    struct param_table table;
    struct zero_unit units[N_UNITS];
    struct optim_group groups[2];
    size_t group_of[N_PARAMS];
    struct device *device, *host; /* where layers are; the CPU */
    struct ops *ops, *host_ops;
    struct dev_stream *stream;
    struct comm *comm;
    struct zero *z;
    struct swap *swap;
    void *blocks[ZERO_N_BLOCKS];
    bool lent_comm;
    struct comm *device_comm; /* of a GPU, around comm; NULL: none */
    float share;              /* of the gradients, on this rank */
    uint64_t seed;            /* of the gradients; ranks may differ */
    bool gaps;                /* some elements never have a gradient */
    bool spoils;              /* one is infinite */
};

/* Blocks are aligned as little as zero_bind() allows, and what is behind them is watched. */
#define WORLD_LEAD  ((size_t)256)
#define WORLD_GUARD ((size_t)4096)

static cz_status fetch(void *user, size_t param_idx, size_t off, size_t numel, float *dst)
{
    (void)user;
    const struct rng_key key = {.seed = 5, .site = (uint32_t)param_idx};
    for (size_t i = 0; i < numel; i++) dst[i] = rng_normal(&key, off + i);
    return CZ_OK;
}

struct world_setting {
    int stage, rank, world_size;
    enum cz_dtype dtype, grad_dtype, master_dtype;
    size_t tile, bucket;
    const char *optimizer;
    bool two_groups, freeze, round_robin, align, overlap;
    bool sums;         /* gradients are summed over ranks */
    struct comm *comm; /* a real one, kept; NULL: a pretended rank */
    struct zero_stage3 stage3;
    struct zero_swap swap;
    const char *swap_dir;
    const char *device;                      /* NULL: "cpu" */
    enum device_comm_kind device_comm;       /* between GPUs; AUTO: none */
    cz_status (*tune)(struct optim_hyper *); /* more settings of the optimizer; or NULL */
    bool on_gpu; /* laid out for a GPU; with device "cpu" that stands in for one */
    struct zero_offload offload;
    bool updates_first; /* zero_step() before zero_scan(): of the second of a pair */
    bool late;          /* updates are left to the next forward, where that applies */
};

static const struct world_setting plain = {.world_size = 1, .optimizer = "AdamW"};

static struct device *world_side(struct world *w, int b)
{
    bool on_gpu = zero_block_memory(w->z, (enum zero_block)b) == ZERO_GPU_MEMORY;
    return on_gpu ? w->device : w->host;
}

/* What a block of a test takes, its edges too: whole pages, as page-locking wants them. */
static size_t world_block_nbytes(size_t nbytes)
{
    return size_round_up(WORLD_LEAD + nbytes + WORLD_GUARD, 4096);
}

static void *world_block(struct world *w, enum zero_block block)
{
    size_t nbytes = zero_block_nbytes(w->z, block);
    struct device *side = world_side(w, (int)block);
    void *memory;
    if (nbytes == 0) return NULL;
    const size_t all = world_block_nbytes(nbytes);
    ck_ok(side->ops->mem_alloc(side, all, "test", &memory));
    if (side == w->host) /* so that copies are deferred, as they may be */
        ck_ok(w->device->ops->host_register(w->device, memory, all));
    return (unsigned char *)memory + WORLD_LEAD;
}

/* Bytes from and to wherever layers have them, in their order. */
static inline void world_get(struct world *w, void *dst, const void *src, size_t nbytes)
{
    ck_ok(w->device->ops->copy(w->device, w->stream, dst, src, nbytes));
    ck_ok(w->device->ops->stream_sync(w->device, w->stream));
}

static inline void world_put(struct world *w, void *dst, const void *src, size_t nbytes)
{
    ck_ok(w->device->ops->copy(w->device, w->stream, dst, src, nbytes));
}

static void world_block_free(struct world *w, int b, size_t nbytes, struct device *side)
{
    const unsigned char *block = w->blocks[b];
    unsigned char end[WORLD_GUARD];
    size_t all = world_block_nbytes(nbytes);
    if (!block) return;
    void *memory = (void *)(uintptr_t)(block - WORLD_LEAD);
    world_get(w, end, block + nbytes, sizeof end);
    for (size_t i = 0; i < WORLD_GUARD; i++)
        ck_assert_msg(end[i] == 0, "block %d is written behind its end", b);
    if (side == w->host) w->device->ops->host_unregister(w->device, memory, all);
    side->ops->mem_free(side, memory, all);
}

/* Everything but zero_bind() and zero_load(). */
static void world_lay_out(struct world *w, struct world_setting s)
{
    memset(w, 0, sizeof *w);
    param_table_init(&w->table);
    for (size_t i = 0; i < N_PARAMS; i++) {
        char name[8];
        size_t idx;
        const int64_t shape[] = {(int64_t)numels[i]};
        snprintf(name, sizeof name, "p%zu", i);
        ck_ok(param_table_add(&w->table, name, 1, shape, PARAM_INIT_NORMAL, 1, &idx));
        w->group_of[i] = s.two_groups ? i % 2 : 0;
    }
    if (s.freeze) w->table.params[2].trainable = false;
    w->units[0] = (struct zero_unit){unit_a, 3};
    w->units[1] = (struct zero_unit){unit_b, 3};
    struct optim_hyper hyper;
    ck_ok(optim_hyper_begin(s.optimizer, OPTIM_FUSED, &hyper));
    ck_ok(optim_hyper_set_number(&hyper, "weight_decay", 0.1));
    if (s.tune) ck_ok(s.tune(&hyper));
    ck_ok(optim_hyper_finish(&hyper));
    for (int g = 0; g < 2; g++) ck_ok(optim_group_init(&w->groups[g], &hyper, NULL));
    ck_ok(device_open("cpu", 0, &w->host));
    ck_ok(ops_create(w->host, &w->host_ops));
    w->device = w->host;
    w->ops = w->host_ops;
    if (s.device) {
        ck_ok(device_open(s.device, 0, &w->device));
        ck_ok(ops_create(w->device, &w->ops));
        ck_ok(w->device->ops->stream_create(w->device, &w->stream));
    }
    w->share = 1;
    w->lent_comm = s.comm != NULL;
    w->comm = s.comm;
    if (!s.comm) ck_ok(comm_self_create(s.rank, s.world_size, &w->comm));
    const struct zero_options options = {.table = &w->table,
                                         .units = w->units,
                                         .n_units = N_UNITS,
                                         .visits = visits,
                                         .n_visits = CZ_ARRAY_LEN(visits),
                                         .group_of = w->group_of,
                                         .groups = w->groups,
                                         .n_groups = s.two_groups ? 2 : 1,
                                         .stage = s.stage,
                                         .dtype = s.dtype,
                                         .grad_dtype = s.grad_dtype,
                                         .wire_dtype = s.dtype,
                                         .master_dtype = s.master_dtype,
                                         .round_robin = s.round_robin,
                                         .align_params = s.align,
                                         .reduce_sum = s.sums,
                                         .tile_numel = s.tile,
                                         .bucket_numel = s.bucket,
                                         .overlap = s.overlap,
                                         .stage3 = s.stage3,
                                         .on_gpu = s.on_gpu,
                                         .offload = s.offload,
                                         .swap = s.swap,
                                         .late_update = s.late,
                                         .comm = w->comm,
                                         .ops = w->ops,
                                         .host_ops = w->host_ops,
                                         .stream = w->stream};
    ck_ok(zero_create(&options, &w->z));
    if (s.device_comm != DEVICE_COMM_AUTO) {
        const struct device_comm_options between = {
            .kind = s.device_comm, .host = w->comm, .device = w->device, .stream = w->stream};
        ck_ok(comm_device_create(&between, &w->device_comm));
        zero_set_comm(w->z, w->device_comm);
    }
    for (int b = 0; b < ZERO_N_BLOCKS; b++) w->blocks[b] = world_block(w, (enum zero_block)b);
    const struct swap_options swap = {.dir = s.swap_dir, .nbytes = zero_swap_nbytes(w->z)};
    if (swap.nbytes > 0) ck_ok(swap_open(&swap, &w->swap));
}

static cz_status world_begin(struct world *w)
{
    static float staging[OF(7)];
    TRY(zero_bind(w->z, w->blocks, w->swap));
    return zero_load(w->z, fetch, NULL, staging, OF(7));
}

static inline void world_make(struct world *w, struct world_setting s)
{
    world_lay_out(w, s);
    ck_ok(world_begin(w));
}

static void world_free(struct world *w)
{
    size_t nbytes[ZERO_N_BLOCKS];
    struct device *sides[ZERO_N_BLOCKS];
    for (int b = 0; b < ZERO_N_BLOCKS; b++) {
        nbytes[b] = zero_block_nbytes(w->z, (enum zero_block)b);
        sides[b] = world_side(w, b);
    }
    zero_destroy(w->z);
    swap_close(w->swap);
    for (int b = 0; b < ZERO_N_BLOCKS; b++) world_block_free(w, b, nbytes[b], sides[b]);
    comm_destroy(w->device_comm);
    if (!w->lent_comm) comm_destroy(w->comm);
    if (w->device != w->host) {
        w->device->ops->stream_destroy(w->device, w->stream);
        ops_destroy(w->ops);
        device_close(w->device);
    }
    ops_destroy(w->host_ops);
    device_close(w->host);
    param_table_free(&w->table);
}

/* Whole gradients of a unit, the same on every pretended rank; instead of what is there, or added
 * to it. */
static void fill_unit(struct world *w, size_t unit, uint32_t step, enum cz_dtype dtype, bool adds)
{
    for (size_t k = 0; k < w->units[unit].n; k++) {
        static float room[OF(45)];
        size_t i = w->units[unit].param_idx[k], nbytes = numels[i] * dtype_size(dtype);
        const struct rng_key key = {.seed = 6 + w->seed, .site = (uint32_t)i, .step = step};
        if (!zero_grads(w->z)[i]) continue;
        if (adds) world_get(w, room, zero_grads(w->z)[i], nbytes);
        for (size_t j = 0; j < numels[i]; j++) {
            float x = w->share * rng_normal(&key, j), *f = room;
            if (w->gaps && j % 7 == 3) x = 0;
            if (w->spoils && i == SPOILT && j == SPOILT_ELEM) x = INFINITY;
            uint16_t *h = (uint16_t *)(void *)room;
            if (dtype == DTYPE_F32)
                f[j] = adds ? f[j] + x : x;
            else if (dtype == DTYPE_BF16)
                h[j] = f32_to_bf16(adds ? bf16_to_f32(h[j]) + x : x);
            else
                h[j] = f32_to_f16(adds ? f16_to_f32(h[j]) + x : x);
        }
        world_put(w, zero_grads(w->z)[i], room, nbytes);
    }
}

/* One micro-batch. */
static inline void fill_grads(struct world *w, uint32_t step, enum cz_dtype dtype)
{
    ck_ok(zero_pass_begin(w->z, ZERO_PASS_LAST));
    for (size_t v = 0; v < CZ_ARRAY_LEN(visits); v++) {
        size_t u = visits[v].unit_idx;
        ck_ok(zero_unit_acquire(w->z, u));
        for (size_t k = 0; k < w->units[u].n; k++)
            ck_assert_ptr_nonnull(zero_params(w->z)[w->units[u].param_idx[k]]);
        if (visits[v].writes_grads) fill_unit(w, u, step, dtype, false);
        if (visits[v].is_backward) ck_ok(zero_grads_ready(w->z, u));
        ck_ok(zero_unit_release(w->z, u));
    }
    ck_ok(zero_pass_end(w->z));
}

#endif
