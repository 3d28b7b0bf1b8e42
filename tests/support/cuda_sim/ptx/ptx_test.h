/* For tests of the PTX interpreter: kernels given as text. C and C++. */
#ifndef CZ_TESTS_PTX_TEST_H
#define CZ_TESTS_PTX_TEST_H

#include <cuda_runtime_api.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ptx_argument {
    const void *value;
    size_t nbytes;
};

/* Launch an entry of a module like any other kernel; its text must last, and parameters are copied
 * by the call. cudaErrorInvalidDeviceFunction, with a sentence: the text is not understood, or has
 * no such entry. */
cudaError_t ptx_launch_text(const char *text, const char *entry, dim3 grid, dim3 block,
                            size_t shared_nbytes, cudaStream_t stream,
                            const struct ptx_argument *arguments, int n_arguments);

#ifdef __cplusplus
}
#endif
#endif
