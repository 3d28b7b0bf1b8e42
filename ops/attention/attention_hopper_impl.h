/* A further row of attention on a GPU, beside those of attention_cuda_impl.h:
 *   hopper  wgmma and copies by tensor maps; bf16 and fp16, widths 64 and 128, no dropout or key
 *           mask, 16-byte alignment; compute capability 9.0 alone, and where CZERO_CUDA_ATTENTION
 *           asks for it: no GPU has run it yet
 * Backward is the flash row's delta and a pass by blocks of keys, with its workspace for tiles of
 * 64 queries.
 *
 * The entry point has checked everything; each of these starts one or two kernels. */
#ifndef CZ_OPS_ATTENTION_ATTENTION_HOPPER_IMPL_H
#define CZ_OPS_ATTENTION_ATTENTION_HOPPER_IMPL_H

#include "ops/attention/attention_cuda_impl.h"

cz_status attention_hopper_forward(const struct attention_on_gpu *a, enum cz_dtype dtype,
                                   struct dev_stream *stream);
cz_status attention_hopper_backward(const struct attention_on_gpu *a, enum cz_dtype dtype,
                                    struct dev_stream *stream);

#endif
