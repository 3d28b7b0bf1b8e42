/* Claims: files of the reference implementation are read, and written with the same bytes; a file
 * that the reference refuses is refused with its name, the tensor and the reason; shards and index
 * act as one set; an unfinished or failed write leaves nothing behind. */
#include "formats/file_io.h"
#include "formats/safetensors/safetensors.h"
#include "tests/support/check_main.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>

static const char *in_dir(const char *dir, const char *name)
{
    static char paths[4][256];
    static int turn;
    char *path = paths[turn++ & 3];
    snprintf(path, sizeof paths[0], "%s/%s", dir, name);
    return path;
}

static int count_files(const char *dir)
{
    DIR *d = opendir(dir);
    ck_assert_ptr_nonnull(d);
    int n = 0;
    for (struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static void same_bytes(const char *ours, const char *theirs)
{
    char *a, *b;
    size_t n_a, n_b;
    ck_ok(file_load(ours, 1 << 20, &a, &n_a));
    ck_ok(file_load(theirs, 1 << 20, &b, &n_b));
    ck_assert_uint_eq(n_a, n_b);
    ck_assert_mem_eq(a, b, n_a);
    free(a);
    free(b);
}

/* ---- reading ----------------------------------------------------------------------------------
 */

START_TEST(reads_every_dtype_of_the_reference)
{
    static const unsigned widths[SAFETENSORS_DTYPE_COUNT] = {
        8, 4, 6, 6, 8, 8, 8, 8, 8, 8, 8, 16, 16, 16, 16, 32, 32, 32, 64, 64, 64, 64};
    struct safetensors *st;
    bool seen[SAFETENSORS_DTYPE_COUNT] = {false};
    ck_ok(safetensors_open(test_fixture("formats/safetensors/all_dtypes.safetensors"), &st));
    ck_assert_uint_eq(safetensors_count(st), 23);
    ck_assert_uint_eq(safetensors_n_files(st), 1);
    ck_assert_str_eq(safetensors_metadata(st, "format"), "pt");
    ck_assert_ptr_null(safetensors_metadata(st, "other"));
    for (size_t i = 0; i < safetensors_count(st); i++) {
        const struct safetensors_info *t = safetensors_at(st, i);
        unsigned char bytes[64];
        ck_assert_ptr_eq(safetensors_find(st, t->name), t);
        seen[t->dtype] = true;
        ck_assert_uint_eq(safetensors_dtype_bits(t->dtype), widths[t->dtype]);
        ck_assert_uint_eq(t->nbytes, t->numel * widths[t->dtype] / 8);
        ck_ok(safetensors_read(st, t, 0, t->numel, bytes));
        for (size_t b = 0; b < t->nbytes; b++)
            ck_assert_uint_eq(bytes[b], t->dtype == SAFETENSORS_BOOL ? (b + 1) & 1 : b + 1);
    }
    for (int d = 0; d < SAFETENSORS_DTYPE_COUNT; d++)
        ck_assert_int_eq(seen[d], d != SAFETENSORS_F6_E2M3 && d != SAFETENSORS_F6_E3M2);
    const struct safetensors_info *scalar = safetensors_find(st, "scalar");
    ck_assert_uint_eq(scalar->ndim, 0);
    ck_assert_uint_eq(scalar->numel, 1);
    const struct safetensors_info *empty = safetensors_find(st, "empty");
    ck_assert_uint_eq(empty->ndim, 2);
    ck_assert_int_eq(empty->shape[0], 3);
    ck_assert_int_eq(empty->shape[1], 0);
    ck_assert_ptr_nonnull(safetensors_find(st, "na\xc3\xafve \"name\"\n"));
    ck_assert_ptr_null(safetensors_find(st, "nowhere"));
    safetensors_close(st);
    safetensors_close(NULL);
}
END_TEST

START_TEST(reads_pieces_and_refuses_those_outside)
{
    struct safetensors *st;
    unsigned char bytes[64];
    ck_ok(safetensors_open(test_fixture("formats/safetensors/all_dtypes.safetensors"), &st));
    const struct safetensors_info *t = safetensors_find(st, "a_int32");
    ck_ok(safetensors_read(st, t, 2, 3, bytes));
    ck_assert_uint_eq(bytes[0], 9);
    ck_assert_uint_eq(bytes[11], 20);
    ck_ok(safetensors_read(st, t, 6, 0, bytes));
    ck_fails(safetensors_read(st, t, 5, 2, bytes), CZ_INVALID);
    ck_fails(safetensors_read(st, t, 7, 0, bytes), CZ_INVALID);
    ck_fails(safetensors_read(st, t, 1, SIZE_MAX, bytes), CZ_INVALID);
    const struct safetensors_info *f4 = safetensors_find(st, "a_float4_e2m1fn_x2");
    ck_ok(safetensors_read(st, f4, 2, 4, bytes));
    ck_assert_uint_eq(bytes[0], 2);
    ck_fails(safetensors_read(st, f4, 1, 2, bytes), CZ_INVALID);
    safetensors_close(st);
}
END_TEST

START_TEST(widens_to_fp32_in_place)
{
    enum { N = 3001 };
    static const enum safetensors_dtype kinds[] = {
        SAFETENSORS_F32, SAFETENSORS_BF16, SAFETENSORS_F16, SAFETENSORS_F64, SAFETENSORS_I32};
    const char *dir = test_tmp_make();
    int64_t shape[] = {N};
    struct safetensors_decl decls[5];
    char names[5][8];
    struct safetensors_writer *w;
    struct safetensors *st;
    for (int k = 0; k < 5; k++) {
        snprintf(names[k], sizeof names[k], "t%d", k);
        decls[k] = (struct safetensors_decl){names[k], kinds[k], shape, 1};
    }
    ck_ok(safetensors_create(in_dir(dir, "w"), decls, 5, NULL, 0, &w));
    for (uint64_t i = 0; i < N; i++) {
        float f = (float)(int)i / 8 - 200; /* exact in fp16; in bf16 mostly rounded */
        double d = f;
        uint16_t b = f32_to_bf16(f), h = f32_to_f16(f);
        const void *src[] = {&f, &b, &h, &d, &f};
        for (size_t k = 0; k < 5; k++) ck_ok(safetensors_write(w, k, i, 1, src[k]));
    }
    ck_ok(safetensors_finish(w));
    safetensors_writer_destroy(w);
    ck_ok(safetensors_open(in_dir(dir, "w"), &st));
    for (int k = 0; k < 4; k++) {
        static float dst[N + 1];
        const struct safetensors_info *t = safetensors_find(st, names[k]);
        dst[N - 7] = -1;
        ck_ok(safetensors_read_f32(st, t, 7, N - 7, dst));
        ck_assert_float_eq(dst[N - 7], -1);
        for (int i = 7; i < N; i++) {
            float want = (float)i / 8 - 200;
            if (kinds[k] == SAFETENSORS_BF16) want = bf16_to_f32(f32_to_bf16(want));
            ck_assert_float_eq(dst[i - 7], want);
        }
    }
    float one;
    ck_fails(safetensors_read_f32(st, safetensors_find(st, "t4"), 0, 1, &one), CZ_UNSUPPORTED);
    safetensors_close(st);
    test_tmp_remove(dir);
}
END_TEST

/* What the reference refuses (and a duplicate name, which it lets pass), each with the words that
 * the sentence must hold. */
static const struct {
    const char *header;
    size_t data_nbytes;
    const char *says;
} broken[] = {
    {"", 0, ""},
    {"[]", 0, "its header does not begin with \"{\""},
    {" {}", 0, "its header does not begin with \"{\""},
    {"\n{}", 0, "its header does not begin with \"{\""},
    {"\xef\xbb\xbf{}", 0, "its header does not begin with \"{\""},
    {"{", 0, ""},
    {"{}x", 0, ""},
    {"{\"a\":3}", 0, "tensor a: its entry is not an object"},
    {"{\"\xff\":3}", 0, "UTF-8"},
    {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "tensor a: no dtype"},
    {"{\"a\":{\"dtype\":\"U9\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
     "tensor a: unknown dtype \"U9\""},
    {"{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, "tensor a: no shape"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[-1],\"data_offsets\":[0,1]}}", 1, "dimension 0"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[-0,1]}}", 1, "data_offsets must be"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[-0],\"data_offsets\":[0,0]}}", 0, "dimension 0"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1.0],\"data_offsets\":[0,1]}}", 1, "dimension 1"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[\"1\"],\"data_offsets\":[0,1]}}", 1, "dimension 0"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "data_offsets must be"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}}", 1, "data_offsets must be"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,2]}}", 1, "data_offsets must"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,0]}}", 1, "before they begin"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,1]}}", 1, "need 2 bytes"},
    {"{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]}}", 2, "whole bytes"},
    {"{\"a\":{\"dtype\":\"F64\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}}", 0,
     "large shape"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0,
     "large shape"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
     "\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[2,3]}}",
     3, "tensor b: starts at byte 2 of the data, leaving a hole"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
     "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}",
     3, "tensor b: starts at byte 1 of the data, overlapping"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}", 2, "leaving a hole"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[9],\"data_offsets\":[0,9]}}", 8, "truncated: tensor a"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[7],\"data_offsets\":[0,7]}}", 8, "1 bytes after"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
     "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
     1, "a"},
    {"{\"__metadata__\":{\"a\":1}}", 0, "__metadata__"},
    {"{\"__metadata__\":[]}", 0, "__metadata__"},
};

