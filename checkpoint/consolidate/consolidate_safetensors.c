/* Output as safetensors. The format refuses tensors that share bytes, so a tied name goes into the
 * metadata, as alias: kept name; Hugging Face's loaders tie again by the model's config. */
#include "checkpoint/consolidate/consolidate_impl.h"
#include "formats/safetensors/safetensors.h"

#include <stdlib.h>
#include <string.h>

/* torch dtypes that czero does not compute with but safetensors has: copied as bytes. */
static cz_status dtype_of(const struct cons_tensor *t, enum safetensors_dtype *out)
{
    static const struct {
        const char *torch_name;
        enum safetensors_dtype dtype;
    } others[] = {{"uint16", SAFETENSORS_U16},
                  {"uint32", SAFETENSORS_U32},
                  {"uint64", SAFETENSORS_U64},
                  {"complex64", SAFETENSORS_C64}};
    if (t->dtype->has_base) {
        *out = safetensors_dtype_from_base(t->dtype->base);
        return CZ_OK;
    }
    for (size_t i = 0; i < CZ_ARRAY_LEN(others); i++)
        if (strcmp(t->dtype->torch_name, others[i].torch_name) == 0) {
            *out = others[i].dtype;
            return CZ_OK;
        }
    return err_set(CZ_UNSUPPORTED, 0, "%s: safetensors has no %s", t->tensor->name,
                   t->dtype->torch_name);
}

static cz_status make_decls(const struct cons_plan *plan, struct safetensors_decl *decls)
{
    for (size_t i = 0; i < plan->n; i++) {
        const struct cons_tensor *t = &plan->tensors[i];
        decls[i] = (struct safetensors_decl){
            .name = t->tensor->name, .shape = t->tensor->shape, .ndim = (size_t)t->tensor->ndim};
        TRY(dtype_of(t, &decls[i].dtype));
    }
    return CZ_OK;
}

static void make_metadata(const struct cons_plan *plan, struct safetensors_metadata *metadata)
{
    *metadata++ = (struct safetensors_metadata){"format", "pt"};
    for (size_t i = 0; i < plan->n; i++) {
        const struct ckpt_tensor *t = plan->tensors[i].tensor;
        for (size_t a = 0; a < t->n_aliases; a++)
            *metadata++ = (struct safetensors_metadata){t->aliases[a], t->name};
    }
}

/* The layout is made by the writer; place and file of each tensor are kept, to deal the work by. */
static cz_status st_create(struct cons_plan *plan, void **sink)
{
    const struct cz_consolidate_options *o = plan->options;
    const size_t n_metadata = 1 + plan->n_aliases;
    struct safetensors_decl *decls = calloc(plan->n, sizeof *decls);
    struct safetensors_metadata *metadata = calloc(n_metadata, sizeof *metadata);
    struct safetensors_writer *w = NULL;
    cz_status st;
    if (!decls || !metadata) {
        st = err_set(CZ_NOMEM, 0, "no memory for a list of %zu tensors", plan->n);
        goto done;
    }
    TRY_GOTO(make_decls(plan, decls), done);
    make_metadata(plan, metadata);
    TRY_GOTO(safetensors_dir_create(o->out_dir, o->shard_nbytes_max, decls, plan->n, metadata,
                                    n_metadata, &w),
             done);
    for (size_t i = 0; i < plan->n; i++) {
        struct cons_tensor *t = &plan->tensors[i];
        safetensors_place(w, i, &t->file_idx, &t->file_off);
        t->storage_idx = i;
    }
    *sink = w;
done:
    free(decls);
    free(metadata);
    return st;
}

static size_t st_n_files(const void *sink)
{
    return safetensors_writer_n_files(sink);
}

static cz_status st_write(void *sink, const struct cons_tensor *t, uint64_t elem_off, size_t numel,
                          const void *src)
{
    return safetensors_write(sink, t->storage_idx, elem_off, numel, src);
}

static cz_status st_finish(void *sink)
{
    return safetensors_finish(sink);
}

static void st_destroy(void *sink)
{
    safetensors_writer_destroy(sink);
}

static cz_status st_open(const struct cons_plan *plan, void **output)
{
    struct safetensors *st = NULL;
    TRY(safetensors_dir_open(plan->options->out_dir, &st));
    *output = st;
    return CZ_OK;
}

static cz_status st_read(const void *output, const struct cons_tensor *t, uint64_t elem_off,
                         size_t numel, void *dst)
{
    const struct safetensors_info *info = safetensors_find(output, t->tensor->name);
    if (!info)
        return err_set(CZ_CORRUPT, 0, "%s: is missing from what was written", t->tensor->name);
    return safetensors_read(output, info, elem_off, numel, dst);
}

static void st_close(void *output)
{
    safetensors_close(output);
}

const struct cons_sink_class cons_sink_safetensors = {
    st_create, st_n_files, st_write, st_finish, st_destroy, st_open, st_read, st_close,
};
