/* Claims: simulated device memory is counted exactly, is never zero when fresh, cannot be touched
 * by the host, by kernels beyond its end or after it was freed; copies are checked. */
#include "tests/gpu_sim/sim_test.h"

#include <signal.h>

#define MIB ((size_t)1 << 20)

START_TEST(memory_is_counted_in_2_mib)
{
    size_t free_nbytes, total;
    void *p, *q;
    sim_with("MEMORY", "16777216");
    ck_cuda(cudaMemGetInfo(&free_nbytes, &total));
    ck_assert_uint_eq(total, 16 * MIB);
    ck_assert_uint_eq(free_nbytes, 16 * MIB);
    ck_cuda(cudaMalloc(&p, 1));
    ck_cuda(cudaMalloc(&q, 2 * MIB + 1));
    ck_cuda(cudaMemGetInfo(&free_nbytes, &total));
    ck_assert_uint_eq(free_nbytes, 10 * MIB);
    void *r = p;
    ck_cuda_is(cudaMalloc(&r, 10 * MIB + 1), cudaErrorMemoryAllocation);
    ck_assert_ptr_null(r);
    ck_cuda_is(cudaGetLastError(), cudaErrorMemoryAllocation);
    ck_cuda(cudaGetLastError());
    ck_cuda(cudaMalloc(&r, 10 * MIB));
    ck_cuda_is(cudaMalloc(&r, 1), cudaErrorMemoryAllocation);
    ck_cuda(cudaFree(q));
    ck_cuda(cudaFree(NULL));
    ck_cuda(cudaMalloc(&r, 4 * MIB));
    ck_cuda(cudaMalloc(&r, 0));
    ck_assert_ptr_null(r);
    ck_cuda_is(cudaFree(q), cudaErrorInvalidValue);
    ck_cuda_is(cudaFree((char *)p + 16), cudaErrorInvalidValue);
}
END_TEST

START_TEST(fresh_memory_is_not_zero)
{
    unsigned char bytes[1000];
    sim_with(NULL, NULL);
    from_device(bytes, device_alloc(sizeof bytes), sizeof bytes);
    for (size_t i = 0; i < sizeof bytes; i++) ck_assert_uint_eq(bytes[i], 0xFF);
}
END_TEST

