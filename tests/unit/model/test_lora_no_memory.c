/* Claims: when any one allocation fails while an adapter is put on a model, read, merged or
 * written, the call fails with CZ_NOMEM, leaks nothing and leaves a model that can be destroyed;
 * when any one write fails, writing an adapter fails with CZ_IO. */
#include "model/model.h"
#include "tests/support/faults.h"
#include "tests/support/no_memory.h"
#include "tests/support/small_models.h"

#include <string.h>

#ifndef NO_MEMORY_WORKS

int main(void)
{
    printf("skipped: the sanitizer has an allocator of its own\n");
    return TEST_SKIPPED;
}

#else

static char base[64], adapter[64];
static struct cz_lora_options options = {.size = sizeof options, .rank = 2, .dora = true};

static cz_status fetch(void *user, size_t param_idx, size_t off, size_t numel, float *dst)
{
    (void)user;
    for (size_t i = 0; i < numel; i++) dst[i] = (float)((param_idx + off + i) % 97 + 1) / 97.0f;
    return CZ_OK;
}

static cz_status open_base(struct cz_model **m)
{
    *m = cz_model_open(base);
    return *m ? CZ_OK : cz_last_status();
}

/* dir NULL: a new adapter. */
static cz_status add(const char *dir)
{
    struct cz_model *m;
    TRY(open_base(&m));
    cz_status st = dir ? cz_model_add_adapter(m, dir, true) : cz_model_add_lora(m, &options);
    cz_model_destroy(m);
    return st;
}

/* Where the base cannot be hashed, an adapter is written without the hash. */
static cz_status add_and_write(const char *dir)
{
    struct cz_model *m;
    TRY(open_base(&m));
    cz_status st = cz_model_add_lora(m, &options);
    if (st == CZ_OK) st = model_export_adapter(m, dir, DTYPE_BF16, fetch, NULL);
    cz_model_destroy(m);
    return st;
}

static cz_status add_and_merge(const char *dir)
{
    struct cz_model *m;
    TRY(open_base(&m));
    cz_status st = cz_model_add_lora(m, &options);
    if (st == CZ_OK) st = model_export_merged(m, dir, DTYPE_BF16, fetch, NULL);
    cz_model_destroy(m);
    return st;
}

static void setup(const char *config, struct cz_lora_options o)
{
    char path[128];
    no_memory_begin();
    options = o;
    options.size = sizeof options;
    snprintf(base, sizeof base, "%s", test_tmp_make_fast());
    snprintf(adapter, sizeof adapter, "%s", test_tmp_make_fast());
    snprintf(path, sizeof path, "%s/config.json", base);
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    fputs(config, f);
    ck_assert_int_eq(fclose(f), 0);
}

static void teardown(void)
{
    test_tmp_remove(base);
    test_tmp_remove(adapter);
}

static void check(const char *name, const char *config, struct cz_lora_options o)
{
    setup(config, o);
    no_memory_must(name, add, NULL, 400);
    no_memory_each(name, add_and_write, adapter, 400);
    no_memory_must(name, add, adapter, 400);
    no_memory_must(name, add_and_merge, adapter, 400);
    teardown();
}

START_TEST(adapters_of_every_kind)
{
    check("names", small_llama, (struct cz_lora_options){.rank = 2, .targets = "q_proj,v_proj"});
    check("an expression, DoRA", small_gpt2,
          (struct cz_lora_options){.rank = 2, .targets = ".*attn.c_(attn|proj)", .dora = true});
    check("blocks, and a head", small_classifier,
          (struct cz_lora_options){
              .rank = 2, .layers = "0-1", .modules_to_save = "pooler", .rslora = true});
}
END_TEST

START_TEST(each_write_may_fail)
{
    setup(small_llama, (struct cz_lora_options){.rank = 2, .targets = "q_proj"});
    struct cz_model *m;
    ck_ok(open_base(&m));
    ck_ok(cz_model_add_lora(m, &options));
    for (enum fault_call call = FAULT_PWRITE; call <= FAULT_RENAME; call++) {
        faults_clear();
        ck_ok(model_export_adapter(m, adapter, DTYPE_F32, fetch, NULL));
        const long n = faults_count(call);
        ck_assert_int_gt(n, 0);
        for (long i = 0; i < n; i++) {
            faults_clear();
            faults_plan(call, i, EIO);
            const cz_status st = model_export_adapter(m, adapter, DTYPE_F32, fetch, NULL);
            ck_assert_msg(st == CZ_IO, "call %d, %ld of %ld: %d", (int)call, i, n, (int)st);
        }
    }
    faults_clear();
    cz_model_destroy(m);
    m = NULL;
    ck_ok(open_base(&m));
    ck_fails(model_export_adapter(m, adapter, DTYPE_F32, fetch, NULL), CZ_INVALID);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "has no adapter to export"));
    cz_model_destroy(m);
    teardown();
}
END_TEST

TEST_MAIN("model/lora_no_memory", adapters_of_every_kind, each_write_may_fail)

#endif
