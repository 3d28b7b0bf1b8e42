/* The ranks of this host: started, watched, their output passed on, and none left behind. One loop
 * waits for signals, output and deadlines; the launcher outlives every rank, so that an exit code,
 * a reason and the memory of a dead rank can be reported by a process that still works.
 *
 * The process may be a user's, with children of its own. Signals go to process descriptors of
 * ranks; what ranks leave behind is known by a variable in its environment, LAUNCH_ENV. */
#include "engine/launch/launch_impl.h"

#include "base/clock.h"
#include "base/host/cgroup.h"
#include "base/host/launchers.h"
#include "base/log.h"
#include "base/size.h"
#include "base/threads.h"
#include "comm/shm/shm.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define LAUNCH_ENV "CZERO_LAUNCH" /* which launch_local() of which process */

/* Others stop by themselves within moments of a failure; those that cannot are helped. A killed
 * rank's peers must be gone after 2 s (they may be deep in a computation). */
#define GRACE_KILLED_NS ((int64_t)900 * 1000 * 1000)
#define GRACE_FAILED_NS ((int64_t)3000 * 1000 * 1000)
#define GRACE_TERM_NS   ((int64_t)400 * 1000 * 1000)
#define TWICE_NS        ((int64_t)300 * 1000 * 1000) /* signals further apart are two wishes */

struct rank {
    pid_t pid;          /* 0: not started, or gone */
    int pidfd;          /* -1: none, also on kernels before 5.3 */
    int code;           /* it ended with, by itself; -1: otherwise */
    size_t peak_nbytes; /* of its resident memory, once it has ended */
    struct launch_stream out, err;
};

enum ending { ENDING_NOT = 0, ENDING_GRACE, ENDING_TERM, ENDING_KILL };

struct launch {
    const struct launch_options *options;
    char program[4096];
    struct launch_shares shares;
    struct rank *ranks;
    struct pollfd *polls; /* (1 + 2 · n_ranks) */
    int n_alive;
    int segment_fd, signal_fd;
    bool watches;     /* the signals of old_mask and old_sigchld are ours */
    int exec_pipe[2]; /* a child that cannot become the program says why */
    sigset_t old_mask;
    struct sigaction old_sigchld;
    struct rlimit old_files;
    bool is_reaper; /* of what ranks leave behind; was_reaper: before */
    int was_reaper;
    char variable[64]; /* LAUNCH_ENV=… */

    enum ending ending;
    int64_t deadline_ns; /* of the stage of ending */
    int asked_signal;    /* a signal that we were sent and have passed on; 0: none */
    int64_t asked_ns;

    long long n_oom_kills; /* in our control group, before the ranks; −1: unknown */
    int exit_code;
    bool decided; /* exit_code is final */
    char reason[512];
};

/* ---- before the ranks ----------------------------------------------------------------------- */

static const int passed_on[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};

/* Signals become readable beside the pipes, so that one poll() waits for everything; an ignored
 * SIGCHLD would lose exit codes. */
static cz_status watch_signals(struct launch *l)
{
    sigset_t set;
    const struct sigaction by_default = {.sa_handler =
                                             SIG_DFL}; /* ignored children leave no code */
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    for (size_t i = 0; i < CZ_ARRAY_LEN(passed_on); i++) sigaddset(&set, passed_on[i]);
    sigaction(SIGCHLD, &by_default, &l->old_sigchld);
    sigprocmask(SIG_BLOCK, &set, &l->old_mask);
    l->watches = true;
    l->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (l->signal_fd < 0) return err_set(CZ_IO, errno, "cannot watch for signals");
    return CZ_OK;
}

/* Everything that can fail is done before the first rank exists: half a world would have to be
 * ended again. */
