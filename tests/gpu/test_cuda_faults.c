/* Claims: a GPU without enough memory refuses with what was asked for, by which caller, and what is
 * left, and the device continues; a device that is lost says so once and for all; host memory that
 * cannot be page-locked is refused; work goes to the GPU that it is for, whichever thread queues it
 * and whatever else is open. What only the simulated device plays is left out on a real one. */
#include "ops/ops.h"
#include "ops/step/step.h"
#include "tests/support/check_main.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static void said(const char *words)
{
    ck_assert_msg(strstr(cz_last_error(), words) != NULL, "\"%s\" does not say \"%s\"",
                  cz_last_error(), words);
}

/* NULL on a real device, which has no such faults. */
static struct device *open_with(const char *fault)
{
    struct device *dev;
    struct device_info info;
    setenv("CZERO_CUDA_SIM_FAULT", fault, 1);
    ck_ok(device_open("cuda", 0, &dev));
    ck_ok(dev->ops->info(dev, &info));
    if (strstr(info.name, "Simulated")) return dev;
    printf("left out on %s: %s\n", info.name, fault);
    device_close(dev);
    return NULL;
}

START_TEST(more_memory_than_there_is)
{
    struct device *dev;
    size_t free_nbytes, total_nbytes;
    void *p;
    ck_ok(device_open("cuda", 0, &dev));
    ck_ok(dev->ops->mem_info(dev, &free_nbytes, &total_nbytes));
    for (int i = 0; i < 2; i++) {
        ck_fails(dev->ops->mem_alloc(dev, total_nbytes + 1, "master weights", &p), CZ_NOMEM);
        ck_assert_ptr_null(p);
        said("master weights: ");
        said(" do not fit into cuda:0, which has ");
        said(" left");
    }
    ck_ok(dev->ops->mem_alloc(dev, 4096, "a little", &p));
    dev->ops->mem_free(dev, p, 4096);
    device_close(dev);
}
END_TEST

START_TEST(the_second_allocation_fails)
{
    struct device *dev = open_with("oom-at:2");
    void *p, *q;
    if (!dev) return;
    ck_ok(dev->ops->mem_alloc(dev, 4096, "the first", &p));
    ck_fails(dev->ops->mem_alloc(dev, 4096, "the second", &q), CZ_NOMEM);
    ck_ok(dev->ops->mem_alloc(dev, 4096, "the third", &q));
    ck_ok(dev->ops->stream_sync(dev, NULL));
    dev->ops->mem_free(dev, p, 4096);
    dev->ops->mem_free(dev, q, 4096);
    device_close(dev);
}
END_TEST

START_TEST(host_memory_that_cannot_be_locked)
{
    struct device *dev = open_with("host-oom-at:1");
    void *p;
    if (!dev) return;
    ck_assert_int_eq(posix_memalign(&p, 4096, 8192), 0);
    ck_fails(dev->ops->host_register(dev, p, 8192), CZ_NOMEM);
    said("page-locked");
    ck_ok(dev->ops->host_register(dev, p, 8192));
    dev->ops->host_unregister(dev, p, 8192);
    free(p);
    device_close(dev);
}
END_TEST

/* A launch: the tensors of a step and its scalars are on the device. */
static cz_status adam_step_on(struct ops *ops, struct dev_stream *stream, float *memory,
                              size_t numel)
{
    const struct step_args args = {.op = STEP_ADAM,
                                   .t = {.numel = numel,
                                         .p = memory,
                                         .g = memory + numel,
                                         .states = {memory + 2 * numel, memory + 3 * numel}},
                                   .scalars = (void *)(memory + 4 * numel),
                                   .eps = 1e-8f};
    return ops_step(ops, stream, &args);
}

static cz_status adam_step(struct ops *ops, float *memory, size_t numel)
{
    return adam_step_on(ops, NULL, memory, numel);
}

START_TEST(a_lost_device_stays_lost)
{
    struct device *dev = open_with("lost-at:2");
    struct ops *ops;
    const size_t numel = 1000, nbytes = 4 * numel * sizeof(float) + sizeof(struct step_scalars);
    void *memory, *more;
    float host[8];
    if (!dev) return;
    ck_ok(ops_create(dev, &ops));
    ck_ok(dev->ops->mem_alloc(dev, nbytes, "a step's tensors", &memory));
    ck_ok(adam_step(ops, memory, numel));
    ck_ok(dev->ops->stream_sync(dev, NULL));
    /* the launch itself may still be accepted: a wait says what became of it */
    cz_status st = adam_step(ops, memory, numel);
    if (st == CZ_OK) st = dev->ops->stream_sync(dev, NULL);
    ck_assert_int_eq(st, CZ_CUDA);
    said("the GPU stopped working for this process");
    said("start again from the last checkpoint");
    ck_fails(dev->ops->stream_sync(dev, NULL), CZ_CUDA);
    ck_fails(dev->ops->copy(dev, NULL, host, memory, sizeof host), CZ_CUDA);
    ck_fails(dev->ops->mem_alloc(dev, 4096, "more", &more), CZ_CUDA);
    ck_fails(adam_step(ops, memory, numel), CZ_CUDA);
    said("the GPU stopped working for this process");
    dev->ops->mem_free(dev, memory, nbytes);
    ops_destroy(ops);
    device_close(dev);
}
END_TEST

