/* A stand-in for NCCL between forked processes.
 *
 * What a rank sends is in files of a folder in /dev/shm, named after the unique id, until it is
 * received. A group is two operations on its stream: one that sends, one that waits for what is
 * sent here. As on hardware both continue without the host: a thread of the communicator takes the
 * stream to its sends as soon as nothing before them can hold it up, and to its receives some time
 * after their data came (so late that code which forgot to wait for them finds out).
 *
 *   CZERO_CUDA_SIM_NCCL_FAULT   old | id-error | init-error | async-error-at:N (of groups, from 1)
 */
#include "comm/nccl/nccl_api.h"
#include "sim_runtime.h"

#include <atomic>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <list>
#include <mutex>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LATE_NS   INT64_C(100000000)
#define UNHANDLED 1
#define SYSTEM    2
#define ARGUMENT  4
#define USAGE     5

namespace {

int64_t now_ns()
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void nap()
{
    const struct timespec t = {0, 100000};
    nanosleep(&t, nullptr);
}

struct message {
    std::string file;
    void *memory;
    size_t nbytes;
};

/* What outlives the communicator: its operations may still be queued. */
struct mailbox {
    std::string folder;
    std::atomic<bool> aborted{false};
    std::atomic<int> error{NCCL_SUCCESS};
};
typedef std::shared_ptr<mailbox> mailbox_ref;

struct group {
    std::vector<message> receives;
    sim_op_ref sends_op, receives_op;
    cudaStream_t stream;
    int64_t arrived_ns; /* 0: not all have */
};

bool arrived(const std::vector<message> &receives)
{
    for (const message &m : receives)
        if (access(m.file.c_str(), F_OK) != 0) return false;
    return true;
}

void put(const mailbox_ref &box, const message &m)
{
    if (box->aborted) return;
    std::string hidden = m.file + ".part";
    FILE *f = fopen(hidden.c_str(), "wb");
    if (!f && errno == ENOENT) return; /* a rank that has aborted took the folder: no rank reads */
    bool good = f && (m.nbytes == 0 || fwrite(m.memory, 1, m.nbytes, f) == m.nbytes);
    if (f && fclose(f) != 0) good = false;
    if (good && rename(hidden.c_str(), m.file.c_str()) != 0) good = errno == ENOENT;
    if (!good) box->error = SYSTEM;
}

/* Waits for it; not for ever: an abort here or on another rank, which takes the folder, ends it.
 * Until then no other call of this rank gets on. */
void get(const mailbox_ref &box, const message &m)
{
    while (access(m.file.c_str(), F_OK) != 0) {
        if (box->aborted || access(box->folder.c_str(), F_OK) != 0) return;
        nap();
    }
    FILE *f = fopen(m.file.c_str(), "rb");
    if (!f && errno == ENOENT) return; /* gone with the folder, as above */
    size_t n = f ? fread(m.memory, 1, m.nbytes, f) : 0;
    bool good = f && n == m.nbytes && fgetc(f) == EOF;
    if (f) fclose(f);
    unlink(m.file.c_str());
    if (!good && !box->aborted) {
        sim_print("NCCL: %s has not the %zu bytes that are received", m.file.c_str(), m.nbytes);
        box->error = USAGE;
    }
}

struct described; /* a group, as its calls have said (below) */

/* "name:N" in CZERO_CUDA_SIM_NCCL_FAULT: N; name alone: 1; 0: not asked for. */
long fault(const char *name)
{
    const char *text = getenv("CZERO_CUDA_SIM_NCCL_FAULT");
    size_t n = strlen(name);
    if (!text || strncmp(text, name, n) != 0) return 0;
    return text[n] == ':' ? atol(text + n + 1) : 1;
}

} // namespace

struct nccl_comm {
    int n_ranks, rank, device;
    mailbox_ref box;
    bool met;
    std::shared_ptr<described> pending;       /* a group that its call left in progress */
    int n_polls;                              /* for which it stays so */
    std::vector<uint64_t> n_sent, n_received; /* by peer */
    long n_groups;
    std::mutex lock; /* of groups */
    std::list<group> groups;
    pthread_t thread;
    std::atomic<bool> stop;

