/* An allocator that fails once, in place of the C library's: for tests of what calls do without
 * memory. Include it in the one .c file of a test program.
 *
 *   no_memory_begin();                            in main, before the tests
 *   no_memory_each("fsck", run, path, 1500);      in a case: every allocation of run(path) fails
 *                                                 once
 *   no_memory_must("chat", run, path, 1500);      the same, and CZ_OK is wrong then, but for
 *                                                 what the C library allocates for itself
 *
 * A sanitizer has an allocator of its own: with one, NO_MEMORY_WORKS is not defined. */
#ifndef CZ_TESTS_NO_MEMORY_H
#define CZ_TESTS_NO_MEMORY_H

#include "tests/support/check_main.h"

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define NO_MEMORY_WORKS

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <malloc.h>
#include <stdatomic.h>
#include <string.h>

void *__libc_malloc(size_t nbytes);
void *__libc_calloc(size_t n, size_t nbytes);
void *__libc_realloc(void *p, size_t nbytes);
void *__libc_memalign(size_t align, size_t nbytes);
void __libc_free(void *p);

#define EXPORTED __attribute__((visibility("default"))) /* for the shared libraries, too */

static atomic_long n_calls, n_live, fails_at = -1;

/* The place in the code of every allocation of one call. */
enum { CALLERS_MAX = 1 << 16 };
static uintptr_t callers[CALLERS_MAX];
static bool callers_wanted;

/* Where libraries are that end the process when they get no memory, or have threads begun instead
 * (of which the C library keeps something): those get it. */
static struct range {
    uintptr_t begin, end;
} spared[16];
static int n_spared;

static inline int find_spared(struct dl_phdr_info *info, size_t nbytes, void *user)
{
    static const char *const names[] = {"libdnnl.",   "libgomp.", "libhwloc.",
                                        "libstdc++.", "ld-linux", "liburing."};
    (void)nbytes, (void)user;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (int k = 0; strstr(info->dlpi_name, names[i]) && k < info->dlpi_phnum; k++) {
            const ElfW(Phdr) *part = &info->dlpi_phdr[k];
            if (part->p_type != PT_LOAD || !(part->p_flags & PF_X)) continue;
            uintptr_t begin = info->dlpi_addr + part->p_vaddr;
            if (n_spared == 16) abort();
            spared[n_spared++] = (struct range){begin, begin + part->p_memsz};
        }
    return 0;
}

static bool must_fail(const void *caller)
{
    uintptr_t at = (uintptr_t)caller;
    if (test_is_marking) return false;
    for (int i = 0; i < n_spared; i++)
        if (at >= spared[i].begin && at < spared[i].end) return false;
    long i = atomic_fetch_add(&n_calls, 1);
    if (i < CALLERS_MAX && callers_wanted) callers[i] = at;
    if (i != atomic_load(&fails_at)) return false;
    errno = ENOMEM;
    return true;
}

static void *counted(void *p)
{
    if (p && !test_is_marking) atomic_fetch_add(&n_live, 1);
    return p;
}

#define CALLER __builtin_return_address(0)

EXPORTED void *malloc(size_t nbytes)
{
    return must_fail(CALLER) ? NULL : counted(__libc_malloc(nbytes));
}

EXPORTED void *calloc(size_t n, size_t nbytes)
{
    return must_fail(CALLER) ? NULL : counted(__libc_calloc(n, nbytes));
}

EXPORTED void *realloc(void *p, size_t nbytes)
{
    if (must_fail(CALLER)) return NULL;
    void *bigger = __libc_realloc(p, nbytes);
    return p ? bigger : counted(bigger);
}

EXPORTED void *reallocarray(void *p, size_t n, size_t nbytes)
{
    size_t all;
    if (!__builtin_mul_overflow(n, nbytes, &all)) return realloc(p, all);
    errno = ENOMEM;
    return NULL;
}

