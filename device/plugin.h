/* What libczero and its CUDA plug-in, libczero_cuda.so, give each other.
 *
 * The plug-in is the only thing linked against CUDA's libraries, and is opened only when the device
 * asked for is "cuda". Whichever copy of libczero opens it (the shared library, or a program linked
 * with libczero.a) passes it the calls that it needs; the modules above find their functions by
 * symbol (device_plugin_symbol). */
#ifndef CZ_DEVICE_PLUGIN_H
#define CZ_DEVICE_PLUGIN_H

#include "base/log.h"
#include "device/device.h"

CZ_EXTERN_C_BEGIN

#define DEVICE_PLUGIN_FILE    "libczero_cuda.so"
#define DEVICE_PLUGIN_ENV     "CZERO_CUDA_PLUGIN" /* another file to open in its place */
#define DEVICE_PLUGIN_SYMBOL  "czero_cuda_plugin"
#define DEVICE_PLUGIN_VERSION 3 /* rises with any change here or in device.h */

struct device_plugin_host {
    cz_status (*err_set)(cz_status status, int sys_errno, const char *fmt, ...) CZ_PRINTF(3, 4);
    cz_status (*err_prefix)(const char *fmt, ...) CZ_PRINTF(1, 2);
    cz_status (*err_trace)(cz_status status, const char *func, int line);
    void (*err_capture)(struct err *out);
    cz_status (*err_restore)(const struct err *err);
    bool (*log_enabled)(enum cz_log_level level, enum log_subsystem sub);
    void (*log_line)(enum cz_log_level level, const char *fmt, ...) CZ_PRINTF(2, 3);
};

struct device_plugin {
    uint32_t version;
    uint32_t ops_nbytes, host_nbytes;                     /* sizes of structs: a second check */
    void (*start)(const struct device_plugin_host *host); /* copied; called once, first */
    const struct device_ops *device;
};

CZ_EXTERN_C_END
#endif
