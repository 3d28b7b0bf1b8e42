/* Streams and events: work is a graph, and runs when something waits for it.
 *
 * Each operation names what must be done before it: the operation before it on its stream, the
 * event it waits for, and the default stream's order. Lazy: waiting runs an operation's ancestors
 * and nothing else. Random: any operation that may run does, until the awaited one has. */
#include "sim_runtime.h"

#include <algorithm>
#include <set>
#include <string.h>
#include <time.h>

namespace {

CUstream_st default_stream, per_thread_stream;
std::vector<CUstream_st *> streams; /* by creation; destroyed ones until their work is done */
std::set<CUevent_st *> events;
int n_streams;
uint64_t n_queued, random_state;
bool running;

double now_ms()
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

bool is_blocking(const CUstream_st *s)
{
    return !(s->flags & cudaStreamNonBlocking);
}

void finish(const sim_op_ref &op)
{
    op->done = true;
    op->after.clear();
    op->run = nullptr;
}

/* Device memory stays open after an operation: the caller closes it when the last has run. */
void run(const sim_op_ref &op)
{
    std::function<void()> work = std::move(op->run);
    if (sim_status() == cudaSuccess && work) {
        running = true;
        sim_memory_show(op->kind == SIM_HOST      ? SIM_MEMORY_HIDDEN
                        : op->kind == SIM_LIBRARY ? SIM_MEMORY_ALL
                                                  : SIM_MEMORY_BY_NEED);
        work();
        running = false;
    }
    op->ran_ms = now_ms();
    sim_trace_ran(op.get());
    finish(op);
}

/* The next operation that op needs, itself at the end: what waits for nothing undone. */
sim_op_ref first_undone(sim_op_ref op)
{
    for (;;) {
        auto undone = std::find_if(op->after.begin(), op->after.end(),
                                   [](const sim_op_ref &a) { return !a->done; });
        if (undone == op->after.end()) return op;
        op = sim_op_ref(*undone);
    }
}

/* Depth first without recursion: chains are as long as a training step. */
void run_with_ancestors(const sim_op_ref &op)
{
    std::vector<sim_op_ref> open{op};
    while (!open.empty()) {
        sim_op_ref top = open.back();
        size_t n = open.size();
        for (const sim_op_ref &before : top->after)
            if (!before->done) open.push_back(before);
        if (open.size() > n) continue;
        open.pop_back();
        if (!top->done) run(top);
    }
}

void pop_done(CUstream_st *s)
{
    while (!s->pending.empty() && s->pending.front()->done) s->pending.pop_front();
}

std::vector<CUstream_st *> all_streams()
{
    std::vector<CUstream_st *> all{&default_stream, &per_thread_stream};
    all.insert(all.end(), streams.begin(), streams.end());
    return all;
}

/* Streams that were destroyed with work on them go when it is done. */
void collect()
{
    for (CUstream_st *s : all_streams()) pop_done(s);
    auto gone = [](CUstream_st *s) {
        if (!s->destroyed || !s->pending.empty()) return false;
        delete s;
        return true;
    };
    streams.erase(std::remove_if(streams.begin(), streams.end(), gone), streams.end());
}

/* One operation of any stream that may run now; nullptr: none is left. */
sim_op_ref random_ready()
{
    std::vector<sim_op_ref> ready;
    for (CUstream_st *s : all_streams()) {
        pop_done(s);
        if (s->pending.empty()) continue;
        sim_op_ref head = s->pending.front();
        if (first_undone(head) == head) ready.push_back(head);
    }
    if (ready.empty()) return nullptr;
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return ready[(random_state >> 33) % ready.size()];
}

void add_after(sim_op *op, const sim_op_ref &before)
{
    if (before) op->after.push_back(before);
}

/* The default stream waits for all blocking streams, and they wait for it. */
void order_after(sim_op *op, CUstream_st *s)
{
    add_after(op, s->last);
    if (s == &default_stream) {
        for (CUstream_st *other : all_streams())
            if (other != s && is_blocking(other)) add_after(op, other->last);
    } else if (is_blocking(s)) {
        add_after(op, default_stream.last);
    }
}

sim_op_ref marker(CUstream_st *s, enum sim_kind kind, sim_op_ref also = nullptr)
{
    struct sim_op_info info = {kind, "", 0, false};
    return sim_queue(s, &info, nullptr, also);
}

/* What a wait for stream s waits for; for the default stream, the blocking ones, too. */
std::vector<sim_op_ref> ends_of(CUstream_st *s)
{
    std::vector<sim_op_ref> ends;
    for (CUstream_st *other : all_streams())
        if (other == s || (s == &default_stream && is_blocking(other)))
            if (other->last) ends.push_back(other->last);
    return ends;
}

} // namespace

