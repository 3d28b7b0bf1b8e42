/* Claim: against PyTorch's recorded logits, loss and gradients our fp32 errors stay below 2e-5;
 * a wrong value is found and named; dumps hold our values; broken oracles are refused. */
#include "engine/infer/verify.h"
#include "formats/file_io.h"
#include "formats/safetensors/safetensors.h"
#include "tests/support/check_main.h"

#include <math.h>
#include <string.h>

#define FOLDER "models/gpt2-variant-b"

struct seen {
    int n, n_zero, n_zero_keys;
    double worst, worst_logits;
    char worst_name[128];
    int64_t worst_idx;
};

static void see(void *user, const struct verify_row *row)
{
    struct seen *s = user;
    s->n++;
    s->n_zero += row->is_zero;
    s->n_zero_keys += row->is_zero && (strstr(row->name, "key.bias") || strstr(row->name, "k_lin"));
    if (strcmp(row->name, "out.logits") == 0) s->worst_logits = row->error;
    if (row->error <= s->worst) return; /* NaN gets through */
    s->worst = row->error;
    s->worst_idx = row->worst_idx;
    snprintf(s->worst_name, sizeof s->worst_name, "%s", row->name);
}

static void check_agrees(const char *dir, int n)
{
    struct seen seen = {0};
    ck_ok(verify_run(dir, NULL, see, &seen));
    ck_assert_int_eq(seen.n, n);
    ck_assert_msg(seen.worst <= 2e-5, "%s: %s is off by %g", dir, seen.worst_name, seen.worst);
    ck_assert_msg(seen.worst > 0, "%s: nothing was compared", dir);
}

START_TEST(decoders_agree_with_pytorch)
{
    check_agrees(test_fixture("models/gpt2"), 30);
    check_agrees(test_fixture("models/gpt2-variant-a"), 31);
    check_agrees(test_fixture("models/gpt2-variant-b"), 30);
    check_agrees(test_fixture("models/llama-variant"), 37);
    check_agrees(test_fixture("models/qwen2-variant"), 28);
}
END_TEST

START_TEST(kin_of_llama_agree_with_pytorch)
{
    check_agrees(test_fixture("models/qwen3-variant-a"), 27);
    check_agrees(test_fixture("models/qwen3-variant-b"), 34);
    check_agrees(test_fixture("models/qwen3-moe-variant-a"), 53);
    check_agrees(test_fixture("models/qwen3-moe-variant-b"), 285);
    check_agrees(test_fixture("models/olmo2-variant-a"), 27);
    check_agrees(test_fixture("models/olmo2-variant-b"), 34);
    check_agrees(test_fixture("models/granite-variant-a"), 23);
    check_agrees(test_fixture("models/granite-variant-b"), 36);
    check_agrees(test_fixture("models/smollm3-variant-a"), 31);
    check_agrees(test_fixture("models/smollm3-variant-b"), 29);
    check_agrees(test_fixture("models/phi3-variant-a"), 17);
    check_agrees(test_fixture("models/phi3-variant-b"), 16);
    check_agrees(test_fixture("models/mistral-variant-a"), 23);
    check_agrees(test_fixture("models/mistral-variant-b"), 22);
    check_agrees(test_fixture("models/ministral-variant-a"), 23);
    check_agrees(test_fixture("models/ministral-variant-b"), 23);
    check_agrees(test_fixture("models/gemma2-variant-a"), 26);
    check_agrees(test_fixture("models/gemma2-variant-b"), 35);
    check_agrees(test_fixture("models/gemma3-variant-a"), 30);
    check_agrees(test_fixture("models/gemma3-variant-b"), 30);
}
END_TEST

