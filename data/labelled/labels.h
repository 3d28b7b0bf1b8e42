/* Which class an integer names. */
#ifndef CZ_DATA_LABELLED_LABELS_H
#define CZ_DATA_LABELLED_LABELS_H

#include "base/status.h"

CZ_EXTERN_C_BEGIN

/* The place among n names of classes that `label` is, an integer from 0, where none of the names is
 * an integer; −1 otherwise. */
int64_t label_place(const char *const *names, size_t n, const char *label);

CZ_EXTERN_C_END
#endif
