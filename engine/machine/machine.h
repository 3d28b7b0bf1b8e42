/* machine: what a machine can do, measured once and kept in a file, so that plans have times.
 *
 * `czero bench --profile FILE` writes it, `czero plan` and `czero tune` read it. Rates are of one
 * rank with all the cores that it may use. 0: not measured.
 *
 * Life cycle: machine_measure() or machine_read() → fields → machine_write(). Plain data. */
#ifndef CZ_ENGINE_TUNE_MACHINE_H
#define CZ_ENGINE_TUNE_MACHINE_H

#include "base/dtype.h"
#include "base/status.h"

CZ_EXTERN_C_BEGIN

struct machine_profile {
    char cpu[64];    /* model name */
    char isa[16];    /* highest kernels: "avx512bf16" */
    char device[64]; /* GPU, or "" */
    int n_threads;

    double gemm_f32, gemm_bf16, gemm_f16;  /* operations per second of large matrix products */
    double triad;                          /* STREAM triad, bytes per second (stores not doubled) */
    double adam_f32, adam_bf16;            /* parameters per second of the fused host step: fp32
                                              throughout, and 16-bit gradients and parameters */
    double comm;                           /* bytes per second from rank to rank of one host */
    double host_to_device, device_to_host; /* bytes per second, pinned memory; 0: no GPU */
    double device_gemm_f32, device_gemm_bf16, device_gemm_f16;
    double device_copy; /* bytes read and written per second, inside the GPU's memory */
    size_t device_nbytes;

    char nvme_path[256];          /* the folder that was measured; "": none */
    double nvme_read, nvme_write; /* bytes per second at the block size and depth below */
    double nvme_both;             /* bytes per second in all, reading and writing at once */
    size_t nvme_block_nbytes;     /* best of those tried */
    int nvme_depth;
    char nvme_how[128]; /* "io_uring, O_DIRECT, …": past the page cache or through it */

    bool is_assumed; /* made by machine_assume(): nothing was measured. Not in files */
};

struct machine_options {
    const char *nvme_path;                          /* folder to measure; NULL: none */
    double seconds;                                 /* budget for all of it; 0: 30. Never over 60 */
    void (*progress)(void *user, const char *what); /* a line before each part; NULL: none */
    bool (*stopped)(void *user); /* looked at every few hundred milliseconds: true ends it with
                                    CZ_BUSY, and nothing stays in the folder; NULL: never */
    void *user;
};

/* Uses all the cores that the process may use, memory for arrays of four times the last-level
 * caches (at most a quarter of what is available), and in the folder at most 2 GiB or a quarter of
 * what is free there; the file goes again. Call threads_init() first. Errors: CZ_IO (the folder
 * cannot be measured), CZ_NOMEM, CZ_INVALID, CZ_BUSY (stopped). */
cz_status machine_measure(const struct machine_options *options, struct machine_profile *out);

/* As JSON with units in the keys ("triad_bytes_per_second"). A key that begins with "_" is a
 * comment. Errors: CZ_IO; CZ_NOTFOUND (nothing there to read); CZ_CORRUPT with line:column (a
 * missing or negative figure, an unknown key or version). */
cz_status machine_write(const struct machine_profile *profile, const char *path);
cz_status machine_read(const char *path, struct machine_profile *out);

/* Whether machine_write() could write there: to be asked before half a minute of measuring. Changes
 * nothing. Errors: CZ_IO, CZ_INVALID (no name). */
cz_status machine_write_check(const char *path);

/* ---- GPUs that are known by name ----------------------------------------------------------------
 * Published figures, for plans of machines that were not measured: machine_assume() makes a profile
 * of what programs usually attain of them (docs/memory.md). */

struct machine_gpu {
    const char *name, *title;    /* "rtx4090", "RTX 4090" */
    double nbytes;               /* of its memory, as sold: 24 GB are 24·10^9 */
    double memory;               /* its memory's bytes per second */
    double gemm_16bit, gemm_f32; /* dense operations per second; 16 bits with sums in fp32 */
    double pcie, nvlink;         /* bytes per second each way; nvlink 0: it has none */
    bool in_servers;             /* decides what host is assumed around it */
};

/* By index, ordered by memory; NULL past the end. By name or title, in any case and with or without
 * spaces; NULL: unknown. The one whose memory is nearest. */
const struct machine_gpu *machine_gpu(size_t idx);
const struct machine_gpu *machine_gpu_find(const char *name);
const struct machine_gpu *machine_gpu_nearest(size_t nbytes);

/* "rtx3060, rtx4080, …" into buf; returns it. */
const char *machine_gpu_names(char *buf, size_t nbytes);

/* A profile of a machine with such a GPU, or with none (NULL). No figure of it is measured. */
void machine_assume(const struct machine_gpu *gpu, struct machine_profile *out);

/* What a search may plan where all memory of a machine with `total` bytes was given, to 10 %: it
 * leaves what is in use, and at least 2 to 4 GiB (an eighth). Otherwise `given`. */
size_t machine_share(size_t given, size_t total, size_t in_use);

/* Predicted seconds of one Adam step over numel parameters of a rank: the gradients of a 16-bit
 * model (fp32 masters and moments) or, fp32, everything in fp32; states on the host or streamed
 * from and to NVMe, reading ahead and writing behind. 0: what it takes was not measured. */
double machine_step_seconds(const struct machine_profile *profile, double numel,
                            enum cz_dtype dtype, bool nvme);

/* A table for people, lines ending in newlines; and one JSON object: the profile, the aio section
 * that suits the disk, predicted steps. *out is the caller's to free(). Errors: CZ_NOMEM. */
cz_status machine_table(const struct machine_profile *profile, char **out);
cz_status machine_json(const struct machine_profile *profile, char **out);

CZ_EXTERN_C_END
#endif
