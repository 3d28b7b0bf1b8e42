/* Claims: inspect's JSON parses and says what is there, for checkpoints, .pt and safetensors; sums
 * are those of the values; text shows no control characters, and classes that are never run; long
 * lists are cut to a count unless all is asked for. */
#include "checkpoint/store/store_impl.h"
#include "formats/crc32.h"
#include "formats/json/json.h"
#include "formats/pt/pt.h"
#include "tests/support/checkpoint/tags.h"
#include "tests/unit/checkpoint/ds_write_rig.h"
#include <czero/checkpoint.h>

#include <math.h>

static cz_status show(struct cz_inspect_options o, char **text)
{
    size_t n;
    FILE *out = open_memstream(text, &n);
    ck_assert_ptr_nonnull(out);
    cz_status st = cz_inspect(&o, out);
    fclose(out);
    return st;
}

/* The text for people, checked to be safe on a terminal; free() it. */
static char *shown(const char *path, bool all, bool sums)
{
    char *text;
    ck_ok(show(
        (struct cz_inspect_options){
            .size = sizeof(struct cz_inspect_options), .path = path, .all = all, .sums = sums},
        &text));
    for (const char *at = text; *at; at++)
        ck_assert_msg((unsigned char)*at >= 0x20 || *at == '\n', "control character %d", (int)*at);
    ck_assert_int_eq(text[strlen(text) - 1], '\n');
    return text;
}

static struct json_doc *parsed(const char *path, bool sums)
{
    char *text;
    struct json_doc *doc;
    ck_ok(show(
        (struct cz_inspect_options){
            .size = sizeof(struct cz_inspect_options), .path = path, .json = true, .sums = sums},
        &text));
    ck_ok(json_parse(text, strlen(text), path, JSON_STRICT, &doc));
    free(text);
    return doc;
}

static void has(const char *text, const char *part)
{
    ck_assert_msg(strstr(text, part) != NULL, "\"%s\" is not in:\n%s", part, text);
}

static const char *string_of(const struct json_node *node, const char *key)
{
    const char *value;
    ck_ok(json_need_string(node, key, &value));
    return value;
}

static int64_t int_of(const struct json_node *node, const char *key)
{
    int64_t value;
    ck_ok(json_need_int(node, key, &value));
    return value;
}

/* ---- checkpoints ----------------------------------------------------------------------------- */

static void write_model(struct rig *r, const char *dir, int stage, int world_size)
{
    struct manifest m;
    const struct rig_case c = {.stage = stage,
                               .world_size = world_size,
                               .dtype = DTYPE_BF16,
                               .tied = true,
                               .frozen = true,
                               .step = 12};
    rig_init(r, &c);
    r->client_state = "{\"epoch\": 3, \"note\": \"\\u001b[31mred\"}";
    manifest_init(&m);
    m.stage = stage;
    m.world_size = world_size;
    ck_ok(store_stage(dir, "t"));
    char *staging = store_staging_path(dir, "t");
    rig_write(r, staging, &m);
    ck_ok(store_publish(dir, "t", &m, NULL, 0, true));
    free(staging);
    manifest_free(&m);
}

/* Sums of parameter param_idx's values of one kind, against what was written. */
static void check_sums(const struct json_node *node, size_t what, size_t param_idx, size_t numel)
{
    double min = INFINITY, max = -INFINITY, sum = 0, got;
    uint32_t crc = 0;
    char digits[9];
    for (size_t i = 0; i < numel; i++) {
        const float v = rig_value(what, param_idx, i);
        min = fmin(min, (double)v);
        max = fmax(max, (double)v);
        sum += (double)v;
        crc = crc32_update(crc, &v, sizeof v);
    }
    ck_ok(json_need_double(node, "min", &got));
    ck_assert_double_eq(got, min);
    ck_ok(json_need_double(node, "max", &got));
    ck_assert_double_eq(got, max);
    ck_ok(json_need_double(node, "mean", &got));
    ck_assert_double_eq_tol(got, sum / (double)numel, 1e-12);
    ck_assert_int_eq(int_of(node, "nonfinite"), 0);
    snprintf(digits, sizeof digits, "%08x", crc);
    ck_assert_str_eq(string_of(node, "crc32"), digits);
}

