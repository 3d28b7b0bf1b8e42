/* Claim: where a sandbox refuses io_uring, threads do the same work; where memory may not be
 * pinned, buffers work unregistered; where there is no O_DIRECT, the page cache serves. Each is
 * said once. CZERO_IO chooses, and a wish that cannot be granted is an error. */
#include "base/clock.h"
#include "base/log.h"
#include "tests/unit/offload/swap_rig.h"

#include <errno.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static char said[4096];

static void remember(enum cz_log_level level, const char *line, void *user)
{
    (void)level;
    (void)user;
    strncat(said, line, sizeof said - strlen(said) - 2);
    strcat(said, "\n");
}

static int n_said(const char *words)
{
    int n = 0;
    for (const char *at = said; (at = strstr(at, words)); at += strlen(words)) n++;
    return n;
}

/* From now on this process is told `error` when it calls `call`. False: no such sandbox here. */
static bool refuse(unsigned call, unsigned error) /* its threads too */
{
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog filter = {.len = CZ_ARRAY_LEN(rules), .filter = rules};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter) == 0;
}

static struct swap *open_auto(const char *dir)
{
    return swap_rig_open(dir, &(struct swap_way){0}, 1 << 20, 64 << 10, 0);
}

static void check_works(const char *dir, const char *how)
{
    swap_rig_unaligned(dir, &(struct swap_way){0});
    swap_rig_aligned(dir, &(struct swap_way){0});
    struct swap *s = open_auto(dir);
    ck_assert_str_eq(swap_describe(s), how);
    swap_close(s);
}

/* ---- io_uring ---------------------------------------------------------------------------------
 */

static void sandboxed(unsigned call, unsigned error)
{
    const char *dir = test_tmp_make();
    struct swap *s;
    if (!refuse(call, error)) {
        printf("left out: seccomp filters are not to be had here\n");
        test_tmp_remove(dir);
        return;
    }
    cz_log_set_sink(remember, NULL);
    check_works(dir, "threads, O_DIRECT");
    ck_assert_int_eq(n_said("io_uring is not to be had here"), 1);
    ck_assert_ptr_nonnull(strstr(said, strerror((int)error)));
    struct swap_options o = {.dir = dir, .nbytes = 1, .engine = SWAP_ENGINE_URING};
    ck_fails(swap_open(&o, &s), CZ_UNSUPPORTED);
    ck_assert_int_eq(swap_rig_entries(dir), 0);
    test_tmp_remove(dir);
}

START_TEST(a_sandbox_without_rings_gets_threads)
{
    sandboxed(SYS_io_uring_setup, EPERM);
}
END_TEST

START_TEST(a_kernel_without_rings_gets_threads)
{
    sandboxed(SYS_io_uring_setup, ENOSYS);
}
END_TEST

START_TEST(a_sandbox_whose_rings_do_nothing_gets_threads)
{
    sandboxed(SYS_io_uring_enter, EPERM);
}
END_TEST

START_TEST(rings_without_registration_work)
{
    const char *dir = test_tmp_make();
    if (swap_has_uring(dir) && refuse(SYS_io_uring_register, EPERM)) {
        cz_log_set_sink(remember, NULL);
        struct swap *s = open_auto(dir);
        const char *how = swap_describe(s);
        swap_close(s);
        check_works(dir, how); /* what a kernel can do is asked by registering: threads, mostly */
    }
    test_tmp_remove(dir);
}
END_TEST

START_TEST(rings_that_are_taken_away_end_in_an_error_within_a_second)
{
    const char *dir = test_tmp_make();
    if (swap_has_uring(dir)) {
        struct swap *s = open_auto(dir);
        unsigned char *buf = swap_rig_memory(1 << 20);
        uint64_t ticket;
        ck_ok(swap_write_begin(s, buf, 0, 1 << 20, &ticket));
        ck_ok(swap_drain(s));
        if (refuse(SYS_io_uring_enter, EPERM)) {
            int64_t since = clock_now_ns();
            cz_status st = swap_write_begin(s, buf, 0, 1 << 20, &ticket);
            if (st == CZ_OK)
                st = swap_wait(s, ticket); /* what the thread waits for may come first */
            if (st == CZ_OK) st = swap_write(s, 5, 1, "x");
            ck_assert_int_eq(st, CZ_IO);
            ck_assert_ptr_nonnull(strstr(cz_last_error(), "accepts no more requests"));
            ck_assert_int_lt(clock_now_ns() - since, 1000000000);
            ck_fails(swap_drain(s), CZ_IO);
        }
        swap_close(s);
        free(buf);
    }
    ck_assert_int_eq(swap_rig_entries(dir), 0);
    test_tmp_remove(dir);
}
END_TEST

/* ---- wishes -----------------------------------------------------------------------------------
 */

