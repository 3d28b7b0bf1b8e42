/* Status codes, the last error's sentence, log lines, element types: what every other header uses.
 *
 * A call that can fail returns a cz_status, or NULL where it returns an object. The reason is one
 * sentence in cz_last_error(), which belongs to the calling thread. czero prints nothing, never
 * exits, and installs no signal handlers; over Open MPI it ignores SIGPIPE unless the program
 * handles it.
 *
 * NULL for a handle, or for an array or result that a call needs, is CZ_INVALID with its name. Calls
 * without a status then give 0, false, NULL, "" or NAN, and record no error.
 *
 * Option structs begin with a member `size`: set it to sizeof the struct, zero the rest, fill in
 * what you need. A program compiled against this version then works with later ones, which may
 * append members. A size of 0 is CZ_INVALID; a member that this library does not know is
 * CZ_UNSUPPORTED unless it is zero.
 *
 *   struct cz_engine_options options = {.size = sizeof options, .config_path = "ds_config.json"};
 *   cz_engine_options options{}; options.size = sizeof options;                            // C++
 */
#ifndef CZERO_STATUS_H
#define CZERO_STATUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define CZ_EXTERN_C_BEGIN extern "C" {
#define CZ_EXTERN_C_END   }
#else
#define CZ_EXTERN_C_BEGIN
#define CZ_EXTERN_C_END
#endif

#define CZ_API                      __attribute__((visibility("default")))
#define CZ_PRINTF(fmt_idx, arg_idx) __attribute__((format(printf, fmt_idx, arg_idx)))

CZ_EXTERN_C_BEGIN

#define CZ_VERSION_MAJOR 0
#define CZ_VERSION_MINOR 2
#define CZ_VERSION_PATCH 0

/* The version of the library in use, "0.2.0"; CZ_VERSION_* are those of the header. */
CZ_API const char *cz_version(void);

/* ---- errors -----------------------------------------------------------------------------------
 */

/* Values never change. Outcomes such as an overflow or the end of a data set are results, not
 * errors. */
typedef enum cz_status {
    CZ_OK = 0,
    CZ_INVALID = -1,     /* an argument, a config value or the order of calls makes no sense */
    CZ_NOMEM = -2,       /* does not fit, or the system refused memory */
    CZ_IO = -3,          /* the operating system reported an I/O error */
    CZ_CORRUPT = -4,     /* a file's content contradicts itself or its format */
    CZ_VERSION = -5,     /* a format version that this build does not read */
    CZ_UNSUPPORTED = -6, /* understood, but not implemented */
    CZ_NOTFOUND = -7,    /* a named file, key, parameter or tag does not exist */
    CZ_BUSY = -8,        /* a bounded resource is in use */
    CZ_CUDA = -9,        /* CUDA runtime or library */
    CZ_COMM = -10,       /* communicator failed */
    CZ_PEER = -11,       /* another rank failed */
    CZ_DIVERGED = -12    /* training cannot continue: gradients stay without finite values */
} cz_status;

/* Name of a status such as "CZ_IO"; "CZ_?" for a value outside the enum. */
CZ_API const char *cz_status_name(cz_status status);

/* The sentence of the last error on this thread ("" when there is none), valid until the next
 * failing call on the same thread. Never NULL. */
CZ_API const char *cz_last_error(void);

/* The status that belongs to cz_last_error(); CZ_OK when there is none. */
CZ_API cz_status cz_last_status(void);

/* The functions that the last error passed through, innermost first ("f:12 g:34"): for bug reports.
 */
CZ_API const char *cz_last_trace(void);

/* Record an error of your own on this thread and return `status`: for layers and callbacks, whose
 * errors the engine passes on. The text is formatted as by printf and cut at 4 KiB. */
CZ_API cz_status cz_error(cz_status status, const char *fmt, ...) CZ_PRINTF(2, 3);

/* Forget this thread's last error. */
CZ_API void cz_clear_error(void);

/* ---- memory -----------------------------------------------------------------------------------
 */

/* Release memory that a call gave its caller and whose comment names cz_free(). It came from the
 * library's allocator, which need not be the program's. NULL is accepted. */
CZ_API void cz_free(void *p);

/* ---- log --------------------------------------------------------------------------------------
 */

/* A level promises how often lines of it appear. */
enum cz_log_level {
    CZ_LOG_ASKED = -1, /* what the config asks for by name (timings, a profile): at every level */
    CZ_LOG_WARN = 0,   /* something to know or to change */
    CZ_LOG_INFO = 1,   /* once per run */
    CZ_LOG_STEP = 2,   /* once per optimizer step */
    CZ_LOG_MICRO = 3,  /* once per micro-batch */
    CZ_LOG_BUCKET = 4, /* per bucket of gradients or parameters */
    CZ_LOG_TENSOR = 5
};

/* Receives one complete line without newline. The logger's lock is held: do not call czero. */
typedef void (*cz_log_sink)(enum cz_log_level level, const char *line, void *user);

/* Set the receiver of log lines; NULL (the default) drops them unformatted. Any thread. */
CZ_API void cz_log_set_sink(cz_log_sink sink, void *user);

/* Drop lines above `level`; default CZ_LOG_INFO. CZ_LOG_ASKED drops warnings, too. Any thread. */
CZ_API void cz_log_set_level(enum cz_log_level level);

/* Files and configs may hold members, keys or tensors that czero does not use. Each reader names
 * them once, as a warning; after cz_set_strict(true) as CZ_INVALID. Default false; process-wide;
 * any thread. */
CZ_API void cz_set_strict(bool strict);

/* ---- element types ----------------------------------------------------------------------------
 */

enum cz_dtype {
    CZ_DTYPE_F32 = 0,
    CZ_DTYPE_BF16 = 1,
    CZ_DTYPE_F16 = 2,
    CZ_DTYPE_F64 = 3,
    CZ_DTYPE_I64 = 4,
    CZ_DTYPE_I32 = 5,
    CZ_DTYPE_I16 = 6,
    CZ_DTYPE_I8 = 7,
    CZ_DTYPE_U8 = 8,
    CZ_DTYPE_BOOL = 9
};

/* Bytes per element; 0 for a value outside the enum. */
CZ_API size_t cz_dtype_size(enum cz_dtype dtype);

/* The short name: "fp32", "bf16", "fp16", "fp64", "int64", …; "?" outside the enum. */
CZ_API const char *cz_dtype_name(enum cz_dtype dtype);

CZ_EXTERN_C_END
#endif
