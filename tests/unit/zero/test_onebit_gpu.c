/* The claims of tests/support/gpu/onebit_gpu.h, with the CPU in a GPU's place; and what a GPU cannot
 * have with the 1-bit family is refused. */
#define ONEBIT_GPU_DEVICE "cpu"
#include "tests/support/gpu/onebit_gpu.h"

START_TEST(one_to_three_ranks_compute_what_they_do_on_the_cpu)
{
    for (size_t k = 0; k < CZ_ARRAY_LEN(onebits); k++)
        for (int d = DTYPE_F32; d <= DTYPE_F16; d++)
            for (int n_ranks = 1; n_ranks <= 3; n_ranks++)
                for (int stage = 0; stage <= 1; stage++) {
                    struct onebit_trial t = onebit_trial_of(k, (enum cz_dtype)d, stage);
                    t.setting.two_groups = (n_ranks + d) % 2;
                    t.setting.freeze = (n_ranks + stage) % 2;
                    compare_ranks(&t, n_ranks);
                }
}
END_TEST

START_TEST(gradients_may_be_fp32_beside_16_bit_parameters)
{
    for (size_t k = 0; k < CZ_ARRAY_LEN(onebits); k++) {
        struct onebit_trial t = onebit_trial_of(k, DTYPE_BF16, 1);
        t.setting.grad_dtype = DTYPE_F32;
        compare_ranks(&t, 2);
    }
}
END_TEST

static cz_status refused_rank(struct ranks *ranks, int rank, void *arg)
{
    struct optim_group group;
    struct optim_hyper hyper;
    struct param_table table;
    struct zero_unit unit = {unit_a, 1};
    static const size_t group_of[] = {0};
    const int64_t shape[] = {64};
    struct zero_options o = {.table = &table,
                             .units = &unit,
                             .n_units = 1,
                             .group_of = group_of,
                             .groups = &group,
                             .n_groups = 1,
                             .on_gpu = true};
    struct zero *z;
    size_t idx;
    (void)ranks, (void)rank, (void)arg;
    param_table_init(&table);
    TRY(param_table_add(&table, "p", 1, shape, PARAM_INIT_NORMAL, 1, &idx));
    TRY(optim_hyper_begin("OneBitAdam", OPTIM_FUSED, &hyper));
    TRY(optim_hyper_finish(&hyper));
    TRY(optim_group_init(&group, &hyper, NULL));
    TRY(comm_self_create(0, 1, &o.comm));
    for (int k = 0; k < 2; k++) {
        o.offload = (struct zero_offload){.optimizer = k == 0, .params = k == 1};
        rank_check(zero_create(&o, &z) == CZ_UNSUPPORTED);
        rank_check(strstr(cz_last_error(), k == 0 ? "offload_optimizer" : "offload_param"));
        rank_check(strstr(cz_last_error(), "not supported with OneBitAdam"));
    }
    comm_destroy(o.comm);
    param_table_free(&table);
    err_clear();
    return CZ_OK;
}

START_TEST(nothing_of_it_leaves_a_gpu)
{
    struct ranks ranks;
    ranks_start(&ranks, 1, refused_rank, NULL);
    ranks_expect_ok(&ranks, 60);
}
END_TEST

TEST_MAIN("zero 1-bit on " ONEBIT_GPU_DEVICE, one_to_three_ranks_compute_what_they_do_on_the_cpu,
          gradients_may_be_fp32_beside_16_bit_parameters, nothing_of_it_leaves_a_gpu)