EXPORTED void *memalign(size_t align, size_t nbytes)
{
    return must_fail(CALLER) ? NULL : counted(__libc_memalign(align, nbytes));
}

EXPORTED void *aligned_alloc(size_t align, size_t nbytes)
{
    return must_fail(CALLER) ? NULL : counted(__libc_memalign(align, nbytes));
}

EXPORTED int posix_memalign(void **out, size_t align, size_t nbytes)
{
    if (must_fail(CALLER)) return ENOMEM;
    *out = counted(__libc_memalign(align, nbytes));
    return *out ? 0 : ENOMEM;
}

EXPORTED void free(void *p)
{
    if (p && !test_is_marking) atomic_fetch_sub(&n_live, 1);
    __libc_free(p);
}

static inline void no_memory_begin(void)
{
    n_spared = 0;
    dl_iterate_phdr(find_spared, NULL);
}

static inline bool is_first_of_its_place(long i)
{
    for (long k = 0; k < i; k++)
        if (callers[k] == callers[i]) return false;
    return true;
}

/* An allocation's place in the code, for addr2line. */
static inline const char *place_of(long i)
{
    static char text[200];
    Dl_info info = {0};
    if (!dladdr((void *)callers[i], &info)) return "?";
    const char *slash = strrchr(info.dli_fname, '/');
    snprintf(text, sizeof text, "%s %#zx", slash ? slash + 1 : info.dli_fname,
             (size_t)(callers[i] - (uintptr_t)info.dli_fbase));
    return text;
}

/* What listing a folder or reading a table of mounts takes: for such, there is another way. */
static inline bool is_of_libc(long i)
{
    Dl_info info = {0};
    return dladdr((void *)callers[i], &info) && strstr(info.dli_fname, "libc.so") &&
           !(info.dli_sname && strstr(info.dli_sname, "strdup"));
}

/* The call returns CZ_NOMEM, or CZ_OK without what it did not get, and leaks nothing. Twice without
 * a failure first: what libraries keep for good is allocated, and what a call leaves is known. Of
 * more than `most` allocations, that many fail, evenly spread, and the first of each place in the
 * code. */
static inline void no_memory_loop(const char *name, cz_status (*run)(const char *), const char *arg,
                                  long most, bool may_succeed)
{
    for (int i = 0; i < 2; i++) ck_ok(run(arg));
    long live = n_live;
    n_calls = 0;
    callers_wanted = true;
    ck_ok(run(arg));
    callers_wanted = false;
    long n = n_calls;
    ck_assert_int_le(n, CALLERS_MAX);
    ck_assert_int_eq(n_live, live);
    ck_assert_int_gt(n, 0);
    int n_wrong = 0;
    int n_failed = 0;
    for (long at = 0; at < n; at++) {
        if (at % (n / most + 1) != 0 && !is_first_of_its_place(at)) continue;
        n_failed++;
        n_calls = 0;
        fails_at = at;
        cz_status st = run(arg);
        fails_at = -1;
        const bool is_right = st == CZ_NOMEM || (st == CZ_OK && (may_succeed || is_of_libc(at)));
        if (!is_right || n_live != live) {
            n_wrong++;
            fprintf(stderr, "%s, allocation %ld of %ld (%s): %s, %ld blocks leak: %s (%s)\n", name,
                    at, n, place_of(at), cz_status_name(st), n_live - live, cz_last_error(),
                    cz_last_trace());
        }
        live = n_live;
    }
    ck_ok(run(arg));
    ck_assert_int_eq(n_wrong, 0);
    printf("%s: %d of %ld allocations\n", name, n_failed, n);
}

static inline void no_memory_each(const char *name, cz_status (*run)(const char *), const char *arg,
                                  long most)
{
    no_memory_loop(name, run, arg, most, true);
}

static inline void no_memory_must(const char *name, cz_status (*run)(const char *), const char *arg,
                                  long most)
{
    no_memory_loop(name, run, arg, most, false);
}

#endif
#endif
