/* Claims: flat order, padding, partitions, pieces, chunks and sub-groups are DeepSpeed's, against
 * the examples of docs/deepspeed-behaviour.md, "ZeRO"; pieces of all ranks cover every
 * parameter once. */
#include "base/rng.h"
#include "layout/flat.h"
#include "layout/shard.h"
#include "tests/support/check_main.h"

#include <string.h>

/* A table that only knows sizes: all that layouts look at. */
struct sizes {
    struct param_info params[64];
    struct param_table table;
    size_t idx[64];
};

static void sizes_make(struct sizes *s, const size_t *numel, size_t n)
{
    memset(s, 0, sizeof *s);
    for (size_t i = 0; i < n; i++) {
        s->params[i].numel = numel[i];
        s->idx[i] = i;
    }
    s->table = (struct param_table){.params = s->params, .n_params = n};
}

static void flat_make(struct flat_group *g, const size_t *numel, size_t n,
                      struct flat_options options)
{
    struct sizes s;
    sizes_make(&s, numel, n);
    ck_ok(flat_group_init(g, &s.table, s.idx, n, &options));
}

START_TEST(ten_elements_over_four_ranks)
{
    struct flat_group g;
    flat_make(&g, (size_t[]){10}, 1, (struct flat_options){.world_size = 4});
    ck_assert_uint_eq(g.numel_padded, 16);
    ck_assert_uint_eq(g.partition, 4);
    const size_t want[4] = {0, 0, 2, 4};
    for (int r = 0; r < 4; r++) ck_assert_uint_eq(flat_group_padding(&g, r), want[r]);
    flat_group_free(&g);
    flat_group_free(&g);
}
END_TEST

START_TEST(parameters_cross_partitions)
{
    struct flat_group g;
    flat_make(&g, (size_t[]){35, 45, 45}, 3, (struct flat_options){.world_size = 3});
    ck_assert_uint_eq(g.numel, 125);
    ck_assert_uint_eq(g.numel_padded, 126);
    ck_assert_uint_eq(g.partition, 42);
    /* rank, position, offset in parameter, offset in partition, elements */
    const size_t want[][5] = {
        {0, 0, 0, 0, 35}, {0, 1, 0, 35, 7}, {1, 1, 7, 0, 38}, {1, 2, 0, 38, 4}, {2, 2, 4, 0, 41}};
    size_t at = 0;
    for (size_t r = 0; r < 3; r++) {
        struct flat_piece p;
        for (size_t pos = 0; flat_group_next(&g, r * 42, (r + 1) * 42, &pos, &p); at++) {
            ck_assert_uint_lt(at, 5);
            ck_assert_uint_eq(r, want[at][0]);
            ck_assert_uint_eq(p.pos, want[at][1]);
            ck_assert_uint_eq(p.param_off, want[at][2]);
            ck_assert_uint_eq(p.range_off, want[at][3]);
            ck_assert_uint_eq(p.numel, want[at][4]);
        }
    }
    ck_assert_uint_eq(at, 5);
    ck_assert_uint_eq(flat_group_padding(&g, 2), 1);
    ck_assert_uint_eq(flat_group_find(&g, 34), 0);
    ck_assert_uint_eq(flat_group_find(&g, 35), 1);
    ck_assert_uint_eq(flat_group_find(&g, 124), 2);
    ck_assert_uint_eq(flat_group_find(&g, 125), 3);
    flat_group_free(&g);
    flat_make(&g, (size_t[]){9, 9, 9}, 3, (struct flat_options){.world_size = 3});
    ck_assert_uint_eq(g.partition, 10);
    ck_assert_uint_eq(flat_group_padding(&g, 1), 0);
    ck_assert_uint_eq(flat_group_padding(&g, 2), 3);
    flat_group_free(&g);
}
END_TEST

