/* Sets of processors: those this process may use, and one per physical core. A thread per core is
 * faster than one per hardware thread for every kernel here. */
#include "base/host/processors.h"

#include <omp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int processors_count(const struct processors *p)
{
    int n = 0;
    for (size_t i = 0; i < CZ_ARRAY_LEN(p->bits); i++) n += __builtin_popcountll(p->bits[i]);
    return n;
}

static void add_omp_place(struct processors *out, int place)
{
    int n = omp_get_place_num_procs(place);
    int *cpus = calloc((size_t)n + 1, sizeof *cpus);
    if (!cpus) return;
    omp_get_place_proc_ids(place, cpus);
    for (int i = 0; i < n; i++)
        if (cpus[i] >= 0 && cpus[i] < PROCESSORS_MAX) processors_add(out, cpus[i]);
    free(cpus);
}

/* OpenMP's places come first, since threads will be bound to them; else the process's affinity
 * mask. */
void processors_allowed(struct processors *out)
{
    memset(out, 0, sizeof *out);
    for (int place = 0; place < omp_get_num_places(); place++) add_omp_place(out, place);
    if (processors_count(out) > 0) return;
    cpu_set_t set[PROCESSORS_MAX / CPU_SETSIZE];
    CPU_ZERO_S(sizeof set, set);
    if (sched_getaffinity(0, sizeof set, set) != 0) CPU_SET_S(0, sizeof set, set);
    for (int cpu = 0; cpu < PROCESSORS_MAX; cpu++)
        if (CPU_ISSET_S((size_t)cpu, sizeof set, set)) processors_add(out, cpu);
}

/* Remove from the set the processors of a list ("0,64" or "4-7") but `cpu`. */
static void drop_siblings(struct processors *p, FILE *list, int cpu)
{
    int first, last;
    while (fscanf(list, "%d", &first) == 1) {
        last = first;
        int c = fgetc(list);
        if (c == '-' && fscanf(list, "%d", &last) == 1) c = fgetc(list);
        for (int i = first; i >= 0 && i <= last && i < PROCESSORS_MAX; i++)
            if (i != cpu) p->bits[i / 64] &= ~((uint64_t)1 << (i % 64));
        if (c != ',') return;
    }
}

/* Keeps the first processor of each core. cpu_dir: sysfs, or a copy in tests. */
void processors_keep_cores(struct processors *p, const char *cpu_dir)
{
    for (int cpu = 0; cpu < PROCESSORS_MAX; cpu++) {
        char path[2048];
        if (!processors_has(p, cpu)) continue;
        snprintf(path, sizeof path, "%s/cpu%d/topology/thread_siblings_list",
                 cpu_dir ? cpu_dir : "/sys/devices/system/cpu", cpu);
        FILE *list = fopen(path, "re");
        if (!list) continue;
        drop_siblings(p, list, cpu);
        fclose(list);
    }
}
