/* Claims: a swap of several folders has a file in each, by their rates; it reads what was written
 * to it, wherever requests begin and end, through every engine and with checksums; a folder without
 * space, or one that fails, is named; nothing stays in any of them. */
#include "tests/unit/offload/swap_rig.h"

#include <dirent.h>
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

enum { N_DIRS = 3, BLOCK = 8192, N_STRIPES = 300, NBYTES = N_STRIPES * BLOCK + 3 * 4096 };

struct folders {
    const char *root;
    char paths[N_DIRS][192];
    const char *more[N_DIRS - 1];
};

static void folders_make(struct folders *f)
{
    f->root = test_tmp_make();
    for (int i = 0; i < N_DIRS; i++)
        snprintf(f->paths[i], sizeof f->paths[i], "%s/disk%d", f->root, i);
    for (int i = 1; i < N_DIRS; i++) f->more[i - 1] = f->paths[i];
}

static struct swap_options options_of(const struct folders *f, const double *rates)
{
    return (struct swap_options){.dir = f->paths[0],
                                 .nbytes = NBYTES,
                                 .block_nbytes = BLOCK,
                                 .more_dirs = f->more,
                                 .n_more_dirs = N_DIRS - 1,
                                 .rates = rates};
}

static off_t size_at(const char *path)
{
    struct stat info;
    ck_assert_int_eq(stat(path, &info), 0);
    return info.st_size;
}

/* Whole, then in pieces that begin and end anywhere. */
static void round_trip(const struct folders *f, const struct swap_way *way, const double *rates)
{
    struct swap_options o = options_of(f, rates);
    struct swap *s;
    uint64_t ticket, second;
    unsigned char *have = swap_rig_memory(NBYTES), *want = swap_rig_memory(NBYTES);
    o.engine = way->engine;
    o.checksums = way->checksums;
    ck_ok(swap_open(&o, &s));
    ck_ok(swap_register(s, have, NBYTES));
    ck_ok(swap_register(s, want, NBYTES));
    swap_rig_fill(want, NBYTES, 7);
    ck_ok(swap_write_begin(s, want, 0, NBYTES, &ticket));
    ck_ok(swap_read_after(s, have, 0, NBYTES, ticket, &second));
    ck_ok(swap_wait(s, second));
    ck_assert_mem_eq(have, want, NBYTES);
    for (size_t at = 0; at < NBYTES; at += 37 * 4096) {
        size_t n = NBYTES - at < 23 * 4096 ? NBYTES - at : 23 * 4096;
        memset(have, 0, n);
        ck_ok(swap_read_begin(s, have, at, n, &ticket));
        ck_ok(swap_wait(s, ticket));
        ck_assert_mem_eq(have, want + at, n);
        swap_rig_fill(want + at, n / 2, at);
        ck_ok(swap_write(s, at + 1001, n / 2, want + at));
        memcpy(have, want + at, n / 2);
        memset(want + at, 0, n / 2);
        ck_ok(swap_read(s, at + 1001, n / 2, want + at));
        ck_assert_mem_eq(have, want + at, n / 2);
        ck_ok(swap_write(s, at, n, want + at)); /* as the comparison after the next piece expects */
    }
    ck_fails(swap_read_begin(s, have, NBYTES - 4096, 8192, &ticket), CZ_INVALID);
    ck_assert_uint_ge(swap_counts(s).written_nbytes, NBYTES);
    swap_close(s);
    free(have);
    free(want);
}

START_TEST(what_is_written_over_several_folders_is_read_again)
{
    static const double rates[][N_DIRS] = {{1, 1, 1}, {3, 1, 0.5}, {1, 1000, 1}};
    struct folders f;
    folders_make(&f);
    bool has_uring = swap_has_uring(f.root);
    for (size_t w = 0; w < CZ_ARRAY_LEN(swap_ways); w++)
        for (size_t r = 0; r < CZ_ARRAY_LEN(rates); r++)
            if (swap_ways[w].engine != SWAP_ENGINE_URING || has_uring)
                round_trip(&f, &swap_ways[w], r ? rates[r] : NULL);
    for (int i = 0; i < N_DIRS; i++) ck_assert_int_ne(access(f.paths[i], F_OK), 0);
    test_tmp_remove(f.root);
}
END_TEST

START_TEST(files_are_as_large_as_their_folders_are_fast)
{
    static const double rates[N_DIRS] = {2, 5, 1};
    struct folders f;
    struct swap *s;
    folders_make(&f);
    const struct swap_options o = options_of(&f, rates);
    uint64_t sum = 0;
    ck_ok(swap_open(&o, &s));
    for (size_t i = 0; i < N_DIRS; i++) {
        uint64_t nbytes = swap_path_nbytes(&o, i);
        ck_assert_int_eq(size_at(swap_path_at(s, i)), (off_t)nbytes);
        ck_assert(strncmp(swap_path_at(s, i), f.paths[i], strlen(f.paths[i])) == 0);
        double share = (double)nbytes / NBYTES;
        ck_assert_msg(fabs(share - rates[i] / 8) < 0.02, "%g of folder %zu", share, i);
        sum += nbytes;
    }
    ck_assert_ptr_null(swap_path_at(s, N_DIRS));
    ck_assert(sum >= NBYTES && sum < NBYTES + BLOCK);
    swap_close(s);
    size_t one, all;
    ck_ok(swap_dir_free(f.paths[1], &one));
    ck_ok(swap_free_nbytes(&o, &all)); /* one disk here: its largest share decides */
    ck_assert_double_eq_tol((double)all, (double)one * 8 / 5, (double)one / 20);
    test_tmp_remove(f.root);
}
END_TEST

