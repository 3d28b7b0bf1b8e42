#include "ptx_traffic.h"
#include "sim_trace.h"

#include <algorithm>
#include <cxxabi.h>
#include <map>
#include <stdio.h>
#include <stdlib.h>
#include <string>
#include <unordered_set>

#define SECTOR      32 /* bytes */
#define BANKS       32
#define WORD        4
#define TURN_NBYTES (BANKS * WORD)

bool ptx_traffic_asked;

namespace {

/* Of one instruction, or of all of a kernel's. */
struct requests {
    uint64_t sectors, sectors_least, turns, turns_least;
};

struct kernel_traffic {
    struct sim_traffic sums;
    const ptx_function *function;
    std::map<const ptx_op *, requests> by; /* instruction */
    std::unordered_set<uint64_t> touched;  /* sectors of the running launch */
};

std::map<std::string, kernel_traffic> kernels;
kernel_traffic *running;
uint64_t begun_at; /* warp instructions */

/* How many different values there are; sorts them. */
int distinct(uint64_t *x, int n)
{
    std::sort(x, x + n);
    return (int)(std::unique(x, x + n) - x);
}

/* Bytes in the union of the lanes' [address, address + n). Addresses are multiples of n. */
uint64_t wanted(const uint64_t *address, int n_lanes, uint32_t n)
{
    uint64_t at[PTX_WARP];
    std::copy(address, address + n_lanes, at);
    return (uint64_t)distinct(at, n_lanes) * n;
}

void note_global(requests *by, const uint64_t *address, int n_lanes, uint32_t n)
{
    uint64_t sector[PTX_WARP];
    for (int i = 0; i < n_lanes; i++) sector[i] = address[i] / SECTOR;
    const int n_sectors = distinct(sector, n_lanes);
    running->sums.global_requests++;
    by->sectors += (uint64_t)n_sectors;
    by->sectors_least += (wanted(address, n_lanes, n) + SECTOR - 1) / SECTOR;
    running->touched.insert(sector, sector + n_sectors);
}

/* Lanes that are served together: turns of the busiest bank. */
int turns_of(const uint64_t *address, int n_lanes, uint32_t n)
{
    uint64_t word[PTX_WARP * 4];
    int n_words = 0, busy[BANKS] = {}, turns = 0;
    for (int i = 0; i < n_lanes; i++)
        for (uint64_t at = address[i] / WORD; at * WORD < address[i] + n; at++)
            word[n_words++] = at;
    n_words = distinct(word, n_words);
    for (int i = 0; i < n_words; i++) turns = std::max(turns, ++busy[word[i] % BANKS]);
    return turns;
}

void note_shared(requests *by, uint32_t mask, const uint64_t *address, uint32_t n)
{
    const int together = n <= WORD ? PTX_WARP : PTX_WARP * WORD / (int)n;
    running->sums.shared_requests++;
    for (int first = 0; first < PTX_WARP; first += together) {
        uint64_t at[PTX_WARP];
        int n_lanes = 0;
        for (int l = first; l < first + together; l++)
            if (mask >> l & 1) at[n_lanes++] = address[l];
        if (n_lanes == 0) continue;
        by->turns += (uint64_t)turns_of(at, n_lanes, n);
        by->turns_least += (wanted(at, n_lanes, n) + TURN_NBYTES - 1) / TURN_NBYTES;
    }
}

enum ptx_space space_at(uint64_t at)
{
    if (at - PTX_SHARED_WINDOW < PTX_WINDOW_NBYTES) return PTX_SHARED;
    if (at - PTX_LOCAL_WINDOW < PTX_WINDOW_NBYTES) return PTX_LOCAL;
    if (at - PTX_PARAM_WINDOW < PTX_WINDOW_NBYTES) return PTX_PARAM;
    return PTX_GLOBAL;
}

/* "ops::kernel<float, 4>" of a mangled name. */
std::string name_of(const std::string &entry)
{
    int status = 0;
    char *text = abi::__cxa_demangle(entry.c_str(), nullptr, nullptr, &status);
    std::string name = text ? text : entry;
    free(text);
    const size_t arguments = name.rfind(
        '(', name.rfind(">(") == std::string::npos ? std::string::npos : name.rfind(">(") + 1);
    if (text) name.resize(std::min(arguments, name.size()));
    return name.compare(0, 5, "void ") == 0 ? name.substr(5) : name;
}

struct sim_traffic sums_of(const kernel_traffic &k)
{
    struct sim_traffic t = k.sums;
    for (const auto &by : k.by) {
        t.sectors += by.second.sectors;
        t.sectors_least += by.second.sectors_least;
        t.shared_turns += by.second.turns;
        t.shared_turns_least += by.second.turns_least;
    }
    return t;
}

double percent(uint64_t part, uint64_t whole)
{
    return whole == 0 ? 100.0 : 100.0 * (double)part / (double)whole;
}

/* What instructions of one line of source ask for. */
std::map<std::string, requests> by_source(const kernel_traffic &k)
{
    std::map<std::string, requests> lines;
    for (const auto &by : k.by) {
        requests &line = lines[ptx_source(k.function, *by.first)];
        line.sectors += by.second.sectors, line.sectors_least += by.second.sectors_least;
        line.turns += by.second.turns, line.turns_least += by.second.turns_least;
    }
    return lines;
}

void report_waste(const std::string &source, const requests &r, const struct sim_traffic &all)
{
    if ((r.sectors - r.sectors_least) * 100 <= all.sectors &&
        (r.turns - r.turns_least) * 100 <= all.shared_turns)
        return;
    fprintf(stderr, "    %llu sectors, %.1f%% needed; %llu shared turns, %.1f%% needed: %s\n",
            (unsigned long long)r.sectors, percent(r.sectors_least, r.sectors),
            (unsigned long long)r.turns, percent(r.turns_least, r.turns), source.c_str());
}

} // namespace

