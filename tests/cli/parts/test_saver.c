/* Claims: saves come at their interval and at the end, once per step; a periodic save that fails is
 * a warning, the last one is an error; a folder's path may be as long as the system takes; a
 * checkpoint without a place in the data continues behind the samples that were seen, in epochs of
 * the rows that the run takes; DIR:TAG is cut at the right colon. */
#include "tests/support/check_main.h"
#include "tools/czero/train/saver.c" /* the tools are no library */

#include <czero/data.h>
#include <czero/model.h>

/* Which models are not replaced is tested on the command line. */
cz_status output_check_model(const struct output_model *out)
{
    (void)out;
    return CZ_OK;
}

static struct cz_engine *open_engine(void)
{
    struct cz_model *m = cz_model_open("gpt2-tiny");
    ck_assert_msg(m != NULL, "%s", cz_last_error());
    const struct cz_engine_options options = {
        .size = sizeof options,
        .config_json = "{\"train_batch_size\": 8, \"train_micro_batch_size_per_gpu\": 4, "
                       "\"gradient_accumulation_steps\": 2, "
                       "\"optimizer\": {\"type\": \"SGD\", \"params\": {\"lr\": 0.1}}, "
                       "\"zero_allow_untested_optimizer\": true}"};
    struct cz_engine *e = engine_initialize_ex(&options, m);
    ck_assert_msg(e != NULL, "%s", cz_last_error());
    return e;
}

/* A text of that many rows of 4 tokens. */
static struct cz_data_loader *open_rows(const char *tmp, int n_rows)
{
    char path[128];
    const char *paths[] = {path};
    struct cz_data_loader *data;
    snprintf(path, sizeof path, "%s/text.txt", tmp);
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    for (int i = 0; i <= 4 * n_rows; i++) fputc('a' + i % 26, f);
    ck_assert_int_eq(fclose(f), 0);
    const struct cz_data_options options = {
        .size = sizeof options, .paths = paths, .n_paths = 1, .seq_len = 4, .micro_batch = 4};
    ck_ok(cz_data_open(&options, &data));
    ck_assert_uint_eq(cz_data_n_rows(data), (uint64_t)n_rows);
    return data;
}

static void train_step(struct cz_engine *e, struct cz_data_loader *data)
{
    for (int i = 0; i < 2; i++) {
        struct cz_batch batch = {.size = sizeof batch};
        ck_ok(cz_data_next(data, &batch));
        ck_ok(engine_forward(e, &batch, NULL));
        ck_ok(engine_backward(e));
        ck_ok(engine_step(e));
    }
}

START_TEST(without_a_place_the_samples_tell_it)
{
    static const struct {
        int n_rows;
        bool drop_last;
        uint64_t epoch, sample;
    } cases[] = {
        {10, false, 2, 4}, {10, true, 3, 0},  {7, false, 3, 3}, {7, true, 6, 0},
        {24, true, 1, 0},  {30, true, 0, 24}, {3, true, 0, 0}, /* no micro-batch is whole */
    };
    const char *tmp = test_tmp_make();
    struct cz_engine *e = open_engine();
    struct cz_data_loader *seen = open_rows(tmp, 30);
    for (int i = 0; i < 3; i++) train_step(e, seen);
    cz_data_close(seen);
    ck_assert_int_eq(engine_get_global_samples(e), 24);
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        struct cz_data_loader *data = open_rows(tmp, cases[i].n_rows);
        struct cz_load_result result = {.size = sizeof result};
        struct cz_data_cursor at;
        ck_ok(resume_data(&result, e, cases[i].drop_last, data));
        cz_data_tell(data, &at);
        ck_assert_msg(at.epoch == cases[i].epoch && at.sample == cases[i].sample,
                      "%d rows: sample %llu of epoch %llu", cases[i].n_rows,
                      (unsigned long long)at.sample, (unsigned long long)at.epoch);
        result.has_cursor = true;
        result.cursor = at;
        result.cursor.epoch = 9;
        result.cursor.sample = 1;
        ck_ok(resume_data(&result, e, cases[i].drop_last, data));
        cz_data_tell(data, &at);
        ck_assert_uint_eq(at.epoch, 9);
        ck_assert_uint_eq(at.sample, 1);
        result.cursor.n_rows++;
        ck_fails(resume_data(&result, e, cases[i].drop_last, data), CZ_INVALID);
        cz_data_close(data);
    }
    engine_destroy(e);
    test_tmp_remove(tmp);
}
END_TEST

static int n_warned;
static char warning[512];

