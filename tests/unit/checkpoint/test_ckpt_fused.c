/* FusedAdam without a wrapper (stage 0 in fp32) counts steps in the state of a group's last
 * parameter only; the others' stay 0. Such a checkpoint of DeepSpeed's opens, with the step that
 * was reached. */
#include "checkpoint/read/checkpoint.h"
#include "tests/support/check_main.h"

START_TEST(a_group_has_the_step_of_its_last_parameter)
{
    const struct ckpt_open_options options = {
        .dir = test_fixture("checkpoints/wrappers/s0-fp32-fused")};
    struct ckpt *ck;
    ck_ok(ckpt_open(&options, &ck));
    const struct ckpt_info *info = ckpt_get_info(ck);
    ck_assert_uint_eq(info->n_groups, 2);
    ck_assert_uint_eq(info->n_states, 2);
    for (size_t g = 0; g < info->n_groups; g++) ck_assert_int_eq(ckpt_group_step(ck, g), 3);
    for (size_t i = 0; i < ckpt_count(ck); i++)
        for (size_t s = 0; s < info->n_states; s++) ck_assert(ckpt_has_state(ck, i, s));
    ckpt_close(ck);
}
END_TEST

TEST_MAIN("checkpoint/ckpt_fused", a_group_has_the_step_of_its_last_parameter)
