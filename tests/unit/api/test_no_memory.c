/* Claims: when any one allocation of a call fails, the call returns CZ_NOMEM (or succeeds without
 * it), touches nothing that it released, and leaks nothing; the next call works. Every allocation
 * of each call fails once, those of the libraries that czero calls included. */
#include "formats/tfevents.h"
#include "tests/support/no_memory.h"

#include <czero/czero.h>

#include <string.h>

#ifndef NO_MEMORY_WORKS

int main(void)
{
    printf("skipped: the sanitizer has an allocator of its own\n");
    return TEST_SKIPPED;
}

#else

/* ---- calls -------------------------------------------------------------------------------------
 */

static const char *out_dir;

static cz_status open_tokenizer(const char *path)
{
    struct cz_tokenizer *t;
    cz_status st = cz_tokenizer_open(path, &t);
    if (st == CZ_OK) cz_tokenizer_close(t);
    return st;
}

static cz_status encode(const char *path)
{
    static const char text[] = "Words, words; and 12 numbers of a w\xc3\xa4rter's Text.";
    struct cz_tokenizer *t;
    cz_status st = cz_tokenizer_open(strstr(path, "bytes") ? "bytes" : path, &t);
    if (st != CZ_OK) return st;
    struct cz_tokenizer_decoder *d = NULL;
    int32_t *ids = NULL;
    size_t n;
    st = cz_tokenizer_encode(t, text, sizeof text - 1, &ids, &n);
    if (st == CZ_OK) st = cz_tokenizer_decoder_create(t, &d);
    cz_tokenizer_decoder_destroy(d);
    free(ids);
    cz_tokenizer_close(t);
    return st;
}

static cz_status write_events(const char *dir)
{
    struct out_folder folder;
    struct tfevents *w = NULL;
    TRY(out_folder_open(dir, &folder));
    cz_status st = tfevents_open(&folder, &w);
    out_folder_close(&folder);
    if (st != CZ_OK) return st;
    for (int i = 0; i < 40 && st == CZ_OK; i++) st = tfevents_scalar(w, "loss", 1.0 / i, i);
    cz_status closed = tfevents_close(w);
    return st != CZ_OK ? st : closed;
}

static cz_status open_texts(const char *path)
{
    struct cz_texts_options options = {.size = sizeof options, .paths = &path, .n_paths = 1};
    struct cz_texts *t;
    cz_status st = cz_texts_open(&options, &t);
    if (st == CZ_OK) cz_texts_close(t);
    return st;
}

static cz_status open_tokens(const char *path)
{
    struct cz_data_options options = {.size = sizeof options,
                                      .paths = &path,
                                      .n_paths = 1,
                                      .seq_len = 32,
                                      .micro_batch = 2,
                                      .shuffle = true};
    struct cz_data_loader *l;
    cz_status st = cz_data_open(&options, &l);
    if (st == CZ_OK) cz_data_close(l);
    return st;
}

static cz_status open_model(const char *path)
{
    struct cz_model *m = cz_model_from_hf(path);
    if (!m) return cz_last_status();
    cz_model_destroy(m);
    return CZ_OK;
}

static cz_status plan(const char *config)
{
    struct cz_model *m = cz_model_from_preset("gpt2-tiny");
    if (!m) return cz_last_status();
    struct cz_engine_options options = {.size = sizeof options, .config_path = config};
    struct cz_plan *p = NULL;
    char *table = NULL;
    cz_status st = cz_model_set_shape(m, 64);
    if (st == CZ_OK) st = cz_plan_create(&options, NULL, m, &p);
    if (st == CZ_OK) st = cz_plan_table(p, &table);
    free(table);
    cz_plan_destroy(p);
    cz_model_destroy(m);
    return st;
}

static cz_status inspect(const char *path)
{
    struct cz_inspect_options options = {.size = sizeof options, .path = path, .json = true};
    static FILE *nowhere;
    if (!nowhere) nowhere = fopen("/dev/null", "w");
    return cz_inspect(&options, nowhere);
}

/* A sound checkpoint has no damage, whatever memory there is. */
static void no_finding(const struct cz_fsck_finding *finding, void *user)
{
    (void)user;
    ck_abort_msg("%s", finding->sentence);
}

static cz_status fsck(const char *path)
{
    struct cz_fsck_options options = {.size = sizeof options, .dir = path, .finding = no_finding};
    struct cz_fsck_report report = {.size = sizeof report};
    cz_status st = cz_fsck(&options, &report);
    cz_fsck_report_free(&report);
    return st;
}

static cz_status consolidate(const char *path)
{
    struct cz_consolidate_options options = {.size = sizeof options,
                                             .dir = path,
                                             .out_dir = out_dir,
                                             .format = CZ_CONSOLIDATE_SAFETENSORS,
                                             .n_threads = 1};
    return cz_consolidate(&options, NULL);
}