/* Stripes that follow each other are on different disks as far as shares allow. */
START_TEST(neighbours_are_on_different_disks)
{
    static const double rates[] = {2, 1, 1};
    static const char *const more[] = {"b", "c"};
    const struct swap_options o = {.dir = "a", .more_dirs = more, .n_more_dirs = 2, .rates = rates};
    struct swap_stripes s;
    int n[3] = {0};
    ck_ok(swap_stripes_make(&o, BLOCK, &s));
    for (uint64_t u = 0; u < 4 * SWAP_PERIOD; u++) {
        uint64_t off;
        size_t path = swap_stripes_find(&s, u * BLOCK + 5, &off);
        ck_assert_uint_eq(off, (uint64_t)n[path]++ * BLOCK + 5); /* side by side in the file */
        if (u % 4 == 3) ck_assert_int_eq(n[0], 2 * n[1]);
        if (u % 4 == 3) ck_assert_int_eq(n[1], n[2]);
    }
}
END_TEST

START_TEST(odd_folders_are_refused)
{
    static const char *const more[SWAP_PATHS_MAX] = {"b", "c", "d", "e", "f", "g", "h", "i"};
    static const double none[] = {1, 0}, lost[] = {1, INFINITY}, bad[] = {-1, 1};
    static const double *const rates[] = {none, lost, bad};
    struct swap *s;
    struct swap_options o = {.dir = "/tmp", .more_dirs = more, .n_more_dirs = SWAP_PATHS_MAX};
    ck_fails(swap_open(&o, &s), CZ_INVALID);
    o.n_more_dirs = 1;
    for (size_t i = 0; i < CZ_ARRAY_LEN(rates); i++) {
        o.rates = rates[i];
        ck_fails(swap_open(&o, &s), CZ_INVALID);
    }
}
END_TEST

/* Whichever of the folders it is; one that does not exist yet is where its parent is. */
START_TEST(folders_in_memory_are_named)
{
    static const char *const more[] = {"/proc", "/dev/shm/czero-none/below", "/dev/shm"};
    char text[SWAP_WARNING_NBYTES];
    struct swap_options o = {.dir = "/proc", .more_dirs = more};
    ck_assert_str_eq(swap_warn_of_memory(&o, text), "");
    o.n_more_dirs = 1;
    ck_assert_str_eq(swap_warn_of_memory(&o, text), "");
    if (system("stat -f -c %T /dev/shm | grep -q tmpfs") != 0) return;
    for (o.n_more_dirs = 2; o.n_more_dirs <= 3; o.n_more_dirs++)
        ck_assert_str_eq(swap_warn_of_memory(&o, text),
                         "/dev/shm/czero-none/below is in memory (tmpfs), so a swap file there "
                         "saves no memory. Name a folder on a disk.");
    o.dir = "/dev/shm";
    o.n_more_dirs = 0;
    ck_assert_int_eq(strncmp(swap_warn_of_memory(&o, text), "/dev/shm is in memory (", 23), 0);
}
END_TEST

/* A folder that cannot be had is named, and the others are as they were. */
START_TEST(a_folder_that_fails_is_named)
{
    struct folders f;
    struct swap *s;
    folders_make(&f);
    FILE *file = fopen(f.paths[2], "w"); /* a file where a folder should be */
    ck_assert_ptr_nonnull(file);
    fclose(file);
    const struct swap_options o = options_of(&f, NULL);
    ck_assert_int_ne(swap_open(&o, &s), CZ_OK);
    ck_assert_msg(strstr(cz_last_error(), f.paths[2]) != NULL, "%s", cz_last_error());
    ck_assert_int_ne(access(f.paths[0], F_OK), 0);
    ck_assert_int_ne(access(f.paths[1], F_OK), 0);
    test_tmp_remove(f.root);
}
END_TEST

static long fail_second(void *user, const struct swap_block *b, long result)
{
    return b->file == user ? -EIO : result;
}

static size_t ask_all(void *user, const struct swap_block *b, size_t nbytes)
{
    (void)user, (void)b;
    return nbytes;
}

START_TEST(a_disk_that_fails_is_named_with_its_file)
{
    struct folders f;
    struct swap *s;
    uint64_t ticket;
    unsigned char *memory = swap_rig_memory(NBYTES);
    folders_make(&f);
    const struct swap_options o = options_of(&f, NULL);
    ck_ok(swap_open(&o, &s));
    swap_set_fault(s, &(struct swap_fault){ask_all, fail_second, &s->more[1]});
    ck_ok(swap_read_begin(s, memory, 0, NBYTES, &ticket));
    ck_fails(swap_wait(s, ticket), CZ_IO);
    ck_assert_msg(strstr(cz_last_error(), swap_path_at(s, 2)) != NULL, "%s", cz_last_error());
    swap_close(s);
    free(memory);
    test_tmp_remove(f.root);
}
END_TEST

TEST_MAIN("offload/swap_stripes", folders_in_memory_are_named,
          what_is_written_over_several_folders_is_read_again,
          files_are_as_large_as_their_folders_are_fast, neighbours_are_on_different_disks,
          odd_folders_are_refused, a_folder_that_fails_is_named,
          a_disk_that_fails_is_named_with_its_file)
