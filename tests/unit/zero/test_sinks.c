/* Claims: where gradients go is decided once, by the options: to the other ranks, to the swap file
 * or from a GPU to host memory; each sink has the calls that buckets.c and the boundary make
 * without asking; a sink that gives back what earlier micro-batches made is one to which layers
 * add. */
#include "tests/support/zero/zero_world.h"
#include "zero/zero_impl.h"

static void expect_sink(struct world_setting s, const struct zero_sink *sink, bool is_bucketed)
{
    struct world w;
    s.swap_dir = test_tmp_make();
    world_make(&w, s);
    ck_assert_str_eq(w.z->buckets.sink->name, sink->name);
    ck_assert_ptr_eq(w.z->buckets.sink, sink);
    ck_assert_int_eq(w.z->buckets.is_bucketed, is_bucketed);
    ck_assert_int_eq(zero_accumulates(w.z), !is_bucketed || sink->restore != NULL);
    ck_assert_int_eq(zero_block_nbytes(w.z, ZERO_BUCKETS) > 0, is_bucketed);
    world_free(&w);
    ck_assert_int_eq(rmdir(s.swap_dir), 0);
}

START_TEST(several_ranks_reduce)
{
    struct world_setting s = plain;
    for (s.stage = 0; s.stage <= 3; s.stage++) {
        s.world_size = 1;
        expect_sink(s, &zero_sink_ranks, false);
        s.world_size = 3;
        expect_sink(s, &zero_sink_ranks, s.stage >= 2);
    }
}
END_TEST

START_TEST(one_rank_with_a_swap_file_writes_them_there)
{
    struct world_setting s = plain;
    s.swap = (struct zero_swap){.optimizer = true, .grads = true};
    expect_sink(s, &zero_sink_swap, true);
    s.swap.optimizer = false; /* gradients follow the optimizer only */
    expect_sink(s, &zero_sink_ranks, false);
    s.swap.optimizer = true;
    s.grad_dtype = DTYPE_F32; /* rounded on a wire of bf16 */
    s.dtype = DTYPE_BF16;
    expect_sink(s, &zero_sink_ranks, false);
    s.dtype = DTYPE_F32;
    s.world_size = 2;
    s.stage = 2;
    expect_sink(s, &zero_sink_ranks, true);
}
END_TEST

START_TEST(one_gpu_with_its_optimizer_in_the_host_copies_them_there)
{
    struct world_setting s = plain;
    s.on_gpu = true;
    s.device = "cpu"; /* stands in for it */
    expect_sink(s, &zero_sink_ranks, false);
    s.offload.params = true; /* the optimizer stays */
    expect_sink(s, &zero_sink_ranks, false);
    s.offload.optimizer = true;
    expect_sink(s, &zero_sink_host, true);
    s.offload = (struct zero_offload){0};
    s.swap.optimizer = true;
    expect_sink(s, &zero_sink_host, true);
}
END_TEST

START_TEST(sinks_have_what_is_asked_of_all)
{
    static const struct zero_sink *const sinks[] = {&zero_sink_ranks, &zero_sink_swap,
                                                    &zero_sink_host};
    for (size_t i = 0; i < CZ_ARRAY_LEN(sinks); i++) {
        const struct zero_sink *s = sinks[i];
        ck_assert_ptr_nonnull(s->name);
        ck_assert(s->init && s->dealt && s->free);
        ck_assert(s->begin && s->wait && s->finish);
        ck_assert(s->boundary && s->visit);
        if (s->in_stream_order) ck_assert(s->is_beside); /* else each flush is waited for */
    }
}
END_TEST

TEST_MAIN("zero sinks", several_ranks_reduce, one_rank_with_a_swap_file_writes_them_there,
          one_gpu_with_its_optimizer_in_the_host_copies_them_there, sinks_have_what_is_asked_of_all)
