/* Claim: a damaged .pt is never read as if it were whole: truncations are refused at open, every
 * flipped bit shows in the checksum of the file, contradictions between a zip's parts are refused
 * with the record's name, and nothing that a file holds makes the reader crash. */
#include "formats/crc32.h"
#include "formats/pt/pt_impl.h"
#include "tests/support/memfile.h"

#include <string.h>

static uint32_t seed = 1;

static uint32_t next_random(void)
{
    return (seed = seed * 1664525u + 1013904223u) >> 8;
}

/* ---- a file of ours ---------------------------------------------------------------------------
 */

enum { N_A = 700, N_B = 33 };

static void put_pickle(struct pickle_writer *p)
{
    const int64_t a_shape[] = {N_A / 7, 7}, b_shape[] = {N_B};
    struct pickle_tensor_desc a = {
        .dtype = DTYPE_F32, .storage_numel = N_A, .ndim = 2, .shape = a_shape};
    struct pickle_tensor_desc b = {
        .dtype = DTYPE_BF16, .storage_idx = 1, .storage_numel = N_B, .ndim = 1, .shape = b_shape};
    pickle_dict_begin(p);
    pickle_put_string(p, "a");
    pickle_put_tensor(p, &a);
    pickle_put_string(p, "b");
    pickle_put_tensor(p, &b);
    pickle_put_string(p, "step");
    pickle_put_int(p, 12);
    pickle_dict_end(p);
}

/* Write it and return what the writer says of it. */
static struct pt_written make_file(const char *path)
{
    const uint64_t sizes[] = {N_A * 4, N_B * 2};
    float a[N_A];
    uint16_t b[N_B];
    for (int i = 0; i < N_A; i++) a[i] = (float)next_random();
    for (int i = 0; i < N_B; i++) b[i] = f32_to_bf16((float)i);
    struct pickle_writer *p = pickle_writer_create();
    struct pt_writer *w;
    struct pt_written written;
    unsigned char *bytes;
    size_t nbytes;
    put_pickle(p);
    ck_ok(pickle_writer_take(p, &bytes, &nbytes));
    ck_ok(pt_create(&(struct pt_create_options){.path = path,
                                                .pickle = bytes,
                                                .pickle_nbytes = nbytes,
                                                .storage_nbytes = sizes,
                                                .n_storages = 2},
                    &w));
    ck_ok(pt_write(w, 0, 0, sizeof a, a, NULL));
    ck_ok(pt_write(w, 1, 0, sizeof b, b, NULL));
    ck_ok(pt_finish(w, true, &written));
    pt_writer_destroy(w);
    pickle_writer_destroy(p);
    free(bytes);
    return written;
}

static struct pt_written make_memfile(struct memfile *m)
{
    const char *dir = test_tmp_make();
    char *path = file_join(dir, "ours.pt");
    struct pt_written written = make_file(path);
    memfile_init(m, path);
    free(path);
    test_tmp_remove(dir);
    return written;
}

static void read_tensors(const struct pt *pt)
{
    const struct pickle_node *root = pt_root(pt);
    for (size_t i = 0; root->pairs && i < root->n_pairs; i++) {
        const struct pickle_node *node = root->pairs[i].value;
        static char bytes[1 << 16];
        static float floats[1 << 12];
        if (node->kind != PICKLE_TENSOR || node->tensor->numel > 4096) continue;
        (void)pt_read(pt, node->tensor, 0, (size_t)node->tensor->numel, bytes);
        (void)pt_read_f32(pt, node->tensor, 0, (size_t)node->tensor->numel, floats);
    }
}

/* Open, verify, read: true when nothing was found wrong. */
static bool passes(const char *path)
{
    struct pt *pt;
    if (pt_open(path, &pt) != CZ_OK) {
        ck_assert_ptr_null(pt);
        ck_assert_ptr_nonnull(strstr(cz_last_error(), path));
        return false;
    }
    cz_status st = pt_verify(pt, NULL, NULL);
    read_tensors(pt);
    pt_close(pt);
    return st == CZ_OK;
}

