/* Tensor maps, copies and their barriers: see sim_tensor_copy.h. */
#include "sim_tensor_copy.h"

#include "sim_runtime.h"
#include "sim_settings.h"

#include <cuda.h>
#include <string.h>
#include <unordered_map>
#include <vector>

#define SPINS_MAX     3000000
#define FIRST_MEETING 8 /* of warpgroups; those before are wgmma's */

static_assert(sizeof(struct sim_tensor_map) <= sizeof(CUtensorMap), "");

namespace {

struct mbarrier {
    int n, n_left; /* arrivals of a phase; still to come */
    int64_t nbytes_left;
    unsigned phase;
};

struct tensor_copy {
    uintptr_t to, barrier;
    struct sim_tensor_map map;
    int at[4];
};

std::unordered_map<uintptr_t, struct mbarrier> barriers;
std::vector<struct tensor_copy> under_way;
uint64_t n_spins, coin_state;

struct mbarrier *barrier_at(uintptr_t at, const char *file, int line)
{
    const auto found = barriers.find(at);
    if (found == barriers.end()) sim_exec_fail(file, line, "there is no mbarrier at this address");
    return &found->second;
}

void end_phase_if_complete(struct mbarrier *b)
{
    if (b->n_left > 0 || b->nbytes_left != 0) return;
    b->phase++;
    b->n_left = b->n;
    n_spins = 0;
}

void land(const struct tensor_copy &c, const char *file, int line)
{
    for (uint32_t r = 0; r < c.map.box[2]; r++) {
        const char *from = sim_tensor_row(&c.map, c.at, r);
        for (uint32_t k = 0; k < SIM_TENSOR_LINE / 16; k++) {
            char *to = (char *)sim_tensor_chunk(c.to, r, k);
            if (from)
                memcpy(to, from + 16 * k, 16);
            else
                memset(to, 0, 16);
        }
    }
    struct mbarrier *b = barrier_at(c.barrier, file, line);
    b->nbytes_left -= (int64_t)c.map.box[2] * SIM_TENSOR_LINE;
    end_phase_if_complete(b);
}

void land_all(uintptr_t barrier, const char *file, int line)
{
    std::vector<struct tensor_copy> due;
    for (size_t i = 0; i < under_way.size();) {
        if (under_way[i].barrier != barrier) {
            i++;
            continue;
        }
        due.push_back(under_way[i]);
        under_way.erase(under_way.begin() + (ptrdiff_t)i);
    }
    for (const struct tensor_copy &c : due) land(c, file, line);
}

} // namespace

/* ---- tensors ---- */

const char *sim_tensor_row(const struct sim_tensor_map *map, const int at[4], uint32_t r)
{
    const int64_t row = (int64_t)at[2] + r;
    if (row < 0 || row >= map->sizes[2]) return nullptr;
    return (const char *)(map->base + (uint64_t)at[0] * 2 + (uint64_t)at[1] * map->strides[0] +
                          (uint64_t)row * map->strides[1] + (uint64_t)at[3] * map->strides[2]);
}

const char *sim_tensor_refuses(const struct sim_tensor_map *map, const int at[4], uintptr_t to)
{
    if (map->magic != SIM_TENSOR_MAGIC) return "the copy's map is none of cuTensorMapEncodeTiled";
    if (to % 1024 != 0) return "the copy's target does not begin a swizzle's 1024 bytes";
    for (int d = 0; d < 4; d++)
        if (d != 2 && (at[d] < 0 || (uint32_t)at[d] + map->box[d] > map->sizes[d]))
            return "the copy begins outside of the tensor";
    const uint64_t last = map->sizes[2] - 1;
    const int first[4] = {at[0], at[1], 0, at[3]};
    const char *begin = sim_tensor_row(map, first, 0);
    if (!sim_device_range(begin, last * map->strides[1] + SIM_TENSOR_LINE))
        return "the tensor is no device memory";
    return nullptr;
}