    std::string name(const char *what, int a, int b, uint64_t k) const
    {
        char text[128];
        snprintf(text, sizeof text, "/%s-%d-%d-%llu", what, a, b, (unsigned long long)k);
        return box->folder + text;
    }
};

namespace {

/* ---- the stream continues by itself
 * --------------------------------------------------------------
 */

void run_to(const sim_op_ref &op)
{
    sim_enter entered;
    while (entered.error == cudaSuccess && op && !op->done) sim_run_one_of(op);
}

/* What is queued behind g if that is the last group; not a group that is queued meanwhile, whose
 * data may never come. */
void run_behind_last(nccl_comm *c, const group &g)
{
    sim_op_ref last;
    {
        sim_enter entered;
        std::lock_guard<std::mutex> hold(c->lock);
        CUstream_st *s = sim_stream_of(g.stream);
        if (s && c->groups.size() == 1) last = s->last;
    }
    run_to(last);
}

/* Sends in order; receives that came, once they are late. */
void go_on(nccl_comm *c)
{
    std::list<group>::iterator at;
    {
        std::lock_guard<std::mutex> hold(c->lock);
        at = c->groups.begin();
    }
    for (;;) {
        {
            std::lock_guard<std::mutex> hold(c->lock);
            if (at == c->groups.end()) return;
        }
        run_to(at->sends_op);
        if (at->arrived_ns == 0) {
            bool done;
            {
                sim_enter entered;
                done = at->receives_op->done;
            }
            if (!done && !arrived(at->receives)) return;
            at->arrived_ns = now_ns();
        }
        std::lock_guard<std::mutex> hold(c->lock);
        ++at;
    }
}

void finish_late(nccl_comm *c)
{
    for (;;) {
        group g;
        {
            std::lock_guard<std::mutex> hold(c->lock);
            if (c->groups.empty()) return;
            const group &first = c->groups.front();
            if (first.arrived_ns == 0 || now_ns() - first.arrived_ns < LATE_NS) return;
            g = first;
        }
        run_to(g.receives_op);
        run_behind_last(c, g);
        std::lock_guard<std::mutex> hold(c->lock);
        c->groups.pop_front();
    }
}

void *progress(void *arg)
{
    nccl_comm *c = (nccl_comm *)arg;
    while (!c->stop) {
        go_on(c);
        finish_late(c);
        nap();
    }
    return nullptr;
}

void end_thread(nccl_comm *c)
{
    c->stop = true;
    pthread_join(c->thread, nullptr);
}

/* ---- communicators ---- */

int sim_GetVersion(int *version)
{
    *version = fault("old") ? 21200 : 22809;
    return NCCL_SUCCESS;
}

int sim_GetUniqueId(struct nccl_id *id)
{
    if (fault("id-error")) return SYSTEM;
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "/dev/shm/czero-sim-nccl-%d-%llx", (int)getpid(),
             (unsigned long long)now_ns());
    return mkdir(id->internal, 0700) == 0 ? NCCL_SUCCESS : SYSTEM;
}

int sim_CommInitRankConfig(struct nccl_comm **out, int n_ranks, struct nccl_id id, int rank,
                           struct nccl_config *config)
{
    *out = nullptr;
    if (config->size < sizeof *config || config->magic != NCCL_CONFIG_MAGIC ||
        config->blocking != 0)
        return ARGUMENT;
    if (sim_no_context(__func__) != cudaSuccess) return UNHANDLED;
    if (fault("init-error")) return SYSTEM;
    nccl_comm *c = new nccl_comm();
    c->device = sim_device();
    c->n_ranks = n_ranks;
    c->rank = rank;
    c->box = std::make_shared<mailbox>();
    c->box->folder = id.internal;
    c->n_sent.resize((size_t)n_ranks);
    c->n_received.resize((size_t)n_ranks);
    message here = {c->name("here", rank, rank, 0), nullptr, 0};
    put(c->box, here);
    if (c->box->error != NCCL_SUCCESS || pthread_create(&c->thread, nullptr, progress, c) != 0) {
        delete c;
        return SYSTEM;
    }
    *out = c;
    return NCCL_IN_PROGRESS;
}

