/* Processors: the logical CPUs that this process may use, and which of them are whole cores.
 *
 * Plain data without life cycle: a set is a bit per logical CPU, by the kernel's numbers. */
#ifndef CZ_BASE_HOST_PROCESSORS_H
#define CZ_BASE_HOST_PROCESSORS_H

#include "base/compiler.h"

CZ_EXTERN_C_BEGIN

#define PROCESSORS_MAX 8192

struct processors {
    uint64_t bits[PROCESSORS_MAX / 64];
};

static inline bool processors_has(const struct processors *p, int cpu)
{
    return p->bits[cpu / 64] >> (cpu % 64) & 1;
}

static inline void processors_add(struct processors *p, int cpu)
{
    p->bits[cpu / 64] |= (uint64_t)1 << (cpu % 64);
}

int processors_count(const struct processors *p);

/* Those of the calling thread's affinity mask. Where the OpenMP runtime has places (OMP_PROC_BIND,
 * OMP_PLACES, GOMP_CPU_AFFINITY) it has bound this very thread to one of them: then those of all
 * its places. At least one. */
void processors_allowed(struct processors *out);

/* Leave one hardware thread of each core: the lowest of those in the set. Without word of a
 * processor's siblings it counts as a core. cpu_dir NULL: /sys/devices/system/cpu. */
void processors_keep_cores(struct processors *p, const char *cpu_dir);

CZ_EXTERN_C_END
#endif
