/* Marks of processes: see the header. Everything is asked anew at each call, since a process may
 * have been forked meanwhile. */
#include "base/host/process_mark.h"

#include "base/hash.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct mark {
    uint32_t boot, host, pid_space;
    int pid;
    uint64_t start; /* in ticks since the boot; 0: unknown */
};

/* 0: there is none. */
static uint32_t boot_number(void)
{
    char id[64] = "";
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    const bool known = f && fgets(id, sizeof id, f) && id[0];
    if (f) fclose(f);
    return known ? hash_fixed_text_32(id) : 0;
}

/* What /proc says of a process, "self" or a number; false: nothing. The name, in brackets, may
 * contain anything. */
static bool read_stat(const char *process, char *state, uint64_t *start)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%s/stat", process);
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f) fclose(f);
    text[n] = '\0';
    const char *after = strrchr(text, ')');
    return after &&
           sscanf(after + 1,
                  " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d "
                  "%*d %" SCNu64,
                  state, start) == 2;
}

/* A container may have been given the /proc of another PID namespace: its numbers are not ours. */
static bool proc_has_our_numbers(void)
{
    char self[32] = "";
    return readlink("/proc/self", self, sizeof self - 1) > 0 && atoi(self) == (int)getpid();
}

uint32_t process_mark_host(void)
{
    char name[256] = "";
    gethostname(name, sizeof name - 1);
    return hash_fixed_text_32(name);
}

static struct mark own(void)
{
    struct stat space;
    char state;
    struct mark m = {.boot = boot_number(), .host = process_mark_host(), .pid = (int)getpid()};
    if (stat("/proc/self/ns/pid", &space) == 0) m.pid_space = (uint32_t)space.st_ino;
    if (!read_stat("self", &state, &m.start)) m.start = 0;
    return m;
}

static void print(const struct mark *m, char out[PROCESS_MARK_NBYTES])
{
    snprintf(out, PROCESS_MARK_NBYTES, "%08" PRIx32 "%08" PRIx32 "%08" PRIx32 "-%x-%" PRIx64,
             m->boot, m->host, m->pid_space, (unsigned)m->pid, m->start);
}

void process_mark(char out[PROCESS_MARK_NBYTES])
{
    const struct mark m = own();
    print(&m, out);
}

/* There is one spelling of each mark. */
static bool parse(const char *text, struct mark *m)
{
    char again[PROCESS_MARK_NBYTES];
    unsigned pid;
    if (sscanf(text, "%8" SCNx32 "%8" SCNx32 "%8" SCNx32 "-%x-%" SCNx64, &m->boot, &m->host,
               &m->pid_space, &pid, &m->start) != 5)
        return false;
    m->pid = (int)pid;
    print(m, again);
    return m->pid > 0 && strcmp(text, again) == 0;
}

bool process_mark_is_mark(const char *text)
{
    struct mark m;
    return parse(text, &m);
}

bool process_mark_is_of_this_boot(const char *mark)
{
    struct mark m;
    const uint32_t boot = boot_number();
    return parse(mark, &m) && boot != 0 && m.boot == boot;
}

enum process_fate process_mark_fate(const char *mark)
{
    struct mark m;
    const struct mark here = own();
    char state, number[16];
    uint64_t start;
    if (!parse(mark, &m) || m.boot == 0 || here.boot == 0) return PROCESS_UNKNOWN;
    if (m.boot != here.boot) return m.host == here.host ? PROCESS_ENDED : PROCESS_UNKNOWN;
    if (m.pid_space != here.pid_space) return PROCESS_UNKNOWN;
    snprintf(number, sizeof number, "%d", m.pid);
    if (proc_has_our_numbers() && read_stat(number, &state, &start)) {
        const bool is_other = m.start != 0 && start != m.start;
        return is_other || state == 'Z' || state == 'X' ? PROCESS_ENDED : PROCESS_RUNS;
    }
    return kill(m.pid, 0) != 0 && errno == ESRCH ? PROCESS_ENDED : PROCESS_RUNS;
}
