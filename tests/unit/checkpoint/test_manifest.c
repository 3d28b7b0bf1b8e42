/* Claims: a manifest reads back as it was built and has the bytes that its specification says;
 * every golden file gives its expected status (tests/fixtures/manifests, made by another program);
 * every flipped bit and every cut of a manifest is found; the builder refuses what no folder can
 * hold. */
#include "checkpoint/read/names.h"
#include "checkpoint/store/manifest.h"
#include "formats/file_io.h"
#include "tests/support/check_main.h"

#include <string.h>

#define GOLDEN CZ_SOURCE_DIR "/tests/fixtures/manifests/"

/* What whole/good.json holds, built by calls; tensors not in the order of their offsets. */
static void build_good(struct manifest *m)
{
    struct manifest_file *file;
    manifest_init(m);
    m->world_size = 2;
    m->stage = 2;
    ck_ok(manifest_add_file(m, "mp_rank_00_model_states.pt", 265924, 0xd79572d9, &file));
    ck_ok(manifest_add_tensor(file, "gewicht.ä \"zwei\"", "frozen", 36864, 2, 0xa4032212));
    ck_ok(manifest_add_tensor(file, "placeholder", "param", 36864, 0, 0));
    ck_ok(manifest_add_tensor(file, "transformer.wte.weight", "param", 4096, 32768, 0xb447f401));
    ck_ok(manifest_add_file(m, "zero_pp_rank_1_mp_rank_00_optim_states.pt", 5ull << 32, 0, &file));
    ck_ok(manifest_add_tensor(file, "transformer.wte.weight", "master", 1ull << 33, 1ull << 32,
                              0xb447f401));
    ck_ok(
        manifest_add_tensor(file, "transformer.wte.weight", "exp_avg", 3ull << 32, 4, 0xb447f401));
    ck_ok(manifest_add_file(m, "czero_state.json", 0, 0, NULL));
}

START_TEST(bytes_are_the_specifications)
{
    struct manifest m;
    char *text, *golden;
    size_t nbytes, n_golden;
    build_good(&m);
    ck_ok(manifest_to_json(&m, &text, &nbytes));
    ck_ok(file_load(GOLDEN "whole/good.json", 1 << 20, &golden, &n_golden));
    ck_assert_str_eq(text, golden);
    ck_assert_uint_eq(nbytes, n_golden);
    free(text);
    free(golden);
    manifest_free(&m);
}
END_TEST

START_TEST(what_is_read_is_what_was_written)
{
    struct manifest built, m;
    char *text, *again;
    size_t nbytes;
    build_good(&built);
    ck_ok(manifest_to_json(&built, &text, &nbytes));
    ck_ok(manifest_from_json(text, nbytes, "here", &m));
    ck_assert_int_eq(m.world_size, 2);
    ck_assert_int_eq(m.stage, 2);
    ck_assert_uint_eq(m.n_files, 3);
    const struct manifest_file *file = manifest_find(&m, "mp_rank_00_model_states.pt");
    ck_assert_ptr_eq(file, &m.files[0]);
    ck_assert_uint_eq(file->n_tensors, 2);
    ck_assert_str_eq(file->tensors[1].name, "gewicht.ä \"zwei\"");
    ck_assert_str_eq(file->tensors[1].what, "frozen");
    ck_assert_uint_eq(m.files[1].tensors[0].off, 1ull << 33);
    ck_assert_uint_eq(m.files[1].tensors[0].crc, 0xb447f401);
    ck_assert_ptr_null(manifest_find(&m, "latest"));
    ck_ok(manifest_to_json(&m, &again, NULL));
    ck_assert_str_eq(again, text);
    free(again);
    free(text);
    manifest_free(&m);
    manifest_free(&built);
}
END_TEST

static cz_status status_named(const char *name)
{
    for (int st = 0; st > -20; st--)
        if (strcmp(cz_status_name((cz_status)st), name) == 0) return (cz_status)st;
    ck_abort_msg("no status is called %s", name);
    return CZ_OK;
}

START_TEST(golden_files_give_their_status)
{
    FILE *rows = fopen(GOLDEN "expected.tsv", "r");
    char name[128], want[64], path[512];
    int n = 0;
    ck_assert_ptr_nonnull(rows);
    for (; fscanf(rows, "%127s %63s", name, want) == 2; n++) {
        char *text;
        size_t nbytes;
        struct manifest m;
        snprintf(path, sizeof path, "%s%s", GOLDEN, name);
        ck_ok(file_load(path, 1 << 20, &text, &nbytes));
        cz_status st = manifest_from_json(text, nbytes, name, &m);
        ck_assert_msg(st == status_named(want), "%s: %s instead of %s (%s)", name,
                      cz_status_name(st), want, cz_last_error());
        if (st != CZ_OK) {
            ck_assert_ptr_nonnull(strstr(cz_last_error(), name));
            ck_assert_ptr_null(m.files);
        }
        manifest_free(&m);
        free(text);
    }
    fclose(rows);
    ck_assert_int_ge(n, 30);
}
END_TEST