static void write_file(const char *path, uint64_t header_nbytes, const char *header,
                       size_t data_nbytes)
{
    FILE *f = fopen(path, "wb");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(&header_nbytes, 8, 1, f), 1);
    fputs(header, f);
    for (size_t i = 0; i < data_nbytes; i++) fputc('x', f);
    ck_assert_int_eq(fclose(f), 0);
}

START_TEST(broken_headers_are_named)
{
    const char *dir = test_tmp_make(), *path = in_dir(dir, "broken.safetensors");
    struct safetensors *st;
    for (size_t i = 0; i < CZ_ARRAY_LEN(broken); i++) {
        write_file(path, strlen(broken[i].header), broken[i].header, broken[i].data_nbytes);
        st = (void *)&st;
        cz_status got = safetensors_open(path, &st);
        ck_assert_msg(got == CZ_CORRUPT, "%s: %s", broken[i].header, cz_status_name(got));
        ck_assert_ptr_null(st);
        ck_assert_msg(strstr(cz_last_error(), "broken.safetensors") != NULL, "%s", cz_last_error());
        ck_assert_msg(strstr(cz_last_error(), broken[i].says) != NULL, "%s: %s", broken[i].header,
                      cz_last_error());
    }
    test_tmp_remove(dir);
}
END_TEST

