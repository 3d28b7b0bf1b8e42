/* Claim: files that a swap only reads give their bytes at any offset up to their last, through
 * every engine, past the page cache and through it; they are never written; one that is changed or
 * cut while it is in use makes an error that names it, and so does one that had changed before. */
#include "tests/unit/offload/swap_rig.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#define N_SOURCES 2
static const size_t source_nbytes[N_SOURCES] = {5 * SWAP_ALIGN + 1234, 77};

struct sources {
    char paths[N_SOURCES][256];
    unsigned char *bytes[N_SOURCES];
    struct swap_source sources[N_SOURCES];
};

static void sources_make(struct sources *x, const char *dir)
{
    struct stat info;
    for (int i = 0; i < N_SOURCES; i++) {
        snprintf(x->paths[i], sizeof x->paths[i], "%s/source-%d", dir, i);
        x->bytes[i] = swap_rig_memory(source_nbytes[i]);
        swap_rig_fill(x->bytes[i], source_nbytes[i], 5 + (uint64_t)i);
        int fd = open(x->paths[i], O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        ck_assert_int_eq(write(fd, x->bytes[i], source_nbytes[i]), (ssize_t)source_nbytes[i]);
        ck_assert_int_eq(fstat(fd, &info), 0);
        x->sources[i] = (struct swap_source){
            .fd = fd, .path = x->paths[i], .nbytes = source_nbytes[i], .mtime = info.st_mtim};
    }
}

static void sources_free(struct sources *x)
{
    for (int i = 0; i < N_SOURCES; i++) {
        close(x->sources[i].fd);
        unlink(x->paths[i]);
        free(x->bytes[i]);
    }
}

static struct swap *open_with(const char *dir, const struct swap_way *way, const struct sources *x)
{
    struct swap *s;
    ck_ok(swap_open(&(struct swap_options){.dir = dir,
                                           .nbytes = 2 * SWAP_ALIGN,
                                           .block_nbytes = SWAP_ALIGN,
                                           .checksums = way->checksums,
                                           .engine = way->engine,
                                           .sources = x->sources,
                                           .n_sources = N_SOURCES},
                    &s));
    return s;
}

/* `run` with every engine and both kinds of folder. */
static void each_way(void (*run)(const char *dir, const struct swap_way *way, struct sources *x))
{
    for (int fast = 0; fast < 2; fast++) {
        const char *dir = fast ? test_tmp_make_fast() : test_tmp_make();
        const bool has_uring = swap_has_uring(dir);
        for (size_t i = 0; i < CZ_ARRAY_LEN(swap_ways); i++) {
            struct sources x;
            if (swap_ways[i].engine == SWAP_ENGINE_URING && !has_uring) continue;
            sources_make(&x, dir);
            run(dir, &swap_ways[i], &x);
            sources_free(&x);
        }
        ck_assert_int_eq(swap_rig_entries(dir), 0);
        test_tmp_remove(dir);
    }
}

static void reads(const char *dir, const struct swap_way *way, struct sources *x)
{
    struct swap *s = open_with(dir, way, x);
    unsigned char *own = swap_rig_memory(SWAP_ALIGN), *buf = swap_rig_memory(6 * SWAP_ALIGN);
    uint64_t w, r, a;
    swap_rig_fill(own, SWAP_ALIGN, 9);
    ck_ok(swap_write_begin(s, own, SWAP_ALIGN, SWAP_ALIGN, &w));
    ck_ok(swap_read_begin(s, buf, swap_source_off(0, 0), 6 * SWAP_ALIGN, &r)); /* all of it */
    ck_ok(swap_wait(s, w));
    ck_ok(swap_wait(s, r));
    ck_assert_mem_eq(buf, x->bytes[0], source_nbytes[0]);
    ck_ok(swap_read_begin(s, buf, swap_source_off(1, 0), SWAP_ALIGN, &a));
    ck_ok(swap_read_begin(s, buf + SWAP_ALIGN, SWAP_ALIGN, SWAP_ALIGN, &r));
    ck_ok(swap_wait(s, a));
    ck_ok(swap_wait(s, r));
    ck_assert_mem_eq(buf, x->bytes[1], source_nbytes[1]);
    ck_assert_mem_eq(buf + SWAP_ALIGN, own, SWAP_ALIGN);
    for (size_t off = 0; off < source_nbytes[0]; off += 997) {
        const size_t n = source_nbytes[0] - off < 5000 ? source_nbytes[0] - off : 5000;
        ck_ok(swap_read(s, swap_source_off(0, off), n, buf));
        ck_assert_mem_eq(buf, x->bytes[0] + off, n);
    }
    swap_close(s);
    free(own);
    free(buf);
}

START_TEST(sources_are_read_at_any_offset_beside_the_swap_file)
{
    each_way(reads);
}
END_TEST

static void refuses(const char *dir, const struct swap_way *way, struct sources *x)
{
    struct swap *s = open_with(dir, way, x);
    unsigned char *buf = swap_rig_memory(8 * SWAP_ALIGN);
    uint64_t t;
    ck_fails(swap_write_begin(s, buf, swap_source_off(0, 0), SWAP_ALIGN, &t), CZ_INVALID);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "source-0 is only read"));
    ck_fails(swap_write(s, swap_source_off(1, 3), 4, buf), CZ_INVALID);
    ck_fails(swap_read_begin(s, buf, swap_source_off(0, 0), 7 * SWAP_ALIGN, &t), CZ_INVALID);
    ck_fails(swap_read_begin(s, buf, swap_source_off(1, SWAP_ALIGN), SWAP_ALIGN, &t), CZ_INVALID);
    ck_fails(swap_read_begin(s, buf, swap_source_off(2, 0), SWAP_ALIGN, &t), CZ_INVALID);
    ck_fails(swap_read(s, swap_source_off(N_SOURCES, 0), 1, buf), CZ_INVALID);
    ck_ok(swap_read(s, swap_source_off(1, 76), 1, buf)); /* no harm was done */
    ck_assert_mem_eq(buf, x->bytes[1] + 76, 1);
    swap_close(s);
    free(buf);
}