static cz_status prepare(struct launch *l)
{
    const struct launch_options *o = l->options;
    const int asked = threads_asked();
    TRY(launchers_check_only());
    TRY(launch_find(o->program, l->program, sizeof l->program));
    TRY(launch_divide_here(o->bind, asked > 0 ? asked : 0, o->n_ranks, &l->shares));
    /* More ranks than cores is likely a mistake, and worth a line by default. */
    const struct launch_shares *s = &l->shares;
    const char *threads = s->n_threads == 1 ? "thread" : "threads";
    if (asked < 0)
        LOGV(LOG_WARN, SUB_COMM, "OMP_NUM_THREADS=%s is not a number of threads: using %d",
             getenv("OMP_NUM_THREADS"), s->n_threads);
    if (s->passive)
        LOGV(LOG_INFO, SUB_COMM, "%d ranks are more than the cores here: %d %s each, not bound",
             s->n_ranks, s->n_threads, threads);
    else
        LOGV(LOG_STEP, SUB_COMM, "%d ranks, %d %s each, %s", s->n_ranks, s->n_threads, threads,
             s->bound ? "each bound to its own cores" : "not bound");
    l->ranks = calloc((size_t)o->n_ranks, sizeof *l->ranks);
    l->polls = calloc((size_t)o->n_ranks * 2 + 1, sizeof *l->polls);
    if (!l->ranks || !l->polls) return err_set(CZ_NOMEM, 0, "no memory for %d ranks", o->n_ranks);
    for (int r = 0; r < o->n_ranks; r++) {
        l->ranks[r].pidfd = -1;
        l->ranks[r].out = (struct launch_stream){.fd = -1, .rank = r};
        l->ranks[r].err = (struct launch_stream){.fd = -1, .rank = r, .to_stderr = true};
    }
    if (getrlimit(RLIMIT_NOFILE, &l->old_files) != 0)
        return err_set(CZ_IO, errno, "cannot read the limit of open files");
    /* Two pipes and a process descriptor a rank may be more than the soft limit of open files. */
    struct rlimit limit = l->old_files;
    rlim_t needed = (rlim_t)l->options->n_ranks * 3 + 64;
    if (limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < needed) {
        limit.rlim_cur = limit.rlim_max < needed ? limit.rlim_max : needed;
        setrlimit(RLIMIT_NOFILE, &limit); /* refused: opening the pipes will say so */
    }
    l->n_oom_kills = cgroup_oom_kills(NULL);
    TRY(comm_shm_segment_create(o->n_ranks, &l->segment_fd));
    TRY(watch_signals(l));
    if (pipe2(l->exec_pipe, O_CLOEXEC) != 0) return err_set(CZ_IO, errno, "cannot open a pipe");
    /* What a rank's own children leave behind comes to us, and ends with the ranks. */
    static _Atomic uint64_t n_launches;
    snprintf(l->variable, sizeof l->variable, LAUNCH_ENV "=%ld-%" PRId64 "-%" PRIu64,
             (long)getpid(), clock_now_ns(), atomic_fetch_add(&n_launches, 1));
    l->is_reaper =
        prctl(PR_GET_CHILD_SUBREAPER, &l->was_reaper) == 0 && prctl(PR_SET_CHILD_SUBREAPER, 1) == 0;
    return CZ_OK;
}

/* ---- one rank ------------------------------------------------------------------------------- */

enum { N_VARIABLES = 7, VARIABLE_NBYTES = 64 };

struct environment {
    char variables[N_VARIABLES][VARIABLE_NBYTES];
    int n;
    char **v; /* NULL-terminated: ours, then the launcher's that are not replaced */
};

/* Compares up to the "=" of both. */
static bool has_name_of(const char *variable, const char *other)
{
    size_t len = strcspn(other, "=");
    return strncmp(variable, other, len) == 0 && variable[len] == '=';
}

static bool is_replaced(const struct environment *env, const char *variable)
{
    for (int i = 0; i < env->n; i++)
        if (has_name_of(variable, env->variables[i])) return true;
    return false;
}

/* Made before fork(): between fork() and exec() nothing may allocate, since another thread may hold
 * the allocator's lock. */
