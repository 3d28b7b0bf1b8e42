/* Option structs of public calls: the caller's may be older or newer than the library's.
 *
 * Each begins with `size_t size`, its size as the caller was compiled. Members are only ever
 * appended, and zero means the default, so that a copy of the common part, zeroed behind it, is
 * what an older caller meant. After a release a new member begins at a multiple of 8 bytes: in the
 * padding of the former struct, an older caller's bytes are unknown and count as given. */
#ifndef CZ_BASE_OPTIONS_H
#define CZ_BASE_OPTIONS_H

#include "base/status.h"

CZ_EXTERN_C_BEGIN

/* Copy the caller's struct `theirs` into `ours` (nbytes, the library's size); NULL means all
 * defaults. `name` is the struct's, for the sentence. ours->size becomes nbytes.
 * Errors: CZ_INVALID (theirs->size is below that of the member itself: it was not set),
 * CZ_UNSUPPORTED (members behind ours are not zero: the caller expects a newer library). */
cz_status options_take(void *ours, size_t nbytes, const void *theirs, const char *name);

/* The other direction, for structs that a call fills: copy as much of `ours` as theirs->size holds,
 * but not the size. Errors: CZ_INVALID (size not set). */
cz_status options_give(void *theirs, const void *ours, size_t nbytes, const char *name);

/* The same with the struct's own name and size. */
#define OPTIONS_TAKE(tag, ours, theirs) options_take((ours), sizeof(struct tag), (theirs), #tag)
#define OPTIONS_GIVE(tag, theirs, ours) options_give((theirs), (ours), sizeof(struct tag), #tag)

CZ_EXTERN_C_END
#endif
