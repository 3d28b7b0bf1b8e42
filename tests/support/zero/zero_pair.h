/* The small model state (zero_world.h) twice, in memory and with a swap file: both are trained
 * alike and must have the same bytes. */
#ifndef CZ_TESTS_SUPPORT_ZERO_PAIR_H
#define CZ_TESTS_SUPPORT_ZERO_PAIR_H

#include "tests/support/zero/zero_world.h"

#define PADDING_MAX 1024 /* elements of all groups, for the worlds of these tests */

enum { SECOND = 7 }; /* the number of a step's second micro-batch */

/* Bytes of a source, wherever it is. */
static void read_source(struct world *w, enum zero_source source, size_t group, size_t state_idx,
                        size_t off, size_t numel, void *dst)
{
    struct zero_range ranges[2];
    size_t n = zero_source_ranges(w->z, source, group, state_idx, 0, off, numel, ranges), at = 0;
    for (size_t i = 0; i < n; i++) {
        ck_ok(zero_range_read(w->z, &ranges[i], (unsigned char *)dst + at));
        at += ranges[i].nbytes;
    }
}

static void same_source(struct world *a, struct world *b, enum zero_source source, size_t group,
                        size_t state_idx, size_t numel)
{
    static float x[TOTAL + PADDING_MAX], y[TOTAL + PADDING_MAX];
    size_t half = numel / 2; /* a second read that begins anywhere */
    read_source(a, source, group, state_idx, 0, numel, x);
    read_source(b, source, group, state_idx, 0, half, y);
    read_source(b, source, group, state_idx, half, numel - half, (unsigned char *)y + half * 4);
    ck_assert_mem_eq(x, y, numel * sizeof *x);
}

/* Masters and states of this rank's partitions are the same in both. */
static void same_own(struct world *a, struct world *b, const struct world_setting *s)
{
    ck_ok(zero_update_end(a->z));
    ck_ok(zero_update_end(b->z));
    for (size_t g = 0; g < (s->two_groups ? 2 : 1); g++) {
        const struct zero_layout layout = zero_group_layout(a->z, g);
        if (s->master_dtype == DTYPE_F32)
            same_source(a, b, ZERO_FROM_MASTERS, g, 0, layout.own_numel);
        for (size_t k = 0; k < layout.n_states; k++)
            same_source(a, b, ZERO_FROM_STATES, g, k, layout.own_numel);
    }
}

static void same_tensor(struct world *a, struct world *b, enum zero_what what, size_t k, size_t i)
{
    static float x[TOTAL], y[TOTAL];
    ck_ok(zero_read(a->z, what, k, i, 0, numels[i], x));
    ck_ok(zero_read(b->z, what, k, i, 0, numels[i], y));
    ck_assert_mem_eq(x, y, numels[i] * sizeof *x);
}

static void same_state(struct world *a, struct world *b, const struct world_setting *s)
{
    same_own(a, b, s);
    for (size_t i = 0; i < N_PARAMS && s->world_size == 1; i++) {
        same_tensor(a, b, ZERO_WEIGHT, 0, i);
        for (size_t k = 0; k < zero_group_layout(a->z, 0).n_states; k++)
            if (a->table.params[i].trainable) same_tensor(a, b, ZERO_STATE, k, i);
    }
}

