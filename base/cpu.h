/* What this CPU can run, capped by the environment.
 *
 * CZERO_ISA=scalar|avx2|avx512|avx512bf16|amx caps the kernels that are chosen (default: all the
 * CPU and the operating system support). Every row table selects with cpu_features(). */
#ifndef CZ_BASE_CPU_H
#define CZ_BASE_CPU_H

#include "base/status.h"

CZ_EXTERN_C_BEGIN

enum cpu_feature {
    CPU_AVX2 = 1 << 0,       /* AVX2 with FMA and F16C: the three come together */
    CPU_AVX512 = 1 << 1,     /* AVX-512 F, BW, VL and DQ */
    CPU_AVX512BF16 = 1 << 2, /* AVX512_BF16 on top of CPU_AVX512 */
    CPU_AMX = 1 << 3         /* AMX tiles with bf16, enabled by the operating system */
};

/* Bits of `enum cpu_feature` that may be used, after the CZERO_ISA cap. Probed once, thread-safe.
 */
uint32_t cpu_features(void);

/* The same before the cap: what the machine has. */
uint32_t cpu_features_hardware(void);

/* Validate CZERO_ISA: CZ_INVALID with a sentence that lists the names when it is none of them, or
 * names an ISA this CPU lacks. */
cz_status cpu_isa_check(void);

/* Name of the highest feature in use: "scalar", "avx2", "avx512", "avx512bf16", "amx". */
const char *cpu_isa_name(void);

/* True on CPUs by AMD, where AVX512_BF16 doubles the fp32 rate (on Intel's it does not). */
bool cpu_is_amd(void);

/* "AMD EPYC …" from cpuid, or "unknown CPU". Thread-safe. */
const char *cpu_model_name(void);

/* Bytes of the last-level cache seen by one core (from sysfs), or 0 when unknown. */
size_t cpu_llc_nbytes(void);

CZ_EXTERN_C_END
#endif