START_TEST(our_file_is_whole)
{
    struct memfile m;
    struct pt_written written = make_memfile(&m);
    ck_assert_uint_eq(written.nbytes, m.nbytes);
    ck_assert_uint_eq(written.crc, crc32_update(0, m.bytes, m.nbytes));
    ck_assert(passes(m.path));
    memfile_free(&m);
}
END_TEST

START_TEST(every_truncation_is_refused)
{
    struct memfile m;
    make_memfile(&m);
    for (size_t n = m.nbytes; n-- > 0;) {
        struct pt *pt;
        ck_assert_int_eq(ftruncate(m.fd, (off_t)n), 0);
        ck_fails(pt_open(m.path, &pt), CZ_CORRUPT);
    }
    memfile_free(&m);
}
END_TEST

START_TEST(every_random_flip_is_found)
{
    struct memfile m;
    struct pt_written written = make_memfile(&m);
    int n_passed = 0;
    for (int trial = 0; trial < 10000; trial++) {
        size_t at = next_random() % m.nbytes;
        unsigned char bit = (unsigned char)(1u << next_random() % 8);
        m.bytes[at] ^= bit;
        ck_ok(file_pwrite(m.fd, m.path, m.bytes + at, 1, at));
        ck_assert_uint_ne(crc32_update(0, m.bytes, m.nbytes), written.crc);
        n_passed += passes(m.path);
        m.bytes[at] ^= bit;
        ck_ok(file_pwrite(m.fd, m.path, m.bytes + at, 1, at));
    }
    ck_assert(passes(m.path));
    ck_assert_int_lt(n_passed, 3000); /* in padding and unused fields only the file's sum tells */
    memfile_free(&m);
}
END_TEST

/* Damage of many kinds at once; a crash is what is looked for. */
static void hurt(struct memfile *m)
{
    for (uint32_t k = 0, n = 1 + next_random() % 6; k < n; k++) {
        size_t at = next_random() % m->nbytes, length = 1 + next_random() % 8;
        if (at > m->nbytes - 8) at = m->nbytes - 8;
        switch (next_random() % 4) {
        case 0: m->bytes[at] = (unsigned char)next_random(); break;
        case 1: memset(m->bytes + at, 0xFF, length); break;
        case 2: memset(m->bytes + at, 0, length); break;
        default: memmove(m->bytes + at, m->bytes + next_random() % (m->nbytes - 8), length);
        }
    }
}

START_TEST(wild_damage_crashes_nothing)
{
    static const char *const names[] = {"simple.pt", "folders.pt", "streamed.pt", "strides.pt"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(names); i++) {
        struct memfile m;
        char relative[64];
        snprintf(relative, sizeof relative, "formats/pt/%s", names[i]);
        memfile_init(&m, test_fixture(relative));
        unsigned char *whole = malloc(m.nbytes);
        ck_assert_ptr_nonnull(whole);
        memcpy(whole, m.bytes, m.nbytes);
        for (int trial = 0; trial < 2500; trial++) {
            hurt(&m);
            memfile_put(&m, m.nbytes - (next_random() % 16 == 0 ? next_random() % 100 : 0));
            (void)passes(m.path);
            memcpy(m.bytes, whole, m.nbytes);
        }
        free(whole);
        memfile_free(&m);
    }
}
END_TEST

/* ---- contradictions ---------------------------------------------------------------------------
 */

/* Where the nth directory entry, or local header, is. */
static unsigned char *find_nth(struct memfile *m, uint32_t signature, int nth)
{
    for (size_t at = 0; at + 4 <= m->nbytes; at++)
        if (get_u32(m->bytes + at) == signature && nth-- == 0) return m->bytes + at;
    ck_abort_msg("no signature %08x", signature);
    return NULL;
}

/* The entry of a record of simple.pt: data.pkl, .format_version, .storage_alignment, byteorder,
 * data/0, data/1, version, .data/serialization_id. */
static unsigned char *central(struct memfile *m, int nth)
{
    return find_nth(m, ZIP_CENTRAL, nth);
}

static unsigned char *local(struct memfile *m, int nth)
{
    return m->bytes + get_u32(central(m, nth) + 42);
}

/* A record's payload. */
static unsigned char *payload(struct memfile *m, int nth)
{
    unsigned char *p = local(m, nth);
    return p + ZIP_LOCAL_NBYTES + get_u16(p + 26) + get_u16(p + 28);
}