static void keep_warning(enum cz_log_level level, const char *line, void *user)
{
    (void)user;
    if (level != LOG_WARN) return;
    n_warned++;
    snprintf(warning, sizeof warning, "%s", line);
}

static bool has_tag(const char *dir, int step)
{
    char path[256];
    snprintf(path, sizeof path, "%s/global_step%d/czero_manifest.json", dir, step);
    return access(path, F_OK) == 0;
}

START_TEST(saves_come_at_their_interval_and_at_the_end)
{
    const char *tmp = test_tmp_make();
    char dir[128];
    snprintf(dir, sizeof dir, "%s/run", tmp);
    struct saver s = {.dir = dir, .interval = 2, .saved_step = -1};
    struct cz_engine *e = open_engine();
    struct cz_data_loader *data = open_rows(tmp, 30);
    struct cz_data_cursor at;
    ck_ok(saver_check(&s));
    ck_ok(saver_check_unused(&s));
    cz_data_tell(data, &at);
    ck_ok(saver_end(&s, e, &at, "{}"));
    ck_assert(!has_tag(dir, 0)); /* nothing was trained */
    for (int step = 1; step <= 5; step++) {
        train_step(e, data);
        cz_data_tell(data, &at);
        ck_assert(saver_is_due(&s, e) == (step % 2 == 0));
        if (saver_is_due(&s, e)) saver_step(&s, e, &at, "{}");
        ck_assert_int_eq(s.saved_step, step < 2 ? -1 : step - step % 2);
    }
    ck_ok(saver_end(&s, e, &at, "{\"from\": \"the end\"}"));
    ck_assert_int_eq(s.saved_step, 5);
    for (int step = 1; step <= 5; step++)
        ck_assert(has_tag(dir, step) == (step % 2 == 0 || step == 5));
    ck_fails(saver_check_unused(&s), CZ_INVALID);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "run: holds checkpoints already (the "
                                                  "latest is global_step5): --resume"));
    /* A step that is saved is not saved again. */
    char latest[160];
    snprintf(latest, sizeof latest, "%s/latest", dir);
    ck_assert_int_eq(remove(latest), 0);
    ck_ok(saver_end(&s, e, &at, "{}"));
    ck_assert_int_ne(access(latest, F_OK), 0);
    s.saved_step = 4;
    ck_ok(saver_end(&s, e, &at, "{}"));
    ck_assert_int_eq(access(latest, F_OK), 0);
    s.interval = 0;
    ck_assert(!saver_is_due(&s, e));
    s.interval = 5;
    ck_assert(saver_is_due(&s, e));
    s.dir = NULL;
    ck_assert(!saver_is_due(&s, e));
    ck_ok(saver_end(&s, e, &at, "{}"));
    ck_ok(saver_check(&s));
    ck_ok(saver_check_unused(&s));
    ck_ok(saver_describe(&s, NULL, NULL, NULL));
    cz_data_close(data);
    engine_destroy(e);
    test_tmp_remove(tmp);
}
END_TEST

START_TEST(what_was_resumed_is_saved_already)
{
    const char *tmp = test_tmp_make();
    char dir[128], link[128], tag_dir[192], other[128];
    snprintf(dir, sizeof dir, "%s/run", tmp);
    snprintf(link, sizeof link, "%s/link", tmp);
    snprintf(other, sizeof other, "%s/other", tmp);
    struct saver s = {.dir = dir, .saved_step = -1};
    struct cz_engine *e = open_engine();
    struct cz_data_loader *data = open_rows(tmp, 30);
    struct cz_data_cursor at;
    train_step(e, data);
    cz_data_tell(data, &at);
    ck_ok(saver_end(&s, e, &at, "{}"));
    ck_assert_int_eq(symlink("run", link), 0);
    bool found;
    ck_ok(find_checkpoint(dir, &found));
    ck_assert(found);
    ck_ok(find_checkpoint(tmp, &found));
    ck_assert(!found);
    const struct {
        const char *of, *tag_dir;
        bool same;
    } cases[] = {{dir, "run/global_step1", true},    {dir, "link/./global_step1", true},
                 {link, "run/global_step1", true},   {dir, "run", false},
                 {dir, "run/global_step2", false},   {tmp, "run/global_step1", false},
                 {other, "run/global_step1", false}, {NULL, "run/global_step1", false}};
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        s = (struct saver){.dir = cases[i].of, .saved_step = -1};
        snprintf(tag_dir, sizeof tag_dir, "%s/%s", tmp, cases[i].tag_dir);
        ck_ok(saver_resumed(&s, e, tag_dir));
        ck_assert_msg(s.saved_step == (cases[i].same ? 1 : -1), "%zu: %lld", i,
                      (long long)s.saved_step);
        ck_assert_int_eq(cz_last_status(), CZ_OK);
    }
    cz_data_close(data);
    engine_destroy(e);
    test_tmp_remove(tmp);
}
END_TEST

