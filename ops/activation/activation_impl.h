/* What a row of the activations provides. */
#ifndef CZ_OPS_ACTIVATION_ACTIVATION_IMPL_H
#define CZ_OPS_ACTIVATION_ACTIVATION_IMPL_H

#include "ops/activation/activation.h"
#include "ops/ops_impl.h"

struct activation_row {
    struct ops_row row;
    void (*forward)(const struct activation_args *a, size_t begin, size_t end);
    void (*backward)(const struct activation_args *a, size_t begin, size_t end);
    /* Columns [begin, end) of row n. */
    void (*swiglu_forward)(const struct swiglu_args *a, int64_t n, size_t begin, size_t end);
    void (*swiglu_backward)(const struct swiglu_args *a, int64_t n, size_t begin, size_t end);
};

extern const struct activation_row activation_scalar, activation_avx2, activation_avx512;

CZ_EXTERN_C_BEGIN

/* Shared by the entry points of the host and of a GPU. `tensors`: those of this direction are all
 * there. */
cz_status activation_check(const struct activation_args *a, const char *op, bool tensors);
cz_status swiglu_check(const struct swiglu_args *a, const char *op, bool tensors);

CZ_EXTERN_C_END

/* The table, slowest first. */
const struct activation_row *const *activation_rows(size_t *n);

/* Call fn(<constant kind>, …), as DTYPE_CALL does for dtypes. */
#define ACT_BY_KIND(fn, kind, ...)                                                                 \
    do {                                                                                           \
        switch (kind) {                                                                            \
        case ACT_GELU_TANH: fn(ACT_GELU_TANH, __VA_ARGS__); break;                                 \
        case ACT_GELU_ERF: fn(ACT_GELU_ERF, __VA_ARGS__); break;                                   \
        case ACT_SILU: fn(ACT_SILU, __VA_ARGS__); break;                                           \
        case ACT_RELU: fn(ACT_RELU, __VA_ARGS__); break;                                           \
        case ACT_TANH: fn(ACT_TANH, __VA_ARGS__); break;                                           \
        case ACT_QUICK_GELU: fn(ACT_QUICK_GELU, __VA_ARGS__); break;                               \
        case ACT_SIGMOID: fn(ACT_SIGMOID, __VA_ARGS__); break;                                     \
        case ACT_MISH: fn(ACT_MISH, __VA_ARGS__); break;                                           \
        case ACT_RELU2: fn(ACT_RELU2, __VA_ARGS__); break;                                         \
        }                                                                                          \
    } while (0)

#endif