/* One step of a small model, saved and loaded again. The engine owns the model once it is made. */
static cz_status train(const char *kind)
{
    char zero[512], config[1024];
    kind = strrchr(kind, '/') + 1;
    bool is_onebit = strcmp(kind, "onebit") == 0;
    snprintf(zero, sizeof zero, "\"stage\": %s", is_onebit ? "1" : kind);
    if (strcmp(kind, "nvme") == 0)
        snprintf(zero, sizeof zero,
                 "\"stage\": 3, \"stage3_param_persistence_threshold\": 0, "
                 "\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}, "
                 "\"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}",
                 out_dir, out_dir);
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": 1, \"zero_optimization\": {%s}, "
             "\"optimizer\": {\"type\": \"%s\"}, \"gradient_clipping\": %s}",
             zero, is_onebit ? "OneBitLamb" : "AdamW", is_onebit ? "0.0" : "1.0");
    static const int32_t tokens[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    struct cz_batch batch = {.size = sizeof batch, .ids = tokens, .labels = tokens, .B = 1, .T = 8};
    float loss;
    struct cz_model *m = cz_model_from_hf(test_fixture("models/gpt2-variant-a"));
    if (!m) return cz_last_status();
    struct cz_engine_options options = {.size = sizeof options, .config_json = config};
    struct cz_engine *e = NULL;
    cz_status st = cz_model_set_shape(m, 8);
    if (st == CZ_OK && !(e = engine_initialize_ex(&options, m))) st = cz_last_status();
    if (!e) cz_model_destroy(m);
    if (st == CZ_OK) st = engine_forward(e, &batch, &loss);
    if (st == CZ_OK) st = engine_backward(e);
    if (st == CZ_OK) st = engine_step(e);
    if (st == CZ_OK) st = engine_save_checkpoint(e, out_dir, "tag");
    if (st == CZ_OK) st = engine_load_checkpoint(e, out_dir, "tag");
    if (st == CZ_OK) st = engine_export_hf(e, out_dir, CZ_DTYPE_F32);
    engine_destroy(e);
    return st;
}

static const struct call {
    const char *name;
    cz_status (*run)(const char *path);
    const char *fixture;
} calls[] = {
    {"tokenizer.json", open_tokenizer, "tokenizers/gpt2"},
    {"vocab.txt", open_tokenizer, "tokenizers/wordpiece"},
    {"encode with BPE", encode, "tokenizers/gpt2"},
    {"encode with WordPiece", encode, "tokenizers/wordpiece"},
    {"encode bytes", encode, "tokenizers/bytes"},
    {"TensorBoard's files", write_events, "/events"},
    {"labelled texts", open_texts, "text/weibo6/train.json"},
    {"tokens of a text", open_tokens, "text/fortunes-64k.txt"},
    {"GPT-2's folder", open_model, "models/gpt2-tiny"},
    {"BERT's folder", open_model, "models/bert-old"},
    {"a config and its plan", plan, CZ_SOURCE_DIR "/configs/offload.json"},
    {"inspect a checkpoint", inspect, "checkpoints/wrappers/s3-fp16"},
    {"inspect weights", inspect, "models/gpt2-tiny"},
    {"fsck", fsck, "checkpoints/wrappers/s0-fp32"},
    {"consolidate stage 3", consolidate, "checkpoints/wrappers/s3-fp32-subgroups"},
    {"train with stage 1", train, "1"},
    {"train with stage 3", train, "3"},
    {"train with NVMe", train, "nvme"},
    {"train with a 1-bit optimizer", train, "onebit"},
    {"consolidate stage 2", consolidate, "checkpoints/wrappers/s2-bf16-frozen"},
};
enum { N_CALLS = sizeof calls / sizeof *calls };

START_TEST(every_allocation_fails_once)
{
    const struct call *call = &calls[_i];
    char path[1024];
    bool is_path = call->fixture[0] == '/';
    snprintf(path, sizeof path, "%s", is_path ? call->fixture : test_fixture(call->fixture));
    if (call->run == write_events) snprintf(path, sizeof path, "%s/events", out_dir);
    no_memory_each(call->name, call->run, path, call->run == train ? 1 : 700);
}
END_TEST

int main(void)
{
    out_dir = test_tmp_make_fast();
    no_memory_begin();
    setenv("OMP_NUM_THREADS", "1", 1); /* threads that wait for each other take most of the time */
    Suite *suite = suite_create("api/no_memory");
    TCase *tcase = tcase_create("all");
    tcase_set_timeout(tcase, 120); /* some calls are made 1,500 times */
    tcase_add_loop_test(tcase, every_allocation_fails_once, 0, N_CALLS);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_FORK);
    srunner_run_all(runner, CK_NORMAL);
    int n_failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", out_dir);
    return system(command) == 0 && n_failed == 0 ? 0 : 1;
}

#endif
