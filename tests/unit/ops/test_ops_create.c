/* Claims: CZERO_ISA caps the rows that ops_create chooses, the choice is named, and a name that is
 * unknown or that this CPU lacks is refused with a sentence. The CPU has every op; one that a
 * device lacks is refused by its name, when it is requested or called, and stops nothing
 * else. */
#include "base/cpu.h"
#include "base/log.h"
#include "ops/elementwise/elementwise_impl.h"
#include "ops/matmul/matmul.h"
#include "ops/norm/norm.h"
#include "ops/step/step.h"
#include "ops/table_impl.h"
#include "tests/support/check_main.h"

#include <string.h>

static char logged[256];

static void keep_line(enum cz_log_level level, const char *line, void *user)
{
    (void)level;
    (void)user;
    snprintf(logged, sizeof logged, "%s", line);
}

/* Each case runs in a process of its own (Check forks): the cap is read once per process. */
static void capped(const char *isa, uint32_t features)
{
    if (features & ~cpu_features_hardware()) return; /* not on this CPU: refused, see below */
    setenv("CZERO_ISA", isa, 1);
    cz_log_set_sink(keep_line, NULL);
    struct device *dev;
    struct ops *ops;
    ck_ok(device_open(NULL, 0, &dev));
    ck_ok(ops_create(dev, &ops));
    ck_assert_str_eq(ops_isa(ops), isa);
    ck_assert_str_eq(((const struct ops_row *)ops->elementwise_row)->name, isa);
    ck_assert_msg(strstr(logged, isa) != NULL, "the log says \"%s\"", logged);
    ops_destroy(ops);
    device_close(dev);
}

START_TEST(scalar_is_chosen_when_asked_for)
{
    capped("scalar", 0);
}
END_TEST
START_TEST(avx2_is_chosen_when_asked_for)
{
    capped("avx2", CPU_AVX2);
}
END_TEST
START_TEST(avx512_is_chosen_when_asked_for)
{
    capped("avx512", CPU_AVX2 | CPU_AVX512);
}
END_TEST

static void refused(const char *isa)
{
    struct device *dev;
    struct ops *ops;
    setenv("CZERO_ISA", isa, 1);
    ck_ok(device_open("cpu", 0, &dev));
    ck_fails(ops_create(dev, &ops), CZ_INVALID);
    ck_assert_msg(strstr(cz_last_error(), isa) != NULL, "\"%s\"", cz_last_error());
    ck_assert_ptr_null(ops);
    device_close(dev);
}

START_TEST(an_unknown_isa_is_refused)
{
    refused("mmx");
}
END_TEST

START_TEST(an_isa_this_cpu_lacks_is_refused)
{
    if (!(cpu_features_hardware() & CPU_AMX)) refused("amx");
    if (!(cpu_features_hardware() & CPU_AVX512)) refused("avx512");
}
END_TEST

static struct ops *open_host(struct device **dev)
{
    struct ops *ops;
    ck_ok(device_open("cpu", 0, dev));
    ck_ok(ops_create(*dev, &ops));
    return ops;
}

START_TEST(the_cpu_has_every_op)
{
    struct device *dev;
    struct ops *ops = open_host(&dev);
#define THERE(slot, args) ck_ok(ops_require(ops, #slot));
    OPS_SLOTS(THERE)
#undef THERE
    ck_fails(ops_require(ops, "adamant"), CZ_INVALID);
    ck_assert_str_eq(cz_last_error(), "no op is called adamant");
    ops_destroy(ops);
    device_close(dev);
}
END_TEST

START_TEST(an_op_that_the_device_lacks_is_refused_by_name)
{
    const float one = 1;
    float sum = 0;
    struct device *dev;
    struct ops *ops = open_host(&dev);
    ops->step = NULL;
    ops->matmul = NULL;
    ops->matmul_workspace = NULL;
    ops->norm_workspace = NULL;
    ck_fails(ops_require(ops, "step"), CZ_UNSUPPORTED);
    ck_assert_str_eq(cz_last_error(), "the CPU device has no kernel for step");
    ck_fails(ops_step(ops, NULL, &(struct step_args){0}), CZ_UNSUPPORTED);
    ck_assert_str_eq(cz_last_error(), "the CPU device has no kernel for step");
    size_t nbytes;
    ck_fails(ops_matmul(ops, NULL, &(struct matmul_args){0}), CZ_UNSUPPORTED);
    ck_fails(ops_matmul_workspace(ops, &(struct matmul_args){0}, &nbytes), CZ_UNSUPPORTED);
    ck_assert_uint_eq(ops_norm_workspace(ops, &(struct norm_args){0}), 0);
    ck_ok(ops_require(ops, "add"));
    ck_ok(ops_add(
        ops, NULL,
        &(struct add_args){.dtype = DTYPE_F32, .numel = 1, .a = &one, .b = &one, .y = &sum}));
    ck_assert_float_eq(sum, 2);
    ops_destroy(ops);
    device_close(dev);
}
END_TEST

TEST_MAIN("ops/create", scalar_is_chosen_when_asked_for, avx2_is_chosen_when_asked_for,
          avx512_is_chosen_when_asked_for, an_unknown_isa_is_refused,
          an_isa_this_cpu_lacks_is_refused, the_cpu_has_every_op,
          an_op_that_the_device_lacks_is_refused_by_name)