bool sim_is_running(void)
{
    return running;
}

CUstream_st *sim_stream_of(cudaStream_t handle)
{
    if (handle == nullptr || handle == cudaStreamLegacy) return &default_stream;
    if (handle == cudaStreamPerThread) return &per_thread_stream;
    auto at = std::find(streams.begin(), streams.end(), handle);
    return at != streams.end() && !(*at)->destroyed ? *at : nullptr;
}

cudaError_t sim_stream_takes(const CUstream_st *s, const char *what)
{
    const bool is_default = s == &default_stream || s == &per_thread_stream;
    if (is_default || s->device == sim_device()) return cudaSuccess;
    return sim_refuse(cudaErrorInvalidResourceHandle,
                      "%s on a stream of device %d while device %d is selected", what, s->device,
                      sim_device());
}

sim_op_ref sim_queue(CUstream_st *s, const struct sim_op_info *info, std::function<void()> work,
                     sim_op_ref also)
{
    sim_op_ref op = std::make_shared<sim_op>();
    op->kind = info->kind;
    op->run = std::move(work);
    op->stream = s->number;
    op->sequence = ++n_queued;
    order_after(op.get(), s);
    add_after(op.get(), also);
    sim_trace_queued(op.get(), info);
    s->pending.push_back(op);
    s->last = op;
    if (sim_settings.streams == SIM_STREAMS_EAGER) {
        run_with_ancestors(op);
        sim_memory_show(SIM_MEMORY_HIDDEN);
        collect();
    }
    return op;
}

void sim_run_until(const sim_op_ref &op)
{
    if (!op) return;
    while (!op->done) {
        sim_op_ref next = nullptr;
        if (sim_settings.streams == SIM_STREAMS_RANDOM) next = random_ready();
        if (next)
            run(next);
        else
            run_with_ancestors(op);
    }
    sim_memory_show(SIM_MEMORY_HIDDEN);
    collect();
    sim_trace_host_waited(op.get());
}

void sim_run_stream(CUstream_st *s)
{
    for (const sim_op_ref &end : ends_of(s)) sim_run_until(end);
}

/* The latest calls first, as far as order allows: what forgot to wait for earlier work shows. */
void sim_run_all(void)
{
    std::vector<sim_op_ref> ends;
    for (CUstream_st *s : all_streams())
        if (s->last) ends.push_back(s->last);
    std::sort(ends.begin(), ends.end(),
              [](const sim_op_ref &a, const sim_op_ref &b) { return a->sequence > b->sequence; });
    for (const sim_op_ref &end : ends) sim_run_until(end);
}

void sim_run_one_of(const sim_op_ref &op)
{
    if (op->done) return;
    run(first_undone(op));
    sim_memory_show(SIM_MEMORY_HIDDEN);
    collect();
}

static void drop_all(void)
{
    for (CUstream_st *s : all_streams()) {
        for (const sim_op_ref &op : s->pending) finish(op);
        s->pending.clear();
    }
}

void sim_streams_reset(void)
{
    drop_all();
    for (CUstream_st *s : streams) delete s;
    for (CUevent_st *e : events) delete e;
    streams.clear();
    events.clear();
    default_stream.last = per_thread_stream.last = nullptr;
    per_thread_stream.number = -1;
    n_streams = 0;
    random_state = sim_settings.streams_seed * 0x9E3779B97F4A7C15u + 1;
}

bool sim_host_in_use(uintptr_t at, size_t nbytes)
{
    for (CUstream_st *s : all_streams())
        for (const sim_op_ref &op : s->pending)
            if (!op->done && op->host_nbytes > 0 && op->host < at + nbytes &&
                at < op->host + op->host_nbytes)
                return true;
    return false;
}

cudaError_t sim_library_queue(cudaStream_t stream, const char *name, size_t nbytes,
                              void (*work)(void *context), void (*free_context)(void *context),
                              void *context)
{
    /* Freed with the operation's closure, whether it ran or was dropped. */
    std::shared_ptr<void> owned(context, [free_context](void *c) {
        if (free_context) free_context(c);
    });
    SIM_ENTER_CONTEXT();
    CUstream_st *s = sim_stream_of(stream);
    if (!s) return sim_error(cudaErrorInvalidResourceHandle);
    cudaError_t error = sim_stream_takes(s, name);
    if (error != cudaSuccess) return error;
    struct sim_op_info info = {SIM_LIBRARY, name, nbytes, false};
    sim_queue(s, &info, [owned, work] {
        if (!sim_settings.dry) work(owned.get());
    });
    return cudaSuccess;
}