bool all_here(const nccl_comm *c)
{
    for (int r = 0; r < c->n_ranks; r++)
        if (access(c->name("here", r, r, 0).c_str(), F_OK) != 0) return false;
    return true;
}

int queue_group(const described &g);

/* What a call has left in progress continues between polls, as it does beside the caller in fact.
 */
int sim_CommGetAsyncError(struct nccl_comm *c, int *result)
{
    c->met = c->met || all_here(c);
    *result = c->met ? c->box->error.load() : NCCL_IN_PROGRESS;
    if (*result == NCCL_SUCCESS && c->n_polls > 0) {
        c->n_polls--;
        *result = NCCL_IN_PROGRESS;
    } else if (*result == NCCL_SUCCESS && c->pending) {
        *result = queue_group(*c->pending);
        c->pending = nullptr;
    }
    long at = fault("async-error-at");
    if (at > 0 && c->n_groups >= at) *result = SYSTEM;
    return NCCL_SUCCESS;
}

void remove_all(const std::string &folder)
{
    DIR *d = opendir(folder.c_str());
    if (!d) return;
    for (struct dirent *e; (e = readdir(d));)
        if (e->d_name[0] != '.') unlink((folder + "/" + e->d_name).c_str());
    closedir(d);
}

/* The last to leave removes the folder. */
void leave_folder(const nccl_comm *c)
{
    unlink(c->name("here", c->rank, c->rank, 0).c_str());
    rmdir(c->box->folder.c_str());
}

/* After an abort no rank receives any more: the folder is gone at once, and then emptied, to which
 * others may still be writing. */
void take_folder(const nccl_comm *c)
{
    std::string gone = c->box->folder + "-gone";
    if (rename(c->box->folder.c_str(), gone.c_str()) != 0) return; /* another rank was first */
    for (int tries = 20; tries > 0; tries--) {
        remove_all(gone);
        if (rmdir(gone.c_str()) == 0) return;
        nap();
    }
}

/* Called while another thread may be waiting in get(). */
int sim_CommAbort(struct nccl_comm *c)
{
    c->box->aborted = true;
    end_thread(c);
    take_folder(c);
    delete c;
    return NCCL_SUCCESS;
}

/* Local, unlike the real one: a stand-in that proves less. */
int sim_CommFinalize(struct nccl_comm *c)
{
    c->n_polls = 1;
    return NCCL_IN_PROGRESS;
}

int sim_CommDestroy(struct nccl_comm *c)
{
    end_thread(c);
    leave_folder(c);
    delete c;
    return NCCL_SUCCESS;
}

/* ---- groups ---- */

struct described {
    nccl_comm *comm;
    cudaStream_t stream;
    std::vector<message> sends, receives, copies; /* copies: from file's place to memory */
    std::vector<const void *> copied;
    int error;
};

int depth;
described now;

int queue_group(const described &g)
{
    nccl_comm *c = g.comm;
    mailbox_ref box = c->box;
    struct sim_op_info sends_info = {SIM_LIBRARY, "NCCL sends", 0, false};
    struct sim_op_info receives_info = {SIM_LIBRARY, "NCCL receives", 0, false};
    group queued = {g.receives, nullptr, nullptr, g.stream, 0};
    for (const message &m : g.sends) sends_info.nbytes += m.nbytes;
    for (const message &m : g.receives) receives_info.nbytes += m.nbytes;
    sim_enter entered;
    if (entered.error != cudaSuccess) return UNHANDLED;
    CUstream_st *s = sim_stream_of(g.stream);
    if (!s || (s->device >= 0 && s->device != c->device)) return ARGUMENT;
    queued.sends_op = sim_queue(s, &sends_info, [box, g] {
        for (const message &m : g.sends) put(box, m);
        for (size_t i = 0; i < g.copies.size(); i++)
            memmove(g.copies[i].memory, g.copied[i], g.copies[i].nbytes);
    });
    queued.receives_op = sim_queue(s, &receives_info, [box, g] {
        for (const message &m : g.receives) get(box, m);
    });
    std::lock_guard<std::mutex> hold(c->lock);
    c->groups.push_back(queued);
    c->n_groups++;
    return NCCL_SUCCESS;
}

