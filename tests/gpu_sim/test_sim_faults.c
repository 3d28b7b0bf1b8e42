/* Claims: the simulated device refuses what a driver refuses at a launch, names itself an H100, and
 * has each fault that a test can ask for. */
#include "tests/gpu_sim/sim_test.h"

#include <pthread.h>

static dim3 d3(unsigned x, unsigned y, unsigned z)
{
    dim3 d = {x, y, z};
    return d;
}

START_TEST(launch_shapes_have_limits)
{
    const struct {
        dim3 grid, block;
        cudaError_t want;
    } cases[] = {
        {d3(1, 1, 1), d3(1024, 1, 1), cudaSuccess},
        {d3(1, 1, 1), d3(32, 32, 1), cudaSuccess},
        {d3(1, 1, 1), d3(16, 1, 64), cudaSuccess},
        {d3(1, 1, 1), d3(1025, 1, 1), cudaErrorInvalidConfiguration},
        {d3(1, 1, 1), d3(32, 33, 1), cudaErrorInvalidConfiguration},
        {d3(1, 1, 1), d3(1, 1, 65), cudaErrorInvalidConfiguration},
        {d3(1, 1, 1), d3(0, 1, 1), cudaErrorInvalidConfiguration},
        {d3(0, 1, 1), d3(32, 1, 1), cudaErrorInvalidConfiguration},
        {d3(1, 65535, 1), d3(1, 1, 1), cudaSuccess},
        {d3(1, 65536, 1), d3(1, 1, 1), cudaErrorInvalidConfiguration},
        {d3(1, 1, 65536), d3(1, 1, 1), cudaErrorInvalidConfiguration},
        {d3(1u << 31, 1, 1), d3(1, 1, 1), cudaErrorInvalidConfiguration},
    };
    sim_with(NULL, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cudaError_t got = launch_empty(cases[i].grid, cases[i].block, 0, NULL);
        ck_assert_msg(got == cases[i].want, "case %zu: %s", i, cudaGetErrorName(got));
        ck_cuda_is(cudaGetLastError(), cases[i].want);
        ck_cuda(cudaGetLastError());
    }
    ck_cuda(cudaDeviceSynchronize());
}
END_TEST

START_TEST(shared_memory_and_parameters_have_limits)
{
    sim_with(NULL, NULL);
    ck_cuda(launch_empty(d3(1, 1, 1), d3(32, 1, 1), 48 << 10, NULL));
    ck_cuda_is(launch_empty(d3(1, 1, 1), d3(32, 1, 1), (48 << 10) + 1, NULL),
               cudaErrorInvalidValue);
    ck_cuda(allow_shared(100000));
    ck_cuda(launch_empty(d3(1, 1, 1), d3(32, 1, 1), 100000, NULL));
    ck_cuda_is(launch_empty(d3(1, 1, 1), d3(32, 1, 1), 100001, NULL), cudaErrorInvalidValue);
    ck_cuda(allow_shared(227 << 10));
    ck_cuda(launch_empty(d3(1, 1, 1), d3(32, 1, 1), 227 << 10, NULL));
    ck_cuda_is(allow_shared((227 << 10) + 1), cudaErrorInvalidValue);
    ck_cuda(launch_big_params(false, NULL));
    ck_cuda_is(launch_big_params(true, NULL), cudaErrorInvalidValue);
    ck_cuda(cudaDeviceSynchronize());
}
END_TEST

