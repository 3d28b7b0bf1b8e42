/* Claims: the 1-bit family's rows give the bits of the definition for any size, alignment, dtype,
 * mask and value (zeros of either sign, denormals, infinities, NaN) and for any number of threads;
 * nothing outside the given elements is written. */
#include "tests/support/zero/onebit_agree.h"

static const struct ops_row *row(size_t idx)
{
    size_t n;
    const struct onebit_row *const *rows = onebit_rows(&n);
    return idx < n ? &rows[idx]->row : NULL;
}

/* ---- all cases --------------------------------------------------------------------------------
 */

/* Sizes around vectors, groups of vectors and blocks, at each offset, in one thread. */
static void all_sizes(const struct op *op, struct setting s)
{
    static const size_t numels[] = {0,  1,  7,  8,   9,    15,   16,   17,  23,
                                    31, 32, 33, 100, 4095, 4096, 4097, 4121};
    s.n_threads = 1;
    for (size_t i = 0; i < CZ_ARRAY_LEN(numels); i++)
        for (s.offset = 0; s.offset<AGREE_WIDTH; s.offset += numels[i]> 200 ? 7 : 1) {
            s.numel = numels[i];
            s.special = s.offset & 1;
            op->run(&s);
        }
}

/* Enough for five threads, cut where they fall. */
static void all_threads(const struct op *op, struct setting s)
{
    s.numel = 5 * ONEBIT_BLOCK + 731;
    s.offset = 3;
    for (s.n_threads = 1; s.n_threads <= 5; s.n_threads++) op->run(&s);
    s.special = true;
    s.n_threads = 3;
    op->run(&s);
}

static void check_op(const struct op *op)
{
    const int n_before = omp_get_max_threads();
    for (size_t r = 0; row(r) && agree_row_runs(row(r)); r++) {
        struct ops ops = agree_wire(onebit_wire, row(r));
        for (int d = 0; d < op->n_dtypes; d++)
            for (int v = 0; v < op->n_variants; v++) {
                struct setting s = {.ops = &ops, .dtype = (enum cz_dtype)d, .variant = v};
                if (r > 0) all_sizes(op, s); /* row 0 is the definition */
                all_threads(op, s);
            }
    }
    omp_set_num_threads(n_before);
}

START_TEST(feed_agrees)
{
    check_op(&op_feed);
}
END_TEST

START_TEST(scale_agrees)
{
    check_op(&op_scale);
}
END_TEST

START_TEST(pack_agrees)
{
    check_op(&op_pack);
}
END_TEST

START_TEST(serve_agrees)
{
    check_op(&op_serve);
}
END_TEST

START_TEST(unpack_agrees)
{
    check_op(&op_unpack);
}
END_TEST

START_TEST(momentum_agrees)
{
    check_op(&op_momentum);
}
END_TEST

START_TEST(masks_agree)
{
    check_op(&op_mask_make);
    check_op(&op_mask_join);
}
END_TEST

START_TEST(norms_agree)
{
    check_op(&op_norms);
}
END_TEST

START_TEST(local_steps_agree)
{
    check_op(&op_local);
}
END_TEST

START_TEST(gathering_agrees)
{
    check_op(&op_gather);
}
END_TEST

START_TEST(settling_agrees)
{
    check_op(&op_settle);
}
END_TEST

TEST_MAIN("ops/onebit rows", feed_agrees, scale_agrees, pack_agrees, serve_agrees, unpack_agrees,
          momentum_agrees, masks_agree, norms_agree, local_steps_agree, gathering_agrees,
          settling_agrees)