START_TEST(a_checkpoint_is_one_set_of_tensors)
{
    for (int stage = 1; stage <= 3; stage++) {
        struct rig r;
        const char *dir = test_tmp_make();
        write_model(&r, dir, stage, 3);
        struct json_doc *doc = parsed(dir, true);
        const struct json_node *root = json_root(doc), *others, *first;
        ck_assert_str_eq(string_of(root, "kind"), "checkpoint");
        ck_assert_str_eq(string_of(root, "saved_by"), "czero");
        ck_assert_str_eq(string_of(root, "model_dtype"), "bfloat16");
        ck_assert_int_eq(int_of(root, "stage"), stage);
        ck_assert_int_eq(int_of(root, "world_size"), 3);
        ck_assert_int_eq(int_of(root, "global_steps"), 12);
        ck_assert_uint_eq(json_count(json_get(root, "tensors")), r.table.n_params);
        first = json_child(json_get(root, "tensors"), 0);
        ck_assert_str_eq(string_of(first, "name"), "emb.weight");
        ck_assert_str_eq(string_of(first, "kind"), "trained");
        ck_assert_uint_eq(json_count(json_get(first, "shape")), 2);
        ck_assert_uint_eq(json_count(json_get(first, "aliases")), 1);
        check_sums(first, RIG_WHAT_MASTER, 0, 35);
        check_sums(json_get(json_get(first, "states"), "exp_avg_sq"), 2, 0, 35);
        ck_assert_int_eq(int_of(json_child(json_get(root, "groups"), 0), "step"), 12);
        others = json_get(root, "others");
        ck_assert_int_eq(int_of(others, "epoch"), 3);
        ck_assert_str_eq(string_of(others, "note"), "\x1b[31mred");
        json_free(doc);

        char *text = shown(dir, false, true);
        has(text, "checkpoint t\n");
        has(text, "\ntensors\n  emb.weight");
        has(text, "czero, in the format of DeepSpeed");
        has(text, "3 ranks");
        has(text, "emb.weight");
        has(text, "= head.weight");
        has(text, "frozen   bfloat16 (9, 9)");
        has(text, "lr 0.00025, betas (0.9, 0.95), eps 1e-08, weight_decay 0.1");
        has(text, "note: \"\\x1b[31mred\"");
        free(text);
        rig_free(&r);
        test_tmp_remove(dir);
    }
}
END_TEST

/* ---- .pt ------------------------------------------------------------------------------------- */

static void write_pt(const char *path, struct pickle_writer *w)
{
    unsigned char *bytes;
    size_t n;
    struct pt_writer *pt;
    struct pt_written written;
    ck_ok(pickle_writer_take(w, &bytes, &n));
    const struct pt_create_options o = {.path = path, .pickle = bytes, .pickle_nbytes = n};
    ck_ok(pt_create(&o, &pt));
    ck_ok(pt_finish(pt, true, &written));
    pt_writer_destroy(pt);
    pickle_writer_destroy(w);
    free(bytes);
}

START_TEST(any_pickle_can_be_shown_and_none_is_run)
{
    char path[128], *text;
    const char *dir = test_tmp_make();
    snprintf(path, sizeof path, "%s/x.pt", dir);
    struct pickle_writer *w = pickle_writer_create();
    pickle_dict_begin(w);
    pickle_put_string(w, "run");
    pickle_call_begin(w, "os", "system");
    pickle_put_string(w, "touch /tmp/czero-was-here");
    pickle_call_end(w);
    pickle_put_string(w, "esc\x1b]0;title\x07\n");
    pickle_put_double(w, (double)NAN);
    pickle_put_string(w, "many");
    pickle_list_begin(w);
    for (int i = 0; i < 1000; i++) {
        pickle_tuple_begin(w);
        pickle_put_int(w, i);
        pickle_put_string(w, "longer than what fits a line with others");
        pickle_tuple_end(w);
    }
    pickle_list_end(w);
    pickle_put_string(w, "by number");
    pickle_dict_begin(w);
    pickle_put_int(w, -7);
    pickle_put_none(w);
    pickle_put_int(w, 8);
    pickle_put_double(w, (double)-INFINITY);
    pickle_dict_end(w);
    pickle_put_string(w, "mixed");
    pickle_dict_begin(w);
    pickle_put_int(w, 1);
    pickle_put_bool(w, true);
    pickle_put_string(w, "1");
    pickle_put_global(w, "some.where", "Thing");
    pickle_dict_end(w);
    pickle_put_string(w, "object");
    pickle_put_new(w, "my.module", "Config");
    pickle_state_begin(w);
    pickle_put_string(w, "hidden");
    pickle_put_int(w, 64);
    pickle_state_end(w);
    pickle_dict_end(w);
    write_pt(path, w);

    text = shown(path, false, false);
    has(text, "run: os.system(");
    has(text, "esc\\x1b]0;title\\x07\\n: NaN");
    has(text, "many: list of 1000\n");
    has(text, "… ");
    has(text, "[999]: ");
    ck_assert_ptr_null(strstr(text, "[500]: "));
    has(text, "object: my.module.Config(hidden=64)");
    has(text, "1: some.where.Thing");
    free(text);
    text = shown(path, true, false);
    has(text, "[500]: ");
    has(text, "records\n");
    free(text);
    ck_assert(!file_exists("/tmp/czero-was-here"));

    struct json_doc *doc = parsed(path, false);
    const struct json_node *root = json_get(json_root(doc), "root"), *node;
    ck_assert_str_eq(string_of(json_root(doc), "kind"), "torch");
    ck_assert_str_eq(string_of(json_get(root, "run"), "$object"), "os.system");
    ck_assert_uint_eq(json_count(json_get(json_get(root, "run"), "args")), 1);
    ck_assert_str_eq(string_of(root, "esc\x1b]0;title\x07\n"), "NaN");
    ck_assert_uint_eq(json_count(json_get(root, "many")), 1000);
    node = json_child(json_get(root, "many"), 999);
    ck_assert_uint_eq(json_count(json_get(node, "$tuple")), 2);
    ck_assert_str_eq(string_of(json_get(root, "by number"), "8"), "-Infinity");
    ck_assert_uint_eq(json_count(json_get(json_get(root, "mixed"), "$dict")), 2);
    node = json_get(json_get(root, "object"), "state");
    ck_assert_int_eq(int_of(node, "hidden"), 64);
    ck_assert_uint_ge(json_count(json_get(json_root(doc), "records")), 6);
    json_free(doc);
    test_tmp_remove(dir);
}
END_TEST

