/* Devices: memory, streams, events and copies behind one vtable.
 *
 * The CPU ("host") is complete here; CUDA is a plug-in (libczero_cuda.so) that fills the same table
 * when it is opened. On the host a stream runs each call before it returns, an event is always
 * past, and copies are memcpy.
 *
 * Life cycle: device_open() → memory and streams → device_close(). Handles belong to one thread. */
#ifndef CZ_DEVICE_DEVICE_H
#define CZ_DEVICE_DEVICE_H

#include "base/status.h"

CZ_EXTERN_C_BEGIN

struct device;     /* an open device */
struct dev_stream; /* work in order; NULL is the device's default stream */
struct dev_event;  /* a point in a stream: the ticket of DESIGN §3 */

enum device_kind { DEVICE_HOST = 0, DEVICE_CUDA = 1 };

/* All slots are mandatory; calls are asynchronous where a stream is given. Sizes in bytes.
 * mem_alloc gives zeroed memory aligned to 2 MiB on the host (NULL for 0 bytes); mem_free takes the
 * same nbytes, and NULL. copy: host regions may overlap. */
struct device_ops {
    const char *name; /* "cpu", "cuda" */
    enum device_kind kind;
    cz_status (*open)(int ordinal, struct device **out);
    void (*close)(struct device *);
    cz_status (*mem_alloc)(struct device *, size_t nbytes, const char *what, void **out);
    void (*mem_free)(struct device *, void *p, size_t nbytes);
    cz_status (*mem_info)(struct device *, size_t *free_nbytes, size_t *total_nbytes);
    cz_status (*copy)(struct device *, struct dev_stream *, void *dst, const void *src,
                      size_t nbytes); /* any direction */
    cz_status (*fill_zero)(struct device *, struct dev_stream *, void *dst, size_t nbytes);
    cz_status (*stream_create)(struct device *, struct dev_stream **out);
    void (*stream_destroy)(struct device *, struct dev_stream *);
    cz_status (*stream_sync)(struct device *, struct dev_stream *);
    cz_status (*event_create)(struct device *, struct dev_event **out);
    void (*event_destroy)(struct device *, struct dev_event *);
    cz_status (*event_record)(struct device *, struct dev_event *, struct dev_stream *);
    cz_status (*stream_wait)(struct device *, struct dev_stream *, struct dev_event *);
    cz_status (*event_wait_host)(struct device *, struct dev_event *);
};

/* The first member of every device, so that device_of(d)->ops works for all kinds. */
struct device {
    const struct device_ops *ops;
    int ordinal;
};

/* Open device `ordinal` of kind "cpu" or "cuda" (NULL: "cpu").
 * Errors: CZ_INVALID (unknown name), CZ_UNSUPPORTED (no plug-in or no driver, with the reason). */
CZ_API cz_status device_open(const char *kind, int ordinal, struct device **out);

/* Close; accepts NULL. All memory and streams must have been given back. */
CZ_API void device_close(struct device *dev);

/* The address of `symbol` in the CUDA plug-in, which is opened when needed (and stays open): how
 * the rooms above find their CUDA rows. Errors: CZ_UNSUPPORTED with the loader's reason. */
cz_status device_plugin_symbol(const char *symbol, void **out);

extern const struct device_ops device_host_ops;

CZ_EXTERN_C_END
#endif