START_TEST(a_failed_save_is_a_warning_and_the_last_one_an_error)
{
    const char *tmp = test_tmp_make();
    struct saver s = {.dir = "/dev/null/run", .interval = 1, .saved_step = -1};
    struct cz_engine *e = open_engine();
    struct cz_data_loader *data = open_rows(tmp, 30);
    struct cz_data_cursor at;
    cz_log_set_sink(keep_warning, NULL);
    ck_fails(saver_check(&s), CZ_IO);
    ck_assert_ptr_eq(strstr(cz_last_error(), "--save: "), cz_last_error());
    train_step(e, data);
    cz_data_tell(data, &at);
    saver_step(&s, e, &at, "{}");
    ck_assert_int_eq(n_warned, 1);
    ck_assert_ptr_nonnull(strstr(warning, "step 1 was not saved, but the run continues: "));
    ck_assert_ptr_nonnull(strstr(warning, "/dev/null: cannot be created as a folder"));
    ck_assert_int_eq(cz_last_status(), CZ_OK);
    ck_assert_int_eq(s.saved_step, -1);
    ck_fails(saver_end(&s, e, &at, "{}"), CZ_IO);
    ck_assert_int_eq(n_warned, 1);
    cz_log_set_sink(NULL, NULL);
    cz_data_close(data);
    engine_destroy(e);
    test_tmp_remove(tmp);
}
END_TEST

START_TEST(a_model_stands_beside_its_checkpoints)
{
    const char *tmp = test_tmp_make();
    char dir[128], path[192];
    struct cz_model *m = cz_model_open("gpt2-tiny");
    struct cz_tokenizer *tok;
    ck_ok(cz_tokenizer_open("bytes", &tok));
    struct saver s = {.dir = tmp};
    for (int i = 0; i < 2; i++) { /* and once more, over what is there */
        ck_ok(saver_describe(&s, m, tok, NULL));
        snprintf(path, sizeof path, "%s/model/config.json", tmp);
        ck_assert_int_eq(access(path, F_OK), 0);
    }
    snprintf(dir, sizeof dir, "%s/model/config.json", tmp);
    s.dir = dir;
    ck_fails(saver_describe(&s, m, tok, NULL), CZ_IO);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "--save: /tmp/"));
    cz_tokenizer_close(tok);
    cz_model_destroy(m);
    test_tmp_remove(tmp);
}
END_TEST

START_TEST(the_colon_before_a_tag_is_found)
{
    const char *tmp = test_tmp_make();
    char text[160], ab[128];
    struct resume_point p;
    snprintf(ab, sizeof ab, "%s/a:b", tmp);
    ck_assert_int_eq(mkdir(ab, 0755), 0);
    const struct {
        const char *text, *dir, *tag;
    } cases[] = {{"a:b", "a:b", NULL},     {"a:b:c", "a:b", "c"}, {"a:b:c:d", "a:b", "c:d"},
                 {"x:y", "x", "y"},        {"x:y:z", "x", "y:z"}, {"x:", "x:", NULL},
                 {"x:y/z", "x:y/z", NULL}, {"x", "x", NULL},      {"x:y/z:t", "x:y/z", "t"}};
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        snprintf(text, sizeof text, "%s/%s", tmp, cases[i].text);
        ck_ok(resume_parse(text, &p));
        ck_assert_str_eq(p.dir + strlen(tmp) + 1, cases[i].dir);
        ck_assert((p.tag == NULL) == (cases[i].tag == NULL));
        if (p.tag) ck_assert_str_eq(p.tag, cases[i].tag);
        ck_assert(!p.has_run);
        ck_assert_int_eq(cz_last_status(), CZ_OK);
        resume_free(&p);
        ck_assert_ptr_null(p.dir);
    }
    ck_ok(resume_parse(":tag", &p)); /* no folder has no name */
    ck_assert_str_eq(p.dir, ":tag");
    resume_free(&p);
    test_tmp_remove(tmp);
}
END_TEST

TEST_MAIN("cli/saver", without_a_place_the_samples_tell_it,
          saves_come_at_their_interval_and_at_the_end, what_was_resumed_is_saved_already,
          a_failed_save_is_a_warning_and_the_last_one_an_error,
          a_model_stands_beside_its_checkpoints, the_colon_before_a_tag_is_found)
