/* Writing a Hugging Face folder: config.json and model.safetensors, both durable (and the
 * generation_config.json that came with the model), the config put
 * into place last, so that a folder with a config has its weights. The config is the one that was
 * read, with the dtype replaced and without what tells where it comes from (json_is_trace()): other
 * keys that czero does not know survive. */
#include "formats/file_io.h"
#include "formats/json/json_copy.h"
#include "formats/output.h"
#include "formats/safetensors/safetensors.h"
#include "model/model_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The names that config.json uses. */
static const char *torch_name(enum cz_dtype dtype)
{
    switch (dtype) {
    case DTYPE_F32: return "float32";
    case DTYPE_BF16: return "bfloat16";
    case DTYPE_F16: return "float16";
    default: return NULL;
    }
}

/* ---- config.json ---------------------------------------------------------------------------- */

/* The config with its dtype replaced, under the key it uses: transformers 5 writes "dtype", older
 * versions "torch_dtype"; both read the latter. */
static cz_status config_write(struct json_writer *w, const struct cz_model *m, const char *dtype)
{
    const struct json_node *config = json_root(m->config);
    const char *key = json_get(config, "dtype") ? "dtype" : "torch_dtype", *eos = "eos_token_id";
    json_begin_object(w);
    for (size_t i = 0; i < json_count(config); i++) {
        const struct json_node *child = json_child(config, i);
        const char *name = json_key(child);
        if (strcmp(name, "dtype") == 0 || strcmp(name, "torch_dtype") == 0) continue;
        if (json_is_trace(child)) continue;
        if (m->new_ends.n > 0 && strcmp(name, eos) == 0) {
            json_put_int(w, eos, m->new_ends.ids[0]);
            continue;
        }
        json_write_key(w, name);
        TRY(json_write_node(w, child, json_is_trace));
    }
    if (m->new_ends.n > 0 && !json_get(config, eos)) json_put_int(w, eos, m->new_ends.ids[0]);
    json_put_string(w, key, dtype);
    json_end_object(w);
    return CZ_OK;
}

/* On failure the writer's buffer is freed here: taking it would have passed it on. */
static cz_status config_text(const struct cz_model *m, enum cz_dtype dtype, char **text,
                             size_t *nbytes)
{
    struct json_writer w;
    json_writer_init(&w, 2);
    cz_status st = config_write(&w, m, torch_name(dtype));
    if (st != CZ_OK) {
        json_writer_free(&w);
        return st;
    }
    TRY(json_writer_take(&w, text, nbytes));
    char *grown = realloc(*text, *nbytes + 2);
    if (!grown) return err_set(CZ_NOMEM, 0, "no memory to write config.json");
    memcpy(grown + *nbytes, "\n", 2);
    *text = grown;
    ++*nbytes;
    return CZ_OK;
}

/* The config under its temporary name, synced: what is left to do can hardly fail. */
static cz_status config_prepare(const struct cz_model *m, const struct out_folder *in,
                                enum cz_dtype dtype, struct file_durable *file)
{
    cz_status st;
    char *text = NULL;
    size_t nbytes = 0;
    TRY_GOTO(config_text(m, dtype, &text, &nbytes), done);
    TRY_GOTO(file_durable_create_in(file, in, "config.json", nbytes), done);
    TRY_GOTO(file_pwrite(file->fd, file->path, text, nbytes, 0), done);
    TRY_GOTO(file_durable_sync(file), done);
done:
    free(text);
    return st;
}

/* ---- model.safetensors ---------------------------------------------------------------------- */

/* Round n fp32 numbers to 16 bits, in place: element i moves to a lower address. */
static void narrow(float *x, size_t n, enum cz_dtype dtype)
{
    uint16_t *y = (uint16_t *)(void *)x;
    for (size_t i = 0; i < n; i++) {
        float v;
        memcpy(&v, &x[i], sizeof v);
        uint16_t h = dtype == DTYPE_BF16 ? f32_to_bf16(v) : f32_to_f16(v);
        memcpy(&y[i], &h, sizeof h);
    }
}

/* No program could use such weights, and most load them without a word. */
static cz_status check_finite(const float *x, size_t n, enum cz_dtype dtype, const char *name,
                              size_t off)
{
    const size_t i = dtype_first_nonfinite(x, n, DTYPE_F32);
    if (i < n)
        return err_set(CZ_DIVERGED, 0,
                       "%s: element %zu is %s: weights that are not finite are not "
                       "exported",
                       name, off + i, dtype_nonfinite_name((double)x[i]));
    /* from here on they round to infinity */
    const float limit = dtype == DTYPE_F16 ? 65520 : 0x1.ffp127f;
    for (size_t k = 0; dtype != DTYPE_F32 && k < n; k++)
        if (fabsf(x[k]) >= limit)
            return err_set(CZ_INVALID, 0,
                           "%s: element %zu is %g, beyond %g, the largest of %s: export %s", name,
                           off + k, (double)x[k], dtype_largest(dtype), dtype_name(dtype),
                           dtype == DTYPE_F16 ? "bf16 or fp32" : "fp32");
    return CZ_OK;
}