int group_start()
{
    if (depth++ == 0) now = described();
    return NCCL_SUCCESS;
}

/* Nothing is queued yet when this returns: the communicator does not block. */
int group_end()
{
    if (depth == 0) return USAGE;
    if (--depth > 0) return NCCL_SUCCESS;
    if (now.error != NCCL_SUCCESS || !now.comm) return now.error;
    now.comm->pending = std::make_shared<described>(now);
    now.comm->n_polls = 1;
    return NCCL_IN_PROGRESS;
}

/* A call belongs to the group's communicator and stream, and names device memory. */
int describe(nccl_comm *c, cudaStream_t stream, const void *memory, size_t nbytes, int peer)
{
    if (c && (c->pending || !c->met)) {
        sim_print("NCCL: a call while the one before is in progress");
        now.error = ARGUMENT;
    }
    bool good = c && peer >= 0 && peer < c->n_ranks && (!now.comm || now.comm == c) &&
                (!now.comm || now.stream == stream);
    if (good && nbytes > 0 && !sim_device_range(memory, nbytes)) {
        sim_print("NCCL: %zu bytes of a send or receive are not in an allocation of the device",
                  nbytes);
        good = false;
    }
    now.comm = c;
    now.stream = stream;
    if (!good && now.error == NCCL_SUCCESS) now.error = ARGUMENT;
    return now.error;
}

void add_send(nccl_comm *c, const void *src, size_t n, int peer)
{
    uint64_t k = c->n_sent[(size_t)peer]++;
    now.sends.push_back({c->name("data", c->rank, peer, k), const_cast<void *>(src), n});
}

void add_receive(nccl_comm *c, void *dst, size_t n, int peer)
{
    uint64_t k = c->n_received[(size_t)peer]++;
    now.receives.push_back({c->name("data", peer, c->rank, k), dst, n});
}

int finish_call(int error)
{
    int ended = group_end();
    return error != NCCL_SUCCESS ? error : ended;
}

int sim_Send(const void *src, size_t n, int, int peer, struct nccl_comm *c, cudaStream_t stream)
{
    group_start();
    int error = describe(c, stream, src, n, peer);
    if (error == NCCL_SUCCESS) add_send(c, src, n, peer);
    return finish_call(error);
}

int sim_Recv(void *dst, size_t n, int, int peer, struct nccl_comm *c, cudaStream_t stream)
{
    group_start();
    int error = describe(c, stream, dst, n, peer);
    if (error == NCCL_SUCCESS) add_receive(c, dst, n, peer);
    return finish_call(error);
}

int sim_Broadcast(const void *src, void *dst, size_t n, int, int root, struct nccl_comm *c,
                  cudaStream_t stream)
{
    group_start();
    int error = describe(c, stream, dst, n, root);
    if (error == NCCL_SUCCESS && c->rank == root) error = describe(c, stream, src, n, root);
    if (error == NCCL_SUCCESS && c->rank != root) add_receive(c, dst, n, root);
    if (error == NCCL_SUCCESS && c->rank == root) {
        for (int r = 0; r < c->n_ranks; r++)
            if (r != root) add_send(c, src, n, r);
        now.copies.push_back({"", dst, n});
        now.copied.push_back(src);
    }
    return finish_call(error);
}

const char *sim_GetErrorString(int result)
{
    switch (result) {
    case NCCL_SUCCESS: return "no error";
    case UNHANDLED: return "unhandled cuda error";
    case SYSTEM: return "unhandled system error";
    case ARGUMENT: return "invalid argument";
    case USAGE: return "invalid usage";
    default: return "unknown result code";
    }
}

const char *sim_GetLastError(struct nccl_comm *)
{
    return "";
}

} // namespace

extern "C" const struct nccl_calls sim_nccl_calls = {
    sim_GetVersion,
    sim_GetUniqueId,
    sim_CommInitRankConfig,
    sim_CommFinalize,
    sim_CommDestroy,
    sim_CommAbort,
    sim_CommGetAsyncError,
    group_start,
    group_end,
    sim_Send,
    sim_Recv,
    sim_Broadcast,
    sim_GetErrorString,
    sim_GetLastError,
};
