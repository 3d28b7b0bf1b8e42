/* The stand-in of cuBLASLt: the calls that ops/matmul/matmul_lt_cuda.cu makes.
 *
 * Descriptions are checked as the documentation states its rules, when a product is asked for and
 * again when its algorithm is chosen; what breaks one loses the device with a sentence (hardware
 * would give wrong numbers, or CUBLAS_STATUS_INVALID_VALUE, which callers may take for "choose
 * another way"). An algorithm remembers what it was chosen for. Products are summed in double, and
 * the workspace that an algorithm asked for is scribbled over.
 *
 * CZERO_CUDA_SIM_CUBLASLT=none: no product is supported; =plain: none that does more than multiply
 * and add; =late: the same, but only the product itself is refused, not the choice of its
 * algorithm; =keyed: another algorithm rounds otherwise, so that what depends on shapes, alignments
 * or epilogues where it should not shows in the bits. */
#include "sim_runtime.h"

#include "base/dtype.h"

#include <cublasLt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ALIGN_WORKSPACE 256
#define AUX_ALIGN       16
#define MAGIC_DESC      0x6d61746d756cu
#define MAGIC_LAYOUT    0x6c61796f7574u
#define MAGIC_PREF      0x7072656665720u
#define MAGIC_ALGO      0x616c676fu

struct cublasLtContext {
    bool alive, plain, none, late, keyed;
    int device;
};