START_TEST(encoders_agree_with_pytorch)
{
    check_agrees(test_fixture("models/bert-variant-a"), 43);
    check_agrees(test_fixture("models/bert-variant-b"), 44);
    check_agrees(test_fixture("models/megatron-bert-variant-a"), 43);
    check_agrees(test_fixture("models/megatron-bert-variant-b"), 28);
    check_agrees(test_fixture("models/distilbert-variant-a"), 26);
    check_agrees(test_fixture("models/roberta-variant-a"), 29);
    check_agrees(test_fixture("models/xlm-roberta-variant-a"), 43);
    check_agrees(test_fixture("models/electra-variant-a"), 45);
    check_agrees(test_fixture("models/electra-variant-b"), 30);
    check_agrees(test_fixture("models/electra-variant-c"), 29);
    check_agrees(test_fixture("models/modernbert-variant-a"), 26);
    check_agrees(test_fixture("models/modernbert-variant-b"), 35);
    check_agrees(test_fixture("models/mpnet-variant-a"), 45);
    check_agrees(test_fixture("models/mpnet-variant-b"), 27);
    check_agrees(test_fixture("models/deberta-variant-a"), 44);
    check_agrees(test_fixture("models/deberta-variant-b"), 34);
    check_agrees(test_fixture("models/deberta-variant-c"), 29);
    check_agrees(test_fixture("models/bert-old"), 7); /* its hidden states, too */
    check_agrees(test_fixture("models/bert-cls"), 43);
    check_agrees(test_fixture("models/distilbert-cls"), 42);
}
END_TEST

/* Rarer settings, and adapters of PEFT's all-linear with maps outside the blocks; those of DeBERTa
 * and ModernBERT with DoRA. */
START_TEST(twins_agree_with_pytorch)
{
    check_agrees(test_fixture("twins/smollm3-long-list"), 22);
    check_agrees(test_fixture("twins/smollm3-layer-types"), 22);
    check_agrees(test_fixture("twins/gemma3-scores"), 30);
    check_agrees(test_fixture("twins/deberta-tokens-legacy"), 29);
    check_agrees(test_fixture("twins/deberta-texts-legacy"), 31);
    check_agrees(test_fixture("twins/lora-bert"), 18);
    check_agrees(test_fixture("twins/lora-bert-mlm"), 23);
    check_agrees(test_fixture("twins/lora-deberta"), 20);
    check_agrees(test_fixture("twins/lora-electra"), 27);
    check_agrees(test_fixture("twins/lora-modernbert"), 14);
}
END_TEST

/* ---- edited oracles ---------------------------------------------------------------------------
 */

struct edit {
    const char *name;   /* tensor to change */
    size_t idx;         /* element */
    double add;         /* what to add to it */
    const char *rename; /* its new name, "" to drop it */
    int64_t rows;       /* its new first dimension, 0: as is */
};

/* A folder with FOLDER's model and its oracle after one edit. */
static void write_folder(const char *dir, const struct edit *e)
{
    char command[512];
    snprintf(command, sizeof command, "cp %s/config.json %s/model.safetensors %s",
             test_fixture(FOLDER), test_fixture(FOLDER), dir);
    ck_assert_int_eq(system(command), 0);
    char *from = file_join(test_fixture(FOLDER), "oracle.safetensors"),
         *to = file_join(dir, "oracle.safetensors");
    struct safetensors *st;
    ck_ok(safetensors_open(from, &st));
    struct safetensors_decl decls[64];
    const struct safetensors_info *source[64];
    int64_t shapes[64][3];
    size_t n = 0;
    for (size_t i = 0; i < safetensors_count(st); i++) {
        const struct safetensors_info *t = safetensors_at(st, i);
        const bool edited = e->name && strcmp(t->name, e->name) == 0;
        if (edited && e->rename && !e->rename[0]) continue;
        memcpy(shapes[n], t->shape, t->ndim * sizeof(int64_t));
        if (edited && e->rows) shapes[n][0] = e->rows;
        source[n] = t;
        decls[n] = (struct safetensors_decl){edited && e->rename ? e->rename : t->name, t->dtype,
                                             shapes[n], t->ndim};
        n++;
    }
    struct safetensors_writer *w;
    ck_ok(safetensors_create(to, decls, n, NULL, 0, &w));
    unsigned char *values = calloc(1, 1 << 20);
    for (size_t i = 0; i < n; i++) {
        size_t numel = 1;
        for (size_t d = 0; d < decls[i].ndim; d++) numel *= (size_t)decls[i].shape[d];
        size_t n_read = numel < source[i]->numel ? numel : (size_t)source[i]->numel;
        ck_ok(safetensors_read(st, source[i], 0, n_read, values));
        if (e->name && strcmp(source[i]->name, e->name) == 0 && e->add != 0) {
            if (decls[i].dtype == SAFETENSORS_F32)
                ((float *)values)[e->idx] += (float)e->add;
            else
                ((int64_t *)values)[e->idx] += (int64_t)e->add;
        }
        ck_ok(safetensors_write(w, i, 0, numel, values));
    }
    ck_ok(safetensors_finish(w));
    safetensors_writer_destroy(w);
    safetensors_close(st);
    free(values);
    free(from);
    free(to);
}

