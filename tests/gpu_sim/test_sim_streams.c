/* Claims: simulated streams run nothing before something waits, and then only what streams and
 * events ask for; a missing wait shows; the default stream waits for blocking streams and they for
 * it; the trace says what is ordered after what. */
#include "tests/gpu_sim/sim_test.h"

enum { N = 1000 };
static float *x, *y, *z; /* device */
static float *in, *out;  /* pinned host */

static void make_buffers(void)
{
    ck_cuda(cudaHostAlloc((void **)&in, N * sizeof *in, cudaHostAllocDefault));
    ck_cuda(cudaHostAlloc((void **)&out, N * sizeof *out, cudaHostAllocDefault));
    x = device_alloc(N * sizeof *x);
    y = device_alloc(N * sizeof *y);
    z = device_alloc(N * sizeof *z);
    for (int i = 0; i < N; i++) in[i] = (float)i;
    memset(out, 0, N * sizeof *out);
}

static void copy(void *dst, const void *src, cudaStream_t s)
{
    ck_cuda(cudaMemcpyAsync(dst, src, N * sizeof *in, cudaMemcpyDefault, s));
}

START_TEST(nothing_runs_before_a_wait)
{
    sim_with(NULL, NULL);
    make_buffers();
    cudaStream_t s = new_stream();
    copy(x, in, s);
    ck_cuda(launch_add_one(x, y, N, s));
    copy(out, y, s);
    for (int i = 0; i < N; i++) in[i] = (float)(2 * i); /* too early: the copy takes this */
    ck_assert_float_eq(out[N - 1], 0);
    ck_cuda(cudaStreamSynchronize(s));
    for (int i = 0; i < N; i++) ck_assert_float_eq(out[i], (float)(2 * i + 1));
}
END_TEST

START_TEST(pageable_memory_is_staged)
{
    float *from = malloc(N * sizeof *from), *to = calloc(N, sizeof *to);
    sim_with(NULL, NULL);
    make_buffers();
    cudaStream_t s = new_stream();
    memcpy(from, in, N * sizeof *from);
    copy(x, from, s);
    memset(from, 0, N * sizeof *from); /* allowed: the call took its own copy */
    copy(to, x, s);                    /* back when the call returns */
    ck_assert_mem_eq(to, in, N * sizeof *to);
    free(from);
    free(to);
}
END_TEST

/* in → x on one stream, x + 1 → y → out on another; with or without the event between them. */
static bool copies_then_adds(bool event)
{
    make_buffers();
    cudaStream_t up = new_stream(), compute = new_stream();
    cudaEvent_t arrived = new_event();
    copy(x, in, up);
    ck_cuda(cudaEventRecord(arrived, up));
    if (event) ck_cuda(cudaStreamWaitEvent(compute, arrived, 0));
    ck_cuda(launch_add_one(x, y, N, compute));
    copy(out, y, compute);
    ck_cuda(cudaStreamSynchronize(compute));
    for (int i = 0; i < N; i++)
        if (out[i] != in[i] + 1) return false;
    return true;
}

START_TEST(a_missing_event_shows)
{
    static const char *const modes[] = {"lazy", "eager", "random:1", "random:2", "random:5"};
    bool shown = false;
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        sim_with("STREAMS", modes[i]);
        ck_assert(copies_then_adds(true));
        bool lucky = copies_then_adds(false);
        if (i == 0) ck_assert(!lucky);
        if (i == 1) ck_assert(lucky);
        shown = shown || (i > 1 && !lucky);
    }
    ck_assert(shown);
}
END_TEST

START_TEST(waits_take_the_record_before_them)
{
    sim_with(NULL, NULL);
    make_buffers();
    cudaStream_t a = new_stream(), b = new_stream();
    cudaEvent_t e = new_event();
    ck_cuda(cudaStreamWaitEvent(b, e, 0)); /* never recorded: no wait */
    ck_cuda(cudaEventSynchronize(e));
    copy(x, in, a);
    ck_cuda(cudaEventRecord(e, a));
    ck_cuda(cudaStreamWaitEvent(b, e, 0));
    ck_cuda(launch_add_one(x, x, N, a)); /* after the record: b does not wait for it */
    ck_cuda(cudaEventRecord(e, a));
    copy(out, x, b);
    ck_cuda(cudaStreamSynchronize(b));
    ck_assert_float_eq(out[5], in[5]);
    ck_cuda(cudaEventSynchronize(e));
    copy(out, x, b);
    ck_cuda(cudaStreamSynchronize(b));
    ck_assert_float_eq(out[5], in[5] + 1);
    ck_cuda(cudaEventDestroy(e));
    ck_cuda_is(cudaEventSynchronize(e), cudaErrorInvalidResourceHandle);
}
END_TEST

START_TEST(the_default_stream_waits_for_blocking_streams)
{
    sim_with(NULL, NULL);
    make_buffers();
    cudaStream_t blocking, apart = new_stream();
    ck_cuda(cudaStreamCreate(&blocking));
    copy(x, in, blocking);
    ck_cuda(launch_add_one(x, y, N, NULL)); /* after the copy */
    copy(out, y, blocking);                 /* after the kernel */
    copy(z, y, apart);                      /* ordered after neither */
    ck_cuda(cudaStreamSynchronize(apart));
    ck_cuda(cudaStreamSynchronize(blocking));
    ck_assert_float_eq(out[7], in[7] + 1);
    copy(out, z, apart);
    ck_cuda(cudaStreamSynchronize(apart));
    ck_assert(out[7] != in[7] + 1);
}
END_TEST

