/* Claim: .pt files of torch and of other zip writers are read, whatever their tensors' strides and
 * types; what is not read is refused with a sentence that says why. */
#include "formats/file_io.h"
#include "formats/pt/pt.h"
#include "tests/support/check_main.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

static struct pt *open_data(const char *name)
{
    char relative[64];
    struct pt *pt;
    snprintf(relative, sizeof relative, "formats/pt/%s", name);
    ck_ok(pt_open(test_fixture(relative), &pt));
    return pt;
}

static const struct pickle_tensor *tensor(const struct pt *pt, const char *key)
{
    const struct pickle_node *node = pickle_get(pt_root(pt), key);
    ck_assert_msg(pickle_is(node, PICKLE_TENSOR), "%s: no tensor %s", pt_path(pt), key);
    return node->tensor;
}

/* ---- whose files ------------------------------------------------------------------------------
 */

static void expect_simple(const char *name)
{
    struct pt *pt = open_data(name);
    float x[12];
    ck_assert_uint_eq(pickle_get(pt_root(pt), "weight")->tensor->numel, 12);
    ck_ok(pt_read(pt, tensor(pt, "weight"), 0, 12, x));
    for (int i = 0; i < 12; i++) ck_assert(x[i] == (float)i);
    ck_ok(pt_read_f32(pt, tensor(pt, "row"), 1, 3, x));
    for (int i = 0; i < 3; i++) ck_assert(x[i] == (float)(5 + i));
    ck_ok(pt_read(pt, tensor(pt, "other"), 0, 5, x));
    ck_assert(x[0] == 1 && x[4] == 1);
    const struct pt_record *storage = pt_storage(pt, tensor(pt, "weight"));
    ck_assert_ptr_eq(storage, pt_record_find(pt, "data/0"));
    ck_assert_ptr_eq(storage, pt_storage(pt, tensor(pt, "tied")));
    ck_assert_ptr_eq(storage, pt_storage(pt, tensor(pt, "row")));
    ck_assert_uint_eq(storage->nbytes, 48);
    ck_assert_ptr_null(pt_record_find(pt, "data/7"));
    ck_assert_ptr_null(pt_record_at(pt, pt_n_records(pt)));
    for (size_t i = 0; i + 1 < pt_n_records(pt); i++)
        ck_assert_uint_le(pt_record_at(pt, i)->off + pt_record_at(pt, i)->nbytes,
                          pt_record_at(pt, i + 1)->header_off);
    const struct pt_record *bad = storage;
    size_t n_unchecked = 99;
    ck_ok(pt_verify(pt, &bad, &n_unchecked));
    ck_assert_ptr_null(bad);
    ck_assert_uint_eq(n_unchecked, strcmp(name, "no_crc.pt") == 0 ? pt_n_records(pt) : 0);
    pt_close(pt);
}

START_TEST(files_of_many_writers)
{
    static const char *const names[] = {"simple.pt",  "object.pt",   "protocol4.pt", "no_crc.pt",
                                        "zipfile.pt", "streamed.pt", "folders.pt"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(names); i++) expect_simple(names[i]);
}
END_TEST

START_TEST(storages_in_any_order)
{
    static const char *const names[] = {"many.pt", "text_order.pt"};
    for (size_t k = 0; k < CZ_ARRAY_LEN(names); k++) {
        struct pt *pt = open_data(names[k]);
        for (unsigned i = 0; i < 12; i++) {
            char key[8];
            float x[12];
            snprintf(key, sizeof key, "t%u", i);
            ck_assert_uint_eq(tensor(pt, key)->numel, i);
            ck_ok(pt_read(pt, tensor(pt, key), 0, i, x));
            for (unsigned e = 0; e < i; e++) ck_assert(x[e] == (float)i);
        }
        ck_ok(pt_verify(pt, NULL, NULL));
        pt_close(pt);
    }
    struct pt *pt = open_data("aligned_4096.pt");
    ck_assert_uint_eq(pt_storage(pt, tensor(pt, "a"))->off % 4096, 0);
    pt_close(pt);
    pt_close(NULL);
}
END_TEST

/* ---- elements ---------------------------------------------------------------------------------
 */

