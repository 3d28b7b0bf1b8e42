/* Products of cuBLASLt. Source: cuBLAS library, version 13, "Using the cuBLASLt API".
 *
 * cuBLASLt sees columns where we have rows: C (m,n) of rows is its D (n,m) of columns, our B its A
 * and our A its B, and what is stored by rows is for it transposed. So its bias runs over our
 * columns, as ours does; no matrix is moved.
 *
 * What depends on shapes, dtypes, distances, alignments and the epilogue is a plan: descriptors and
 * the algorithm, which is the first that cuBLASLt's heuristics name, or what a table says that was
 * measured before (matmul_cuda_impl.h). No timing decides, so a run repeats. Plans are in a table
 * of fixed size; an old one gives way to a new one of its set.
 *
 * Products repeat to the bit on one kind of GPU: sums that are cut along k are kept in fp32 and
 * added up in a pass of their own (no other reduction is allowed: the others round partial sums to
 * C's dtype). Alignments beyond 16 bytes are not passed on, and what a model's parameters and their
 * gradients may be is copied to where 16 bytes are (ops_lend_aligned), so that the result does not
 * depend on a tensor's address: parameters have other ones at each stage. */
#include "ops/matmul/matmul_cuda_impl.h"

#include "base/size.h"

#include <cublasLt.h>
#include <stdlib.h>
#include <string.h>

#define ALIGN_MAX  16
#define N_SETS     256
#define N_WAYS     4
#define DIM_MAX    ((int64_t)INT32_MAX) /* rows, columns and distances that cuBLASLt takes */
#define N_ROUNDS   5                    /* of a product that is measured */
#define AUX_UNIT   8                    /* elements: its aux' distance is a multiple of it */
#define FUSED_FROM 9 /* major compute capability with activations in the product */

/* What products may do besides, in words for CZERO_CUDA_EPILOGUES. */
enum {
    FUSES_BIAS = 1,
    FUSES_GELU = 2,
    FUSES_GELU_GRAD = 4,
    FUSES_BIAS_GRAD = 8,
    FUSES_RESIDUAL = 16
};
static const struct {
    const char *name;
    unsigned bits;
} fusions[] = {{"bias", FUSES_BIAS},
               {"gelu", FUSES_GELU},
               {"gelu_grad", FUSES_GELU_GRAD},
               {"bias_grad", FUSES_BIAS_GRAD},
               {"residual", FUSES_RESIDUAL},
               {"all", 2 * FUSES_RESIDUAL - 1},
               {"none", 0}};
/* Not bias_grad: a weight's gradient has long sums and few tiles, so its product has to be cut
 * along k, which may exclude this epilogue. A pass over the output's gradient costs less than that.
 */
#define FUSES_BY_DEFAULT (FUSES_BIAS | FUSES_GELU | FUSES_GELU_GRAD | FUSES_RESIDUAL)

/* Everything a plan depends on; compared as bytes. Whether it accumulates makes no other choice of
 * algorithm, but may be what is refused. */
struct plan_key {
    int64_t m, n, k, lda, ldb, ldc;
    enum cz_dtype dtype, c_dtype;
    uint32_t trans_a, trans_b, accumulate, tf32;
    uint32_t epilogue; /* cublasLtEpilogue_t */
    uint32_t align_a, align_b, align_c, align_vector, align_aux;
};

struct cz_plan {
    struct plan_key key;
    uint64_t used; /* when, in calls; 0: never */
    bool refused;  /* cuBLASLt has no algorithm */
    cublasLtMatmulDescOpaque_t desc;
    cublasLtMatrixLayoutOpaque_t a, b, c; /* as cuBLASLt names them: a is our B */
    cublasLtMatmulAlgo_t algo;
    size_t workspace_nbytes;
};

struct matmul_lt {
    cublasLtHandle_t handle;
    size_t workspace_nbytes;
    struct matmul_choices *choices; /* NULL: always the first */
    struct ops *ops;                /* whose allow_tf32 may change, and which counts */
    unsigned fuses;                 /* FUSES_… */
    uint64_t n_calls;
    struct cz_plan plans[N_SETS][N_WAYS];
};

