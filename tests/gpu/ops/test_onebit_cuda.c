/* Claims: the 1-bit family's CUDA kernels give the bits of the definition for any size, alignment,
 * dtype, mask and value (zeros of either sign, denormals, infinities, NaN), whichever order threads
 * run in; nothing outside the given elements is written; bad arguments are refused. */
#include "tests/support/gpu/cuda_orders.h"
#include "tests/support/zero/onebit_agree.h"

static void check_op(const struct cuda_rig *rig, const struct op *op)
{
    static const size_t numels[] = {0, 1, 7, 8, 9, 31, 33, 255, 1025, 4096, 4099};
    for (int d = 0; d < op->n_dtypes; d++)
        for (int v = 0; v < op->n_variants; v++)
            for (size_t i = 0; i < CZ_ARRAY_LEN(numels); i++) {
                const struct setting s = {.ops = rig->ops,
                                          .rig = rig,
                                          .n_threads = 1,
                                          .numel = numels[i],
                                          .offset = (i * 3 + (size_t)v) % AGREE_WIDTH,
                                          .special = i & 1,
                                          .dtype = (enum cz_dtype)d,
                                          .variant = v};
                if (numels[i] > 2000 && d > 0) continue;
                op->run(&s);
            }
}

/* Aligned arrays, more than one block of partial sums, more than one turn of a tensor's blocks. */
static void check_large(const struct cuda_rig *rig, const struct op *op)
{
    for (int v = 0; v < op->n_variants; v += 2) {
        const struct setting s = {.ops = rig->ops,
                                  .rig = rig,
                                  .n_threads = 1,
                                  .numel = 3 * ONEBIT_BLOCK + 730,
                                  .variant = v};
        op->run(&s);
    }
}

static void check_all_of(const struct cuda_rig *rig, const struct op *op)
{
    check_op(rig, op);
    if (op != &op_unpack) check_large(rig, op);
}

CUDA_ORDERS(feed_agrees, check_all_of(&rig, &op_feed))
CUDA_ORDERS(scale_agrees, check_all_of(&rig, &op_scale))
CUDA_ORDERS(pack_agrees, check_all_of(&rig, &op_pack))
CUDA_ORDERS(serve_agrees, check_all_of(&rig, &op_serve))
CUDA_ORDERS(momentum_agrees, check_all_of(&rig, &op_momentum))
CUDA_ORDERS(masks_agree, check_all_of(&rig, &op_mask_make))
CUDA_ORDERS(joined_masks_agree, check_all_of(&rig, &op_mask_join))
CUDA_ORDERS(norms_agree, check_all_of(&rig, &op_norms))
CUDA_ORDERS(local_steps_agree, check_all_of(&rig, &op_local))
CUDA_ORDERS(gathering_agrees, check_all_of(&rig, &op_gather))
CUDA_ORDERS(settling_agrees, check_all_of(&rig, &op_settle))

/* As many chunks and beginnings as the host's test, which is what takes its time. */
CUDA_ORDER(unpack_agrees, random, "random:1", check_all_of(&rig, &op_unpack))

static void refuse_bad(const struct cuda_rig *rig)
{
    struct ops *ops = rig->ops;
    float x[16] = {0};
    uint8_t bits[8] = {0};
    double sums[1];
    struct onebit_feed_args feed = {.numel = 16, .e = x, .m = x, .partials = sums};
    ck_fails(ops_onebit_feed(ops, NULL, &feed), CZ_INVALID); /* m without g */
    struct onebit_scale_args scale = {.numel = 16, .n_partials = 1, .scale = x};
    ck_fails(ops_onebit_scale(ops, NULL, &scale), CZ_INVALID);
    struct onebit_pack_args pack = {
        .numel = 16, .chunk_numel = 12, .chunk_stride = 2, .scale = x, .e = x, .bits = bits};
    ck_fails(ops_onebit_pack(ops, NULL, &pack), CZ_INVALID);
    pack.chunk_numel = 16, pack.scale = NULL;
    ck_fails(ops_onebit_pack(ops, NULL, &pack), CZ_INVALID);
    struct onebit_serve_args serve = {
        .numel = 12, .n_ranks = 1, .bits = bits, .scales = x, .e = x, .partials = sums};
    ck_fails(ops_onebit_serve(ops, NULL, &serve), CZ_INVALID);
    struct onebit_unpack_args unpack = {
        .begin = 3, .end = 2, .chunk_numel = 8, .bits = bits, .scales = x, .x = x};
    ck_fails(ops_onebit_unpack(ops, NULL, &unpack), CZ_INVALID);
    unpack.end = 16, unpack.chunk_stride = 0;
    ck_fails(ops_onebit_unpack(ops, NULL, &unpack), CZ_INVALID);
    struct onebit_momentum_args momentum = {.numel = 4, .g = x, .m = x};
    ck_fails(ops_onebit_momentum(ops, NULL, &momentum), CZ_INVALID);
    struct onebit_mask_make_args mask = {.numel = 4, .v = x};
    ck_fails(ops_onebit_mask_make(ops, NULL, &mask), CZ_INVALID);
    struct onebit_mask_join_args join = {
        .nbytes = 4, .n_ranks = 2, .bits = bits, .rank_stride = 3, .out = bits + 4};
    ck_fails(ops_onebit_mask_join(ops, NULL, &join), CZ_INVALID);
    struct lamb_segment outside = {0, 17, 0};
    struct lamb_sums lamb;
    struct onebit_lamb_norms_args norms = {.numel = 16,
                                           .m = x,
                                           .v = x,
                                           .fresh = x,
                                           .p = x,
                                           .segments = &outside,
                                           .n_segments = 1,
                                           .sums = &lamb,
                                           .factors = x};
    ck_fails(ops_onebit_lamb_norms(ops, NULL, &norms), CZ_INVALID);
    struct zero_one_args local = {.numel = 4, .g = x, .m = x, .moved = x, .v = x, .p = x};
    ck_fails(ops_zero_one_local(ops, NULL, &local), CZ_INVALID);
    ck_fails(ops_zero_one_settle(ops, NULL, &local), CZ_INVALID);
    local.v = NULL;
    ck_fails(ops_zero_one_gather(ops, NULL, &local), CZ_INVALID);
}

CUDA_ORDER(bad_arguments_are_refused, forward, "forward", refuse_bad(&rig))

TEST_MAIN("cuda 1-bit", CUDA_ORDERED(feed_agrees), CUDA_ORDERED(scale_agrees),
          CUDA_ORDERED(pack_agrees), CUDA_ORDERED(serve_agrees), CUDA_ORDERED(momentum_agrees),
          CUDA_ORDERED(masks_agree), CUDA_ORDERED(joined_masks_agree), CUDA_ORDERED(norms_agree),
          CUDA_ORDERED(local_steps_agree), CUDA_ORDERED(gathering_agrees),
          CUDA_ORDERED(settling_agrees), unpack_agrees_random, bad_arguments_are_refused_forward)
