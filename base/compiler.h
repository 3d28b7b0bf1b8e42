/* The one place where the compiler and the language dialect show. */
#ifndef CZ_BASE_COMPILER_H
#define CZ_BASE_COMPILER_H

#include <czero/status.h> /* CZ_EXTERN_C_BEGIN, CZ_PRINTF */

#define CZ_UNUSED       __attribute__((unused))
#define CZ_ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

/* Arithmetic that host rows and CUDA kernels share: `static CZ_KERNEL_FN …`. */
#ifdef __CUDACC__
#define CZ_KERNEL_FN __host__ __device__ __forceinline__
#else
#define CZ_KERNEL_FN inline
#endif

/* Inside a loop that waits for another core: lets a sibling thread run, saves power. */
#if defined(__x86_64__) || defined(__i386__)
#define CZ_CPU_RELAX() __builtin_ia32_pause()
#else
#define CZ_CPU_RELAX() ((void)0)
#endif

/* Memory poisoning for red zones between arena pieces; nothing without AddressSanitizer. */
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define CZ_POISON(p, n)   __asan_poison_memory_region((p), (n))
#define CZ_UNPOISON(p, n) __asan_unpoison_memory_region((p), (n))
#else
#define CZ_POISON(p, n)   ((void)(p), (void)(n))
#define CZ_UNPOISON(p, n) ((void)(p), (void)(n))
#endif

#endif