static cz_status make_environment(const struct launch *l, int rank, struct environment *env)
{
    size_t n = 0, n_inherited = 0;
    *env = (struct environment){.n = 0};
    snprintf(env->variables[env->n++], VARIABLE_NBYTES, "%s=%d", COMM_ENV_SHM_FD, l->segment_fd);
    snprintf(env->variables[env->n++], VARIABLE_NBYTES, "%s=%d", COMM_ENV_RANK, rank);
    snprintf(env->variables[env->n++], VARIABLE_NBYTES, "%s=%d", COMM_ENV_WORLD_SIZE,
             l->options->n_ranks);
    snprintf(env->variables[env->n++], VARIABLE_NBYTES, "OMP_NUM_THREADS=%d", l->shares.n_threads);
    snprintf(env->variables[env->n++], VARIABLE_NBYTES, "%s", l->variable);
    if (l->shares.passive && !getenv("OMP_WAIT_POLICY"))
        snprintf(env->variables[env->n++], VARIABLE_NBYTES, "OMP_WAIT_POLICY=passive");
    else if (threads_spin_is_free())
        snprintf(env->variables[env->n++], VARIABLE_NBYTES,
                 THREADS_SPIN_VARIABLE "=" THREADS_SPIN);
    if (l->options->bind == LAUNCH_BIND_NONE) /* ranks would divide the cores by themselves */
        snprintf(env->variables[env->n++], VARIABLE_NBYTES, "CZERO_BIND=none");
    while (environ[n_inherited]) n_inherited++;
    env->v = calloc(n_inherited + N_VARIABLES + 1, sizeof *env->v);
    if (!env->v) return err_set(CZ_NOMEM, 0, "no memory for the environment of a rank");
    for (int i = 0; i < env->n; i++) env->v[n++] = env->variables[i];
    for (size_t i = 0; i < n_inherited; i++)
        if (!is_replaced(env, environ[i])) env->v[n++] = environ[i];
    return CZ_OK;
}

struct pipes {
    int out[2], err[2]; /* −1: rank 0 keeps the launcher's own streams */
};

static void pipes_close(struct pipes *p)
{
    int *fds[] = {&p->out[0], &p->out[1], &p->err[0], &p->err[1]};
    for (size_t i = 0; i < CZ_ARRAY_LEN(fds); i++) {
        if (*fds[i] >= 0) close(*fds[i]);
        *fds[i] = -1;
    }
}

/* Rank 0 keeps the terminal: a progress bar must see one. */
static cz_status pipes_open(struct pipes *p, int rank)
{
    *p = (struct pipes){{-1, -1}, {-1, -1}};
    if (rank == 0) return CZ_OK;
    if (pipe2(p->out, O_CLOEXEC) == 0 && pipe2(p->err, O_CLOEXEC) == 0 &&
        fcntl(p->out[0], F_SETFL, O_NONBLOCK) == 0 && fcntl(p->err[0], F_SETFL, O_NONBLOCK) == 0)
        return CZ_OK;
    int error = errno;
    pipes_close(p);
    return err_set(CZ_IO, error, "cannot open pipes for rank %d", rank);
}

/* In the child: become the program, or report why not and end. Restores what the launcher changed
 * for itself (signals, limit of open files). PR_SET_PDEATHSIG: a killed launcher must not leave
 * ranks that hold memory and GPUs. */
static void become_rank(const struct launch *l, int rank, const struct pipes *p, pid_t parent,
                        char *const *environment)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) raise(SIGKILL); /* it died before the line above */
    if (l->shares.bound) launch_bind_self(l->shares.sets[rank]);
    /* Rank 0 alone reads what is typed. */
    if (rank != 0) {
        int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
        if (null_fd >= 0) dup2(null_fd, STDIN_FILENO);
        dup2(p->out[1], STDOUT_FILENO);
        dup2(p->err[1], STDERR_FILENO);
    }
    setrlimit(RLIMIT_NOFILE, &l->old_files);
    sigaction(SIGCHLD, &l->old_sigchld, NULL);
    sigprocmask(SIG_SETMASK, &l->old_mask, NULL);
    execve(l->program, l->options->argv, environment);
    int error = errno;
    ssize_t n = write(l->exec_pipe[1], &error, sizeof error);
    (void)n; /* a pipe without a reader: the launcher is gone, and we are going */
    raise(SIGKILL);
}

/* The parent closes its copies of the write ends: end of file is how it learns that a rank is
 * done. */
static cz_status start_rank(struct launch *l, int rank)
{
    struct pipes p;
    struct environment env;
    TRY(pipes_open(&p, rank));
    cz_status st = make_environment(l, rank, &env);
    if (st == CZ_OK) {
        pid_t parent = getpid(), pid = fork();
        if (pid == 0) become_rank(l, rank, &p, parent, env.v);
        if (pid < 0)
            st = err_set(CZ_IO, errno, "cannot start rank %d of %d", rank, l->options->n_ranks);
        else {
            l->ranks[rank].pid = pid;
            l->ranks[rank].pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
        }
    }
    if (st == CZ_OK) {
        l->n_alive++;
        l->ranks[rank].out.fd = p.out[0];
        l->ranks[rank].err.fd = p.err[0];
        p.out[0] = p.err[0] = -1;
    }
    pipes_close(&p);
    free(env.v);
    return st;
}

/* ---- how it ends ---------------------------------------------------------------------------- */