START_TEST(lengths_beyond_the_file_are_named)
{
    const char *dir = test_tmp_make(), *path = in_dir(dir, "f");
    struct safetensors *st;
    write_file(path, 100, "{}", 0);
    ck_fails(safetensors_open(path, &st), CZ_CORRUPT);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "truncated"));
    write_file(path, UINT64_MAX, "{}", 0);
    ck_fails(safetensors_open(path, &st), CZ_CORRUPT);
    write_file(path, 100000001, "{}", 0);
    ck_fails(safetensors_open(path, &st), CZ_CORRUPT);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "100000001"));
    ck_ok(file_save(path, "1234567", 7));
    ck_fails(safetensors_open(path, &st), CZ_CORRUPT);
    ck_ok(file_save(path, "", 0));
    ck_fails(safetensors_open(path, &st), CZ_CORRUPT);
    ck_fails(safetensors_open(in_dir(dir, "none"), &st), CZ_NOTFOUND);
    ck_fails(safetensors_open(dir, &st), CZ_IO);
    write_file(path, 4, "{}  ", 0); /* an empty set with padding is fine */
    ck_ok(safetensors_open(path, &st));
    ck_assert_uint_eq(safetensors_count(st), 0);
    ck_assert_ptr_null(safetensors_find(st, "a"));
    safetensors_close(st);
    test_tmp_remove(dir);
}
END_TEST

