/* Threads that mostly sleep and must run at once when a transfer is through, on machines whose
 * cores all compute. */
#include "offload/swap/swap_impl.h"

#include "base/host/thread.h"

#include <dirent.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define STACK_NBYTES ((size_t)256 << 10)
#define SLICE_NS     100000 /* the shortest the kernel grants */

/* What sched_setattr() takes; the C library does not declare it. */
struct sched_wish {
    uint32_t nbytes, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t slice_ns, deadline, period;
};

/* All cores that threads of this process run on: the one that opens a swap may be bound to one of
 * them. */
static void cores_of_process(cpu_set_t *cores)
{
    DIR *tasks = opendir("/proc/self/task");
    CPU_ZERO(cores);
    for (struct dirent *e; tasks && (e = readdir(tasks));) {
        cpu_set_t of_task;
        int tid = atoi(e->d_name);
        if (tid > 0 && sched_getaffinity(tid, sizeof of_task, &of_task) == 0)
            CPU_OR(cores, cores, &of_task);
    }
    if (tasks) closedir(tasks);
}

/* A small stack, for these threads only move bytes. */
int swap_thread_start(pthread_t *thread, void *(*run)(void *), void *arg)
{
    pthread_attr_t attr;
    cpu_set_t cores;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_NBYTES);
    cores_of_process(&cores);
    if (CPU_COUNT(&cores) > 0) pthread_attr_setaffinity_np(&attr, sizeof cores, &cores);
    int error = thread_start(thread, &attr, run, arg);
    pthread_attr_destroy(&attr);
    return error;
}

void swap_thread_settle(void)
{
    struct sched_wish wish = {.nbytes = sizeof wish, .policy = SCHED_OTHER, .slice_ns = SLICE_NS};
    syscall(SYS_sched_setattr, 0, &wish, 0); /* kernels before 6.12 take no notice */
}