namespace {

struct desc {
    uint64_t magic;
    cublasComputeType_t compute;
    cudaDataType_t scale;
    int32_t trans_a, trans_b;
    uint32_t epilogue;
    void *bias, *aux;
    int64_t aux_ld;
};

struct layout {
    uint64_t magic;
    cudaDataType_t type;
    uint64_t rows, cols;
    int64_t ld;
};

struct preference {
    uint64_t magic;
    uint64_t workspace_nbytes;
    uint32_t reduction;
    uint32_t align[4]; /* A, B, C, D */
};

/* What an algorithm may be used for. */
struct algo {
    uint64_t magic;
    uint64_t kind; /* of the product: a hash */
    uint64_t workspace_nbytes;
    uint32_t align[4];
    uint32_t align_bias, align_aux;
};

static_assert(sizeof(desc) <= sizeof(cublasLtMatmulDescOpaque_t), "");
static_assert(sizeof(layout) <= sizeof(cublasLtMatrixLayoutOpaque_t), "");
static_assert(sizeof(preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t), "");
static_assert(sizeof(algo) <= sizeof(cublasLtMatmulAlgo_t), "");

/* One product, its pointers too. */
struct product {
    desc d;
    layout a, b, c;
    const void *A, *B, *C;
    void *D;
    bool beta;
    uint64_t m, n, k;
    double skew; /* what sums are multiplied with */
    void *workspace;
    size_t workspace_nbytes;
};

template <class T, class Opaque> T &as(Opaque *opaque)
{
    return *reinterpret_cast<T *>(opaque);
}

#define REFUSE(...)                                                                                \
    do {                                                                                           \
        sim_lose(cudaErrorInvalidValue, "cublasLt: " __VA_ARGS__);                                 \
        return CUBLAS_STATUS_INVALID_VALUE;                                                        \
    } while (0)
#define CHECK(ok, ...)                                                                             \
    do {                                                                                           \
        if (!(ok)) REFUSE(__VA_ARGS__);                                                            \
    } while (0)
#define TRY_CHECK(call)                                                                            \
    do {                                                                                           \
        cublasStatus_t result_ = (call);                                                           \
        if (result_ != CUBLAS_STATUS_SUCCESS) return result_;                                      \
    } while (0)

enum cz_dtype dtype_of(cudaDataType_t type)
{
    return type == CUDA_R_16BF ? DTYPE_BF16 : type == CUDA_R_16F ? DTYPE_F16 : DTYPE_F32;
}

bool is_known(cudaDataType_t type)
{
    return type == CUDA_R_16BF || type == CUDA_R_16F || type == CUDA_R_32F;
}

size_t unit(cudaDataType_t type)
{
    return type == CUDA_R_32F ? 4 : 2;
}

/* Bytes from the first element to behind the last. */
size_t extent(const layout &l)
{
    return ((size_t)(l.cols - 1) * (size_t)l.ld + l.rows) * unit(l.type);
}

bool is_bias(uint32_t e)
{
    return e == CUBLASLT_EPILOGUE_BIAS || e == CUBLASLT_EPILOGUE_GELU_BIAS ||
           e == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}
bool is_gelu(uint32_t e)
{
    return e == CUBLASLT_EPILOGUE_GELU || e == CUBLASLT_EPILOGUE_GELU_BIAS ||
           e == CUBLASLT_EPILOGUE_GELU_AUX || e == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}
bool is_aux(uint32_t e)
{
    return e == CUBLASLT_EPILOGUE_GELU_AUX || e == CUBLASLT_EPILOGUE_GELU_AUX_BIAS ||
           e == CUBLASLT_EPILOGUE_DGELU;
}
bool is_bgrad(uint32_t e)
{
    return e == CUBLASLT_EPILOGUE_BGRADA || e == CUBLASLT_EPILOGUE_BGRADB;
}
bool has_vector(uint32_t e)
{
    return is_bias(e) || is_bgrad(e);
}

uint32_t alignment(const void *p)
{
    uintptr_t at = (uintptr_t)p;
    return at % 256 == 0 ? 256 : (uint32_t)(at & (~at + 1));
}

/* ---- checks ---- */

cublasStatus_t check_layout(const layout &l, const char *what)
{
    CHECK(l.magic == MAGIC_LAYOUT, "the layout of %s was not initialised", what);
    CHECK(is_known(l.type), "%s is of type %d, which this stand-in does not know", what, l.type);
    CHECK(l.rows > 0 && l.cols > 0, "%s has %llu rows and %llu columns", what,
          (unsigned long long)l.rows, (unsigned long long)l.cols);
    CHECK(l.rows <= INT32_MAX && l.cols <= INT32_MAX && l.ld <= INT32_MAX,
          "%s is larger than 2^31 - 1 one way", what);
    CHECK(l.ld >= (int64_t)l.rows, "ld %lld of %s is less than its %llu rows", (long long)l.ld,
          what, (unsigned long long)l.rows);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check_types(const product &p)
{
    CHECK(p.d.magic == MAGIC_DESC, "the product's descriptor was not initialised");
    CHECK(p.d.scale == CUDA_R_32F, "the scale type of fp32 sums is fp32");
    CHECK(p.a.type == p.b.type, "A and B are of two types");
    CHECK(p.c.type == p.a.type || p.c.type == CUDA_R_32F, "D is neither of A's type nor fp32");
    CHECK(p.d.compute == CUBLAS_COMPUTE_32F ||
              (p.d.compute == CUBLAS_COMPUTE_32F_FAST_TF32 && p.a.type == CUDA_R_32F),
          "compute type %d does not go with these matrices", p.d.compute);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check_epilogue(const product &p)
{
    const uint32_t e = p.d.epilogue;
    CHECK(e == CUBLASLT_EPILOGUE_DEFAULT || is_bias(e) || is_gelu(e) || is_aux(e) || is_bgrad(e),
          "epilogue %u is unknown to this stand-in", e);
    CHECK(!has_vector(e) || p.d.bias, "epilogue %u without a bias pointer", e);
    CHECK(!is_bias(e) || p.c.type == p.a.type, "a bias has D's type, fp32, which czero never uses");
    if (!is_aux(e)) return CUBLAS_STATUS_SUCCESS;
    CHECK(p.d.aux, "epilogue %u without its aux", e);
    CHECK(p.d.aux_ld % 8 == 0 && p.d.aux_ld >= (int64_t)p.c.rows,
          "the aux' leading dimension is %lld for %llu rows: a multiple of 8 of at least that",
          (long long)p.d.aux_ld, (unsigned long long)p.c.rows);
    CHECK(alignment(p.d.aux) >= AUX_ALIGN, "the aux is aligned to %u bytes", alignment(p.d.aux));
    CHECK(p.c.type == p.a.type, "activations are in D's type, which must be A's");
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check_shapes(product *p)
{
    const bool ta = p->d.trans_a == CUBLAS_OP_T, tb = p->d.trans_b == CUBLAS_OP_T;
    TRY_CHECK(check_layout(p->a, "A"));
    TRY_CHECK(check_layout(p->b, "B"));
    TRY_CHECK(check_layout(p->c, "D"));
    p->m = p->c.rows, p->n = p->c.cols;
    p->k = ta ? p->a.rows : p->a.cols;
    CHECK((ta ? p->a.cols : p->a.rows) == p->m, "op(A) has not as many rows as D");
    CHECK((tb ? p->b.rows : p->b.cols) == p->n, "op(B) has not as many columns as D");
    CHECK((tb ? p->b.cols : p->b.rows) == p->k, "op(A) and op(B) have different k");
    TRY_CHECK(check_types(*p));
    return check_epilogue(*p);
}

uint64_t mix(uint64_t h, uint64_t x)
{
    h = (h ^ x) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

/* What an algorithm is chosen for, but for addresses. */
uint64_t kind_of(const product &p)
{
    const uint64_t facts[] = {p.m,
                              p.n,
                              p.k,
                              (uint64_t)p.a.ld,
                              (uint64_t)p.b.ld,
                              (uint64_t)p.c.ld,
                              (uint64_t)p.a.type,
                              (uint64_t)p.c.type,
                              (uint64_t)p.d.trans_a,
                              (uint64_t)p.d.trans_b,
                              (uint64_t)p.d.compute,
                              p.d.epilogue,
                              is_aux(p.d.epilogue) ? (uint64_t)p.d.aux_ld : 0};
    uint64_t h = 1;
    for (uint64_t fact : facts) h = mix(h, fact);
    return h;
}

/* Of an algorithm that is for these matrices and alignments: 1 ± 2⁻²⁰. */
double skew_of(const algo &x)
{
    uint64_t h = mix(x.kind, x.workspace_nbytes);
    for (uint32_t align : x.align) h = mix(h, align);
    h = mix(mix(h, x.align_bias), x.align_aux);
    return 1 + ((double)(h >> 40) / (1 << 23) - 1) / (1 << 20);
}

size_t vector_numel(const product &p)
{
    return p.d.epilogue == CUBLASLT_EPILOGUE_BGRADB ? p.n : p.m;
}

bool overlap(const void *a, size_t n, const void *b, size_t m)
{
    return (uintptr_t)a < (uintptr_t)b + m && (uintptr_t)b < (uintptr_t)a + n;
}

cublasStatus_t check_memory(const product &p)
{
    const size_t vector = vector_numel(p) * unit(p.c.type);
    const size_t aux = ((size_t)(p.n - 1) * (size_t)p.d.aux_ld + p.m) * unit(p.c.type);
    const size_t d = extent(p.c);
    CHECK(sim_device_range(p.A, extent(p.a)), "A: %s", sim_memory_describe(p.A).c_str());
    CHECK(sim_device_range(p.B, extent(p.b)), "B: %s", sim_memory_describe(p.B).c_str());
    CHECK(sim_device_range(p.D, d), "D: %s", sim_memory_describe(p.D).c_str());
    CHECK(!p.beta || sim_device_range(p.C, d), "C: %s", sim_memory_describe(p.C).c_str());
    CHECK(!p.beta || p.C == p.D || !overlap(p.D, d, p.C, d), "D overlaps C, which is not in place");
    CHECK(!overlap(p.D, d, p.A, extent(p.a)) && !overlap(p.D, d, p.B, extent(p.b)),
          "D overlaps an operand");
    if (has_vector(p.d.epilogue)) {
        CHECK(sim_device_range(p.d.bias, vector), "bias: %s",
              sim_memory_describe(p.d.bias).c_str());
        CHECK(!overlap(p.D, d, p.d.bias, vector), "D overlaps the bias");
    }
    if (is_aux(p.d.epilogue)) {
        CHECK(sim_device_range(p.d.aux, aux), "aux: %s", sim_memory_describe(p.d.aux).c_str());
        CHECK(!overlap(p.D, d, p.d.aux, aux), "D overlaps the aux");
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check_algo(const algo &x, const product &p)
{
    CHECK(x.magic == MAGIC_ALGO, "the algorithm does not come from the heuristics");
    CHECK(x.kind == kind_of(p), "the algorithm was chosen for another product");
    CHECK(alignment(p.A) >= x.align[0] && alignment(p.B) >= x.align[1] &&
              alignment(p.C) >= x.align[2] && alignment(p.D) >= x.align[3],
          "a matrix is not aligned as it was when the algorithm was chosen");
    CHECK(!has_vector(p.d.epilogue) || alignment(p.d.bias) >= x.align_bias,
          "the bias is not aligned as it was when the algorithm was chosen");
    CHECK(!is_aux(p.d.epilogue) || alignment(p.d.aux) >= x.align_aux,
          "the aux is not aligned as it was when the algorithm was chosen");
    if (x.workspace_nbytes == 0) return CUBLAS_STATUS_SUCCESS;
    CHECK(p.workspace_nbytes >= x.workspace_nbytes, "workspace of %zu bytes given, %zu needed",
          p.workspace_nbytes, (size_t)x.workspace_nbytes);
    CHECK(sim_device_range(p.workspace, p.workspace_nbytes), "workspace: %s",
          sim_memory_describe(p.workspace).c_str());
    CHECK((uintptr_t)p.workspace % ALIGN_WORKSPACE == 0, "the workspace is not aligned");
    CHECK(!overlap(p.workspace, p.workspace_nbytes, p.A, extent(p.a)) &&
              !overlap(p.workspace, p.workspace_nbytes, p.B, extent(p.b)) &&
              !overlap(p.workspace, p.workspace_nbytes, p.D, extent(p.c)),
          "the workspace overlaps a matrix");
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- the product ---- */

double gelu(double x)
{
    return 0.5 * x * (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
}

double gelu_slope(double x)
{
    const double t = tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x));
    const double du = 0.79788456080286535588 * (1 + 3 * 0.044715 * x * x);
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * du;
}

/* To ten bits of mantissa, nearest. */
float to_tf32(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7f800000) != 0x7f800000) bits = (bits + 0x1000) & ~(uint32_t)0x1fff;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* op(X) as (lines, k), a line along k next to the other. */
std::vector<float> unpack(const void *x, const layout &l, bool lines_are_columns, bool tf32)
{
    const enum cz_dtype dtype = dtype_of(l.type);
    const size_t lines = lines_are_columns ? l.cols : l.rows;
    const size_t k = lines_are_columns ? l.rows : l.cols, ld = (size_t)l.ld;
    std::vector<float> out(lines * k);
    for (size_t i = 0; i < lines; i++)
        for (size_t j = 0; j < k; j++)
            out[i * k + j] = dtype_get(x, lines_are_columns ? i * ld + j : j * ld + i, dtype);
    if (tf32)
        for (float &y : out) y = to_tf32(y);
    return out;
}

/* Sums of the lines of one operand. */
void put_bias_gradient(const product &p, const std::vector<float> &x)
{
    for (size_t i = 0; i < vector_numel(p); i++) {
        double sum = 0;
        for (size_t l = 0; l < p.k; l++) sum += (double)x[i * p.k + l];
        dtype_put(p.d.bias, i, dtype_of(p.c.type), (float)sum);
    }
}

void put(const product &p, size_t i, size_t j, double sum)
{
    const enum cz_dtype dtype = dtype_of(p.c.type);
    const uint32_t e = p.d.epilogue;
    const size_t at = j * (size_t)p.c.ld + i, aux = j * (size_t)p.d.aux_ld + i;
    if (p.beta) sum += (double)dtype_get(p.C, at, dtype);
    if (is_bias(e)) sum += (double)dtype_get(p.d.bias, i, dtype);
    if (is_gelu(e)) {
        if (is_aux(e)) dtype_put(p.d.aux, aux, dtype, (float)sum);
        sum = gelu(sum);
    }
    if (e == CUBLASLT_EPILOGUE_DGELU) sum *= gelu_slope((double)dtype_get(p.d.aux, aux, dtype));
    dtype_put(p.D, at, dtype, (float)sum);
}

/* Its two ends: quick, and where it may overlap something. */
void scribble(void *workspace, size_t nbytes)
{
    const size_t end = nbytes < 65536 ? nbytes : 65536;
    memset(workspace, 0xFF, end);
    memset((char *)workspace + nbytes - end, 0xFF, end);
}

typedef double four __attribute__((vector_size(32)));

inline four four_of(const float *x)
{
    return four{x[0], x[1], x[2], x[3]};
}

/* out[r] = x[r] · y, of R lines of k each; however many there are, each is added up the same way.
 */
template <size_t R> void dots(double *out, const float *x, const float *y, size_t k)
{
    four sums[R] = {};
    size_t l = 0;
    for (; l + 4 <= k; l += 4)
        for (size_t r = 0; r < R; r++) sums[r] += four_of(&x[r * k + l]) * four_of(&y[l]);
    for (; l < k; l++)
        for (size_t r = 0; r < R; r++) sums[r][0] += (double)x[r * k + l] * (double)y[l];
    for (size_t r = 0; r < R; r++) out[r] = (sums[r][0] + sums[r][1]) + (sums[r][2] + sums[r][3]);
}

void run(void *context)
{
    const product &p = *(product *)context;
    scribble(p.workspace, p.workspace_nbytes);
    const bool tf32 = p.d.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    const std::vector<float> a = unpack(p.A, p.a, p.d.trans_a == CUBLAS_OP_T, tf32);
    const std::vector<float> b = unpack(p.B, p.b, p.d.trans_b == CUBLAS_OP_N, tf32);
    for (size_t j = 0; j < p.n; j++) {
        const float *y = &b[j * p.k];
        size_t i = 0;
        for (; i + 4 <= p.m; i += 4) { /* four at a time, so that no sum waits for itself */
            double sums[4];
            dots<4>(sums, &a[i * p.k], y, p.k);
            for (size_t u = 0; u < 4; u++) put(p, i + u, j, p.skew * sums[u]);
        }
        for (; i < p.m; i++) {
            double sum;
            dots<1>(&sum, &a[i * p.k], y, p.k);
            put(p, i, j, p.skew * sum);
        }
    }
    if (is_bgrad(p.d.epilogue))
        put_bias_gradient(p, p.d.epilogue == CUBLASLT_EPILOGUE_BGRADA ? a : b);
}

void discard(void *context)
{
    delete (product *)context;
}

bool supported(const cublasLtContext *handle, const product &p)
{
    if (handle->none) return false;
    /* sums of A's rows come of A as it is stored, those of B's columns of B transposed */
    if (p.d.epilogue == CUBLASLT_EPILOGUE_BGRADA && p.d.trans_a == CUBLAS_OP_T) return false;
    if (p.d.epilogue == CUBLASLT_EPILOGUE_BGRADB && p.d.trans_b == CUBLAS_OP_N) return false;
    return !handle->plain || p.d.epilogue == CUBLASLT_EPILOGUE_DEFAULT;
}

} // namespace

/* ---- calls ---- */

cublasStatus_t cublasLtCreate(cublasLtHandle_t *out)
{
    sim_enter entered;
    if (entered.error != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
    const char *mode = getenv("CZERO_CUDA_SIM_CUBLASLT");
    if (sim_no_context(__func__) != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
    auto is = [mode](const char *word) { return mode && !strcmp(mode, word); };
    *out =
        new cublasLtContext{true, is("plain"), is("none"), is("late"), is("keyed"), sim_device()};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion(void)
{
    return 130000;
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "success";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "the library was not initialized";
    case CUBLAS_STATUS_INVALID_VALUE: return "an unsupported value or parameter was passed";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "the functionality is not supported";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "the program failed to execute";
    default: return "unknown";
    }
}

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t out, size_t size,
                                                 cudaDataType type, uint64_t rows, uint64_t cols,
                                                 int64_t ld)
{
    if (size < sizeof(layout)) return CUBLAS_STATUS_ALLOC_FAILED;
    as<layout>(out) = {MAGIC_LAYOUT, type, rows, cols, ld};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t out, size_t size,
                                               cublasComputeType_t compute, cudaDataType_t scale)
{
    if (size < sizeof(desc)) return CUBLAS_STATUS_ALLOC_FAILED;
    as<desc>(out) = {MAGIC_DESC,  compute,     scale,
                     CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT,
                     nullptr,     nullptr,     0};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t out,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t nbytes)
{
    desc &d = as<desc>(out);
    CHECK(value && d.magic == MAGIC_DESC, "an attribute of no descriptor");
#define FIELD(name, field)                                                                         \
    case name:                                                                                     \
        CHECK(nbytes == sizeof d.field, #name " has %zu bytes", sizeof d.field);                   \
        memcpy(&d.field, value, nbytes);                                                           \
        return CUBLAS_STATUS_SUCCESS
    switch (attribute) {
        FIELD(CUBLASLT_MATMUL_DESC_TRANSA, trans_a);
        FIELD(CUBLASLT_MATMUL_DESC_TRANSB, trans_b);
        FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
        FIELD(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
        FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux);
        FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, aux_ld);
    default: REFUSE("attribute %d of a product is unknown to this stand-in", (int)attribute);
    }
#undef FIELD
}

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t out, size_t size)
{
    if (size < sizeof(preference)) return CUBLAS_STATUS_ALLOC_FAILED;
    as<preference>(out) = {MAGIC_PREF, 0, CUBLASLT_REDUCTION_SCHEME_MASK, {256, 256, 256, 256}};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t out,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t nbytes)
{
    preference &f = as<preference>(out);
    CHECK(value && f.magic == MAGIC_PREF, "an attribute of no preference");
#define FIELD(name, field)                                                                         \
    case name:                                                                                     \
        CHECK(nbytes == sizeof f.field, #name " has %zu bytes", sizeof f.field);                   \
        memcpy(&f.field, value, nbytes);                                                           \
        return CUBLAS_STATUS_SUCCESS
    switch (attribute) {
        FIELD(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_nbytes);
        FIELD(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reduction);
        FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, align[0]);
        FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, align[1]);
        FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, align[2]);
        FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, align[3]);
    default: REFUSE("attribute %d of a preference is unknown to this stand-in", (int)attribute);
    }
#undef FIELD
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t d,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t c,
                                              cublasLtMatmulPreference_t pref, int n_wanted,
                                              cublasLtMatmulHeuristicResult_t *found, int *n_found)
{
    sim_enter entered;
    if (entered.error != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
    const preference &f = as<preference>(pref);
    product p = {};
    p.d = as<desc>(d), p.a = as<layout>(a), p.b = as<layout>(b), p.c = as<layout>(c);
    *n_found = 0;
    CHECK(handle && handle->alive && n_wanted >= 1, "heuristics without a handle");
    CHECK(f.magic == MAGIC_PREF, "the preference was not initialised");
    CHECK(!(f.reduction &
            (CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE)),
          "partial sums may be rounded to D's type");
    for (uint32_t align : f.align)
        CHECK(align > 0 && (align & (align - 1)) == 0, "an alignment of %u bytes", align);
    TRY_CHECK(check_shapes(&p));
    if (!supported(handle, p)) return CUBLAS_STATUS_NOT_SUPPORTED;
    memset(found, 0, sizeof *found);
    algo x = {MAGIC_ALGO, kind_of(p), 0, {}, alignment(p.d.bias), alignment(p.d.aux)};
    /* some algorithms work without, others take as much as they may */
    x.workspace_nbytes = (p.m + p.n + p.k) % 3 == 0 ? 0 : f.workspace_nbytes;
    if (x.align_bias > 16) x.align_bias = 16;
    if (x.align_aux > 16) x.align_aux = 16;
    memcpy(x.align, f.align, sizeof x.align);
    as<algo>(&found->algo) = x;
    found->workspaceSize = x.workspace_nbytes;
    found->state = CUBLAS_STATUS_SUCCESS;
    *n_found = n_wanted < 3 ? n_wanted : 3;
    for (int i = 1; i < *n_found; i++) { /* one that is not to be had, and one without workspace */
        found[i] = found[0];
        x.workspace_nbytes = 0;
        as<algo>(&found[i].algo) = x;
        found[i].workspaceSize = 0;
        found[i].state = i == 1 ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t d, const void *alpha,
                              const void *A, cublasLtMatrixLayout_t a, const void *B,
                              cublasLtMatrixLayout_t b, const void *beta, const void *C,
                              cublasLtMatrixLayout_t c, void *D, cublasLtMatrixLayout_t e,
                              const cublasLtMatmulAlgo_t *chosen, void *workspace,
                              size_t workspace_nbytes, cudaStream_t stream)
{
    sim_enter entered;
    if (entered.error != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
    product p = {};
    p.d = as<desc>(d), p.a = as<layout>(a), p.b = as<layout>(b), p.c = as<layout>(e);
    p.A = A, p.B = B, p.C = C, p.D = D;
    const float alpha_value = *(const float *)alpha, beta_value = *(const float *)beta;
    CHECK(handle && handle->alive, "a product without a handle");
    CHECK(handle->device == sim_device(), "a handle of device %d while device %d is selected",
          handle->device, sim_device());
    if (handle->late && as<desc>(d).epilogue != CUBLASLT_EPILOGUE_DEFAULT)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    CHECK(alpha_value == 1 && (beta_value == 0 || beta_value == 1),
          "alpha %g and beta %g: this stand-in knows 1, and 0 or 1", (double)alpha_value,
          (double)beta_value);
    p.beta = beta_value == 1;
    p.workspace = workspace, p.workspace_nbytes = workspace_nbytes;
    TRY_CHECK(check_shapes(&p));
    CHECK(as<layout>(c).ld == p.c.ld && as<layout>(c).type == p.c.type,
          "C and D are stored in two ways");
    TRY_CHECK(check_memory(p));
    algo x;
    memcpy(&x, chosen, sizeof x);
    TRY_CHECK(check_algo(x, p));
    p.workspace_nbytes = x.workspace_nbytes;
    p.skew = handle->keyed ? skew_of(x) : 1;
    cudaError_t result = sim_library_queue(stream, "cublasLtMatmul", 2 * p.m * p.n * p.k, run,
                                           discard, new product(p));
    return result == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
