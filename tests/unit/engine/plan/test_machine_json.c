/* Claims: a machine profile reads back as it was written; a figure that is missing, negative, too
 * large or of another type, an unknown key, another version and another file are refused
 * with file, line and column; a path that cannot be written fails and leaves nothing. */
#include "engine/machine/machine.h"
#include "formats/file_io.h"
#include "tests/support/check_main.h"

#include <string.h>

static struct machine_profile some_profile(void)
{
    struct machine_profile p = {.cpu = "AMD \"EPYC\" ½",
                                .isa = "avx512bf16",
                                .n_threads = 2,
                                .gemm_f32 = 2.2e11,
                                .gemm_bf16 = 4.400000000000001e11,
                                .gemm_f16 = 1.1e11,
                                .triad = 30123456789.25,
                                .adam_f32 = 1552e6,
                                .adam_bf16 = 1.0 / 3,
                                .comm = 5e9,
                                .nvme_path = "/mnt/nvme",
                                .nvme_read = 3e9,
                                .nvme_write = 1e9,
                                .nvme_both = 2e9,
                                .nvme_block_nbytes = 4 << 20,
                                .nvme_depth = 32,
                                .device_nbytes = (size_t)80 << 30};
    return p;
}

/* The file of some_profile() with one piece of text replaced; NULL: as written. */
static cz_status read_changed(const char *from, const char *to, struct machine_profile *out)
{
    const struct machine_profile p = some_profile();
    const char *dir = test_tmp_make();
    char path[256], *text;
    size_t nbytes;
    snprintf(path, sizeof path, "%s/machine.json", dir);
    ck_ok(machine_write(&p, path));
    ck_ok(file_load(path, 1 << 20, &text, &nbytes));
    FILE *file = fopen(path, "w");
    char *at = from ? strstr(text, from) : text;
    ck_assert_msg(at, "no %s in %s", from, text);
    fprintf(file, "%.*s%s%s", (int)(at - text), text, from ? to : "",
            from ? at + strlen(from) : text);
    ck_assert_int_eq(fclose(file), 0);
    free(text);
    cz_status st = machine_read(path, out);
    test_tmp_remove(dir);
    return st;
}

START_TEST(a_profile_reads_back_as_written)
{
    const struct machine_profile p = some_profile();
    struct machine_profile again;
    ck_ok(read_changed(NULL, NULL, &again));
    ck_assert_str_eq(again.cpu, p.cpu);
    ck_assert_str_eq(again.isa, p.isa);
    ck_assert_str_eq(again.device, "");
    ck_assert_str_eq(again.nvme_path, p.nvme_path);
    ck_assert(again.n_threads == 2 && again.gemm_f32 == p.gemm_f32);
    ck_assert(again.gemm_bf16 == p.gemm_bf16 && again.gemm_f16 == p.gemm_f16);
    ck_assert(again.triad == p.triad && again.adam_f32 == p.adam_f32);
    ck_assert(again.adam_bf16 == p.adam_bf16 && again.comm == p.comm);
    ck_assert(again.host_to_device == 0 && again.device_copy == 0);
    ck_assert(again.nvme_read == p.nvme_read && again.nvme_write == p.nvme_write);
    ck_assert(again.nvme_both == p.nvme_both && again.device_nbytes == p.device_nbytes);
    ck_assert(again.nvme_block_nbytes == p.nvme_block_nbytes && again.nvme_depth == 32);
}
END_TEST

START_TEST(figures_may_be_edited_by_hand)
{
    struct machine_profile p;
    ck_ok(read_changed("30123456789.25", "1e11", &p));
    ck_assert(p.triad == 1e11);
    static const struct {
        const char *from, *to;
    } limits[] = {
        {"30123456789.25", "0.001"},
        {"30123456789.25", "1e18"},
        {"30123456789.25", "0"},
        {"\"nvme_queue_depth\": 32", "\"nvme_queue_depth\": 4096"},
        {"\"nvme_queue_depth\": 32", "\"nvme_queue_depth\": 0"},
        {"\"threads\": 2", "\"threads\": 1"},
        {"avx512bf16", "fifteen letters"},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(limits); i++)
        ck_ok(read_changed(limits[i].from, limits[i].to, &p));
    ck_assert_str_eq(p.isa, "fifteen letters");
    ck_fails(read_changed("avx512bf16", "sixteen letters!", &p), CZ_CORRUPT);
    ck_fails(read_changed("30123456789.25", "0.00099", &p), CZ_CORRUPT);
    ck_fails(read_changed("30123456789.25", "1.001e18", &p), CZ_CORRUPT);
    ck_ok(read_changed("\"cpu\"", "\"_note\": [\"from a colleague\"], \"cpu\"", &p));
}
END_TEST