START_TEST(ordinals_beyond_what_is_there)
{
    struct device *dev;
    int n;
    ck_ok(device_count("cuda", &n));
    ck_fails(device_open("cuda", n, &dev), CZ_INVALID);
    ck_assert_ptr_null(dev);
    ck_fails(device_open("cuda", -1, &dev), CZ_INVALID);
    ck_fails(device_open_named("cuda:9999", 0, &dev), CZ_INVALID);
    said("counted from 0");
    ck_ok(device_open_named("cuda", 5 * n, &dev)); /* ranks share GPUs in turns */
    ck_assert_int_eq(dev->ordinal, 0);
    device_close(dev);
    ck_ok(device_open_named("cuda", n - 1, &dev));
    ck_assert_int_eq(dev->ordinal, n - 1);
    device_close(dev);
}
END_TEST

/* ---- the second GPU ---------------------------------------------------------------------------
 */

#define NUMEL ((size_t)1000)

struct second {
    struct device *dev, *first; /* both open, the first one last */
    struct ops *ops;
    struct dev_stream *stream;
    size_t nbytes;
    cz_status st;
};

/* All that a thread does which has selected no GPU: it allocates, queues, waits, frees. */
static cz_status work(const struct second *s)
{
    const struct device_ops *d = s->dev->ops;
    float values[NUMEL];
    void *memory;
    struct dev_event *event;
    bool is_past;
    for (size_t i = 0; i < NUMEL; i++) values[i] = 1;
    TRY(d->mem_alloc(s->dev, s->nbytes, "a step's tensors", &memory));
    ck_assert(d->is_device_memory(s->dev, memory));
    TRY(d->copy(s->dev, s->stream, memory, values, sizeof values));
    TRY(adam_step_on(s->ops, s->stream, memory, NUMEL));
    TRY(d->event_create(s->dev, &event));
    TRY(d->event_record(s->dev, event, s->stream));
    TRY(d->event_wait_host(s->dev, event));
    TRY(d->event_query(s->dev, event, &is_past));
    d->event_destroy(s->dev, event);
    TRY(d->copy(s->dev, s->stream, values, memory, sizeof values));
    TRY(d->stream_sync(s->dev, s->stream));
    d->mem_free(s->dev, memory, s->nbytes);
    return is_past ? CZ_OK : CZ_CUDA;
}

static void *work_aside(void *arg)
{
    struct second *s = arg;
    s->st = work(s);
    if (s->st != CZ_OK) printf("%s\n", cz_last_error());
    return NULL;
}

START_TEST(work_goes_to_the_gpu_that_it_is_for)
{
    struct second s = {.nbytes = 4 * NUMEL * sizeof(float) + sizeof(struct step_scalars)};
    pthread_t thread;
    int n;
    setenv("CZERO_CUDA_SIM_DEVICES", "2", 1);
    ck_ok(device_count("cuda", &n));
    if (n < 2) {
        printf("left out: there is one GPU\n");
        return;
    }
    ck_ok(device_open("cuda", 1, &s.dev));
    ck_ok(ops_create(s.dev, &s.ops));
    ck_ok(s.dev->ops->stream_create(s.dev, &s.stream));
    ck_ok(device_open("cuda", 0, &s.first));
    ck_ok(work(&s)); /* number 0 was opened last */
    ck_assert_int_eq(pthread_create(&thread, NULL, work_aside, &s), 0);
    pthread_join(thread, NULL);
    ck_ok(s.st);
    s.dev->ops->stream_destroy(s.dev, s.stream);
    ops_destroy(s.ops);
    device_close(s.dev);
    device_close(s.first);
}
END_TEST

TEST_MAIN("cuda faults", more_memory_than_there_is, the_second_allocation_fails,
          host_memory_that_cannot_be_locked, a_lost_device_stays_lost,
          ordinals_beyond_what_is_there, work_goes_to_the_gpu_that_it_is_for)
