/* Claim: our .pt files are laid out as torch's to the byte, whichever thread writes their storages
 * in whatever order; a file appears only when it is complete, and its checksum is known without
 * reading it again. */
#include "formats/crc32.h"
#include "formats/file_io.h"
#include "formats/pt/pt_impl.h"
#include "tests/support/check_main.h"
#include "tests/support/faults.h"

#include <pthread.h>
#include <string.h>

/* ---- layout -----------------------------------------------------------------------------------
 */

static struct pt_layout layout_of(const char *archive, size_t pickle_nbytes,
                                  const uint64_t *storages, size_t n)
{
    struct pt_layout l;
    const struct pt_create_options o = {.path = "x.pt",
                                        .archive = archive,
                                        .pickle_nbytes = pickle_nbytes,
                                        .storage_nbytes = storages,
                                        .n_storages = n};
    ck_ok(pt_layout_make(&l, &o));
    return l;
}

/* Offsets seen in a file of torch.save. */
START_TEST(offsets_are_torchs)
{
    const uint64_t storages[] = {4, 100};
    struct pt_layout l =
        layout_of("zero_pp_rank_0_mp_rank_00_optim_states", 2541, storages, CZ_ARRAY_LEN(storages));
    static const uint64_t header_off[] = {0, 2685, 2833};
    static const uint64_t off[] = {128, 2816, 2944, 3072, 3200, 3328};
    for (size_t i = 0; i < CZ_ARRAY_LEN(header_off); i++)
        ck_assert_uint_eq(l.slots[i].header_off, header_off[i]);
    for (size_t i = 0; i < CZ_ARRAY_LEN(off); i++) ck_assert_uint_eq(l.slots[i].off, off[i]);
    ck_assert_uint_eq(l.slots[4].header_off, 3094);
    ck_assert_uint_eq(l.slots[5].header_off, 3220);
    pt_layout_free(&l);
}
END_TEST

static bool has_bytes(const unsigned char *at, const void *want, size_t n)
{
    return memcmp(at, want, n) == 0;
}

/* A storage beyond 4 GiB, and what comes after it (a file of torch.save with such sizes). */
START_TEST(large_files_use_zip64_where_torch_does)
{
    const uint64_t storages[] = {0x100001000u, 16, 0};
    unsigned char b[PT_PIECE_NBYTES];
    size_t pickle_nbytes = 1; /* found by trial: data/0's header has to be at byte 790 */
    struct pt_layout l = layout_of("big", pickle_nbytes, storages, 3);
    while (l.slots[4].header_off < 790) {
        pt_layout_free(&l);
        l = layout_of("big", ++pickle_nbytes, storages, 3);
    }
    ck_assert_uint_eq(l.slots[4].header_off, 790);
    ck_assert_uint_eq(l.slots[4].off, 896);
    ck_assert_uint_eq(pt_put_local(&l, 4, b), 896 - 790);
    ck_assert_uint_eq(get_u16(b + 6), 0x0808);
    ck_assert_uint_eq(get_u32(b + 18) | get_u32(b + 22) | get_u32(b + 14), 0);
    ck_assert_uint_eq(get_u16(b + 28), 66);
    ck_assert(has_bytes(b + 40,
                        "\x01\0\x10\0\0\x10\0\0\1\0\0\0\0\x10\0\0\1\0\0\0"
                        "FB\x2a\0ZZZ",
                        27));
    ck_assert_uint_eq(pt_put_descriptor(&l, 4, 7, b), 24);
    ck_assert(has_bytes(b, "PK\x7\x8\7\0\0\0\0\x10\0\0\1\0\0\0\0\x10\0\0\1\0\0\0", 24));
    ck_assert_uint_eq(pt_put_central(&l, 4, 7, b), 46 + 10 + 20);
    ck_assert_uint_eq(get_u32(b + 20), 0xFFFFFFFFu);
    ck_assert_uint_eq(get_u32(b + 24), 0xFFFFFFFFu);
    ck_assert_uint_eq(get_u32(b + 42), 790);

    ck_assert_uint_eq(l.slots[5].header_off, 4294972312u); /* only the offset is large */
    pt_put_local(&l, 5, b);
    unsigned char want[12] = {1, 0, 8, 0};
    put_u64(want + 4, 4294972312u);
    ck_assert(has_bytes(b + 40, want, 12));
    ck_assert(has_bytes(b + 52, "FB\x30\0Z", 5));
    ck_assert_uint_eq(pt_put_descriptor(&l, 5, 7, b), 24);
    ck_assert_uint_eq(pt_put_central(&l, 5, 7, b), 46 + 10 + 12);
    ck_assert_uint_eq(get_u32(b + 20), 16);
    ck_assert_uint_eq(get_u32(b + 42), 0xFFFFFFFFu);
    ck_assert(has_bytes(b + 56, want, 12));

    pt_put_local(&l, 6, b); /* empty: no descriptor, wherever it is */
    ck_assert_uint_eq(get_u16(b + 6), 0x0800);
    ck_assert_uint_eq(pt_put_descriptor(&l, 6, 0, b), 0);
    ck_assert_uint_eq(l.slots[7].header_off, l.slots[6].off);

    ck_assert_uint_eq(pt_put_end(&l, b), 98);
    ck_assert_uint_eq(get_u64(b + 48), l.dir_off);
    ck_assert_uint_eq(get_u64(b + 64), l.dir_off + l.dir_nbytes);
    ck_assert_uint_eq(get_u32(b + 92), 0xFFFFFFFFu);
    pt_layout_free(&l);
}
END_TEST

