/* Claim: every size round-trips on ext4, xfs, tmpfs and overlay, with folders made and removed; and
 * a file system that is too small is refused with the bytes needed and free, and stays empty. Needs
 * the right to mount; what cannot be mounted here is left out by name. */
#include "base/clock.h"
#include "tests/unit/offload/swap_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>

static const char *base; /* a folder of our own */

static const char *below(const char *name)
{
    static char paths[4][256];
    static int turn;
    char *path = paths[turn++ & 3];
    snprintf(path, sizeof paths[0], "%s/%s", base, name);
    return path;
}

static bool shell(const char *fmt, const char *a, const char *b)
{
    char command[1024];
    snprintf(command, sizeof command, fmt, a, b);
    return system(command) == 0;
}

/* Mounts of this process only: they go with it, whatever happens. */
static bool may_mount(void)
{
    if (geteuid() != 0 || unshare(CLONE_NEWNS) != 0) return false;
    return mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0;
}

static bool mount_image(const char *mkfs, const char *image_nbytes)
{
    mkdir(below("m"), 0700);
    return shell("truncate -s %2$s '%1$s/image'", base, image_nbytes) &&
           shell("%s '%s/image' >/dev/null 2>&1", mkfs, base) &&
           shell("mount -o loop '%s/image' '%s' 2>/dev/null", base, below("m"));
}

/* Over a tmpfs, as a container's. */
static bool mount_overlay(const char *mkfs, const char *image_nbytes)
{
    char options[1024];
    (void)mkfs;
    (void)image_nbytes;
    mkdir(below("m"), 0700);
    mkdir(below("under"), 0700);
    if (mount("tmpfs", below("under"), "tmpfs", 0, "size=64m") != 0) return false;
    mkdir(below("under/low"), 0700);
    mkdir(below("under/up"), 0700);
    mkdir(below("under/work"), 0700);
    snprintf(options, sizeof options, "lowerdir=%s,upperdir=%s,workdir=%s", below("under/low"),
             below("under/up"), below("under/work"));
    bool done = mount("overlay", below("m"), "overlay", 0, options) == 0;
    umount2(below("under"), MNT_DETACH); /* goes with the overlay */
    return done;
}

static bool mount_tmpfs(const char *mkfs, const char *image_nbytes)
{
    char options[64];
    (void)mkfs;
    snprintf(options, sizeof options, "size=%s", image_nbytes);
    mkdir(below("m"), 0700);
    return mount("tmpfs", below("m"), "tmpfs", 0, options) == 0;
}

/* Refuses O_DIRECT, reserves nothing, does not tell how large it is. */
static bool mount_ramfs(const char *mkfs, const char *image_nbytes)
{
    (void)mkfs;
    (void)image_nbytes;
    mkdir(below("m"), 0700);
    return mount("ramfs", below("m"), "ramfs", 0, NULL) == 0;
}

static const struct kind {
    const char *name, *mkfs, *image_nbytes;
    bool (*mount)(const char *mkfs, const char *image_nbytes);
} kinds[] = {{"ext4", "mkfs.ext4 -q", "64M", mount_image},
             {"ext4 of 1 KiB blocks", "mkfs.ext4 -q -b 1024", "64M", mount_image},
             {"ext3", "mkfs.ext3 -q", "64M", mount_image}, /* reserves nothing: zeros are written */
             {"xfs", "mkfs.xfs -q -f", "320M", mount_image},
             {"btrfs", "mkfs.btrfs -q -f", "320M", mount_image},
             {"vfat", "mkfs.vfat", "64M", mount_image},
             {"tmpfs", "", "64m", mount_tmpfs},
             {"ramfs", "", "", mount_ramfs},
             {"overlay", "", "", mount_overlay}};

static void every_size(const char *dir)
{
    bool has_uring = swap_has_uring(dir);
    for (size_t i = 0; i < CZ_ARRAY_LEN(swap_ways); i++) {
        if (swap_ways[i].engine == SWAP_ENGINE_URING && !has_uring) continue;
        swap_rig_unaligned(dir, &swap_ways[i]);
        swap_rig_aligned(dir, &swap_ways[i]);
    }
}

static void say_how(const char *kind, const char *dir)
{
    struct swap *s = swap_rig_open(dir, &(struct swap_way){0}, SWAP_ALIGN, 0, 0);
    printf("%s: %s\n", kind, swap_describe(s));
    if (!strcmp(kind, "ramfs")) ck_assert_ptr_nonnull(strstr(swap_describe(s), "page cache"));
    swap_close(s);
}

START_TEST(every_size_round_trips_on_every_file_system)
{
    int n_tried = 0;
    base = test_tmp_make();
    for (size_t i = 0; i < CZ_ARRAY_LEN(kinds); i++) {
        if (!kinds[i].mount(kinds[i].mkfs, kinds[i].image_nbytes)) {
            printf("left out: %s cannot be mounted here\n", kinds[i].name);
            continue;
        }
        n_tried++;
        int n_before = swap_rig_entries(below("m"));
        say_how(kinds[i].name, below("m"));
        every_size(below("m/made/for it"));
        ck_assert_int_eq(swap_rig_entries(below("m")), n_before);
        ck_assert_int_eq(umount2(below("m"), 0), 0); /* nothing is open there */
        unlink(below("image"));
    }
    ck_assert_int_gt(n_tried, 0);
    test_tmp_remove(base);
}
END_TEST