/* ---- errors -----------------------------------------------------------------------------------
 */

static cz_status lt_status(cublasStatus_t result, const char *what)
{
    if (result == CUBLAS_STATUS_SUCCESS) return CZ_OK;
    /* cuBLASLt has a CUDA runtime of its own, whose last error is not ours to read: a lost device
     * reports that to the caller that waits for it */
    const cudaError_t cause = cudaDeviceSynchronize();
    if (cause != cudaSuccess) return cuda_status(cause, what);
    if (result == CUBLAS_STATUS_ALLOC_FAILED)
        return err_set(CZ_NOMEM, 0, "%s: cuBLASLt is out of memory", what);
    return err_set(CZ_CUDA, 0, "%s: cuBLASLt: %s", what, cublasLtGetStatusString(result));
}

#define LT_TRY(call, what)                                                                         \
    do {                                                                                           \
        cublasStatus_t result_ = (call);                                                           \
        if (result_ != CUBLAS_STATUS_SUCCESS)                                                      \
            return err_trace(lt_status(result_, (what)), __func__, __LINE__);                      \
    } while (0)

/* Answers that mean "not this product", as opposed to trouble. */
static bool is_refusal(cublasStatus_t result)
{
    return result == CUBLAS_STATUS_NOT_SUPPORTED || result == CUBLAS_STATUS_INVALID_VALUE ||
           result == CUBLAS_STATUS_ARCH_MISMATCH;
}

/* ---- what a product is for cuBLASLt -----------------------------------------------------------
 */

static cudaDataType_t type_of(enum cz_dtype dtype)
{
    return dtype == DTYPE_BF16 ? CUDA_R_16BF : dtype == DTYPE_F16 ? CUDA_R_16F : CUDA_R_32F;
}

static uint32_t alignment(const void *p)
{
    const uintptr_t at = (uintptr_t)p;
    return at % ALIGN_MAX == 0 ? ALIGN_MAX : (uint32_t)(at & (~at + 1));
}

/* The activation that cuBLASLt has: for an aux it wants whole units in whole alignment. Where it is
 * known to be slower than a pass of our own (below compute capability 9.0, and in fp32), it is not
 * taken. */
static bool activation_fuses(const struct matmul_lt *lt, const struct matmul_args *a)
{
    const bool aux_fits = !a->aux || (a->n % AUX_UNIT == 0 && alignment(a->aux) == ALIGN_MAX);
    const unsigned needed = a->epilogue == MATMUL_ACT_GRAD ? FUSES_GELU_GRAD : FUSES_GELU;
    return lt->fuses & needed && a->act == ACT_GELU_TANH && a->dtype != DTYPE_F32 && aux_fits;
}

/* False when no epilogue does all that is asked for. */
static bool epilogue_of(const struct matmul_lt *lt, const struct matmul_args *a, uint32_t *out)
{
    const bool bias = a->bias != NULL, sums = a->bias_grad_of != MATMUL_NO_BIAS_GRAD;
    if (bias && a->c_dtype != a->dtype) return false; /* its bias has C's dtype */
    if ((bias && !(lt->fuses & FUSES_BIAS)) || (sums && !(lt->fuses & FUSES_BIAS_GRAD)))
        return false;
    if (a->epilogue == MATMUL_PLAIN && sums) {
        *out = a->bias_grad_of == MATMUL_BIAS_GRAD_OF_A ? CUBLASLT_EPILOGUE_BGRADB
                                                        : CUBLASLT_EPILOGUE_BGRADA;
        return !bias && !a->bias_grad_accumulate;
    }
    if (a->epilogue == MATMUL_PLAIN) {
        *out = bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
        return true;
    }
    if (sums || !activation_fuses(lt, a)) return false;
    if (a->epilogue == MATMUL_ACT_GRAD) {
        *out = CUBLASLT_EPILOGUE_DGELU;
        return !bias;
    }
    if (a->aux)
        *out = bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    else
        *out = bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    return true;
}

