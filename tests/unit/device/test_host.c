/* Claims: the host device gives zeroed, huge-page-aligned memory, copies overlapping regions, and
 * says what memory there is; unknown devices are refused; without a plug-in cuda says why not. */
#include "device/device.h"
#include "tests/support/check_main.h"

#include <string.h>
#include <unistd.h>

START_TEST(memory_is_zeroed_aligned_and_can_be_given_back)
{
    struct device *dev;
    ck_ok(device_open("cpu", 0, &dev));
    const size_t nbytes = ((size_t)3 << 20) + 17;
    void *memory;
    ck_ok(dev->ops->mem_alloc(dev, nbytes, "test", &memory));
    ck_assert_uint_eq((uintptr_t)memory % ((size_t)2 << 20), 0);
    unsigned char *p = memory;
    ck_assert(p[0] == 0 && memcmp(p, p + 1, nbytes - 1) == 0);
    p[nbytes - 1] = 7;
    dev->ops->mem_free(dev, memory, nbytes);
    ck_ok(dev->ops->mem_alloc(dev, 0, "nothing", &memory));
    ck_assert_ptr_null(memory);
    dev->ops->mem_free(dev, memory, 0);
    device_close(dev);
}
END_TEST

START_TEST(more_than_the_address_space_is_refused_by_name)
{
    struct device *dev;
    ck_ok(device_open(NULL, 0, &dev));
    void *memory;
    ck_fails(dev->ops->mem_alloc(dev, (size_t)1 << 60, "params", &memory), CZ_NOMEM);
    ck_assert_msg(strstr(cz_last_error(), "params") != NULL, "\"%s\"", cz_last_error());
    device_close(dev);
}
END_TEST

START_TEST(copies_may_overlap_and_fill_zero_stays_inside)
{
    struct device *dev;
    struct dev_stream *stream;
    struct dev_event *event;
    char text[] = "abcdefgh";
    ck_ok(device_open("cpu", 0, &dev));
    ck_ok(dev->ops->stream_create(dev, &stream));
    ck_ok(dev->ops->event_create(dev, &event));
    ck_ok(dev->ops->copy(dev, stream, text + 2, text, 6));
    ck_assert_str_eq(text, "ababcdef");
    ck_ok(dev->ops->fill_zero(dev, stream, text + 3, 2));
    ck_assert_int_eq(memcmp(text, "aba\0\0def", 8), 0);
    ck_ok(dev->ops->event_record(dev, event, stream));
    ck_ok(dev->ops->stream_wait(dev, NULL, event));
    ck_ok(dev->ops->event_wait_host(dev, event));
    ck_ok(dev->ops->stream_sync(dev, stream));
    dev->ops->event_destroy(dev, event);
    dev->ops->stream_destroy(dev, stream);
    device_close(dev);
}
END_TEST

START_TEST(timed_events_know_what_lies_between_them)
{
    struct device *dev;
    struct dev_event *from, *to;
    double seconds = -1;
    ck_ok(device_open("cpu", 0, &dev));
    ck_ok(dev->ops->event_create_timed(dev, &from));
    ck_ok(dev->ops->event_create_timed(dev, &to));
    ck_ok(dev->ops->event_record(dev, from, NULL));
    usleep(2000);
    ck_ok(dev->ops->event_record(dev, to, NULL));
    ck_ok(dev->ops->event_seconds(dev, from, to, &seconds));
    ck_assert(seconds >= 0.002 && seconds < 10);
    dev->ops->event_destroy(dev, from);
    dev->ops->event_destroy(dev, to);
    device_close(dev);
}
END_TEST

START_TEST(memory_left_is_at_most_the_total)
{
    struct device *dev;
    size_t free_nbytes = 0, total_nbytes = 0;
    ck_ok(device_open("cpu", 0, &dev));
    ck_ok(dev->ops->mem_info(dev, &free_nbytes, &total_nbytes));
    ck_assert_uint_gt(total_nbytes, (size_t)64 << 20);
    ck_assert_uint_gt(free_nbytes, 0);
    ck_assert_uint_le(free_nbytes, total_nbytes);
    device_close(dev);
}
END_TEST

