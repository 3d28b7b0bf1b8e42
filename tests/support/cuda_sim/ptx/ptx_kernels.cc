/* From host functions to PTX entries, and launches: see ptx_kernels.h.
 *
 * build/cuda_ptx holds the PTX of the plug-in's own object files (tests/support/
 * ptx_extract.cc), a file per source, and entries.txt, which lists "entry file". Both compilers
 * mangle names alike, but for the L by which C++ marks static functions. The same name in two
 * sources (static functions) is told apart by the source that this library's symbol table notes. */
#include "ptx_kernels.h"

#include "ptx_run.h"
#include "ptx_test.h"
#include "ptx_traffic.h"
#include "sim_exec.h"
#include "sim_runtime.h"

#include <dlfcn.h>
#include <fstream>
#include <map>
#include <sstream>
#include <stdlib.h>
#include <string.h>
#include <time.h>

namespace {

std::string folder()
{
    if (sim_settings.ptx_folder[0]) return sim_settings.ptx_folder;
    Dl_info info;
    if (!dladdr((void *)&sim_now, &info)) return "";
    std::string path = info.dli_fname;
    const size_t slash = path.rfind('/');
    return (slash == std::string::npos ? "." : path.substr(0, slash)) + "/../cuda_ptx";
}

std::string slurp(const std::string &path)
{
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

/* Which files have an entry of that name. */
const std::multimap<std::string, std::string> &all_entries()
{
    static const std::multimap<std::string, std::string> all = [] {
        std::multimap<std::string, std::string> found;
        std::istringstream lines(slurp(folder() + "/entries.txt"));
        for (std::string name, file; lines >> name >> file;) found.insert({name, file});
        return found;
    }();
    return all;
}

ptx_module *load(const std::string &file)
{
    static std::map<std::string, std::unique_ptr<ptx_module>> modules;
    std::unique_ptr<ptx_module> &m = modules[file];
    if (!m) m = ptx_module_read(file, slurp(folder() + "/" + file));
    return m.get();
}

/* "_ZL3fooPf" of a static function is nvcc's "_Z3fooPf". */
std::string entry_name(const std::string &symbol)
{
    if (symbol.compare(0, 3, "_ZL") == 0) return "_Z" + symbol.substr(3);
    return symbol;
}

const ptx_function *find(const void *host_function)
{
    static std::map<const void *, const ptx_function *> known;
    auto at = known.find(host_function);
    if (at != known.end()) return at->second;
    std::string symbol, source;
    if (all_entries().empty())
        ptx_stop_with("no PTX is in %s: it is made by a build with nvcc", folder().c_str());
    if (!sim_function_symbol(host_function, &symbol, &source))
        ptx_stop_with("the kernel has no name in the symbol table of the simulated plug-in");
    const std::string name = entry_name(symbol);
    auto range = all_entries().equal_range(name);
    if (range.first == range.second) ptx_stop_with("no PTX has an entry %s", name.c_str());
    auto file = range.first;
    const std::string wanted = source.substr(0, source.rfind('.')) + ".ptx"; /* of x.cu.cc */
    for (auto i = range.first; i != range.second; ++i)
        if (i->second == wanted) file = i;
    return known[host_function] = ptx_module_function(load(file->second), name);
}

/* Parameters as the kernel's declarations lay them out. */
std::vector<char> lay_out(const ptx_function *f, const std::vector<sim_param> &list,
                          const void *params)
{
    std::vector<char> bytes(f->params_nbytes + 8);
    if (list.size() != f->params.size())
        ptx_stop_with("%zu parameters, the PTX has %zu", list.size(), f->params.size());
    for (size_t i = 0; i < list.size(); i++) {
        if (list[i].nbytes != f->params[i].nbytes)
            ptx_stop_with("parameter %zu has %zu bytes, %zu in the PTX", i, list[i].nbytes,
                          f->params[i].nbytes);
        memcpy(&bytes[f->params[i].offset], (const char *)params + list[i].offset, list[i].nbytes);
    }
    return bytes;
}

/* ---- how fast that is ---- */

double seconds;

void report()
{
    fprintf(stderr, "cuda_sim: %.3g instructions of lanes (%.3g of warps) in %.3g s\n",
            (double)ptx_counted.lane_instructions, (double)ptx_counted.warp_instructions, seconds);
    ptx_traffic_report();
}

double now()
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void count(double begun)
{
    static bool once;
    if (!once && sim_settings.count) atexit(report);
    once = true;
    seconds += now() - begun;
}

} // namespace

bool ptx_kernel_run(const ptx_kernel &k, const struct sim_launch_request &r, std::string *error)
{
    const double begun = now();
    bool ok = false;
    try {
        ptx_memory_forget();
        const ptx_function *f = k.function ? k.function : find(r.function);
        const std::vector<char> params = lay_out(f, k.params, r.params);
        const ptx_launch l = {
            f, r.name, params.data(), (uint3)r.grid, (uint3)r.block, r.shared_nbytes, k.device};
        ok = ptx_launch_run(&l, error);
    } catch (const ptx_stop &stop) {
        *error = std::string("kernel ") + r.name + ": " + stop.sentence;
    }
    count(begun);
    return ok;
}

/* The function of a text, or NULL after a sentence. */
static const ptx_function *function_of(const char *text, const char *entry)
{
    static std::map<const char *, std::unique_ptr<ptx_module>> modules;
    try {
        std::unique_ptr<ptx_module> &m = modules[text];
        if (!m) m = ptx_module_read("text", text);
        const ptx_function *f = ptx_module_function(m.get(), entry);
        if (!f) ptx_stop_with("there is no entry %s", entry);
        return f;
    } catch (const ptx_stop &stop) {
        sim_print("%s", stop.sentence.c_str());
        return nullptr;
    }
}

cudaError_t ptx_launch_text(const char *text, const char *entry, dim3 grid, dim3 block,
                            size_t shared_nbytes, cudaStream_t stream,
                            const struct ptx_argument *arguments, int n_arguments)
{
    struct sim_launch_request r = {};
    r.ptx = function_of(text, entry);
    if (!r.ptx) return cudaErrorInvalidDeviceFunction;
    std::vector<char> params;
    std::vector<sim_param> list;
    for (int i = 0; i < n_arguments; i++) {
        const char *value = (const char *)arguments[i].value;
        list.push_back({params.size(), arguments[i].nbytes});
        params.insert(params.end(), value, value + arguments[i].nbytes);
    }
    r.name = entry;
    r.function = r.ptx;
    r.grid = grid;
    r.block = block;
    r.shared_nbytes = shared_nbytes;
    r.stream = stream;
    r.params = params.data();
    r.params_nbytes = params.size();
    r.list = list.data();
    r.n_list = n_arguments;
    return sim_launch_queue(&r);
}

void ptx_memory_freed(uint64_t at, size_t nbytes)
{
    ptx_memory_forget();
    if (ptx_counted.warp_instructions > 0) ptx_watch::freed(at, nbytes);
}
