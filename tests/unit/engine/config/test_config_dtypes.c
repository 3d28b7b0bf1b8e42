/* Claims: masters and optimizer states have the types that DeepSpeed 0.19.8 gives them; what it
 * refuses to keep in 16 bits is refused; a switch that changes nothing says so. */
#include "tests/unit/engine/config/config_support.h"

#define OFFLOAD ", \"offload_optimizer\": {\"device\": \"cpu\"}"
#define BF16    "\"bf16\": {\"enabled\": true, \"bf16_master_weights_and_grads\": true"
#define FP16    "\"fp16\": {\"enabled\": true, \"fp16_master_weights_and_grads\": true}"
#define STATES  ", \"bf16_optimizer_states\": true"

static struct ds_config *make(const char *precision, const char *zero, const char *type,
                              const char *params)
{
    char text[1024];
    snprintf(text, sizeof text,
             "{\"train_batch_size\": 1, %s%s\"zero_optimization\": {\"stage\": 2%s}, "
             "\"zero_allow_untested_optimizer\": true, "
             "\"optimizer\": {\"type\": \"%s\", \"params\": {%s}}}",
             precision, *precision ? ", " : "", zero, type, params);
    return config_of(text, NULL);
}

static const char fp32_off[] = "\"fp32_optimizer_states\": false";
static const char fp32_on[] = "\"fp32_optimizer_states\": true";

START_TEST(types_of_masters_and_states)
{
    const struct {
        const char *precision, *zero, *type, *params;
        enum cz_dtype master, state;
    } cases[] = {
        {"", "", "Adam", "", DTYPE_F32, DTYPE_F32},
        {"", OFFLOAD, "Adam", fp32_off, DTYPE_F32, DTYPE_F32},
        {"\"bf16\": {\"enabled\": true}", OFFLOAD, "Lion", fp32_off, DTYPE_F32, DTYPE_F32},
        {BF16 "}", OFFLOAD, "AdamW", "", DTYPE_BF16, DTYPE_F32},
        {BF16 "}", OFFLOAD, "AdamW", fp32_on, DTYPE_BF16, DTYPE_F32},
        {BF16 "}", OFFLOAD, "AdamW", fp32_off, DTYPE_BF16, DTYPE_BF16},
        {BF16 STATES "}", OFFLOAD, "AdamW", "", DTYPE_BF16, DTYPE_BF16},
        {BF16 STATES "}", OFFLOAD, "AdamW", fp32_on, DTYPE_BF16, DTYPE_BF16},
        {BF16 STATES "}", "", "AdamW", "", DTYPE_BF16, DTYPE_BF16},
        {BF16 STATES "}", "", "AdamW", fp32_on, DTYPE_BF16, DTYPE_BF16},
        {BF16 STATES "}", "", "AdamW", "\"torch_adam\": true", DTYPE_BF16, DTYPE_BF16},
        {BF16 STATES "}", "", "Lion", "", DTYPE_BF16, DTYPE_BF16},
        {BF16 STATES "}", "", "SGD", "\"momentum\": 0.9", DTYPE_BF16, DTYPE_BF16},
        {FP16, OFFLOAD, "Adam", "", DTYPE_F16, DTYPE_F32},
        {FP16, OFFLOAD, "Adam", fp32_off, DTYPE_F16, DTYPE_F16},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        struct ds_config *c =
            make(cases[i].precision, cases[i].zero, cases[i].type, cases[i].params);
        ck_assert_msg(config_check(c) == CZ_OK, "%zu: %s", i, cz_last_error());
        ck_assert_msg(c->master_dtype == cases[i].master && c->state_dtype == cases[i].state,
                      "%zu: masters %s, states %s", i, dtype_name(c->master_dtype),
                      dtype_name(c->state_dtype));
        config_free(c);
    }
}
END_TEST

START_TEST(what_deepspeed_refuses_is_refused)
{
    const struct {
        const char *precision, *zero, *type, *params, *sentence;
        cz_status status;
    } cases[] = {
        {BF16 "}", "", "AdamW", "", "or bf16.bf16_optimizer_states to be true", CZ_INVALID},
        {BF16 "}", OFFLOAD, "Lion", "", "goes with the optimizer Adam or AdamW", CZ_INVALID},
        {BF16 STATES "}", OFFLOAD, "Adagrad", "", "goes with the optimizer Adam", CZ_INVALID},
        {BF16 STATES "}", OFFLOAD, "AdamW", "\"torch_adam\": true", "goes with", CZ_INVALID},
        {FP16, "", "AdamW", "", "needs zero_optimization.offload_optimizer", CZ_INVALID},
        {FP16, OFFLOAD, "SGD", "", "needs zero_optimization.offload_optimizer and", CZ_INVALID},
        {FP16 ", \"bf16\": {\"bf16_master_weights_and_grads\": true}", OFFLOAD, "Adam", "",
         "does not go with fp16.fp16_master_weights_and_grads", CZ_INVALID},
        {"\"bf16\": {\"bf16_master_weights_and_grads\": true}", OFFLOAD, "Adam", "",
         "turn bf16.enabled on", CZ_UNSUPPORTED},
        {"\"fp16\": {\"fp16_master_weights_and_grads\": true}", OFFLOAD, "Adam", "",
         "turn fp16.enabled on", CZ_UNSUPPORTED},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        struct ds_config *c =
            make(cases[i].precision, cases[i].zero, cases[i].type, cases[i].params);
        const cz_status st = config_check(c);
        ck_assert_msg(st == CZ_INVALID || st == CZ_UNSUPPORTED, "%zu was accepted", i);
        if (cases[i].status == CZ_UNSUPPORTED) ck_assert_int_eq(st, CZ_UNSUPPORTED);
        ck_assert_msg(strstr(cz_last_error(), cases[i].sentence), "%zu: %s", i, cz_last_error());
        config_free(c);
    }
}
END_TEST

START_TEST(a_switch_that_changes_nothing_says_so)
{
    struct ds_config *c = make("", OFFLOAD, "Adagrad", fp32_off);
    ck_assert_ptr_nonnull(config_has_note(c, CONFIG_NOTE_NO_EFFECT, "the masters are fp32"));
    config_free(c);
    c = make("", "", "Adam", fp32_off);
    ck_assert_ptr_nonnull(config_has_note(c, CONFIG_NOTE_NO_EFFECT, "offload_optimizer"));
    config_free(c);
    c = make(BF16 STATES "}", OFFLOAD, "Adam", fp32_on);
    ck_assert_ptr_nonnull(config_has_note(c, CONFIG_NOTE_CHOICE, "is overridden by"));
    config_free(c);
    c = make(BF16 "}", OFFLOAD, "Adam", fp32_off);
    ck_assert_ptr_null(config_has_note(c, CONFIG_NOTE_NO_EFFECT, "fp32_optimizer_states"));
    config_free(c);
}
END_TEST

TEST_MAIN("engine/config_dtypes", types_of_masters_and_states, what_deepspeed_refuses_is_refused,
          a_switch_that_changes_nothing_says_so)