START_TEST(queries_make_progress)
{
    sim_with(NULL, NULL);
    make_buffers();
    cudaStream_t s = new_stream();
    cudaEvent_t e = new_event();
    copy(x, in, s);
    copy(out, x, s);
    ck_cuda(cudaEventRecord(e, s));
    ck_cuda_is(cudaEventQuery(e), cudaErrorNotReady);
    ck_cuda_is(cudaGetLastError(), cudaErrorNotReady); /* it is the last error, though none */
    int n = 0;
    while (cudaEventQuery(e) == cudaErrorNotReady) n++;
    ck_assert_int_gt(n, 0);
    ck_assert_mem_eq(out, in, N * sizeof *in);
    ck_cuda(cudaStreamQuery(s));
    ck_cuda_is(cudaGetLastError(), cudaErrorNotReady); /* of the loop */
}
END_TEST

static float host_sum;

static void add_up(void *values)
{
    void *p;
    host_sum = 0;
    for (int i = 0; i < N; i++) host_sum += ((float *)values)[i];
    if (cudaMalloc(&p, 16) != cudaErrorNotPermitted) host_sum = -1;
}

START_TEST(host_functions_run_in_order)
{
    sim_with(NULL, NULL);
    make_buffers();
    cudaStream_t s = new_stream();
    copy(x, in, s);
    ck_cuda(launch_add_one(x, y, N, s));
    copy(out, y, s);
    ck_cuda(cudaLaunchHostFunc(s, add_up, out));
    ck_cuda(cudaStreamDestroy(s)); /* its work is still done */
    ck_cuda(cudaDeviceSynchronize());
    ck_assert_float_eq(host_sum, (float)(N * (N - 1) / 2 + N));
    ck_cuda_is(cudaStreamSynchronize(s), cudaErrorInvalidResourceHandle);
}
END_TEST

START_TEST(the_trace_knows_what_overlaps)
{
    static const char *const modes[] = {"lazy", "eager", "random:4"};
    for (size_t m = 0; m < 3; m++) {
        sim_with("STREAMS", modes[m]);
        make_buffers();
        cudaStream_t up = new_stream(), compute = new_stream();
        cudaEvent_t e = new_event();
        sim_trace_begin();
        copy(x, in, up);                             /* 0 */
        ck_cuda(cudaEventRecord(e, up));             /* 1 */
        ck_cuda(launch_add_one(y, z, N, compute));   /* 2: overlaps the copy */
        ck_cuda(cudaStreamWaitEvent(compute, e, 0)); /* 3 */
        ck_cuda(launch_add_one(x, y, N, compute));   /* 4: does not */
        copy(y, x, up);                              /* 5 */
        ck_cuda(cudaStreamSynchronize(compute));
        copy(z, x, up); /* 6: the host waited for compute before */
        sim_trace_end();
        copy(z, x, up);
        ck_assert_uint_eq(sim_trace_count(), 7);
        ck_assert_int_eq(sim_trace_at(0).kind, SIM_COPY_H2D);
        ck_assert(sim_trace_at(0).pinned);
        ck_assert_uint_eq(sim_trace_at(0).nbytes, N * sizeof(float));
        ck_assert_str_eq(sim_trace_at(2).name, "add_one");
        ck_assert_int_eq(sim_trace_at(3).kind, SIM_WAIT);
        ck_assert_uint_eq(sim_trace_at(3).waits_for, sim_trace_at(1).sequence);
        ck_assert_int_eq(sim_trace_at(5).kind, SIM_COPY_D2D);
        ck_assert_int_ne(sim_trace_at(0).stream, sim_trace_at(2).stream);
        ck_assert(!sim_trace_ordered(0, 2) && !sim_trace_ordered(2, 0));
        ck_assert(sim_trace_ordered(0, 4) && sim_trace_ordered(2, 4));
        ck_assert(!sim_trace_ordered(4, 5) && !sim_trace_ordered(5, 4));
        ck_assert(sim_trace_ordered(4, 6) && sim_trace_ordered(0, 6));
        ck_assert_uint_gt(sim_trace_at(4).ran, sim_trace_at(0).ran);
    }
}
END_TEST

START_TEST(elapsed_time_needs_timing_events)
{
    sim_with(NULL, NULL);
    cudaEvent_t a, b, untimed = new_event();
    float ms;
    ck_cuda(cudaEventCreate(&a));
    ck_cuda(cudaEventCreate(&b));
    ck_cuda(cudaEventRecord(a, NULL));
    ck_cuda(cudaEventRecord(b, NULL));
    ck_cuda_is(cudaEventElapsedTime(&ms, a, b), cudaErrorNotReady);
    ck_cuda(cudaEventSynchronize(b));
    ck_cuda(cudaEventElapsedTime(&ms, a, b));
    ck_assert(ms >= 0);
    ck_cuda_is(cudaEventElapsedTime(&ms, a, untimed), cudaErrorInvalidResourceHandle);
}
END_TEST

TEST_MAIN("cuda_sim streams", nothing_runs_before_a_wait, pageable_memory_is_staged,
          a_missing_event_shows, waits_take_the_record_before_them,
          the_default_stream_waits_for_blocking_streams, queries_make_progress,
          host_functions_run_in_order, the_trace_knows_what_overlaps,
          elapsed_time_needs_timing_events)