/* In pieces: a whole embedding in fp32 may not fit beside the model. */
cz_status export_tensor(struct safetensors_writer *w, size_t decl_idx, size_t param_idx,
                        const struct param_info *p, enum cz_dtype dtype, model_fetch fetch,
                        void *user, float *piece)
{
    for (size_t off = 0; off < p->numel; off += EXPORT_PIECE_NUMEL) {
        size_t n = p->numel - off < EXPORT_PIECE_NUMEL ? p->numel - off : EXPORT_PIECE_NUMEL;
        TRY(fetch(user, param_idx, off, n, piece));
        TRY(check_finite(piece, n, dtype, p->name, off));
        if (dtype != DTYPE_F32) narrow(piece, n, dtype);
        TRY(safetensors_write(w, decl_idx, off, n, piece));
    }
    return CZ_OK;
}

/* Every parameter, and the aliases that are stored once more. Returns how many; param_of: of which
 * parameter each is. Both have space for all names. */
static size_t tensors_list(const struct cz_model *m, enum cz_dtype dtype,
                           struct safetensors_decl *decls, size_t *param_of)
{
    const struct param_table *t = &m->params;
    size_t n = 0;
    for (size_t i = 0; i < t->n_params + t->n_aliases; i++) {
        const struct param_alias *alias = i < t->n_params ? NULL : &t->aliases[i - t->n_params];
        if (alias && !alias->is_stored) continue;
        const struct param_info *p = &t->params[alias ? alias->param_idx : i];
        if (p->is_adapter) continue;
        param_of[n] = alias ? alias->param_idx : i;
        decls[n++] = (struct safetensors_decl){alias ? alias->name : p->name,
                                               safetensors_dtype_from_base(dtype), p->shape,
                                               (size_t)p->ndim};
    }
    return n;
}

/* Ranks other than the writer serve fetch(); see engine/state/export.c. */
static cz_status tensors_write(const struct cz_model *m, const char *dir, enum cz_dtype dtype,
                               model_fetch fetch, void *user)
{
    cz_status st;
    const size_t n_max = m->params.n_params + m->params.n_aliases;
    struct safetensors_writer *w = NULL;
    struct safetensors_decl *decls = calloc(n_max, sizeof *decls);
    size_t *param_of = calloc(n_max, sizeof *param_of);
    float *piece = malloc(EXPORT_PIECE_NUMEL * sizeof *piece);
    if (!decls || !param_of || !piece) {
        st = err_set(CZ_NOMEM, 0, "no memory to export %s", m->name);
        goto done;
    }
    const size_t n = tensors_list(m, dtype, decls, param_of);
    TRY_GOTO(safetensors_dir_create(dir, 0, decls, n, NULL, 0, &w), done);
    for (size_t i = 0; i < n; i++)
        TRY_GOTO(export_tensor(w, i, param_of[i], &m->params.params[param_of[i]], dtype, fetch,
                               user, piece),
                 done);
    TRY_GOTO(safetensors_finish(w), done);
done:
    safetensors_writer_destroy(w);
    free(piece);
    free(param_of);
    free(decls);
    return st;
}

/* A chain that a program built itself has no config that transformers would know. */
static cz_status check_exportable(const struct cz_model *m, enum cz_dtype dtype)
{
    if (!m->config)
        return err_set(CZ_UNSUPPORTED, 0,
                       "%s is a custom chain of layers, not a Hugging Face model: it has no "
                       "config.json to export",
                       m->name);
    if (!torch_name(dtype))
        return err_set(CZ_INVALID, 0, "weights are exported as fp32, bf16 or fp16, not %s",
                       dtype_name(dtype));
    return CZ_OK;
}

/* For checkpoints that are exported from files: the weights come from elsewhere. */
cz_status model_export_config(const struct cz_model *m, const struct out_folder *in,
                              enum cz_dtype dtype)
{
    struct file_durable config = {.fd = -1};
    TRY(check_exportable(m, dtype));
    cz_status st = config_prepare(m, in, dtype, &config);
    if (st == CZ_OK) st = generation_write(m, in);
    if (st == CZ_OK) st = file_durable_commit(&config);
    file_durable_abort(&config);
    return st;
}

/* A folder that was made here is removed again if writing fails. */
cz_status model_export_hf(const struct cz_model *m, const char *dir, enum cz_dtype dtype,
                          model_fetch fetch, void *user)
{
    TRY(check_exportable(m, dtype));
    struct file_durable config = {.fd = -1};
    struct out_folder folder;
    cz_status st;
    TRY(out_folder_open(dir, &folder));
    TRY_GOTO(config_prepare(m, &folder, dtype, &config), fail);
    TRY_GOTO(tensors_write(m, dir, dtype, fetch, user), fail);
    TRY_GOTO(generation_write(m, &folder), fail);
    TRY_GOTO(file_durable_rename(&config), fail);
    TRY_GOTO(file_durable_sync_folder(&config), fail);
fail:
    file_durable_abort(&config); /* one that is in place is only released */
    if (st == CZ_OK)
        out_folder_close(&folder);
    else
        out_folder_abandon(&folder); /* it stays if the weights are complete in it */
    return st;
}
