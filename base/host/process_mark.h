/* Which process has written something into a folder that other processes, containers and hosts can
 * reach, as a short text for file names and files; and whether that process may still run. A
 * process number alone says little there: other containers and hosts have numbers of their own, and
 * a number comes back after a while. */
#ifndef CZ_BASE_HOST_PROCESS_MARK_H
#define CZ_BASE_HOST_PROCESS_MARK_H

#include "base/compiler.h"

#include <stdbool.h>
#include <stdint.h>

CZ_EXTERN_C_BEGIN

#define PROCESS_MARK_NBYTES 64

/* Of this process: "<boot><host><PID namespace>-<process>-<start>" in hexadecimal digits, where
 * boot and host are hashes of the kernel's boot identifier and of the host's name. */
void process_mark(char out[PROCESS_MARK_NBYTES]);

/* A hash of the host's name: equal in all processes of a host, in every version. */
uint32_t process_mark_host(void);

enum process_fate {
    PROCESS_RUNS,
    PROCESS_ENDED,  /* or the host has been started anew since */
    PROCESS_UNKNOWN /* of another host, or of a container that cannot be seen from here; no mark */
};

enum process_fate process_mark_fate(const char *mark);

bool process_mark_is_mark(const char *text);

/* Whether it is of this kernel, whatever the container: then a lock on a file tells more. */
bool process_mark_is_of_this_boot(const char *mark);

CZ_EXTERN_C_END
#endif
