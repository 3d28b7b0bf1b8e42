/* Claims: zero names every array that the sweep goes over in memory, where it really is, with the
 * bytes of one tile of its own type; what rests in a swap file is not among them. */
#define ZERO_WORLD_SCALE 31
#include "tests/support/zero/zero_world.h"

struct seen {
    struct world *w;
    size_t nbytes[ZERO_N_BLOCKS];
    struct zero_array v[64];
    size_t n;
};

static void see(void *user, const struct zero_array *array)
{
    struct seen *s = user;
    ck_assert_uint_lt(s->n, CZ_ARRAY_LEN(s->v));
    ck_assert_uint_le(array->off + array->nbytes, zero_block_nbytes(s->w->z, array->block));
    for (size_t i = 0; i < s->n; i++)
        ck_assert(s->v[i].block != array->block || s->v[i].off + s->v[i].nbytes <= array->off ||
                  array->off + array->nbytes <= s->v[i].off);
    s->nbytes[array->block] += array->nbytes;
    s->v[s->n++] = *array;
}

/* The array of `block` that begins where element 0 of a source is. */
static void expect_array(const struct seen *s, enum zero_block block, const struct zero_range *at,
                         size_t nbytes, size_t tile_nbytes)
{
    for (size_t i = 0; i < s->n; i++) {
        const struct zero_array *a = &s->v[i];
        if (a->block != block || (unsigned char *)s->w->blocks[block] + a->off != at->memory)
            continue;
        ck_assert_uint_eq(a->nbytes, nbytes);
        ck_assert_uint_eq(a->tile_nbytes, tile_nbytes);
        return;
    }
    ck_abort_msg("no array of block %d begins there", block);
}

static void check(struct world_setting setting)
{
    struct world w;
    world_make(&w, setting);
    struct seen s = {.w = &w};
    zero_each_array(w.z, see, &s);
    const struct zero_figures f = zero_figures(w.z);
    for (size_t g = 0; g < (setting.two_groups ? 2 : 1); g++) {
        const struct zero_layout layout = zero_group_layout(w.z, g);
        struct zero_range r[2];
        ck_assert_uint_eq(
            zero_source_ranges(w.z, ZERO_FROM_MASTERS, g, 0, 0, 0, layout.own_numel, r), 1);
        expect_array(&s, setting.dtype == DTYPE_F32 ? ZERO_PARAMS : ZERO_MASTERS, r,
                     layout.own_numel * 4, f.tile_numel * 4);
        for (size_t k = 0; k < layout.n_states; k++) {
            zero_source_ranges(w.z, ZERO_FROM_STATES, g, k, 0, 0, layout.own_numel, r);
            expect_array(&s, (enum zero_block)(ZERO_STATE_0 + k), r,
                         layout.own_numel * dtype_size(DTYPE_F32), f.tile_numel * 4);
        }
    }
    ck_assert_uint_eq(s.nbytes[ZERO_MASTERS], setting.dtype == DTYPE_F32 ? 0 : f.numel_own * 4);
    ck_assert_uint_eq(s.nbytes[ZERO_PARAMS], f.numel_own * dtype_size(setting.dtype));
    ck_assert_uint_eq(s.nbytes[ZERO_GRADS], f.numel_own * dtype_size(setting.grad_dtype));
    world_free(&w);
}

START_TEST(arrays_are_where_they_are_said_to_be)
{
    for (int stage = 0; stage <= 3; stage++)
        for (int rank = 0; rank < 3; rank++) {
            struct world_setting s = {.stage = stage,
                                      .rank = rank,
                                      .world_size = 3,
                                      .dtype = DTYPE_BF16,
                                      .grad_dtype = DTYPE_BF16,
                                      .optimizer = "AdamW",
                                      .bucket = 10000,
                                      .tile = 512};
            check(s);
            s.two_groups = true;
            s.grad_dtype = DTYPE_F32;
            check(s);
            s.optimizer = "Lion";
            s.freeze = true;
            check(s);
            s.dtype = DTYPE_F32; /* parameters are their own masters */
            check(s);
        }
}
END_TEST

/* What the sweep writes is in them: a step changes nothing else of the masters' block. */
START_TEST(the_sweep_writes_nothing_else)
{
    struct world w;
    world_make(&w, (struct world_setting){.world_size = 1,
                                          .dtype = DTYPE_BF16,
                                          .grad_dtype = DTYPE_BF16,
                                          .optimizer = "AdamW",
                                          .two_groups = true});
    struct seen s = {.w = &w};
    zero_each_array(w.z, see, &s);
    size_t nbytes = zero_block_nbytes(w.z, ZERO_MASTERS), n_outside = 0;
    unsigned char *masters = w.blocks[ZERO_MASTERS], *inside = calloc(nbytes, 1);
    for (size_t i = 0; i < s.n; i++)
        if (s.v[i].block == ZERO_MASTERS) memset(inside + s.v[i].off, 1, s.v[i].nbytes);
    for (size_t i = 0; i < nbytes; i++)
        if (!inside[i]) masters[i] = 0xa5;
    fill_grads(&w, 1, DTYPE_BF16);
    ck_ok(zero_step(w.z, 1, 1, 1));
    for (size_t i = 0; i < nbytes; i++) n_outside += !inside[i] && masters[i] != 0xa5;
    ck_assert_uint_eq(n_outside, 0);
    free(inside);
    world_free(&w);
}
END_TEST

START_TEST(swapped_arrays_are_not_among_them)
{
    const char *dir = test_tmp_make();
    struct world w;
    world_make(&w, (struct world_setting){.world_size = 1,
                                          .dtype = DTYPE_BF16,
                                          .grad_dtype = DTYPE_BF16,
                                          .optimizer = "AdamW",
                                          .swap = {.optimizer = true, .params = true},
                                          .swap_dir = dir});
    struct seen s = {.w = &w};
    zero_each_array(w.z, see, &s);
    for (size_t i = 0; i < s.n; i++) ck_assert_int_eq(s.v[i].block, ZERO_GRADS);
    ck_assert_uint_eq(s.nbytes[ZERO_GRADS], zero_figures(w.z).numel_own * 2);
    world_free(&w);
    test_tmp_remove(dir);
}
END_TEST

TEST_MAIN("zero/arrays", arrays_are_where_they_are_said_to_be, the_sweep_writes_nothing_else,
          swapped_arrays_are_not_among_them)