static void rename_record(struct memfile *m, int nth, char last)
{
    unsigned char *c = central(m, nth), *l = local(m, nth);
    c[ZIP_CENTRAL_NBYTES + get_u16(c + 28) - 1] = (unsigned char)last;
    l[ZIP_LOCAL_NBYTES + get_u16(l + 26) - 1] = (unsigned char)last;
}

static void one_name_twice(struct memfile *m)
{
    rename_record(m, 5, '0');
}

static void no_pickle(struct memfile *m)
{
    rename_record(m, 0, 'x');
}

static void no_version(struct memfile *m)
{
    rename_record(m, 6, 'x');
}

static void no_storage(struct memfile *m)
{
    rename_record(m, 5, '7');
}

static void wrong_storage(struct memfile *m) /* data/0 has 48 bytes, data/1 has 20 */
{
    rename_record(m, 4, '9');
    rename_record(m, 5, '0');
    rename_record(m, 4, '1');
}

static void another_local_name(struct memfile *m)
{
    local(m, 4)[ZIP_LOCAL_NBYTES] = 'x';
}

/* With a descriptor behind the payload the sum here is 0, or the right one. */
static void another_local_sum(struct memfile *m)
{
    local(m, 4)[14] ^= 1;
}

static void another_local_size(struct memfile *m)
{
    put_u32(local(m, 4) + 18, 47);
}

static void another_local_full_size(struct memfile *m)
{
    put_u32(local(m, 4) + 22, 47);
}

static void another_local_method(struct memfile *m)
{
    local(m, 4)[8] = 8;
}

static void encrypted_by_its_header(struct memfile *m)
{
    local(m, 4)[6] |= 1;
}

static void shorter_local_name(struct memfile *m)
{
    local(m, 4)[26]--;
}

static void another_descriptor_size(struct memfile *m)
{
    payload(m, 4)[48 + 8] ^= 1;
}

static void another_descriptor_full_size(struct memfile *m)
{
    payload(m, 4)[48 + 12] ^= 1;
}

static void local_header_gone(struct memfile *m)
{
    local(m, 4)[0] = 'Q';
}

static void offset_of_another(struct memfile *m)
{
    put_u32(central(m, 5) + 42, get_u32(central(m, 4) + 42));
}

static void offset_outside(struct memfile *m)
{
    put_u32(central(m, 5) + 42, 0x7FFFFFFF);
}

static void larger_than_its_place(struct memfile *m)
{
    unsigned char *c = central(m, 4);
    put_u32(c + 20, 500);
    put_u32(c + 24, 500);
}

static void sizes_differ(struct memfile *m)
{
    put_u32(central(m, 4) + 20, 47);
}

static void size_missing(struct memfile *m)
{
    put_u32(central(m, 4) + 24, 0xFFFFFFFFu);
}

static void another_descriptor(struct memfile *m)
{
    payload(m, 4)[48 + 4] ^= 1;
}

static void another_directory_sum(struct memfile *m)
{
    central(m, 4)[16] ^= 1;
}

static void encrypted(struct memfile *m)
{
    central(m, 4)[8] |= 1;
}

static void out_of_the_folder(struct memfile *m)
{
    central(m, 4)[ZIP_CENTRAL_NBYTES] = 'S';
    local(m, 4)[ZIP_LOCAL_NBYTES] = 'S';
}

static void name_with_nul(struct memfile *m)
{
    central(m, 4)[ZIP_CENTRAL_NBYTES + 2] = 0;
}

static void directory_outside(struct memfile *m)
{
    unsigned char *end = find_nth(m, ZIP_END, 0), *end64 = find_nth(m, ZIP64_END, 0);
    put_u32(end + 16, 0x10000000);
    put_u64(end64 + 48, 0x10000000);
}

static void ends_disagree(struct memfile *m)
{
    find_nth(m, ZIP_END, 0)[16] ^= 4;
}

static void counts_disagree(struct memfile *m)
{
    find_nth(m, ZIP_END, 0)[8] ^= 1;
}

/* The number of this file, and that of the directory's first one. */
static void second_file(struct memfile *m)
{
    put_u32(find_nth(m, ZIP64_END, 0) + 16, 1);
}

