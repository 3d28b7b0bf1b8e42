/* Claims: optimizer types, parameter names, defaults and refusals are DeepSpeed's; groups take
 * overrides; the scalars of a step are what the formulas say. */
#include "optim/optim.h"
#include "tests/support/check_main.h"

#include <math.h>
#include <string.h>

#define ck_says(text) ck_assert_msg(strstr(cz_last_error(), text), "\"%s\"", cz_last_error())

static struct optim_hyper begin(const char *type, enum optim_dialect dialect)
{
    struct optim_hyper hyper;
    ck_ok(optim_hyper_begin(type, dialect, &hyper));
    return hyper;
}

static struct optim_hyper defaults(const char *type, enum optim_dialect dialect)
{
    struct optim_hyper hyper = begin(type, dialect);
    ck_ok(optim_hyper_finish(&hyper));
    return hyper;
}

START_TEST(names_match_as_in_deepspeed)
{
    const char *const built_in[] = {"adam", "ADAM", "AdamW", "adamw",
                                    "lamb", "LAMB", "lion",  "Adagrad"};
    struct optim_hyper hyper;
    for (size_t i = 0; i < CZ_ARRAY_LEN(built_in); i++)
        ck_ok(optim_hyper_begin(built_in[i], OPTIM_FUSED, &hyper));
    ck_ok(optim_hyper_begin("SGD", OPTIM_FUSED, &hyper));
    ck_fails(optim_hyper_begin("sgd", OPTIM_FUSED, &hyper), CZ_INVALID);
    ck_says("must be written \"SGD\"");
    ck_fails(optim_hyper_begin("RMSprop", OPTIM_FUSED, &hyper), CZ_INVALID);
    ck_fails(optim_hyper_begin("muon", OPTIM_FUSED, &hyper), CZ_UNSUPPORTED);
}
END_TEST

START_TEST(defaults_by_type_and_dialect)
{
    struct optim_hyper h = defaults("AdamW", OPTIM_FUSED);
    ck_assert_double_eq(h.lr, 1e-3);
    ck_assert_double_eq(h.betas[1], 0.999);
    ck_assert_double_eq(h.eps, 1e-8);
    ck_assert_double_eq(h.weight_decay, 0); /* not torch's 0.01 */
    ck_assert(h.bias_correction && h.adam_w_mode);
    h = defaults("Adam", OPTIM_OFFLOAD);
    ck_assert(h.adam_w_mode && h.fp32_optimizer_states);
    h = defaults("Lion", OPTIM_FUSED);
    ck_assert_double_eq(h.betas[1], 0.999); /* not the paper's 0.99 */
    h = defaults("Adagrad", OPTIM_FUSED);
    ck_assert_double_eq(h.lr, 1e-2);
    ck_assert_double_eq(h.eps, 1e-10);
    h = defaults("Lamb", OPTIM_FUSED);
    ck_assert_double_eq(h.max_coeff, 10);
    ck_assert_double_eq(h.min_coeff, 0.01);
    h = defaults("SGD", OPTIM_FUSED);
    ck_assert_double_eq(h.lr, 1e-3);
    ck_assert_double_eq(h.momentum, 0);
}
END_TEST

START_TEST(torch_adam_changes_names_and_defaults)
{
    struct optim_hyper h = begin("AdamW", OPTIM_FUSED);
    ck_ok(optim_hyper_set_bool(&h, "torch_adam", true));
    ck_ok(optim_hyper_finish(&h));
    ck_assert_double_eq(h.weight_decay, 0.01);
    ck_assert_int_eq(h.dialect, OPTIM_TORCH);
    h = begin("AdamW", OPTIM_FUSED);
    ck_ok(optim_hyper_set_bool(&h, "torch_adam", true));
    ck_ok(optim_hyper_set_number(&h, "weight_decay", 0));
    ck_ok(optim_hyper_finish(&h));
    ck_assert_double_eq(h.weight_decay, 0);
    h = begin("Adam", OPTIM_FUSED);
    ck_ok(optim_hyper_set_bool(&h, "torch_adam", true));
    ck_ok(optim_hyper_set_bool(&h, "adam_w_mode", false));
    ck_ok(optim_hyper_finish(&h));
    ck_assert_double_eq(h.weight_decay, 0);
    ck_assert(!h.adam_w_mode);
    h = begin("Adam", OPTIM_FUSED);
    ck_ok(optim_hyper_set_bool(&h, "torch_adam", true));
    ck_ok(
        optim_hyper_set_bool(&h, "bias_correction", true)); /* torch's class has no such argument */
    ck_fails(optim_hyper_finish(&h), CZ_INVALID);
}
END_TEST

