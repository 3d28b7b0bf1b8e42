/* Control groups: the limits a container puts on this process, version 1 and 2 alike. */
#ifndef CZ_BASE_HOST_CGROUP_H
#define CZ_BASE_HOST_CGROUP_H

#include "base/compiler.h"

CZ_EXTERN_C_BEGIN

#define CGROUP_MOUNT "/sys/fs/cgroup"

/* The path of a process's group in the hierarchy of `controller` ("" for version 2), below its
 * mount, from a list like /proc/self/cgroup; "" when unknown. */
void cgroup_group(const char *list, const char *controller, char *out, size_t out_nbytes);

/* Call visit(directory, user) for `mount` itself, for this process's group in the hierarchy of
 * `controller` ("" for version 2), and for every group between the two. Directories may not exist
 * (inside a container the path can be the host's). */
void cgroup_visit(const char *mount, const char *controller,
                  void (*visit)(const char *dir, void *user), void *user);

/* The first number in dir/name, or `missing` when there is none ("max" is none). */
long long cgroup_number(const char *dir, const char *name, long long missing);

/* Bytes that this process's groups still let it allocate, file pages that can be dropped counted as
 * free; SIZE_MAX without a limit. *limit_nbytes: the limit that binds. mount NULL: CGROUP_MOUNT. */
size_t cgroup_memory_left(const char *mount, size_t *limit_nbytes);

/* Bytes that this process can still allocate: what the system says is available, within the limits
 * of its groups. SIZE_MAX where neither is known. */
size_t host_memory_left(void);

/* How many processes of this process's group the kernel has killed for memory (oom_kill); −1: the
 * kernel does not say. mount NULL: CGROUP_MOUNT. */
long long cgroup_oom_kills(const char *mount);

CZ_EXTERN_C_END
#endif
