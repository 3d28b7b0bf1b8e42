/* flops_profiler: time and operations of each layer's forward in one step. It hangs on the chain's
 * hooks and costs nothing in other steps; in the profiled one a GPU is waited for around every
 * layer, so that step is slower than the rest. */
#include "engine/report/profiler_impl.h"

#include "base/clock.h"
#include "engine/chain/chain_impl.h"
#include "formats/file_io.h"

#include <stdlib.h>
#include <string.h>

struct profiler {
    const struct config_flops_profiler *config;
    char *output_path; /* NULL: the log */
    const struct chain *chain;
    struct profile profile;
    bool active;      /* between begin and end */
    int64_t since_ns; /* of the layer in work */
};

/* ---- creation -------------------------------------------------------------------------------- */

static size_t layer_numel(const struct param_table *params, const struct model_layer *layer)
{
    size_t numel = 0;
    for (size_t i = 0; i < layer->n_params; i++) numel += params->params[layer->param_idx[i]].numel;
    return numel;
}

static const char *output_file(const struct config_flops_profiler *config)
{
    return config->output_file && *config->output_file ? config->output_file : NULL;
}

/* Operations come from the layers' own figures for the planned shape, as in the plan. */
cz_status profiler_create(const struct config_flops_profiler *config, const struct chain *chain,
                          const struct cz_model *model, struct profiler **out)
{
    size_t n = chain_n_layers(chain);
    *out = NULL;
    /* The folder is made now: a run must not fail for it at the profiled step, hours later. */
    if (output_file(config)) {
        const char *path = output_file(config);
        const char *slash = strrchr(path, '/');
        if (slash && slash != path) {
            char *dir = strndup(path, (size_t)(slash - path));
            if (!dir) return err_set(CZ_NOMEM, 0, "no memory for the flops profiler");
            cz_status st = file_make_dirs(dir);
            free(dir);
            if (st != CZ_OK) return err_prefix("flops_profiler.output_file");
        }
    }
    struct profiler *p = calloc(1, sizeof *p);
    struct profile_layer *layers = calloc(n, sizeof *layers);
    if (!p || !layers) {
        free(p);
        free(layers);
        return err_set(CZ_NOMEM, 0, "no memory for the flops profiler");
    }
    p->config = config;
    if (output_file(config) && file_absolute(output_file(config), &p->output_path) != CZ_OK) {
        profiler_destroy(p);
        free(layers);
        return err_prefix("flops_profiler.output_file");
    }
    p->chain = chain;
    p->profile = (struct profile){.model_name = cz_model_name(model),
                                  .params = model_params(model),
                                  .layers = layers,
                                  .n_layers = n,
                                  .numel = param_table_numel(model_params(model), false)};
    for (size_t i = 0; i < n; i++) {
        const struct model_layer *layer = chain_layer(chain, i);
        layers[i] = (struct profile_layer){.cls = layer->cls->name,
                                           .numel = layer_numel(p->profile.params, layer),
                                           .param_idx = layer->param_idx,
                                           .n_params = layer->n_params};
    }
    *out = p;
    return CZ_OK;
}

void profiler_destroy(struct profiler *p)
{
    if (!p) return;
    free(p->profile.layers);
    free(p->output_path);
    free(p);
}

/* ---- measuring ------------------------------------------------------------------------------- */

bool profiler_is_due(const struct profiler *p, int64_t global_steps)
{
    return p && global_steps == p->config->profile_step;
}

/* At the batch's real shape, which may be smaller than the planned one. */
cz_status profiler_begin(struct profiler *p, struct chain_shape shape)
{
    for (size_t i = 0; i < p->profile.n_layers; i++) {
        struct layer_sizes sizes;
        TRY(chain_layer_size(p->chain, i, shape, &sizes));
        p->profile.layers[i].flops += sizes.flops_forward;
    }
    p->profile.n_forwards++;
    p->active = true;
    return CZ_OK;
}

void profiler_end(struct profiler *p)
{
    p->active = false;
}

/* A GPU is waited for, so that a layer's time is its own; a failure shows at the next wait. */
static void wait_for_layer(const struct profiler *p)
{
    struct device *device = ops_device(p->chain->options.ops);
    if (device->ops->kind != DEVICE_HOST)
        (void)device->ops->stream_sync(device, p->chain->runs[0].stream);
}

/* Recomputed layers come here again: they are not counted, because backward has begun and `active`
 * is off. */
void profiler_enter(struct profiler *p)
{
    if (!p || !p->active) return;
    wait_for_layer(p);
    p->since_ns = clock_now_ns();
}

void profiler_leave(struct profiler *p, size_t layer_idx)
{
    if (!p || !p->active) return;
    wait_for_layer(p);
    p->profile.layers[layer_idx].forward_ns += clock_now_ns() - p->since_ns;
}

/* ---- the report ------------------------------------------------------------------------------ */

struct output {
    struct file_durable file;
    char buf[4096];
    size_t used;
    uint64_t written;
};

static cz_status flush(struct output *o)
{
    TRY(file_pwrite(o->file.fd, o->file.path, o->buf, o->used, o->written));
    o->written += o->used;
    o->used = 0;
    return CZ_OK;
}

static cz_status write_line(void *user, const char *line)
{
    struct output *o = user;
    size_t nbytes = strlen(line); /* less than REPORT_LINE_NBYTES, half the buffer */
    if (o->used + nbytes + 1 > sizeof o->buf) TRY(flush(o));
    memcpy(o->buf + o->used, line, nbytes);
    o->used += nbytes;
    o->buf[o->used++] = '\n';
    return CZ_OK;
}

/* Written under another name and renamed: a reader never sees half a report. */
static cz_status report_to_file(const struct profiler *p, const struct profiler_step *step,
                                const char *path)
{
    struct output o;
    cz_status st;
    memset(&o, 0, sizeof o);
    TRY(file_durable_create(&o.file, path, 0));
    TRY_GOTO(profile_print(&p->profile, p->config, step, write_line, &o), done);
    TRY_GOTO(flush(&o), done);
    TRY_GOTO(file_durable_commit(&o.file), done);
done:
    file_durable_abort(&o.file);
    return st == CZ_OK ? CZ_OK : err_prefix("flops_profiler.output_file");
}

cz_status profiler_report(struct profiler *p, const struct profiler_step *step, profiler_line line,
                          void *user)
{
    const char *path = p->output_path;
    if (path) return report_to_file(p, step, path);
    return profile_print(&p->profile, p->config, step, line, user);
}