/* The vector that the epilogue reads or writes. */
static const void *vector_of(const struct matmul_args *a)
{
    return a->bias_grad_of != MATMUL_NO_BIAS_GRAD ? a->bias_grad : a->bias;
}

static bool dims_fit(const struct matmul_args *a)
{
    return a->m <= DIM_MAX && a->n <= DIM_MAX && a->k <= DIM_MAX && matmul_lda(a) <= DIM_MAX &&
           matmul_ldb(a) <= DIM_MAX && matmul_ldc(a) <= DIM_MAX;
}

static struct plan_key key_of(const struct matmul_args *a, uint32_t epilogue, bool allow_tf32)
{
    struct plan_key key;
    memset(&key, 0, sizeof key);
    key.m = a->m, key.n = a->n, key.k = a->k;
    key.lda = matmul_lda(a), key.ldb = matmul_ldb(a), key.ldc = matmul_ldc(a);
    key.dtype = a->dtype, key.c_dtype = a->c_dtype;
    key.trans_a = a->trans_a, key.trans_b = a->trans_b;
    key.accumulate = a->accumulate || a->residual;
    key.tf32 = allow_tf32 && a->dtype == DTYPE_F32;
    key.epilogue = epilogue;
    key.align_a = alignment(a->a), key.align_b = alignment(a->b), key.align_c = alignment(a->c);
    if (a->residual && alignment(a->residual) < key.align_c) key.align_c = alignment(a->residual);
    key.align_vector = alignment(vector_of(a));
    key.align_aux = a->epilogue == MATMUL_PLAIN ? ALIGN_MAX : alignment(a->aux);
    return key;
}

/* ---- plans ------------------------------------------------------------------------------------
 */

static uint64_t hash(const struct plan_key *key)
{
    const unsigned char *bytes = (const unsigned char *)key;
    uint64_t h = 0xcbf29ce484222325u; /* FNV-1a */
    for (size_t i = 0; i < sizeof *key; i++) h = (h ^ bytes[i]) * 0x100000001b3u;
    return h ^ h >> 32;
}

/* The plan of this key, or the one that gives way to it (its key differs). */
static struct cz_plan *plan_at(struct matmul_lt *lt, const struct plan_key *key)
{
    struct cz_plan *ways = lt->plans[hash(key) % N_SETS], *oldest = ways;
    for (int i = 0; i < N_WAYS; i++) {
        if (ways[i].used > 0 && memcmp(&ways[i].key, key, sizeof *key) == 0) return &ways[i];
        if (ways[i].used < oldest->used) oldest = &ways[i];
    }
    oldest->used = 0;
    return oldest;
}

/* What stored rows of `width` elements are for cuBLASLt: columns. */
static cz_status make_layout(cublasLtMatrixLayoutOpaque_t *layout, enum cz_dtype dtype,
                             int64_t width, int64_t n_rows, int64_t ld)
{
    LT_TRY(cublasLtMatrixLayoutInit(layout, type_of(dtype), (uint64_t)width, (uint64_t)n_rows, ld),
           "matmul: a matrix");
    return CZ_OK;
}

static cz_status set(cublasLtMatmulDescOpaque_t *desc, cublasLtMatmulDescAttributes_t attribute,
                     const void *value, size_t nbytes)
{
    LT_TRY(cublasLtMatmulDescSetAttribute(desc, attribute, value, nbytes), "matmul: its kind");
    return CZ_OK;
}

static cz_status make_desc(const struct plan_key *key, cublasLtMatmulDescOpaque_t *desc)
{
    const cublasComputeType_t compute =
        key->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    const int32_t trans_a = key->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const int32_t trans_b = key->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    LT_TRY(cublasLtMatmulDescInit(desc, compute, CUDA_R_32F), "matmul: its kind");
    TRY(set(desc, CUBLASLT_MATMUL_DESC_TRANSA, &trans_a, sizeof trans_a));
    TRY(set(desc, CUBLASLT_MATMUL_DESC_TRANSB, &trans_b, sizeof trans_b));
    return set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &key->epilogue, sizeof key->epilogue);
}

