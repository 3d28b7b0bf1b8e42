/* Claims: what accesses ask of memory is counted as the CUDA C++ Programming Guide says: sectors of
 * 32 bytes that a warp touches, turns of 32 banks of 4 bytes; and the fewest that would do. */
#include "tests/gpu_sim/sim_test.h"

#include "tests/support/cuda_sim/ptx/ptx_test.h"

/* One warp; %rd1: memory; %r2, %rd2: the lane's number times `step` bytes, of shared and global
 * memory. */
#define KERNEL(step, body)                                                                         \
    ".version 8.0\n.target sm_90\n.address_size 64\n"                                              \
    ".visible .entry kernel(.param .u64 at)\n{\n"                                                  \
    ".reg .b32 %r<16>; .reg .b64 %rd<4>; .reg .b16 %h<4>; .reg .pred %p<4>;\n"                     \
    ".shared .align 16 .b8 sh[8192];\n"                                                            \
    "ld.param.u64 %rd1, [at]; mov.u32 %r1, %tid.x; mov.u32 %r3, 0;\n"                              \
    "mul.wide.u32 %rd2, %r1, " #step "; add.s64 %rd2, %rd2, %rd1;\n"                               \
    "mul.lo.u32 %r2, %r1, " #step "; mov.u32 %r4, sh; add.u32 %r2, %r2, %r4;\n" body "\nret;\n}\n"

static struct sim_traffic traffic_of(const char *text)
{
    sim_with(NULL, NULL);
    void *at = device_alloc(8192);
    const struct ptx_argument argument = {&at, sizeof at};
    ck_cuda(cudaMemset(at, 0, 8192));
    sim_traffic_begin();
    ck_cuda(
        ptx_launch_text(text, "kernel", (dim3){1, 1, 1}, (dim3){32, 1, 1}, 0, NULL, &argument, 1));
    ck_cuda(cudaDeviceSynchronize());
    sim_traffic_end();
    ck_assert_uint_eq(sim_traffic_count(), 1);
    const struct sim_traffic t = sim_traffic_at(0);
    ck_assert_str_eq(t.kernel, "kernel");
    ck_assert_uint_eq(t.launches, 1);
    ck_assert_uint_eq(t.local_requests, 0);
    return t;
}

static void ck_global(const char *text, unsigned sectors, unsigned least)
{
    const struct sim_traffic t = traffic_of(text);
    ck_assert_uint_eq(t.global_requests, 1);
    ck_assert_uint_eq(t.sectors, sectors);
    ck_assert_uint_eq(t.sectors_least, least);
    ck_assert_uint_eq(t.sectors_touched, sectors);
    ck_assert_uint_eq(t.shared_requests, 0);
}

static void ck_shared(const char *text, unsigned turns, unsigned least)
{
    const struct sim_traffic t = traffic_of(text);
    ck_assert_uint_eq(t.shared_requests, 1);
    ck_assert_uint_eq(t.shared_turns, turns);
    ck_assert_uint_eq(t.shared_turns_least, least);
    ck_assert_uint_eq(t.global_requests, 0);
}

START_TEST(sectors_of_global_memory)
{
    ck_global(KERNEL(4, "ld.global.u32 %r5, [%rd2];"), 4, 4);
    ck_global(KERNEL(4, "ld.global.u32 %r5, [%rd2+16];"), 5, 4); /* not where a sector begins */
    ck_global(KERNEL(16, "ld.global.v4.u32 {%r5, %r6, %r7, %r8}, [%rd2];"), 16, 16);
    ck_global(KERNEL(32, "ld.global.v4.u32 {%r5, %r6, %r7, %r8}, [%rd2];"), 32, 16);
    ck_global(KERNEL(32, "st.global.u32 [%rd2], %r3;"), 32, 4);
    ck_global(KERNEL(0, "ld.global.u32 %r5, [%rd2];"), 1, 1); /* one word for all */
    ck_global(KERNEL(2, "ld.global.u16 %h1, [%rd2];"), 2, 2);
    ck_global(KERNEL(4, "red.global.add.u32 [%rd2], %r3;"), 4, 4);
}
END_TEST

START_TEST(turns_of_shared_memory)
{
    ck_shared(KERNEL(4, "st.shared.u32 [%r2], %r3;"), 1, 1);
    ck_shared(KERNEL(8, "st.shared.u32 [%r2], %r3;"), 2, 1);
    ck_shared(KERNEL(128, "st.shared.u32 [%r2], %r3;"), 32, 1);
    ck_shared(KERNEL(132, "st.shared.u32 [%r2], %r3;"), 1, 1); /* a column of padded rows */
    ck_shared(KERNEL(8, "st.shared.v2.u32 [%r2], {%r3, %r3};"), 2, 2);
    ck_shared(KERNEL(16, "st.shared.v4.u32 [%r2], {%r3, %r3, %r3, %r3};"), 4, 4);
    ck_shared(KERNEL(128, "st.shared.v4.u32 [%r2], {%r3, %r3, %r3, %r3};"), 32, 4);
    ck_shared(KERNEL(144, "st.shared.v4.u32 [%r2], {%r3, %r3, %r3, %r3};"), 4, 4);
    ck_shared(KERNEL(2, "st.shared.u16 [%r2], %h1;"), 1, 1); /* two lanes a word */
}
END_TEST

/* Lanes that take no part ask for nothing. */
START_TEST(lanes_that_are_away)
{
    ck_global(KERNEL(32, "setp.lt.u32 %p1, %r1, 4; @%p1 ld.global.u32 %r5, [%rd2];"), 4, 1);
    ck_shared(KERNEL(128, "setp.lt.u32 %p1, %r1, 4; @%p1 st.shared.u32 [%r2], %r3;"), 4, 1);
}
END_TEST

START_TEST(both_ends_of_cp_async)
{
    const struct sim_traffic t =
        traffic_of(KERNEL(128, "cp.async.cg.shared.global [%r2], [%rd2], 16; cp.async.wait_all;"));
    ck_assert_uint_eq(t.sectors, 32);
    ck_assert_uint_eq(t.sectors_least, 16);
    ck_assert_uint_eq(t.shared_turns, 32);
    ck_assert_uint_eq(t.shared_turns_least, 4);
}
END_TEST

TEST_MAIN("sim_traffic", sectors_of_global_memory, turns_of_shared_memory, lanes_that_are_away,
          both_ends_of_cp_async)
