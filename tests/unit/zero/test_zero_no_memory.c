/* Claim: a model state that gets no memory for one of its tables says so, and whatever becomes of
 * it leaves no memory behind: laid out, bound, or with work under way. */
#define ZERO_WORLD_SCALE 31
#include "tests/support/no_memory.h"
#include "tests/support/zero/zero_world.h"
#include "zero/zero_impl.h"

#ifndef NO_MEMORY_WORKS

int main(void)
{
    printf("skipped: the sanitizer has an allocator of its own\n");
    return TEST_SKIPPED;
}

#else

static struct world world;

/* A step that is given up: what it began ends with the state. */
static cz_status some_work(struct zero *z)
{
    struct zero_scan scan;
    double norm;
    TRY(zero_pass_begin(z, ZERO_PASS_LAST));
    for (size_t v = 0; v < CZ_ARRAY_LEN(visits); v++) {
        TRY(zero_unit_acquire(z, visits[v].unit_idx));
        if (visits[v].is_backward) TRY(zero_grads_ready(z, visits[v].unit_idx));
        TRY(zero_unit_release(z, visits[v].unit_idx));
    }
    TRY(zero_pass_end(z));
    TRY(zero_reduce(z));
    TRY(zero_scan(z, &scan));
    TRY(zero_norm(z, &norm));
    TRY(zero_step(z, 1, 1, 1));
    TRY(zero_gather(z));
    TRY(zero_pass_begin(z, ZERO_PASS_LAST));
    return zero_unit_acquire(z, 0);
}

/* The same blocks and communicator each time. */
static cz_status whole_life(const char *dir)
{
    struct world *w = &world;
    struct zero *z;
    TRY(zero_create(&w->z->options, &z));
    const struct swap_options options = {.dir = dir, .nbytes = zero_swap_nbytes(z)};
    struct swap *swap = NULL;
    cz_status st = options.nbytes > 0 ? swap_open(&options, &swap) : CZ_OK;
    if (st == CZ_OK) st = zero_bind(z, w->blocks, swap);
    if (st == CZ_OK) st = some_work(z);
    zero_destroy(z);
    swap_close(swap);
    return st;
}

static void check(struct world_setting s, const char *name)
{
    no_memory_begin();
    setenv("OMP_NUM_THREADS", "1", 1);
    s.swap_dir = test_tmp_make_fast();
    s.bucket = 3000;
    world_lay_out(&world, s);
    no_memory_each(name, whole_life, s.swap_dir, 100);
    world_free(&world);
    ck_assert_int_eq(rmdir(s.swap_dir), 0);
}

START_TEST(of_ranks)
{
    for (int stage = 0; stage <= 3; stage++) {
        struct world_setting s = plain;
        s.stage = stage;
        s.world_size = 2;
        s.optimizer = stage == 3 ? "AdamW" : stage == 2 ? "Lamb" : "OneBitAdam";
        check(s, s.optimizer);
    }
}
END_TEST

START_TEST(on_a_gpu)
{
    struct world_setting s = plain;
    s.stage = 3;
    s.on_gpu = true;
    s.device = "cpu"; /* stands in for one */
    s.offload.optimizer = s.offload.params = true;
    check(s, "offloaded");
}
END_TEST

START_TEST(in_a_swap_file)
{
    struct world_setting s = plain;
    s.swap = (struct zero_swap){.optimizer = true, .params = true, .grads = true};
    check(s, "swapped");
}
END_TEST

TEST_MAIN("zero/no_memory", of_ranks, on_a_gpu, in_a_swap_file)

#endif
