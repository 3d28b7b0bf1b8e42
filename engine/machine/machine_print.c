/* A machine profile for people, and as JSON with what follows from it. */
#include "base/size.h"
#include "engine/machine/machine_impl.h"
#include "formats/json/json_write.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#define ADAM_NBYTES                                                                                \
    28.0 /* moved per parameter, fp32 throughout and with 16-bit gradients alike                   \
          */
#define BILLION    1e9
#define UNIT_WIDTH 16

/* What a user wants to know of a machine: seconds per step and billion parameters. */
double machine_step_seconds(const struct machine_profile *p, double numel, enum cz_dtype dtype,
                            bool nvme)
{
    const double rate = dtype == DTYPE_F32 ? p->adam_f32 : p->adam_bf16;
    const double compute = rate > 0 ? numel / rate : 0;
    if (!nvme || compute == 0) return compute;
    /* Two moments, and the masters where they are not the parameters themselves: read, written. */
    const double nbytes = numel * (dtype == DTYPE_F32 ? 16 : 24);
    return p->nvme_both > 0 ? fmax(compute, nbytes / p->nvme_both) : 0;
}

static void line(struct json_writer *w, const char *name, double rate, const char *unit,
                 const char *fmt, ...) CZ_PRINTF(5, 6);

/* Rates to three digits: more would be noise. */
static void line(struct json_writer *w, const char *name, double rate, const char *unit,
                 const char *fmt, ...)
{
    char note[160];
    va_list ap;
    if (!(rate > 0)) return;
    va_start(ap, fmt);
    vsnprintf(note, sizeof note, fmt, ap);
    va_end(ap);
    const int n_digits = rate < 10 ? 2 : rate < 100 ? 1 : 0;
    json_write_format(w, "  %-22s %8.*f %-*s%s\n", name, n_digits, rate, *note ? UNIT_WIDTH : 0,
                      unit, note);
}

/* A figure that was not measured gives 0, which line() leaves out. */
static double ratio(double a, double b)
{
    return b > 0 ? a / b : 0;
}

/* Each figure beside the one that bounds it: a low ratio points at the cause. */
static void host_lines(struct json_writer *w, const struct machine_profile *p)
{
    const char *unit = "GFLOP/s", *bytes = "GB/s", *steps = "M parameters/s";
    line(w, "matrix products, fp32", p->gemm_f32 * 1e-9, unit, "%s", "");
    line(w, "matrix products, bf16", p->gemm_bf16 * 1e-9, unit, "%.2f x fp32",
         ratio(p->gemm_bf16, p->gemm_f32));
    line(w, "matrix products, fp16", p->gemm_f16 * 1e-9, unit, "%.2f x fp32",
         ratio(p->gemm_f16, p->gemm_f32));
    line(w, "memory", p->triad * 1e-9, bytes, "STREAM triad, ordinary stores");
    line(w, "Adam step, fp32", p->adam_f32 * 1e-6, steps, "%.1f GB/s, %.0f %% of the triad",
         p->adam_f32 * ADAM_NBYTES * 1e-9, 100 * ratio(p->adam_f32 * ADAM_NBYTES, p->triad));
    line(w, "Adam step, bf16", p->adam_bf16 * 1e-6, steps, "%.1f GB/s, %.0f %% of the triad",
         p->adam_bf16 * ADAM_NBYTES * 1e-9, 100 * ratio(p->adam_bf16 * ADAM_NBYTES, p->triad));
    line(w, "rank to rank", p->comm * 1e-9, bytes,
         "%.0f %% of the triad; an estimate: into shared memory and out of it",
         100 * ratio(p->comm, p->triad));
}