static void directory_in_second_file(struct memfile *m)
{
    put_u32(find_nth(m, ZIP64_END, 0) + 20, 1);
}

static void count_of_this_file(struct memfile *m)
{
    find_nth(m, ZIP64_END, 0)[24] ^= 1;
}

static void end64_gone(struct memfile *m)
{
    find_nth(m, ZIP64_END, 0)[0] = 'Q';
}

static void locator_outside(struct memfile *m)
{
    put_u64(find_nth(m, ZIP64_LOCATOR, 0) + 8, UINT64_MAX - 3);
}

static void set_count(struct memfile *m, uint16_t n)
{
    unsigned char *end = find_nth(m, ZIP_END, 0), *end64 = find_nth(m, ZIP64_END, 0);
    put_u16(put_u16(end + 8, n), n);
    put_u64(put_u64(end64 + 24, n), n);
}

static void too_few_entries(struct memfile *m)
{
    set_count(m, 7);
}

static void too_many_entries(struct memfile *m)
{
    set_count(m, 9);
}

static void no_entries(struct memfile *m)
{
    set_count(m, 0);
}

static void bytes_behind_the_end(struct memfile *m)
{
    unsigned char *bytes = realloc(m->bytes, m->nbytes + 5);
    ck_assert_ptr_nonnull(bytes);
    memset(bytes + m->nbytes, 0, 5);
    m->bytes = bytes;
    m->nbytes += 5;
}

/* Change a payload and every place that holds its checksum. */
static void put_payload(struct memfile *m, int nth, const char *text)
{
    size_t n = strlen(text);
    uint32_t crc = crc32_update(0, text, n);
    ck_assert_uint_eq(get_u32(central(m, nth) + 20), n);
    memcpy(payload(m, nth), text, n);
    put_u32(central(m, nth) + 16, crc);
    put_u32(payload(m, nth) + n + 4, crc);
}

static void version_eleven(struct memfile *m)
{
    put_payload(m, 6, "11");
}

static void version_word(struct memfile *m)
{
    put_payload(m, 6, "x\n");
}

static void odd_byteorder(struct memfile *m)
{
    put_payload(m, 3, "middle");
}

/* byteorder gets 26 bytes of the padding before it: one more than the longest that is read. */
static void long_byteorder(struct memfile *m)
{
    enum { MORE = 26, ALL = 32 };
    unsigned char *l = local(m, 3), *c = central(m, 3);
    unsigned char *padding = l + ZIP_LOCAL_NBYTES + get_u16(l + 26);
    put_u16(padding + 2, (uint16_t)(get_u16(padding + 2) - MORE));
    put_u16(l + 28, (uint16_t)(get_u16(l + 28) - MORE));
    unsigned char *p = memset(payload(m, 3), 'x', ALL);
    const uint32_t crc = crc32_update(0, p, ALL);
    put_u32(put_u32(put_u32(c + 16, crc), ALL), ALL);
    put_u32(put_u32(put_u32(p + ALL + 4, crc), ALL), ALL);
}

static void damaged_pickle(struct memfile *m)
{
    payload(m, 0)[50] ^= 0x20;
}

/* byteorder is cut to "big": three bytes fewer in a place that stays. */
static void big_endian(struct memfile *m)
{
    unsigned char *c = central(m, 3), *p = payload(m, 3);
    uint32_t crc = crc32_update(0, "big", 3);
    memcpy(p, "big", 3);
    put_u32(put_u32(put_u32(put_u32(p + 3, ZIP_DESCRIPTOR), crc), 3), 3);
    put_u32(c + 16, crc);
    put_u32(put_u32(c + 20, 3), 3);
}

