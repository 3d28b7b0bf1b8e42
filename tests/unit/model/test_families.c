/* Claims: every family of the table has a name for people, a head and presets that can be read; one
 * of them stands in short lists; README and docs list every family, docs/models.md every preset. */
#include "model/families.h"
#include "model/model_impl.h"
#include "tests/support/check_main.h"

#include <stdlib.h>
#include <string.h>

START_TEST(every_family_is_whole)
{
    size_t n;
    const struct model_family *const *families = model_families(&n);
    for (size_t i = 0; i < n; i++) {
        const struct model_family *f = families[i];
        bool has_example = !f->preset_example;
        ck_assert_ptr_eq(model_family_find(f->model_type), f);
        ck_assert(f->title && f->base_architecture && f->build && f->n_heads > 0);
        for (size_t p = 0; f->preset_name && f->preset_name(p); p++) {
            char *text;
            ck_ok(f->preset_config(f->preset_name(p), &text));
            ck_assert_ptr_nonnull(strstr(text, f->model_type));
            free(text);
            has_example |= strcmp(f->preset_name(p), f->preset_example) == 0;
        }
        ck_assert_msg(has_example, "%s has no preset %s", f->title, f->preset_example);
    }
    ck_assert_ptr_null(model_family_find("gpt9"));
}
END_TEST

START_TEST(lists_are_made_of_the_table)
{
    char buf[2048], few[8];
    ck_assert_str_eq(
        model_type_names(buf, sizeof buf),
        "gpt2, llama, qwen2, qwen3, qwen3_moe, olmo2, granite, smollm3, phi3, mistral, "
        "ministral, gemma2, gemma3_text, bert, megatron-bert, distilbert, roberta, xlm-roberta, "
        "electra, modernbert, mpnet, deberta-v2");
    ck_assert_str_eq(
        model_family_titles(buf, sizeof buf),
        "GPT-2, LLaMA, Qwen2, Qwen3, Qwen3-MoE, OLMo 2, Granite, SmolLM3, Phi-3, Mistral, "
        "Ministral, Gemma 2, Gemma 3, BERT, MegatronBERT, DistilBERT, RoBERTa, XLM-RoBERTa, "
        "ELECTRA, ModernBERT, MPNet, DeBERTa-v3");
    ck_assert_str_eq(
        model_preset_examples(buf, sizeof buf),
        "gpt2, llama-160m, qwen2-0.5b, qwen3-0.6b, qwen3-30b-a3b, olmo2-1b, granite3-2b, "
        "smollm3-3b, "
        "phi3-mini, mistral-7b, ministral-8b, "
        "gemma2-2b, gemma3-1b, "
        "bert-base, megatron-bert-1.3b, distilbert-base, roberta-base, xlm-roberta-base, "
        "electra-small, "
        "modernbert-base, mpnet-base, deberta-v3-base, …");
    ck_assert_ptr_nonnull(strstr(model_preset_names(buf, sizeof buf), ", gpt2-medium, "));
    ck_assert_uint_lt(strlen(buf), sizeof buf - 1);
    ck_assert_str_eq(model_family_titles(few, sizeof few), "GPT-2, ");
}
END_TEST

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

START_TEST(docs_list_every_family_and_preset)
{
    static const char *const docs[] = {"README.md", "docs/design.md", "docs/models.md"};
    size_t n;
    const struct model_family *const *families = model_families(&n);
    for (size_t d = 0; d < CZ_ARRAY_LEN(docs); d++) {
        char *text = read_doc(docs[d]);
        for (size_t i = 0; i < n; i++)
            ck_assert_msg(strstr(text, families[i]->title), "%s does not list %s", docs[d],
                          families[i]->title);
        free(text);
    }
    char *text = read_doc("docs/models.md");
    for (size_t i = 0; i < n; i++)
        for (size_t p = 0; families[i]->preset_name && families[i]->preset_name(p); p++) {
            char quoted[64];
            snprintf(quoted, sizeof quoted, "`%s`", families[i]->preset_name(p));
            ck_assert_msg(strstr(text, quoted), "docs/models.md does not list %s", quoted);
        }
    free(text);
}
END_TEST

TEST_MAIN("model/families", every_family_is_whole, lists_are_made_of_the_table,
          docs_list_every_family_and_preset)