/* Addresses are part of the description: those of this call. */
static cz_status set_pointers(struct cz_plan *p, const struct matmul_args *a)
{
    const void *vector = vector_of(a);
    const int64_t aux_ld = a->n;
    if (vector) TRY(set(&p->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &vector, sizeof vector));
    if (a->epilogue == MATMUL_PLAIN || !a->aux) return CZ_OK;
    TRY(set(&p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &a->aux, sizeof a->aux));
    return set(&p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &aux_ld, sizeof aux_ld);
}

static cz_status prefer(cublasLtMatmulPreferenceOpaque_t *pref,
                        cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
                        size_t nbytes)
{
    LT_TRY(cublasLtMatmulPreferenceSetAttribute(pref, attribute, value, nbytes),
           "matmul: what its algorithm may do");
    return CZ_OK;
}

static cz_status make_preference(const struct matmul_lt *lt, const struct plan_key *key,
                                 cublasLtMatmulPreferenceOpaque_t *pref)
{
    const uint64_t workspace_nbytes = lt->workspace_nbytes;
    const uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    LT_TRY(cublasLtMatmulPreferenceInit(pref), "matmul: what its algorithm may do");
    TRY(prefer(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_nbytes,
               sizeof workspace_nbytes));
    TRY(prefer(pref, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reduction, sizeof reduction));
    TRY(prefer(pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &key->align_b, sizeof(uint32_t)));
    TRY(prefer(pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &key->align_a, sizeof(uint32_t)));
    TRY(prefer(pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &key->align_c, sizeof(uint32_t)));
    return prefer(pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &key->align_c,
                  sizeof(uint32_t));
}

static void facts_of(const struct plan_key *k, int64_t facts[MATMUL_N_FACTS])
{
    const int64_t all[MATMUL_N_FACTS] = {
        k->m,        k->n,       k->k,       k->lda,     k->ldb,          k->ldc,
        k->dtype,    k->c_dtype, k->trans_a, k->trans_b, k->accumulate,   k->tf32,
        k->epilogue, k->align_a, k->align_b, k->align_c, k->align_vector, k->align_aux};
    memcpy(facts, all, sizeof all);
}

/* What cuBLASLt may take, its best guess first. *n_found 0: nothing. */
static cz_status ask(const struct matmul_lt *lt, struct cz_plan *p, int n_wanted,
                     cublasLtMatmulHeuristicResult_t *found, int *n_found)
{
    cublasLtMatmulPreferenceOpaque_t pref;
    *n_found = 0;
    TRY(make_preference(lt, &p->key, &pref));
    const cublasStatus_t result = cublasLtMatmulAlgoGetHeuristic(
        lt->handle, &p->desc, &p->a, &p->b, &p->c, &p->c, &pref, n_wanted, found, n_found);
    if (is_refusal(result)) *n_found = 0;
    if (is_refusal(result)) return CZ_OK;
    LT_TRY(result, "matmul: choosing its algorithm");
    return CZ_OK;
}

static bool is_usable(const struct matmul_lt *lt, const cublasLtMatmulHeuristicResult_t *found)
{
    return found->state == CUBLAS_STATUS_SUCCESS && found->workspaceSize <= lt->workspace_nbytes;
}

static void adopt(struct cz_plan *p, const cublasLtMatmulHeuristicResult_t *found)
{
    p->algo = found->algo;
    p->workspace_nbytes = found->workspaceSize;
}

