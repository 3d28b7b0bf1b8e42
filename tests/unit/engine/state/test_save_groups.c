/* Claims: a parameter group is saved in the form of its own class, with every setting that the form
 * lists; a class without a form, and a setting without a value, are refused by name. */
#include "engine/state/save_impl.h"
#include "tests/support/check_main.h"

#include <string.h>

static struct optim_group group_of(const char *type, enum optim_dialect dialect)
{
    struct optim_hyper hyper;
    struct optim_group group;
    ck_ok(optim_hyper_begin(type, dialect, &hyper));
    ck_ok(optim_hyper_finish(&hyper));
    ck_ok(optim_group_init(&group, &hyper, NULL));
    return group;
}

START_TEST(every_optimizer_is_described_whole)
{
    size_t n;
    const struct optim_type *types = optim_types(&n);
    for (size_t i = 0; i < n; i++)
        for (int dialect = OPTIM_FUSED; types[i].cls && dialect <= OPTIM_TORCH; dialect++) {
            struct optim_group group = group_of(types[i].name, (enum optim_dialect)dialect);
            struct ckpt_setting room[SAVE_SETTINGS_MAX];
            struct ckpt_group g = {.n_states = optim_n_states(&group.hyper)};
            ck_ok(save_describe_class(&group, &g, room));
            const struct optim_saved *saved = optim_saved_as(&group.hyper);
            for (size_t s = 0; s < g.n_settings; s++)
                ck_assert_str_eq(g.settings[s].name, saved->settings[s]);
            ck_assert_ptr_null(saved->settings[g.n_settings]);
            for (size_t s = 0; s < g.n_states; s++) ck_assert_ptr_nonnull(g.states[s]);
        }
}
END_TEST

START_TEST(states_have_the_forms_names)
{
    struct ckpt_setting room[SAVE_SETTINGS_MAX];
    struct ckpt_group g = {.n_states = 1};
    struct optim_group group = group_of("Adagrad", OPTIM_OFFLOAD);
    ck_ok(save_describe_class(&group, &g, room));
    ck_assert_str_eq(g.states[0], "exp_avg_sq");
    group = group_of("Adagrad", OPTIM_FUSED);
    ck_ok(save_describe_class(&group, &g, room));
    ck_assert_str_eq(g.states[0], "sum");
    ck_assert(g.step_is_tensor);
}
END_TEST

START_TEST(a_class_without_a_form_is_refused)
{
    struct ckpt_setting room[SAVE_SETTINGS_MAX];
    struct ckpt_group g = {.n_states = 1};
    struct optim_group group = group_of("Lion", OPTIM_FUSED);
    struct optim_class newer = *group.hyper.cls;
    newer.name = "Newer";
    newer.n_saved = 0;
    group.hyper.cls = &newer;
    ck_fails(save_describe_class(&group, &g, room), CZ_UNSUPPORTED);
    ck_assert_str_eq(cz_last_error(),
                     "optimizer Newer: no form is known in which a checkpoint holds "
                     "its states");
    const struct optim_saved odd = {.name = "OddNewer", .settings = {"lr", "oddity"}};
    newer.saved = &odd;
    newer.n_saved = 1;
    ck_fails(save_describe_class(&group, &g, room), CZ_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "OddNewer saves \"oddity\""));
}
END_TEST

TEST_MAIN("engine/save_groups", every_optimizer_is_described_whole, states_have_the_forms_names,
          a_class_without_a_form_is_refused)
