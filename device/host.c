/* The CPU as a device: every call is complete when it returns, so streams and events need no state.
 * It lets the engine have one code path for both. */
#include "base/arena.h"
#include "base/clock.h"
#include "base/cpu.h"
#include "base/host/cgroup.h"
#include "base/host/proc.h"
#include "base/size.h"
#include "device/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Streams and plain events carry no state on the host; these give their handles an address. */
struct dev_stream {
    char unused;
};
struct dev_event {
    int64_t ns; /* of a timed one */
};
static struct dev_stream the_stream;
static struct dev_event the_event;

static cz_status host_count(int *n)
{
    *n = 1;
    return CZ_OK;
}

static cz_status host_open(int ordinal, struct device **out)
{
    if (ordinal != 0)
        return err_set(CZ_INVALID, 0, "device cpu:%d: there is only cpu:0 in a process", ordinal);
    struct device *dev = calloc(1, sizeof *dev);
    if (!dev) return err_set(CZ_NOMEM, 0, "device cpu: out of memory");
    dev->ops = &device_host_ops;
    *out = dev;
    return CZ_OK;
}

static void host_close(struct device *dev)
{
    free(dev);
}

/* One arena per allocation: aligned for huge pages, touched by the threads that will use it. */
static cz_status host_mem_alloc(struct device *dev, size_t nbytes, const char *what, void **out)
{
    (void)dev;
    struct arena a;
    TRY(arena_init(&a, what, nbytes));
    CZ_UNPOISON(a.base, nbytes);
    arena_touch(a.base, nbytes);
    *out = a.base;
    return CZ_OK;
}

static void host_mem_free(struct device *dev, void *p, size_t nbytes)
{
    (void)dev;
    struct arena a = {.base = p, .nbytes = size_round_up(nbytes, ARENA_PAGE_BYTES)};
    arena_free(&a);
}

static bool host_is_device_memory(struct device *dev, const void *p)
{
    (void)dev;
    (void)p;
    return false;
}

/* What the system says is available, within the container's limit when there is one. */
static cz_status host_mem_info(struct device *dev, size_t *free_nbytes, size_t *total_nbytes)
{
    (void)dev;
    size_t total = proc_nbytes("/proc/meminfo", "MemTotal:");
    size_t available = proc_nbytes("/proc/meminfo", "MemAvailable:");
    if (total == 0) return err_set(CZ_IO, 0, "/proc/meminfo: MemTotal cannot be read");
    size_t limit, left = cgroup_memory_left(NULL, &limit);
    if (limit < total) total = limit;
    if (left < available) available = left;
    *free_nbytes = available;
    *total_nbytes = total;
    return CZ_OK;
}

static cz_status host_copy(struct device *dev, struct dev_stream *stream, void *dst,
                           const void *src, size_t nbytes)
{
    (void)dev;
    (void)stream;
    if (nbytes > 0) memmove(dst, src, nbytes);
    return CZ_OK;
}

static cz_status host_fill_zero(struct device *dev, struct dev_stream *stream, void *dst,
                                size_t nbytes)
{
    (void)dev;
    (void)stream;
    if (nbytes > 0) memset(dst, 0, nbytes);
    return CZ_OK;
}

static cz_status host_stream_create(struct device *dev, struct dev_stream **out)
{
    (void)dev;
    *out = &the_stream;
    return CZ_OK;
}

static void host_stream_destroy(struct device *dev, struct dev_stream *stream)
{
    (void)dev;
    (void)stream;
}

static cz_status host_stream_sync(struct device *dev, struct dev_stream *stream)
{
    (void)dev;
    (void)stream;
    return CZ_OK;
}

static cz_status host_event_create(struct device *dev, struct dev_event **out)
{
    (void)dev;
    *out = &the_event;
    return CZ_OK;
}

static cz_status host_event_create_timed(struct device *dev, struct dev_event **out)
{
    (void)dev;
    *out = calloc(1, sizeof **out);
    return *out ? CZ_OK : err_set(CZ_NOMEM, 0, "device cpu: out of memory");
}

static void host_event_destroy(struct device *dev, struct dev_event *event)
{
    (void)dev;
    if (event != &the_event) free(event);
}

static cz_status host_event_record(struct device *dev, struct dev_event *event,
                                   struct dev_stream *stream)
{
    (void)dev;
    (void)stream;
    if (event != &the_event) event->ns = clock_now_ns();
    return CZ_OK;
}

static cz_status host_stream_wait(struct device *dev, struct dev_stream *stream,
                                  struct dev_event *event)
{
    (void)dev;
    (void)stream;
    (void)event;
    return CZ_OK;
}

static cz_status host_event_wait_host(struct device *dev, struct dev_event *event)
{
    (void)dev;
    (void)event;
    return CZ_OK;
}

static cz_status host_event_query(struct device *dev, struct dev_event *event, bool *is_past)
{
    (void)dev;
    (void)event;
    *is_past = true;
    return CZ_OK;
}

static cz_status host_event_seconds(struct device *dev, struct dev_event *from,
                                    struct dev_event *to, double *seconds)
{
    (void)dev;
    *seconds = (double)(to->ns - from->ns) * 1e-9;
    return CZ_OK;
}

static cz_status host_host_register(struct device *dev, void *p, size_t nbytes)
{
    (void)dev;
    (void)p;
    (void)nbytes;
    return CZ_OK;
}

static void host_host_unregister(struct device *dev, void *p, size_t nbytes)
{
    (void)dev;
    (void)p;
    (void)nbytes;
}

static cz_status host_info(struct device *dev, struct device_info *out)
{
    (void)dev;
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "%s", cpu_model_name());
    return CZ_OK;
}

const struct device_ops device_host_ops = {
    .name = "cpu",
    .kind = DEVICE_HOST,
    .count = host_count,
    .open = host_open,
    .close = host_close,
    .mem_alloc = host_mem_alloc,
    .mem_free = host_mem_free,
    .is_device_memory = host_is_device_memory,
    .mem_info = host_mem_info,
    .copy = host_copy,
    .fill_zero = host_fill_zero,
    .stream_create = host_stream_create,
    .stream_destroy = host_stream_destroy,
    .stream_sync = host_stream_sync,
    .event_create = host_event_create,
    .event_create_timed = host_event_create_timed,
    .event_destroy = host_event_destroy,
    .event_record = host_event_record,
    .stream_wait = host_stream_wait,
    .event_wait_host = host_event_wait_host,
    .event_query = host_event_query,
    .event_seconds = host_event_seconds,
    .host_register = host_host_register,
    .host_unregister = host_host_unregister,
    .info = host_info,
};
