/* Consolidation, the work of zero_to_fp32: one folder of weights out of the files of all ranks
 * (docs/zero_to_fp32.md; DeepSpeed's: docs/deepspeed-behaviour.md, "Consolidation").
 *
 * The plan (which tensors, in which order, of which dtype) and the output files' layout are made
 * before the first element is copied, so a run that cannot succeed leaves nothing behind. Elements
 * go piece by piece from shards to output, several threads at a time; memory does not grow with the
 * model. Meanwhile a thread checks the sums of the records that are read, which torch itself never
 * does. */
#include <czero/checkpoint.h>

#include "base/host/entry.h"
#include "base/host/thread.h"
#include "base/log.h"
#include "base/options.h"
#include "checkpoint/consolidate/consolidate_impl.h"
#include "checkpoint/read/checkpoint.h"
#include "formats/file_io.h"
#include "formats/output.h"
#include "formats/pt/pt.h"

#include <ctype.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- sizes as users write them --------------------------------------------------------------- */

/* Decimal, as DeepSpeed and Hugging Face count: 5GB is 5·10⁹ bytes. */
static bool unit_factor(const char *unit, double *factor)
{
    static const char *const units[] = {"KB", "MB", "GB", "TB"};
    *factor = 1;
    if (!*unit) return true;
    for (size_t i = 0; i < CZ_ARRAY_LEN(units); i++) {
        *factor *= 1000;
        if (toupper((unsigned char)unit[0]) == units[i][0] &&
            toupper((unsigned char)unit[1]) == 'B' && unit[2] == '\0')
            return true;
    }
    return false;
}

/* strtod() would take "inf", "nan" and hexadecimal, so the first character must be a digit or a
 * point. */
cz_status cz_parse_size(const char *text, uint64_t *nbytes)
{
    API_ENTRY;
    NEED(text, "text");
    NEED(nbytes, "nbytes");
    char word[64], *end;
    double factor;
    while (isspace((unsigned char)*text)) text++;
    size_t len = strlen(text);
    while (len > 0 && isspace((unsigned char)text[len - 1])) len--;
    if (len == 0 || len >= sizeof word || !(isdigit((unsigned char)*text) || *text == '.'))
        return err_set(CZ_INVALID, 0, "\"%s\" is not a size: write 5GB, 200MB or 1.5TB", text);
    memcpy(word, text, len);
    word[len] = '\0';
    double number = strtod(word, &end);
    while (isspace((unsigned char)*end)) end++;
    if (end == word || !unit_factor(end, &factor))
        return err_set(CZ_INVALID, 0, "\"%s\" is not a size: write 5GB, 200MB or 1.5TB", text);
    if (!(number * factor >= 1))
        return err_set(CZ_INVALID, 0, "\"%s\" is less than one byte", text);
    if (!(number * factor < 9e18))
        return err_set(CZ_INVALID, 0, "\"%s\" is more than any file can hold", text);
    *nbytes = (uint64_t)(number * factor);
    return CZ_OK;
}

/* ---- the plan -------------------------------------------------------------------------------- */

/* Floating-point tensors come out in one dtype; integers and masks keep theirs. */
static cz_status out_dtype(const struct cz_consolidate_options *o, const struct ckpt_tensor *t,
                           const struct pickle_dtype **out)
{
    *out = t->dtype;
    if (strncmp(t->dtype->torch_name, "float", 5) == 0 ||
        strncmp(t->dtype->torch_name, "bfloat", 6) == 0) {
        *out = pickle_dtype_of(o->has_dtype ? o->dtype : DTYPE_F32);
        if (!t->dtype->has_base && !pickle_is_float8(t->dtype))
            return err_set(CZ_UNSUPPORTED, 0, "%s: cannot be converted from %s to %s", t->name,
                           t->dtype->torch_name, (*out)->torch_name);
    }
    return CZ_OK;
}