/* Cutting or changing any byte of a good file must end in a status, never in a crash. */
START_TEST(damage_anywhere_ends_in_a_status)
{
    const char *dir = test_tmp_make(), *path = in_dir(dir, "f");
    char *good;
    size_t nbytes;
    struct safetensors *st;
    ck_ok(file_load(test_fixture("formats/safetensors/all_dtypes.safetensors"), 1 << 20, &good,
                    &nbytes));
    for (size_t cut = 0; cut < nbytes; cut += 7) {
        FILE *f = fopen(path, "wb");
        ck_assert_uint_eq(fwrite(good, 1, cut, f), cut);
        fclose(f);
        ck_fails(safetensors_open(path, &st), CZ_CORRUPT);
    }
    for (size_t at = 0; at < 1600; at++) {
        char old = good[at];
        good[at] = (char)(old ^ (1 << at % 8));
        FILE *f = fopen(path, "wb");
        ck_assert_uint_eq(fwrite(good, 1, nbytes, f), nbytes);
        fclose(f);
        good[at] = old;
        if (safetensors_open(path, &st) == CZ_OK)
            safetensors_close(st);
        else
            ck_assert_int_eq(cz_last_status(), CZ_CORRUPT);
    }
    free(good);
    test_tmp_remove(dir);
}
END_TEST

/* ---- writing ----------------------------------------------------------------------------------
 */

START_TEST(writes_the_bytes_of_the_reference)
{
    const char *theirs = test_fixture("formats/safetensors/all_dtypes.safetensors");
    const char *dir = test_tmp_make(), *ours = in_dir(dir, "ours");
    struct safetensors *st;
    struct safetensors_writer *w;
    struct safetensors_decl decls[32];
    ck_ok(safetensors_open(theirs, &st));
    size_t n = safetensors_count(st);
    for (size_t i = 0; i < n; i++) { /* declared in another order than the file's */
        const struct safetensors_info *t = safetensors_at(st, n - 1 - i);
        decls[i] = (struct safetensors_decl){t->name, t->dtype, t->shape, t->ndim};
    }
    ck_ok(safetensors_create(ours, decls, n, NULL, 0, &w));
    for (size_t i = 0; i < n; i++) { /* each tensor in two pieces, the second first */
        const struct safetensors_info *t = safetensors_at(st, n - 1 - i);
        unsigned char bytes[64];
        size_t half = t->numel / 4 * 2;
        ck_ok(safetensors_read(st, t, half, t->numel - half, bytes));
        ck_ok(safetensors_write(w, i, half, t->numel - half, bytes));
        ck_ok(safetensors_read(st, t, 0, half, bytes));
        ck_ok(safetensors_write(w, i, 0, half, bytes));
    }
    ck_assert(!file_exists(ours));
    ck_ok(safetensors_finish(w));
    safetensors_writer_destroy(w);
    safetensors_close(st);
    same_bytes(ours, theirs);
    ck_assert_int_eq(count_files(dir), 1);
    test_tmp_remove(dir);
}
END_TEST

static const struct shard_case {
    const char *name;
    enum safetensors_dtype dtype;
    int64_t numel;
} shard_cases[] = {
    {"z.first", SAFETENSORS_F32, 10}, {"big", SAFETENSORS_F32, 40},
    {"b.half", SAFETENSORS_BF16, 8},  {"a.second", SAFETENSORS_F32, 9},
    {"c.ids", SAFETENSORS_I64, 3},    {"last", SAFETENSORS_F32, 1},
};
#define N_SHARD_CASES CZ_ARRAY_LEN(shard_cases)

