/* Between the files of machine. */
#ifndef CZ_ENGINE_MACHINE_IMPL_H
#define CZ_ENGINE_MACHINE_IMPL_H

#include "engine/machine.h"

struct json_writer;

/* The profile as one JSON object, as its file has it. */
void machine_put(struct json_writer *w, const struct machine_profile *profile);

#endif