/* Sums are checked for overflow: shapes come from a file. */
static cz_status add_tensor(struct cons_plan *plan, size_t idx)
{
    const struct ckpt_tensor *t = ckpt_at(plan->ck, idx);
    if (t->kind == CKPT_FROZEN && plan->options->exclude_frozen) return CZ_OK;
    struct cons_tensor *out = &plan->tensors[plan->n];
    out->idx = idx;
    out->tensor = t;
    TRY(out_dtype(plan->options, t, &out->dtype));
    if (__builtin_mul_overflow(t->numel, (uint64_t)out->dtype->size, &out->nbytes))
        return err_set(CZ_CORRUPT, 0, "%s: has impossibly many elements", t->name);
    const struct ckpt_info *info = ckpt_get_info(plan->ck);
    TRY(pt_count_elements(info->tag_dir, info->nbytes, &plan->nbytes, t->numel, out->dtype->size));
    plan->numel += t->numel;
    plan->n_aliases += t->n_aliases;
    plan->n++;
    return CZ_OK;
}

void cons_plan_free(struct cons_plan *plan)
{
    free(plan->tensors);
    memset(plan, 0, sizeof *plan);
}

/* In the order of DeepSpeed's script, so that outputs can be compared with its. */
cz_status cons_plan_init(struct cons_plan *plan, const struct ckpt *ck,
                         const struct cz_consolidate_options *options)
{
    const size_t n = ckpt_count(ck);
    size_t *order = malloc((n + 1) * sizeof *order);
    cz_status st = CZ_OK;
    memset(plan, 0, sizeof *plan);
    plan->options = options;
    plan->ck = ck;
    plan->tensors = calloc(n + 1, sizeof *plan->tensors);
    if (!order || !plan->tensors) {
        st = err_set(CZ_NOMEM, 0, "no memory for a list of %zu tensors", n);
        goto done;
    }
    ckpt_script_order(ck, order);
    for (size_t i = 0; i < n; i++) TRY_GOTO(add_tensor(plan, order[i]), done);
    if (plan->n == 0)
        st = err_set(CZ_INVALID, 0, "%s: there is nothing to write", ckpt_get_info(ck)->tag_dir);
done:
    free(order);
    if (st != CZ_OK) cons_plan_free(plan);
    return st;
}

/* ---- checking the shards --------------------------------------------------------------------- */

/* A byte of a file that weights are read from. It marks the record around it as used. */
struct source {
    size_t file_idx;
    uint64_t off;
};

struct cons_check {
    const struct ckpt *ck;
    struct source *sources; /* (n) by file, then by offset */
    size_t n, cap;
    pthread_t thread;
    bool has_thread;
    struct err err;
};

/* Where a tensor's elements begin in each shard. Strided tensors have no runs, and what was swapped
 * to NVMe has no sums. */
static cz_status add_tensor_sources(struct cons_check *c, const struct cons_tensor *t)
{
    struct ckpt_run run;
    for (uint64_t at = 0; at < t->tensor->numel; at += run.numel) {
        cz_status st = ckpt_run(c->ck, t->idx, CKPT_MASTER, at, &run);
        if (st == CZ_UNSUPPORTED) err_clear();
        if (st == CZ_UNSUPPORTED) return CZ_OK;
        TRY(st);
        if (c->n == c->cap) {
            size_t cap = c->cap ? 2 * c->cap : 256;
            struct source *grown = realloc(c->sources, cap * sizeof *grown);
            if (!grown) return err_set(CZ_NOMEM, 0, "no memory for %zu pieces of weights", cap);
            c->sources = grown;
            c->cap = cap;
        }
        c->sources[c->n++] = (struct source){run.file_idx, run.file_off};
    }
    return CZ_OK;
}

static int by_place(const void *left, const void *right)
{
    const struct source *a = left, *b = right;
    if (a->file_idx != b->file_idx) return a->file_idx < b->file_idx ? -1 : 1;
    return a->off < b->off ? -1 : a->off > b->off;
}

/* Only records that weights come from are checked: optimizer states are in the same files and are
 * twice as large. */
static bool is_used(const struct pt_record *r, const struct source *sources, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (sources[i].off >= r->off && sources[i].off - r->off < r->nbytes) return true;
    return false;
}

/* One file at a time: the thread competes with the copy for the disk, and most of what it reads is
 * in the page cache. */