/* ---- full ones --------------------------------------------------------------------------------
 */

static void refused_for_space(const char *dir, size_t nbytes)
{
    struct swap *s;
    char need[64];
    size_t n_free;
    ck_fails(swap_open(&(struct swap_options){.dir = dir, .nbytes = nbytes}, &s), CZ_IO);
    snprintf(need, sizeof need, "(%zu bytes) does not fit, ", nbytes);
    ck_assert_msg(strstr(cz_last_error(), need) != NULL, "%s", cz_last_error());
    ck_ok(swap_dir_free(dir, &n_free));
    snprintf(need, sizeof need, "(%zu bytes) are free there", n_free);
    ck_assert_msg(strstr(cz_last_error(), need) != NULL, "%s", cz_last_error());
    ck_assert_int_eq(swap_rig_entries(below("m")), 0);
}

START_TEST(a_full_disk_is_said_at_the_start_and_stays_empty)
{
    struct swap *s;
    size_t n_free, n_free_after;
    base = test_tmp_make();
    ck_assert(mount_tmpfs("", "16m"));
    ck_ok(swap_dir_free(below("m"), &n_free));
    ck_assert_uint_le(n_free, 16 << 20);
    refused_for_space(below("m/x/y"), (size_t)17 << 20);
    refused_for_space(below("m"), (size_t)64 << 20);
    ck_ok(swap_dir_free(below("m"), &n_free_after));
    ck_assert_uint_eq(n_free, n_free_after);
    /* Two of 7 MiB fit, a third does not, and the two continue. */
    struct swap *two[2];
    for (int i = 0; i < 2; i++) two[i] = swap_rig_open(below("m/x"), &swap_ways[1], 7 << 20, 0, 0);
    ck_fails(swap_open(&(struct swap_options){.dir = below("m/x"), .nbytes = 7 << 20}, &s), CZ_IO);
    unsigned char *buf = swap_rig_memory(7 << 20);
    for (int i = 0; i < 2; i++) {
        uint64_t ticket;
        ck_ok(swap_write_begin(two[i], buf, 0, 7 << 20, &ticket));
        ck_ok(swap_drain(two[i]));
        swap_close(two[i]);
    }
    free(buf);
    ck_assert_int_eq(swap_rig_entries(below("m")), 0);
    ck_assert_int_eq(umount2(below("m"), 0), 0);
    test_tmp_remove(base);
}
END_TEST

/* A disk without even the space for names. */
START_TEST(a_disk_without_room_for_a_name_is_refused)
{
    struct swap *s;
    base = test_tmp_make();
    mkdir(below("m"), 0700);
    ck_assert_int_eq(mount("tmpfs", below("m"), "tmpfs", 0, "size=1m,nr_inodes=3"), 0);
    ck_fails(swap_open(&(struct swap_options){.dir = below("m/x/y/z"), .nbytes = 100}, &s), CZ_IO);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "No space left on device"));
    ck_assert_int_eq(swap_rig_entries(below("m")), 0);
    ck_assert_int_eq(umount2(below("m"), 0), 0);
    test_tmp_remove(base);
}
END_TEST

START_TEST(a_read_only_disk_is_refused)
{
    struct swap *s;
    base = test_tmp_make();
    mkdir(below("m"), 0700);
    ck_assert_int_eq(mount("tmpfs", below("m"), "tmpfs", MS_RDONLY, "size=1m"), 0);
    ck_fails(swap_open(&(struct swap_options){.dir = below("m"), .nbytes = 100}, &s), CZ_IO);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "Read-only file system"));
    ck_fails(swap_open(&(struct swap_options){.dir = below("m/x"), .nbytes = 100}, &s), CZ_IO);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "Read-only file system"));
    umount2(below("m"), 0);
    test_tmp_remove(base);
}
END_TEST

/* ---- disks that go wrong under way ------------------------------------------------------------
 */

#define FS_SHUTDOWN _IOR('X', 125, uint32_t) /* of ext4 and xfs */

static void shut_down(const char *dir)
{
    uint32_t how = 2; /* at once, nothing is flushed */
    int fd = open(dir, O_RDONLY);
    ck_assert_int_ge(fd, 0);
    int n = ioctl(fd, FS_SHUTDOWN, &how);
    close(fd);
    ck_assert_int_eq(n, 0);
}

/* What comes back is right, or is an error within a second that stays. Returns whether it failed.
 */
