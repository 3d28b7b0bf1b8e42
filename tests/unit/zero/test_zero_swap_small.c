/* Claim: where state rests does not matter to the smallest of worlds either: random settings, with
 * parameters smaller than a block of the file and more ranks than elements, so that some own
 * nothing. CZ_SEED=n starts elsewhere. */
#define ZERO_WORLD_SCALE 1
#include "tests/support/zero/zero_pair.h"

#include <stdlib.h>

static uint64_t state;

static uint64_t dice(uint64_t n)
{
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (state >> 20) % n;
}

static struct world_setting draw_setting(void)
{
    static const char *const optimizers[] = {"AdamW", "Lion", "Adagrad", "SGD"};
    struct world_setting s = {.stage = (int)dice(4),
                              .world_size = dice(2) ? 1 : 1 + (int)dice(70),
                              .optimizer = optimizers[dice(4)],
                              .bucket = dice(300),
                              .two_groups = dice(2),
                              .freeze = dice(2),
                              .round_robin = dice(2),
                              .overlap = dice(2),
                              .late = dice(2)};
    s.rank = (int)dice((uint64_t)s.world_size);
    s.dtype = s.grad_dtype = dice(2) ? DTYPE_BF16 : DTYPE_F32;
    s.master_dtype = dice(3) ? DTYPE_F32 : s.dtype;
    s.stage3 = (struct zero_stage3){.prefetch_numel = dice(300),
                                    .param_persistence_threshold = dice(30),
                                    .model_persistence_threshold = dice(2) ? SIZE_MAX : 0,
                                    .max_live = dice(300),
                                    .max_reuse = dice(300)};
    return s;
}

static struct zero_swap draw_swap(void)
{
    struct zero_swap swap = {.optimizer = dice(2),
                             .grads = dice(2),
                             .memory_share = (double)dice(11) / 10,
                             .params_in_memory = dice(100),
                             .read_ahead = dice(2),
                             .write_behind = dice(2)};
    swap.params = !swap.optimizer || dice(2);
    return swap;
}

START_TEST(the_smallest_worlds_compute_the_same)
{
    const char *seed = getenv("CZ_SEED");
    state = (seed ? strtoull(seed, NULL, 10) : 1) * 0x9e3779b97f4a7c15u + 1;
    for (int i = 0; i < 60; i++) {
        const struct world_setting s = draw_setting();
        const struct zero_swap swap = draw_swap();
        printf("%d: stage %d, rank %d of %d, %s\n", i, s.stage, s.rank, s.world_size, s.optimizer);
        fflush(stdout); /* for what fails */
        compare(s, swap);
    }
}
END_TEST

TEST_MAIN("zero swap small", the_smallest_worlds_compute_the_same)
