/* Dense products as oneDNN matmul primitives, made once per shape.
 *
 * The cache holds the PRIMITIVES_MAX shapes used last. A primitive's memory objects are made with
 * it and pointed at the caller's buffers at each call; its scratchpad is the caller's workspace.
 * oneDNN keeps a call's argument list on the heap while it runs (a few hundred bytes): that is the
 * only allocation of a shape seen before. */
#include "ops/matmul/matmul_impl.h"

#include "base/cpu.h"
#include "base/rng.h"
#include "base/size.h"
#include "ops/matmul/onednn_impl.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define PRIMITIVES_MAX 2048
#define BUCKETS        4096
#define NO_ENTRY       (-1)
#define SCRATCH_ALIGN  ((size_t)64)

enum { MEM_A, MEM_B, MEM_BIAS, MEM_C, MEM_SCRATCH, N_MEMS };

struct entry {
    struct matmul_shape shape;
    int n_threads; /* that its work was cut for */
    dnnl_primitive_t primitive;
    dnnl_memory_t mems[N_MEMS]; /* MEM_BIAS is NULL without bias */
    size_t scratch_nbytes;
    uint64_t last_use;
    int next; /* in its bucket */
};

struct dnnl_state {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    struct entry entries[PRIMITIVES_MAX];
    int n_entries;
    int buckets[BUCKETS]; /* first entry, or NO_ENTRY */
    uint64_t n_uses;
};

/* ---- errors ---------------------------------------------------------------------------------- */

static cz_status dnnl_failed(dnnl_status_t status, const char *what)
{
    if (status == dnnl_out_of_memory)
        return err_set(CZ_NOMEM, 0, "matmul: out of memory in oneDNN (%s)", what);
    return err_set(CZ_UNSUPPORTED, 0, "matmul: oneDNN failed in %s with its status %d", what,
                   (int)status);
}

#define DNNL_TRY(call)                                                                             \
    do {                                                                                           \
        dnnl_status_t dnnl_st_ = (call);                                                           \
        if (dnnl_st_ != dnnl_success) return dnnl_failed(dnnl_st_, #call);                         \
    } while (0)

/* ---- engine ---------------------------------------------------------------------------------- */

/* CZERO_ISA caps oneDNN too, whose fp32 products know three levels. The cap is one per process and
 * must precede its first use. */
static dnnl_cpu_isa_t isa_cap(void)
{
    uint32_t features = cpu_features();
    if (features == cpu_features_hardware()) return ONEDNN_ISA_ALL;
    if (features & CPU_AVX512) return dnnl_cpu_isa_avx512_core;
    return dnnl_cpu_isa_avx2;
}

static dnnl_status_t cap_status;

static void cap_once(void)
{
    dnnl_cpu_isa_t cap = isa_cap();
    cap_status = cap == ONEDNN_ISA_ALL ? dnnl_success : dnnl_set_max_cpu_isa(cap);
}

static cz_status cap_isa(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, cap_once);
    if (cap_status == dnnl_success) return CZ_OK;
    return err_set(
        CZ_UNSUPPORTED, 0,
        "CZERO_ISA=%s cannot take effect for matmul: this process has used oneDNN before",
        cpu_isa_name());
}

static cz_status state_get(struct matmul_cache *cache, struct dnnl_state **out)
{
    *out = cache->dnnl;
    if (cache->dnnl) return CZ_OK;
    TRY(cap_isa());
    struct dnnl_state *s = calloc(1, sizeof *s);
    if (!s) return err_set(CZ_NOMEM, 0, "matmul: out of memory");
    for (int i = 0; i < BUCKETS; i++) s->buckets[i] = NO_ENTRY;
    cache->dnnl = s; /* matmul_dense_free() accepts it half-built */
    *out = s;
    DNNL_TRY(dnnl_engine_create(&s->engine, dnnl_cpu, 0));
    DNNL_TRY(dnnl_stream_create(&s->stream, s->engine, dnnl_stream_default_flags));
    return CZ_OK;
}

/* ---- one primitive --------------------------------------------------------------------------- */

struct descs {
    dnnl_memory_desc_t a, b, bias, c;
};

/* A (rows, cols) matrix as the product sees it; stored transposed it is (cols, rows). */
static cz_status describe(dnnl_memory_desc_t *desc, int64_t rows, int64_t cols, bool trans)
{
    const dnnl_dims_t dims = {rows, cols};
    const dnnl_dims_t strides = {trans ? 1 : cols, trans ? rows : 1};
    DNNL_TRY(onednn_desc_init(desc, dims, dnnl_f32, strides));
    return CZ_OK;
}

