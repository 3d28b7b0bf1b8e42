/* What the CPU can do, and the environment variable CZERO_ISA that allows less of it. Kernels are
 * chosen by these features once, at start; forcing a lower level makes every variant testable on
 * one machine. */
#include "base/cpu.h"

#include <cpuid.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A cap names the highest feature allowed; each includes those before it. */
static const struct {
    const char *name;
    uint32_t features;
} isa_levels[] = {
    {"scalar", 0},
    {"avx2", CPU_AVX2},
    {"avx512", CPU_AVX2 | CPU_AVX512},
    {"avx512bf16", CPU_AVX2 | CPU_AVX512 | CPU_AVX512BF16},
    {"amx", CPU_AVX2 | CPU_AVX512 | CPU_AVX512BF16 | CPU_AMX},
};

/* Linux 5.16 and later hand out AMX state on request only, before the first tile instruction. A
 * refusal means that the kernel or hypervisor has none. */
static bool amx_permitted(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

static bool amx_bf16_present(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    return (d & (1u << 22)) && (d & (1u << 24)); /* AMX-BF16, AMX-TILE */
}

static bool avx512bf16_present(void)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & (1u << 5));
}

static bool f16c_present(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

uint32_t cpu_features_hardware(void)
{
    /* __builtin_cpu_supports also checks that the OS saves the wide registers (XGETBV). */
    __builtin_cpu_init();
    uint32_t features = 0;
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !f16c_present())
        return features;
    features |= CPU_AVX2;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq"))
        return features;
    features |= CPU_AVX512;
    if (!avx512bf16_present()) return features;
    features |= CPU_AVX512BF16;
    if (amx_bf16_present() && amx_permitted()) features |= CPU_AMX;
    return features;
}

static int isa_level_find(const char *name)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(isa_levels); i++)
        if (strcasecmp(isa_levels[i].name, name) == 0) return (int)i;
    return -1;
}

/* An unknown CZERO_ISA changes nothing here; cpu_isa_check() reports it. */
uint32_t cpu_features(void)
{
    /* Written with the same value by every thread that races here; atomics keep that defined. */
    static uint32_t cached;
    static bool known;
    if (__atomic_load_n(&known, __ATOMIC_ACQUIRE))
        return __atomic_load_n(&cached, __ATOMIC_RELAXED);
    uint32_t features = cpu_features_hardware();
    const char *cap = getenv("CZERO_ISA");
    int level = cap ? isa_level_find(cap) : -1;
    if (level >= 0) features &= isa_levels[level].features;
    __atomic_store_n(&cached, features, __ATOMIC_RELAXED);
    __atomic_store_n(&known, true, __ATOMIC_RELEASE);
    return features;
}

/* Asking for more than the CPU has is refused: a benchmark of "avx512" that ran something else
 * would be worse than none. */
cz_status cpu_isa_check(void)
{
    const char *cap = getenv("CZERO_ISA");
    if (!cap || !*cap) return CZ_OK;
    int level = isa_level_find(cap);
    if (level < 0)
        return err_set(CZ_INVALID, 0,
                       "CZERO_ISA=%s: use one of scalar, avx2, avx512, avx512bf16, amx", cap);
    if ((cpu_features_hardware() & isa_levels[level].features) != isa_levels[level].features)
        return err_set(CZ_INVALID, 0, "CZERO_ISA=%s: this CPU (%s) does not have it", cap,
                       cpu_model_name());
    return CZ_OK;
}

const char *cpu_isa_name(void)
{
    uint32_t features = cpu_features();
    for (size_t i = CZ_ARRAY_LEN(isa_levels); i-- > 1;)
        if ((features & isa_levels[i].features) == isa_levels[i].features)
            return isa_levels[i].name;
    return isa_levels[0].name;
}

bool cpu_is_amd(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(0, &a, &b, &c, &d) && b == signature_AMD_ebx && c == signature_AMD_ecx &&
           d == signature_AMD_edx;
}

const char *cpu_model_name(void)
{
    static _Thread_local char name[49];
    unsigned r[12];
    for (unsigned i = 0; i < 3; i++)
        if (!__get_cpuid(0x80000002u + i, &r[4 * i], &r[4 * i + 1], &r[4 * i + 2], &r[4 * i + 3]))
            return "unknown CPU";
    memcpy(name, r, sizeof r);
    name[48] = '\0';
    size_t len = strlen(name);
    while (len > 0 && name[len - 1] == ' ') name[--len] = '\0';
    return name + strspn(name, " ");
}

/* The largest cache of the first CPU, from sysfs. 0: unknown. */
size_t cpu_llc_nbytes(void)
{
    size_t largest = 0;
    for (int idx = 0; idx < 8; idx++) {
        char path[96];
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", idx);
        FILE *f = fopen(path, "re");
        if (!f) break;
        size_t kib = 0;
        if (fscanf(f, "%zuK", &kib) == 1 && kib * 1024 > largest) largest = kib * 1024;
        fclose(f);
    }
    return largest;
}