START_TEST(sources_are_never_written_and_have_an_end)
{
    each_way(refuses);
}
END_TEST

/* Fails with the file's name, at once and from then on. */
static void check_change(struct swap *s, const char *name)
{
    unsigned char *buf = swap_rig_memory(6 * SWAP_ALIGN);
    uint64_t t;
    ck_ok(swap_read_begin(s, buf, swap_source_off(0, 0), 6 * SWAP_ALIGN, &t));
    ck_fails(swap_wait(s, t), CZ_CORRUPT);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), name));
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "changed while the run reads it"));
    ck_fails(swap_read(s, 0, 1, buf), CZ_CORRUPT);
    swap_close(s);
    free(buf);
}

static void changes(const char *dir, const struct swap_way *way, struct sources *x)
{
    struct swap *s = open_with(dir, way, x);
    ck_assert_int_eq(ftruncate(x->sources[0].fd, 3 * SWAP_ALIGN), 0);
    check_change(s, "source-0");
    check_change(open_with(dir, way, x), "source-0"); /* before it was opened */
    sources_free(x);
    sources_make(x, dir);
    s = open_with(dir, way, x);
    ck_assert_int_eq(ftruncate(x->sources[0].fd, 0), 0);
    check_change(s, "source-0");
    sources_free(x);
    sources_make(x, dir);
    s = open_with(dir, way, x);
    usleep(20000); /* a tick of the file system's clock */
    ck_assert_int_eq(pwrite(x->sources[0].fd, "?", 1, 100), 1);
    check_change(s, "source-0");
}

START_TEST(a_source_that_changes_is_an_error_that_names_it)
{
    each_way(changes);
}
END_TEST

TEST_MAIN("offload/swap_sources", sources_are_read_at_any_offset_beside_the_swap_file,
          sources_are_never_written_and_have_an_end,
          a_source_that_changes_is_an_error_that_names_it)