START_TEST(adamw_stays_adamw)
{
    struct optim_hyper h = begin("adamw", OPTIM_FUSED);
    ck_ok(optim_hyper_set_bool(&h, "adam_w_mode", false));
    ck_ok(optim_hyper_finish(&h));
    ck_assert(h.adam_w_mode);
}
END_TEST

START_TEST(unknown_and_refused_parameters)
{
    struct optim_hyper h = begin("AdamW", OPTIM_FUSED);
    ck_fails(optim_hyper_set_number(&h, "weight_deacy", 0.1), CZ_INVALID);
    ck_says("AdamW has no such parameter; did you mean \"weight_decay\"?");
    ck_fails(optim_hyper_set_number(&h, "momentum_of_inertia_in_kg_m2", 0.1), CZ_INVALID);
    ck_assert_ptr_null(strstr(cz_last_error(), "did you mean"));
    ck_fails(optim_hyper_set_number(&h, "max_grad_norm", 0), CZ_INVALID);
    ck_says("gradient_clipping");
    ck_fails(optim_hyper_set_number(&h, "betas", 0.9), CZ_INVALID);
    ck_fails(optim_hyper_set_bool(&h, "lr", true), CZ_INVALID);
    ck_fails(optim_hyper_set_number(&h, "lr", NAN), CZ_INVALID);
    ck_fails(optim_hyper_set_number(&h, "bias_correction", 1), CZ_INVALID);
    ck_ok(optim_hyper_set_bool(&h, "amsgrad", true));
    ck_fails(optim_hyper_finish(&h), CZ_UNSUPPORTED);
    h = begin("Adagrad", OPTIM_OFFLOAD);
    ck_ok(
        optim_hyper_set_number(&h, "lr_decay", 0.1)); /* torch's class has it, CPUAdagrad has not */
    ck_fails(optim_hyper_finish(&h), CZ_INVALID);
    h = begin("Adagrad", OPTIM_FUSED);
    ck_ok(optim_hyper_set_bool(&h, "maximize", true));
    ck_fails(optim_hyper_finish(&h), CZ_UNSUPPORTED);
}
END_TEST

START_TEST(ranges_are_checked)
{
    const struct {
        const char *type, *name;
        double value;
    } bad[] = {{"Adam", "lr", -1},           {"Adam", "lr", 1e308},
               {"Adam", "eps", -1e-8},       {"Lion", "weight_decay", -1},
               {"SGD", "momentum", -0.1},    {"Adagrad", "lr_decay", -1},
               {"Lamb", "max_coeff", 0.001}, {"Adagrad", "initial_accumulator_value", -1}};
    for (size_t i = 0; i < CZ_ARRAY_LEN(bad); i++) {
        struct optim_hyper h = begin(bad[i].type, OPTIM_FUSED);
        ck_ok(optim_hyper_set_number(&h, bad[i].name, bad[i].value));
        ck_fails(optim_hyper_finish(&h), CZ_INVALID);
        ck_says(bad[i].name);
    }
    struct optim_hyper h = begin("Adam", OPTIM_FUSED);
    ck_ok(optim_hyper_set_pair(&h, "betas", 0.9, 1));
    ck_fails(optim_hyper_finish(&h), CZ_INVALID);
    h = begin("SGD", OPTIM_FUSED);
    ck_ok(optim_hyper_set_bool(&h, "nesterov", true));
    ck_fails(optim_hyper_finish(&h), CZ_INVALID);
}
END_TEST

START_TEST(states_are_named_as_torch_names_them)
{
    struct optim_hyper h = defaults("Adam", OPTIM_FUSED);
    ck_assert_uint_eq(optim_n_states(&h), 2);
    ck_assert_str_eq(h.cls->state_names[0], "exp_avg");
    ck_assert_str_eq(h.cls->state_names[1], "exp_avg_sq");
    h = begin("Adagrad", OPTIM_FUSED);
    ck_ok(optim_hyper_set_number(&h, "initial_accumulator_value", 0.25));
    ck_ok(optim_hyper_finish(&h));
    ck_assert_str_eq(h.cls->state_names[0], "sum");
    ck_assert_double_eq(optim_state_init(&h, 0), 0.25);
    h = defaults("SGD", OPTIM_FUSED);
    ck_assert_uint_eq(optim_n_states(&h), 0);
    ck_ok(optim_hyper_set_number(&h, "momentum", 0.9));
    ck_ok(optim_hyper_finish(&h));
    ck_assert_uint_eq(optim_n_states(&h), 1);
    ck_assert_str_eq(h.cls->state_names[0], "momentum_buffer");
}
END_TEST

