/* Claims: predicted steps follow from the figures of a profile; its table names rates, what they
 * are compared with and settings, and leaves out what was not measured. */
#include "engine/machine/machine.h"
#include "formats/json/json.h"
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

static double member(const struct json_node *node, const char *a, const char *b)
{
    const struct json_node *inner = json_get(node, a);
    double x;
    ck_assert_ptr_nonnull(inner);
    ck_assert_ptr_nonnull(json_get(inner, b));
    ck_ok(json_as_double(json_get(inner, b), &x));
    return x;
}

/* The same numbers as in the table; nothing of a disk that was not measured. */
START_TEST(json_has_the_tables_numbers)
{
    struct machine_profile p = known();
    for (int k = 0; k < 2; k++) {
        struct json_doc *doc;
        char *text;
        ck_ok(machine_json(&p, &text));
        ck_ok(json_parse(text, strlen(text), "json", JSON_STRICT, &doc));
        const struct json_node *root = json_root(doc);
        const struct json_node *steps = json_get(root, "step_seconds_per_billion_parameters");
        ck_assert(steps && json_get(root, "profile"));
        ck_assert(member(steps, "host", "fp32") == 0.5 && member(steps, "host", "bf16") == 1);
        ck_assert(member(root, "profile", "triad_bytes_per_second") == 40e9);
        ck_assert_int_eq(json_get(steps, "nvme") != NULL, k == 0);
        ck_assert_int_eq(json_get(root, "aio") != NULL, k == 0);
        if (k == 0) {
            ck_assert(member(root, "aio", "block_size") == 1 << 20 &&
                      member(root, "aio", "queue_depth") == 8);
            ck_assert(member(steps, "nvme", "bf16") == 8);
        }
        json_free(doc);
        free(text);
        p.nvme_path[0] = '\0';
    }
}
END_TEST

TEST_MAIN("engine/machine_print", steps_follow_from_the_figures, the_table_names_rates_and_settings,
          json_has_the_tables_numbers)