static cz_status check_file(const struct cons_check *c, const struct source *sources, size_t n)
{
    const char *path = ckpt_file_path(c->ck, sources->file_idx);
    const size_t len = strlen(path);
    struct pt *pt;
    if (len < 3 || strcmp(path + len - 3, ".pt") != 0) return CZ_OK; /* a raw copy of a swap file */
    TRY(ckpt_file_open_pt(c->ck, sources->file_idx, &pt));
    cz_status st = CZ_OK;
    for (size_t i = 0; i < pt_n_records(pt) && st == CZ_OK; i++)
        if (is_used(pt_record_at(pt, i), sources, n))
            st = pt_verify_record(pt, pt_record_at(pt, i));
    pt_close(pt);
    return st;
}

static cz_status check_files(const struct cons_check *c)
{
    for (size_t i = 0, end; i < c->n; i = end) {
        for (end = i; end < c->n && c->sources[end].file_idx == c->sources[i].file_idx;) end++;
        TRY(check_file(c, c->sources + i, end - i));
    }
    return CZ_OK;
}

static void *check_all(void *arg)
{
    struct cons_check *c = arg;
    if (check_files(c) != CZ_OK) err_capture(&c->err);
    return NULL;
}

/* The check runs beside the copy. If no thread can be had, cons_check_end() does it. */
cz_status cons_check_begin(const struct cons_plan *plan, struct cons_check **out)
{
    struct cons_check *c = *out = calloc(1, sizeof *c);
    if (!c) return err_set(CZ_NOMEM, 0, "no memory to check the shards");
    c->ck = plan->ck;
    for (size_t i = 0; i < plan->n; i++) {
        cz_status st = add_tensor_sources(c, &plan->tensors[i]);
        if (st != CZ_OK) c->n = 0; /* nothing will be checked */
        TRY(st);
    }
    if (c->n > 0) qsort(c->sources, c->n, sizeof *c->sources, by_place);
    c->has_thread = thread_start(&c->thread, NULL, check_all, c) == 0;
    return CZ_OK;
}

cz_status cons_check_end(struct cons_check *c)
{
    struct err err = {.status = CZ_OK};
    if (!c) return CZ_OK;
    if (c->has_thread)
        pthread_join(c->thread, NULL);
    else
        check_all(c);
    err = c->err;
    free(c->sources);
    free(c);
    return err.status == CZ_OK ? CZ_OK : err_restore(&err);
}

/* ---- values ---------------------------------------------------------------------------------- */

enum { CHUNK_NUMEL = 4096 };

/* Elements [elem_off, elem_off + numel) in the output's dtype. Equal dtypes are copied as bytes, so
 * that NaN payloads survive. Threads: any. */
cz_status cons_fetch(const struct cons_plan *plan, const struct cons_tensor *t, uint64_t elem_off,
                     size_t numel, void *dst)
{
    if (t->dtype == ckpt_dtype(plan->ck, t->idx, CKPT_MASTER))
        return ckpt_read_raw(plan->ck, t->idx, CKPT_MASTER, elem_off, numel, dst);
    /* Through fp32: every dtype that is narrower widens to it without loss. */
    float chunk[CHUNK_NUMEL];
    if (t->dtype->base == DTYPE_F32)
        return ckpt_read(plan->ck, t->idx, CKPT_MASTER, elem_off, numel, dst);
    for (size_t done = 0; done < numel; done += CHUNK_NUMEL) {
        size_t n = numel - done < CHUNK_NUMEL ? numel - done : CHUNK_NUMEL;
        TRY(ckpt_read(plan->ck, t->idx, CKPT_MASTER, elem_off + done, n, chunk));
        uint16_t *out = (uint16_t *)dst + done;
        if (t->dtype->base == DTYPE_BF16)
            for (size_t i = 0; i < n; i++) out[i] = f32_to_bf16(chunk[i]);
        else
            for (size_t i = 0; i < n; i++) out[i] = f32_to_f16(chunk[i]);
    }
    return CZ_OK;
}

/* ---- reading back ---------------------------------------------------------------------------- */