static cz_status choose(const struct matmul_lt *lt, struct cz_plan *p)
{
    cublasLtMatmulHeuristicResult_t found[MATMUL_N_ALGORITHMS];
    int64_t facts[MATMUL_N_FACTS];
    int n_found;
    facts_of(&p->key, facts);
    const int which = matmul_choices_find(lt->choices, facts);
    TRY(ask(lt, p, which + 1, found, &n_found));
    p->refused = n_found == 0 || !is_usable(lt, &found[0]);
    if (p->refused) return CZ_OK;
    if (which >= n_found || !is_usable(lt, &found[which]))
        return err_set(CZ_INVALID, 0,
                       "CZERO_CUDA_ALGORITHMS names algorithm %d for a product of %lld x %lld x "
                       "%lld; cuBLASLt has %d",
                       which, (long long)p->key.m, (long long)p->key.n, (long long)p->key.k,
                       n_found);
    adopt(p, &found[which]);
    return CZ_OK;
}

static cz_status make_plan(const struct matmul_lt *lt, const struct plan_key *key,
                           const struct matmul_args *a, struct cz_plan *p)
{
    p->key = *key;
    const bool ta = key->trans_a, tb = key->trans_b;
    p->refused = false;
    TRY(make_layout(&p->a, key->dtype, tb ? key->k : key->n, tb ? key->n : key->k, key->ldb));
    TRY(make_layout(&p->b, key->dtype, ta ? key->m : key->k, ta ? key->k : key->m, key->lda));
    TRY(make_layout(&p->c, key->c_dtype, key->n, key->m, key->ldc));
    TRY(make_desc(key, &p->desc));
    TRY(set_pointers(p, a)); /* heuristics look at their alignment */
    return choose(lt, p);
}

/* ---- refusals ----------------------------------------------------------------------------------
 */

static const char *epilogue_name(uint32_t epilogue)
{
    switch (epilogue) {
    case CUBLASLT_EPILOGUE_BIAS: return "its bias";
    case CUBLASLT_EPILOGUE_GELU:
    case CUBLASLT_EPILOGUE_GELU_AUX: return "its GELU";
    case CUBLASLT_EPILOGUE_GELU_BIAS:
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS: return "its bias and GELU";
    case CUBLASLT_EPILOGUE_DGELU: return "the gradient of its GELU";
    case CUBLASLT_EPILOGUE_BGRADA:
    case CUBLASLT_EPILOGUE_BGRADB: return "its bias gradient";
    default: return NULL;
    }
}

static int64_t unit_of(const void *p, int64_t ld, enum cz_dtype dtype)
{
    const uint64_t both = (uint64_t)(uintptr_t)p | (uint64_t)ld * dtype_size(dtype);
    return both % ALIGN_MAX == 0 ? ALIGN_MAX : (int64_t)(both & (~both + 1));
}

/* Once per plan, when it is refused: nothing else tells why a run is slow. A product that is
 * refused altogether is a warning. */
static void tell(const struct plan_key *k, const struct matmul_args *a, const char *why)
{
    const char *with = epilogue_name(k->epilogue);
    const enum cz_log_level level = with ? LOG_INFO : LOG_WARN;
    if (!log_enabled(level, SUB_OPS)) return;
    log_line(level,
             "matmul: cuBLASLt takes no product (%lld,%lld)·(%lld,%lld) of %s into %s%s%s%s%s%s "
             "(%s; aligned to %lld, %lld and %lld bytes): %s",
             (long long)k->m, (long long)k->k, (long long)k->k, (long long)k->n,
             dtype_name(k->dtype), dtype_name(k->c_dtype), k->trans_a ? ", A transposed" : "",
             k->trans_b ? ", B transposed" : "", k->accumulate ? ", added to C" : "",
             with ? ", with " : "", with ? with : "", why,
             (long long)unit_of(a->a, k->lda, k->dtype), (long long)unit_of(a->b, k->ldb, k->dtype),
             (long long)unit_of(a->c, k->ldc, k->c_dtype),
             with ? "a separate pass does that"
                  : "czero's kernel, which is many times slower, computes it");
}

static cz_status refused(struct matmul_lt *lt, const struct plan_key *key)
{
    if (epilogue_name(key->epilogue)) lt->ops->products.n_split++;
    return CZ_OK;
}

