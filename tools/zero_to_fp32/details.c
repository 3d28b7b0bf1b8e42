/* --debug of zero_to_fp32: where each tensor's elements are in the shards. For reports of damaged
 * or foreign checkpoints, where the answer to "which file?" matters. */
#include "details.h"
#include "base/size.h"

#include "base/printable.h"
#include "checkpoint/read/checkpoint.h"
#include "tools/czero/terminal.h"

#include <string.h>

enum { RUNS_MAX = 8 }; /* shown of one tensor */

static const char *const kinds[] = {"trained", "frozen", "buffer"};

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* A tensor of many ranks has a run per rank and file; eight show the pattern. */
static cz_status print_runs(const struct ckpt *ck, size_t idx, FILE *out)
{
    const struct ckpt_tensor *t = ckpt_at(ck, idx);
    uint64_t off = 0;
    for (int n = 0; off < t->numel; n++) {
        struct ckpt_run run;
        cz_status st = ckpt_run(ck, idx, CKPT_MASTER, off, &run);
        if (st == CZ_UNSUPPORTED) return CZ_OK; /* strided: there are no runs to show */
        TRY(st);
        if (n == RUNS_MAX) {
            terminal_put(out, "    …\n");
            return CZ_OK;
        }
        printable_print(out, "    [%llu, %llu) %s at byte %llu of %s\n", (unsigned long long)off,
                        (unsigned long long)(off + run.numel), run.dtype->torch_name,
                        (unsigned long long)run.file_off,
                        base_name(ckpt_file_path(ck, run.file_idx)));
        off += run.numel;
    }
    return CZ_OK;
}

static cz_status print_tensor(const struct ckpt *ck, size_t idx, FILE *out)
{
    const struct ckpt_tensor *t = ckpt_at(ck, idx);
    printable_print(out, "  %s: %s, %s, (", t->name, kinds[t->kind], t->dtype->torch_name);
    for (int d = 0; d < t->ndim; d++)
        fprintf(out, d > 0 ? ", %lld" : "%lld", (long long)t->shape[d]);
    fprintf(out, ")");
    for (size_t a = 0; a < t->n_aliases; a++) printable_print(out, ", tied: %s", t->aliases[a]);
    fprintf(out, "\n");
    return print_runs(ck, idx, out);
}

/* Opens the checkpoint apart from the conversion: the listing must not depend on whether that
 * succeeds. */
cz_status details_print(const char *dir, const char *tag, FILE *out)
{
    struct ckpt *ck;
    TRY(ckpt_open(&(struct ckpt_open_options){.dir = dir, .tag = tag, .weights_only = true}, &ck));
    cz_status st = CZ_OK;
    const struct ckpt_info *info = ckpt_get_info(ck);
    const size_t n_tensors = ckpt_count(ck);
    printable_print(
        out, "%s: stage %d%s, %d rank%s, %s %s, %zu file%s, %.2f MB, %zu tensor%s\n", info->tag_dir,
        info->stage, info->is_universal ? " (universal)" : "", info->world_size,
        info->world_size == 1 ? "" : "s", info->is_ours ? "czero, as DeepSpeed" : "DeepSpeed",
        *info->ds_version ? info->ds_version : "of unknown version", info->n_files,
        plural(info->n_files), (double)info->nbytes * 1e-6, n_tensors, plural(n_tensors));
    for (size_t i = 0; i < ckpt_count(ck) && st == CZ_OK; i++) st = print_tensor(ck, i, out);
    ckpt_close(ck);
    return st;
}