static cz_status save_shards(const char *dir, uint64_t limit)
{
    struct safetensors_decl decls[N_SHARD_CASES];
    struct safetensors_writer *w;
    for (size_t i = 0; i < N_SHARD_CASES; i++)
        decls[i] = (struct safetensors_decl){shard_cases[i].name, shard_cases[i].dtype,
                                             &shard_cases[i].numel, 1};
    TRY(safetensors_dir_create(dir, limit, decls, N_SHARD_CASES, NULL, 0, &w));
    for (size_t i = 0; i < N_SHARD_CASES; i++)
        for (int64_t e = 0; e < shard_cases[i].numel; e++) {
            float f = (float)e;
            uint16_t b = f32_to_bf16(f);
            const void *src = shard_cases[i].dtype == SAFETENSORS_I64    ? (const void *)&e
                              : shard_cases[i].dtype == SAFETENSORS_BF16 ? (const void *)&b
                                                                         : (const void *)&f;
            TRY(safetensors_write(w, i, (uint64_t)e, 1, src));
        }
    cz_status st = safetensors_finish(w);
    safetensors_writer_destroy(w);
    return st;
}

START_TEST(splits_into_the_shards_of_hugging_face)
{
    static const char index[] = "{\n"
                                "  \"metadata\": {\n"
                                "    \"total_size\": 280\n"
                                "  },\n"
                                "  \"weight_map\": {\n"
                                "    \"a.second\": \"model-00003-of-00003.safetensors\",\n"
                                "    \"b.half\": \"model-00002-of-00003.safetensors\",\n"
                                "    \"big\": \"model-00001-of-00003.safetensors\",\n"
                                "    \"c.ids\": \"model-00003-of-00003.safetensors\",\n"
                                "    \"last\": \"model-00003-of-00003.safetensors\",\n"
                                "    \"z.first\": \"model-00002-of-00003.safetensors\"\n"
                                "  }\n"
                                "}\n";
    const char *tmp = test_tmp_make();
    char dir[128], *text;
    snprintf(dir, sizeof dir, "%s/new/model", tmp);
    ck_ok(save_shards(dir, 64));
    for (int i = 1; i <= 3; i++) {
        char name[64], theirs[96];
        snprintf(name, sizeof name, "model-0000%d-of-00003.safetensors", i);
        snprintf(theirs, sizeof theirs, "formats/safetensors/sharded/%s", name);
        same_bytes(in_dir(dir, name), test_fixture(theirs));
    }
    ck_ok(file_load(in_dir(dir, "model.safetensors.index.json"), 4096, &text, NULL));
    ck_assert_str_eq(text, index);
    free(text);
    ck_assert_int_eq(count_files(dir), 4);
    test_tmp_remove(tmp);
}
END_TEST

START_TEST(a_folder_reads_as_one_set)
{
    struct safetensors *st;
    ck_ok(safetensors_dir_open(test_fixture("formats/safetensors/sharded"), &st));
    ck_assert_uint_eq(safetensors_n_files(st), 3);
    ck_assert_uint_eq(safetensors_count(st), N_SHARD_CASES);
    for (size_t i = 0; i < N_SHARD_CASES; i++) {
        const struct safetensors_info *t = safetensors_find(st, shard_cases[i].name);
        ck_assert_ptr_nonnull(t);
        ck_assert_int_eq(t->dtype, shard_cases[i].dtype);
        ck_assert_uint_eq(t->numel, (uint64_t)shard_cases[i].numel);
        if (t->dtype == SAFETENSORS_I64) continue;
        float values[40];
        ck_ok(safetensors_read_f32(st, t, 0, t->numel, values));
        for (size_t e = 0; e < t->numel; e++) ck_assert_float_eq(values[e], (float)e);
    }
    safetensors_close(st);
}
END_TEST

