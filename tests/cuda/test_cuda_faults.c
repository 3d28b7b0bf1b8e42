/* Claims: memory that a GPU has not is refused with what was asked for, by whom, and what is left,
 * and the device goes on; a device that is lost says so once and for all; host memory that cannot
 * be page-locked is refused. What only the simulated device plays is left out on a real one. */
#include "ops/ops.h"
#include "tests/support/check_main.h"

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
static cz_status adam_step(struct ops *ops, float *memory, size_t numel)
{
    const struct adam_args args = {.t = {.numel = numel,
                                         .p = memory,
                                         .g = memory + numel,
                                         .states = {memory + 2 * numel, memory + 3 * numel}},
                                   .scalars = (void *)(memory + 4 * numel),
                                   .eps = 1e-8f};
    return ops->adam(ops, NULL, &args);
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

TEST_MAIN("cuda faults", more_memory_than_there_is, the_second_allocation_fails,
          host_memory_that_cannot_be_locked, a_lost_device_stays_lost,
          ordinals_beyond_what_is_there)
