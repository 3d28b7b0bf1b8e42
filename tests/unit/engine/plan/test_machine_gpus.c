/* Claims: known GPUs are found by name however it is written, and by the size of their memory; what
 * is assumed of them has every figure that a plan can ask for, below the published ones, and is
 * marked. */
#include "engine/machine/machine.h"
#include "tests/support/check_main.h"

#include <string.h>

START_TEST(a_name_may_be_written_in_several_ways)
{
    ck_assert_str_eq(machine_gpu_find("RTX 4090")->name, "rtx4090");
    ck_assert_str_eq(machine_gpu_find("rtx-4090")->name, "rtx4090");
    ck_assert_str_eq(machine_gpu_find("a100_40gb")->name, "a100-40gb");
    ck_assert_str_eq(machine_gpu_find("H200")->title, "H200");
    ck_assert_ptr_null(machine_gpu_find("rtx"));
    ck_assert_ptr_null(machine_gpu_find("rtx40900"));
    ck_assert_ptr_null(machine_gpu_find(""));
}
END_TEST

START_TEST(a_size_finds_the_nearest)
{
    ck_assert_str_eq(machine_gpu_nearest(24000000000)->name, "rtx4090");
    ck_assert_str_eq(machine_gpu_nearest((size_t)24 << 30)->name, "rtx4090");
    ck_assert_str_eq(machine_gpu_nearest(20000000000)->name, "rtx4090");
    ck_assert_str_eq(machine_gpu_nearest(1000000000)->name, "rtx3060");
    ck_assert_str_eq(machine_gpu_nearest(500000000000)->name, "h200");
}
END_TEST

START_TEST(no_figure_is_missing)
{
    struct machine_profile p;
    char names[256];
    machine_gpu_names(names, sizeof names);
    for (size_t i = 0; machine_gpu(i); i++) {
        const struct machine_gpu *gpu = machine_gpu(i);
        ck_assert_ptr_nonnull(strstr(names, gpu->name));
        if (i > 0) ck_assert(gpu->nbytes >= machine_gpu(i - 1)->nbytes);
        machine_assume(gpu, &p);
        ck_assert(p.is_assumed);
        ck_assert_ptr_nonnull(strstr(p.device, "published"));
        ck_assert(p.device_gemm_bf16 > p.device_gemm_f32 && p.device_gemm_f32 > 0);
        ck_assert(p.device_gemm_bf16 < gpu->gemm_16bit && p.device_copy < gpu->memory);
        ck_assert(p.host_to_device > 0 && p.device_to_host > 0 && p.host_to_device < gpu->pcie);
        ck_assert(p.comm > 0 && p.triad > 0 && p.adam_bf16 > 0 && p.nvme_both > 0);
    }
    machine_assume(NULL, &p);
    ck_assert_str_eq(p.device, "");
    ck_assert(p.gemm_f32 > 0 && p.gemm_bf16 > 0 && p.gemm_f16 > 0 && p.adam_f32 > 0);
}
END_TEST

/* A desktop's own memory, to 10 %: the rest is for what people do on it. */
START_TEST(a_desktop_keeps_memory_for_others)
{
    const size_t gib = (size_t)1 << 30;
    ck_assert_uint_eq(machine_share(16 * gib, 16 * gib, gib), 14 * gib);
    ck_assert_uint_eq(machine_share(16 * gib, 16 * gib, 5 * gib), 11 * gib);
    ck_assert_uint_eq(machine_share(24 * gib, 24 * gib, 0), 21 * gib);
    ck_assert_uint_eq(machine_share(64 * gib, 64 * gib, 0), 60 * gib);
    /* 16 GB of 15.5 GiB, and the other way round */
    ck_assert_uint_eq(machine_share(16000000000, 16 * gib - gib / 2, 0), 16000000000 - 2 * gib);
    ck_assert_uint_eq(machine_share(17 * gib, 16 * gib, 0), 14 * gib);
    /* another machine's, or a part of this one */
    ck_assert_uint_eq(machine_share(8 * gib, 16 * gib, 5 * gib), 8 * gib);
    ck_assert_uint_eq(machine_share(18 * gib, 16 * gib, 5 * gib), 18 * gib);
    ck_assert_uint_eq(machine_share(3 * gib, 3 * gib, gib), 3 * gib);
    ck_assert_uint_eq(machine_share(16 * gib, 16 * gib, 16 * gib), 16 * gib);
}
END_TEST

TEST_MAIN("engine/machine_gpus", a_desktop_keeps_memory_for_others,
          a_name_may_be_written_in_several_ways, a_size_finds_the_nearest, no_figure_is_missing)