START_TEST(round_robin_deals_parameters_to_bins)
{
    struct flat_group g;
    flat_make(&g, (size_t[]){1, 1, 1, 1, 1}, 5,
              (struct flat_options){.world_size = 2, .round_robin = true});
    const size_t want[5] = {0, 2, 4, 1, 3}; /* A C E B D */
    for (size_t i = 0; i < 5; i++) {
        ck_assert_uint_eq(g.order[i], want[i]);
        ck_assert_uint_eq(g.params[i].param_idx, want[i]);
    }
    flat_group_free(&g);
    /* emb, l1.w, l1.b, bn.w, bn.b, l2.w on three ranks */
    flat_make(&g, (size_t[]){35, 45, 9, 9, 9, 45}, 6,
              (struct flat_options){.world_size = 3, .round_robin = true});
    const size_t off[6] = {0, 35, 44, 89, 98, 107};
    const size_t idx[6] = {0, 3, 1, 4, 2, 5};
    for (size_t i = 0; i < 6; i++) {
        ck_assert_uint_eq(g.params[i].off, off[i]);
        ck_assert_uint_eq(g.params[i].param_idx, idx[i]);
    }
    ck_assert_uint_eq(g.numel_padded, 156);
    flat_group_free(&g);
}
END_TEST

START_TEST(aligned_parameters_start_on_sixteen_bytes)
{
    struct flat_group g;
    flat_make(&g, (size_t[]){5, 8, 3}, 3, (struct flat_options){.world_size = 2, .param_align = 8});
    ck_assert_uint_eq(g.params[1].off, 8);
    ck_assert_uint_eq(g.params[2].off, 16);
    ck_assert_uint_eq(g.numel, 19); /* nothing after the last one */
    ck_assert_uint_eq(g.numel_padded, 20);
    ck_assert_uint_eq(flat_group_find(&g, 6), 3); /* a gap belongs to no parameter */
    struct flat_piece p;
    size_t pos = 0;
    ck_assert(flat_group_next(&g, 6, 18, &pos, &p));
    ck_assert_uint_eq(p.pos, 1);
    ck_assert_uint_eq(p.range_off, 2);
    flat_group_free(&g);
}
END_TEST

START_TEST(pieces_cover_every_parameter_once)
{
    size_t numel[40];
    uint64_t x = 1;
    for (int round = 0; round < 50; round++) {
        size_t n = 1 + (size_t)round % 40, total = 0, covered = 0;
        for (size_t i = 0; i < n; i++) total += numel[i] = 1 + (x = rng_mix64(x + 1)) % 97;
        int world_size = 1 + round % 7;
        struct flat_group g;
        flat_make(&g, numel, n,
                  (struct flat_options){.world_size = world_size,
                                        .round_robin = round % 2,
                                        .param_align = (size_t)(round % 5)});
        ck_assert_uint_eq(g.numel_padded % (2 * (size_t)world_size), 0);
        for (int r = 0; r < world_size; r++) {
            struct flat_piece p;
            size_t begin = (size_t)r * g.partition;
            for (size_t pos = 0; flat_group_next(&g, begin, begin + g.partition, &pos, &p);) {
                ck_assert_uint_eq(begin + p.range_off, g.params[p.pos].off + p.param_off);
                covered += p.numel;
            }
        }
        ck_assert_uint_eq(covered, total);
        flat_group_free(&g);
    }
}
END_TEST

START_TEST(an_empty_group_has_no_elements)
{
    struct flat_group g;
    flat_make(&g, NULL, 0, (struct flat_options){.world_size = 3});
    ck_assert_uint_eq(g.partition, 0);
    struct flat_piece p;
    size_t pos = 0;
    ck_assert(!flat_group_next(&g, 0, 0, &pos, &p));
    flat_group_free(&g);
    struct sizes s;
    sizes_make(&s, NULL, 0);
    ck_fails(flat_group_init(&g, &s.table, s.idx, 0, &(struct flat_options){.world_size = 0}),
             CZ_INVALID);
}
END_TEST

START_TEST(stage_3_chunks)
{
    const size_t ten[4] = {3, 3, 3, 1}, two[4] = {1, 1, 0, 0};
    ck_assert_uint_eq(shard_chunk(10, 4), 3);
    ck_assert_uint_eq(shard_chunk(2, 4), 1);
    for (int r = 0; r < 4; r++) {
        ck_assert_uint_eq(shard_real(10, 4, r), ten[r]);
        ck_assert_uint_eq(shard_real(2, 4, r), two[r]);
    }
}
END_TEST