START_TEST(a_wrong_value_is_found)
{
    const char *dir = test_tmp_make();
    const struct edit wrong = {
        .name = "grad.transformer.h.1.mlp.c_fc.weight", .idx = 77, .add = 0.5};
    write_folder(dir, &wrong);
    struct seen seen = {0};
    ck_ok(verify_run(dir, NULL, see, &seen));
    ck_assert_str_eq(seen.worst_name, wrong.name);
    ck_assert_int_eq(seen.worst_idx, 77);
    ck_assert_double_ge(seen.worst, 1e-2);

    const struct edit nan_value = {.name = "out.loss", .add = NAN};
    write_folder(dir, &nan_value);
    memset(&seen, 0, sizeof seen);
    ck_ok(verify_run(dir, NULL, see, &seen));
    ck_assert(isnan(seen.worst));
    ck_assert_str_eq(seen.worst_name, "out.loss");
    test_tmp_remove(dir);
}
END_TEST

/* A key's bias does not change BERT's attention: its gradient is noise here and in PyTorch. */
START_TEST(a_gradient_that_is_zero_is_no_difference)
{
    static const char *const folders[] = {"models/bert-variant-a", "models/distilbert-variant-a"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(folders); i++) {
        struct seen seen = {0};
        ck_ok(verify_run(test_fixture(folders[i]), NULL, see, &seen));
        ck_assert_int_ge(seen.n_zero, 1);
        ck_assert_int_eq(seen.n_zero, seen.n_zero_keys);
    }
}
END_TEST

