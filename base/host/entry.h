/* Locale and floating-point settings of a thread during a call of the public API.
 *
 * A program may have set a locale with a decimal comma, another rounding mode, denormals to zero or
 * traps. Every exported function that formats, parses or computes begins with API_ENTRY: the C
 * locale and IEEE defaults for this thread, until the function returns. Calls nest. Threads of the
 * library begin with entry_begin_thread(). OpenMP's workers get the floating-point settings of the
 * thread that enters (threads_count()), but not the C locale: what runs in a parallel region
 * neither formats nor parses numbers by the locale.
 *
 * A forked child has none of its parent's threads. Objects with threads, files or shared memory
 * remember entry_generation(), refuse to work in a child, and leave everything as it is there. */
#ifndef CZ_BASE_HOST_ENTRY_H
#define CZ_BASE_HOST_ENTRY_H

#include "base/status.h"

#include <locale.h>
#include <stdbool.h>
#include <stdint.h>

CZ_EXTERN_C_BEGIN

/* How a thread computes: rounding, denormals, traps. */
struct entry_floats {
#if defined(__x86_64__)
    uint32_t mxcsr;
    uint16_t x87;
#else
    int rounding;
#endif
};

struct entry {
    locale_t locale;            /* of the thread before */
    struct entry_floats floats; /* the same, if they differed from the defaults */
    bool floats_differed;
};

struct entry entry_begin(void);
void entry_end(const struct entry *entry);

#define API_ENTRY                                                                                  \
    const struct entry api_entry __attribute__((cleanup(entry_end), unused)) = entry_begin()

/* Pointers that an exported call needs. NEED ends a call that has a status: CZ_INVALID names what
 * is NULL as the header does, and the call that should have made it. NEED_OR gives `otherwise`, for
 * calls without a status. */
#define NEED(given, name) TRY(entry_need((given), (name)))
#define NEED_OR(given, otherwise)                                                                  \
    do {                                                                                           \
        if (!(given)) return otherwise;                                                            \
    } while (0)
cz_status entry_need(bool given, const char *name);

/* For a thread that the library starts. The settings last until the thread ends. */
void entry_begin_thread(void);

/* Parallel regions with several threads follow: gives the workers of this thread the defaults until
 * the outermost entry ends. */
void entry_use_workers(void);

/* Whether this process is a child of one that had workers. They do not exist here, and OpenMP would
 * wait for them. */
bool entry_lost_workers(void);

/* Counts the forks between the first process and this one. */
unsigned entry_generation(void);

/* CZ_INVALID where `generation`, of an object's creation, is another process's. what: its name. */
cz_status entry_check_process(unsigned generation, const char *what);

CZ_EXTERN_C_END
#endif
