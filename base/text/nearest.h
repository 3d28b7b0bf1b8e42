/* "Did you mean …?": the known name that a mistyped one comes closest to. Options, commands,
 * presets and keys of configs all ask here. */
#ifndef CZ_BASE_TEXT_NEAREST_H
#define CZ_BASE_TEXT_NEAREST_H

#include "base/compiler.h"

#include <stddef.h>

CZ_EXTERN_C_BEGIN

/* A search over names that come one at a time. */
struct nearest {
    const char *wanted, *best; /* best: the closest name so far, NULL while none is close */
    size_t distance;           /* a closer one is below this */
};

/* Distance: letters to add or drop, and neighbours to swap; a replaced letter is one dropped and
 * one added. The case of letters is ignored, and "_" equals "-". A name that begins or ends with
 * the whole of `wanted` (four letters and more) counts as two. Close: one more than a third of the
 * letters of `wanted`, and fewer than all. Nothing is close to a name of more than 63 bytes.
 * `wanted` is borrowed. */
struct nearest nearest_begin(const char *wanted);

/* NULL is no name. Of names that are as close the first one stays. `name` is borrowed. */
void nearest_consider(struct nearest *search, const char *name);

CZ_EXTERN_C_END
#endif
