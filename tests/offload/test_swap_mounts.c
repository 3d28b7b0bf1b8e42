/* Claim: every size round-trips on ext4, xfs, tmpfs and overlay, with folders made and removed; and
 * a file system that is too small is refused with the bytes needed and free, and stays empty. Needs
 * the right to mount; what cannot be mounted here is left out by name. */
#include "swap_rig.h"

#include <fcntl.h>
#include <sched.h>
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
    /* Two of 7 MiB fit, a third does not, and the two go on. */
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

/* A disk without even the room for names. */
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

int main(void)
{
    const TTest *const cases[] = {every_size_round_trips_on_every_file_system,
                                  a_full_disk_is_said_at_the_start_and_stays_empty,
                                  a_disk_without_room_for_a_name_is_refused,
                                  a_read_only_disk_is_refused};
    if (!may_mount()) {
        printf("skipped: file systems may not be mounted here\n");
        return TEST_SKIPPED;
    }
    return test_run("offload/swap_mounts", cases, (int)CZ_ARRAY_LEN(cases));
}