static cz_status describe_all(const struct matmul_shape *s, struct descs *d)
{
    TRY(describe(&d->a, s->m, s->k, s->trans_a));
    TRY(describe(&d->b, s->k, s->n, s->trans_b));
    TRY(describe(&d->c, s->m, s->n, false));
    return describe(&d->bias, 1, s->n, false);
}

static void descs_free(struct descs *d)
{
    onednn_desc_free(&d->a);
    onednn_desc_free(&d->b);
    onednn_desc_free(&d->bias);
    onednn_desc_free(&d->c);
}

static cz_status make_attr(const struct matmul_shape *s, dnnl_primitive_attr_t attr)
{
    DNNL_TRY(dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user));
    if (!s->accumulate) return CZ_OK;
    dnnl_post_ops_t post_ops;
    DNNL_TRY(dnnl_post_ops_create(&post_ops));
    dnnl_status_t status = onednn_append_sum(post_ops);
    if (status == dnnl_success) status = dnnl_primitive_attr_set_post_ops(attr, post_ops);
    dnnl_post_ops_destroy(post_ops);
    DNNL_TRY(status);
    return CZ_OK;
}

static cz_status make_primitive_desc(struct dnnl_state *s, const struct matmul_shape *shape,
                                     const struct descs *d, dnnl_primitive_desc_t *out)
{
    dnnl_primitive_attr_t attr;
    DNNL_TRY(dnnl_primitive_attr_create(&attr));
    cz_status st = make_attr(shape, attr);
    dnnl_status_t status = dnnl_success;
    if (st == CZ_OK)
        status = onednn_matmul_desc(out, s->engine, onednn_desc_get(&d->a), onednn_desc_get(&d->b),
                                    shape->has_bias ? onednn_desc_get(&d->bias) : NULL,
                                    onednn_desc_get(&d->c), attr);
    dnnl_primitive_attr_destroy(attr);
    TRY(st);
    DNNL_TRY(status);
    return CZ_OK;
}

static cz_status make_memories(struct dnnl_state *s, struct entry *e, const struct descs *d,
                               onednn_desc_ref scratch)
{
    const onednn_desc_ref descs[N_MEMS] = {onednn_desc_get(&d->a), onednn_desc_get(&d->b),
                                           onednn_desc_get(&d->bias), onednn_desc_get(&d->c),
                                           scratch};
    for (int i = 0; i < N_MEMS; i++) {
        if (i == MEM_BIAS && !e->shape.has_bias) continue;
        DNNL_TRY(dnnl_memory_create(&e->mems[i], descs[i], s->engine, DNNL_MEMORY_NONE));
    }
    return CZ_OK;
}

static cz_status make_all(struct dnnl_state *s, struct entry *e, const struct descs *d)
{
    dnnl_primitive_desc_t pd;
    TRY(make_primitive_desc(s, &e->shape, d, &pd));
    dnnl_status_t status = dnnl_primitive_create(&e->primitive, pd);
    onednn_desc_ref scratch = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    e->scratch_nbytes = dnnl_memory_desc_get_size(scratch);
    cz_status st = CZ_OK;
    if (status == dnnl_success) st = make_memories(s, e, d, scratch);
    dnnl_primitive_desc_destroy(pd);
    DNNL_TRY(status);
    return st;
}

static cz_status entry_init(struct dnnl_state *s, struct entry *e, const struct matmul_shape *shape)
{
    memset(e, 0, sizeof *e);
    e->shape = *shape;
    e->n_threads = threads_count();
    struct descs d = {0};
    cz_status st = describe_all(shape, &d);
    if (st == CZ_OK) st = make_all(s, e, &d);
    descs_free(&d);
    return st;
}

static void entry_free(struct entry *e)
{
    for (int i = 0; i < N_MEMS; i++)
        if (e->mems[i]) dnnl_memory_destroy(e->mems[i]);
    if (e->primitive) dnnl_primitive_destroy(e->primitive);
    memset(e, 0, sizeof *e);
}

/* ---- cache ----------------------------------------------------------------------------------- */

static int bucket_of(const struct matmul_shape *s)
{
    uint64_t flags = (uint64_t)s->trans_a | (uint64_t)s->trans_b << 1 |
                     (uint64_t)s->accumulate << 2 | (uint64_t)s->has_bias << 3;
    uint64_t h = rng_mix64((uint64_t)s->m + 1);
    h = rng_mix64(h ^ (uint64_t)s->n);
    h = rng_mix64(h ^ (uint64_t)s->k);
    return (int)(rng_mix64(h ^ flags) % BUCKETS);
}

