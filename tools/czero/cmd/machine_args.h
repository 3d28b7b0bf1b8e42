/* The options that say which machine is meant, as czero plan and czero tune have them: --gpu,
 * --gpu-memory, --host-memory, --profile. */
#ifndef CZ_TOOLS_CZERO_CMD_MACHINE_ARGS_H
#define CZ_TOOLS_CZERO_CMD_MACHINE_ARGS_H

#include "engine/machine/machine.h"

struct machine_args {
    const char *gpu, *gpu_memory, *host_memory, *profile; /* as given; NULL: not given */
};

struct machine_meant {
    size_t gpu_nbytes, host_nbytes; /* 0: not given */
    struct machine_profile profile; /* of the file, or assumed */
    bool has_profile;               /* a file or a GPU's name was given, or a GPU's memory */
};

/* A GPU's name brings its memory; a GPU's memory alone brings the rates of the nearest known GPU,
 * and a line on stderr says which. Errors: those of size_parse_machine() and machine_read(),
 * CZ_INVALID (an unknown GPU: the known ones are listed). */
cz_status machine_args_read(const struct machine_args *args, struct machine_meant *out);

/* machine_share() of this machine, in meant->host_nbytes; a line on stderr names both amounts. */
void machine_args_leave_room(struct machine_meant *meant);

#endif
