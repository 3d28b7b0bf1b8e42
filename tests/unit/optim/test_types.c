/* Claims: the table of optimizers is complete and everything that lists optimizers agrees with it.
 * Each class names kernels that exist and a form in checkpoints for every dialect; names match as
 * the table says; README and docs that list the optimizers manually list all of them. */
#include "ops/ops.h"
#include "optim/onebit.h"
#include "optim/optim.h"
#include "tests/support/check_main.h"

#include <stdlib.h>
#include <string.h>

START_TEST(every_class_calls_kernels_that_exist)
{
    size_t n;
    struct device *dev;
    struct ops *ops;
    const struct optim_type *types = optim_types(&n);
    ck_ok(device_open("cpu", 0, &dev));
    ck_ok(ops_create(dev, &ops));
    for (size_t i = 0; i < n; i++) {
        if (!types[i].cls) continue;
        ck_assert_msg(types[i].cls->ops && types[i].cls->ops[0], "%s calls nothing", types[i].name);
        for (size_t o = 0; types[i].cls->ops[o]; o++) ck_ok(ops_require(ops, types[i].cls->ops[o]));
    }
    ops_destroy(ops);
    device_close(dev);
}
END_TEST

START_TEST(every_class_has_a_form_in_checkpoints)
{
    size_t n;
    const struct optim_type *types = optim_types(&n);
    for (size_t i = 0; i < n; i++)
        for (int dialect = OPTIM_FUSED; types[i].cls && dialect <= OPTIM_TORCH; dialect++) {
            struct optim_hyper hyper;
            ck_ok(optim_hyper_begin(types[i].name, (enum optim_dialect)dialect, &hyper));
            const struct optim_saved *saved = optim_saved_as(&hyper);
            ck_assert_msg(saved && saved->settings[0], "%s in dialect %d", types[i].name, dialect);
            ck_assert_str_eq(saved->settings[0], "lr");
        }
}
END_TEST

START_TEST(names_match_as_the_table_says)
{
    char buf[256];
    size_t n;
    const struct optim_type *types = optim_types(&n);
    for (size_t i = 0; i < n; i++) {
        char other[32] = "";
        snprintf(other, sizeof other, "%s", types[i].name);
        other[0] = (char)(other[0] ^ 0x20);
        ck_assert_ptr_eq(optim_type_find(types[i].name), &types[i]);
        ck_assert_ptr_eq(optim_type_find(other),
                         types[i].origin == OPTIM_OF_TORCH ? NULL : &types[i]);
        ck_assert_msg(!types[i].cls == !types[i].text, "%s: a line for lists", types[i].name);
        ck_assert_msg(!types[i].same_as || (optim_type_find(types[i].same_as) &&
                                            optim_type_find(types[i].same_as)->cls == types[i].cls),
                      "%s takes another class' parameters", types[i].name);
    }
    ck_assert_str_eq(optim_type_default()->name, "AdamW");
    ck_assert_str_eq(optim_type_names(buf, sizeof buf),
                     "Adam, AdamW, Lamb, Lion, Adagrad, SGD, OneBitAdam, ZeroOneAdam, OneBitLamb");
    struct optim_hyper hyper;
    ck_fails(optim_hyper_begin("Muon", OPTIM_FUSED, &hyper), CZ_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "optimizer.type: Muon is not supported"));
    ck_assert_ptr_nonnull(strstr(cz_last_error(), buf));
    ck_fails(optim_hyper_begin("sgd", OPTIM_FUSED, &hyper), CZ_INVALID);
    ck_assert_str_eq(cz_last_error(), "optimizer.type: \"sgd\" must be written \"SGD\"");
    ck_fails(optim_hyper_begin("Prodigy", OPTIM_FUSED, &hyper), CZ_INVALID);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), buf));
}
END_TEST