START_TEST(any_strides_any_range)
{
    struct pt *pt = open_data("strides.pt");
    const struct pickle_node *root = pt_root(pt);
    int n_compared = 0;
    for (size_t k = 0; k + 1 < root->n_pairs; k += 2, n_compared++) {
        const char *name = pickle_to_string(root->pairs[k].key);
        const struct pickle_tensor *view = root->pairs[k].value->tensor;
        const struct pickle_tensor *want = root->pairs[k + 1].value->tensor;
        float got[121], plain[121];
        size_t numel = (size_t)want->numel;
        ck_assert_uint_eq(view->numel, numel);
        ck_assert_msg(want->is_contiguous, "%s", name);
        ck_ok(pt_read(pt, want, 0, numel, plain));
        for (size_t off = 0; off <= numel; off++)
            for (size_t n = 0; off + n <= numel; n++) {
                got[n] = -7;
                ck_ok(pt_read(pt, view, off, n, got));
                ck_assert_msg(memcmp(got, plain + off, n * sizeof *got) == 0, "%s: %zu at %zu",
                              name, n, off);
                ck_assert(got[n] == -7);
            }
        ck_fails(pt_read(pt, view, numel, 1, got), CZ_INVALID);
        ck_fails(pt_read(pt, view, 0, numel + 1, got), CZ_INVALID);
        ck_fails(pt_read(pt, view, UINT64_MAX, 2, got), CZ_INVALID);
    }
    ck_assert_int_ge(n_compared, 14);
    pt_close(pt);
}
END_TEST

START_TEST(types_are_widened)
{
    struct pt *pt = open_data("dtypes.pt");
    const struct pickle_node *root = pt_root(pt);
    int n_compared = 0;
    for (size_t k = 0; k < root->n_pairs; k++) {
        char key[40];
        const char *name = pickle_to_string(root->pairs[k].key);
        const struct pickle_tensor *t = root->pairs[k].value->tensor;
        snprintf(key, sizeof key, "%s.f32", name);
        const struct pickle_node *wide = pickle_get(root, key);
        float got[16], want[16];
        if (!t->dtype->has_base && !pickle_is_float8(t->dtype))
            ck_fails(pt_read_f32(pt, t, 0, 1, got), CZ_UNSUPPORTED);
        if (!wide) continue;
        ck_ok(pt_read_f32(pt, t, 0, (size_t)t->numel, got));
        ck_ok(pt_read(pt, wide->tensor, 0, (size_t)t->numel, want));
        ck_assert_msg(memcmp(got, want, (size_t)t->numel * sizeof *got) == 0, "%s", name);
        ck_ok(pt_read_f32(pt, t, 2, 1, got));
        ck_assert(got[0] == want[2]);
        ck_fails(pt_read_f32(pt, t, t->numel, 1, got), CZ_INVALID);
        n_compared++;
    }
    ck_assert_int_eq(n_compared, 11);
    unsigned char eight[5];
    ck_ok(pt_read(pt, tensor(pt, "float8_e4m3fn"), 0, 5, eight));
    ck_assert_uint_eq(eight[1], 0x38); /* 1.0 */
    pt_close(pt);
}
END_TEST

/* Bytes and what torch 2.15's .float() makes of them: 1, the smallest, the largest, minus one, what
 * is no number. */
START_TEST(float8_is_widened)
{
    static const struct {
        const char *name;
        unsigned char bits[5];
        float want[5];
    } cases[] = {
        {"float8_e4m3fn", {0x38, 0x01, 0x7e, 0xb8, 0xff}, {1, 0x1p-9f, 448, -1, NAN}},
        {"float8_e5m2", {0x3c, 0x01, 0x7b, 0xfc, 0x7d}, {1, 0x1p-16f, 57344, -INFINITY, NAN}},
        {"float8_e4m3fnuz", {0x40, 0x01, 0x7f, 0xc0, 0x80}, {1, 0x1p-10f, 240, -1, NAN}},
        {"float8_e5m2fnuz", {0x40, 0x01, 0x7f, 0xc0, 0x80}, {1, 0x1p-17f, 57344, -1, NAN}},
        {"float8_e8m0fnu", {0x7f, 0x00, 0xfe, 0x80, 0xff}, {1, 0x1p-127f, 0x1p127f, 2, NAN}},
    };
    for (size_t c = 0; c < CZ_ARRAY_LEN(cases); c++) {
        const struct pickle_dtype *dtype = pickle_dtype_find(cases[c].name);
        float have[5];
        ck_assert(dtype && pickle_is_float8(dtype));
        pickle_float8_widen(dtype, cases[c].bits, 5, have);
        for (int i = 0; i < 5; i++)
            ck_assert_msg(have[i] == cases[c].want[i] ||
                              (isnan(have[i]) && isnan(cases[c].want[i])),
                          "%s %02x: %g", cases[c].name, cases[c].bits[i], (double)have[i]);
    }
    ck_assert(!pickle_is_float8(pickle_dtype_find("float32")));
}
END_TEST