START_TEST(stage_3_sub_groups_close_when_full)
{
    struct sizes s;
    struct shard_group g;
    sizes_make(&s, (size_t[]){4, 4, 4}, 3);
    ck_ok(shard_group_init(&g, &s.table, s.idx, 3, 1, 6));
    ck_assert_uint_eq(g.n_sub_groups, 2);
    ck_assert_uint_eq(g.sub_groups[0].n_params, 2);
    ck_assert_uint_eq(g.sub_groups[1].first, 2);
    ck_assert_uint_eq(g.params[1].off, 4);
    ck_assert_uint_eq(g.params[2].off, 0);
    shard_group_free(&g);
    sizes_make(&s, (size_t[]){35, 45}, 2);
    ck_ok(shard_group_init(&g, &s.table, s.idx, 2, 3, 20));
    ck_assert_uint_eq(g.n_sub_groups, 1);
    ck_assert_uint_eq(g.sub_groups[0].numel, 27);
    ck_assert_uint_eq(g.params[1].off, 12);
    shard_group_free(&g);
    ck_ok(shard_group_init(&g, &s.table, s.idx, 2, 3, 1000000000));
    ck_assert_uint_eq(g.n_sub_groups, 1);
    shard_group_free(&g);
    shard_group_free(&g);
}
END_TEST

START_TEST(stage_3_small_parameters_persist_within_a_budget)
{
    struct sizes s;
    bool keep[4];
    sizes_make(&s, (size_t[]){10, 200, 15, 8}, 4);
    ck_assert_uint_eq(shard_persistent(&s.table, 100, 20, keep), 18);
    ck_assert(keep[0] && !keep[1] && !keep[2] && keep[3]);
}
END_TEST

static void expect_sub_groups(const size_t *numel, size_t n, int world_size, size_t sub_group_size,
                              const size_t *want, size_t n_want)
{
    struct sizes s;
    struct shard_group g;
    sizes_make(&s, numel, n);
    ck_ok(shard_group_init(&g, &s.table, s.idx, n, world_size, sub_group_size));
    ck_assert_uint_eq(g.n_sub_groups, n_want);
    for (size_t i = 0; i < n_want; i++) ck_assert_uint_eq(g.sub_groups[i].n_params, want[i]);
    shard_group_free(&g);
}

/* One element below, at and above sub_group_size: full means "reaches it", counted in chunks. */
START_TEST(stage_3_sub_groups_close_at_their_size_exactly)
{
    const size_t pairs[] = {4, 4, 4, 4}, odd[] = {7, 5, 4, 8};
    expect_sub_groups(pairs, 4, 1, 7, (const size_t[]){2, 2}, 2);
    expect_sub_groups(pairs, 4, 1, 8, (const size_t[]){2, 2}, 2);
    expect_sub_groups(pairs, 4, 1, 9, (const size_t[]){3, 1}, 2);
    expect_sub_groups(pairs, 4, 1, 4, (const size_t[]){1, 1, 1, 1}, 4);
    expect_sub_groups(pairs, 4, 1, 16, (const size_t[]){4}, 1);
    expect_sub_groups(pairs, 4, 1, 0, (const size_t[]){1, 1, 1, 1}, 4);
    /* chunks of 4, 3, 2, 4 on two ranks */
    expect_sub_groups(odd, 4, 2, 6, (const size_t[]){2, 2}, 2);
    expect_sub_groups(odd, 4, 2, 7, (const size_t[]){2, 2}, 2);
    expect_sub_groups(odd, 4, 2, 8, (const size_t[]){3, 1}, 2);
    expect_sub_groups(odd, 4, 2, 9, (const size_t[]){3, 1}, 2);
    expect_sub_groups(odd, 4, 2, 13, (const size_t[]){4}, 1);
}
END_TEST

START_TEST(stage_3_thresholds_of_persistence_are_inclusive)
{
    struct sizes s;
    bool keep[3];
    sizes_make(&s, (size_t[]){100, 101, 20}, 3);
    ck_assert_uint_eq(shard_persistent(&s.table, 100, SIZE_MAX, keep), 120);
    ck_assert(keep[0] && !keep[1] && keep[2]);
    ck_assert_uint_eq(shard_persistent(&s.table, 99, SIZE_MAX, keep), 20);
    ck_assert(!keep[0] && !keep[1] && keep[2]);
    /* the budget: 120 are exactly what 100 and 20 need */
    ck_assert_uint_eq(shard_persistent(&s.table, 100, 120, keep), 120);
    ck_assert(keep[0] && keep[2]);
    ck_assert_uint_eq(shard_persistent(&s.table, 100, 119, keep), 100);
    ck_assert(keep[0] && !keep[2]);
    ck_assert_uint_eq(shard_persistent(&s.table, 100, 100, keep), 100);
    ck_assert_uint_eq(shard_persistent(&s.table, 100, 99, keep), 20);
    ck_assert_uint_eq(shard_persistent(&s.table, 0, SIZE_MAX, keep), 0);
    ck_assert_uint_eq(shard_persistent(&s.table, SIZE_MAX, 0, keep), 0);
}
END_TEST

