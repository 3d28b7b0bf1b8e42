/* An allocator whose blocks end at a page that nothing may touch, in place of the C library's: a
 * read or write behind a block, or after its end, ends the process, and free() finds bytes written
 * around a block. Reads of up to 15 bytes behind a block are seen only where its size is a multiple
 * of 16. Include it in the one .c file of a test program.
 *
 *   guarded_begin();   in a case, which is a process of its own: every block from here on
 *
 * A sanitizer has an allocator of its own, which sees more: with one, nothing is replaced. */
#ifndef CZ_TESTS_GUARDED_MEMORY_H
#define CZ_TESTS_GUARDED_MEMORY_H

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static inline void guarded_begin(void) {}
#else

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

void *__libc_malloc(size_t nbytes);
void *__libc_calloc(size_t n, size_t nbytes);
void *__libc_realloc(void *p, size_t nbytes);
void __libc_free(void *p);

#define GUARDED_EXPORTED __attribute__((visibility("default"))) /* for the shared libraries, too   \
                                                                 */

enum { GUARDED_PAGE = 4096, GUARDED_ALIGN = 16, GUARDED_MARK = 0xA5 };
#define GUARDED_NBYTES ((size_t)1 << 42)                        /* of addresses, each used once */

static struct {
    char *begin; /* NULL: not begun */
    _Atomic size_t used;
} guarded;

/* In front of a block, at the beginning of its first page. */
struct guarded_head {
    size_t nbytes;
};

static bool guarded_has(const void *p)
{
    return guarded.begin && (const char *)p >= guarded.begin &&
           (const char *)p <= guarded.begin + GUARDED_NBYTES;
}

static size_t guarded_rounded(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

static struct guarded_head *guarded_head_of(void *p)
{
    return (struct guarded_head *)(((uintptr_t)p - GUARDED_ALIGN) / GUARDED_PAGE * GUARDED_PAGE);
}

/* NULL: too many blocks at a time for the kernel, or too large. */
static char *guarded_block(size_t nbytes)
{
    if (nbytes > GUARDED_NBYTES / 4) return NULL;
    const size_t n = guarded_rounded(nbytes, GUARDED_ALIGN),
                 n_all = guarded_rounded(n + GUARDED_ALIGN, GUARDED_PAGE);
    const size_t at = atomic_fetch_add(&guarded.used, n_all + GUARDED_PAGE);
    if (at + n_all + GUARDED_PAGE > GUARDED_NBYTES) return NULL;
    char *pages = guarded.begin + at, *p = pages + n_all - n;
    if (mprotect(pages, n_all, PROT_READ | PROT_WRITE) != 0) return NULL;
    *(struct guarded_head *)pages = (struct guarded_head){nbytes};
    memset(p - GUARDED_ALIGN / 2, GUARDED_MARK, GUARDED_ALIGN / 2);
    memset(p + nbytes, GUARDED_MARK, n - nbytes);
    return p;
}

static void guarded_check(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)p[i] != GUARDED_MARK) abort(); /* written outside of a block */
}

static void guarded_free(char *p)
{
    struct guarded_head *head = guarded_head_of(p);
    const size_t n = guarded_rounded(head->nbytes, GUARDED_ALIGN);
    guarded_check(p - GUARDED_ALIGN / 2, GUARDED_ALIGN / 2);
    guarded_check(p + head->nbytes, n - head->nbytes);
    void *again = mmap(head, (size_t)(p + n - (char *)head), PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    if (again == MAP_FAILED) abort();
}

/* Zeros are new pages' own. */
static void *guarded_get(size_t nbytes, bool zeros)
{
    char *p = guarded.begin ? guarded_block(nbytes) : NULL;
    if (!p) return zeros ? __libc_calloc(1, nbytes) : __libc_malloc(nbytes);
    if (!zeros) memset(p, GUARDED_MARK, nbytes < GUARDED_PAGE ? nbytes : GUARDED_PAGE);
    return p;
}

GUARDED_EXPORTED void *malloc(size_t nbytes)
{
    return guarded_get(nbytes, false);
}

GUARDED_EXPORTED void *calloc(size_t n, size_t nbytes)
{
    size_t all;
    if (!__builtin_mul_overflow(n, nbytes, &all)) return guarded_get(all, true);
    errno = ENOMEM;
    return NULL;
}

GUARDED_EXPORTED void free(void *p)
{
    const int saved = errno;
    if (guarded_has(p))
        guarded_free(p);
    else
        __libc_free(p);
    errno = saved;
}

GUARDED_EXPORTED void *realloc(void *p, size_t nbytes)
{
    if (!p) return malloc(nbytes);
    if (!guarded_has(p)) return __libc_realloc(p, nbytes);
    const size_t before = guarded_head_of(p)->nbytes;
    void *moved = guarded_get(nbytes, false);
    if (!moved) return NULL;
    memcpy(moved, p, before < nbytes ? before : nbytes);
    free(p);
    return moved;
}

GUARDED_EXPORTED void *reallocarray(void *p, size_t n, size_t nbytes)
{
    size_t all;
    if (!__builtin_mul_overflow(n, nbytes, &all)) return realloc(p, all);
    errno = ENOMEM;
    return NULL;
}

static inline void guarded_begin(void)
{
    void *begin =
        mmap(NULL, GUARDED_NBYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (begin == MAP_FAILED) abort();
    guarded.begin = begin;
}

#endif
#endif
