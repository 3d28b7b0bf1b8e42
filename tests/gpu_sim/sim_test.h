/* What the tests of the simulated device share: settings, buffers, expected errors. */
#ifndef CZ_TESTS_CUDA_SIM_SIM_TEST_H
#define CZ_TESTS_CUDA_SIM_SIM_TEST_H

#include "tests/gpu_sim/kernels.h"
#include "tests/support/check_main.h"
#include "tests/support/cuda_sim/sim_trace.h"

#include <string.h>
#include <sys/wait.h>

#define ck_cuda(expr) ck_cuda_is(expr, cudaSuccess)
#define ck_cuda_is(expr, want)                                                                     \
    do {                                                                                           \
        cudaError_t ck_e_ = (expr);                                                                \
        ck_assert_msg(ck_e_ == (want), "%s: %s (%s)", #expr, cudaGetErrorName(ck_e_),              \
                      sim_last_message());                                                         \
    } while (0)

/* A fresh device with one setting; NULL: none. */
static inline void sim_with(const char *name, const char *value)
{
    static const char *const names[] = {"ORDER", "STREAMS", "MEMORY", "DEVICES", "FAULT",
                                        "GUARD", "CODE",    "APPROX", "ECHO",    "SHARED"};
    static bool ends_clean;
    char full[64];
    if (!ends_clean) atexit(sim_reset); /* streams and events that a test left are no leaks */
    ends_clean = true;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(full, sizeof full, "CZERO_CUDA_SIM_%s", names[i]);
        unsetenv(full);
    }
    if (name) {
        snprintf(full, sizeof full, "CZERO_CUDA_SIM_%s", name);
        setenv(full, value, 1);
    }
    sim_reset();
}

static const char *const sim_orders[] = {"forward", "reverse", "random:1", "random:2"};
#define N_SIM_ORDERS (sizeof sim_orders / sizeof sim_orders[0])

static inline void *device_alloc(size_t nbytes)
{
    void *p;
    ck_cuda(cudaMalloc(&p, nbytes));
    return p;
}

static inline void *device_copy_of(const void *host, size_t nbytes)
{
    void *p = device_alloc(nbytes);
    ck_cuda(cudaMemcpy(p, host, nbytes, cudaMemcpyHostToDevice));
    return p;
}

static inline void from_device(void *host, const void *p, size_t nbytes)
{
    ck_cuda(cudaMemcpy(host, p, nbytes, cudaMemcpyDeviceToHost));
}

static inline cudaStream_t new_stream(void)
{
    cudaStream_t s;
    ck_cuda(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    return s;
}

static inline cudaEvent_t new_event(void)
{
    cudaEvent_t e;
    ck_cuda(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    return e;
}

/* The signal that ends act() in a process of its own; 0: none. */
static inline int signal_of(void (*act)(void))
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        sim_with(NULL, NULL);
        act();
        _exit(0);
    }
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    if (WIFSIGNALED(status)) return WTERMSIG(status);
    return WEXITSTATUS(status) == 0 ? 0 : -1; /* AddressSanitizer ends with a report */
}

#endif