struct verify {
    const struct cons_plan *plan;
    const struct cons_sink_class *cls;
    const void *output;
};

/* Compares bytes, not numbers: NaN must be equal to itself, and -0 is not 0. */
static cz_status compare(void *user, const struct cons_tensor *t, uint64_t elem_off, size_t numel,
                         void *buf, void *buf2)
{
    const struct verify *v = user;
    const size_t size = t->dtype->size;
    TRY(cons_fetch(v->plan, t, elem_off, numel, buf));
    TRY(v->cls->read(v->output, t, elem_off, numel, buf2));
    if (memcmp(buf, buf2, numel * size) == 0) return CZ_OK;
    size_t i = 0;
    while (memcmp((char *)buf + i * size, (char *)buf2 + i * size, size) == 0) i++;
    return err_set(CZ_IO, 0,
                   "%s: element %llu of %s reads otherwise than it was written; the disk or the "
                   "memory is at fault",
                   v->plan->options->out_dir, (unsigned long long)(elem_off + i), t->tensor->name);
}

/* Reads the output back through the page cache or the disk, whichever the system chooses; the
 * output files are opened as a user's program would open them. */
static cz_status verify(const struct cons_plan *plan, const struct cons_sink_class *cls)
{
    void *output = NULL;
    TRY(cls->open(plan, &output));
    struct verify v = {plan, cls, output};
    cz_status st = cons_for_each_piece(plan, compare, &v, true, plan->nbytes, 2 * plan->nbytes);
    cls->close(output);
    return st;
}

/* ---- the run --------------------------------------------------------------------------------- */

struct copy {
    const struct cons_plan *plan;
    const struct cons_sink_class *cls;
    void *sink;
    atomic_bool *not_finite; /* (plan->n) tensors with such an element */
};

/* A buffer may hold infinities on purpose (masks); a weight beyond fp16 becomes one. An export
 * fails, as model/hf/export.c's does; zero_to_fp32 copies what a checkpoint holds, and warns. */
static cz_status check_finite(const struct copy *c, const struct cons_tensor *t, uint64_t elem_off,
                              size_t numel, const void *buf)
{
    float x;
    const enum cz_dtype base = t->dtype->base;
    const bool is_known = base == DTYPE_F32 || base == DTYPE_BF16 || base == DTYPE_F16;
    if (t->tensor->kind == CKPT_BUFFER || !t->dtype->has_base || !is_known) return CZ_OK;
    const size_t i = dtype_first_nonfinite(buf, numel, base);
    if (i == numel) return CZ_OK;
    if (!c->plan->options->finite) {
        atomic_store(&c->not_finite[t - c->plan->tensors], true);
        return CZ_OK;
    }
    const unsigned long long element = elem_off + i;
    TRY(ckpt_read(c->plan->ck, t->idx, CKPT_MASTER, element, 1, &x));
    if (isfinite(x))
        return err_set(CZ_INVALID, 0,
                       "%s: element %llu is %g, beyond %g, the largest of %s: export %s",
                       t->tensor->name, element, (double)x, dtype_largest(base), dtype_name(base),
                       base == DTYPE_F16 ? "bf16 or fp32" : "fp32");
    return err_set(CZ_DIVERGED, 0,
                   "%s: element %llu is %s: weights that are not finite are not exported",
                   t->tensor->name, element, dtype_nonfinite_name((double)x));
}

static void warn_not_finite(const struct copy *c)
{
    size_t n = 0, first = 0;
    for (size_t i = c->plan->n; i-- > 0;) {
        if (!atomic_load(&c->not_finite[i])) continue;
        first = i;
        n++;
    }
    if (n > 0)
        LOGV(LOG_WARN, SUB_CKPT, "%zu of %zu tensors hold nan or inf, as written; the first is %s",
             n, c->plan->n, c->plan->tensors[first].tensor->name);
}