START_TEST(there_is_one_and_its_memory_is_the_hosts)
{
    struct device *dev;
    int n;
    ck_ok(device_count("cpu", &n));
    ck_assert_int_eq(n, 1);
    ck_ok(device_open("cpu", 0, &dev));
    ck_assert(!dev->ops->is_device_memory(dev, &n));
    device_close(dev);
}
END_TEST

START_TEST(names_say_kind_and_ordinal)
{
    static const struct {
        const char *name;
        enum device_kind kind;
        int ordinal;
    } good[] = {{NULL, DEVICE_HOST, -1},     {"cpu", DEVICE_HOST, -1},
                {"cpu:0", DEVICE_HOST, 0},   {"cuda", DEVICE_CUDA, -1},
                {"cuda:0", DEVICE_CUDA, 0},  {"cuda:17", DEVICE_CUDA, 17},
                {"cuda:007", DEVICE_CUDA, 7}};
    static const char *const bad[] = {"",       "gpu",     "cud",       "cuda:",   "cuda0",
                                      "cuda:x", "cuda:-1", "cuda:+1",   "cuda: 1", "cuda:1 ",
                                      "CUDA",   "cuda:1:", "cuda:10000"};
    enum device_kind kind;
    int ordinal;
    for (size_t i = 0; i < CZ_ARRAY_LEN(good); i++) {
        ck_ok(device_parse(good[i].name, &kind, &ordinal));
        ck_assert_int_eq(kind, good[i].kind);
        ck_assert_int_eq(ordinal, good[i].ordinal);
    }
    for (size_t i = 0; i < CZ_ARRAY_LEN(bad); i++) {
        ck_fails(device_parse(bad[i], &kind, &ordinal), CZ_INVALID);
        ck_assert_msg(strstr(cz_last_error(), bad[i]) != NULL, "\"%s\"", cz_last_error());
    }
}
END_TEST

START_TEST(a_named_host_is_the_same_for_every_rank)
{
    struct device *dev;
    ck_ok(device_open_named("cpu", 3, &dev));
    ck_assert_int_eq(dev->ordinal, 0);
    device_close(dev);
    ck_fails(device_open_named("cpu:1", 0, &dev), CZ_INVALID);
    ck_fails(device_open_named("tpu", 0, &dev), CZ_INVALID);
    ck_assert_ptr_null(dev);
}
END_TEST

START_TEST(unknown_devices_are_refused)
{
    struct device *dev;
    ck_fails(device_open("tpu", 0, &dev), CZ_INVALID);
    ck_fails(device_open("cpu", 1, &dev), CZ_INVALID);
    ck_assert_ptr_null(dev);
    device_close(NULL);
}
END_TEST

START_TEST(cuda_without_its_plug_in_says_why)
{
    struct device *dev;
    setenv("CZERO_CUDA_PLUGIN", "libczero_cuda_missing.so", 1);
    ck_fails(device_open("cuda", 0, &dev), CZ_UNSUPPORTED);
    ck_assert_msg(strstr(cz_last_error(), "libczero_cuda_missing.so") != NULL &&
                      strstr(cz_last_error(), "--device cpu works") != NULL,
                  "\"%s\"", cz_last_error());
}
END_TEST

TEST_MAIN("device/host", memory_is_zeroed_aligned_and_can_be_given_back,
          more_than_the_address_space_is_refused_by_name,
          copies_may_overlap_and_fill_zero_stays_inside, timed_events_know_what_lies_between_them,
          memory_left_is_at_most_the_total, there_is_one_and_its_memory_is_the_hosts,
          names_say_kind_and_ordinal, a_named_host_is_the_same_for_every_rank,
          unknown_devices_are_refused, cuda_without_its_plug_in_says_why)