START_TEST(a_class_names_the_runs_that_it_refuses)
{
    struct optim_hyper hyper;
    size_t from = 0;
    const struct optim_use use = {.stage = 2, .sums = true};
    ck_ok(optim_hyper_begin("OneBitAdam", OPTIM_FUSED, &hyper));
    ck_assert_str_eq(optim_limit_next(hyper.cls, &use, &from)->key, "zero_optimization.stage");
    ck_assert_str_eq(optim_limit_next(hyper.cls, &use, &from)->key, "gradient_allreduce_op");
    ck_assert_ptr_null(optim_limit_next(hyper.cls, &use, &from));
    ck_ok(optim_hyper_begin("Lion", OPTIM_FUSED, &hyper));
    from = 0;
    ck_assert_ptr_null(optim_limit_next(hyper.cls, &use, &from));
}
END_TEST

START_TEST(what_was_given_belongs_to_one_table)
{
    struct optim_hyper hyper, empty = {0};
    ck_ok(optim_hyper_begin("AdamW", OPTIM_FUSED, &hyper));
    ck_ok(optim_hyper_set_number(&hyper, "lr", 1e-3));
    ck_assert(optim_hyper_given(&hyper, "lr"));
    ck_assert(!optim_hyper_given(&hyper, "betas"));
    ck_assert(!optim_hyper_given(&empty, "lr"));
    const struct optim_class *sgd = optim_type_find("SGD")->cls;
    hyper.cls = sgd; /* another class: what the config gave is still what it gave */
    ck_assert(optim_hyper_given(&hyper, "lr"));
    ck_assert(!optim_hyper_given(&hyper, "momentum"));
}
END_TEST

/* ---- lists that people write ----------------------------------------------------------------- */

static char *read_doc(const char *path)
{
    FILE *f = fopen(path, "r");
    ck_assert_msg(f != NULL, "%s", path);
    char *text = calloc(1, (size_t)1 << 20);
    ck_assert_ptr_nonnull(text);
    ck_assert_uint_gt(fread(text, 1, ((size_t)1 << 20) - 1, f), 0);
    fclose(f);
    return text;
}

static void lists_all(const char *path)
{
    size_t n;
    const struct optim_type *types = optim_types(&n);
    char *text = read_doc(path);
    for (size_t i = 0; i < n; i++)
        ck_assert_msg(!types[i].cls || strstr(text, types[i].name), "%s does not list %s", path,
                      types[i].name);
    free(text);
}

START_TEST(readme_lists_every_optimizer)
{
    lists_all("README.md");
}
END_TEST

/* docs/checkpoint-format.md has a row for every form, with the settings in their order. */
START_TEST(checkpoint_format_lists_every_form)
{
    static const char doc[] = "docs/checkpoint-format.md";
    size_t n;
    const struct optim_type *types = optim_types(&n);
    char *text = read_doc(doc);
    lists_all(doc);
    for (size_t i = 0; i < n; i++)
        for (size_t s = 0; types[i].cls && s < types[i].cls->n_saved; s++) {
            const char *name = types[i].cls->saved[s].name;
            ck_assert_msg(strncmp(name, "torch", 5) == 0 || strcasestr(text, name),
                          "%s does not know %s", doc, name);
            for (size_t k = 0; k < OPTIM_STATES_MAX && types[i].cls->state_names[k]; k++)
                ck_assert_msg(strstr(text, types[i].cls->state_names[k]) != NULL, "%s: state %s",
                              doc, types[i].cls->state_names[k]);
            for (size_t k = 0; types[i].cls->saved[s].settings[k]; k++)
                ck_assert_msg(strstr(text, types[i].cls->saved[s].settings[k]) != NULL,
                              "%s: setting %s", doc, types[i].cls->saved[s].settings[k]);
        }
    free(text);
}
END_TEST

START_TEST(one_bit_lists_its_family)
{
    size_t n;
    const struct optim_type *types = optim_types(&n);
    char *text = read_doc("docs/one_bit.md");
    for (size_t i = 0; i < n; i++)
        if (types[i].cls && optim_stage_of(types[i].cls, OPTIM_EXCHANGE))
            ck_assert_msg(strstr(text, types[i].name) != NULL, "%s", types[i].name);
    free(text);
}
END_TEST

TEST_MAIN("optim/types", every_class_calls_kernels_that_exist,
          every_class_has_a_form_in_checkpoints, names_match_as_the_table_says,
          a_class_names_the_runs_that_it_refuses, what_was_given_belongs_to_one_table,
          readme_lists_every_optimizer, checkpoint_format_lists_every_form,
          one_bit_lists_its_family)
