/* Claims: the one-rank communicator gives the canonical reduction (cast, sum in rank order, one
 * multiply, one rounding), moves bytes as the real collectives would, and agrees with itself. */
#include "comm/comm.h"
#include "tests/support/check_main.h"

#include <string.h>

START_TEST(one_rank_copies)
{
    struct comm *comm;
    ck_ok(comm_self_create(0, 1, &comm));
    float x[3] = {1, -2.5f, 1e-40f}, y[3] = {0};
    const struct comm_reduce sum = {
        .src = x, .dst = y, .numel = 3, .dtype = DTYPE_F32, .wire = DTYPE_F32, .scale = 1};
    ck_ok(comm_all_reduce(comm, &sum));
    ck_assert_mem_eq(x, y, sizeof x);
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
    const struct comm_reduce mean = {.src = &x,
                                     .dst = &x,
                                     .numel = 1,
                                     .dtype = DTYPE_F32,
                                     .wire = DTYPE_BF16,
                                     .scale = 1.0f / 3.0f};
    ck_ok(comm_all_reduce(comm, &mean));
    float sent = 1.0f + 0x1p-7f;
    float want = (sent + sent + sent) * (1.0f / 3.0f);
    ck_assert_float_eq(x, bf16_to_f32(f32_to_bf16(want)));
    const struct comm_reduce ints = {
        .src = &x, .dst = &x, .numel = 1, .dtype = DTYPE_I32, .wire = DTYPE_F32, .scale = 1};
    ck_fails(comm_all_reduce(comm, &ints), CZ_INVALID);
    comm_destroy(comm);
}
END_TEST

START_TEST(a_pretended_rank_gets_its_pieces)
{
    struct comm *comm;
    ck_ok(comm_self_create(1, 2, &comm));
    float x[4] = {1, 2, 3, 4}, y[2];
    const struct comm_reduce scatter = {
        .src = x, .dst = y, .numel = 2, .dtype = DTYPE_F32, .wire = DTYPE_F32, .scale = 0.5f};
    ck_ok(comm_reduce_scatter(comm, &scatter));
    ck_assert_float_eq(y[0], 3);
    ck_assert_float_eq(y[1], 4);
    char all[4] = "abcd";
    const struct comm_move gather = {.src = "XY", .dst = all, .nbytes = 2};
    ck_ok(comm_all_gather(comm, &gather));
    ck_assert_mem_eq(all, "abXY", 4);
    char turned[4];
    const struct comm_move exchange = {.src = "12AB", .dst = turned, .nbytes = 2};
    struct comm_ticket t;
    ck_ok(comm->ops->all_to_all(comm, &exchange, &t));
    ck_ok(comm->ops->wait(comm, t));
    ck_assert_mem_eq(turned, "ABAB", 4);
    comm_destroy(comm);
    ck_fails(comm_self_create(2, 2, &comm), CZ_INVALID);
    ck_fails(comm_self_create(0, 0, &comm), CZ_INVALID);
}
END_TEST

TEST_MAIN("comm/self", one_rank_copies, the_wire_dtype_rounds_before_and_after,
          a_pretended_rank_gets_its_pieces)
