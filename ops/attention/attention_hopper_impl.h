/* A further row of attention on a GPU, beside those of attention_cuda_impl.h:
 *   hopper  wgmma; bf16 and fp16, widths 64 and 128, no dropout, forward no key mask, 16-byte
 *           alignment; compute capability 9.0 alone, and where CZERO_CUDA_ATTENTION asks for it: no
 *           GPU has run it yet
 * Backward is two passes, dq by blocks of queries and dk, dv by blocks of keys of a key head, which
 * compute p twice. Both need delta of the workspace: the first leaves it to the second.
 *
 * The entry point has checked everything; each of these starts one kernel. */
#ifndef CZ_OPS_ATTENTION_ATTENTION_HOPPER_IMPL_H
#define CZ_OPS_ATTENTION_ATTENTION_HOPPER_IMPL_H

#include "ops/attention/attention_cuda_impl.h"

cz_status attention_hopper_forward(const struct attention_on_gpu *a, enum cz_dtype dtype,
                                   struct dev_stream *stream);
cz_status attention_hopper_backward_q(const struct attention_on_gpu *a, enum cz_dtype dtype,
                                      struct dev_stream *stream);
cz_status attention_hopper_backward_k(const struct attention_on_gpu *a, enum cz_dtype dtype,
                                      struct dev_stream *stream);

#endif