START_TEST(many_records_and_edges_of_32_bits)
{
    static uint64_t storages[70000];
    unsigned char b[PT_PIECE_NBYTES];
    struct pt_layout l = layout_of("a", 1, storages, CZ_ARRAY_LEN(storages));
    pt_put_end(&l, b);
    ck_assert_uint_eq(get_u64(b + 24), 70006);
    ck_assert_uint_eq(get_u16(b + 84), 0xFFFF);
    ck_assert_uint_eq(get_u32(b + 92), l.dir_off);
    pt_layout_free(&l);
    for (uint64_t size = 0xFFFFFFFDu; size < 0x100000003u; size++) {
        l = layout_of("a", 1, &size, 1);
        bool is_large = size >= 0xFFFFFFFFu;
        ck_assert_int_eq(l.slots[4].size_in_zip64, is_large);
        ck_assert_uint_eq(pt_put_descriptor(&l, 4, 0, b), is_large ? 24u : 16u);
        ck_assert_uint_eq(l.slots[5].header_off, l.slots[4].off + size + (is_large ? 24 : 16));
        pt_layout_free(&l);
    }
}
END_TEST

START_TEST(archives_are_named_as_torch_names_them)
{
    static const char *const cases[][2] = {
        {"/a/zero_pp_rank_0_mp_rank_00_optim_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states"},
        {"x.tar.gz", "x.tar"},
        {"fp32.01", "fp32"},
        {"plain", "plain"},
        {"dir.d/plain", "plain"},
        {"d\xc3\xa4r/x.pt", "archive"}};
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        struct pt_layout l;
        ck_ok(pt_layout_make(&l, &(struct pt_create_options){.path = cases[i][0]}));
        ck_assert_str_eq(l.archive, cases[i][1]);
        pt_layout_free(&l);
    }
    static const char *const refused[] = {".hid", "/a/.pt", "/a/", ""};
    for (size_t i = 0; i < CZ_ARRAY_LEN(refused); i++) {
        struct pt_layout l;
        ck_fails(pt_layout_make(&l, &(struct pt_create_options){.path = refused[i]}), CZ_INVALID);
    }
    struct pt_layout l;
    ck_fails(pt_layout_make(&l, &(struct pt_create_options){.path = "a", .archive = "b/c"}),
             CZ_INVALID);
}
END_TEST