static void device_lines(struct json_writer *w, const struct machine_profile *p)
{
    if (!*p->device) {
        json_write_text(w, "  no GPU\n");
        return;
    }
    line(w, "host to device", p->host_to_device * 1e-9, "GB/s", "%s", "");
    line(w, "device to host", p->device_to_host * 1e-9, "GB/s", "%s", "");
    line(w, "device memory", p->device_copy * 1e-9, "GB/s", "copied");
    line(w, "device products, fp32", p->device_gemm_f32 * 1e-9, "GFLOP/s", "%s", "");
    line(w, "device products, bf16", p->device_gemm_bf16 * 1e-9, "GFLOP/s", "%s", "");
    line(w, "device products, fp16", p->device_gemm_f16 * 1e-9, "GFLOP/s", "%s", "");
}

static void disk_lines(struct json_writer *w, const struct machine_profile *p)
{
    char block[32];
    if (!*p->nvme_path) return;
    json_write_format(w, "\n%s: %s\n", p->nvme_path, p->nvme_how);
    line(w, "reading", p->nvme_read * 1e-9, "GB/s", "%.0f %% of the triad",
         100 * ratio(p->nvme_read, p->triad));
    line(w, "writing", p->nvme_write * 1e-9, "GB/s", "%.0f %% of reading",
         100 * ratio(p->nvme_write, p->nvme_read));
    line(w, "both at once", p->nvme_both * 1e-9, "GB/s", "in all");
    json_write_format(w, "  best of those tried: blocks of %s, %d at a time\n",
                      size_human(p->nvme_block_nbytes, block, sizeof block), p->nvme_depth);
    json_write_format(w,
                      "\nSettings for it:\n  \"aio\": {\"block_size\": %zu, \"queue_depth\": %d}\n",
                      p->nvme_block_nbytes, p->nvme_depth);
}

/* Host and disk: whichever is slower decides. */
static void step_line(struct json_writer *w, const struct machine_profile *p, const char *model,
                      enum cz_dtype dtype)
{
    const double host = machine_step_seconds(p, BILLION, dtype, false);
    const double nvme = machine_step_seconds(p, BILLION, dtype, true);
    json_write_format(w, "  %-14s %8.2f s on the host", model, host);
    if (nvme > 0)
        json_write_format(w, ", %8.2f s on NVMe (limited by %s)", nvme,
                          nvme > host ? "the disk" : "the host");
    json_write_text(w, "\n");
}

cz_status machine_table(const struct machine_profile *p, char **out)
{
    struct json_writer w;
    json_writer_init(&w, 0);
    json_write_format(&w, "%s, %d thread%s, %s kernels\n", p->cpu, p->n_threads,
                      p->n_threads == 1 ? "" : "s", p->isa);
    host_lines(&w, p);
    device_lines(&w, p);
    disk_lines(&w, p);
    json_write_text(&w, "\nPredicted Adam step per 1 B parameters of a rank, states\n");
    step_line(&w, p, "fp32 model", DTYPE_F32);
    step_line(&w, p, "16-bit model", DTYPE_BF16);
    return json_writer_take(&w, out, NULL);
}

/* The same figures as in the table. */
static void put_steps(struct json_writer *w, const struct machine_profile *p, const char *key,
                      bool nvme)
{
    json_write_key(w, key);
    json_begin_object(w);
    json_put_double(w, "fp32", machine_step_seconds(p, BILLION, DTYPE_F32, nvme));
    json_put_double(w, "bf16", machine_step_seconds(p, BILLION, DTYPE_BF16, nvme));
    json_end_object(w);
}

cz_status machine_json(const struct machine_profile *p, char **out)
{
    struct json_writer w;
    json_writer_init(&w, 2);
    json_begin_object(&w);
    json_write_key(&w, "profile");
    machine_put(&w, p);
    if (*p->nvme_path) {
        json_write_key(&w, "aio");
        json_begin_object(&w);
        json_put_int(&w, "block_size", (int64_t)p->nvme_block_nbytes);
        json_put_int(&w, "queue_depth", p->nvme_depth);
        json_end_object(&w);
    }
    json_write_key(&w, "step_seconds_per_billion_parameters");
    json_begin_object(&w);
    put_steps(&w, p, "host", false);
    if (*p->nvme_path) put_steps(&w, p, "nvme", true);
    json_end_object(&w);
    json_end_object(&w);
    return json_writer_take(&w, out, NULL);
}