START_TEST(numbers_from_tensors_and_plain)
{
    struct pt *pt = open_data("numbers.pt");
    const struct pickle_node *root = pt_root(pt);
    static const struct {
        const char *key;
        double want;
    } cases[] = {{"step", 20},
                 {"step_int", 20},
                 {"step_double", 0.1},
                 {"step_int32", 16777217},
                 {"lr", 0.25}};
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        double x;
        ck_ok(pt_number(pt, pickle_get(root, cases[i].key), &x));
        ck_assert(x == cases[i].want);
    }
    double x;
    ck_fails(pt_number(pt, pickle_get(root, "two"), &x), CZ_CORRUPT);
    ck_fails(pt_number(pt, pickle_get(root, "text"), &x), CZ_CORRUPT);
    ck_fails(pt_number(pt, NULL, &x), CZ_CORRUPT);
    pt_close(pt);
}
END_TEST

static void *read_often(void *arg)
{
    const struct pt *pt = arg;
    const struct pickle_tensor *view = pickle_get(pt_root(pt), "permuted")->tensor;
    const struct pickle_tensor *want = pickle_get(pt_root(pt), "permuted.want")->tensor;
    float a[120], b[120];
    for (int i = 0; i < 200; i++) {
        if (pt_read(pt, view, 0, 120, a) != CZ_OK || pt_read(pt, want, 0, 120, b) != CZ_OK)
            return arg;
        if (memcmp(a, b, sizeof a) != 0) return arg;
    }
    return NULL;
}

START_TEST(threads_read_one_file)
{
    struct pt *pt = open_data("strides.pt");
    pthread_t threads[4];
    for (int t = 0; t < 4; t++)
        ck_assert_int_eq(pthread_create(&threads[t], NULL, read_often, pt), 0);
    for (int t = 0; t < 4; t++) {
        void *failed;
        pthread_join(threads[t], &failed);
        ck_assert_ptr_null(failed);
    }
    pt_close(pt);
}
END_TEST

/* ---- refusals ---------------------------------------------------------------------------------
 */

START_TEST(other_formats_are_named)
{
    static const struct {
        const char *name, *says;
    } cases[] = {{"legacy.pt", "legacy torch format: save it again with torch.save's default (zip) "
                               "format"},
                 {"tar.pt", "legacy torch format"},
                 {"deflated.pt", "compressed"},
                 {"script.pt", "TorchScript"}};
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        char relative[64];
        struct pt *pt;
        snprintf(relative, sizeof relative, "formats/pt/%s", cases[i].name);
        ck_fails(pt_open(test_fixture(relative), &pt), CZ_UNSUPPORTED);
        ck_assert_ptr_null(pt);
        ck_assert_msg(strstr(cz_last_error(), cases[i].says), "%s", cz_last_error());
        ck_assert_ptr_nonnull(strstr(cz_last_error(), cases[i].name));
    }
}
END_TEST

START_TEST(no_file_an_empty_one_and_a_folder)
{
    const char *dir = test_tmp_make();
    char *path = file_join(dir, "x.pt");
    struct pt *pt;
    ck_fails(pt_open(path, &pt), CZ_NOTFOUND);
    ck_ok(file_save(path, "", 0));
    ck_fails(pt_open(path, &pt), CZ_CORRUPT);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "empty"));
    ck_ok(file_save(path, "not a zip at all, just some text", 32));
    ck_fails(pt_open(path, &pt), CZ_CORRUPT);
    ck_fails(pt_open(dir, &pt), CZ_IO);
    ck_ok(file_remove(path));
    ck_assert_int_eq(mkfifo(path, 0600), 0); /* it will never have a writer */
    ck_fails(pt_open(path, &pt), CZ_IO);
    free(path);
    test_tmp_remove(dir);
}
END_TEST

static void open_each(void *user)
{
    static const char *const names[] = {"simple.pt", "no_crc.pt",   "legacy.pt",
                                        "tar.pt",    "deflated.pt", "script.pt"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(names); i++) {
        char relative[64];
        struct pt *pt;
        snprintf(relative, sizeof relative, "formats/pt/%s", names[i]);
        cz_status st = pt_open(test_fixture(relative), &pt);
        ck_assert_int_eq(st, i < 2 ? CZ_OK : CZ_UNSUPPORTED);
        pt_close(pt);
        ck_fails(pt_open(user, &pt), CZ_CORRUPT);
    }
}

START_TEST(no_descriptor_stays_open)
{
    const char *dir = test_tmp_make();
    char *path = file_join(dir, "x.pt");
    ck_ok(file_save(path, "not a zip at all, just some text", 32));
    descriptors_stay(open_each, path);
    free(path);
    test_tmp_remove(dir);
}
END_TEST

TEST_MAIN("formats/pt_read", files_of_many_writers, storages_in_any_order, any_strides_any_range,
          types_are_widened, float8_is_widened, numbers_from_tensors_and_plain,
          threads_read_one_file, other_formats_are_named, no_file_an_empty_one_and_a_folder,
          no_descriptor_stays_open)