static bool fails_or_is_right(struct swap *s, const unsigned char *want, size_t nbytes)
{
    unsigned char *got = swap_rig_memory(nbytes);
    uint64_t ticket = 0;
    int64_t since = clock_now_ns();
    cz_status st = swap_read_begin(s, got, 0, nbytes, &ticket);
    if (st == CZ_OK) st = swap_wait(s, ticket);
    ck_assert_int_lt(clock_now_ns() - since, 1000000000);
    if (st == CZ_OK) ck_assert_mem_eq(got, want, nbytes);
    ck_assert_int_eq(swap_drain(s), st);
    if (st != CZ_OK) ck_assert_ptr_nonnull(strstr(cz_last_error(), swap_path(s)));
    free(got);
    return st != CZ_OK;
}

START_TEST(a_disk_that_dies_under_way_is_an_error)
{
    size_t n = 4 << 20;
    unsigned char *buf = swap_rig_memory(n);
    swap_rig_fill(buf, n, 1);
    base = test_tmp_make();
    for (size_t i = 0; i < 4; i++) {
        const struct kind *kind = &kinds[i % 2 ? 3 : 0]; /* xfs, ext4 */
        struct swap *s;
        uint64_t ticket;
        if (!kind->mount(kind->mkfs, kind->image_nbytes)) continue;
        struct swap_options o = {.dir = below("m/x"),
                                 .nbytes = n,
                                 .engine = i < 2 ? SWAP_ENGINE_AUTO : SWAP_ENGINE_THREADS};
        ck_ok(swap_open(&o, &s));
        ck_ok(swap_write_begin(s, buf, 0, n, &ticket));
        ck_ok(swap_wait(s, ticket));
        shut_down(below("m"));
        ck_assert(fails_or_is_right(s, buf, n));
        ck_assert_ptr_nonnull(strstr(cz_last_error(), "Input/output error"));
        swap_close(s);
        ck_assert_int_eq(umount2(below("m"), 0), 0);
        unlink(below("image"));
    }
    free(buf);
    test_tmp_remove(base);
}
END_TEST

/* A disk that promises more than there is behind it, as thin volumes do. */
static bool mount_thin(void)
{
    mkdir(below("under"), 0700);
    mkdir(below("m"), 0700);
    return mount("tmpfs", below("under"), "tmpfs", 0, "size=16m") == 0 &&
           shell("truncate -s %2$s '%1$s/under/image'", base, "64M") &&
           shell("%s '%s/under/image' >/dev/null 2>&1", "mkfs.ext4 -q -O ^has_journal", base) &&
           shell("mount -o loop '%s/under/image' '%s' 2>/dev/null", base, below("m"));
}

static long never_direct(void *user, const struct swap_block *b, long result)
{
    (void)user;
    return b->was_direct ? -EINVAL : result;
}

/* Written pages reach the disk, or not, and are forgotten. */
static void forget_cache(const char *path)
{
    int fd = open(path, O_RDWR);
    ck_assert_int_ge(fd, 0);
    (void)fdatasync(fd); /* fails, as it should */
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
}

static void thin(enum swap_engine engine, bool is_cached)
{
    size_t n = 32 << 20;
    unsigned char *buf = swap_rig_memory(n);
    struct swap *s;
    uint64_t ticket;
    swap_rig_fill(buf, n, 1);
    ck_ok(swap_open(&(struct swap_options){.dir = below("m"), .nbytes = n, .engine = engine}, &s));
    if (is_cached) swap_set_fault(s, &(struct swap_fault){.result = never_direct});
    cz_status st = swap_write_begin(s, buf, 0, n, &ticket);
    if (st == CZ_OK) st = swap_wait(s, ticket);
    if (is_cached) {
        ck_assert_ptr_nonnull(strstr(swap_describe(s), "page cache"));
        forget_cache(swap_path(s));
        ck_assert(fails_or_is_right(s, buf, n));
    } else {
        ck_assert_int_eq(st, CZ_IO);
        ck_assert_msg(strstr(cz_last_error(), "writing 1.00 MiB at offset "), "%s",
                      cz_last_error());
    }
    swap_close(s);
    free(buf);
}

START_TEST(a_disk_that_fills_under_way_is_an_error)
{
    base = test_tmp_make();
    for (int i = 0; i < 4; i++) {
        if (!mount_thin()) break;
        thin(i % 2 ? SWAP_ENGINE_THREADS : SWAP_ENGINE_AUTO, i < 2);
        umount2(below("m"), MNT_DETACH);
        umount2(below("under"), MNT_DETACH);
    }
    test_tmp_remove(base);
}
END_TEST

int main(void)
{
    const TTest *const cases[] = {every_size_round_trips_on_every_file_system,
                                  a_full_disk_is_said_at_the_start_and_stays_empty,
                                  a_disk_without_room_for_a_name_is_refused,
                                  a_read_only_disk_is_refused,
                                  a_disk_that_dies_under_way_is_an_error,
                                  a_disk_that_fills_under_way_is_an_error};
    if (!may_mount()) {
        printf("skipped: file systems may not be mounted here\n");
        return TEST_SKIPPED;
    }
    return test_run("offload/swap_mounts", cases, (int)CZ_ARRAY_LEN(cases));
}
