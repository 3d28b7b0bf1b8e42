/* The record of what was queued: see sim_trace.h. */
#include "sim_runtime.h"

namespace {

struct traced {
    struct sim_trace_entry entry;
    std::string name;
    std::vector<size_t> after; /* entries that are done before it starts, directly */
};

std::deque<traced> entries; /* a deque: names stay where they are */
std::vector<size_t> waited; /* entries that the host waited for: the newest of each stream */
bool tracing;
uint64_t n_begun, n_ran;

bool is_traced(const sim_op *op)
{
    return op->trace_begun == n_begun && n_begun > 0;
}

} // namespace

void sim_trace_queued(sim_op *op, const struct sim_op_info *info)
{
    if (!tracing) return;
    entries.emplace_back();
    traced &t = entries.back();
    t.name = info->name;
    t.entry.kind = op->kind;
    t.entry.stream = op->stream;
    t.entry.nbytes = info->nbytes;
    t.entry.pinned = info->pinned;
    t.entry.sequence = op->sequence;
    t.after = waited;
    for (const sim_op_ref &before : op->after) {
        if (is_traced(before.get())) t.after.push_back(before->trace);
        if (op->kind == SIM_WAIT && before->kind == SIM_RECORD)
            t.entry.waits_for = before->sequence;
    }
    op->trace = entries.size() - 1;
    op->trace_begun = n_begun;
}

void sim_trace_ran(const sim_op *op)
{
    n_ran++;
    if (is_traced(op)) entries[op->trace].entry.ran = n_ran;
}

void sim_trace_host_waited(const sim_op *op)
{
    if (!is_traced(op)) return;
    for (size_t &w : waited)
        if (entries[w].entry.stream == op->stream) {
            if (op->trace > w) w = op->trace;
            return;
        }
    waited.push_back(op->trace);
}

void sim_trace_begin(void)
{
    entries.clear();
    waited.clear();
    n_begun++;
    tracing = true;
}

void sim_trace_end(void)
{
    tracing = false;
}

size_t sim_trace_count(void)
{
    return entries.size();
}

struct sim_trace_entry sim_trace_at(size_t i)
{
    if (i >= entries.size()) return {};
    struct sim_trace_entry e = entries[i].entry;
    e.name = entries[i].name.c_str();
    return e;
}

bool sim_trace_ordered(size_t i, size_t j)
{
    if (j >= entries.size()) return false;
    std::vector<bool> seen(entries.size());
    std::vector<size_t> open(entries[j].after);
    while (!open.empty()) {
        size_t k = open.back();
        open.pop_back();
        if (k == i) return true;
        if (seen[k]) continue;
        seen[k] = true;
        open.insert(open.end(), entries[k].after.begin(), entries[k].after.end());
    }
    return false;
}