static const struct {
    void (*damage)(struct memfile *m);
    cz_status want;
    const char *says;
} contradictions[] = {
    {one_name_twice, CZ_CORRUPT, "data/0 occurs twice"},
    {no_pickle, CZ_CORRUPT, "no record data.pkl"},
    {no_version, CZ_CORRUPT, "no record version"},
    {no_storage, CZ_CORRUPT, "data/1, is missing"},
    {wrong_storage, CZ_CORRUPT, "data/0 has 20 bytes, but its storage needs 48"},
    {another_local_name, CZ_CORRUPT, "data/0: its header at byte"},
    {another_local_sum, CZ_CORRUPT, "data/0: its header at byte"},
    {another_local_size, CZ_CORRUPT, "data/0: its header at byte"},
    {another_local_full_size, CZ_CORRUPT, "data/0: its header at byte"},
    {another_local_method, CZ_CORRUPT, "data/0: its header at byte"},
    {encrypted_by_its_header, CZ_CORRUPT, "data/0: its header at byte"},
    {shorter_local_name, CZ_CORRUPT, "data/0: its header at byte"},
    {another_descriptor_size, CZ_CORRUPT, "data/0: what follows its payload"},
    {another_descriptor_full_size, CZ_CORRUPT, "data/0: what follows its payload"},
    {local_header_gone, CZ_CORRUPT, "data/0: no header at byte"},
    {offset_of_another, CZ_CORRUPT, "overlaps"},
    {offset_outside, CZ_CORRUPT, "overlaps"},
    {larger_than_its_place, CZ_CORRUPT, "data/0: its 500 bytes"},
    {sizes_differ, CZ_CORRUPT, "data/0: stored as 47 bytes"},
    {size_missing, CZ_CORRUPT, "data/0: its size or offset is missing"},
    {another_descriptor, CZ_CORRUPT, "data/0: what follows its payload"},
    {another_directory_sum, CZ_CORRUPT, "data/0"},
    {encrypted, CZ_UNSUPPORTED, "data/0 is encrypted"},
    {out_of_the_folder, CZ_CORRUPT, "not in the folder"},
    {name_with_nul, CZ_CORRUPT, "no proper name"},
    {directory_outside, CZ_CORRUPT, "is outside the file"},
    {ends_disagree, CZ_CORRUPT, "contradict each other"},
    {counts_disagree, CZ_CORRUPT, "several files"},
    {second_file, CZ_CORRUPT, "several files"},
    {directory_in_second_file, CZ_CORRUPT, "several files"},
    {count_of_this_file, CZ_CORRUPT, "several files"},
    {end64_gone, CZ_CORRUPT, "no zip64 end"},
    {locator_outside, CZ_CORRUPT, "outside the file"},
    {too_few_entries, CZ_CORRUPT, "after its last entry"},
    {too_many_entries, CZ_CORRUPT, "no directory entry"},
    {no_entries, CZ_CORRUPT, "after its last entry"},
    {bytes_behind_the_end, CZ_CORRUPT, "no end of a zip directory"},
    {version_eleven, CZ_VERSION, "version 11"},
    {version_word, CZ_CORRUPT, "version has no number"},
    {odd_byteorder, CZ_CORRUPT, "neither little nor big"},
    {long_byteorder, CZ_CORRUPT, "record byteorder has 32 bytes"},
    {big_endian, CZ_UNSUPPORTED, "big endian"},
    {damaged_pickle, CZ_CORRUPT, "data.pkl"}};

START_TEST(contradictions_are_refused_by_name)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(contradictions); i++) {
        struct memfile m;
        struct pt *pt;
        memfile_init(&m, test_fixture("formats/pt/simple.pt"));
        contradictions[i].damage(&m);
        memfile_put(&m, m.nbytes);
        cz_status st = pt_open(m.path, &pt);
        ck_assert_msg(
            st == contradictions[i].want && strstr(cz_last_error(), contradictions[i].says),
            "\"%s\": %s, %s", contradictions[i].says, cz_status_name(st), cz_last_error());
        memfile_free(&m);
    }
}
END_TEST

/* There sum and sizes are in the local header. */
START_TEST(headers_without_descriptors_agree_with_the_directory)
{
    struct memfile m;
    struct pt *pt;
    memfile_init(&m, test_fixture("formats/pt/zipfile.pt"));
    for (int record = 0; record < 3; record++)
        for (size_t at = 14; at < 28; at++) { /* sum, sizes, length of the name */
            unsigned char *byte = local(&m, record) + at;
            ck_assert(!(get_u16(local(&m, record) + 6) & ZIP_HAS_DESCRIPTOR));
            *byte ^= 1;
            memfile_put(&m, m.nbytes);
            ck_assert_msg(pt_open(m.path, &pt) == CZ_CORRUPT, "record %d, byte %zu", record, at);
            ck_assert_ptr_nonnull(strstr(cz_last_error(), "disagrees with the directory"));
            *byte ^= 1;
        }
    memfile_put(&m, m.nbytes);
    ck_ok(pt_open(m.path, &pt));
    pt_close(pt);
    memfile_free(&m);
}
END_TEST

