/* Claims: where the memory that the host has left is short, the readers of JSON and pickles refuse
 * a file that would need more than half of it, before they ask for that memory; with enough left
 * they read the same file, and small files they always read.
 *
 * What the host has left comes from /proc/meminfo: open() is replaced in this test, and gives a
 * file of the test's own. */
#include "base/host/cgroup.h"
#include "formats/json/json.h"
#include "formats/pickle/pickle.h"
#include "tests/support/cost.h"

#include <fcntl.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

/* ---- a host with little memory --------------------------------------------------------------- */

static char meminfo[64]; /* "": the host's own */

int open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(args, mode_t) : 0;
    va_end(args);
    if (meminfo[0] && strcmp(path, "/proc/meminfo") == 0) path = meminfo;
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

static void set_available(size_t nbytes)
{
    snprintf(meminfo, sizeof meminfo, "/dev/shm/czero-meminfo-%d", (int)getpid());
    FILE *f = fopen(meminfo, "w");
    ck_assert_ptr_nonnull(f);
    fprintf(f, "MemTotal: %zu kB\nMemAvailable: %zu kB\n", (size_t)1 << 20, nbytes >> 10);
    ck_assert_int_eq(fclose(f), 0);
}

static void set_own(void)
{
    unlink(meminfo);
    meminfo[0] = '\0';
}

/* ---- inputs ---------------------------------------------------------------------------------- */

struct input {
    char *bytes;
    size_t nbytes;
    cz_status (*read)(const struct input *in);
};

static cz_status read_json(const struct input *in)
{
    struct json_doc *doc;
    cz_status st = json_parse(in->bytes, in->nbytes, "f", JSON_STRICT, &doc);
    if (st == CZ_OK) json_free(doc);
    return st;
}

static cz_status read_pickle(const struct input *in)
{
    struct pickle *tree;
    cz_status st = pickle_parse(in->bytes, in->nbytes, "f", &tree);
    if (st == CZ_OK) pickle_free(tree);
    return st;
}

/* [0,0, … 0]: a value for two bytes. */
static struct input make_json(size_t n_values)
{
    struct input in = {malloc(2 * n_values + 1), 2 * n_values + 1, read_json};
    ck_assert_ptr_nonnull(in.bytes);
    for (size_t i = 0; i < n_values; i++) memcpy(in.bytes + 1 + 2 * i, "0,", 2);
    in.bytes[0] = '[';
    in.bytes[2 * n_values] = ']';
    return in;
}

/* A tuple of empty lists: a value for a byte. */
static struct input make_pickle(size_t n_values)
{
    struct input in = {malloc(n_values + 5), n_values + 5, read_pickle};
    ck_assert_ptr_nonnull(in.bytes);
    memcpy(in.bytes, "\x80\x02(", 3);
    memset(in.bytes + 3, ']', n_values);
    memcpy(in.bytes + 3 + n_values, "t.", 2);
    return in;
}

/* ---- reading --------------------------------------------------------------------------------- */

static void read_whole(const void *user)
{
    const struct input *in = user;
    if (in->read(in) != CZ_OK) _exit(1);
}

static void read_refused(const void *user)
{
    const struct input *in = user;
    if (in->read(in) != CZ_NOMEM) _exit(1);
}

static void check_refusal(const struct input *in, size_t available, const char *part)
{
    const double whole = cost_of(read_whole, in).nbytes;
    set_available(available);
    ck_assert_uint_le(host_memory_left(), available);
    ck_assert_double_gt(whole, (double)available / 2); /* or there was nothing to refuse */
    ck_fails(in->read(in), CZ_NOMEM);
    ck_assert_msg(strstr(cz_last_error(), part) != NULL, "\"%s\" is not in: %s", part,
                  cz_last_error());
    const double refused = cost_of(read_refused, in).nbytes;
    ck_assert_msg(refused < 0.75 * whole, "%g bytes were taken before it was refused, of %g",
                  refused, whole);
    set_own();
    ck_ok(in->read(in));
    free(in->bytes);
}

START_TEST(json_that_needs_too_much_is_refused)
{
    const struct input in = make_json(2 * MIB - 1);
    check_refusal(&in, 32 * MIB, "no memory for 2097152 JSON values");
}
END_TEST

START_TEST(a_pickle_that_needs_too_much_is_refused)
{
    const struct input in = make_pickle(MIB);
    check_refusal(&in, 64 * MIB, "values need more than half of the host's free memory");
}
END_TEST

START_TEST(small_files_are_read)
{
    const struct input json = make_json(1000), pickle = make_pickle(1000);
    set_available(MIB);
    ck_ok(json.read(&json));
    ck_ok(pickle.read(&pickle));
    set_own();
    free(json.bytes);
    free(pickle.bytes);
}
END_TEST

TEST_MAIN_SECONDS(60, "formats/short_memory", json_that_needs_too_much_is_refused,
                  a_pickle_that_needs_too_much_is_refused, small_files_are_read)
