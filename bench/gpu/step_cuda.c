/* A training step of a GPU, taken apart by kernel calls: what each takes, and what it had to.
 *
 *     build/bench/step_cuda [--batch B] [--seq-len T] [--steps N] [--model NAME|DIR] [--config
 * JSON]
 *                           [--tiny] [--table] [--bandwidth B/s --rate FLOP/s]
 *
 * The engine's own steps over random tokens (GPT-2 124M without dropout in bf16, unless --model and
 * --config say otherwise), first plain, for the time of a step, then with an event before and after
 * every call through the table of kernels and every copy and fill. Calls of one kind and shape are
 * one row: their number and time in a step, the least bytes and operations, and both rates beside
 * those of a copy and a bf16 product in the same run. What calls begin themselves (the head's
 * products) is theirs no more. "between calls" is when the stream had nothing of the kind to do.
 *
 * --bandwidth, --rate: predict instead; a call then takes the longer of its bytes at the one and
 * its operations at the other. Nothing is measured, so the simulated device will do, with
 * CZERO_CUDA_SIM_DRY=on at any size.
 * One JSON line per row, as scripts/gpu_check.sh reads them; --table: columns for people. */
#include "base/clock.h"
#include "base/dtype.h"
#include "base/rng.h"
#include "bench/gpu/step_costs.h"
#include "engine/engine.h"
#include "engine/plan/plan.h"
#include "ops/table_impl.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ROWS_MAX  256
#define CALLS_MAX 16384 /* of one step */
#define DEPTH_MAX 4
#define N_WARM    2
#define N_ROUNDS  10

/* ---- the record ------------------------------------------------------------------------------ */

struct row {
    char name[128];
    int64_t n_calls;
    double seconds, nbytes, flops;
    bool in_order; /* of the layers' stream */
};

struct call {
    size_t row;
    double nbytes, flops;
    struct call *outer;
    struct dev_event *begin, *end; /* kept from step to step */
};

static struct {
    struct ops real;
    const struct device_ops *real_device;
    struct device_ops device;
    struct dev_stream *stream; /* of the first call: the layers' */
    bool records;
    struct row rows[ROWS_MAX];
    size_t n_rows;
    struct call calls[CALLS_MAX];
    size_t n_calls;
    struct call *inside[DEPTH_MAX];
    int depth;
    double between; /* seconds, of all steps recorded */
} watch;

static cz_status row_of(const char *name, const struct cost *cost, bool in_order, size_t *row_idx)
{
    char label[sizeof watch.rows->name];
    const struct call *outer = watch.depth > 1 ? watch.inside[watch.depth - 2] : NULL;
    const char *of = outer ? watch.rows[outer->row].name : ""; /* "ce_head, …": it calls this one */
    snprintf(label, sizeof label, "%.*s%s%s, %s", (int)strcspn(of, ","), of, outer ? ": " : "",
             name, cost->what);
    size_t i = 0;
    while (i < watch.n_rows && strcmp(watch.rows[i].name, label) != 0) i++;
    *row_idx = i;
    if (i < watch.n_rows) return CZ_OK;
    if (i == ROWS_MAX) return err_set(CZ_NOMEM, 0, "more than %d kinds of calls", ROWS_MAX);
    watch.n_rows++;
    watch.rows[i].in_order = in_order;
    snprintf(watch.rows[i].name, sizeof watch.rows[i].name, "%s", label);
    return CZ_OK;
}

static cz_status event_at(struct device *dev, struct dev_stream *stream, struct dev_event **event)
{
    if (!*event) TRY(watch.real_device->event_create_timed(dev, event));
    return watch.real_device->event_record(dev, *event, stream);
}

