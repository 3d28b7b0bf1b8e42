/* --debug: where the tensors of a checkpoint are. */
#ifndef CZ_TOOLS_DETAILS_H
#define CZ_TOOLS_DETAILS_H

#include "base/status.h"

#include <stdio.h>

/* One line about the checkpoint, one per tensor, one per run of its bytes (the first few). */
cz_status details_print(const char *dir, const char *tag, FILE *out);

#endif