/* ---- calls ------------------------------------------------------------------------------------
 */

/* What NVIDIA recommends for cuBLAS on Hopper and newer, and before. */
static size_t workspace_for(const struct device_info *info)
{
    return (size_t)(info->capability_major >= 9 ? 32 : 4) << 20;
}

/* CZERO_CUDA_EPILOGUES: "all", "none", or names with commas between them. */
static cz_status fusions_asked_for(unsigned *fuses)
{
    const char *asked = getenv("CZERO_CUDA_EPILOGUES");
    *fuses = asked ? 0 : FUSES_BY_DEFAULT;
    for (const char *at = asked; at && *at; at += *at == ',') {
        const size_t n = strcspn(at, ",");
        size_t i = 0;
        while (i < CZ_ARRAY_LEN(fusions) &&
               (strncmp(fusions[i].name, at, n) != 0 || fusions[i].name[n] != 0))
            i++;
        if (i == CZ_ARRAY_LEN(fusions))
            return err_set(CZ_INVALID, 0,
                           "CZERO_CUDA_EPILOGUES=%s: all, none, or some of bias, gelu, gelu_grad, "
                           "bias_grad and residual, with commas between them",
                           asked);
        *fuses |= fusions[i].bits;
        at += n;
    }
    return CZ_OK;
}

cz_status matmul_lt_create(struct ops *ops, struct matmul_lt **out)
{
    struct matmul_lt *lt = (struct matmul_lt *)calloc(1, sizeof *lt);
    *out = lt;
    if (!lt) return err_set(CZ_NOMEM, 0, "matmul: out of memory");
    lt->workspace_nbytes = workspace_for(&ops->cuda->info);
    TRY(fusions_asked_for(&lt->fuses));
    if (ops->cuda->info.capability_major < FUSED_FROM) lt->fuses &= ~(FUSES_GELU | FUSES_GELU_GRAD);
    lt->ops = ops;
    TRY(matmul_choices_open(ops, &lt->choices));
    LT_TRY(cublasLtCreate(&lt->handle), "matmul: starting cuBLASLt");
    return CZ_OK;
}

void matmul_lt_destroy(struct matmul_lt *lt)
{
    if (!lt) return;
    if (lt->handle) cublasLtDestroy(lt->handle);
    matmul_choices_close(lt->choices);
    free(lt);
}

bool matmul_lt_adds_residual(const struct matmul_lt *lt)
{
    return lt->fuses & FUSES_RESIDUAL;
}

size_t matmul_lt_workspace(const struct matmul_lt *lt)
{
    return lt->workspace_nbytes;
}

static cublasStatus_t multiply(struct matmul_lt *lt, struct dev_stream *stream,
                               const struct matmul_args *a, struct cz_plan *p, void *workspace)
{
    const float alpha = 1.0f, beta = a->accumulate || a->residual ? 1.0f : 0.0f;
    const void *before = a->residual ? a->residual : a->c;
    return cublasLtMatmul(lt->handle, &p->desc, &alpha, a->b, &p->a, a->a, &p->b, &beta, before,
                          &p->c, a->c, &p->c, &p->algo, workspace, p->workspace_nbytes,
                          cuda_stream(stream));
}

/* Seconds of the product as the plan is: the least of N_ROUNDS. < 0: cuBLASLt refuses it. */
static cz_status time_plan(struct matmul_lt *lt, struct dev_stream *stream,
                           const struct matmul_args *a, struct cz_plan *p, void *workspace,
                           struct dev_event *begin, struct dev_event *end, double *seconds)
{
    struct device *dev = lt->ops->device;
    *seconds = -1;
    for (int i = 0; i < N_ROUNDS; i++) {
        double one;
        TRY(dev->ops->event_record(dev, begin, stream));
        const cublasStatus_t result = multiply(lt, stream, a, p, workspace);
        if (is_refusal(result)) return CZ_OK;
        LT_TRY(result, "matmul: measuring");
        TRY(dev->ops->event_record(dev, end, stream));
        TRY(dev->ops->event_wait_host(dev, end));
        TRY(dev->ops->event_seconds(dev, begin, end, &one));
        if (*seconds < 0 || one < *seconds) *seconds = one;
    }
    return CZ_OK;
}

