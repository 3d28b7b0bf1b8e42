/* czero_onebit_rank_R.pt: the compression errors of one rank (docs/checkpoint-format.md,
 * "czero_onebit_rank_R.pt"). Everything is checked when the file is opened, so that the calls after
 * it can only fail by I/O: a resume must not stop half-way through its tensors. */
#include "checkpoint/read/onebit_file.h"

#include "formats/file_io.h"
#include "formats/pt/pt.h"

#include <stdlib.h>
#include <string.h>

struct ckpt_onebit_file {
    struct pt *pt;
    const struct pickle_node *segments, *state;
    int world_size;
};

static cz_status corrupt(const struct pt *pt, const char *what)
{
    return err_set(CZ_CORRUPT, 0, "%s: %s", pt_path(pt), what);
}

/* ---- which file it is ------------------------------------------------------------------------ */

/* The counters tie the file to one save. A rank that resumed with the errors of another save would
 * train on without a sign of it. */
static cz_status check_int(const struct pt *pt, const char *key, int64_t want)
{
    int64_t value;
    if (!pickle_to_int(pickle_get(pt_root(pt), key), &value))
        return err_set(CZ_CORRUPT, 0, "%s: \"%s\" is missing", pt_path(pt), key);
    if (value == want) return CZ_OK;
    return err_set(CZ_CORRUPT, 0,
                   "%s: %s is %lld, not %lld: this file is another rank's or another save's",
                   pt_path(pt), key, (long long)value, (long long)want);
}

/* The version comes before anything that a later version may have changed. */
static cz_status check_head(const struct pt *pt, const struct ckpt_onebit_want *want)
{
    const char *format = pickle_to_string(pickle_get(pt_root(pt), "format"));
    int64_t version;
    if (!format || strcmp(format, CKPT_ONEBIT_FORMAT) != 0 ||
        !pickle_to_int(pickle_get(pt_root(pt), "version"), &version) || version < 1)
        return corrupt(pt, "not a file of errors (\"format\": \"" CKPT_ONEBIT_FORMAT "\")");
    if (version > CKPT_ONEBIT_VERSION)
        return err_set(CZ_VERSION, 0, "%s: version %lld; this build reads up to %d", pt_path(pt),
                       (long long)version, CKPT_ONEBIT_VERSION);
    TRY(check_int(pt, "rank", want->rank));
    TRY(check_int(pt, "world_size", want->world_size));
    TRY(check_int(pt, "step", want->step));
    TRY(check_int(pt, "global_steps", want->global_steps));
    const char *optimizer = pickle_to_string(pickle_get(pt_root(pt), "optimizer"));
    if (optimizer && strcmp(optimizer, want->optimizer) == 0) return CZ_OK;
    return err_set(CZ_CORRUPT, 0, "%s: of the optimizer %s, not of %s", pt_path(pt),
                   optimizer ? optimizer : "(not said)", want->optimizer);
}

/* ---- its segments ---------------------------------------------------------------------------- */

/* Flat fp32, as the engine keeps errors; other dtypes are never written. */
static bool is_vector(const struct pickle_node *node, int64_t numel)
{
    return pickle_is(node, PICKLE_TENSOR) && node->tensor->ndim == 1 &&
           node->tensor->numel == (uint64_t)numel && node->tensor->dtype->has_base &&
           node->tensor->dtype->base == DTYPE_F32;
}

static bool are_names(const struct pickle_node *params)
{
    if (!pickle_is(params, PICKLE_LIST) || params->n == 0) return false;
    for (size_t k = 0; k < params->n; k++)
        if (!pickle_to_string(params->items[k])) return false;
    return true;
}

/* Sizes must fit each other and the tensors: what the engine copies is bounded by them. */
static bool is_segment(const struct pickle_node *s, int world_size)
{
    int64_t numel, padded;
    return pickle_is(s, PICKLE_DICT) && are_names(pickle_get(s, "params")) &&
           pickle_to_int(pickle_get(s, "tensor_size"), &numel) &&
           pickle_to_int(pickle_get(s, "corrected_tensor_size"), &padded) && numel >= 0 &&
           padded >= numel && padded % world_size == 0 &&
           is_vector(pickle_get(s, "worker_error"), padded) &&
           is_vector(pickle_get(s, "server_error"), padded / world_size);
}

