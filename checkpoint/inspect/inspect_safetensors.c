/* A safetensors file, or a folder of them. */
#include "checkpoint/inspect/inspect_impl.h"

#include <inttypes.h>
#include <string.h>

#define TENSORS_MAX 64 /* lines, unless --all */

struct tensor_of {
    const struct safetensors *st;
    const struct safetensors_info *info;
};

static cz_status read_bytes(const void *of, uint64_t off, size_t numel, void *dst)
{
    const struct tensor_of *t = of;
    return safetensors_read(t->st, t->info, off, numel, dst);
}

static cz_status read_values(const void *of, uint64_t off, size_t numel, float *dst)
{
    const struct tensor_of *t = of;
    return safetensors_read_f32(t->st, t->info, off, numel, dst);
}

/* *has false: elements of less than a byte, which have no address of their own. */
static cz_status sum(const struct safetensors *st, const struct safetensors_info *info,
                     struct inspect_sums *sums, bool *has)
{
    const struct tensor_of of = {st, info};
    const unsigned bits = safetensors_dtype_bits(info->dtype);
    *has = bits >= 8;
    if (!*has) return CZ_OK;
    const struct inspect_source source = {&of, read_bytes, read_values, info->numel, bits / 8};
    return inspect_sum(&source, sums);
}

/* ---- people ---------------------------------------------------------------------------------- */

static int name_columns(const struct safetensors *st)
{
    size_t width = 0;
    for (size_t i = 0; i < safetensors_count(st); i++) {
        const size_t n = strlen(safetensors_at(st, i)->name);
        if (n > width) width = n;
    }
    return width > 60 ? 60 : (int)width;
}

static void put_head(struct inspect *in, const struct safetensors *st)
{
    char size[INSPECT_SIZE_NBYTES];
    uint64_t nbytes = 0, numel = 0;
    const char *key, *value;
    for (size_t i = 0; i < safetensors_count(st); i++) {
        nbytes += safetensors_at(st, i)->nbytes;
        numel += safetensors_at(st, i)->numel;
    }
    inspect_puts(in, in->options->path);
    json_write_format(&in->w,
                      ": safetensors, %zu tensor%s, %" PRIu64 " elements, %s in %zu file%s\n",
                      safetensors_count(st), safetensors_count(st) == 1 ? "" : "s", numel,
                      inspect_size(nbytes, size), safetensors_n_files(st),
                      safetensors_n_files(st) == 1 ? "" : "s");
    for (size_t i = 0; i < safetensors_n_metadata(st); i++) {
        safetensors_metadata_at(st, i, &key, &value);
        json_write_text(&in->w, i == 0 ? "metadata\n  " : "  ");
        inspect_puts(in, key);
        json_write_text(&in->w, ": ");
        inspect_puts(in, value);
        json_write_text(&in->w, "\n");
    }
}

static cz_status put_all(struct inspect *in, const struct safetensors *st)
{
    const size_t n = safetensors_count(st);
    const int width = name_columns(st);
    const struct inspect_window window = inspect_window(in, n, TENSORS_MAX);
    put_head(in, st);
    if (n > 0) json_write_text(&in->w, "tensors\n");
    for (size_t i = 0; i < n; i++) {
        if (i == window.head && i < window.tail_begin) {
            json_write_format(&in->w, "  … %zu more\n", window.tail_begin - window.head);
            i = window.tail_begin;
        }
        char shape[INSPECT_SHAPE_NBYTES];
        struct inspect_sums sums;
        bool has;
        const struct safetensors_info *info = safetensors_at(st, i);
        inspect_indent(in, 2);
        inspect_column(in, info->name, width);
        json_write_format(&in->w, "  %-5s %s", safetensors_dtype_name(info->dtype),
                          inspect_shape(info->shape, info->ndim, shape));
        if (in->options->sums) {
            TRY(sum(st, info, &sums, &has));
            if (has) inspect_put_sums(in, &sums);
        }
        json_write_text(&in->w, "\n");
    }
    return CZ_OK;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static cz_status json_tensor(struct inspect *in, const struct safetensors *st, size_t idx)
{
    struct inspect_sums sums;
    bool has;
    const struct safetensors_info *info = safetensors_at(st, idx);
    const int indent = in->w.indent;
    json_begin_object(&in->w);
    in->w.indent = 0;
    inspect_json_string(in, "name", info->name);
    inspect_json_string(in, "dtype", safetensors_dtype_name(info->dtype));
    inspect_json_shape(in, info->shape, info->ndim);
    inspect_json_string(in, "file", info->path);
    json_put_int(&in->w, "off", (int64_t)info->file_off);
    json_put_int(&in->w, "nbytes", (int64_t)info->nbytes);
    if (in->options->sums) {
        TRY(sum(st, info, &sums, &has));
        if (has) inspect_json_sums(in, &sums);
    }
    json_end_object(&in->w);
    in->w.indent = indent;
    return CZ_OK;
}

static cz_status json_all(struct inspect *in, const struct safetensors *st)
{
    const char *key, *value;
    json_begin_object(&in->w);
    inspect_json_string(in, "kind", "safetensors");
    inspect_json_string(in, "path", in->options->path);
    json_put_int(&in->w, "n_files", (int64_t)safetensors_n_files(st));
    json_write_key(&in->w, "metadata");
    json_begin_object(&in->w);
    for (size_t i = 0; i < safetensors_n_metadata(st); i++) {
        safetensors_metadata_at(st, i, &key, &value);
        inspect_json_key(in, key, strlen(key));
        inspect_json_text(in, value, strlen(value));
    }
    json_end_object(&in->w);
    json_write_key(&in->w, "tensors");
    json_begin_array(&in->w);
    for (size_t i = 0; i < safetensors_count(st); i++) TRY(json_tensor(in, st, i));
    json_end_array(&in->w);
    json_end_object(&in->w);
    return CZ_OK;
}

cz_status inspect_safetensors(struct inspect *in, struct safetensors *st)
{
    return in->options->json ? json_all(in, st) : put_all(in, st);
}
