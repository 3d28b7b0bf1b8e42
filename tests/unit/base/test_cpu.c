/* Claims: CZERO_ISA caps the features in use at the named level, whatever its case, and a name that
 * is unknown or that this CPU lacks is refused with a sentence; without it everything the hardware
 * has is in use; features come in order, each with those below it. */
#include "base/cpu.h"
#include "tests/support/check_main.h"

#include <string.h>

static const struct {
    const char *name;
    uint32_t features;
} levels[] = {
    {"scalar", 0},
    {"avx2", CPU_AVX2},
    {"avx512", CPU_AVX2 | CPU_AVX512},
    {"avx512bf16", CPU_AVX2 | CPU_AVX512 | CPU_AVX512BF16},
    {"amx", CPU_AVX2 | CPU_AVX512 | CPU_AVX512BF16 | CPU_AMX},
};

START_TEST(hardware_features_come_in_order)
{
    uint32_t have = cpu_features_hardware();
    size_t n = 0;
    for (size_t i = 0; i < CZ_ARRAY_LEN(levels); i++) n += have == levels[i].features;
    ck_assert_uint_eq(n, 1);
    ck_assert_uint_eq(cpu_features_hardware(), have);
}
END_TEST

/* Does the kernel list all these words among the first CPU's flags? */
static bool has_flags(const char *const *words)
{
    static char flags[1 << 14] = " ";
    FILE *f = fopen("/proc/cpuinfo", "re");
    ck_assert_ptr_nonnull(f);
    while (fgets(flags + 1, sizeof flags - 1, f) && strncmp(flags + 1, "flags", 5) != 0) {
    }
    fclose(f);
    flags[strcspn(flags, "\n")] = ' ';
    for (; *words; words++) {
        char word[32];
        snprintf(word, sizeof word, " %s ", *words);
        if (!strstr(flags, word)) return false;
    }
    return true;
}

START_TEST(hardware_features_are_those_the_kernel_lists)
{
    const char *const avx2[] = {"avx2", "fma", "f16c", NULL};
    const char *const avx512[] = {"avx512f", "avx512bw", "avx512vl", "avx512dq", NULL};
    const char *const bf16[] = {"avx512_bf16", NULL}, *const amx[] = {"amx_tile", "amx_bf16", NULL};
    uint32_t want = 0, have = cpu_features_hardware();
    if (has_flags(avx2)) want = CPU_AVX2;
    if (want && has_flags(avx512)) want |= CPU_AVX512;
    if ((want & CPU_AVX512) && has_flags(bf16)) want |= CPU_AVX512BF16;
    ck_assert_uint_eq(have & ~(uint32_t)CPU_AMX, want);
    /* the kernel may refuse a process its tiles */
    ck_assert(!(have & CPU_AMX) || ((want & CPU_AVX512BF16) && has_flags(amx)));
}
END_TEST

START_TEST(without_a_cap_everything_is_in_use)
{
    unsetenv("CZERO_ISA");
    ck_ok(cpu_isa_check());
    ck_assert_uint_eq(cpu_features(), cpu_features_hardware());
    for (size_t i = 0; i < CZ_ARRAY_LEN(levels); i++)
        if (levels[i].features == cpu_features()) ck_assert_str_eq(cpu_isa_name(), levels[i].name);
}
END_TEST

START_TEST(the_largest_cache_is_the_kernels)
{
    const char *list = "cat /sys/devices/system/cpu/cpu0/cache/index*/size 2>/dev/null | tr -d K | "
                       "sort -n | tail -n 1";
    char text[32] = "0";
    FILE *f = popen(list, "r");
    ck_assert_ptr_nonnull(f);
    if (!fgets(text, sizeof text, f)) text[0] = '\0';
    pclose(f);
    ck_assert_uint_eq(cpu_llc_nbytes(), strtoul(text, NULL, 10) * 1024);
}
END_TEST

START_TEST(an_empty_cap_is_none)
{
    setenv("CZERO_ISA", "", 1);
    ck_ok(cpu_isa_check());
    ck_assert_uint_eq(cpu_features(), cpu_features_hardware());
}
END_TEST

/* A loop test: the cap is read once, and Check gives each round a process of its own. */
START_TEST(a_cap_names_the_highest_level_in_use)
{
    setenv("CZERO_ISA", levels[_i].name, 1);
    if (levels[_i].features & ~cpu_features_hardware()) {
        ck_fails(cpu_isa_check(), CZ_INVALID);
        ck_assert_ptr_nonnull(strstr(cz_last_error(), levels[_i].name));
        ck_assert_ptr_nonnull(strstr(cz_last_error(), "does not have it"));
        ck_assert_uint_eq(cpu_features(), cpu_features_hardware()); /* never more than there is */
        return;
    }
    ck_ok(cpu_isa_check());
    ck_assert_uint_eq(cpu_features(), levels[_i].features);
    ck_assert_str_eq(cpu_isa_name(), levels[_i].name);
    setenv("CZERO_ISA", "scalar", 1); /* probed once */
    ck_assert_str_eq(cpu_isa_name(), levels[_i].name);
}
END_TEST

START_TEST(case_does_not_matter)
{
    setenv("CZERO_ISA", "SCALAR", 1);
    ck_ok(cpu_isa_check());
    ck_assert_uint_eq(cpu_features(), 0);
    ck_assert_str_eq(cpu_isa_name(), "scalar");
}
END_TEST

START_TEST(an_unknown_name_is_refused_with_the_list)
{
    setenv("CZERO_ISA", "sse9", 1);
    ck_fails(cpu_isa_check(), CZ_INVALID);
    ck_assert_str_eq(cz_last_error(),
                     "CZERO_ISA=sse9: use one of scalar, avx2, avx512, avx512bf16, amx");
}
END_TEST

START_TEST(the_cpu_has_a_name)
{
    const char *name = cpu_model_name();
    size_t len = strlen(name);
    ck_assert_uint_gt(len, 0);
    ck_assert_uint_le(len, 48);
    ck_assert_msg(name[0] != ' ' && name[len - 1] != ' ', "\"%s\"", name);
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "re"); /* the kernel asks the processor as well */
    ck_assert_ptr_nonnull(f);
    while (fgets(line, sizeof line, f))
        if (strncmp(line, "model name", 10) == 0) {
            line[strcspn(line, "\n")] = '\0';
            ck_assert_str_eq(name, strchr(line, ':') + 2);
            break;
        }
    fclose(f);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("base/cpu");
    TCase *tcase = tcase_create("all");
    tcase_add_test(tcase, hardware_features_come_in_order);
    tcase_add_test(tcase, without_a_cap_everything_is_in_use);
    tcase_add_test(tcase, hardware_features_are_those_the_kernel_lists);
    tcase_add_test(tcase, an_empty_cap_is_none);
    tcase_add_loop_test(tcase, a_cap_names_the_highest_level_in_use, 0, CZ_ARRAY_LEN(levels));
    tcase_add_test(tcase, case_does_not_matter);
    tcase_add_test(tcase, an_unknown_name_is_refused_with_the_list);
    tcase_add_test(tcase, the_cpu_has_a_name);
    tcase_add_test(tcase, the_largest_cache_is_the_kernels);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int n_failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return n_failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