/* Without a descriptor the number is good as long as nothing else in this process waits for it. */
static void signal_rank(const struct rank *rank, int number)
{
    if (rank->pid <= 0) return;
    if (rank->pidfd >= 0)
        syscall(SYS_pidfd_send_signal, rank->pidfd, number, NULL, 0);
    else
        kill(rank->pid, number);
}

static void signal_all(const struct launch *l, int number)
{
    for (int r = 0; r < l->options->n_ranks; r++) signal_rank(&l->ranks[r], number);
}

/* A number above the named ones (real-time signals) has no name. */
static void signal_name(int number, char *buf, size_t nbytes)
{
    const char *name = sigabbrev_np(number);
    if (name)
        snprintf(buf, nbytes, "SIG%s", name);
    else
        snprintf(buf, nbytes, "signal %d", number);
}

/* Whether memory was the reason, as far as the control group tells. */
static const char *memory_verdict(const struct launch *l, int signal_number, char *buf,
                                  size_t nbytes)
{
    long long now = cgroup_oom_kills(NULL);
    buf[0] = '\0';
    if (signal_number != SIGKILL) return buf;
    if (now < 0 || l->n_oom_kills < 0)
        snprintf(buf, nbytes, "; the kernel does so when memory runs out");
    else if (now > l->n_oom_kills)
        snprintf(buf, nbytes, "; its memory limit was reached: oom_kill rose to %lld", now);
    else
        snprintf(buf, nbytes, "; not for its control group's memory: oom_kill stayed at %lld", now);
    return buf;
}

/* The first failure decides, but a plain 1 only until something better comes: a rank that learns
 * of another's failure ends with 1, perhaps sooner than the other. */
static void judge(struct launch *l, int rank, int wait_status)
{
    if (l->decided) return;
    if (WIFSIGNALED(wait_status)) {
        int number = WTERMSIG(wait_status);
        /* Its peers may be deep in a computation and have no time to say where it died. */
        char name[32], where[128], peak[24], memory[96];
        signal_name(number, name, sizeof name);
        if (comm_shm_where(l->segment_fd, l->options->n_ranks, rank, where, sizeof where) != CZ_OK)
            where[0] = '\0';
        snprintf(l->reason, sizeof l->reason, "rank %d was killed by %s%s%s (peak memory %s%s)",
                 rank, name, *where ? " at " : "", where,
                 size_human(l->ranks[rank].peak_nbytes, peak, sizeof peak),
                 memory_verdict(l, number, memory, sizeof memory));
        l->exit_code = number == l->asked_signal ? 128 + number : 1;
        l->decided = true;
        return;
    }
    int code = WEXITSTATUS(wait_status);
    l->decided = code != 1;
    if (code == 1 && l->exit_code != 0) return; /* the first of them is named */
    l->exit_code = code;
    snprintf(l->reason, sizeof l->reason, "rank %d ended with exit code %d", rank, code);
}

/* No rank has failed then. */
static bool all_ended_with(const struct launch *l, int code)
{
    for (int r = 0; r < l->options->n_ranks; r++)
        if (l->ranks[r].code != code) return false;
    return true;
}

/* A clean end is no reason to end the others: ranks finish at different times. */
static void rank_ended(struct launch *l, int rank, int wait_status)
{
    if (l->ranks[rank].pidfd >= 0) close(l->ranks[rank].pidfd);
    l->ranks[rank].pid = 0;
    l->ranks[rank].pidfd = -1;
    l->ranks[rank].code = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : -1;
    l->n_alive--;
    if (WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0) return;
    if (l->ending >= ENDING_TERM) return; /* ended by us */
    judge(l, rank, wait_status);
    if (l->ending != ENDING_NOT) return;
    l->ending = ENDING_GRACE;
    l->deadline_ns =
        clock_now_ns() + (WIFSIGNALED(wait_status) ? GRACE_KILLED_NS : GRACE_FAILED_NS);
}

/* wait4() rather than waitpid(): the peak memory of each rank is part of the verdict. A rank that
 * another part of the program has waited for counts as failed: how it ended is lost. */
static void reap(struct launch *l)
{
    for (int r = 0; r < l->options->n_ranks; r++) {
        int wait_status = 0;
        struct rusage used = {.ru_maxrss = 0};
        if (l->ranks[r].pid <= 0) continue;
        pid_t pid = wait4(l->ranks[r].pid, &wait_status, WNOHANG, &used);
        if (pid == 0 || (pid < 0 && errno != ECHILD)) continue;
        if (pid < 0) wait_status = W_EXITCODE(1, 0);
        l->ranks[r].peak_nbytes = (size_t)used.ru_maxrss * 1024;
        rank_ended(l, r, wait_status);
    }
}