void ptx_traffic_begin(const ptx_function *f)
{
    running = &kernels[name_of(f->name)];
    running->function = f;
    running->sums.launches++;
    running->touched.clear(); /* of a launch that was ended by a mistake */
    begun_at = ptx_counted.warp_instructions;
}

void ptx_traffic_end(void)
{
    running->sums.warp_instructions += ptx_counted.warp_instructions - begun_at;
    running->sums.sectors_touched += running->touched.size();
    running->touched.clear();
    running = nullptr;
}

void ptx_traffic_note(const ptx_op &o, enum ptx_space space, uint32_t mask, const uint64_t *address,
                      uint32_t n)
{
    if (mask == 0) return;
    if (space == PTX_GENERIC) space = space_at(address[__builtin_ctz(mask)]);
    if (space == PTX_SHARED) return note_shared(&running->by[&o], mask, address, n);
    if (space == PTX_LOCAL) running->sums.local_requests++;
    if (space != PTX_GLOBAL) return;
    uint64_t at[PTX_WARP];
    int n_lanes = 0;
    for (uint32_t m = mask; m; m &= m - 1) at[n_lanes++] = address[__builtin_ctz(m)];
    note_global(&running->by[&o], at, n_lanes, n);
}

void ptx_traffic_report(void)
{
    fprintf(stderr, "%-60s %8s %12s %12s %7s %12s %7s %7s\n", "kernel", "launches", "instructions",
            "sectors", "needed", "shared turns", "needed", "local");
    for (const auto &k : kernels) {
        const struct sim_traffic t = sums_of(k.second);
        fprintf(stderr, "%-60s %8llu %12llu %12llu %6.1f%% %12llu %6.1f%% %7llu\n", k.first.c_str(),
                (unsigned long long)t.launches, (unsigned long long)t.warp_instructions,
                (unsigned long long)t.sectors, percent(t.sectors_least, t.sectors),
                (unsigned long long)t.shared_turns, percent(t.shared_turns_least, t.shared_turns),
                (unsigned long long)t.local_requests);
        for (const auto &at : by_source(k.second)) report_waste(at.first, at.second, t);
    }
}

void sim_traffic_begin(void)
{
    kernels.clear();
    ptx_traffic_asked = true;
}

void sim_traffic_end(void)
{
    ptx_traffic_asked = false;
}

size_t sim_traffic_count(void)
{
    return kernels.size();
}

struct sim_traffic sim_traffic_at(size_t i)
{
    auto k = kernels.begin();
    std::advance(k, (ptrdiff_t)i);
    struct sim_traffic t = sums_of(k->second);
    t.kernel = k->first.c_str();
    return t;
}