static bool same_shape(const struct matmul_shape *x, const struct matmul_shape *y)
{
    return x->m == y->m && x->n == y->n && x->k == y->k && x->trans_a == y->trans_a &&
           x->trans_b == y->trans_b && x->accumulate == y->accumulate && x->has_bias == y->has_bias;
}

static void unlink_entry(struct dnnl_state *s, int idx)
{
    int *link = &s->buckets[bucket_of(&s->entries[idx].shape)];
    while (*link != idx) link = &s->entries[*link].next;
    *link = s->entries[idx].next;
}

/* A free slot, made by dropping the shape that was not used for longest when all are taken. */
static int take_slot(struct dnnl_state *s)
{
    if (s->n_entries < PRIMITIVES_MAX) return s->n_entries++;
    int oldest = 0;
    for (int i = 1; i < PRIMITIVES_MAX; i++)
        if (s->entries[i].last_use < s->entries[oldest].last_use) oldest = i;
    unlink_entry(s, oldest);
    entry_free(&s->entries[oldest]);
    return oldest;
}

static cz_status insert(struct dnnl_state *s, const struct matmul_shape *shape, struct entry **out)
{
    struct entry made;
    cz_status st = entry_init(s, &made, shape);
    if (st != CZ_OK) {
        entry_free(&made);
        return err_trace(st, __func__, __LINE__);
    }
    int idx = take_slot(s), bucket = bucket_of(shape);
    made.next = s->buckets[bucket];
    s->buckets[bucket] = idx;
    s->entries[idx] = made;
    *out = &s->entries[idx];
    return CZ_OK;
}

static cz_status entry_get(struct matmul_cache *cache, const struct matmul_shape *shape,
                           struct entry **out)
{
    struct dnnl_state *s;
    TRY(state_get(cache, &s));
    int idx = s->buckets[bucket_of(shape)];
    while (idx != NO_ENTRY && !(same_shape(&s->entries[idx].shape, shape) &&
                                s->entries[idx].n_threads == threads_count()))
        idx = s->entries[idx].next;
    if (idx == NO_ENTRY)
        TRY(insert(s, shape, out));
    else
        *out = &s->entries[idx];
    (*out)->last_use = ++s->n_uses;
    return CZ_OK;
}

/* ---- what the other files call --------------------------------------------------------------- */

cz_status matmul_dense_scratch(struct matmul_cache *cache, const struct matmul_shape *shape,
                               size_t *nbytes)
{
    struct entry *e;
    TRY(entry_get(cache, shape, &e));
    *nbytes = e->scratch_nbytes > 0 ? e->scratch_nbytes + SCRATCH_ALIGN : 0;
    return CZ_OK;
}

/* oneDNN takes all buffers as void *; it only reads a, b and bias. */
static void *unconst(const void *p)
{
    return (void *)(uintptr_t)p;
}

cz_status matmul_dense_run(struct matmul_cache *cache, const struct matmul_shape *shape,
                           const void *a, const void *b, const void *bias, void *c, void *scratch)
{
    static const int arg_of[N_MEMS] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_BIAS, DNNL_ARG_DST,
                                       DNNL_ARG_SCRATCHPAD};
    struct entry *e;
    TRY(entry_get(cache, shape, &e));
    void *aligned = (void *)size_round_up((uintptr_t)scratch, SCRATCH_ALIGN);
    void *handles[N_MEMS] = {unconst(a), unconst(b), unconst(bias), c, aligned};
    dnnl_exec_arg_t args[N_MEMS];
    int n_args = 0;
    for (int i = 0; i < N_MEMS; i++) {
        if (!e->mems[i]) continue;
        DNNL_TRY(dnnl_memory_set_data_handle(e->mems[i], handles[i]));
        args[n_args++] = (dnnl_exec_arg_t){arg_of[i], e->mems[i]};
    }
    DNNL_TRY(dnnl_primitive_execute(e->primitive, cache->dnnl->stream, n_args, args));
    DNNL_TRY(dnnl_stream_wait(cache->dnnl->stream));
    return CZ_OK;
}

void matmul_dense_free(struct matmul_cache *cache)
{
    struct dnnl_state *s = cache->dnnl;
    if (!s) return;
    for (int i = 0; i < s->n_entries; i++) entry_free(&s->entries[i]);
    if (s->stream) dnnl_stream_destroy(s->stream);
    if (s->engine) dnnl_engine_destroy(s->engine);
    free(s);
    cache->dnnl = NULL;
}