/* The terminal signals the ranks as well: they are in our process group. */
static void pass_on_signal(struct launch *l, const struct signalfd_siginfo *info)
{
    int64_t now = clock_now_ns();
    int number = (int)info->ssi_signo;
    bool is_wish_to_stop = number != SIGUSR1 && number != SIGUSR2;
    if (is_wish_to_stop && l->asked_signal != 0 && now - l->asked_ns > TWICE_NS) {
        signal_all(l, SIGKILL);
        l->ending = ENDING_KILL;
        l->exit_code = 128 + number;
        l->decided = true;
        snprintf(l->reason, sizeof l->reason, "asked twice to stop: all ranks were killed");
        return;
    }
    if (info->ssi_code != SI_KERNEL) signal_all(l, number);
    /* A stopped rank gets the signal only when it continues, and the others wait for it. */
    if (is_wish_to_stop) signal_all(l, SIGCONT);
    if (!is_wish_to_stop || l->asked_signal != 0) return;
    l->asked_signal = number;
    l->asked_ns = now;
}

/* ---- while they run ------------------------------------------------------------------------- */

static void pump_all(struct launch *l, bool flush)
{
    for (int r = 0; r < l->options->n_ranks; r++) {
        launch_stream_pump(&l->ranks[r].out, l->options, flush);
        launch_stream_pump(&l->ranks[r].err, l->options, flush);
    }
}

/* A second at most: output must flow even if a wake-up is lost. */
static int wait_ms(const struct launch *l)
{
    if (l->ending == ENDING_NOT || l->ending == ENDING_KILL) return 1000;
    int64_t left = (l->deadline_ns - clock_now_ns()) / 1000000 + 1;
    return left < 0 ? 0 : (int)left;
}

/* Ends when no rank is alive, however they ended. */
static cz_status supervise(struct launch *l)
{
    while (l->n_alive > 0) {
        nfds_t n = 0;
        l->polls[n++] = (struct pollfd){.fd = l->signal_fd, .events = POLLIN};
        for (int r = 0; r < l->options->n_ranks; r++) {
            l->polls[n++] = (struct pollfd){.fd = l->ranks[r].out.fd, .events = POLLIN};
            l->polls[n++] = (struct pollfd){.fd = l->ranks[r].err.fd, .events = POLLIN};
        }
        if (poll(l->polls, n, wait_ms(l)) < 0 && errno != EINTR)
            return err_set(CZ_IO, errno, "cannot wait for the ranks");
        pump_all(l, false);
        /* SIGCHLD only wakes the loop; everything else is forwarded to the ranks. */
        struct signalfd_siginfo info;
        while (read(l->signal_fd, &info, sizeof info) == (ssize_t)sizeof info)
            if (info.ssi_signo != SIGCHLD) pass_on_signal(l, &info);
        reap(l);
        /* Ending escalates: SIGTERM after the grace period, then SIGKILL. */
        if (l->ending != ENDING_NOT && l->ending != ENDING_KILL &&
            clock_now_ns() >= l->deadline_ns) {
            l->deadline_ns = clock_now_ns() + GRACE_TERM_NS;
            signal_all(l, l->ending == ENDING_GRACE ? SIGTERM : SIGKILL);
            l->ending++;
        }
    }
    return CZ_OK;
}

static cz_status run(struct launch *l)
{
    TRY(prepare(l));
    for (int r = 0; r < l->options->n_ranks; r++) TRY(start_rank(l, r));
    /* All children have become the program once their ends of the pipe are closed. */
    int error;
    close(l->exec_pipe[1]);
    l->exec_pipe[1] = -1;
    ssize_t n;
    do n = read(l->exec_pipe[0], &error, sizeof error);
    while (n < 0 && errno == EINTR);
    if (n > 0) return err_set(CZ_NOTFOUND, error, "cannot run %s", l->program);
    TRY(supervise(l));
    if (all_ended_with(l, l->exit_code))
        snprintf(l->reason, sizeof l->reason, "all ranks ended with exit code %d", l->exit_code);
    return CZ_OK;
}

/* ---- afterwards ----------------------------------------------------------------------------- */