START_TEST(what_is_wrong_is_said_with_its_place)
{
    static const struct {
        const char *from, *to, *sentence;
    } cases[] = {
        {"triad_bytes_per_second", "triad_byte_per_second",
         ":11:28: triad_byte_per_second: unknown key"},
        {"\"nvme_queue_depth\": 32", "\"_\": 0", "\"nvme_queue_depth\" is missing"},
        {"30123456789.25", "-1", "triad_bytes_per_second: -1 is outside 0.001..1e+18"},
        {"30123456789.25", "1e-300", "triad_bytes_per_second: 1e-300 is outside 0.001..1e+18"},
        {"30123456789.25", "1e300", "triad_bytes_per_second: 1e+300 is outside 0.001..1e+18"},
        {"30123456789.25", "\"fast\"", "triad_bytes_per_second: expected a number"},
        {"30123456789.25", "1e999", "a number that fits in a double"},
        {"30123456789.25", "NaN", "machine.json:11:"},
        {"\"threads\": 2", "\"threads\": 0", "threads: 0 is outside 1.."},
        {"\"threads\": 2", "\"threads\": 2.5", "threads: expected an integer"},
        {"\"nvme_queue_depth\": 32", "\"nvme_queue_depth\": -8", "-8 is outside 0.."},
        {"\"nvme_queue_depth\": 32", "\"nvme_queue_depth\": 4097", "4097 is outside 0..4096"},
        {"\"device_memory_bytes\": 85899345920", "\"device_memory_bytes\": 1e18", "is outside"},
        {"avx512bf16", "a name that is longer than any instruction set", "longer than 15 bytes"},
        {"avx512bf16", "\\u001b[2J", "isa: contains a control character"},
        {"\"version\": 1", "\"version\": 2", "version: 2; this build reads 1"},
        {"czero machine", "czero state", "the format is \"czero state\""},
        {"\n}", "", "machine.json:"},
        {"\"threads\": 2", "\"threads\": 2, \"threads\": 2", "machine.json:7:"},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        struct machine_profile p;
        ck_fails(read_changed(cases[i].from, cases[i].to, &p), CZ_CORRUPT);
        ck_assert_msg(strstr(cz_last_error(), "machine.json:"), "%s", cz_last_error());
        ck_assert_msg(strstr(cz_last_error(), cases[i].sentence), "%zu: %s", i, cz_last_error());
        ck_assert(p.triad == 0 && p.n_threads == 0);
    }
}
END_TEST

START_TEST(other_files_are_no_profiles)
{
    struct machine_profile p;
    ck_fails(machine_read("/nowhere/machine.json", &p), CZ_NOTFOUND);
    ck_assert_str_eq(cz_last_error(), "/nowhere/machine.json: there is no such file; "
                                      "czero bench --profile makes one");
    ck_fails(machine_read("/", &p), CZ_IO);
    ck_fails(machine_read(test_fixture("fuzz/run_state/good"), &p), CZ_CORRUPT);
}
END_TEST

/* Whether it works is asked before measuring: an old profile survives the question. */
START_TEST(asking_changes_nothing)
{
    const struct machine_profile p = some_profile();
    struct machine_profile again;
    const char *dir = test_tmp_make();
    char path[256];
    snprintf(path, sizeof path, "%s/machine.json", dir);
    ck_ok(machine_write_check(path));
    ck_assert(access(path, F_OK) != 0);
    ck_ok(machine_write(&p, path));
    ck_ok(machine_write_check(path));
    ck_ok(machine_read(path, &again));
    test_tmp_remove(dir);
}
END_TEST

START_TEST(a_path_that_cannot_be_written_fails)
{
    const struct machine_profile p = some_profile();
    ck_fails(machine_write(&p, "/nowhere/machine.json"), CZ_IO);
    ck_fails(machine_write(&p, "/"), CZ_IO);
    ck_fails(machine_write_check("/nowhere/machine.json"), CZ_IO);
    ck_fails(machine_write_check("/"), CZ_IO);
    ck_fails(machine_write_check(""), CZ_INVALID);
}
END_TEST

TEST_MAIN("engine/machine_json", a_profile_reads_back_as_written, figures_may_be_edited_by_hand,
          what_is_wrong_is_said_with_its_place, other_files_are_no_profiles, asking_changes_nothing,
          a_path_that_cannot_be_written_fails)
