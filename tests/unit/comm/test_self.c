/* Claims: the one-rank communicator gives the canonical reduction (cast, sum in rank order, one
 * multiply, one rounding), moves bytes as the real collectives would, and agrees with itself. */
#include "comm/comm.h"
#include "tests/support/check_main.h"

#include <string.h>

START_TEST(one_rank_copies)
{
    struct comm *comm;
    ck_ok(comm_self_create(0, 1, &comm));
    float x[4] = {1, -2.5f, 1e-40f, -0.0f}, y[4] = {0}; /* a sum that begins with 0 is never -0 */
    ck_ok(comm_all_reduce(comm, x, y, 4, DTYPE_F32, DTYPE_F32, 1));
    ck_assert_mem_eq(x, y, sizeof x);
    const uint16_t halves[2] = {f32_to_bf16(-0.0f), f32_to_bf16(3)};
    uint16_t z[2] = {0};
    for (int wire = 0; wire < 2; wire++) {
        memset(z, 0, sizeof z);
        ck_ok(comm_all_reduce(comm, halves, z, 2, DTYPE_BF16, wire ? DTYPE_BF16 : DTYPE_F32, 1));
        ck_assert_mem_eq(halves, z, sizeof z);
    }
    ck_ok(comm_all_reduce(comm, x, y, 4, DTYPE_F32, DTYPE_F32, 2));
    ck_assert_float_eq(y[1], -5);
    ck_ok(comm_agree(comm, CZ_OK));
    ck_fails(comm_agree(comm, err_set(CZ_IO, 0, "disk")), CZ_IO);
    comm_destroy(comm);
    comm_destroy(NULL);
}
END_TEST

START_TEST(the_wire_dtype_rounds_before_and_after)
{
    struct comm *comm;
    ck_ok(comm_self_create(0, 3, &comm));
    float x = 1.0f + 0x1p-8f + 0x1p-12f; /* bf16: 1 + 2^-7 (rounded up) */
    const float third = 1.0f / 3.0f;
    ck_ok(comm_all_reduce(comm, &x, &x, 1, DTYPE_F32, DTYPE_BF16, third));
    float sent = 1.0f + 0x1p-7f;
    float want = (sent + sent + sent) * third;
    ck_assert_float_eq(x, bf16_to_f32(f32_to_bf16(want)));
    ck_fails(comm_all_reduce(comm, &x, &x, 1, DTYPE_I32, DTYPE_F32, 1), CZ_INVALID);
    comm_destroy(comm);
}
END_TEST

START_TEST(a_pretended_rank_gets_its_pieces)
{
    struct comm *comm;
    ck_ok(comm_self_create(1, 2, &comm));
    float x[4] = {1, 2, 3, 4}, y[2] = {10, 10};
    const struct comm_span halves[] = {{.numel = 2, .owner = 0},
                                       {.src_off = 2, .numel = 2, .owner = 1}};
    struct comm_reduce mean = {.src = x,
                               .dst = y,
                               .src_dtype = DTYPE_F32,
                               .dst_dtype = DTYPE_F32,
                               .wire = DTYPE_F32,
                               .scale = 0.5f,
                               .spans = halves,
                               .n_spans = 2};
    ck_ok(comm_reduce(comm, &mean));
    ck_assert_float_eq(y[0], 3);
    ck_assert_float_eq(y[1], 4);
    mean.accumulate = true;
    ck_ok(comm_reduce(comm, &mean));
    ck_assert_float_eq(y[0], 6);
    ck_assert_uint_eq(comm->traffic.n_reduce, 2);
    ck_assert_uint_eq(comm->traffic.reduce_sent_nbytes, 2 * 2 * sizeof *x);
    char all[4] = "abcd";
    ck_ok(comm_all_gather(comm, "XY", all, 2));
    ck_assert_mem_eq(all, "abXY", 4);
    char turned[5] = "....";
    ck_ok(comm_all_to_all(comm, "12AB", turned, 2));
    ck_assert_mem_eq(turned, "..AB", 4);
    ck_ok(comm_same(comm, "the config", "stage: 1\n"));
    const struct comm_span nowhere = {.numel = 1, .owner = 2};
    mean.spans = &nowhere;
    mean.n_spans = 1;
    ck_fails(comm_reduce(comm, &mean), CZ_INVALID);
    mean.spans = &(struct comm_span){.numel = 1};
    mean.src = mean.dst;
    mean.dst_dtype = DTYPE_BF16; /* over what has not been read yet */
    ck_fails(comm_reduce(comm, &mean), CZ_INVALID);
    comm_destroy(comm);
    ck_fails(comm_self_create(2, 2, &comm), CZ_INVALID);
    ck_fails(comm_self_create(0, 0, &comm), CZ_INVALID);
}
END_TEST

TEST_MAIN("comm/self", one_rank_copies, the_wire_dtype_rounds_before_and_after,
          a_pretended_rank_gets_its_pieces)