START_TEST(flat_groups_pad_only_what_does_not_divide)
{
    struct flat_group g;
    const size_t want[][3] = {{12, 12, 6}, {13, 16, 8}, {15, 16, 8}, {16, 16, 8}, {17, 20, 10}};
    for (size_t i = 0; i < CZ_ARRAY_LEN(want); i++) { /* a multiple of 2 W */
        flat_make(&g, &want[i][0], 1, (struct flat_options){.world_size = 2});
        ck_assert_uint_eq(g.numel_padded, want[i][1]);
        ck_assert_uint_eq(g.partition, want[i][2]);
        ck_assert_uint_eq(flat_group_padding(&g, 0) + flat_group_padding(&g, 1),
                          want[i][1] - want[i][0]);
        ck_assert_uint_eq(flat_group_find(&g, want[i][0] - 1), 0);
        ck_assert_uint_eq(flat_group_find(&g, want[i][0]), 1);
        flat_group_free(&g);
    }
}
END_TEST

/* A range that ends where a parameter begins has nothing of it, not a piece of no elements. */
START_TEST(a_range_has_what_begins_before_its_end)
{
    struct flat_group g;
    struct flat_piece p;
    flat_make(&g, (size_t[]){4, 4}, 2, (struct flat_options){.world_size = 2});
    for (size_t end = 1; end <= 8; end++) {
        size_t n = 0, numel = 0;
        for (size_t pos = 0; flat_group_next(&g, 0, end, &pos, &p); n++) {
            ck_assert_uint_gt(p.numel, 0);
            numel += p.numel;
        }
        ck_assert_uint_eq(n, end <= 4 ? 1 : 2);
        ck_assert_uint_eq(numel, end);
    }
    flat_group_free(&g);
}
END_TEST

START_TEST(sizes_that_overflow_are_refused)
{
    struct sizes s;
    struct shard_group g;
    struct flat_group f;
    sizes_make(&s, (size_t[]){SIZE_MAX - 3, 4}, 2);
    ck_fails(shard_group_init(&g, &s.table, s.idx, 2, 1, 1), CZ_INVALID);
    ck_fails(shard_group_init(&g, &s.table, s.idx, 2, 1, SIZE_MAX), CZ_INVALID);
    ck_fails(flat_group_init(&f, &s.table, s.idx, 2, &(struct flat_options){.world_size = 1}),
             CZ_INVALID);
    ck_fails(shard_group_init(&g, &s.table, s.idx, 2, 0, 1), CZ_INVALID);
    sizes_make(&s, (size_t[]){SIZE_MAX - 4, 4}, 2);
    ck_ok(shard_group_init(&g, &s.table, s.idx, 2, 1, 1));
    ck_assert_uint_eq(g.numel, SIZE_MAX);
    shard_group_free(&g);
}
END_TEST

START_TEST(tiles_cover_a_partition)
{
    ck_assert_uint_eq(tile_count(0, 8), 0);
    ck_assert_uint_eq(tile_count(16, 8), 2);
    ck_assert_uint_eq(tile_count(17, 8), 3);
    ck_assert_uint_eq(tile_numel(17, 8, 1), 8);
    ck_assert_uint_eq(tile_numel(17, 8, 2), 1);
}
END_TEST

TEST_MAIN("layout/flat", ten_elements_over_four_ranks, parameters_cross_partitions,
          round_robin_deals_parameters_to_bins, aligned_parameters_start_on_sixteen_bytes,
          pieces_cover_every_parameter_once, an_empty_group_has_no_elements, stage_3_chunks,
          stage_3_sub_groups_close_when_full, stage_3_small_parameters_persist_within_a_budget,
          stage_3_sub_groups_close_at_their_size_exactly,
          stage_3_thresholds_of_persistence_are_inclusive,
          flat_groups_pad_only_what_does_not_divide, a_range_has_what_begins_before_its_end,
          sizes_that_overflow_are_refused, tiles_cover_a_partition)