/* Strings of more than 160 bytes are cut between characters, unless all is wanted. */
START_TEST(long_strings_are_cut_between_characters)
{
    static const struct {
        const char *unit;
        size_t lead, n_bytes, shown; /* lead letters, then units up to n_bytes */
    } cases[] = {{"b", 1, 160, 160},
                 {"b", 1, 161, 160},
                 {"\xC3\xA9", 0, 160, 160},
                 {"\xC3\xA9", 1, 161, 159},
                 {"\xE4\xBD\xA0", 0, 162, 159},
                 {"\xE4\xBD\xA0", 1, 163, 160},
                 {"\xE4\xBD\xA0", 2, 164, 158},
                 {"\xF0\x9F\x98\x80", 3, 163, 159}};
    const char *dir = test_tmp_make();
    char path[128], want[512];
    snprintf(path, sizeof path, "%s/x.pt", dir);
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        char value[256] = "aaa";
        value[cases[i].lead] = '\0';
        while (strlen(value) < cases[i].n_bytes) strcat(value, cases[i].unit);
        ck_assert_uint_eq(strlen(value), cases[i].n_bytes);
        struct pickle_writer *w = pickle_writer_create();
        pickle_dict_begin(w);
        pickle_put_string(w, "note");
        pickle_put_string(w, value);
        pickle_dict_end(w);
        write_pt(path, w);
        char *text = shown(path, false, false);
        if (cases[i].shown == cases[i].n_bytes)
            snprintf(want, sizeof want, "note: \"%s\"\n", value);
        else
            snprintf(want, sizeof want, "note: \"%.*s\" … (%zu bytes)\n", (int)cases[i].shown,
                     value, cases[i].n_bytes);
        has(text, want);
        free(text);
        text = shown(path, true, false);
        snprintf(want, sizeof want, "note: \"%s\"\n", value);
        has(text, want);
        free(text);
    }
    test_tmp_remove(dir);
}
END_TEST

START_TEST(dtypes_views_and_sums_of_torch_files)
{
    char *text = shown(test_fixture("formats/pt/dtypes.pt"), true, true);
    has(text,
        "float16 (9,)  data/3  min -2.5  max 65504  mean 9357.55  2 NOT FINITE  crc32 da29e17e");
    has(text, "complex64 (5,)  data/25  crc32");
    free(text);
    text = shown(test_fixture("formats/pt/strides.pt"), false, false);
    has(text, "float32 (5, 4)  data/0 strides (1, 5)");
    has(text, "from element 13");
    free(text);
    struct json_doc *doc = parsed(test_fixture("formats/pt/dtypes.pt"), true);
    const struct json_node *root = json_get(json_root(doc), "root"), *t;
    t = json_get(json_get(root, "complex64"), "$tensor");
    ck_assert_str_eq(string_of(t, "storage"), "data/25");
    ck_assert_int_eq(json_type(json_get(t, "min")), JSON_NULL);
    t = json_get(json_get(root, "float16"), "$tensor");
    ck_assert_int_eq(int_of(t, "nonfinite"), 2);
    json_free(doc);
}
END_TEST

