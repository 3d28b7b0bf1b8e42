/* Claims: a CUDA device (real, or the simulated one) opens, names itself, gives zeroed memory,
 * copies both ways in stream order, and its kernels are found. */
#include "ops/table_impl.h"
#include "tests/support/check_main.h"

#include <stdlib.h>
#include <string.h>

START_TEST(memory_is_zeroed_and_copied_in_stream_order)
{
    struct device *dev;
    struct device_info info;
    struct dev_stream *stream;
    ck_ok(device_open("cuda", 0, &dev));
    ck_ok(dev->ops->info(dev, &info));
    ck_assert_int_ge(info.capability_major, 8);
    ck_assert(info.name[0] && info.pci_bus_id[0]);
    ck_ok(dev->ops->stream_create(dev, &stream));
    size_t n = 100003;
    unsigned char *host = calloc(1, n);
    void *a, *b;
    ck_assert_ptr_nonnull(host);
    ck_ok(dev->ops->mem_alloc(dev, n, "a", &a));
    ck_ok(dev->ops->mem_alloc(dev, n, "b", &b));
    memset(host, 7, n);
    ck_ok(dev->ops->copy(dev, stream, host, a, n));
    ck_ok(dev->ops->stream_sync(dev, stream));
    for (size_t i = 0; i < n; i++) ck_assert_msg(host[i] == 0, "byte %zu is %d", i, host[i]);
    for (size_t i = 0; i < n; i++) host[i] = (unsigned char)(i * 31);
    ck_ok(dev->ops->copy(dev, stream, a, host, n));
    ck_ok(dev->ops->copy(dev, stream, b, a, n));
    memset(host, 0, n);
    ck_ok(dev->ops->copy(dev, stream, host, b, n));
    ck_ok(dev->ops->stream_sync(dev, stream));
    for (size_t i = 0; i < n; i++)
        if (host[i] != (unsigned char)(i * 31)) ck_abort_msg("byte %zu is %d", i, host[i]);
    dev->ops->stream_destroy(dev, stream);
    dev->ops->mem_free(dev, a, n);
    dev->ops->mem_free(dev, b, n);
    free(host);
    device_close(dev);
}
END_TEST

START_TEST(kernels_of_all_ops_are_found)
{
    struct device *dev;
    struct ops *ops;
    ck_ok(device_open("cuda", 0, &dev));
    ck_ok(ops_create(dev, &ops));
    ck_assert_str_eq(ops_isa(ops), "cuda");
#define FOUND(slot, args) ck_ok(ops_require(ops, #slot));
    OPS_SLOTS(FOUND)
#undef FOUND
    ops_destroy(ops);
    device_close(dev);
}
END_TEST

TEST_MAIN("cuda device", memory_is_zeroed_and_copied_in_stream_order, kernels_of_all_ops_are_found)
