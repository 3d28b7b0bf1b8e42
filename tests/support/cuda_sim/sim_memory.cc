/* Device memory and pinned memory of the simulated runtime.
 *
 * Device memory is cut from one reserved region near SIM_REGION_BASE (addresses 0x3000'0000'0000…).
 * It can be touched only while queued work runs: host code that dereferences a device pointer dies
 * of SIGSEGV. Addresses are not used twice, so a freed one stays dead. An allocation ends within
 * ALIGN_NBYTES of an unmapped page; the bytes up to there, and those before its start, must keep
 * their pattern until it is freed. What is fresh is filled with 0xFF: NaNs, indices of -1. */
#include "ptx_kernels.h"
#include "sim_runtime.h"

#include <map>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

#define GRAIN_NBYTES ((size_t)2 << 20) /* what an allocation takes of the device's memory */
#define PAGE_NBYTES  ((size_t)4096)
#define ALIGN_NBYTES ((size_t)256)
#define HUGE_FROM    ((size_t)128 << 10) /* in huge pages, which change their protection faster */
#define PATTERN      0xFF

namespace {

struct allocation {
    size_t nbytes; /* asked for */
    char *map;     /* mapped pages */
    size_t map_nbytes;
    int device;
    bool open; /* the CPU may touch it */
    allocation *next_open;
};

struct registration {
    size_t nbytes;
    bool owned; /* by cudaHostAlloc */
};

std::map<uintptr_t, allocation> allocations;
std::map<uintptr_t, allocation> freed; /* for sentences */
std::map<uintptr_t, registration> pinned;
char *region;
size_t region_used, used_nbytes[SIM_DEVICES_MAX];
allocation *opened; /* chain */
enum sim_memory_view view;
uint64_t n_mallocs, n_host_allocs;

size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

bool reserve()
{
    if (region) return true;
    void *map = mmap((void *)SIM_REGION_BASE, SIM_REGION_NBYTES, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    region = map == MAP_FAILED ? nullptr : (char *)map;
    sim_faults_catch();
    return region != nullptr;
}

/* The registration or allocation that holds an address: the last that begins at or before it. */
template <class M> typename M::iterator holder(M &ranges, const void *p)
{
    auto at = ranges.upper_bound((uintptr_t)p);
    if (at == ranges.begin()) return ranges.end();
    --at;
    return (uintptr_t)p - at->first <= at->second.nbytes ? at : ranges.end();
}

template <class M> bool whole_range(M &ranges, const void *p, size_t n)
{
    auto at = holder(ranges, p);
    if (at == ranges.end()) return false;
    size_t offset = (uintptr_t)p - at->first;
    return offset <= at->second.nbytes && n <= at->second.nbytes - offset;
}

void protect(const allocation &a, bool open)
{
    mprotect(a.map, a.map_nbytes, open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

void open_one(allocation *a)
{
    if (a->open) return;
    a->open = true;
    a->next_open = opened;
    opened = a;
    protect(*a, true);
}

void close_all()
{
    for (; opened; opened = opened->next_open) {
        opened->open = false;
        protect(*opened, false);
    }
}

void poison(const allocation &a, uintptr_t at, bool on)
{
#ifdef __SANITIZE_ADDRESS__
    char *start = (char *)at;
    size_t before = (size_t)(start - a.map), after = a.map_nbytes - before - a.nbytes;
    if (on) {
        __asan_poison_memory_region(a.map, before);
        __asan_poison_memory_region(start + a.nbytes, after);
    } else {
        __asan_unpoison_memory_region(a.map, a.map_nbytes);
    }
#else
    (void)a, (void)at, (void)on;
#endif
}

/* Whether the bytes around an allocation kept their pattern: a page before it, all behind it. */
bool margins_kept(const allocation &a, uintptr_t at)
{
    if (sim_settings.dry) return true;
    const unsigned char *start = (const unsigned char *)at;
    const unsigned char *first = (const unsigned char *)a.map, *end = first + a.map_nbytes;
    if ((size_t)(start - first) > PAGE_NBYTES) first = start - PAGE_NBYTES;
    for (const unsigned char *p = first; p < start; p++)
        if (*p != PATTERN) return false;
    for (const unsigned char *p = start + a.nbytes; p < end; p++)
        if (*p != PATTERN) return false;
    return true;
}

} // namespace

void sim_memory_show(enum sim_memory_view wanted)
{
    if (wanted == view) return;
    view = wanted;
    if (!sim_settings.guard) return;
    if (view == SIM_MEMORY_HIDDEN) close_all();
    if (view == SIM_MEMORY_ALL)
        for (auto &a : allocations) open_one(&a.second);
}

bool sim_memory_touch(const void *p)
{
    if (view == SIM_MEMORY_HIDDEN) return false;
    auto at = holder(allocations, p);
    if (at == allocations.end() || at->second.open) return false;
    open_one(&at->second);
    return true;
}

bool sim_is_device(const void *p)
{
    return region && (const char *)p >= region && (const char *)p < region + SIM_REGION_NBYTES;
}

bool sim_device_range(const void *p, size_t n)
{
    return whole_range(allocations, p, n);
}

bool sim_is_foreign(const void *p, int device)
{
    auto at = holder(allocations, p);
    return at != allocations.end() && at->second.device != device;
}

bool sim_memory_range(const void *p, uintptr_t *begin, size_t *nbytes)
{
    if (sim_is_device(p)) {
        auto at = holder(allocations, p);
        if (at == allocations.end()) return false;
        *begin = at->first;
        *nbytes = at->second.nbytes;
    } else {
        auto at = holder(pinned, p);
        if (at == pinned.end()) return false;
        *begin = at->first;
        *nbytes = at->second.nbytes;
    }
    return true;
}

bool sim_pinned_range(const void *p, size_t n)
{
    return whole_range(pinned, p, n);
}

bool sim_pinned_touches(const void *p, size_t n)
{
    for (auto &r : pinned)
        if (r.first < (uintptr_t)p + n && (uintptr_t)p < r.first + r.second.nbytes) return true;
    return false;
}

std::string sim_memory_describe(const void *p)
{
    char text[256];
    if (!p) return "NULL";
    auto live = allocations.upper_bound((uintptr_t)p), dead = freed.upper_bound((uintptr_t)p);
    if (!sim_is_device(p)) {
        snprintf(text, sizeof text, "%s host memory",
                 sim_pinned_range(p, 0) ? "pinned" : "pageable");
    } else if (live != allocations.begin() &&
               (dead == freed.begin() || std::prev(dead)->first < std::prev(live)->first)) {
        --live;
        snprintf(text, sizeof text, "byte %zu of a device allocation of %zu bytes at %p",
                 (size_t)((uintptr_t)p - live->first), live->second.nbytes, (void *)live->first);
    } else if (dead != freed.begin()) {
        --dead;
        snprintf(text, sizeof text, "byte %zu of a device allocation of %zu bytes that was freed",
                 (size_t)((uintptr_t)p - dead->first), dead->second.nbytes);
    } else {
        snprintf(text, sizeof text, "device memory before the first allocation");
    }
    return text;
}

static void release(std::map<uintptr_t, allocation>::iterator at)
{
    allocation a = at->second;
    poison(a, at->first, false);
    mmap(a.map, a.map_nbytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
         -1, 0);
    used_nbytes[a.device] -= round_up(a.nbytes, GRAIN_NBYTES);
    freed[at->first] = a;
    ptx_memory_freed((uint64_t)at->first, a.nbytes);
    allocations.erase(at);
}

void sim_memory_reset(void)
{
    sim_memory_show(SIM_MEMORY_HIDDEN);
    while (!allocations.empty()) release(allocations.begin());
    for (auto &r : pinned)
        if (r.second.owned) munmap((void *)r.first, round_up(r.second.nbytes, PAGE_NBYTES));
    pinned.clear();
    n_mallocs = n_host_allocs = 0;
}

/* ---- device memory ---- */

cudaError_t cudaMalloc(void **out, size_t nbytes)
{
    SIM_ENTER_CONTEXT();
    if (!out) return sim_error(cudaErrorInvalidValue);
    *out = nullptr;
    if (nbytes == 0) return cudaSuccess;
    if (++n_mallocs == sim_settings.oom_at) return sim_error(cudaErrorMemoryAllocation);
    if (nbytes > sim_settings.memory_nbytes ||
        round_up(nbytes, GRAIN_NBYTES) > sim_settings.memory_nbytes - used_nbytes[sim_device()] ||
        !reserve())
        return sim_error(cudaErrorMemoryAllocation);
    allocation a = {};
    a.nbytes = nbytes;
    a.device = sim_device();
    size_t unit = nbytes < HUGE_FROM ? PAGE_NBYTES : GRAIN_NBYTES;
    a.map_nbytes = round_up(nbytes, unit);
    size_t offset = round_up(region_used + PAGE_NBYTES, unit);
    if (offset + a.map_nbytes > SIM_REGION_NBYTES) return sim_error(cudaErrorMemoryAllocation);
    a.map = region + offset;
    region_used = offset + a.map_nbytes;
    protect(a, true);
    /* a flag of its own: changing its protection need not join and split mappings */
    madvise(a.map, a.map_nbytes, MADV_DONTDUMP);
    if (unit == GRAIN_NBYTES) madvise(a.map, a.map_nbytes, MADV_HUGEPAGE);
    if (!sim_settings.dry) memset(a.map, PATTERN, a.map_nbytes);
    uintptr_t start = (uintptr_t)a.map + a.map_nbytes - round_up(nbytes, ALIGN_NBYTES);
    a.open = !sim_settings.guard;
    if (!a.open) protect(a, false);
    poison(a, start, true);
    allocations[start] = a;
    used_nbytes[a.device] += round_up(nbytes, GRAIN_NBYTES);
    *out = (void *)start;
    return cudaSuccess;
}

/* As on hardware, all work is done first. */
cudaError_t cudaFree(void *p)
{
    SIM_ENTER_CONTEXT();
    if (!p) return cudaSuccess;
    sim_run_all();
    if (sim_status() != cudaSuccess) return sim_error(sim_status());
    auto at = allocations.find((uintptr_t)p);
    if (at == allocations.end())
        return sim_refuse(cudaErrorInvalidValue, "cudaFree(%p): %s", p,
                          sim_memory_describe(p).c_str());
    poison(at->second, at->first, false);
    protect(at->second, true);
    bool kept = margins_kept(at->second, at->first);
    size_t nbytes = at->second.nbytes;
    release(at);
    if (!kept) {
        sim_lose(cudaErrorIllegalAddress,
                 "a kernel wrote beyond the %zu bytes at %p: found when they were freed", nbytes,
                 p);
        return sim_error(cudaErrorIllegalAddress);
    }
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_nbytes, size_t *total_nbytes)
{
    SIM_ENTER_CONTEXT();
    *total_nbytes = sim_settings.memory_nbytes;
    *free_nbytes = sim_settings.memory_nbytes - used_nbytes[sim_device()];
    return cudaSuccess;
}

/* ---- pinned memory ---- */

cudaError_t cudaHostAlloc(void **out, size_t nbytes, unsigned)
{
    SIM_ENTER_CONTEXT();
    if (!out) return sim_error(cudaErrorInvalidValue);
    *out = nullptr;
    if (nbytes == 0) return cudaSuccess;
    if (++n_host_allocs == sim_settings.host_oom_at) return sim_error(cudaErrorMemoryAllocation);
    void *map = mmap(nullptr, round_up(nbytes, PAGE_NBYTES), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) return sim_error(cudaErrorMemoryAllocation);
    pinned[(uintptr_t)map] = registration{nbytes, true};
    *out = map;
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **out, size_t nbytes)
{
    return cudaHostAlloc(out, nbytes, cudaHostAllocDefault);
}

cudaError_t cudaFreeHost(void *p)
{
    SIM_ENTER_CONTEXT();
    if (!p) return cudaSuccess;
    sim_run_all();
    auto at = pinned.find((uintptr_t)p);
    if (at == pinned.end() || !at->second.owned)
        return sim_refuse(cudaErrorInvalidValue, "cudaFreeHost(%p): not from cudaHostAlloc", p);
    munmap(p, round_up(at->second.nbytes, PAGE_NBYTES));
    pinned.erase(at);
    return sim_error(sim_status());
}

cudaError_t cudaHostRegister(void *p, size_t nbytes, unsigned)
{
    SIM_ENTER_CONTEXT();
    if (!p || nbytes == 0 || sim_is_device(p)) return sim_error(cudaErrorInvalidValue);
    if (sim_pinned_touches(p, nbytes)) return sim_error(cudaErrorHostMemoryAlreadyRegistered);
    if ((uintptr_t)p % PAGE_NBYTES != 0 || nbytes % PAGE_NBYTES != 0)
        return sim_refuse(cudaErrorInvalidValue,
                          "cudaHostRegister(%p, %zu): whole pages are locked, and these have "
                          "neighbours",
                          p, nbytes);
    if (++n_host_allocs == sim_settings.host_oom_at) return sim_error(cudaErrorMemoryAllocation);
    pinned[(uintptr_t)p] = registration{nbytes, false};
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *p)
{
    SIM_ENTER_CONTEXT();
    auto at = pinned.find((uintptr_t)p);
    if (at == pinned.end() || at->second.owned) return sim_error(cudaErrorHostMemoryNotRegistered);
    if (sim_host_in_use(at->first, at->second.nbytes))
        return sim_refuse(cudaErrorInvalidValue,
                          "cudaHostUnregister(%p): a copy of its bytes has not been waited for", p);
    pinned.erase(at);
    return cudaSuccess;
}

cudaError_t cudaHostGetDevicePointer(void **out, void *p, unsigned)
{
    SIM_ENTER_CONTEXT();
    if (!sim_pinned_range(p, 1)) return sim_error(cudaErrorInvalidValue);
    *out = p;
    return cudaSuccess;
}

cudaError_t cudaHostGetFlags(unsigned *flags, void *p)
{
    SIM_ENTER_CONTEXT();
    if (!sim_pinned_range(p, 1)) return sim_error(cudaErrorInvalidValue);
    *flags = cudaHostAllocMapped;
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attr, const void *p)
{
    SIM_ENTER_CONTEXT();
    if (!attr) return sim_error(cudaErrorInvalidValue);
    memset(attr, 0, sizeof *attr);
    attr->type = cudaMemoryTypeUnregistered;
    attr->device = -2;
    if (sim_device_range(p, 1)) {
        attr->type = cudaMemoryTypeDevice;
        attr->device = holder(allocations, p)->second.device;
        attr->devicePointer = const_cast<void *>(p);
    } else if (sim_pinned_range(p, 1)) {
        attr->type = cudaMemoryTypeHost;
        attr->device = 0;
        attr->devicePointer = attr->hostPointer = const_cast<void *>(p);
    }
    return cudaSuccess;
}
