/* Claims: predicted steps follow from the figures of a profile; its table names rates, what they
 * are compared with and settings, and leaves out what was not measured. */
#include "engine/tune/machine.h"
#include "tests/support/check_main.h"

#include <string.h>

static struct machine_profile known(void)
{
    return (struct machine_profile){.cpu = "a CPU",
                                    .isa = "avx2",
                                    .n_threads = 2,
                                    .triad = 40e9,
                                    .adam_f32 = 2e9,
                                    .adam_bf16 = 1e9,
                                    .nvme_path = "/mnt/disk",
                                    .nvme_how = "pread",
                                    .nvme_read = 4e9,
                                    .nvme_write = 2e9,
                                    .nvme_both = 3e9,
                                    .nvme_block_nbytes = 1 << 20,
                                    .nvme_depth = 8};
}

/* 24 bytes go both ways per parameter of a 16-bit model, 16 of one in fp32 whose masters are its
 * parameters; the slower of disk and arithmetic decides. */
START_TEST(steps_follow_from_the_figures)
{
    struct machine_profile p = known();
    ck_assert(machine_step_seconds(&p, 3e9, DTYPE_F32, false) == 1.5);
    ck_assert(machine_step_seconds(&p, 3e9, DTYPE_BF16, false) == 3);
    ck_assert(machine_step_seconds(&p, 3e9, DTYPE_F16, true) == 24);
    ck_assert(machine_step_seconds(&p, 3e9, DTYPE_F32, true) == 16);
    p.nvme_both = 1e12;
    ck_assert(machine_step_seconds(&p, 3e9, DTYPE_BF16, true) == 3);
    p.adam_bf16 = 0;
    ck_assert(machine_step_seconds(&p, 3e9, DTYPE_BF16, true) == 0);
}
END_TEST

START_TEST(the_table_names_rates_and_settings)
{
    static const char *const wanted[] = {
        "a CPU, 2 threads, avx2 kernels\n",
        "memory                     40.0 GB/s            STREAM",
        "28.0 GB/s, 70 % of the triad",
        "no GPU\n",
        "/mnt/disk: pread\n",
        "writing                    2.00 GB/s            50 % of reading\n",
        "\"aio\": {\"block_size\": 1048576, \"queue_depth\": 8}\n",
        "16-bit model       1.00 s on the host,     8.00 s on NVMe (limited by the disk)\n",
    };
    const struct machine_profile p = known();
    char *text;
    ck_ok(machine_table(&p, &text));
    for (size_t i = 0; i < CZ_ARRAY_LEN(wanted); i++)
        ck_assert_msg(strstr(text, wanted[i]), "no \"%s\" in\n%s", wanted[i], text);
    ck_assert_msg(!strstr(text, "matrix"), "a figure that was not measured:\n%s", text);
    free(text);
}
END_TEST

TEST_MAIN("engine/machine_print", steps_follow_from_the_figures, the_table_names_rates_and_settings)