/* A call begins on the stream; *call is NULL when nothing is recorded. */
static cz_status enter(struct device *dev, struct dev_stream *stream, const char *name,
                       const struct cost *cost, struct call **call)
{
    *call = NULL;
    if (!watch.records) return CZ_OK;
    if (watch.n_calls == CALLS_MAX || watch.depth == DEPTH_MAX)
        return err_set(CZ_NOMEM, 0, "more than %d calls in a step", CALLS_MAX);
    if (watch.n_calls == 0) watch.stream = stream;
    struct call *c = &watch.calls[watch.n_calls++];
    c->outer = watch.depth > 0 ? watch.inside[watch.depth - 1] : NULL;
    watch.inside[watch.depth++] = c;
    TRY(row_of(name, cost, stream == watch.stream, &c->row));
    c->nbytes = cost->nbytes;
    c->flops = cost->flops;
    *call = c;
    return event_at(dev, stream, &c->begin);
}

static cz_status leave(struct device *dev, struct dev_stream *stream, struct call *call,
                       cz_status st)
{
    if (!call) return st;
    watch.depth--;
    TRY(st);
    return event_at(dev, stream, &call->end);
}

/* The step is over and waited for: its calls join the rows. */
static cz_status settle(struct device *dev)
{
    double seconds, inside = 0;
    struct call *first = NULL, *last = NULL;
    for (size_t i = 0; i < watch.n_calls; i++) {
        struct call *c = &watch.calls[i];
        struct row *row = &watch.rows[c->row];
        TRY(watch.real_device->event_seconds(dev, c->begin, c->end, &seconds));
        row->n_calls++;
        row->seconds += seconds;
        row->nbytes += c->nbytes;
        row->flops += c->flops;
        if (c->outer) watch.rows[c->outer->row].seconds -= seconds;
        if (c->outer || !row->in_order) continue;
        inside += seconds;
        first = first ? first : c;
        last = c;
    }
    if (first) {
        TRY(watch.real_device->event_seconds(dev, first->begin, last->end, &seconds));
        watch.between += seconds - inside;
    }
    watch.n_calls = 0;
    return CZ_OK;
}

/* ---- slots ----------------------------------------------------------------------------------- */

#define WATCHED(WATCH)                                                                             \
    WATCH(attention_forward, attention_args, attention_forward_cost)                               \
    WATCH(attention_backward, attention_args, attention_backward_cost)                             \
    WATCH(layernorm_forward, norm_args, norm_forward_cost)                                         \
    WATCH(layernorm_backward, norm_args, norm_backward_cost)                                       \
    WATCH(rmsnorm_forward, norm_args, norm_forward_cost)                                           \
    WATCH(rmsnorm_backward, norm_args, norm_backward_cost)                                         \
    WATCH(activation_forward, activation_args, activation_forward_cost)                            \
    WATCH(activation_backward, activation_args, activation_backward_cost)                          \
    WATCH(swiglu_forward, swiglu_args, swiglu_forward_cost)                                        \
    WATCH(swiglu_backward, swiglu_args, swiglu_backward_cost)                                      \
    WATCH(embedding_forward, embedding_args, embedding_forward_cost)                               \
    WATCH(embedding_backward, embedding_args, embedding_backward_cost)                             \
    WATCH(rope, rope_args, rope_cost)                                                              \
    WATCH(rope_table, rope_table_args, rope_table_cost)                                            \
    WATCH(dropout, dropout_args, dropout_cost)                                                     \
    WATCH(add, add_args, add_cost)                                                                 \
    WATCH(cast_scale, cast_scale_args, cast_scale_cost)                                            \
    WATCH(bias_grad, bias_grad_args, bias_grad_cost)                                               \
    WATCH(scan, scan_args, scan_cost)                                                              \
    WATCH(ce_head, ce_head_args, ce_head_cost)                                                     \
    WATCH(cross_entropy, cross_entropy_args, cross_entropy_cost)                                   \
    WATCH(step, step_args, step_cost)

