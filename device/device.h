/* Devices: memory, streams, events and copies behind one vtable.
 *
 * The CPU ("host") is complete here; CUDA is a plug-in (libczero_cuda.so) that fills the same table
 * when it is opened. On the host a stream runs each call before it returns, an event has always
 * been reached, and copies are memcpy.
 *
 * The host cannot read a GPU's memory: the caller copies values that it needs. After a call has
 * returned CZ_CUDA (a launch that failed, a device that was lost) every later call returns it too.
 *
 * Life cycle: device_open() → memory and streams → device_close(). Handles belong to one thread. */
#ifndef CZ_DEVICE_DEVICE_H
#define CZ_DEVICE_DEVICE_H

#include "base/status.h"

CZ_EXTERN_C_BEGIN

struct device;     /* an open device */
struct dev_stream; /* work in order; NULL is the device's default stream */
struct dev_event;  /* a point in a stream, to wait for */

enum device_kind { DEVICE_HOST = 0, DEVICE_CUDA = 1 };

/* Properties of a device, for logs, plans and placement. */
struct device_info {
    char name[128];                         /* the vendor's name */
    char pci_bus_id[16];                    /* "0000:3b:00.0"; "" for the host */
    int capability_major, capability_minor; /* CUDA compute capability; 0.0 for the host */
    int n_multiprocessors;                  /* 0 for the host */
    size_t shared_block_nbytes;             /* shared memory of one block, at most; host: 0 */
    size_t shared_multiprocessor_nbytes;    /* shared memory of a multiprocessor */
};

/* All slots are mandatory; calls are asynchronous where a stream is given. Sizes in bytes.
 *
 * mem_alloc gives zeroed memory aligned to 2 MiB on the host and to 256 bytes on a GPU (NULL for 0
 * bytes); mem_free takes the same nbytes, and NULL.
 * copy, fill_zero: in stream order; regions may overlap only on the host device. A copy between a
 * GPU and unregistered host memory blocks the caller until it is complete.
 * host_register: host memory that the device can access directly (page-locked), so that
 * copies from and to it are asynchronous; whole pages, until host_unregister.
 * event_create_timed: an event that records the time at which it is reached, for event_seconds: the
 * time between two reached events. Events of event_create record no time, and cost less.
 * event_wait_host, stream_sync: the caller waits. event_query: whether the event has been reached.
 * count: the number of devices, at least 1; otherwise open's errors. is_device_memory: whether p
 * is in memory that the host cannot read (never on the host; NULL: no).
 */
struct device_ops {
    const char *name; /* "cpu", "cuda" */
    enum device_kind kind;
    cz_status (*count)(int *n);
    cz_status (*open)(int ordinal, struct device **out);
    void (*close)(struct device *);
    cz_status (*mem_alloc)(struct device *, size_t nbytes, const char *what, void **out);
    void (*mem_free)(struct device *, void *p, size_t nbytes);
    bool (*is_device_memory)(struct device *, const void *p);
    cz_status (*mem_info)(struct device *, size_t *free_nbytes, size_t *total_nbytes);
    cz_status (*copy)(struct device *, struct dev_stream *, void *dst, const void *src,
                      size_t nbytes); /* any direction */
    cz_status (*fill_zero)(struct device *, struct dev_stream *, void *dst, size_t nbytes);
    cz_status (*stream_create)(struct device *, struct dev_stream **out);
    void (*stream_destroy)(struct device *, struct dev_stream *);
    cz_status (*stream_sync)(struct device *, struct dev_stream *);
    cz_status (*event_create)(struct device *, struct dev_event **out);
    cz_status (*event_create_timed)(struct device *, struct dev_event **out);
    void (*event_destroy)(struct device *, struct dev_event *);
    cz_status (*event_record)(struct device *, struct dev_event *, struct dev_stream *);
    cz_status (*stream_wait)(struct device *, struct dev_stream *, struct dev_event *);
    cz_status (*event_wait_host)(struct device *, struct dev_event *);
    cz_status (*event_query)(struct device *, struct dev_event *, bool *is_past);
    cz_status (*event_seconds)(struct device *, struct dev_event *from, struct dev_event *to,
                               double *seconds);
    cz_status (*host_register)(struct device *, void *p, size_t nbytes);
    void (*host_unregister)(struct device *, void *p, size_t nbytes);
    cz_status (*info)(struct device *, struct device_info *out);
};

/* The first member of every device, so that device_of(d)->ops works for all kinds. */
struct device {
    const struct device_ops *ops;
    int ordinal;
};

/* Open device `ordinal` of kind "cpu" or "cuda" (NULL: "cpu").
 * Errors: CZ_INVALID (unknown name, no such ordinal), CZ_UNSUPPORTED (no plug-in, no driver or one
 * that is too old, no GPU, or one of too low a compute capability: the message says which). */
cz_status device_open(const char *kind, int ordinal, struct device **out);

/* The number of devices of this kind that the process may open. Errors: as device_open(). */
cz_status device_count(const char *kind, int *n);

/* Parse a device's name: "cpu", "cuda", "cuda:1" (NULL: "cpu"). *ordinal is -1 if the name has no
 * number. Errors: CZ_INVALID. */
cz_status device_parse(const char *name, enum device_kind *kind, int *ordinal);

/* Open the device of that name for a rank: "cuda" gives the ranks of a host (rank_host, from 0)
 * its GPUs in turns. Errors: as device_parse() and device_open(). */
cz_status device_open_named(const char *name, int rank_host, struct device **out);

/* Close; accepts NULL. All memory and streams must have been freed. */
void device_close(struct device *dev);

/* The address of `symbol` in the CUDA plug-in (plugin.h), which is opened when needed (and stays
 * open): how the modules above find their CUDA rows. Errors: CZ_UNSUPPORTED with the loader's
 * reason.
 */
cz_status device_plugin_symbol(const char *symbol, void **out);

extern const struct device_ops device_host_ops;

CZ_EXTERN_C_END
#endif
