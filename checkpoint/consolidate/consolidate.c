#include <czero/checkpoint.h>

#include "base/log.h"
#include "base/options.h"
#include "checkpoint/consolidate/consolidate_impl.h"
#include "checkpoint/read/checkpoint.h"
#include "formats/file_io.h"

#include <string.h>
#include <unistd.h>

struct copy {
    const struct cons_plan *plan;
    const struct cons_sink_class *cls;
    void *sink;
};

static cz_status copy_piece(void *user, const struct cons_tensor *t, uint64_t elem_off,
                            size_t numel, void *buf, void *buf2)
{
    const struct copy *c = user;
    (void)buf2;
    TRY(cons_fetch(c->plan, t, elem_off, numel, buf));
    return c->cls->write(c->sink, t, elem_off, numel, buf);
}

/* The copying has failed already: that is the error. */
static void end_quietly(struct cons_check *check)
{
    struct err error;
    err_capture(&error);
    cons_check_end(check);
    err_restore(&error);
}

static cz_status write_output(struct cons_plan *plan, const struct cons_sink_class *cls,
                              size_t *n_files)
{
    cz_status st;
    const bool verify = plan->options->verify;
    struct copy c = {plan, cls, NULL};
    struct cons_check *check = NULL;
    TRY_GOTO(cls->create(plan, &c.sink), done);
    TRY_GOTO(cons_check_begin(plan, &check), done);
    *n_files = cls->n_files(c.sink);
    TRY_GOTO(cons_for_each_piece(plan, copy_piece, &c, false, 0, plan->nbytes * (verify ? 2 : 1)),
             done);
    st = cons_check_end(check);
    check = NULL;
    TRY_GOTO(st, done);
    TRY_GOTO(cls->finish(c.sink), done);
done:
    if (st != CZ_OK) end_quietly(check);
    cls->destroy(c.sink);
    return st;
}

static cz_status check_options(const struct cz_consolidate_options *o)
{
    if (o->has_dtype && o->dtype != DTYPE_F32 && o->dtype != DTYPE_BF16 && o->dtype != DTYPE_F16)
        return err_set(CZ_INVALID, 0, "weights are written as fp32, bf16 or fp16, not %s",
                       dtype_name(o->dtype));
    if (!*o->out_dir) return err_set(CZ_INVALID, 0, "the output folder has no name");
    return CZ_OK;
}

/* A model with holes loads without a word in many programs. */
static void warn_absent(const struct ckpt *ck, const struct cz_consolidate_options *o)
{
    const struct ckpt_info *info = ckpt_get_info(ck);
    if (info->n_absent == 0 || o->exclude_frozen) return;
    LOGV(LOG_WARN, SUB_CKPT, "%s: %zu weight%s of the model %s not saved in it: %s%s",
         info->tag_dir, info->n_absent, info->n_absent == 1 ? "" : "s",
         info->n_absent == 1 ? "is" : "are", info->absent[0], info->n_absent == 1 ? "" : " …");
}

static cz_status consolidate(const struct cz_consolidate_options *options,
                             struct cz_consolidate_result *result)
{
    const struct cons_sink_class *cls =
        options->format == CZ_CONSOLIDATE_SAFETENSORS ? &cons_sink_safetensors : &cons_sink_bin;
    const struct ckpt_open_options open = {
        .dir = options->dir, .tag = options->tag, .weights_only = true};
    struct cons_plan plan = {0};
    struct ckpt *ck = NULL;
    cz_status st;
    TRY(check_options(options));
    const bool existed = file_exists(options->out_dir);
    TRY_GOTO(ckpt_open(&open, &ck), fail);
    warn_absent(ck, options);
    TRY_GOTO(cons_plan_init(&plan, ck, options), fail);
    TRY_GOTO(write_output(&plan, cls, &result->n_files), fail);
    if (options->verify) TRY_GOTO(cons_verify(&plan, cls), fail);
    result->n_tensors = plan.n;
    result->n_aliases = plan.n_aliases;
    result->numel = plan.numel;
    result->nbytes = plan.nbytes;
fail:
    if (st != CZ_OK && !existed) rmdir(options->out_dir); /* ours, if it is empty */
    cons_plan_free(&plan);
    ckpt_close(ck);
    return st;
}

cz_status cz_consolidate(const struct cz_consolidate_options *options,
                         struct cz_consolidate_result *result)
{
    struct cz_consolidate_options ours;
    struct cz_consolidate_result done = {0};
    TRY(OPTIONS_TAKE(cz_consolidate_options, &ours, options));
    if (result) TRY(OPTIONS_GIVE(cz_consolidate_result, result, &done));
    TRY(consolidate(&ours, &done));
    return result ? OPTIONS_GIVE(cz_consolidate_result, result, &done) : CZ_OK;
}