START_TEST(sizes_beyond_any_file_are_refused)
{
    static const uint64_t sizes[][2] = {
        {UINT64_MAX, 0}, {INT64_MAX, 0}, {INT64_MAX / 2, INT64_MAX / 2 + 1}, {1, UINT64_MAX - 5}};
    for (size_t i = 0; i < CZ_ARRAY_LEN(sizes); i++) {
        struct pt_layout l;
        ck_fails(pt_layout_make(&l, &(struct pt_create_options){.path = "a",
                                                                .storage_nbytes = sizes[i],
                                                                .n_storages = 2}),
                 CZ_INVALID);
    }
}
END_TEST

/* ---- files ------------------------------------------------------------------------------------
 */

/* protocol 2, one None: enough of a pickle where the storages are not looked at. */
static const unsigned char none_pickle[] = {0x80, 0x02, 'N', '.'};

enum { N_STORAGES = 6 };
static const uint64_t sizes[N_STORAGES] = {200000, 0, 1, 70001, 4096, 1 << 20};
static unsigned char *payloads[N_STORAGES];

static void make_payloads(void)
{
    uint32_t seed = 5;
    for (size_t i = 0; i < N_STORAGES; i++) {
        payloads[i] = malloc((size_t)sizes[i] + 1);
        ck_assert_ptr_nonnull(payloads[i]);
        for (size_t k = 0; k < sizes[i]; k++)
            payloads[i][k] = (unsigned char)((seed = seed * 1664525u + 1013904223u) >> 24);
    }
}

static void free_payloads(void)
{
    for (size_t i = 0; i < N_STORAGES; i++) free(payloads[i]);
}

static cz_status create(const char *path, struct pt_writer **w)
{
    return pt_create(&(struct pt_create_options){.path = path,
                                                 .pickle = none_pickle,
                                                 .pickle_nbytes = sizeof none_pickle,
                                                 .storage_nbytes = sizes,
                                                 .n_storages = N_STORAGES},
                     w);
}

static cz_status write_whole(struct pt_writer *w)
{
    for (size_t i = 0; i < N_STORAGES; i++)
        TRY(pt_write(w, i, 0, (size_t)sizes[i], payloads[i], NULL));
    return CZ_OK;
}

static cz_status save(const char *path, struct pt_written *written)
{
    struct pt_writer *w;
    TRY(create(path, &w));
    cz_status st = write_whole(w);
    if (st == CZ_OK) st = pt_finish(w, true, written);
    pt_writer_destroy(w);
    return st;
}

static char *load(const char *path, size_t *n)
{
    char *bytes;
    ck_ok(file_load(path, (size_t)1 << 31, &bytes, n));
    return bytes;
}

START_TEST(the_checksum_of_the_file_is_right)
{
    const char *dir = test_tmp_make();
    char *path = file_join(dir, "a.pt");
    struct pt_written written;
    size_t n;
    faults_clear();
    make_payloads();
    ck_ok(save(path, &written));
    char *bytes = load(path, &n);
    ck_assert_uint_eq(written.nbytes, n);
    ck_assert_uint_eq(written.crc, crc32_update(0, bytes, n));
    free(bytes);
    free(path);
    free_payloads();
    test_tmp_remove(dir);
}
END_TEST

enum { PIECE = 3001, N_THREADS = 8 };

struct job {
    size_t storage, off, nbytes;
};

struct shared {
    struct pt_writer *w;
    struct job *jobs;
    size_t n;
    atomic_size_t next;
};