START_TEST(shared_memory_is_that_of_the_capability_or_what_is_asked_for)
{
    static const struct {
        const char *name, *value;
        size_t kib;
    } cases[] = {
        {"FAULT", "capability:8.0", 163}, {"FAULT", "capability:8.6", 99},
        {"FAULT", "capability:8.7", 163}, {"FAULT", "capability:10.0", 227},
        {"FAULT", "capability:12.0", 99}, {"SHARED", "99", 99},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct cudaDeviceProp prop;
        sim_with(cases[i].name, cases[i].value);
        ck_cuda(cudaGetDeviceProperties(&prop, 0));
        ck_assert_uint_eq(prop.sharedMemPerBlockOptin, cases[i].kib << 10);
        ck_assert_uint_eq(prop.sharedMemPerMultiprocessor, (cases[i].kib + 1) << 10);
        ck_cuda(allow_shared(cases[i].kib << 10));
        ck_cuda_is(allow_shared((cases[i].kib << 10) + 1), cudaErrorInvalidValue);
    }
}
END_TEST

START_TEST(static_shared_memory_counts)
{
    sim_with(NULL, NULL);
    float *out = device_alloc(32 * sizeof *out);
    ck_cuda(launch_half_static(false, out, 16 << 10, NULL));
    ck_cuda_is(launch_half_static(false, out, (16 << 10) + 4, NULL), cudaErrorInvalidValue);
    ck_cuda(allow_half_static(195 << 10));
    ck_cuda(launch_half_static(true, out, 195 << 10, NULL));
    ck_cuda_is(allow_half_static((195 << 10) + 4), cudaErrorInvalidValue);
    ck_cuda(cudaDeviceSynchronize());
}
END_TEST

START_TEST(it_has_the_figures_of_an_h100)
{
    struct cudaDeviceProp prop;
    int n, value, driver, runtime;
    char bus[32];
    sim_with(NULL, NULL);
    ck_cuda(cudaGetDeviceCount(&n));
    ck_assert_int_eq(n, 1);
    ck_cuda(cudaGetDeviceProperties(&prop, 0));
    ck_assert_str_eq(prop.name, "Simulated CUDA device");
    ck_assert_int_eq(prop.major * 10 + prop.minor, 90);
    ck_cuda(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 0));
    ck_assert_int_eq(value, 132);
    ck_cuda_is(cudaGetDeviceProperties(&prop, 1), cudaErrorInvalidDevice);
    ck_cuda_is(cudaSetDevice(1), cudaErrorInvalidDevice);
    ck_cuda(cudaDeviceGetPCIBusId(bus, sizeof bus, 0));
    ck_assert_str_eq(bus, "0000:01:00.0");
    ck_cuda(cudaDriverGetVersion(&driver));
    ck_cuda(cudaRuntimeGetVersion(&runtime));
    ck_assert_int_ge(driver, runtime);
    sim_with("DEVICES", "2");
    ck_cuda(cudaSetDevice(1));
}
END_TEST

static void *allocate_aside(void *arg)
{
    void *p;
    *(cudaError_t *)arg = cudaMalloc(&p, 16);
    return NULL;
}