static cz_status time_all(struct matmul_lt *lt, struct dev_stream *stream,
                          const struct matmul_args *a, struct cz_plan *p, void *workspace,
                          struct dev_event *begin, struct dev_event *end)
{
    cublasLtMatmulHeuristicResult_t found[MATMUL_N_ALGORITHMS];
    int64_t facts[MATMUL_N_FACTS];
    int n_found, best = 0;
    double seconds, first = 0, least = 0;
    TRY(ask(lt, p, MATMUL_N_ALGORITHMS, found, &n_found));
    for (int i = 0; i < n_found; i++) {
        if (!is_usable(lt, &found[i])) continue;
        adopt(p, &found[i]);
        TRY(time_plan(lt, stream, a, p, workspace, begin, end, &seconds));
        if (i == 0) first = least = seconds;
        if (seconds >= 0 && seconds < least) least = seconds, best = i;
    }
    adopt(p, &found[best]);
    facts_of(&p->key, facts);
    return matmul_choices_add(lt->choices, facts, best, least, first);
}

/* Leaves the quickest algorithm in the plan, and C as it was. */
static cz_status measure(struct matmul_lt *lt, struct dev_stream *stream,
                         const struct matmul_args *a, struct cz_plan *p, void *workspace)
{
    struct device *dev = lt->ops->device;
    const size_t nbytes =
        ((size_t)(a->m - 1) * (size_t)matmul_ldc(a) + (size_t)a->n) * dtype_size(a->c_dtype);
    struct dev_event *begin = NULL, *end = NULL;
    void *before = NULL;
    cz_status st = dev->ops->mem_alloc(dev, nbytes, "a product's result", &before);
    if (st == CZ_OK) st = dev->ops->event_create_timed(dev, &begin);
    if (st == CZ_OK) st = dev->ops->event_create_timed(dev, &end);
    if (st == CZ_OK) st = dev->ops->copy(dev, stream, before, a->c, nbytes);
    if (st == CZ_OK) st = time_all(lt, stream, a, p, workspace, begin, end);
    if (st == CZ_OK) st = dev->ops->copy(dev, stream, a->c, before, nbytes);
    if (st == CZ_OK) st = dev->ops->stream_sync(dev, stream);
    if (begin) dev->ops->event_destroy(dev, begin);
    if (end) dev->ops->event_destroy(dev, end);
    dev->ops->mem_free(dev, before, nbytes);
    return st;
}

/* ---- operands at odd addresses -----------------------------------------------------------------
 */

static size_t extent(int64_t n_rows, int64_t ld, int64_t width, enum cz_dtype dtype)
{
    return (size_t)((n_rows - 1) * ld + width) * dtype_size(dtype);
}

/* Where a tensor is to be instead: itself if it is aligned, or if there is no space. */
static void *aligned_place(const struct ops *ops, size_t *used, const void *p, size_t nbytes)
{
    const size_t at = *used;
    if (!p || alignment(p) == ALIGN_MAX || nbytes > ops->aligned_nbytes ||
        at > ops->aligned_nbytes - nbytes)
        return (void *)(uintptr_t)p;
    *used += size_round_up(nbytes, MATMUL_LT_ALIGN);
    return (char *)ops->aligned + at;
}

/* What a weight, its bias, or the gradients of both may be; what is read arrives in stream order.
 */