static void *work(void *arg)
{
    struct shared *s = arg;
    for (size_t i; (i = atomic_fetch_add(&s->next, 1)) < s->n;) {
        const struct job *j = &s->jobs[i];
        uint32_t crc;
        const unsigned char *src = payloads[j->storage] + j->off;
        if (pt_write(s->w, j->storage, j->off, j->nbytes, src, &crc) != CZ_OK) return s;
        if (crc != crc32_update(0, src, j->nbytes)) return s;
    }
    return NULL;
}

/* Every storage in pieces, shuffled. */
static size_t make_jobs(struct job *jobs)
{
    size_t n = 0;
    uint32_t seed = 77;
    for (size_t s = 0; s < N_STORAGES; s++)
        for (size_t off = 0; off < sizes[s]; off += PIECE)
            jobs[n++] = (struct job){s, off, sizes[s] - off < PIECE ? sizes[s] - off : PIECE};
    for (size_t i = n; i-- > 1;) {
        size_t j = (seed = seed * 1664525u + 1013904223u) % (i + 1);
        struct job kept = jobs[i];
        jobs[i] = jobs[j];
        jobs[j] = kept;
    }
    return n;
}

START_TEST(threads_in_any_order_give_the_same_file)
{
    static struct job jobs[(1400000 / PIECE) + 8 * N_STORAGES];
    const char *dir = test_tmp_make();
    char *whole = file_join(dir, "x.pt"), *pieces = file_join(dir, "y.pt");
    struct pt_written a, b;
    pthread_t threads[N_THREADS];
    faults_clear();
    make_payloads();
    ck_ok(save(whole, &a));
    struct shared s = {.jobs = jobs, .n = make_jobs(jobs)};
    ck_ok(pt_create(&(struct pt_create_options){.path = pieces,
                                                .archive = "x",
                                                .pickle = none_pickle,
                                                .pickle_nbytes = sizeof none_pickle,
                                                .storage_nbytes = sizes,
                                                .n_storages = N_STORAGES},
                    &s.w));
    for (size_t t = 0; t < N_THREADS; t++)
        ck_assert_int_eq(pthread_create(&threads[t], NULL, work, &s), 0);
    for (size_t t = 0; t < N_THREADS; t++) {
        void *failed;
        pthread_join(threads[t], &failed);
        ck_assert_ptr_null(failed);
    }
    ck_ok(pt_finish(s.w, true, &b));
    for (size_t i = 0; i < N_STORAGES; i++)
        ck_assert_uint_eq(pt_storage_crc(s.w, i), crc32_update(0, payloads[i], (size_t)sizes[i]));
    pt_writer_destroy(s.w);
    size_t n_a, n_b;
    char *bytes_a = load(whole, &n_a), *bytes_b = load(pieces, &n_b);
    ck_assert_uint_eq(n_a, n_b);
    ck_assert_int_eq(memcmp(bytes_a, bytes_b, n_a), 0);
    ck_assert_uint_eq(a.crc, b.crc);
    free(bytes_a);
    free(bytes_b);
    free(whole);
    free(pieces);
    free_payloads();
    test_tmp_remove(dir);
}
END_TEST