START_TEST(the_environment_chooses)
{
    const char *dir = test_tmp_make();
    struct swap *s;
    struct swap_options o = {.dir = dir, .nbytes = 1};
    setenv("CZERO_IO", "threads", 1);
    check_works(dir, "threads, O_DIRECT");
    setenv("CZERO_IO", "libaio", 1);
    ck_fails(swap_open(&o, &s), CZ_INVALID);
    ck_assert_str_eq(cz_last_error(), "CZERO_IO=libaio: there is uring and threads");
    setenv("CZERO_IO", "uring", 1);
    if (swap_open(&o, &s) == CZ_OK) {
        ck_assert_ptr_nonnull(strstr(swap_describe(s), "io_uring"));
        swap_close(s);
    }
    if (refuse(SYS_io_uring_setup, EPERM)) {
        ck_fails(swap_open(&o, &s), CZ_UNSUPPORTED);
        ck_assert_ptr_nonnull(strstr(cz_last_error(), "CZERO_IO=uring"));
        ck_assert_ptr_nonnull(strstr(cz_last_error(), "Operation not permitted"));
    }
    ck_assert_int_eq(swap_rig_entries(dir), 0);
    test_tmp_remove(dir);
}
END_TEST

/* ---- pinned memory ----------------------------------------------------------------------------
 */

static bool drop_ipc_lock(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2];
    if (syscall(SYS_capget, &header, data) != 0) return false;
    data[CAP_IPC_LOCK / 32].effective &= ~(1u << (CAP_IPC_LOCK % 32));
    data[CAP_IPC_LOCK / 32].permitted &= ~(1u << (CAP_IPC_LOCK % 32));
    return syscall(SYS_capset, &header, data) == 0;
}

/* The limit counts what all processes of the user pin, and newer kernels count the ring itself. */
START_TEST(buffers_that_may_not_be_pinned_work)
{
    static const rlim_t limits[] = {0, 256 << 10, 8 << 20};
    const char *dir = test_tmp_make();
    size_t n = 16 << 20;
    unsigned char *buf = swap_rig_memory(n);
    if (swap_has_uring(dir) && drop_ipc_lock()) {
        cz_log_set_sink(remember, NULL);
        for (size_t i = 0; i < CZ_ARRAY_LEN(limits); i++) {
            uint64_t ticket;
            ck_assert_int_eq(setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){limits[i], 8 << 20}), 0);
            struct swap *s = swap_rig_open(dir, &(struct swap_way){0}, n, 1 << 20, 0);
            ck_ok(swap_register(s, buf, n));
            ck_assert_ptr_null(strstr(swap_describe(s), "registered"));
            ck_ok(swap_write_begin(s, buf, 0, n, &ticket));
            ck_ok(swap_wait(s, ticket));
            swap_close(s);
        }
        ck_assert_int_le(n_said("registers no buffers"), 1);
        ck_assert_int_gt(n_said("registers no buffers") + n_said("io_uring is not to be had"), 0);
        ck_assert_int_gt(n_said("Cannot allocate memory"), 0);
    }
    free(buf);
    test_tmp_remove(dir);
}
END_TEST

/* ---- the page cache ---------------------------------------------------------------------------
 */

static long refuse_direct(void *user, const struct swap_block *b, long result)
{
    (void)user;
    return b->was_direct ? -EINVAL : result;
}

/* A file system may take the flag and refuse the transfers, also those that are under way. */
START_TEST(transfers_past_the_page_cache_may_be_refused_late)
{
    const char *dir = test_tmp_make();
    cz_log_set_sink(remember, NULL);
    for (int i = 1; i <= 2; i++) {
        setenv("CZERO_IO", i == 1 ? "threads" : "uring", 1);
        struct swap *s;
        if (swap_open(&(struct swap_options){.dir = dir, .nbytes = 1 << 20, .block_nbytes = 8192},
                      &s) != CZ_OK)
            continue;
        unsigned char *src = swap_rig_memory(1 << 20), *dst = swap_rig_memory(1 << 20);
        uint64_t ticket;
        swap_set_fault(s, &(struct swap_fault){.result = refuse_direct});
        swap_rig_fill(src, 1 << 20, 5);
        ck_ok(swap_write_begin(s, src, 0, 1 << 20, &ticket));
        ck_ok(swap_drain(s));
        ck_ok(swap_read_begin(s, dst, 0, 1 << 20, &ticket));
        ck_ok(swap_drain(s));
        ck_assert_mem_eq(dst, src, 1 << 20);
        ck_assert_ptr_nonnull(strstr(swap_describe(s), "page cache"));
        swap_close(s);
        free(src);
        free(dst);
    }
    ck_assert_int_eq(n_said("O_DIRECT is not supported there"), 1);
    test_tmp_remove(dir);
}
END_TEST

TEST_MAIN("offload/swap_refused", a_sandbox_without_rings_gets_threads,
          a_kernel_without_rings_gets_threads, a_sandbox_whose_rings_do_nothing_gets_threads,
          rings_without_registration_work,
          rings_that_are_taken_away_end_in_an_error_within_a_second, the_environment_chooses,
          buffers_that_may_not_be_pinned_work, transfers_past_the_page_cache_may_be_refused_late)