#define WATCHER(slot, args, cost_of_args)                                                          \
    static cz_status watch_##slot(struct ops *ops, struct dev_stream *stream,                      \
                                  const struct args *a)                                            \
    {                                                                                              \
        const struct cost cost = cost_of_args(a);                                                  \
        struct call *call;                                                                         \
        TRY(enter(ops->device, stream, #slot, &cost, &call));                                      \
        return leave(ops->device, stream, call, watch.real.slot(ops, stream, a));                  \
    }
WATCHED(WATCHER)

/* A product of the head with its table transposed makes logits: what the head does to them is the
 * head's own. */
static cz_status watch_matmul(struct ops *ops, struct dev_stream *stream,
                              const struct matmul_args *a)
{
    const struct cost cost = matmul_cost(a);
    struct call *call;
    TRY(enter(ops->device, stream, "matmul", &cost, &call));
    if (call && call->outer && a->trans_b) call->outer->nbytes += head_block_nbytes(a);
    return leave(ops->device, stream, call, watch.real.matmul(ops, stream, a));
}

static cz_status watch_copy(struct device *dev, struct dev_stream *stream, void *dst,
                            const void *src, size_t nbytes)
{
    const bool to = watch.real_device->is_device_memory(dev, dst);
    const bool from = watch.real_device->is_device_memory(dev, src);
    struct cost cost = {.nbytes = to && from ? 2.0 * (double)nbytes : (double)nbytes};
    struct call *call;
    snprintf(cost.what, sizeof cost.what, "%s of %zu bytes",
             to && from ? "inside"
             : to       ? "to the GPU"
                        : "to the host",
             nbytes);
    TRY(enter(dev, stream, "copy", &cost, &call));
    return leave(dev, stream, call, watch.real_device->copy(dev, stream, dst, src, nbytes));
}

static cz_status watch_fill(struct device *dev, struct dev_stream *stream, void *dst, size_t nbytes)
{
    struct cost cost = {.nbytes = (double)nbytes};
    struct call *call;
    snprintf(cost.what, sizeof cost.what, "%zu bytes", nbytes);
    TRY(enter(dev, stream, "zeros", &cost, &call));
    return leave(dev, stream, call, watch.real_device->fill_zero(dev, stream, dst, nbytes));
}

static void watch_begin(struct ops *ops)
{
    watch.real = *ops;
    watch.real_device = ops->device->ops;
    watch.device = *ops->device->ops;
    watch.device.copy = watch_copy;
    watch.device.fill_zero = watch_fill;
    ops->device->ops = &watch.device;
    ops->matmul = watch_matmul;
#define WATCH(slot, args, cost_of_args) ops->slot = watch_##slot;
    WATCHED(WATCH)
#undef WATCH
}

static void watch_end(struct ops *ops)
{
    struct device *dev = ops->device;
    dev->ops = watch.real_device;
    *ops = watch.real;
    for (size_t i = 0; i < CALLS_MAX; i++) {
        if (watch.calls[i].begin) dev->ops->event_destroy(dev, watch.calls[i].begin);
        if (watch.calls[i].end) dev->ops->event_destroy(dev, watch.calls[i].end);
    }
}

/* ---- the run --------------------------------------------------------------------------------- */

struct run {
    const char *model, *config;
    int64_t B, T;
    int n_steps;
    bool is_tiny, as_table;
    double bandwidth, rate; /* ceilings: given, or measured */
    bool predicts;
    struct cz_engine *engine;
    int32_t *ids;
    uint64_t n_draws;
    double seconds; /* of a plain step */
};

static cz_status step(struct run *r)
{
    const uint64_t vocabulary = (uint64_t)cz_model_vocab_size(engine_get_model(r->engine));
    float loss;
    do {
        for (int64_t i = 0; i < r->B * (r->T + 1); i++)
            r->ids[i] = (int32_t)(rng_mix64(++r->n_draws) % vocabulary);
        const struct cz_batch batch = {
            .size = sizeof batch, .B = r->B, .T = r->T, .ids = r->ids, .labels = r->ids + r->B};
        TRY(engine_forward(r->engine, &batch, &loss));
        TRY(engine_backward(r->engine));
        TRY(engine_step(r->engine));
    } while (engine_get_micro_steps(r->engine) % engine_get_accumulation(r->engine) != 0);
    return CZ_OK;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static cz_status plain_steps(struct run *r, struct device *dev)
{
    double *seconds = calloc((size_t)r->n_steps, sizeof *seconds);
    cz_status st = seconds ? CZ_OK : err_set(CZ_NOMEM, 0, "no memory for %d times", r->n_steps);
    for (int i = -N_WARM; i < r->n_steps && st == CZ_OK; i++) {
        const int64_t begin = clock_now_ns();
        st = step(r);
        if (st == CZ_OK) st = dev->ops->stream_sync(dev, watch.stream);
        if (i >= 0) seconds[i] = (double)(clock_now_ns() - begin) * 1e-9;
    }
    if (st == CZ_OK) {
        qsort(seconds, (size_t)r->n_steps, sizeof *seconds, by_value);
        r->seconds = seconds[r->n_steps / 2];
    }
    free(seconds);
    return st;
}

static cz_status watched_steps(struct run *r, struct device *dev, int n)
{
    watch.records = true;
    for (int i = 0; i < n; i++) {
        TRY(step(r));
        TRY(watch.real_device->stream_sync(dev, watch.stream));
        TRY(settle(dev));
    }
    watch.records = false;
    return CZ_OK;
}

/* Values of both signs: products of zeros are faster than others. */
static cz_status fill_matrix(struct device *dev, void *dst, size_t nbytes)
{
    const size_t numel = nbytes / sizeof(uint16_t);
    uint16_t *values = malloc(nbytes);
    if (!values) return err_set(CZ_NOMEM, 0, "no memory for a matrix");
    for (size_t i = 0; i < numel; i++)
        values[i] = f32_to_bf16((float)(rng_mix64(i) >> 40) * 0x1p-23f - 1.0f);
    cz_status st = dev->ops->copy(dev, watch.stream, dst, values, nbytes);
    if (st == CZ_OK) st = dev->ops->stream_sync(dev, watch.stream);
    free(values);
    return st;
}

/* The median of the times between event and event of rounds. */
static cz_status median_between(struct device *dev, struct dev_event *(*at)[3], int from,
                                double *seconds)
{
    double rounds[N_ROUNDS];
    for (int i = 0; i < N_ROUNDS; i++)
        TRY(dev->ops->event_seconds(dev, at[i][from], at[i][from + 1], &rounds[i]));
    qsort(rounds, N_ROUNDS, sizeof *rounds, by_value);
    *seconds = rounds[N_ROUNDS / 2];
    return CZ_OK;
}

/* Bytes per second of a copy, and operations per second of a product, as large as the free memory
 * permits. */
static cz_status measure_ceilings(struct run *r, struct ops *ops)
{
    struct device *dev = ops->device;
    const int64_t n = r->is_tiny ? 64 : 8192;
    const size_t nbytes = (size_t)(n * n) * 2;
    struct matmul_args product = {
        .m = n, .n = n, .k = n, .dtype = DTYPE_BF16, .c_dtype = DTYPE_BF16};
    void *memory[4] = {NULL};
    struct dev_event *at[N_ROUNDS][3] = {{NULL}};
    double copied = 0, multiplied = 0;
    cz_status st;
    TRY(ops_matmul_workspace(ops, &product, &product.workspace_nbytes));
    for (int i = 0; i < 3; i++) {
        TRY_GOTO(dev->ops->mem_alloc(dev, nbytes, "a matrix", &memory[i]), done);
        if (i < 2) TRY_GOTO(fill_matrix(dev, memory[i], nbytes), done);
    }
    TRY_GOTO(dev->ops->mem_alloc(dev, product.workspace_nbytes, "workspace", &memory[3]), done);
    product.a = memory[0], product.b = memory[1], product.c = memory[2];
    product.workspace = memory[3];
    for (int i = 0; i < N_ROUNDS; i++) {
        for (int k = 0; k < 3; k++) TRY_GOTO(dev->ops->event_create_timed(dev, &at[i][k]), done);
        TRY_GOTO(dev->ops->event_record(dev, at[i][0], watch.stream), done);
        TRY_GOTO(dev->ops->copy(dev, watch.stream, memory[2], memory[0], nbytes), done);
        TRY_GOTO(dev->ops->event_record(dev, at[i][1], watch.stream), done);
        TRY_GOTO(ops_matmul(ops, watch.stream, &product), done);
        TRY_GOTO(dev->ops->event_record(dev, at[i][2], watch.stream), done);
    }
    TRY_GOTO(dev->ops->stream_sync(dev, watch.stream), done);
    TRY_GOTO(median_between(dev, at, 0, &copied), done);
    TRY_GOTO(median_between(dev, at, 1, &multiplied), done);
    r->bandwidth = 2.0 * (double)nbytes / copied;
    r->rate = 2.0 * (double)n * (double)n * (double)n / multiplied;
done:
    for (int i = 0; i < N_ROUNDS; i++)
        for (int k = 0; k < 3; k++)
            if (at[i][k]) dev->ops->event_destroy(dev, at[i][k]);
    for (int i = 0; i < 3; i++) dev->ops->mem_free(dev, memory[i], nbytes);
    dev->ops->mem_free(dev, memory[3], product.workspace_nbytes);
    return st;
}

/* ---- the rows -------------------------------------------------------------------------------- */

static double larger(double x, double y)
{
    return x > y ? x : y;
}

static double predicted(const struct run *r, double nbytes, double flops)
{
    return larger(nbytes / r->bandwidth, flops / r->rate);
}

static int by_seconds(const void *a, const void *b)
{
    const struct row *x = a, *y = b;
    return (x->seconds < y->seconds) - (x->seconds > y->seconds);
}

static void print_row(const struct run *r, const char *name, const struct row *row, double total)
{
    const double seconds = larger(row->seconds, 1e-9); /* a clock has its steps */
    const double gbs = row->nbytes / seconds * 1e-9, tfs = row->flops / seconds * 1e-12;
    if (r->as_table) {
        printf("%-72s %5lld %10.1f %6.2f %9.2f %9.4g %7.0f %6.0f\n", name, (long long)row->n_calls,
               row->seconds * 1e6, 100 * row->seconds / total, row->nbytes * 1e-9,
               row->flops * 1e-12, gbs, tfs);
        return;
    }
    printf("{\"figure\": \"%s%s\", \"value\": %.5g, \"unit\": \"us\", \"calls\": %lld, \"share\": "
           "%.4f, \"bytes\": %.6g, \"flops\": %.6g, ",
           r->predicts ? "predicted: " : "step: ", name, row->seconds * 1e6,
           (long long)row->n_calls, row->seconds / total, row->nbytes, row->flops);
    if (!r->predicts)
        printf("\"of_bandwidth\": %.3f, \"of_rate\": %.3f, ", gbs * 1e9 / r->bandwidth,
               tfs * 1e12 / r->rate);
    printf("\"note\": \"%lld calls, %.1f %%, %.0f GB/s, %.0f TFLOP/s\"}\n", (long long)row->n_calls,
           100 * row->seconds / total, gbs, tfs);
}

/* Operations of a step by its model, as the plan has them: of what attention masks, too. */
static double model_flops(const struct run *r)
{
    const struct cz_plan *plan = engine_get_plan(r->engine);
    return plan->phases[PLAN_FORWARD].flops + plan->phases[PLAN_BACKWARD].flops;
}

static void print_whole(const struct run *r, double total, double between)
{
    const double tokens = (double)(r->B * r->T * engine_get_accumulation(r->engine));
    const double seconds = r->predicts ? total : r->seconds;
    const char *word = r->predicts ? "predicted " : "";
    if (r->as_table) {
        printf("\n%sstep %.2f ms, %.0f tokens/s, %.3g TFLOP by the model: %.1f %% of %.4g FLOP/s; "
               "%s%.4g bytes/s\n",
               word, seconds * 1e3, tokens / seconds, model_flops(r) * 1e-12,
               100 * model_flops(r) / seconds / r->rate, r->rate,
               r->predicts ? "given, as " : "measured, as ", r->bandwidth);
        if (!r->predicts)
            printf("with events %.2f ms, of which %.2f between calls\n", total * 1e3,
                   between * 1e3);
        return;
    }
    printf("{\"figure\": \"%sstep\", \"value\": %.5g, \"unit\": \"ms\", \"note\": \"%.0f tokens/s; "
           "%.3g ms between calls; with events %.5g ms\"}\n",
           word, seconds * 1e3, tokens / seconds, between * 1e3, total * 1e3);
    printf(
        "{\"figure\": \"%sstep: model FLOP\", \"value\": %.4g, \"unit\": \"TFLOP/s\", \"ratio\": "
        "%.4f, \"goal_of\": \"of a bf16 product's rate\", \"note\": \"%s %.4g FLOP/s, copy %.4g "
        "bytes/s\"}\n",
        word, model_flops(r) / seconds * 1e-12, model_flops(r) / seconds / r->rate,
        r->predicts ? "given" : "measured", r->rate, r->bandwidth);
}

static void print(struct run *r, int n)
{
    double total = 0;
    for (size_t i = 0; i < watch.n_rows; i++) {
        struct row *row = &watch.rows[i];
        row->n_calls /= n, row->nbytes /= n, row->flops /= n, row->seconds /= n;
        if (r->predicts) row->seconds = predicted(r, row->nbytes, row->flops);
        if (row->in_order) total += row->seconds;
    }
    watch.between /= n;
    if (!r->predicts) total += watch.between;
    qsort(watch.rows, watch.n_rows, sizeof *watch.rows, by_seconds);
    if (r->as_table)
        printf("%-72s %5s %10s %6s %9s %9s %7s %6s\n", r->predicts ? "call (predicted)" : "call",
               "calls", "us", "%", "GB", "TFLOP", "GB/s", "TF/s");
    for (size_t i = 0; i < watch.n_rows; i++)
        print_row(r, watch.rows[i].name, &watch.rows[i], total);
    print_whole(r, total, r->predicts ? 0 : watch.between);
}

/* ---- all of it ------------------------------------------------------------------------------- */

/* bench/gpu/train_gpu.py's model: no dropout, a vocabulary of whole units. */
static cz_status write_model(const struct run *r, char *dir, size_t nbytes)
{
    char path[256];
    const int layers = r->is_tiny ? 2 : 12, width = r->is_tiny ? 64 : 768;
    snprintf(dir, nbytes, "/tmp/czero-step-XXXXXX");
    if (!mkdtemp(dir)) return err_set(CZ_IO, 0, "no folder in /tmp for a model's config");
    snprintf(path, sizeof path, "%s/config.json", dir);
    FILE *f = fopen(path, "w");
    if (!f) return err_set(CZ_IO, 0, "%s cannot be written", path);
    fprintf(f,
            "{\"model_type\": \"gpt2\", \"architectures\": [\"GPT2LMHeadModel\"], \"n_layer\": %d, "
            "\"n_embd\": %d, \"n_head\": %d, \"vocab_size\": %d, \"n_positions\": %lld, "
            "\"resid_pdrop\": 0.0, \"embd_pdrop\": 0.0, \"attn_pdrop\": 0.0, "
            "\"layer_norm_epsilon\": 1e-5, \"activation_function\": \"gelu_new\", "
            "\"tie_word_embeddings\": true, \"bos_token_id\": 0, \"eos_token_id\": 0}\n",
            layers, width, r->is_tiny ? 2 : 12, r->is_tiny ? 512 : 50304, (long long)r->T);
    return fclose(f) == 0 ? CZ_OK : err_set(CZ_IO, 0, "%s cannot be written", path);
}

static void remove_model(const char *dir)
{
    char path[256];
    if (!*dir) return;
    snprintf(path, sizeof path, "%s/config.json", dir);
    (void)unlink(path);
    (void)rmdir(dir);
}

static cz_status open_engine(struct run *r)
{
    char micro_batch[64], dir[64] = "";
    const char *const sets[] = {micro_batch, NULL};
    const struct cz_engine_options options = {
        .size = sizeof options, .config_json = r->config, .device = "cuda", .set_values = sets};
    const struct cz_model_options causal = {.size = sizeof causal, .task = CZ_TASK_CAUSAL_LM};
    snprintf(micro_batch, sizeof micro_batch, "train_micro_batch_size_per_gpu=%lld",
             (long long)r->B);
    if (!r->model) TRY(write_model(r, dir, sizeof dir));
    struct cz_model *model = cz_model_open_ex(r->model ? r->model : dir, &causal);
    remove_model(dir);
    if (!model) return cz_last_status();
    cz_status st = cz_model_set_shape(model, r->T);
    if (st == CZ_OK && !(r->engine = engine_initialize_ex(&options, model))) st = cz_last_status();
    if (st != CZ_OK) cz_model_destroy(model);
    return st;
}

static cz_status work(struct run *r)
{
    const int n_watched = r->predicts ? 1 : 3;
    r->ids = calloc((size_t)(r->B * (r->T + 1)), sizeof *r->ids);
    if (!r->ids) return err_set(CZ_NOMEM, 0, "no memory for a batch");
    TRY(open_engine(r));
    struct ops *ops = engine_get_ops(r->engine);
    struct device *dev = ops->device;
    watch_begin(ops);
    cz_status st = watched_steps(r, dev, 1); /* finds the stream, and warms up */
    watch.n_rows = 0, watch.between = 0;
    memset(watch.rows, 0, sizeof watch.rows);
    if (st == CZ_OK && !r->predicts) st = plain_steps(r, dev);
    if (st == CZ_OK && !r->predicts) st = measure_ceilings(r, ops);
    if (st == CZ_OK) st = watched_steps(r, dev, n_watched);
    if (st == CZ_OK) print(r, n_watched);
    watch_end(ops);
    return st;
}

static int usage(void)
{
    fprintf(stderr,
            "use: step_cuda [--batch B] [--seq-len T] [--steps N] [--model NAME|DIR]\n"
            "                [--config JSON] [--tiny] [--table] [--bandwidth BYTES/S --rate "
            "FLOP/S]\n");
    return 2;
}

static bool parse(int argc, char **argv, struct run *r)
{
    static const struct option options[] = {
        {"batch", 1, NULL, 'b'}, {"seq-len", 1, NULL, 't'},   {"steps", 1, NULL, 'n'},
        {"model", 1, NULL, 'm'}, {"config", 1, NULL, 'c'},    {"tiny", 0, NULL, 'y'},
        {"table", 0, NULL, 'l'}, {"bandwidth", 1, NULL, 'w'}, {"rate", 1, NULL, 'r'},
        {NULL, 0, NULL, 0},
    };
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (c) {
        case 'b': r->B = atoll(optarg); break;
        case 't': r->T = atoll(optarg); break;
        case 'n': r->n_steps = atoi(optarg); break;
        case 'm': r->model = optarg; break;
        case 'c': r->config = optarg; break;
        case 'y': r->is_tiny = true; break;
        case 'l': r->as_table = true; break;
        case 'w': r->bandwidth = atof(optarg); break;
        case 'r': r->rate = atof(optarg); break;
        default: return false;
        }
    }
    r->predicts = r->bandwidth > 0;
    if (r->B == 0) r->B = r->is_tiny ? 2 : 64;
    if (r->T == 0) r->T = r->is_tiny ? 32 : 1024;
    return optind == argc && r->B > 0 && r->T > 0 && r->n_steps > 0 &&
           (r->bandwidth > 0) == (r->rate > 0);
}

int main(int argc, char **argv)
{
    struct run r = {.n_steps = 10,
                    .config = "{\"gradient_clipping\": 1.0, \"bf16\": {\"enabled\": true}, "
                              "\"zero_optimization\": {\"stage\": 0}, \"optimizer\": {\"type\": "
                              "\"AdamW\", \"params\": {\"lr\": 1e-4, \"weight_decay\": 0.01}}, "
                              "\"czero\": {\"keep_all_activations\": true}}"};
    if (!parse(argc, argv, &r)) return usage();
    cz_status st = work(&r);
    if (st != CZ_OK) fprintf(stderr, "step_cuda: %s\n", cz_last_error());
    if (r.engine) engine_destroy(r.engine);
    free(r.ids);
    return st == CZ_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