START_TEST(every_flipped_bit_and_every_cut_is_found)
{
    struct manifest m;
    char *text;
    size_t nbytes;
    build_good(&m);
    ck_ok(manifest_to_json(&m, &text, &nbytes));
    manifest_free(&m);
    for (size_t bit = 0; bit < nbytes * 8; bit++) {
        text[bit / 8] = (char)(text[bit / 8] ^ 1 << bit % 8);
        ck_fails(manifest_from_json(text, nbytes, "flipped", &m), CZ_CORRUPT);
        text[bit / 8] = (char)(text[bit / 8] ^ 1 << bit % 8);
    }
    for (size_t n = 0; n < nbytes; n++)
        ck_fails(manifest_from_json(text, n, "cut", &m), CZ_CORRUPT);
    ck_ok(manifest_from_json(text, nbytes, "whole", &m));
    manifest_free(&m);
    free(text);
}
END_TEST

START_TEST(parts_of_ranks_become_one)
{
    struct manifest whole, part;
    struct manifest_file *file;
    manifest_init(&whole);
    build_good(&part);
    ck_ok(manifest_merge(&whole, &part));
    ck_assert_int_eq(whole.world_size, 2);
    ck_assert_int_eq(whole.stage, 2);
    ck_assert_uint_eq(whole.n_files, 3);
    ck_assert_uint_eq(part.n_files, 0);

    manifest_init(&part);
    part.world_size = 2;
    part.stage = 2;
    ck_ok(manifest_add_file(&part, "a.pt", 100, 7, &file));
    ck_ok(manifest_add_tensor(file, "w", "master", 50, 50, 1));
    ck_ok(manifest_merge(&whole, &part));
    ck_assert_uint_eq(whole.n_files, 4);
    ck_assert_str_eq(whole.files[3].tensors[0].name, "w");

    ck_ok(manifest_add_file(&part, "b.pt", 1, 1, NULL));
    ck_ok(manifest_add_file(&part, "a.pt", 1, 1, NULL));
    ck_fails(manifest_merge(&whole, &part), CZ_INVALID);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "a.pt"));
    ck_assert_uint_eq(whole.n_files, 4);
    ck_assert_uint_eq(part.n_files, 2);

    part.world_size = 3;
    ck_fails(manifest_merge(&whole, &part), CZ_INVALID);
    manifest_free(&part);
    manifest_free(&whole);
}
END_TEST

START_TEST(the_builder_refuses_what_cannot_be)
{
    struct manifest m;
    struct manifest_file *file;
    char *text;
    const char *const names[] = {"",   ".",    "..",        "a/b",        "/etc/passwd",
                                 "\n", "\xff", "../latest", CKPT_MANIFEST};
    manifest_init(&m);
    for (size_t i = 0; i < CZ_ARRAY_LEN(names); i++)
        ck_fails(manifest_add_file(&m, names[i], 1, 0, NULL), CZ_INVALID);
    ck_ok(manifest_add_file(&m, "a.pt", 100, 0, &file));
    ck_fails(manifest_add_file(&m, "a.pt", 100, 0, NULL), CZ_INVALID);
    ck_fails(manifest_add_tensor(file, "w", "param", 101, 1, 0), CZ_INVALID);
    ck_fails(manifest_add_tensor(file, "w", "param", 0, 101, 0), CZ_INVALID);
    ck_fails(manifest_add_tensor(file, "w", "param", UINT64_MAX, 2, 0), CZ_INVALID);
    ck_ok(manifest_add_tensor(file, "w", "param", 10, 10, 0));
    ck_ok(manifest_add_tensor(file, "v", "param", 30, 10, 0));
    ck_fails(manifest_add_tensor(file, "u", "param", 19, 1, 0), CZ_INVALID);
    ck_fails(manifest_add_tensor(file, "u", "param", 20, 11, 0), CZ_INVALID);
    ck_fails(manifest_add_tensor(file, "u", "param", 5, 6, 0), CZ_INVALID);
    ck_ok(manifest_add_tensor(file, "u", "param", 20, 10, 0));
    ck_assert_str_eq(file->tensors[1].name, "u");
    ck_fails(manifest_to_json(&m, &text, NULL), CZ_INVALID); /* no world size */
    ck_assert_ptr_null(text);
    manifest_free(&m);
}
END_TEST

START_TEST(a_folder_without_manifest_is_not_found)
{
    struct manifest m;
    const char *dir = test_tmp_make();
    ck_fails(manifest_load(dir, &m), CZ_NOTFOUND);
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, CKPT_MANIFEST);
    ck_ok(file_save(path, "{}\n", 3));
    ck_fails(manifest_load(dir, &m), CZ_CORRUPT);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), path));
    test_tmp_remove(dir);
}
END_TEST

TEST_MAIN("checkpoint/manifest", bytes_are_the_specifications, what_is_read_is_what_was_written,
          golden_files_give_their_status, every_flipped_bit_and_every_cut_is_found,
          parts_of_ranks_become_one, the_builder_refuses_what_cannot_be,
          a_folder_without_manifest_is_not_found)