START_TEST(misuse_is_refused)
{
    const char *dir = test_tmp_make();
    char *path = file_join(dir, "a.pt");
    struct pt_writer *w;
    faults_clear();
    make_payloads();
    ck_ok(create(path, &w));
    ck_fails(pt_write(w, N_STORAGES, 0, 1, payloads[0], NULL), CZ_INVALID);
    ck_fails(pt_write(w, 2, 0, 2, payloads[0], NULL), CZ_INVALID);
    ck_fails(pt_write(w, 2, UINT64_MAX, 2, payloads[0], NULL), CZ_INVALID);
    ck_fails(pt_finish(w, true, NULL), CZ_INVALID);
    ck_ok(pt_write(w, 0, 100, 100, payloads[0] + 100, NULL));
    ck_fails(pt_write(w, 0, 150, 100, payloads[0] + 150, NULL), CZ_INVALID);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "data/0"));
    ck_fails(pt_finish(w, true, NULL), CZ_INVALID);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "data/0"));
    ck_assert(!file_exists(path));
    pt_writer_destroy(w);
    ck_assert(!file_exists(path));
    ck_ok(create(path, &w));
    ck_fails(pt_rename(w), CZ_INVALID);
    ck_ok(write_whole(w));
    ck_ok(pt_finish(w, false, NULL));
    ck_fails(pt_write(w, 0, 0, 1, payloads[0], NULL), CZ_INVALID);
    ck_fails(pt_finish(w, false, NULL), CZ_INVALID);
    ck_assert(!file_exists(path));
    ck_ok(pt_rename(w));
    ck_fails(pt_rename(w), CZ_INVALID);
    ck_assert(file_exists(path));
    pt_writer_destroy(w);
    ck_assert(file_exists(path));
    ck_fails(create("/nonexistent-czero/a.pt", &w), CZ_IO);
    ck_assert_ptr_null(w);
    free(path);
    free_payloads();
    test_tmp_remove(dir);
}
END_TEST

/* ---- files that fail --------------------------------------------------------------------------
 */

START_TEST(every_failing_call_leaves_the_old_file)
{
    const char *dir = test_tmp_make();
    char *path = file_join(dir, "a.pt");
    struct pt_written good;
    size_t n_good;
    make_payloads();
    faults_clear();
    ck_ok(save(path, &good));
    long n_moments = faults_count(FAULT_ANY);
    char *want = load(path, &n_good);
    for (long moment = 0; moment < n_moments; moment++) {
        faults_clear();
        ck_ok(file_save(path, "old", 3));
        faults_clear();
        faults_plan(FAULT_ANY, moment, moment % 2 ? EIO : ENOSPC);
        cz_status st = save(path, &good);
        faults_clear();
        size_t n;
        char *got = load(path, &n);
        bool is_old = n == 3 && memcmp(got, "old", 3) == 0;
        bool is_new = n == n_good && memcmp(got, want, n) == 0;
        ck_assert(st == CZ_OK ? is_new : is_old || is_new);
        if (st != CZ_OK) ck_assert_ptr_nonnull(strstr(cz_last_error(), dir));
        free(got);
    }
    free(want);
    free(path);
    free_payloads();
    test_tmp_remove(dir);
}
END_TEST

START_TEST(short_writes_and_full_disks)
{
    const char *dir = test_tmp_make();
    char *path = file_join(dir, "a.pt");
    struct pt_written good, again;
    size_t n, n_again;
    make_payloads();
    faults_clear();
    ck_ok(save(path, &good));
    char *want = load(path, &n);
    for (uint32_t seed = 0; seed < 5; seed++) {
        faults_clear();
        faults_short_writes(seed * 123457);
        ck_ok(save(path, &again));
        char *got = load(path, &n_again);
        ck_assert_uint_eq(again.crc, good.crc);
        ck_assert(n_again == n && memcmp(got, want, n) == 0);
        free(got);
    }
    faults_clear();
    ck_ok(file_remove(path));
    for (long long room = 0; room < (long long)n; room += 99991) {
        faults_clear();
        faults_disk_full(room);
        ck_fails(save(path, &again), CZ_IO);
        ck_assert_ptr_nonnull(strstr(cz_last_error(), strerror(ENOSPC)));
        ck_assert(!file_exists(path));
    }
    free(want);
    free(path);
    free_payloads();
    test_tmp_remove(dir);
}
END_TEST

TEST_MAIN("formats/pt_write", offsets_are_torchs, large_files_use_zip64_where_torch_does,
          many_records_and_edges_of_32_bits, archives_are_named_as_torch_names_them,
          sizes_beyond_any_file_are_refused, the_checksum_of_the_file_is_right,
          threads_in_any_order_give_the_same_file, misuse_is_refused,
          every_failing_call_leaves_the_old_file, short_writes_and_full_disks)