START_TEST(a_damaged_payload_is_found_by_verify)
{
    struct memfile m;
    struct pt *pt;
    const struct pt_record *bad;
    memfile_init(&m, test_fixture("formats/pt/simple.pt"));
    payload(&m, 5)[19] ^= 1;
    memfile_put(&m, m.nbytes);
    ck_ok(pt_open(m.path, &pt));
    ck_fails(pt_verify(pt, &bad, NULL), CZ_CORRUPT);
    ck_assert_str_eq(bad->name, "data/1");
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "record data/1, 20 bytes at byte"));
    ck_assert_uint_eq(bad->off, (uint64_t)(payload(&m, 5) - m.bytes));
    ck_assert_int_eq(ftruncate(m.fd, 300), 0); /* while it is open */
    float x[12];
    ck_fails(pt_read(pt, pickle_get(pt_root(pt), "weight")->tensor, 0, 12, x), CZ_CORRUPT);
    pt_close(pt);
    memfile_free(&m);
}
END_TEST

/* ---- sparse files that ask for memory --------------------------------------------------------
 */

enum { HUGE = 40 }; /* GiB */

static void expect_refused(const struct memfile *m, const char *says)
{
    struct pt *pt;
    ck_fails(pt_open(m->path, &pt), CZ_CORRUPT);
    ck_assert_msg(strstr(cz_last_error(), says), "%s", cz_last_error());
}

START_TEST(a_directory_of_gigabytes_is_refused)
{
    struct memfile m;
    unsigned char end[PT_PIECE_NBYTES];
    memfile_init(&m, test_fixture("formats/pt/simple.pt"));
    struct pt_layout l = {.dir_nbytes = (uint64_t)HUGE << 30, .n = 100};
    size_t n = pt_put_end(&l, end);
    ck_ok(file_pwrite(m.fd, m.path, end, n, l.dir_nbytes));
    expect_refused(&m, "a directory of 42949672960 bytes");
    memfile_free(&m);
}
END_TEST

START_TEST(a_pickle_of_gigabytes_is_refused)
{
    struct memfile m;
    struct pt_layout l;
    unsigned char bytes[PT_PIECE_NBYTES];
    const struct pt_create_options o = {.path = "x.pt", .pickle_nbytes = (size_t)HUGE << 30};
    memfile_init(&m, test_fixture("formats/pt/simple.pt"));
    ck_ok(pt_layout_make(&l, &o));
    uint64_t entry_off = l.dir_off;
    for (size_t i = 0; i < l.n; i++) {
        const char *text = pt_layout_text(&l, i);
        const struct pt_slot *s = &l.slots[i];
        uint32_t crc = text ? crc32_update(0, text, strlen(text)) : 0;
        ck_ok(file_pwrite(m.fd, m.path, bytes, pt_put_local(&l, i, bytes), s->header_off));
        if (text) ck_ok(file_pwrite(m.fd, m.path, text, strlen(text), s->off));
        ck_ok(file_pwrite(m.fd, m.path, bytes, pt_put_descriptor(&l, i, crc, bytes),
                          s->off + s->nbytes));
        size_t n = pt_put_central(&l, i, crc, bytes);
        ck_ok(file_pwrite(m.fd, m.path, bytes, n, entry_off));
        entry_off += n;
    }
    ck_ok(file_pwrite(m.fd, m.path, bytes, pt_put_end(&l, bytes), entry_off));
    expect_refused(&m, "record data.pkl has 42949672960 bytes");
    pt_layout_free(&l);
    memfile_free(&m);
}
END_TEST

TEST_MAIN("formats/pt_damage", our_file_is_whole, every_truncation_is_refused,
          every_random_flip_is_found, wild_damage_crashes_nothing,
          contradictions_are_refused_by_name, headers_without_descriptors_agree_with_the_directory,
          a_damaged_payload_is_found_by_verify, a_directory_of_gigabytes_is_refused,
          a_pickle_of_gigabytes_is_refused)