START_TEST(groups_override_and_match_in_order)
{
    const struct optim_group_rule rules[] = {
        {"\\.bias$|ln_", NAN, 0, NAN, NAN},
        {"^transformer\\.h\\.0\\.", 5e-4, NAN, 0.8, NAN},
    };
    struct optim_hyper h = begin("AdamW", OPTIM_FUSED);
    ck_ok(optim_hyper_set_number(&h, "weight_decay", 0.1));
    ck_ok(optim_hyper_finish(&h));
    struct optim_group group;
    ck_ok(optim_group_init(&group, &h, &rules[1]));
    ck_assert_double_eq(group.lr, 5e-4);
    ck_assert_double_eq(group.betas[0], 0.8);
    ck_assert_double_eq(group.hyper.weight_decay, 0.1);
    const struct optim_group_rule bad_beta = {"bad", NAN, NAN, 2, NAN};
    ck_fails(optim_group_init(&group, &h, &bad_beta), CZ_INVALID);
    ck_says("parameter group \"bad\": betas");
    /* A checkpoint's values follow the same rules. */
    static const double lrs[] = {-1, NAN, INFINITY, 1e308};
    static const double betas[][2] = {{2, 0.9}, {0.9, -1}, {1, 0.9}, {NAN, 0.9}};
    ck_ok(optim_group_init(&group, &h, NULL));
    ck_ok(optim_group_check(&group));
    for (size_t i = 0; i < CZ_ARRAY_LEN(lrs); i++) {
        struct optim_group other = group;
        other.lr = lrs[i];
        ck_fails(optim_group_check(&other), CZ_INVALID);
        ck_says("lr");
        other = group;
        memcpy(other.betas, betas[i], sizeof other.betas);
        ck_fails(optim_group_check(&other), CZ_INVALID);
        ck_says("betas");
    }
}
END_TEST

START_TEST(clip_factor_vector)
{
    ck_assert_double_eq(optim_clip_factor(5, 1, 1), 5 + 1e-6);
    ck_assert_double_eq(optim_clip_factor(5 * 1024, 1024, 1), 5 + 1e-6);
    ck_assert_double_eq(optim_clip_factor(0.5, 1, 1), 1);
    ck_assert_double_eq(optim_clip_factor(5, 1, 0), 1);
    ck_assert_double_eq(optim_clip_factor(5, 1, -1), 1);
}
END_TEST

START_TEST(step_scalars_follow_the_formulas)
{
    struct optim_hyper h = defaults("Adam", OPTIM_FUSED);
    struct optim_group group;
    struct step_scalars s, again;
    ck_ok(optim_group_init(&group, &h, NULL));
    optim_step_scalars(&group, 1, 1024, 2, &s);
    ck_assert_float_eq(s.grad_scale, 1.0f / 2048);
    ck_assert_float_eq(s.inv_bias1, (float)(1 / (1 - (double)0.9f)));
    ck_assert_float_eq(s.inv_sqrt_bias2, (float)(1 / sqrt(1 - (double)0.999f)));
    ck_assert_uint_eq(s.is_first, 1);
    optim_step_scalars(&group, 3, 1, 1, &s);
    ck_assert_float_eq_tol(s.inv_bias1, 1 / (1 - 0.9f * 0.9f * 0.9f), 1e-5f);
    ck_assert_uint_eq(s.is_first, 0);
    optim_step_scalars(&group, 3, 1, 1, &again);
    ck_assert_mem_eq(&s, &again, sizeof s);
    ck_ok(optim_hyper_set_bool(&h, "bias_correction", false));
    ck_ok(optim_hyper_finish(&h));
    ck_ok(optim_group_init(&group, &h, NULL));
    optim_step_scalars(&group, 1, 1, 1, &s);
    ck_assert_float_eq(s.inv_bias1, 1);
    ck_assert_float_eq(s.inv_sqrt_bias2, 1);

    h = begin("Adagrad", OPTIM_FUSED);
    ck_ok(optim_hyper_set_number(&h, "lr_decay", 0.5));
    ck_ok(optim_hyper_finish(&h));
    ck_ok(optim_group_init(&group, &h, NULL));
    optim_step_scalars(&group, 5, 1, 1, &s);
    ck_assert_float_eq(s.step_size, (float)(1e-2 / 3));

    h = defaults("Lamb", OPTIM_FUSED);
    ck_ok(optim_group_init(&group, &h, NULL));
    optim_step_scalars(&group, 2, 1, 1, &s);
    double b1 = (double)0.9f, b2 = (double)0.999f;
    ck_assert_float_eq(s.step_size, (float)(1e-3 * sqrt(1 - b2 * b2) / (1 - b1 * b1)));
}
END_TEST

TEST_MAIN("optim/optim", names_match_as_in_deepspeed, defaults_by_type_and_dialect,
          torch_adam_changes_names_and_defaults, adamw_stays_adamw, unknown_and_refused_parameters,
          ranges_are_checked, states_are_named_as_torch_names_them,
          groups_override_and_match_in_order, clip_factor_vector, step_scalars_follow_the_formulas)