/* ---- streams ---- */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority)
{
    SIM_ENTER_CONTEXT();
    if (!out || (flags & ~(unsigned)cudaStreamNonBlocking)) return sim_error(cudaErrorInvalidValue);
    CUstream_st *s = new CUstream_st();
    s->number = ++n_streams;
    s->device = sim_device();
    s->flags = flags;
    s->priority = std::min(0, std::max(-5, priority));
    streams.push_back(s);
    *out = s;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    return cudaStreamCreateWithPriority(out, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t *out)
{
    return cudaStreamCreateWithPriority(out, cudaStreamDefault, 0);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    SIM_ENTER_CONTEXT();
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return cudaSuccess;
}

#define STREAM(s, handle)                                                                          \
    CUstream_st *s = sim_stream_of(handle);                                                        \
    if (!s) return sim_error(cudaErrorInvalidResourceHandle)

cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned *flags)
{
    SIM_ENTER_CONTEXT();
    STREAM(s, stream);
    *flags = s->flags;
    return cudaSuccess;
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority)
{
    SIM_ENTER_CONTEXT();
    STREAM(s, stream);
    *priority = s->priority;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    SIM_ENTER_CONTEXT();
    STREAM(s, stream);
    if (s == &default_stream || s == &per_thread_stream)
        return sim_error(cudaErrorInvalidResourceHandle);
    s->destroyed = true;
    collect();
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    SIM_ENTER_CONTEXT();
    STREAM(s, stream);
    sim_run_stream(s);
    return sim_error(sim_status());
}

/* "Not ready" is the last error then, as on hardware. A query takes the work one step further: a
 * caller that polls gets there, a single query returns not ready. */
cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    SIM_ENTER_CONTEXT();
    STREAM(s, stream);
    for (const sim_op_ref &end : ends_of(s)) {
        if (end->done) continue;
        sim_run_one_of(end);
        return sim_error(sim_status() != cudaSuccess ? sim_status() : cudaErrorNotReady);
    }
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    SIM_ENTER_CONTEXT();
    STREAM(s, stream);
    if (events.count(event) == 0) return sim_error(cudaErrorInvalidResourceHandle);
    if (flags != cudaEventWaitDefault) return sim_error(cudaErrorInvalidValue);
    marker(s, SIM_WAIT, event->recorded);
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    SIM_ENTER_CONTEXT();
    sim_run_all();
    return sim_error(sim_status());
}

/* As on hardware the function must not call CUDA, and sees no device memory. */
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *user_data)
{
    SIM_ENTER_CONTEXT();
    STREAM(s, stream);
    if (!fn) return sim_error(cudaErrorInvalidValue);
    struct sim_op_info info = {SIM_HOST, "host function", 0, false};
    sim_queue(s, &info, [fn, user_data] { fn(user_data); });
    return cudaSuccess;
}

/* ---- events ---- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    SIM_ENTER_CONTEXT();
    const unsigned known = cudaEventBlockingSync | cudaEventDisableTiming;
    if (!out || (flags & ~known)) return sim_error(cudaErrorInvalidValue);
    *out = new CUevent_st();
    (*out)->flags = flags;
    (*out)->device = sim_device();
    events.insert(*out);
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *out)
{
    return cudaEventCreateWithFlags(out, cudaEventDefault);
}

#define EVENT(event)                                                                               \
    if (events.count(event) == 0) return sim_error(cudaErrorInvalidResourceHandle)

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    SIM_ENTER_CONTEXT();
    EVENT(event);
    events.erase(event);
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    SIM_ENTER_CONTEXT();
    EVENT(event);
    STREAM(s, stream);
    const bool is_default = s == &default_stream || s == &per_thread_stream;
    if (event->device != (is_default ? sim_device() : s->device))
        return sim_refuse(cudaErrorInvalidResourceHandle,
                          "an event of device %d is recorded on a stream of another",
                          event->device);
    event->recorded = marker(s, SIM_RECORD);
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    SIM_ENTER_CONTEXT();
    EVENT(event);
    sim_run_until(event->recorded);
    return sim_error(sim_status());
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    SIM_ENTER_CONTEXT();
    EVENT(event);
    if (!event->recorded || event->recorded->done) return cudaSuccess;
    sim_run_one_of(event->recorded);
    return sim_error(sim_status() != cudaSuccess ? sim_status() : cudaErrorNotReady);
}

/* The host's clock when the simulator got to each: order, not speed. */
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    SIM_ENTER_CONTEXT();
    EVENT(start);
    EVENT(end);
    if (!ms || ((start->flags | end->flags) & cudaEventDisableTiming) || !start->recorded ||
        !end->recorded)
        return sim_error(cudaErrorInvalidResourceHandle);
    if (!start->recorded->done || !end->recorded->done) return sim_error(cudaErrorNotReady);
    *ms = (float)std::max(0.0, end->recorded->ran_ms - start->recorded->ran_ms);
    return cudaSuccess;
}
