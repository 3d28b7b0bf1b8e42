/* Inside the simulated runtime: calls, errors, queued work, memory. The stand-ins of cuBLASLt and
 * NCCL include this, too: sim_library_queue() puts their work on a stream.
 *
 * One lock guards everything; a call holds it from sim_enter() to its end, also while queued work
 * runs. Work never calls the API: it gets cudaErrorNotPermitted. */
#ifndef CZ_TESTS_SIM_RUNTIME_H
#define CZ_TESTS_SIM_RUNTIME_H

#include "sim_settings.h"
#include "sim_trace.h"

#include <cuda_runtime_api.h>
#include <deque>
#include <functional>
#include <memory>
#include <stdint.h>
#include <string>
#include <vector>

/* ---- calls and errors (sim_device.cc) ---- */

/* Taken at the top of every call: holds the lock; error is what the call must return, unless it is
 * cudaSuccess. */
struct sim_enter {
    cudaError_t error;
    sim_enter();
    ~sim_enter();
    sim_enter(const sim_enter &) = delete;
    sim_enter &operator=(const sim_enter &) = delete;
};
#define SIM_ENTER()                                                                                \
    sim_enter entered;                                                                             \
    if (entered.error != cudaSuccess) return sim_error(entered.error)

/* The same for calls that need a context. A thread that has selected no device would make one on
 * device 0, whatever the process works with: refused once the process has selected a device. */
cudaError_t sim_no_context(const char *call);
#define SIM_ENTER_CONTEXT()                                                                        \
    SIM_ENTER();                                                                                   \
    if (sim_no_context(__func__) != cudaSuccess) return cudaErrorDeviceUninitialized
int sim_device(void); /* that the calling thread has selected */
#define SIM_DEVICES_MAX 16

/* Remember what cudaGetLastError returns, and return it. */
cudaError_t sim_error(cudaError_t error);
/* The same with a sentence on stderr: a mistake of the caller's, as hardware would not tell. */
cudaError_t sim_refuse(cudaError_t error, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* The device is lost: every later call returns error, and queued work is dropped. */
void sim_lose(cudaError_t error, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* cudaSuccess, or why the device is lost. */
cudaError_t sim_status(void);
void sim_print(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- queued work (sim_stream.cc) ---- */

struct sim_op {
    enum sim_kind kind;
    std::function<void()> run;
    std::vector<std::shared_ptr<sim_op>> after; /* must be done first */
    bool done;
    int stream;
    uint64_t sequence;
    size_t trace; /* index in the trace of that number; 0: in none */
    uint64_t trace_begun;
    double ran_ms;
    uintptr_t host, host_nbytes; /* pinned memory it touches */
};
typedef std::shared_ptr<sim_op> sim_op_ref;

struct CUstream_st {
    int number;
    int device; /* -1: whichever is selected */
    unsigned flags;
    int priority;
    bool destroyed;
    std::deque<sim_op_ref> pending;
    sim_op_ref last; /* done or not */
};

struct CUevent_st {
    unsigned flags;
    int device;
    sim_op_ref recorded;
};

struct sim_op_info {
    enum sim_kind kind;
    const char *name;
    size_t nbytes;
    bool pinned;
};

/* The stream behind a handle (NULL, cudaStreamLegacy, cudaStreamPerThread too), or NULL when it was
 * destroyed. */
CUstream_st *sim_stream_of(cudaStream_t handle);
/* Whether kernels may be queued there: a stream takes those of its own device alone. */
cudaError_t sim_stream_takes(const CUstream_st *s, const char *what);
/* Queue run() on s, after what is there and after `also`. Runs at once when streams are eager. */
sim_op_ref sim_queue(CUstream_st *s, const struct sim_op_info *info, std::function<void()> run,
                     sim_op_ref also = nullptr);
void sim_run_until(const sim_op_ref &op); /* and what it has to wait for; no more when lazy */
void sim_run_stream(CUstream_st *s);
void sim_run_all(void);
void sim_run_one_of(const sim_op_ref &op); /* a single step towards op */
bool sim_is_running(void);                 /* work runs on the calling thread */
void sim_streams_reset(void);
/* Whether unfinished work touches these bytes of host memory. */
bool sim_host_in_use(uintptr_t at, size_t nbytes);

/* A library's call: work(context) runs when the stream gets there, with device memory open; then,
 * or when the work is dropped, free_context(context). name is kept. Takes the lock itself. */
cudaError_t sim_library_queue(cudaStream_t stream, const char *name, size_t nbytes,
                              void (*work)(void *context), void (*free_context)(void *context),
                              void *context);

void sim_launch_reset(void); /* sim_launch.cc */

/* ---- memory (sim_memory.cc) ---- */

/* Device memory is cut from here. */
#define SIM_REGION_BASE   ((uintptr_t)0x300000000000)
#define SIM_REGION_NBYTES ((size_t)1 << 40)

/* Which device memory the CPU may touch: none, unless work runs. By need: what is touched is opened
 * by sim_memory_touch(), or by its first fault; system calls do not fault, so work of libraries
 * sees everything. */
enum sim_memory_view { SIM_MEMORY_HIDDEN = 0, SIM_MEMORY_BY_NEED, SIM_MEMORY_ALL };
void sim_memory_show(enum sim_memory_view view);
bool sim_memory_touch(const void *p); /* true: the allocation was closed, and is open now */
void sim_faults_catch(void);          /* sim_fault.cc: from now on faults are explained */
void sim_memory_reset(void);
bool sim_is_device(const void *p);              /* anywhere in the reserved region */
bool sim_device_range(const void *p, size_t n); /* whole in one allocation */
/* The live allocation or registration that holds an address. */
bool sim_memory_range(const void *p, uintptr_t *begin, size_t *nbytes);
/* Whether p is in the memory of a device other than this one. */
bool sim_is_foreign(const void *p, int device);
bool sim_pinned_range(const void *p, size_t n);   /* whole in one registration */
bool sim_pinned_touches(const void *p, size_t n); /* a part of it is pinned */
/* A few words on where an address is, for a sentence. */
std::string sim_memory_describe(const void *p);

/* ---- trace (sim_trace.cc) ---- */

void sim_trace_queued(sim_op *op, const struct sim_op_info *info);
void sim_trace_ran(const sim_op *op);
/* The host waited for op: what is queued from now on starts after it. */
void sim_trace_host_waited(const sim_op *op);

#endif