START_TEST(labels_are_optional)
{
    const char *dir = test_tmp_make();
    const struct edit unlabelled = {.name = "in.labels", .rename = ""};
    write_folder(dir, &unlabelled);
    struct seen seen = {0};
    ck_fails(verify_run(dir, NULL, see, &seen), CZ_INVALID); /* its gradients need them */
    ck_assert(strstr(cz_last_error(), "needs in.labels") != NULL);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(broken_oracles_are_refused)
{
    static const struct {
        struct edit edit;
        cz_status status;
        const char *says;
    } cases[] = {
        {{.name = "in.input_ids", .rename = ""}, CZ_NOTFOUND, "in.input_ids"},
        {{.name = "in.labels", .rename = "in.pixels"}, CZ_UNSUPPORTED, "in.pixels"},
        {{.name = "in.labels", .rows = 2}, CZ_CORRUPT, "in.labels"},
        {{.name = "in.position_ids", .rows = 2}, CZ_CORRUPT, "in.position_ids"},
        {{.name = "in.input_ids", .idx = 4, .add = 1000}, CZ_INVALID, "row 0 at position 4"},
        {{.name = "in.labels", .idx = 5, .add = 1000}, CZ_INVALID, "row 0 at position 4"},
        {{.name = "in.position_ids", .idx = 10, .add = -50}, CZ_INVALID, "row 1 at position 1"},
        {{.name = "out.loss", .rename = "out.hidden"}, CZ_UNSUPPORTED, "out.hidden"},
        {{.name = "out.loss", .rename = "out.last_hidden_state"}, CZ_UNSUPPORTED, "encoders only"},
        {{.name = "in.position_ids", .rename = "in.inputs_embeds"},
         CZ_UNSUPPORTED,
         "inputs_embeds"},
        {{.name = "in.position_ids", .rename = "in.past_key_values.0.key"},
         CZ_UNSUPPORTED,
         "past_key_values"},
        {{.name = "out.logits", .rows = 2}, CZ_CORRUPT, "out.logits"},
        {{.name = "grad.transformer.ln_f.bias", .rename = "grad.transformer.ln_g.bias"},
         CZ_NOTFOUND,
         "transformer.ln_g.bias"},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        const char *dir = test_tmp_make();
        struct seen seen = {0};
        write_folder(dir, &cases[i].edit);
        ck_fails(verify_run(dir, NULL, see, &seen), cases[i].status);
        ck_assert_msg(strstr(cz_last_error(), cases[i].says) != NULL, "case %zu: %s", i,
                      cz_last_error());
        test_tmp_remove(dir);
    }
    struct seen seen = {0};
    ck_fails(verify_run("/nonexistent", NULL, see, &seen), CZ_NOTFOUND);
    const char *dir = test_tmp_make();
    char command[512];
    snprintf(command, sizeof command, "cp %s/config.json %s/model.safetensors %s",
             test_fixture(FOLDER), test_fixture(FOLDER), dir);
    ck_assert_int_eq(system(command), 0);
    ck_fails(verify_run(dir, NULL, see, &seen), CZ_NOTFOUND);
    ck_assert(strstr(cz_last_error(), "oracle.safetensors") != NULL);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(dump_holds_our_values)
{
    const char *dir = test_tmp_make();
    char *path = file_join(dir, "dump.safetensors");
    char *oracle = file_join(test_fixture(FOLDER), "oracle.safetensors");
    struct seen seen = {0};
    ck_ok(verify_run(test_fixture(FOLDER), path, see, &seen));
    struct safetensors *ours, *theirs;
    ck_ok(safetensors_open(path, &ours));
    ck_ok(safetensors_open(oracle, &theirs));
    ck_assert_uint_eq(safetensors_count(ours), 30);
    float *a = malloc(1 << 16), *b = malloc(1 << 16);
    for (size_t i = 0; i < safetensors_count(ours); i++) {
        const struct safetensors_info *t = safetensors_at(ours, i);
        const struct safetensors_info *want = safetensors_find(theirs, t->name);
        ck_assert_msg(want != NULL, "%s", t->name);
        ck_assert_int_eq(t->dtype, SAFETENSORS_F32);
        ck_assert_uint_eq(t->ndim, want->ndim);
        ck_assert_mem_eq(t->shape, want->shape, t->ndim * sizeof *t->shape);
        ck_ok(safetensors_read_f32(ours, t, 0, (size_t)t->numel, a));
        ck_ok(safetensors_read_f32(theirs, want, 0, (size_t)t->numel, b));
        float largest = 1e-6f;
        for (size_t k = 0; k < t->numel; k++) largest = fmaxf(largest, fabsf(b[k]));
        for (size_t k = 0; k < t->numel; k++)
            ck_assert_float_le(fabsf(a[k] - b[k]), 2e-5f * largest);
    }
    free(a);
    free(b);
    safetensors_close(ours);
    safetensors_close(theirs);
    free(path);
    free(oracle);
    ck_fails(verify_run(test_fixture(FOLDER), "/nonexistent/dump", see, &seen), CZ_IO);
    test_tmp_remove(dir);
}
END_TEST

TEST_MAIN("engine/verify", decoders_agree_with_pytorch, kin_of_llama_agree_with_pytorch,
          encoders_agree_with_pytorch, twins_agree_with_pytorch, a_wrong_value_is_found,
          a_gradient_that_is_zero_is_no_difference, labels_are_optional, broken_oracles_are_refused,
          dump_holds_our_values)
