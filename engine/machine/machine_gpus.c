/* GPUs that plans know without a measurement, so that a question about a machine that is not here
 * has an answer in seconds and not only in bytes.
 *
 * The figures of the GPUs are published ones: memory, its bandwidth, dense operations per second
 * (no sparsity; 16 bits with sums in fp32, fp32 without TF32), PCIe lanes. A profile is made of
 * what programs attain of them, by the fractions below. A host, its disk and what joins its GPUs
 * have no publisher: typical figures of a desktop or a server stand in. `czero bench --profile`
 * measures the real ones. */
#include "engine/machine/machine.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* Large products reach 60 to 90 % of the published rate, copies inside the memory about 85 to 93 %,
 * page-locked copies about 80 % of the lanes' raw rate. */
#define GEMM_ATTAINED   0.7
#define MEMORY_ATTAINED 0.85
#define LINK_ATTAINED   0.8

#define PCIE_4_X16   31.5e9 /* bytes per second each way: 16 GT/s × 16 lanes × 128/130 / 8 bits */
#define PCIE_5_X16   63.0e9
#define THROUGH_HOST 12e9 /* between GPUs without NVLink */

/* By the memory's size; of those with the same size the most usual one first, because a size alone
 * chooses that. Sources are NVIDIA's white papers (GA102, AD102, RTX Blackwell: "FP16 Tensor with
 * FP32 accumulate", without sparsity; BF16 is the same) and data sheets (A100, H100, H200, L4,
 * L40S; their 16-bit figures with sparsity are halved). */
static const struct machine_gpu gpus[] = {
    {"rtx3060", "RTX 3060", 12e9, 360e9, 25.5e12, 12.7e12, PCIE_4_X16, 0, false},
    {"rtx4080", "RTX 4080", 16e9, 717e9, 97.5e12, 48.7e12, PCIE_4_X16, 0, false},
    {"rtx4090", "RTX 4090", 24e9, 1008e9, 165.2e12, 82.6e12, PCIE_4_X16, 0, false},
    {"rtx3090", "RTX 3090", 24e9, 936e9, 71e12, 35.6e12, PCIE_4_X16, 0, false},
    {"l4", "L4", 24e9, 300e9, 121e12, 30.3e12, PCIE_4_X16, 0, true},
    {"rtx5090", "RTX 5090", 32e9, 1792e9, 209.5e12, 104.8e12, PCIE_5_X16, 0, false},
    {"a100-40gb", "A100 40GB", 40e9, 1555e9, 312e12, 19.5e12, PCIE_4_X16, 300e9, true},
    {"l40s", "L40S", 48e9, 864e9, 362e12, 91.6e12, PCIE_4_X16, 0, true},
    {"a100", "A100 80GB", 80e9, 2039e9, 312e12, 19.5e12, PCIE_4_X16, 300e9, true},
    {"h100", "H100", 80e9, 3350e9, 989e12, 67e12, PCIE_5_X16, 450e9, true},
    {"h200", "H200", 141e9, 4800e9, 989e12, 67e12, PCIE_5_X16, 450e9, true},
};

const struct machine_gpu *machine_gpu(size_t idx)
{
    return idx < CZ_ARRAY_LEN(gpus) ? &gpus[idx] : NULL;
}

/* "RTX 4090", "rtx-4090" and "rtx4090" are one name. */
static bool is_name(const char *a, const char *b)
{
    for (;; a++, b++) {
        while (*a && strchr(" -_", *a)) a++;
        while (*b && strchr(" -_", *b)) b++;
        if (!*a || !*b) return *a == *b;
        if (strncasecmp(a, b, 1) != 0) return false;
    }
}

const struct machine_gpu *machine_gpu_find(const char *name)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(gpus); i++)
        if (is_name(gpus[i].name, name) || is_name(gpus[i].title, name)) return &gpus[i];
    return NULL;
}

/* By the ratio of the sizes: 20 GB is nearer to 24 than to 16. */
const struct machine_gpu *machine_gpu_nearest(size_t nbytes)
{
    const struct machine_gpu *nearest = &gpus[0];
    for (size_t i = 1; i < CZ_ARRAY_LEN(gpus); i++)
        if (fabs(log((double)nbytes / gpus[i].nbytes)) <
            fabs(log((double)nbytes / nearest->nbytes)))
            nearest = &gpus[i];
    return nearest;
}

const char *machine_gpu_names(char *buf, size_t nbytes)
{
    size_t used = 0;
    buf[0] = '\0';
    for (size_t i = 0; i < CZ_ARRAY_LEN(gpus) && used < nbytes; i++)
        used += (size_t)snprintf(buf + used, nbytes - used, "%s%s", used ? ", " : "", gpus[i].name);
    return buf;
}

/* A desktop: eight cores, two channels of DDR5-5600, one PCIe 4 drive. A server: eight channels of
 * DDR5-4800, 32 cores with AVX-512. Adam moves 28 bytes a parameter. */
static void set_host(struct machine_profile *p, bool is_server)
{
    snprintf(p->cpu, sizeof p->cpu, "a typical %s (assumed)", is_server ? "server" : "desktop");
    p->n_threads = is_server ? 32 : 8;
    p->gemm_f32 = is_server ? 2.5e12 : 0.7e12;
    p->gemm_bf16 = is_server ? 5e12 : p->gemm_f32;
    p->gemm_f16 = p->gemm_f32;
    p->triad = is_server ? 200e9 : 60e9;
    p->adam_f32 = p->adam_bf16 = p->triad / 28;
    p->comm = is_server ? 20e9 : 10e9;
    p->nvme_read = 6e9;
    p->nvme_write = 4e9;
    p->nvme_both = 5e9;
    p->is_assumed = true;
}

void machine_assume(const struct machine_gpu *gpu, struct machine_profile *out)
{
    *out = (struct machine_profile){0};
    set_host(out, gpu && gpu->in_servers);
    if (!gpu) return;
    snprintf(out->device, sizeof out->device, "%s (published rates)", gpu->title);
    out->device_nbytes = (size_t)gpu->nbytes;
    out->device_gemm_bf16 = out->device_gemm_f16 = gpu->gemm_16bit * GEMM_ATTAINED;
    out->device_gemm_f32 = gpu->gemm_f32 * GEMM_ATTAINED;
    out->device_copy = gpu->memory * MEMORY_ATTAINED;
    out->host_to_device = out->device_to_host = gpu->pcie * LINK_ATTAINED;
    out->comm = gpu->nvlink > 0 ? gpu->nvlink * LINK_ATTAINED : THROUGH_HOST;
}

/* ---- space for others -------------------------------------------------------------------------
 */

size_t machine_share(size_t given, size_t total, size_t in_use)
{
    const size_t gib = (size_t)1 << 30, eighth = total / 8;
    size_t reserve = eighth < 2 * gib ? 2 * gib : eighth > 4 * gib ? 4 * gib : eighth;
    if (given < total / 10 * 9 || given > total / 10 * 11 || total < 4 * gib) return given;
    if (reserve < in_use) reserve = in_use;
    const size_t most = given < total ? given : total;
    return reserve < most ? most - reserve : given;
}