START_TEST(a_new_save_replaces_the_old_files)
{
    const char *dir = test_tmp_make();
    struct safetensors *st;
    ck_ok(file_save(in_dir(dir, "model-notes.safetensors"), "mine", 4));
    ck_ok(save_shards(dir, 64));
    ck_assert_int_eq(count_files(dir), 5);
    ck_ok(save_shards(dir, 200)); /* two shards */
    ck_assert_int_eq(count_files(dir), 4);
    ck_ok(save_shards(dir, 0));
    ck_assert_int_eq(count_files(dir), 2);
    ck_ok(safetensors_dir_open(dir, &st));
    ck_assert_uint_eq(safetensors_n_files(st), 1);
    ck_assert_uint_eq(safetensors_count(st), N_SHARD_CASES);
    safetensors_close(st);
    ck_ok(save_shards(dir, 64)); /* or model.safetensors would hide them */
    ck_ok(safetensors_dir_open(dir, &st));
    ck_assert_uint_eq(safetensors_n_files(st), 3);
    safetensors_close(st);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(index_and_shards_must_agree)
{
    static const char one[] = "{\"weight_map\":{\"last\":\"../x.safetensors\"}}";
    static const char two[] = "{\"weight_map\":{\"last\":\"model-00001-of-00003.safetensors\"}}";
    static const char three[] = "{\"weight_map\":{\"last\":\"nowhere.safetensors\"}}";
    static const char four[] = "{\"weight_map\":{\"big\":7}}";
    static const char five[] = "{\"metadata\":{}}";
    static const char six[] = "{\"weight_map\":{}}";
    static const struct {
        const char *text;
        cz_status want;
        const char *says;
    } cases[] = {
        {one, CZ_CORRUPT, "leads out of the folder"},
        {two, CZ_CORRUPT, "tensor last should be in model-00001"},
        {three, CZ_NOTFOUND, "nowhere.safetensors"},
        {four, CZ_CORRUPT, "big"},
        {five, CZ_CORRUPT, "weight_map"},
        {six, CZ_CORRUPT, "weight_map is empty"},
    };
    const char *dir = test_tmp_make();
    struct safetensors *st;
    ck_fails(safetensors_dir_open(dir, &st), CZ_NOTFOUND);
    ck_ok(save_shards(dir, 64));
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        ck_ok(file_save(in_dir(dir, "model.safetensors.index.json"), cases[i].text,
                        strlen(cases[i].text)));
        ck_fails(safetensors_dir_open(dir, &st), cases[i].want);
        ck_assert_msg(strstr(cz_last_error(), cases[i].says) != NULL, "%s", cz_last_error());
    }
    test_tmp_remove(dir);
}
END_TEST

START_TEST(the_index_decides_between_two_copies)
{
    const char *dir = test_tmp_make();
    struct safetensors *st;
    struct safetensors_writer *w;
    static const char index[] = "{\"weight_map\":{\"a\":\"two\",\"b\":\"one\"}}";
    static const char vague[] = "{\"weight_map\":{\"b\":\"one\",\"c\":\"two\"}}";
    int64_t shape[] = {1};
    struct safetensors_decl one[] = {{"a", SAFETENSORS_F32, shape, 1},
                                     {"b", SAFETENSORS_F32, shape, 1}};
    struct safetensors_decl two[] = {{"a", SAFETENSORS_F32, shape, 1},
                                     {"c", SAFETENSORS_F32, shape, 1}};
    for (int k = 0; k < 2; k++) {
        float value = (float)(k + 1);
        ck_ok(safetensors_create(in_dir(dir, k ? "two" : "one"), k ? two : one, 2, NULL, 0, &w));
        ck_ok(safetensors_write(w, 0, 0, 1, &value));
        ck_ok(safetensors_write(w, 1, 0, 1, &value));
        ck_ok(safetensors_finish(w));
        safetensors_writer_destroy(w);
    }
    ck_ok(file_save(in_dir(dir, "model.safetensors.index.json"), index, strlen(index)));
    ck_ok(safetensors_dir_open(dir, &st));
    ck_assert_uint_eq(safetensors_count(st), 3);
    float value;
    ck_ok(safetensors_read_f32(st, safetensors_find(st, "a"), 0, 1, &value));
    ck_assert_float_eq(value, 2);
    safetensors_close(st);
    ck_ok(file_save(in_dir(dir, "model.safetensors.index.json"), vague, strlen(vague)));
    ck_fails(safetensors_dir_open(dir, &st), CZ_CORRUPT);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "tensor a is also in"));
    test_tmp_remove(dir);
}
END_TEST

