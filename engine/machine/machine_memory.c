/* How fast memory is, and the optimizer that depends on it: the STREAM triad and Adam's fused step,
 * in turns over the same arrays. */
#include "base/arena.h"
#include "base/cpu.h"
#include "base/log.h"
#include "base/size.h"
#include "engine/machine/machine_impl.h"
#include "ops/step/step.h"

#include <sched.h>
#include <stdio.h>

#define SHARE 0.15 /* of the time */

struct memory {
    struct ops *ops;
    struct host_memory arrays;
    size_t numel;
    void *p, *m, *v, *g; /* fp32 */
    void *g16, *out16;   /* bf16 */
    struct step_scalars scalars;
};

/* The last-level caches that the allowed cores see, all together. */
static size_t caches_nbytes(void)
{
    cpu_set_t allowed;
    bool seen[1024] = {false};
    size_t n = 0;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return cpu_llc_nbytes();
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        char path[96];
        int id = -1;
        if (!CPU_ISSET((size_t)cpu, &allowed)) continue;
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cache/index3/id", cpu);
        FILE *f = fopen(path, "re");
        if (!f) continue;
        if (fscanf(f, "%d", &id) == 1 && id >= 0 && id < 1024 && !seen[id]) {
            seen[id] = true;
            n++;
        }
        fclose(f);
    }
    return cpu_llc_nbytes() * (n > 0 ? n : 1);
}

/* Elements per array: four times the caches in fp32, as STREAM asks, at least 64 MiB; less where
 * memory is short (five arrays' worth is taken). */
static cz_status choose_numel(const struct machine_run *run, size_t *numel)
{
    size_t wanted = 4 * caches_nbytes(), room;
    char want[32], have[32];
    if (wanted < (size_t)64 << 20) wanted = (size_t)64 << 20;
    TRY(machine_memory(run, &room));
    if (wanted > room / 5) {
        LOGV(LOG_WARN, SUB_OPS, "arrays of %s instead of %s: memory is short",
             size_human(room / 5, have, sizeof have), size_human(wanted, want, sizeof want));
        wanted = room / 5;
    }
    *numel = wanted / sizeof(float) / 4096 * 4096;
    if (*numel > 0) return CZ_OK;
    return err_set(CZ_NOMEM, 0, "no memory to measure with: %s may be used",
                   size_human(room, have, sizeof have));
}

/* Values as in the middle of a training. */
static void fill(struct memory *b)
{
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < b->numel; i++) {
        const float x = (float)((i * 2654435761u >> 8) & 0xffff) * 0x1p-15f - 1.0f;
        ((float *)b->p)[i] = x;
        ((float *)b->m)[i] = 1e-3f * x;
        ((float *)b->v)[i] = 1e-6f * x * x;
        ((float *)b->g)[i] = -2e-3f * x;
        ((uint16_t *)b->g16)[i] = f32_to_bf16(-2e-3f * x);
    }
}

/* Each a page and more after the one before (base/arena.h says why), near its threads. */
static cz_status memory_init(struct memory *b, const struct affinity *affinity)
{
    const size_t wide = b->numel * sizeof(float), half = b->numel * sizeof(uint16_t);
    const struct {
        size_t nbytes;
        void **out;
    } arrays[] = {{wide, &b->p}, {wide, &b->m},   {wide, &b->v},
                  {wide, &b->g}, {half, &b->g16}, {half, &b->out16}};
    size_t total = 0, at = 0;
    for (size_t i = 0; i < CZ_ARRAY_LEN(arrays); i++) total += arena_piece(arrays[i].nbytes);
    TRY(host_memory_map(affinity, "arrays to measure", total, &b->arrays));
    for (size_t i = 0; i < CZ_ARRAY_LEN(arrays); i++) {
        *arrays[i].out = b->arrays.base + at;
        host_memory_touch(*arrays[i].out, arrays[i].nbytes, 0);
        at += arena_piece(arrays[i].nbytes);
    }
    b->scalars = (struct step_scalars){.grad_scale = 0.5f,
                                       .lr = 1e-4f,
                                       .beta1 = 0.9f,
                                       .beta2 = 0.999f,
                                       .inv_bias1 = 1.01f,
                                       .inv_sqrt_bias2 = 1.1f,
                                       .step = 100};
    fill(b);
    return CZ_OK;
}

/* a = b + s·c with ordinary stores. The gradients' array is overwritten: by values Adam can take.
 */
static cz_status triad(void *user)
{
    struct memory *b = user;
    float *restrict out = b->g;
    const float *restrict x = b->p, *restrict y = b->m;
#pragma omp parallel for simd schedule(static)
    for (size_t i = 0; i < b->numel; i++) out[i] = x[i] + 3.0f * y[i];
    return CZ_OK;
}

/* The same kernel and arguments as in a step of training. */
static cz_status adam(struct memory *b, const void *g, enum cz_dtype g_dtype, void *out)
{
    const struct step_args args = {
        .op = STEP_ADAM,
        .t = {.numel = b->numel,
              .p = b->p,
              .g = g,
              .g_dtype = g_dtype,
              .states = {b->m, b->v},
              .out = out,
              .out_dtype = DTYPE_BF16},
        .scalars = &b->scalars,
        .eps = 1e-8f,
        .weight_decay = 0.01f,
        .decoupled = true,
    };
    return ops_step(b->ops, NULL, &args);
}

static cz_status adam_f32(void *user)
{
    struct memory *b = user;
    return adam(b, b->g, DTYPE_F32, NULL);
}

static cz_status adam_bf16(void *user)
{
    struct memory *b = user;
    return adam(b, b->g16, DTYPE_BF16, b->out16);
}

/* In turns: other work on the machine then disturbs all three alike. */
static cz_status measure(const struct machine_run *run, struct memory *b)
{
    struct machine_line lines[] = {{.step = triad}, {.step = adam_f32}, {.step = adam_bf16}};
    TRY(machine_time(run, SHARE * run->seconds, lines, CZ_ARRAY_LEN(lines), b));
    run->out->triad = (double)(b->numel * 3 * sizeof(float)) / lines[0].seconds;
    run->out->adam_f32 = (double)b->numel / lines[1].seconds;
    run->out->adam_bf16 = (double)b->numel / lines[2].seconds;
    return CZ_OK;
}

cz_status machine_measure_memory(const struct machine_run *run)
{
    struct memory b = {.ops = run->ops};
    char size[32];
    TRY(choose_numel(run, &b.numel));
    TRY(machine_next(run, "memory and the Adam step, arrays of %s",
                     size_human(b.numel * sizeof(float), size, sizeof size)));
    cz_status st = memory_init(&b, run->affinity);
    if (st == CZ_OK) st = measure(run, &b);
    host_memory_unmap(&b.arrays);
    return st;
}
