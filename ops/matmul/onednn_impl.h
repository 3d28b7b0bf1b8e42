/* oneDNN's C interface of version 2 (Debian 12) and 3 (Ubuntu 24.04) under one set of names:
 * version 3 made memory descriptors objects with an end, and puts a product together in one call.
 * The arithmetic is the same. */
#ifndef CZ_OPS_MATMUL_ONEDNN_IMPL_H
#define CZ_OPS_MATMUL_ONEDNN_IMPL_H

#include <oneapi/dnnl/dnnl.h>

#if DNNL_VERSION_MAJOR >= 3
#define ONEDNN_ISA_ALL dnnl_cpu_isa_default
typedef const_dnnl_memory_desc_t onednn_desc_ref; /* as calls take a dnnl_memory_desc_t */

static inline onednn_desc_ref onednn_desc_get(const dnnl_memory_desc_t *desc)
{
    return *desc;
}

static inline dnnl_status_t onednn_desc_init(dnnl_memory_desc_t *desc, const dnnl_dims_t dims,
                                             dnnl_data_type_t type, const dnnl_dims_t strides)
{
    return dnnl_memory_desc_create_with_strides(desc, 2, dims, type, strides);
}

/* Accepts a desc that is all zeros. */
static inline void onednn_desc_free(dnnl_memory_desc_t *desc)
{
    if (*desc) dnnl_memory_desc_destroy(*desc);
}

static inline dnnl_status_t onednn_append_sum(dnnl_post_ops_t post_ops)
{
    return dnnl_post_ops_append_sum(post_ops, 1.0f, 0, dnnl_data_type_undef);
}

/* bias may be NULL. */
static inline dnnl_status_t onednn_matmul_desc(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                               onednn_desc_ref a, onednn_desc_ref b,
                                               onednn_desc_ref bias, onednn_desc_ref c,
                                               const_dnnl_primitive_attr_t attr)
{
    return dnnl_matmul_primitive_desc_create(out, engine, a, b, bias, c, attr);
}

#else
#define ONEDNN_ISA_ALL dnnl_cpu_isa_all
typedef const dnnl_memory_desc_t *onednn_desc_ref;

static inline onednn_desc_ref onednn_desc_get(const dnnl_memory_desc_t *desc)
{
    return desc;
}

static inline dnnl_status_t onednn_desc_init(dnnl_memory_desc_t *desc, const dnnl_dims_t dims,
                                             dnnl_data_type_t type, const dnnl_dims_t strides)
{
    return dnnl_memory_desc_init_by_strides(desc, 2, dims, type, strides);
}

static inline void onednn_desc_free(dnnl_memory_desc_t *desc)
{
    (void)desc;
}

static inline dnnl_status_t onednn_append_sum(dnnl_post_ops_t post_ops)
{
    return dnnl_post_ops_append_sum(post_ops, 1.0f);
}

static inline dnnl_status_t onednn_matmul_desc(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                               onednn_desc_ref a, onednn_desc_ref b,
                                               onednn_desc_ref bias, onednn_desc_ref c,
                                               const_dnnl_primitive_attr_t attr)
{
    dnnl_matmul_desc_t desc;
    dnnl_status_t status = dnnl_matmul_desc_init(&desc, a, b, bias, c);
    if (status != dnnl_success) return status;
    return dnnl_primitive_desc_create(out, &desc, attr, engine, NULL);
}
#endif

#endif