/* Whether the environment with which the process was started has our variable. */
static bool has_variable(const struct launch *l, long pid)
{
    char path[64];
    char *variable = NULL;
    size_t capacity = 0;
    bool found = false;
    snprintf(path, sizeof path, "/proc/%ld/environ", pid);
    FILE *f = fopen(path, "re");
    while (f && !found && getdelim(&variable, &capacity, '\0', f) > 0)
        found = strcmp(variable, l->variable) == 0;
    if (f) fclose(f);
    free(variable);
    return found;
}

/* The descriptor is opened first: if it still names a process afterwards, that one has the
 * variable. */
static bool end_orphan(const struct launch *l, long pid)
{
    int fd = (int)syscall(SYS_pidfd_open, (pid_t)pid, 0);
    if (fd < 0) return false;
    const bool ends =
        has_variable(l, pid) && syscall(SYS_pidfd_send_signal, fd, SIGKILL, NULL, 0) == 0;
    if (ends)
        while (waitid(P_PIDFD, (id_t)fd, &(siginfo_t){.si_pid = 0}, WEXITED) != 0 && errno == EINTR)
            continue;
    close(fd);
    return ends;
}

/* Among the children of one of our threads. */
static int end_orphans_of(const struct launch *l, const char *thread)
{
    char path[sizeof "/proc/self/task//children" + 256];
    char *line = NULL;
    size_t capacity = 0;
    int n = 0;
    snprintf(path, sizeof path, "/proc/self/task/%s/children", thread);
    FILE *f = fopen(path, "re");
    if (f && getline(&line, &capacity, f) > 0) {
        char *end, *at = line;
        for (long pid; (pid = strtol(at, &end, 10)) > 0 && end != at; at = end)
            n += end_orphan(l, pid);
    }
    if (f) fclose(f);
    free(line);
    return n;
}

/* End what ranks have started and left behind: it has become our child. What it has started in turn
 * comes to us then. */
static void end_orphans(const struct launch *l)
{
    for (int round = 0, n = 1; round < 16 && n > 0; round++) {
        n = 0;
        DIR *threads = opendir("/proc/self/task");
        if (!threads) return;
        for (struct dirent *e; (e = readdir(threads));)
            if (e->d_name[0] != '.') n += end_orphans_of(l, e->d_name);
        closedir(threads);
    }
}

/* Also after a failure half-way: accepts every half-built state. */
static void finish(struct launch *l)
{
    if (l->n_alive > 0) {
        signal_all(l, SIGKILL);
        for (int r = 0; r < l->options->n_ranks; r++)
            if (l->ranks[r].pid > 0) waitpid(l->ranks[r].pid, NULL, 0);
    }
    if (l->is_reaper) end_orphans(l);
    if (l->is_reaper) prctl(PR_SET_CHILD_SUBREAPER, l->was_reaper);
    if (l->ranks) pump_all(l, true);
    for (int r = 0; l->ranks && r < l->options->n_ranks; r++) {
        if (l->ranks[r].out.fd >= 0) close(l->ranks[r].out.fd);
        if (l->ranks[r].err.fd >= 0) close(l->ranks[r].err.fd);
        if (l->ranks[r].pidfd >= 0) close(l->ranks[r].pidfd);
    }
    for (int i = 0; i < 2; i++)
        if (l->exec_pipe[i] >= 0) close(l->exec_pipe[i]);
    if (l->segment_fd >= 0) close(l->segment_fd);
    if (l->signal_fd >= 0) close(l->signal_fd);
    if (l->watches) {
        sigprocmask(SIG_SETMASK, &l->old_mask, NULL);
        sigaction(SIGCHLD, &l->old_sigchld, NULL);
    }
    if (l->old_files.rlim_cur > 0) setrlimit(RLIMIT_NOFILE, &l->old_files);
    launch_shares_free(&l->shares);
    free(l->ranks);
    free(l->polls);
}

/* The exit code is the first failure's; the text says which rank and why. */
cz_status launch_local(const struct launch_options *options, int *exit_code)
{
    struct launch l = {
        .options = options, .segment_fd = -1, .signal_fd = -1, .exec_pipe = {-1, -1}};
    *exit_code = -1;
    cz_status st = run(&l);
    finish(&l);
    TRY(st);
    *exit_code = l.exit_code;
    if (l.exit_code == 0) return CZ_OK;
    return err_set(CZ_PEER, 0, "%s", l.reason);
}