static CUresult encode(CUtensorMap *out, CUtensorMapDataType type, cuuint32_t rank, void *base,
                       const cuuint64_t *sizes, const cuuint64_t *strides, const cuuint32_t *box,
                       const cuuint32_t *steps, CUtensorMapInterleave interleave,
                       CUtensorMapSwizzle swizzle, CUtensorMapL2promotion,
                       CUtensorMapFloatOOBfill fill)
{
    struct sim_tensor_map map = {SIM_TENSOR_MAGIC, (uint64_t)base, {}, {}, {}};
    bool ok = (type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 || type == CU_TENSOR_MAP_DATA_TYPE_FLOAT16);
    ok = ok && rank == 4 && (uintptr_t)base % 16 == 0 && box[0] * 2 == SIM_TENSOR_LINE;
    ok = ok && interleave == CU_TENSOR_MAP_INTERLEAVE_NONE && swizzle == CU_TENSOR_MAP_SWIZZLE_128B;
    ok = ok && fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE && box[1] == 1 && box[3] == 1;
    for (int d = 0; d < 4; d++) {
        ok = ok && sizes[d] > 0 && sizes[d] <= (cuuint64_t)1 << 32 && steps[d] == 1;
        ok = ok && box[d] > 0 && box[d] <= 256;
        map.sizes[d] = (uint32_t)sizes[d], map.box[d] = box[d];
    }
    for (int d = 0; d < 3; d++) {
        ok = ok && strides[d] % 16 == 0 && strides[d] < (cuuint64_t)1 << 40;
        map.strides[d] = strides[d];
    }
    if (!ok) return CUDA_ERROR_INVALID_VALUE;
    memset(out, 0, sizeof *out);
    memcpy(out, &map, sizeof map);
    return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **out, unsigned int,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult *found)
{
    const bool known = strcmp(symbol, "cuTensorMapEncodeTiled") == 0;
    *out = known ? (void *)encode : nullptr;
    *found = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

/* ---- kernels ---- */

void sim_mbarrier_init(uintptr_t at, int n, const char *file, int line)
{
    if (at % 8 != 0) sim_exec_fail(file, line, "an mbarrier is aligned to 8 bytes");
    barriers[at] = {n, n, 0, 0};
}

void sim_mbarrier_arrive(uintptr_t at, int nbytes, const char *file, int line)
{
    struct mbarrier *b = barrier_at(at, file, line);
    b->nbytes_left += nbytes;
    if (b->n_left-- == 0) sim_exec_fail(file, line, "more than %d arrive in a phase", b->n);
    end_phase_if_complete(b);
}

bool sim_mbarrier_test(uintptr_t at, unsigned parity, const char *file, int line)
{
    struct mbarrier *b = barrier_at(at, file, line);
    land_all(at, file, line);
    if ((b->phase & 1) != parity) return true;
    if (n_spins++ > SPINS_MAX) sim_exec_fail(file, line, "waits for ever at an mbarrier");
    sim_exec_yield();
    return false;
}

void sim_copy_tensor(uintptr_t to, const uint64_t *words, const int at[4], uintptr_t barrier,
                     const char *file, int line)
{
    struct tensor_copy c = {to, barrier, {}, {at[0], at[1], at[2], at[3]}};
    memcpy(&c.map, words, sizeof c.map);
    const char *wrong = sim_tensor_refuses(&c.map, at, to);
    if (wrong) sim_exec_fail(file, line, "%s", wrong);
    if (!sim_exec_shared_at(to, (size_t)c.map.box[2] * SIM_TENSOR_LINE))
        sim_exec_fail(file, line, "the copy's target is beyond dynamic shared memory");
    coin_state = coin_state * 6364136223846793005u + 1442695040888963407u;
    if (sim_settings.order == SIM_ORDER_RANDOM && coin_state >> 63)
        land(c, file, line);
    else
        under_way.push_back(c);
}

static void nothing(void *) {}

void sim_warpgroups_sync(int number, int n_threads, const char *file, int line)
{
    sim_exec_meet(FIRST_MEETING + number, n_threads, nothing, nullptr, "a warpgroup's barrier",
                  file, line);
}

void sim_tensor_copy_begin_block(void)
{
    barriers.clear();
    under_way.clear();
    n_spins = 0;
    coin_state = sim_settings.order_seed;
}

const char *sim_tensor_copy_end_block(void)
{
    return under_way.empty() ? nullptr : "a copy of a tensor was never waited for";
}