START_TEST(each_device_has_its_own)
{
    cudaStream_t streams[2];
    cudaEvent_t event;
    float *out[2];
    size_t free_nbytes[2], total_nbytes;
    pthread_t thread;
    cudaError_t aside = cudaSuccess;
    sim_with("DEVICES", "2");
    for (int i = 0; i < 2; i++) {
        ck_cuda(cudaSetDevice(i));
        ck_cuda(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
        if (i == 0) out[0] = device_alloc(32 * sizeof *out[0]);
        ck_cuda(cudaMemGetInfo(&free_nbytes[i], &total_nbytes));
    }
    ck_assert_uint_lt(free_nbytes[0], free_nbytes[1]);
    out[1] = device_alloc(32 * sizeof *out[1]);
    ck_cuda_is(launch_half_static(false, out[1], 0, streams[0]), cudaErrorInvalidResourceHandle);
    ck_cuda(launch_half_static(false, out[1], 0, streams[1]));
    ck_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    ck_cuda_is(cudaEventRecord(event, streams[0]), cudaErrorInvalidResourceHandle);
    ck_cuda(cudaEventRecord(event, streams[1]));
    ck_cuda(cudaStreamWaitEvent(streams[0], event, 0)); /* between devices, too */
    ck_cuda(allow_half_static(100 << 10));
    ck_cuda(launch_half_static(true, out[1], 100 << 10, streams[1]));
    ck_cuda(cudaSetDevice(0)); /* where it was not requested */
    ck_cuda_is(launch_half_static(true, out[0], 100 << 10, streams[0]), cudaErrorInvalidValue);
    ck_assert_int_eq(pthread_create(&thread, NULL, allocate_aside, &aside), 0);
    pthread_join(thread, NULL);
    ck_cuda_is(aside, cudaErrorDeviceUninitialized);
    ck_cuda(cudaDeviceSynchronize());
    (void)cudaGetLastError();
    ck_cuda(launch_half_static(false, out[1], 0, streams[0])); /* asynchronous: shows later */
    ck_cuda_is(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
}
END_TEST

START_TEST(drivers_and_devices_can_be_missing)
{
    int n, version;
    void *p;
    sim_with("FAULT", "no-driver");
    ck_cuda_is(cudaGetDeviceCount(&n), cudaErrorInsufficientDriver);
    ck_cuda(cudaDriverGetVersion(&version));
    ck_assert_int_eq(version, 0);
    sim_with("FAULT", "old-driver");
    ck_cuda_is(cudaMalloc(&p, 16), cudaErrorInsufficientDriver);
    ck_cuda(cudaDriverGetVersion(&version));
    ck_assert_int_gt(version, 0);
    sim_with("FAULT", "no-device");
    ck_cuda_is(cudaGetDeviceCount(&n), cudaErrorNoDevice);
    ck_assert_int_eq(n, 0);
    sim_with("FAULT", "capability:7.5");
    ck_cuda(cudaGetDeviceCount(&n));
    ck_cuda_is(launch_empty(d3(1, 1, 1), d3(1, 1, 1), 0, NULL), cudaErrorNoKernelImageForDevice);
}
END_TEST

START_TEST(the_device_is_lost_at_a_launch)
{
    void *p;
    sim_with("FAULT", "lost-at:3,oom-at:2");
    p = device_alloc(16);
    ck_cuda_is(cudaMalloc(&p, 16), cudaErrorMemoryAllocation);
    p = device_alloc(16);
    for (int i = 0; i < 2; i++) ck_cuda(launch_empty(d3(1, 1, 1), d3(1, 1, 1), 0, NULL));
    ck_cuda(cudaDeviceSynchronize());
    ck_cuda(launch_empty(d3(1, 1, 1), d3(1, 1, 1), 0, NULL)); /* asynchronous: shows later */
    ck_cuda_is(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
    ck_cuda_is(cudaMemset(p, 0, 16), cudaErrorIllegalAddress);
    ck_cuda_is(cudaFree(p), cudaErrorIllegalAddress);
    ck_cuda_is(launch_empty(d3(1, 1, 1), d3(1, 1, 1), 0, NULL), cudaErrorIllegalAddress);
    sim_with("FAULT", "host-oom-at:1");
    ck_cuda_is(cudaMallocHost(&p, 16), cudaErrorMemoryAllocation);
    ck_cuda(cudaMallocHost(&p, 16));
}
END_TEST

START_TEST(a_child_has_no_context)
{
    sim_with(NULL, NULL);
    void *p = device_alloc(16);
    pid_t pid = fork();
    if (pid == 0) _exit(cudaMemset(p, 0, 16) == cudaErrorInitializationError ? 0 : 1);
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
}
END_TEST

TEST_MAIN("cuda_sim faults", launch_shapes_have_limits, shared_memory_and_parameters_have_limits,
          shared_memory_is_that_of_the_capability_or_what_is_asked_for, static_shared_memory_counts,
          it_has_the_figures_of_an_h100, drivers_and_devices_can_be_missing,
          each_device_has_its_own, the_device_is_lost_at_a_launch, a_child_has_no_context)