/* ---- safetensors ----------------------------------------------------------------------------- */

START_TEST(safetensors_files_and_folders)
{
    char *text = shown(test_fixture("formats/safetensors/all_dtypes.safetensors"), false, true);
    has(text, "23 tensors");
    has(text, "format: pt");
    free(text);
    text = shown(test_fixture("formats/safetensors/sharded"), false, false);
    has(text, "in 3 files");
    has(text, "a.second  F32   (9,)");
    free(text);
    struct json_doc *doc = parsed(test_fixture("formats/safetensors/sharded"), true);
    ck_assert_str_eq(string_of(json_root(doc), "kind"), "safetensors");
    ck_assert_int_eq(int_of(json_root(doc), "n_files"), 3);
    ck_assert_uint_ge(json_count(json_get(json_root(doc), "tensors")), 4);
    json_free(doc);
}
END_TEST

/* ---- what cannot be shown -------------------------------------------------------------------- */

START_TEST(what_cannot_be_shown_is_said)
{
    char path[128], *text;
    const char *dir = test_tmp_make();
    const struct {
        const char *name, *bytes;
        cz_status want;
    } cases[] = {{"a.pt", "no zip", CZ_CORRUPT},
                 {"a.safetensors", "short", CZ_CORRUPT},
                 {"a.json", "{}", CZ_UNSUPPORTED},
                 {"latest", "t", CZ_UNSUPPORTED}};
    ck_fails(
        show((struct cz_inspect_options){.size = sizeof(struct cz_inspect_options), .path = dir},
             &text),
        CZ_NOTFOUND);
    free(text);
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        snprintf(path, sizeof path, "%s/%s", dir, cases[i].name);
        ck_ok(file_save(path, cases[i].bytes, strlen(cases[i].bytes)));
        ck_fails(show((struct cz_inspect_options){.size = sizeof(struct cz_inspect_options),
                                                  .path = path},
                      &text),
                 cases[i].want);
        ck_assert_ptr_nonnull(strstr(cz_last_error(), cases[i].name));
        free(text);
        if (i > 0) ck_ok(file_remove(path));
    }
    ck_fails(show((struct cz_inspect_options){.size = sizeof(struct cz_inspect_options),
                                              .path = dir,
                                              .tag = "t"},
                  &text),
             CZ_NOTFOUND);
    free(text);
    ck_fails(show((struct cz_inspect_options){.size = sizeof(struct cz_inspect_options),
                                              .path = "/nowhere"},
                  &text),
             CZ_NOTFOUND);
    free(text);
    test_tmp_remove(dir);
}
END_TEST

/* ---- DeepSpeed's ----------------------------------------------------------------------------- */

START_TEST(deepspeeds_folders_and_files)
{
    const char *const runs[] = {"s0-bf16-adamw", "s1-fp32-dp3", "s2-fp16-dynscale",
                                "s3-bf16-dp3-frozen", "v016-s3-fp16"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(runs); i++) {
        char name[128];
        snprintf(name, sizeof name, "runs/%s/ckpt", runs[i]);
        const char *dir = test_fixture(name);
        char *text = shown(dir, false, false);
        has(text, "saved by      DeepSpeed 0.1");
        has(text, "transformer.wte.weight");
        has(text, "(256, 64)  = lm_head.weight");
        has(text, "also saved\n");
        free(text);
        struct json_doc *doc = parsed(dir, true);
        ck_assert_str_eq(string_of(json_root(doc), "saved_by"), "deepspeed");
        ck_assert_uint_eq(json_count(json_get(json_root(doc), "tensors")), 28);
        const struct json_node *files = json_get(json_root(doc), "files");
        for (size_t f = 0; f < json_count(files); f++) {
            struct json_doc *file = parsed(string_of(json_child(files, f), "path"), false);
            ck_assert_str_eq(string_of(json_root(file), "kind"), "torch");
            json_free(file);
        }
        json_free(doc);
    }
}
END_TEST

TEST_MAIN("checkpoint/inspect", a_checkpoint_is_one_set_of_tensors,
          any_pickle_can_be_shown_and_none_is_run, dtypes_views_and_sums_of_torch_files,
          safetensors_files_and_folders, what_cannot_be_shown_is_said, deepspeeds_folders_and_files,
          long_strings_are_cut_between_characters)