static cz_status copy_piece(void *user, const struct cons_tensor *t, uint64_t elem_off,
                            size_t numel, void *buf, void *buf2)
{
    const struct copy *c = user;
    (void)buf2;
    TRY(cons_fetch(c->plan, t, elem_off, numel, buf));
    TRY(check_finite(c, t, elem_off, numel, buf));
    return c->cls->write(c->sink, t, elem_off, numel, buf);
}

/* The check of the shards must pass before the output gets its names. */
static cz_status write_output(struct cons_plan *plan, const struct cons_sink_class *cls,
                              size_t *n_files)
{
    cz_status st;
    const bool verify = plan->options->verify;
    struct copy c = {plan, cls, NULL, calloc(plan->n + 1, sizeof *c.not_finite)};
    struct cons_check *check = NULL;
    if (!c.not_finite) return err_set(CZ_NOMEM, 0, "no memory for %zu tensors", plan->n);
    TRY_GOTO(cls->create(plan, &c.sink), done);
    TRY_GOTO(cons_check_begin(plan, &check), done);
    *n_files = cls->n_files(c.sink);
    TRY_GOTO(cons_for_each_piece(plan, copy_piece, &c, false, 0, plan->nbytes * (verify ? 2 : 1)),
             done);
    st = cons_check_end(check);
    check = NULL;
    TRY_GOTO(st, done);
    TRY_GOTO(cls->finish(c.sink), done);
    warn_not_finite(&c);
done:
    if (st != CZ_OK) {
        /* The first error counts; the thread still has to end before its memory goes. */
        struct err error;
        err_capture(&error);
        cons_check_end(check);
        err_restore(&error);
    }
    cls->destroy(c.sink);
    free((void *)c.not_finite);
    return st;
}

/* Many programs load a model with missing weights without a message. */
static void warn_absent(const struct ckpt *ck, const struct cz_consolidate_options *o)
{
    const struct ckpt_info *info = ckpt_get_info(ck);
    if (info->n_absent == 0 || o->exclude_frozen) return;
    LOGV(LOG_WARN, SUB_CKPT, "%s: %zu weight%s of the model %s not saved in it: %s%s",
         info->tag_dir, info->n_absent, info->n_absent == 1 ? "" : "s",
         info->n_absent == 1 ? "is" : "are", info->absent[0], info->n_absent == 1 ? "" : " …");
}

/* weights_only: whose states the optimizer's tensors are is of no interest here. An output folder
 * that this run created is removed if it is empty. */
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
    if (options->has_dtype && options->dtype != DTYPE_F32 && options->dtype != DTYPE_BF16 &&
        options->dtype != DTYPE_F16)
        return err_set(CZ_INVALID, 0, "weights are written as fp32, bf16 or fp16, not %s",
                       dtype_name(options->dtype));
    if (!*options->out_dir) return err_set(CZ_INVALID, 0, "the output folder has no name");
    struct out_folder folder = {.path = NULL};
    TRY_GOTO(ckpt_open(&open, &ck), fail);
    warn_absent(ck, options);
    TRY_GOTO(cons_plan_init(&plan, ck, options), fail);
    TRY_GOTO(out_folder_open(options->out_dir, &folder), fail);
    TRY_GOTO(write_output(&plan, cls, &result->n_files), fail);
    if (options->verify) TRY_GOTO(verify(&plan, cls), fail);
    result->n_tensors = plan.n;
    result->n_aliases = plan.n_aliases;
    result->numel = plan.numel;
    result->nbytes = plan.nbytes;
fail:
    (st == CZ_OK ? out_folder_close : out_folder_abandon)(&folder);
    cons_plan_free(&plan);
    ckpt_close(ck);
    return st;
}

cz_status cz_consolidate(const struct cz_consolidate_options *options,
                         struct cz_consolidate_result *result)
{
    API_ENTRY;
    NEED(options, "options");
    struct cz_consolidate_options ours;
    struct cz_consolidate_result done = {0};
    TRY(OPTIONS_TAKE(cz_consolidate_options, &ours, options));
    if (result) TRY(OPTIONS_GIVE(cz_consolidate_result, result, &done));
    TRY(consolidate(&ours, &done));
    return result ? OPTIONS_GIVE(cz_consolidate_result, result, &done) : CZ_OK;
}