START_TEST(wrong_declarations_are_refused)
{
    const char *dir = test_tmp_make(), *path = in_dir(dir, "w");
    int64_t good[] = {2}, negative[] = {2, -1}, huge[] = {INT64_MAX, 2}, three[] = {3};
    const struct safetensors_decl cases[][2] = {
        {{"a", SAFETENSORS_F32, good, 1}, {"a", SAFETENSORS_U8, good, 1}},
        {{"a", SAFETENSORS_F32, negative, 2}, {"b", SAFETENSORS_U8, good, 1}},
        {{"a", SAFETENSORS_F32, huge, 2}, {"b", SAFETENSORS_U8, good, 1}},
        {{"a", SAFETENSORS_F4, three, 1}, {"b", SAFETENSORS_U8, good, 1}},
        {{"__metadata__", SAFETENSORS_F32, good, 1}, {"b", SAFETENSORS_U8, good, 1}},
        {{"\xc0\x80", SAFETENSORS_F32, good, 1}, {"b", SAFETENSORS_U8, good, 1}},
        {{"b", SAFETENSORS_F32, good, 1}, {"c", (enum safetensors_dtype)99, good, 1}},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        struct safetensors_writer *w = (void *)&w;
        ck_fails(safetensors_create(path, cases[i], 2, NULL, 0, &w), CZ_INVALID);
        ck_assert_ptr_null(w);
    }
    /* What is refused without a look at the disk, and the largest that is not. */
    int64_t quarter[] = {INT64_MAX / 4}, rest[] = {1};
    const struct safetensors_decl large[] = {{"a", SAFETENSORS_U8, quarter, 1},
                                             {"b", SAFETENSORS_U8, quarter, 1},
                                             {"c", SAFETENSORS_U8, rest, 1}};
    struct safetensors_writer *w;
    ck_fails(safetensors_create(path, large, 3, NULL, 0, &w), CZ_IO);
    rest[0] = 2;
    ck_fails(safetensors_create(path, large, 3, NULL, 0, &w), CZ_INVALID);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "impossibly large together"));
    ck_assert_int_eq(count_files(dir), 0);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(an_unfinished_write_leaves_nothing)
{
    const char *dir = test_tmp_make(), *path = in_dir(dir, "w");
    int64_t shape[] = {4};
    float data[4] = {1, 2, 3, 4};
    struct safetensors_decl decl = {"a", SAFETENSORS_F32, shape, 1};
    struct safetensors_writer *w;
    ck_ok(safetensors_create(path, &decl, 1, NULL, 0, &w));
    ck_ok(safetensors_write(w, 0, 1, 3, data));
    ck_fails(safetensors_write(w, 0, 2, 3, data), CZ_INVALID);
    ck_fails(safetensors_write(w, 1, 0, 1, data), CZ_INVALID);
    ck_fails(safetensors_finish(w), CZ_INVALID);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "tensor a: 3 of 4"));
    safetensors_writer_destroy(w);
    ck_assert_int_eq(count_files(dir), 0);
    ck_fails(safetensors_create(in_dir(dir, "no/such/w"), &decl, 1, NULL, 0, &w), CZ_IO);
    safetensors_writer_destroy(NULL);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(a_full_disk_keeps_the_old_file)
{
    const char *dir = test_tmp_make(), *path = in_dir(dir, "model.safetensors");
    int64_t small[] = {4}, large[] = {1 << 20};
    float data[4] = {1, 2, 3, 4};
    struct safetensors_decl decl = {"a", SAFETENSORS_F32, small, 1};
    struct safetensors_writer *w;
    struct safetensors *st;
    ck_ok(safetensors_create(path, &decl, 1, NULL, 0, &w));
    ck_ok(safetensors_write(w, 0, 0, 4, data));
    ck_ok(safetensors_finish(w));
    safetensors_writer_destroy(w);
    /* A file size limit stands for the full disk: the same calls fail, without needing one. */
    struct rlimit limit = {1 << 16, 1 << 16};
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    decl.shape = large;
    ck_fails(safetensors_dir_create(dir, 0, &decl, 1, NULL, 0, &w), CZ_IO);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), path));
    ck_assert_int_eq(count_files(dir), 1);
    ck_ok(safetensors_open(path, &st));
    ck_assert_uint_eq(safetensors_find(st, "a")->numel, 4);
    safetensors_close(st);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(metadata_is_written_as_given)
{
    const char *dir = test_tmp_make(), *path = in_dir(dir, "w");
    struct safetensors_metadata metadata[] = {{"format", "pt"}, {"note", "a \"b\"\n\x01"}};
    struct safetensors_writer *w;
    struct safetensors *st;
    ck_ok(safetensors_create(path, NULL, 0, metadata, 2, &w));
    ck_ok(safetensors_finish(w));
    safetensors_writer_destroy(w);
    ck_ok(safetensors_open(path, &st));
    ck_assert_str_eq(safetensors_metadata(st, "format"), "pt");
    ck_assert_str_eq(safetensors_metadata(st, "note"), "a \"b\"\n\x01");
    safetensors_close(st);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(base_dtypes_map_both_ways)
{
    enum cz_dtype base;
    for (int d = 0; d < DTYPE_COUNT; d++) {
        enum safetensors_dtype st = safetensors_dtype_from_base((enum cz_dtype)d);
        ck_assert(safetensors_dtype_to_base(st, &base));
        ck_assert_int_eq(base, d);
        ck_assert_uint_eq(safetensors_dtype_bits(st), 8 * dtype_size((enum cz_dtype)d));
    }
    ck_assert(!safetensors_dtype_to_base(SAFETENSORS_U16, &base));
    ck_assert_str_eq(safetensors_dtype_name(SAFETENSORS_F8_E4M3), "F8_E4M3");
}
END_TEST

/* ---- descriptors ------------------------------------------------------------------------------
 */

static void open_all(void *user)
{
    const char *dir = user;
    struct safetensors *st;
    ck_ok(safetensors_open(test_fixture("formats/safetensors/all_dtypes.safetensors"), &st));
    safetensors_close(st);
    ck_ok(safetensors_dir_open(test_fixture("formats/safetensors/sharded"), &st));
    safetensors_close(st);
    /* two shards are open when the third turns out to be missing */
    ck_fails(safetensors_dir_open(dir, &st), CZ_NOTFOUND);
    ck_fails(safetensors_open(in_dir(dir, "model.safetensors.index.json"), &st), CZ_CORRUPT);
}

START_TEST(no_descriptor_stays_open)
{
    char dir[64];
    snprintf(dir, sizeof dir, "%s", test_tmp_make());
    ck_ok(save_shards(dir, 64));
    ck_ok(file_remove(in_dir(dir, "model-00003-of-00003.safetensors")));
    descriptors_stay(open_all, dir);
    test_tmp_remove(dir);
}
END_TEST

TEST_MAIN("formats/safetensors", reads_every_dtype_of_the_reference,
          reads_pieces_and_refuses_those_outside, widens_to_fp32_in_place, broken_headers_are_named,
          lengths_beyond_the_file_are_named, damage_anywhere_ends_in_a_status,
          writes_the_bytes_of_the_reference, splits_into_the_shards_of_hugging_face,
          a_folder_reads_as_one_set, a_new_save_replaces_the_old_files, index_and_shards_must_agree,
          the_index_decides_between_two_copies, wrong_declarations_are_refused,
          an_unfinished_write_leaves_nothing, a_full_disk_keeps_the_old_file,
          metadata_is_written_as_given, base_dtypes_map_both_ways, no_descriptor_stays_open)