/* A pass of both, layer by layer: what a layer finds is the same where this rank can know it. */
static void pass_both(struct world *a, struct world *b, const struct world_setting *s, uint32_t t)
{
    size_t size = dtype_size(s->dtype);
    bool adds = t == SECOND && zero_accumulates(a->z);
    ck_assert_int_eq(zero_accumulates(a->z), zero_accumulates(b->z));
    ck_ok(zero_pass_begin(a->z, ZERO_PASS_LAST));
    ck_ok(zero_pass_begin(b->z, ZERO_PASS_LAST));
    for (size_t v = 0; v < CZ_ARRAY_LEN(visits); v++) {
        size_t u = visits[v].unit_idx;
        ck_ok(zero_unit_acquire(a->z, u));
        ck_ok(zero_unit_acquire(b->z, u));
        for (size_t k = 0; k < a->units[u].n; k++) {
            size_t i = a->units[u].param_idx[k];
            ck_assert_ptr_nonnull(zero_params(b->z)[i]);
            if (s->world_size > 1 && s->stage > 0) continue;
            static float x[OF(45)], y[OF(45)];
            world_get(a, x, zero_params(a->z)[i], numels[i] * size);
            world_get(b, y, zero_params(b->z)[i], numels[i] * size);
            ck_assert_mem_eq(x, y, numels[i] * size);
        }
        if (visits[v].writes_grads) fill_unit(a, u, t, s->grad_dtype, adds);
        if (visits[v].writes_grads) fill_unit(b, u, t, s->grad_dtype, adds);
        if (visits[v].is_backward) ck_ok(zero_grads_ready(a->z, u));
        if (visits[v].is_backward) ck_ok(zero_grads_ready(b->z, u));
        ck_ok(zero_unit_release(a->z, u));
        ck_ok(zero_unit_release(b->z, u));
    }
    ck_ok(zero_pass_end(a->z));
    ck_ok(zero_pass_end(b->z));
}

static double measured_norm(struct world *w)
{
    struct zero_scan scan;
    double norm;
    ck_ok(zero_scan(w->z, &scan));
    ck_ok(zero_norm(w->z, &norm));
    return norm;
}

/* Returns the norm, measured before the update or after it. */
static double boundary_in_order(struct world *w, uint32_t t, bool updates_first)
{
    double norm = 0;
    ck_ok(zero_reduce(w->z));
    if (!updates_first) norm = measured_norm(w);
    ck_ok(zero_step(w->z, t, 4, 1.5));
    ck_ok(zero_gather(w->z));
    if (updates_first) norm = measured_norm(w);
    zero_grads_drop(w->z);
    return norm;
}

static inline void boundary(struct world *w, uint32_t t)
{
    (void)boundary_in_order(w, t, false);
}

/* Gradients as they are collected are the same, before the boundary and after. */
static void same_grads(struct world *a, struct world *b, const struct world_setting *s)
{
    for (size_t i = 0; i < N_PARAMS && s->world_size == 1; i++)
        if (a->table.params[i].trainable) same_tensor(a, b, ZERO_GRAD, 0, i);
}

/* Three updates of both, the last of two micro-batches. */
static void train_both(struct world *a, struct world *b, const struct world_setting *s)
{
    for (uint32_t t = 1; t <= 3; t++) {
        pass_both(a, b, s, t);
        if (t == 3) pass_both(a, b, s, SECOND);
        if (!s->updates_first) same_grads(a, b, s); /* waits for them */
        double norm = boundary_in_order(a, t, false);
        ck_assert(boundary_in_order(b, t, s->updates_first) == norm);
    }
}

/* A state in memory and one with a swap file. */
static inline void make_both(struct world *memory, struct world *swapped, struct world_setting *s,
                             struct zero_swap swap)
{
    world_make(memory, *s);
    s->swap = swap;
    bool is_fast = s->stage != 2; /* in memory, or on a disk past the page cache */
    s->swap_dir = is_fast ? test_tmp_make_fast() : test_tmp_make();
    s->tile = 4096;
    world_make(swapped, *s);
}

/* Nothing stays behind. */
static inline void free_both(struct world *memory, struct world *swapped,
                             const struct world_setting *s)
{
    world_free(swapped);
    world_free(memory);
    ck_assert_int_eq(rmdir(s->swap_dir), 0);
}

static inline void compare(struct world_setting s, struct zero_swap swap)
{
    struct world memory, swapped;
    make_both(&memory, &swapped, &s, swap);
    same_state(&memory, &swapped, &s); /* as loaded */
    train_both(&memory, &swapped, &s);
    same_state(&memory, &swapped, &s);
    free_both(&memory, &swapped, &s);
}

#endif
