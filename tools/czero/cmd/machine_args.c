/* Reads the options that describe a machine. czero plan and czero tune share them. */
#include "tools/czero/cmd/machine_args.h"

#include "base/host/cgroup.h"
#include "base/size.h"
#include "tools/czero/tool.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* No size means none of that memory. */
static cz_status read_size(const char *name, const char *text, size_t *nbytes)
{
    *nbytes = 0;
    if (!text || strcmp(text, "0") == 0) return CZ_OK;
    return size_parse_machine(text, nbytes) == CZ_OK ? CZ_OK : err_prefix("%s", name);
}

/* A file goes before a name: "./h100" and "h100" may both be meant. */
static cz_status read_profile(const struct machine_args *args, const struct machine_gpu *gpu,
                              struct machine_meant *out)
{
    const struct machine_gpu *named =
        args->profile && access(args->profile, F_OK) != 0 ? machine_gpu_find(args->profile) : NULL;
    out->has_profile = true;
    if (args->profile && !named) return machine_read(args->profile, &out->profile);
    if (named && !gpu) gpu = named;
    if (gpu && out->gpu_nbytes == 0 && !args->gpu_memory) out->gpu_nbytes = (size_t)gpu->nbytes;
    if (!gpu && out->gpu_nbytes > 0) {
        char size[24], names[256];
        gpu = machine_gpu_nearest(out->gpu_nbytes);
        tool_note("GPU of %s: times are for %s %s (--gpu %s)",
                  size_written(out->gpu_nbytes, size, sizeof size),
                  strchr("AHLR", gpu->title[0]) ? "an" : "a", gpu->title,
                  machine_gpu_names(names, sizeof names));
    }
    machine_assume(gpu, &out->profile);
    out->has_profile = gpu != NULL;
    return CZ_OK;
}

cz_status machine_args_read(const struct machine_args *args, struct machine_meant *out)
{
    const struct machine_gpu *gpu = args->gpu ? machine_gpu_find(args->gpu) : NULL;
    char names[256];
    *out = (struct machine_meant){0};
    if (args->gpu && !gpu)
        return err_set(CZ_INVALID, 0, "--gpu %s: unknown; known are %s. --gpu-memory takes a size",
                       args->gpu, machine_gpu_names(names, sizeof names));
    TRY(read_size("--gpu-memory", args->gpu_memory, &out->gpu_nbytes));
    TRY(read_size("--host-memory", args->host_memory, &out->host_nbytes));
    return read_profile(args, gpu, out);
}

/* A container's limit is no machine: what is in use is not known of it. */
void machine_args_leave_room(struct machine_meant *m)
{
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    const size_t total = pages > 0 && page > 0 ? (size_t)pages * (size_t)page : 0;
    const size_t left = host_memory_left(), given = m->host_nbytes;
    char all[24], kept[24], free_text[24];
    if (total == 0 || left > total) return;
    m->host_nbytes = machine_share(given, total, total - left);
    if (m->host_nbytes == given) return;
    tool_note("--host-memory %s is all of this machine: %s are planned, %s stay for other programs",
              size_written(given, all, sizeof all), size_human(m->host_nbytes, kept, sizeof kept),
              size_human(given - m->host_nbytes, free_text, sizeof free_text));
}