static cz_status align_operands(const struct ops *ops, struct dev_stream *stream,
                                const struct matmul_args *a, struct matmul_args *out)
{
    struct device *dev = ops->device;
    const size_t b_nbytes =
        extent(a->trans_b ? a->n : a->k, matmul_ldb(a), a->trans_b ? a->k : a->n, a->dtype);
    const size_t c_nbytes = extent(a->m, matmul_ldc(a), a->n, a->c_dtype);
    const size_t bias_nbytes = (size_t)a->n * dtype_size(a->dtype);
    const bool of_a = a->bias_grad_of == MATMUL_BIAS_GRAD_OF_A;
    const size_t sums_nbytes = (size_t)(of_a ? a->m : a->n) * dtype_size(a->c_dtype);
    const bool reads_c = a->accumulate || a->residual == a->c || matmul_ldc(a) != a->n;
    size_t used = 0;
    *out = *a;
    out->b = aligned_place(ops, &used, a->b, b_nbytes);
    out->c = aligned_place(ops, &used, a->c, c_nbytes);
    out->bias = aligned_place(ops, &used, a->bias, bias_nbytes);
    if (a->bias_grad_of != MATMUL_NO_BIAS_GRAD)
        out->bias_grad = aligned_place(ops, &used, a->bias_grad, sums_nbytes);
    if (a->residual == a->c) out->residual = out->c;
    if (out->b != a->b) TRY(dev->ops->copy(dev, stream, (void *)(uintptr_t)out->b, a->b, b_nbytes));
    if (out->c != a->c && reads_c) TRY(dev->ops->copy(dev, stream, out->c, a->c, c_nbytes));
    if (out->bias != a->bias)
        TRY(dev->ops->copy(dev, stream, (void *)(uintptr_t)out->bias, a->bias, bias_nbytes));
    return CZ_OK;
}

static cz_status bring_back(const struct ops *ops, struct dev_stream *stream,
                            const struct matmul_args *from, const struct matmul_args *a)
{
    struct device *dev = ops->device;
    const bool of_a = a->bias_grad_of == MATMUL_BIAS_GRAD_OF_A;
    if (from->c != a->c)
        TRY(dev->ops->copy(dev, stream, a->c, from->c,
                           extent(a->m, matmul_ldc(a), a->n, a->c_dtype)));
    if (a->bias_grad_of == MATMUL_NO_BIAS_GRAD || from->bias_grad == a->bias_grad) return CZ_OK;
    return dev->ops->copy(dev, stream, a->bias_grad, from->bias_grad,
                          (size_t)(of_a ? a->m : a->n) * dtype_size(a->c_dtype));
}

/* ---- a product --------------------------------------------------------------------------------
 */

static cz_status run_aligned(struct matmul_lt *lt, struct dev_stream *stream,
                             const struct matmul_args *a, uint32_t epilogue, void *workspace,
                             bool *taken)
{
    const struct plan_key key = key_of(a, epilogue, lt->ops->allow_tf32);
    struct cz_plan *p = plan_at(lt, &key);
    TRY(cuda_use(stream));
    if (p->used == 0) {
        TRY(make_plan(lt, &key, a, p));
        if (p->refused) tell(&key, a, "no algorithm");
        if (!p->refused && matmul_choices_measure(lt->choices))
            TRY(measure(lt, stream, a, p, workspace));
    }
    p->used = ++lt->n_calls;
    if (p->refused) return refused(lt, &key);
    TRY(set_pointers(p, a));
    const cublasStatus_t result = multiply(lt, stream, a, p, workspace);
    p->refused = is_refusal(result);
    if (p->refused) {
        tell(&key, a, cublasLtGetStatusString(result));
        return refused(lt, &key);
    }
    LT_TRY(result, "matmul");
    *taken = true;
    return CZ_OK;
}

cz_status matmul_lt_run(struct matmul_lt *lt, struct dev_stream *stream,
                        const struct matmul_args *a, void *workspace, bool *taken)
{
    struct matmul_args product;
    uint32_t epilogue;
    *taken = false;
    if (!dims_fit(a) || !epilogue_of(lt, a, &epilogue)) return CZ_OK;
    TRY(align_operands(lt->ops, stream, a, &product));
    TRY(run_aligned(lt, stream, &product, epilogue, workspace, taken));
    return *taken ? bring_back(lt->ops, stream, &product, a) : CZ_OK;
}