START_TEST(copies_are_checked)
{
    char host[256] = {0};
    sim_with(NULL, NULL);
    char *p = device_alloc(256), *q = device_alloc(256);
    ck_cuda_is(cudaMemcpy(p, host, 257, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    ck_cuda_is(cudaMemcpy(p + 200, host, 57, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    ck_cuda_is(cudaMemcpy(p, host, 16, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
    ck_cuda_is(cudaMemcpy(host, p, 16, cudaMemcpyDeviceToDevice), cudaErrorInvalidValue);
    ck_cuda_is(cudaMemset(p, 0, 300), cudaErrorInvalidValue);
    ck_cuda_is(cudaMemset(host, 0, 16), cudaErrorInvalidValue);
    ck_cuda(cudaMemset(p, 3, 256));
    ck_cuda(cudaMemcpy(q, p, 256, cudaMemcpyDefault));
    ck_cuda(cudaMemcpy(host, q, 256, cudaMemcpyDefault));
    ck_assert_int_eq(host[255], 3);
    ck_cuda(cudaFree(q));
    ck_cuda_is(cudaMemcpy(host, q, 256, cudaMemcpyDefault), cudaErrorInvalidValue);
}
END_TEST

START_TEST(rows_are_copied_with_their_pitch)
{
    char from[4][10], to[4][16];
    sim_with(NULL, NULL);
    for (int i = 0; i < 40; i++) from[i / 10][i % 10] = (char)i;
    memset(to, -1, sizeof to);
    char *p = device_alloc(4 * 12);
    ck_cuda(cudaMemcpy2DAsync(p, 12, from, 10, 7, 4, cudaMemcpyHostToDevice, NULL));
    ck_cuda(cudaMemcpy2DAsync(to, 16, p, 12, 7, 4, cudaMemcpyDeviceToHost, NULL));
    for (int r = 0; r < 4; r++)
        for (int i = 0; i < 16; i++) ck_assert_int_eq(to[r][i], i < 7 ? 10 * r + i : -1);
    ck_cuda_is(cudaMemcpy2DAsync(p, 12, from, 10, 13, 4, cudaMemcpyHostToDevice, NULL),
               cudaErrorInvalidValue);
}
END_TEST

START_TEST(pinned_memory_is_known)
{
    static _Alignas(4096) char block[8192];
    struct cudaPointerAttributes attr;
    void *p, *seen;
    sim_with(NULL, NULL);
    char *dev = device_alloc(4096);
    ck_cuda(cudaHostRegister(block, 4096, cudaHostRegisterDefault));
    ck_cuda_is(cudaHostRegister(block + 4000, 100, 0), cudaErrorHostMemoryAlreadyRegistered);
    ck_cuda(cudaPointerGetAttributes(&attr, block + 100));
    ck_assert_int_eq(attr.type, cudaMemoryTypeHost);
    ck_cuda(cudaPointerGetAttributes(&attr, block + 5000));
    ck_assert_int_eq(attr.type, cudaMemoryTypeUnregistered);
    ck_cuda(cudaPointerGetAttributes(&attr, dev));
    ck_assert_int_eq(attr.type, cudaMemoryTypeDevice);
    ck_cuda(cudaHostGetDevicePointer(&seen, block + 8, 0));
    ck_assert_ptr_eq(seen, block + 8);
    ck_cuda_is(cudaMemcpy(dev, block + 2000, 4000, cudaMemcpyDefault), cudaErrorInvalidValue);
    ck_cuda(cudaMemcpyAsync(dev, block, 4096, cudaMemcpyDefault, NULL));
    ck_cuda_is(cudaHostUnregister(block), cudaErrorInvalidValue); /* the copy was not waited for */
    ck_cuda(cudaDeviceSynchronize());
    ck_cuda(cudaHostUnregister(block));
    ck_cuda_is(cudaHostUnregister(block), cudaErrorHostMemoryNotRegistered);
    ck_cuda_is(cudaHostRegister(block + 16, 4096, 0), cudaErrorInvalidValue); /* no whole pages */
    ck_cuda_is(cudaHostRegister(block, 4000, 0), cudaErrorInvalidValue);
    ck_cuda_is(cudaMemcpyAsync(dev, dev + 8, 16, cudaMemcpyDefault, NULL), cudaErrorInvalidValue);
    ck_cuda(cudaMallocHost(&p, 100));
    ck_cuda(cudaFreeHost(p));
    ck_cuda_is(cudaFreeHost(block), cudaErrorInvalidValue);
}
END_TEST

START_TEST(kernels_must_not_get_pageable_memory)
{
    static _Alignas(4096) float host[1024];
    sim_with(NULL, NULL);
    float *p = device_alloc(sizeof host);
    ck_cuda(launch_add_one(p, host, 64, NULL));
    ck_cuda_is(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
    sim_with(NULL, NULL);
    p = device_alloc(sizeof host);
    ck_cuda(cudaHostRegister(host, sizeof host, cudaHostRegisterMapped));
    ck_cuda(cudaMemset(p, 0, sizeof host));
    ck_cuda(launch_add_one(p, host, 64, NULL));
    ck_cuda(cudaDeviceSynchronize());
    ck_assert_float_eq(host[63], 1);
}
END_TEST

/* ---- what ends the process, or the device ---- */

static void host_reads(void)
{
    volatile char *p = device_alloc(100);
    (void)*p;
}

static void mistake(enum mistake m, size_t n)
{
    float *p = device_alloc(16 * sizeof *p);
    ck_cuda(launch_mistake(m, p, n, NULL));
    cudaDeviceSynchronize();
}

static void far_beyond(void)
{
    mistake(MISTAKE_FAR_BEYOND, 16);
}

static void shared_beyond(void)
{
    mistake(MISTAKE_SHARED_BEYOND, 100);
}

static void deep_stack(void)
{
    mistake(MISTAKE_DEEP_STACK, 16);
}

static void unaligned(void)
{
    mistake(MISTAKE_UNALIGNED, 16);
}

static void after_free(void)
{
    float *p = device_alloc(400), *q = device_alloc(400);
    ck_cuda(cudaFree(p));
    ck_cuda(launch_add_one(p, q, 100, NULL));
    cudaDeviceSynchronize();
}

static void host_reads_after_work(void)
{
    float *p = device_alloc(400);
    ck_cuda(launch_add_one(p, p, 100, NULL));
    ck_cuda(cudaDeviceSynchronize());
    (void)*(volatile float *)p;
}

START_TEST(wild_accesses_end_the_process)
{
    void (*const acts[])(void) = {
        host_reads, host_reads_after_work, far_beyond, shared_beyond, deep_stack, unaligned,
        after_free};
    for (size_t i = 0; i < sizeof acts / sizeof acts[0]; i++) {
        int signal = signal_of(acts[i]);
        ck_assert_msg(signal == SIGSEGV || signal == SIGABRT || signal == SIGILL || signal == -1,
                      "act %zu: signal %d", i, signal);
    }
}
END_TEST

/* The last few bytes before the unmapped page. AddressSanitizer sees them at once. */
START_TEST(near_overruns_show_when_memory_is_freed)
{
#ifndef __SANITIZE_ADDRESS__
    sim_with(NULL, NULL);
    float *p = device_alloc(16 * sizeof *p);
    ck_cuda(launch_mistake(MISTAKE_BEYOND, p, 16, NULL));
    ck_cuda(cudaDeviceSynchronize());
    ck_cuda_is(cudaFree(p), cudaErrorIllegalAddress);
    ck_assert_ptr_nonnull(strstr(sim_last_message(), "wrote beyond the 64 bytes"));
#endif
}
END_TEST

TEST_MAIN("cuda_sim memory", memory_is_counted_in_2_mib, fresh_memory_is_not_zero,
          copies_are_checked, rows_are_copied_with_their_pitch, pinned_memory_is_known,
          kernels_must_not_get_pageable_memory, wild_accesses_end_the_process,
          near_overruns_show_when_memory_is_freed)