/* "state" is empty except for ZeroOneAdam after its freeze, whose moments differ between ranks. */
static cz_status check_body(struct ckpt_onebit_file *f)
{
    f->segments = pickle_get(pt_root(f->pt), "segments");
    f->state = pickle_get(pt_root(f->pt), "state");
    if (!pickle_is(f->segments, PICKLE_LIST) || !pickle_is(f->state, PICKLE_DICT))
        return corrupt(f->pt, "\"segments\" or \"state\" is missing");
    for (size_t i = 0; i < f->segments->n; i++)
        if (!is_segment(f->segments->items[i], f->world_size))
            return err_set(CZ_CORRUPT, 0, "%s: segment %zu: sizes and tensors do not fit",
                           pt_path(f->pt), i);
    return CZ_OK;
}

/* ---- life ------------------------------------------------------------------------------------ */

/* A missing file is damage, not "not found": czero_state.json says that every rank has one. */
static cz_status open_named(const struct ckpt_onebit_want *want, struct pt **pt)
{
    char name[CKPT_NAME_MAX];
    ckpt_onebit_name(want->rank, name);
    char *path = file_join(want->tag_dir, name);
    if (!path) return err_set(CZ_NOMEM, 0, "no memory for a path");
    cz_status st = pt_open_in(want->tag_dir, name, pt);
    if (st == CZ_NOTFOUND)
        st = err_set(CZ_CORRUPT, 0,
                     "%s: is missing: it contains the compression errors of rank %d of %d", path,
                     want->rank, want->world_size);
    free(path);
    return st;
}

cz_status ckpt_onebit_open(const struct ckpt_onebit_want *want, struct ckpt_onebit_file **out)
{
    *out = NULL;
    struct ckpt_onebit_file *f = calloc(1, sizeof *f);
    if (!f) return err_set(CZ_NOMEM, 0, "no memory to read errors");
    f->world_size = want->world_size;
    cz_status st = open_named(want, &f->pt);
    if (st == CZ_OK) st = check_head(f->pt, want);
    if (st == CZ_OK) st = check_body(f);
    if (st != CZ_OK) {
        ckpt_onebit_close(f);
        return st;
    }
    *out = f;
    return CZ_OK;
}

void ckpt_onebit_close(struct ckpt_onebit_file *f)
{
    if (!f) return;
    pt_close(f->pt);
    free(f);
}

const char *ckpt_onebit_path(const struct ckpt_onebit_file *f)
{
    return pt_path(f->pt);
}

/* ---- reading --------------------------------------------------------------------------------- */

size_t ckpt_onebit_n_segments(const struct ckpt_onebit_file *f)
{
    return f->segments->n;
}

/* Numbers were checked when the file was opened, so nothing can fail here. */
struct ckpt_onebit_segment ckpt_onebit_segment_at(const struct ckpt_onebit_file *f, size_t idx)
{
    const struct pickle_node *s = f->segments->items[idx];
    int64_t numel = 0, padded = 0; /* checked at the open */
    pickle_to_int(pickle_get(s, "tensor_size"), &numel);
    pickle_to_int(pickle_get(s, "corrected_tensor_size"), &padded);
    return (struct ckpt_onebit_segment){.n_params = pickle_get(s, "params")->n,
                                        .numel = (uint64_t)numel,
                                        .numel_padded = (uint64_t)padded};
}

const char *ckpt_onebit_param(const struct ckpt_onebit_file *f, size_t segment_idx, size_t param)
{
    return pickle_to_string(pickle_get(f->segments->items[segment_idx], "params")->items[param]);
}

cz_status ckpt_onebit_read(const struct ckpt_onebit_file *f, size_t segment_idx, bool is_server,
                           uint64_t off, size_t numel, float *dst)
{
    const struct pickle_node *node =
        pickle_get(f->segments->items[segment_idx], is_server ? "server_error" : "worker_error");
    return pt_read_f32(f->pt, node->tensor, off, numel, dst);
}

bool ckpt_onebit_has_states(const struct ckpt_onebit_file *f)
{
    return f->state->n_pairs > 0;
}

/* off and numel come from the engine's layout, which is this run's: the file's tensor may be
 * another model's. */
cz_status ckpt_onebit_read_state(const struct ckpt_onebit_file *f, const char *param,
                                 const char *key, uint64_t off, size_t numel, float *dst)
{
    const struct pickle_node *node = pickle_get(pickle_get(f->state, param), key);
    if (!pickle_is(node, PICKLE_TENSOR))
        return err_set(CZ_NOTFOUND, 0, "%s: does not contain %s of %s", pt_path(f->pt), key, param);
    if (off > node->tensor->numel || numel > node->tensor->numel - off)
        return err_set(CZ_CORRUPT, 0, "%s: %s of %s has %llu elements only", pt_path(f->pt), key,
                       param, (unsigned long long)node->tensor->numel);
    return pt_read_f32(f->pt, node->tensor, off, numel, dst);
}
