/* Claims: gradients of a chain are those of its layers, ties summed; recomputation of any segment
 * length, with inputs kept on the host or not, and accumulation over micro-batches, repeat them to
 * the bit, as do micro-batches that go through each layer together, whether what layers save is
 * kept, waits in a file or is recomputed; smaller batches fit the planned memory; walks refuse what
 * they cannot do. */
#include "engine/chain/chain.h"
#include "tests/support/guarded_memory.h"
#include "tests/support/toy_layers.h"

enum { B_MAX = 3, T_MAX = 5, N_SCALE = 6, N_LAYERS = N_SCALE + 2 };
enum { P_TABLE = 0, P_SHARED, P_FIRST, P_OWN = P_FIRST + N_SCALE, N_PARAMS = P_OWN + N_SCALE };

/* One toy model in memory: table tied between first and last layer, `v` shared by all scales, or,
 * where micro-batches go together (or_apart), one of each scale's own. */
struct toy {
    struct model_layer layers[N_LAYERS];
    size_t idx[N_LAYERS][2];
    float table[V * C], shared[C], w[N_SCALE][C];
    float d_table[V * C], d_shared[C], d_w[N_SCALE][C], own[N_SCALE][C], d_own[N_SCALE][C];
    const void *params[N_PARAMS];
    void *grads[N_PARAMS];
    struct chain *chain;
    void *blocks[5];
    int32_t ids[B_MAX * T_MAX], labels[B_MAX * T_MAX];
    struct batch batch;
};

static bool or_apart;

/* Where set, scale layer k has the number k, so that no two are alike. */
static bool is_numbered;
static const struct scale_hp numbers[N_LAYERS] = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}};
static const size_t numels[N_PARAMS] = {V * C, C, C, C, C, C, C, C, C, C, C, C, C, C};

static void toy_make(struct toy *t, struct chain_options options)
{
    static bool is_guarded;
    if (!is_guarded) guarded_begin();
    is_guarded = true;
    memset(t, 0, sizeof *t);
    const struct rng_key key = {.seed = 7};
    for (int i = 0; i < V * C; i++) t->table[i] = rng_normal(&key, (uint64_t)i);
    for (int c = 0; c < C; c++) t->shared[c] = 0.1f * rng_normal(&key, 100 + (uint64_t)c);
    t->params[P_TABLE] = t->table, t->grads[P_TABLE] = t->d_table;
    t->params[P_SHARED] = t->shared, t->grads[P_SHARED] = t->d_shared;
    for (int i = 0; i < N_SCALE; i++) {
        for (int c = 0; c < C; c++)
            t->w[i][c] = 1 + 0.1f * rng_normal(&key, 200 + (uint64_t)(i * C + c));
        t->params[P_FIRST + i] = t->w[i], t->grads[P_FIRST + i] = t->d_w[i];
        memcpy(t->own[i], t->shared, sizeof t->shared);
        t->params[P_OWN + i] = t->own[i], t->grads[P_OWN + i] = t->d_own[i];
    }
    for (int i = 0; i < N_LAYERS; i++) {
        bool edge = i == 0 || i == N_LAYERS - 1;
        t->idx[i][0] = edge ? P_TABLE : (size_t)(P_FIRST + i - 1);
        t->idx[i][1] = or_apart && !edge ? (size_t)(P_OWN + i - 1) : P_SHARED;
        t->layers[i] = (struct model_layer){.cls = i == 0 ? &rows_class
                                                   : edge ? &dot_class
                                                          : &scale_class,
                                            .param_idx = t->idx[i],
                                            .n_params = edge ? 1 : 2};
        if (is_numbered && !edge)
            t->layers[i].hp = &numbers[i], t->layers[i].hp_nbytes = sizeof numbers[i];
    }
    for (int i = 0; i < B_MAX * T_MAX; i++) t->ids[i] = (i * 5) % V, t->labels[i] = (i * 3 + 1) % V;
    t->batch = (struct batch){.B = B_MAX, .T = T_MAX, .ids = t->ids, .labels = t->labels};
    options.B = B_MAX, options.T = T_MAX;
    ck_ok(chain_create_layers(t->layers, N_LAYERS, N_PARAMS, &options, &t->chain));
    struct chain_sizes s = chain_sizes(t->chain);
    size_t sizes[5] = {s.activations, s.workspace, s.gradients, s.cache, s.kept};
    for (int i = 0; i < 5; i++) t->blocks[i] = sizes[i] ? malloc(sizes[i]) : NULL;
    const struct chain_memory memory = {.activations = t->blocks[0],
                                        .workspace = t->blocks[1],
                                        .gradients = t->blocks[2],
                                        .cache = t->blocks[3],
                                        .kept = t->blocks[4],
                                        .params = t->params,
                                        .grads = t->grads};
    chain_bind(t->chain, &memory);
}

static void toy_free(struct toy *t)
{
    chain_destroy(t->chain);
    for (int i = 0; i < 5; i++) free(t->blocks[i]);
}

static float toy_step(struct toy *t, bool accumulate)
{
    float loss;
    const struct chain_run run = {.batch = &t->batch,
                                  .mode = LAYER_TRAIN,
                                  .rng = {.seed = 3, .sample = 11},
                                  .dloss = 1,
                                  .loss = &loss,
                                  .accumulate = accumulate};
    ck_ok(chain_forward(t->chain, &run));
    ck_ok(chain_backward(t->chain));
    return loss;
}

START_TEST(gradients_match_finite_differences)
{
    struct toy t;
    toy_make(&t, (struct chain_options){.training = true});
    memset(t.d_table, 0xff, sizeof t.d_table); /* overwritten, whatever was there */
    toy_step(&t, false);
    float *const params[] = {t.table, t.shared, t.w[2]};
    const float *const grads[] = {t.d_table, t.d_shared, t.d_w[2]};
    for (int p = 0; p < 3; p++)
        for (int i = 0; i < C; i++) {
            float want = grads[p][i], old = params[p][i], eps = 2e-3f;
            params[p][i] = old + eps;
            float up = toy_step(&t, true);
            params[p][i] = old - eps;
            float down = toy_step(&t, true);
            params[p][i] = old;
            toy_step(&t, false);
            ck_assert_float_eq_tol((up - down) / (2 * eps), want, 2e-2f * fmaxf(1, fabsf(want)));
        }
    toy_free(&t);
}
END_TEST

START_TEST(recomputation_repeats_gradients_to_the_bit)
{
    struct toy full, some;
    toy_make(&full, (struct chain_options){.training = true});
    float loss = toy_step(&full, false);
    size_t kept = chain_sizes(full.chain).activations;
    for (int every = 1; every <= N_LAYERS + 1; every++) {
        toy_make(&some, (struct chain_options){.training = true, .checkpoint_every = every});
        ck_assert_float_eq(toy_step(&some, false), loss);
        ck_assert_mem_eq(some.d_table, full.d_table, sizeof full.d_table);
        ck_assert_mem_eq(some.d_shared, full.d_shared, sizeof full.d_shared);
        ck_assert_mem_eq(some.d_w, full.d_w, sizeof full.d_w);
        if (every > 1 && every < N_LAYERS - 2)
            ck_assert_uint_lt(chain_sizes(some.chain).activations, kept);
        ck_assert(chain_is_recomputed(some.chain, 0) == (every < N_LAYERS - 1));
        ck_assert(!chain_is_recomputed(some.chain, N_LAYERS - 1));
        toy_free(&some);
    }
    toy_free(&full);
}
END_TEST

START_TEST(inputs_that_wait_in_host_memory_give_the_same_gradients)
{
    struct toy full, some, here;
    struct device *device;
    struct ops *ops;
    ck_ok(device_open("cpu", 0, &device));
    ck_ok(ops_create(device, &ops));
    toy_make(&full, (struct chain_options){.training = true});
    float loss = toy_step(&full, false);
    for (int every = 1; every <= N_LAYERS; every++) {
        toy_make(&here, (struct chain_options){.training = true, .checkpoint_every = every});
        toy_make(&some, (struct chain_options){.training = true,
                                               .checkpoint_every = every,
                                               .keep_on_host = true,
                                               .ops = ops});
        for (int pass = 0; pass < 2; pass++) ck_assert_float_eq(toy_step(&some, false), loss);
        ck_assert_mem_eq(some.d_table, full.d_table, sizeof full.d_table);
        ck_assert_mem_eq(some.d_shared, full.d_shared, sizeof full.d_shared);
        ck_assert_mem_eq(some.d_w, full.d_w, sizeof full.d_w);
        /* of 7 layers in front of the loss; two places, each of 256 bytes, and the last output */
        const size_t n = (size_t)((N_LAYERS - 1 + every - 1) / every - 1),
                     waiting = n > 2 ? n - 2 : 0;
        ck_assert_uint_eq(chain_sizes(some.chain).kept, waiting * CHAIN_ALIGN);
        ck_assert_uint_eq(chain_sizes(some.chain).activations + waiting * CHAIN_ALIGN,
                          chain_sizes(here.chain).activations);
        toy_free(&some);
        toy_free(&here);
    }
    toy_free(&full);
    ops_destroy(ops);
    device_close(device);
}
END_TEST

START_TEST(accumulation_adds_to_what_is_there)
{
    struct toy t;
    toy_make(&t, (struct chain_options){.training = true});
    toy_step(&t, false);
    float once[C];
    memcpy(once, t.d_w[0], sizeof once);
    toy_step(&t, true);
    for (int c = 0; c < C; c++) ck_assert_float_eq_tol(t.d_w[0][c], 2 * once[c], 1e-5f);
    toy_free(&t);
}
END_TEST

START_TEST(frozen_parameters_get_no_gradient)
{
    struct toy t;
    toy_make(&t, (struct chain_options){.training = true});
    t.grads[P_SHARED] = NULL;
    memset(t.d_shared, 0x55, sizeof t.d_shared);
    toy_step(&t, false);
    const unsigned char *bytes = (const unsigned char *)t.d_shared;
    for (size_t i = 0; i < sizeof t.d_shared; i++) ck_assert_uint_eq(bytes[i], 0x55);
    toy_free(&t);
}
END_TEST

START_TEST(smaller_batches_run_and_larger_ones_are_refused)
{
    struct toy t;
    toy_make(&t, (struct chain_options){.training = true, .checkpoint_every = 2});
    t.batch.B = 1, t.batch.T = 2;
    toy_step(&t, false);
    t.batch.B = B_MAX + 1;
    const struct chain_run run = {.batch = &t.batch, .mode = LAYER_TRAIN};
    ck_fails(chain_forward(t.chain, &run), CZ_INVALID);
    ck_fails(chain_backward(t.chain), CZ_INVALID);
    toy_free(&t);
}
END_TEST

START_TEST(evaluation_needs_two_outputs_only)
{
    struct toy train, eval;
    toy_make(&train, (struct chain_options){.training = true});
    toy_make(&eval, (struct chain_options){.training = false});
    float a = 0, b = 1;
    const struct chain_run run = {.batch = &train.batch, .mode = LAYER_EVAL, .loss = &a};
    ck_ok(chain_forward(train.chain, &run));
    const struct chain_run same = {.batch = &eval.batch, .mode = LAYER_EVAL, .loss = &b};
    ck_ok(chain_forward(eval.chain, &same));
    ck_assert_float_eq(a, b);
    ck_assert_uint_eq(chain_sizes(eval.chain).activations, 2 * CHAIN_ALIGN);
    ck_assert_uint_eq(chain_sizes(eval.chain).gradients, 0);
    const struct chain_run wrong = {.batch = &eval.batch, .mode = LAYER_TRAIN};
    ck_fails(chain_forward(eval.chain, &wrong), CZ_INVALID);
    ck_assert(!chain_can_decode(eval.chain));
    ck_fails(chain_decode(eval.chain, NULL, &eval.batch, 0, NULL), CZ_UNSUPPORTED);
    toy_free(&train);
    toy_free(&eval);
}
END_TEST

/* Hooks may move parameters: they are valid between enter and leave alone. */
struct gather {
    struct toy *toy;
    const void *real[N_PARAMS];
    int depth, n_calls;
};

static cz_status gather_enter(void *user, size_t layer_idx, enum chain_phase phase)
{
    struct gather *g = user;
    (void)phase;
    ck_assert_int_eq(g->depth++, 0);
    const struct model_layer *layer = chain_layer(g->toy->chain, layer_idx);
    for (size_t i = 0; i < layer->n_params; i++)
        g->toy->params[layer->param_idx[i]] = g->real[layer->param_idx[i]];
    return CZ_OK;
}

static cz_status gather_leave(void *user, size_t layer_idx, enum chain_phase phase)
{
    struct gather *g = user;
    (void)phase;
    (void)layer_idx;
    g->depth--;
    g->n_calls++;
    memset(g->toy->params, 0, sizeof g->toy->params);
    return CZ_OK;
}

START_TEST(hooks_surround_every_layer)
{
    struct toy t, plain;
    toy_make(&plain, (struct chain_options){.training = true});
    toy_step(&plain, false);
    toy_make(&t, (struct chain_options){.training = true, .checkpoint_every = 2});
    struct gather g = {.toy = &t};
    memcpy(g.real, t.params, sizeof g.real);
    memset(t.params, 0, sizeof t.params);
    const struct chain_memory memory = {.activations = t.blocks[0],
                                        .workspace = t.blocks[1],
                                        .gradients = t.blocks[2],
                                        .params = t.params,
                                        .grads = t.grads,
                                        .hooks = {&g, gather_enter, gather_leave}};
    chain_bind(t.chain, &memory);
    toy_step(&t, false);
    ck_assert_mem_eq(t.d_table, plain.d_table, sizeof plain.d_table);
    int n_recomputed = 0;
    for (size_t i = 0; i < N_LAYERS; i++) n_recomputed += chain_is_recomputed(t.chain, i);
    ck_assert_int_eq(g.n_calls, 2 * N_LAYERS + n_recomputed);
    toy_free(&t);
    toy_free(&plain);
}
END_TEST

/* Micro-batch k of a step: other tokens, another shape, another key. */
enum { N_MICRO = 3 };

struct micro {
    int32_t ids[B_MAX * T_MAX], labels[B_MAX * T_MAX];
    struct batch batch;
    struct chain_run run;
    float loss;
};

static void micro_make(struct micro *m, int k)
{
    for (int i = 0; i < B_MAX * T_MAX; i++)
        m->ids[i] = (i * 5 + k) % V, m->labels[i] = (i * 3 + 2 * k + 1) % V;
    m->batch =
        (struct batch){.B = B_MAX - k % 2, .T = T_MAX - k, .ids = m->ids, .labels = m->labels};
    m->run = (struct chain_run){.batch = &m->batch,
                                .mode = LAYER_TRAIN,
                                .rng = {.seed = 3, .sample = 11 + (uint64_t)k},
                                .dloss = 0.3f,
                                .loss = &m->loss};
}

static void expect_same_gradients(const struct toy *a, const struct toy *b)
{
    ck_assert_mem_eq(a->d_table, b->d_table, sizeof a->d_table);
    ck_assert_mem_eq(a->d_w, b->d_w, sizeof a->d_w);
    ck_assert_mem_eq(a->d_own, b->d_own, sizeof a->d_own);
}

/* Where inputs wait from forward to backward. */
enum kept_where { IN_MEMORY = 0, ON_HOST, IN_FILE };

/* The calls that a chain makes of its device and its file; one of them may fail. */
static long n_calls, fails_at = -1;

static cz_status count_call(void)
{
    return n_calls++ == fails_at ? err_set(CZ_IO, 0, "this call fails") : CZ_OK;
}

/* A file that moves bytes when it is asked whether they have been moved. */
struct lazy_file {
    unsigned char bytes[64 * CHAIN_FILE_ALIGN];
    struct lazy {
        void *to;
        const void *from;
        size_t nbytes;
    } asked[256];
    uint64_t n_asked, n_moved;
};

static cz_status lazy_ask(struct lazy_file *f, void *to, const void *from, size_t nbytes,
                          uint64_t *ticket)
{
    ck_assert_uint_eq(nbytes % CHAIN_FILE_ALIGN, 0);
    ck_assert_uint_lt(f->n_asked, CZ_ARRAY_LEN(f->asked));
    f->asked[f->n_asked++] = (struct lazy){to, from, nbytes};
    *ticket = f->n_asked;
    return CZ_OK;
}

static cz_status lazy_write(void *user, uint64_t off, size_t nbytes, const void *src,
                            uint64_t *ticket)
{
    struct lazy_file *f = user;
    TRY(count_call());
    ck_assert_uint_eq((uintptr_t)src % CHAIN_FILE_ALIGN, 0);
    ck_assert_uint_le(off + nbytes, sizeof f->bytes);
    return lazy_ask(f, f->bytes + off, src, nbytes, ticket);
}

static cz_status lazy_read(void *user, uint64_t off, size_t nbytes, void *dst, uint64_t *ticket)
{
    struct lazy_file *f = user;
    TRY(count_call());
    ck_assert_uint_eq((uintptr_t)dst % CHAIN_FILE_ALIGN, 0);
    memset(dst, 0xff, nbytes); /* not there before the wait */
    return lazy_ask(f, dst, f->bytes + off, nbytes, ticket);
}

static cz_status lazy_wait(void *user, uint64_t ticket)
{
    struct lazy_file *f = user;
    TRY(count_call());
    for (; f->n_moved < ticket; f->n_moved++) {
        const struct lazy *a = &f->asked[f->n_moved];
        memmove(a->to, a->from, a->nbytes);
    }
    return CZ_OK;
}

/* A device whose stream of copies does nothing until the chain waits for it. */
enum { COPIES_MAX = 4096, EVENTS_MAX = 16 };
#define COPIES ((struct dev_stream *)&copies)

static struct {
    struct {
        void *dst;
        const void *src;
        size_t nbytes;
    } asked[COPIES_MAX];
    size_t n_asked, n_done;
} copies;

static size_t n_events;
static struct dev_event {
    size_t n_before; /* copies that it comes after */
    bool is_made;
} events[EVENTS_MAX];

static cz_status slow_event_create(struct device *device, struct dev_event **out)
{
    (void)device;
    TRY(count_call());
    ck_assert_uint_lt(n_events, EVENTS_MAX);
    *out = &events[n_events++];
    **out = (struct dev_event){.is_made = true};
    return CZ_OK;
}

static void slow_event_destroy(struct device *device, struct dev_event *event)
{
    (void)device;
    ck_assert(event->is_made);
    event->is_made = false;
}

static cz_status slow_event_record(struct device *device, struct dev_event *event,
                                   struct dev_stream *stream)
{
    (void)device;
    TRY(count_call());
    event->n_before = stream == COPIES ? copies.n_asked : 0;
    return CZ_OK;
}

static cz_status slow_stream_wait(struct device *device, struct dev_stream *stream,
                                  struct dev_event *event)
{
    (void)device;
    TRY(count_call());
    for (; stream != COPIES && copies.n_done < event->n_before; copies.n_done++)
        memmove(copies.asked[copies.n_done].dst, copies.asked[copies.n_done].src,
                copies.asked[copies.n_done].nbytes);
    return CZ_OK;
}

static cz_status slow_copy(struct device *device, struct dev_stream *stream, void *dst,
                           const void *src, size_t nbytes)
{
    (void)device;
    TRY(count_call());
    ck_assert_ptr_eq(stream, COPIES);
    ck_assert_uint_lt(copies.n_asked, COPIES_MAX);
    copies.asked[copies.n_asked].dst = dst;
    copies.asked[copies.n_asked].src = src;
    copies.asked[copies.n_asked++].nbytes = nbytes;
    return CZ_OK;
}

static cz_status slow_fill_zero(struct device *device, struct dev_stream *stream, void *dst,
                                size_t nbytes)
{
    TRY(count_call());
    return device_host_ops.fill_zero(device, stream, dst, nbytes);
}

static struct device_ops slow_ops;
static struct device slow_device = {.ops = &slow_ops};

static struct ops *open_slow(void)
{
    struct ops *ops;
    slow_ops = device_host_ops;
    slow_ops.event_create = slow_event_create;
    slow_ops.event_destroy = slow_event_destroy;
    slow_ops.event_record = slow_event_record;
    slow_ops.stream_wait = slow_stream_wait;
    slow_ops.copy = slow_copy;
    slow_ops.fill_zero = slow_fill_zero;
    copies.n_asked = copies.n_done = n_events = 0;
    ck_ok(ops_create(&slow_device, &ops));
    return ops;
}

/* Waiting inputs in host memory, or in a file; what layers save, in a file. */
static void slow_make(struct toy *t, int64_t every, int n, bool in_file, struct ops *ops,
                      struct lazy_file *file)
{
    toy_make(t, (struct chain_options){.training = true,
                                       .checkpoint_every = every,
                                       .n_together = (size_t)n,
                                       .keep_on_host = !in_file,
                                       .keep_in_file = in_file,
                                       .ops = ops});
    if (every == 0) {
        enum chain_saved saved[N_LAYERS];
        for (int i = 0; i < N_LAYERS; i++) saved[i] = CHAIN_SAVED_IN_FILE;
        ck_ok(chain_place_saved(t->chain, saved));
        free(t->blocks[0]);
        t->blocks[0] = malloc(chain_sizes(t->chain).activations);
    }
    const struct chain_memory memory = {.activations = t->blocks[0],
                                        .workspace = t->blocks[1],
                                        .gradients = t->blocks[2],
                                        .kept = t->blocks[4],
                                        .copies = COPIES,
                                        .file = {file, lazy_write, lazy_read, lazy_wait},
                                        .params = t->params,
                                        .grads = t->grads};
    chain_bind(t->chain, &memory);
}

static cz_status slow_pass(struct toy *t, int n)
{
    struct micro micro[N_MICRO];
    struct chain_run runs[N_MICRO];
    float losses[N_MICRO];
    for (int k = 0; k < n; k++) {
        micro_make(&micro[k], k);
        runs[k] = micro[k].run;
        runs[k].accumulate = false;
        runs[k].loss = &losses[k];
    }
    TRY(chain_forward_all(t->chain, runs, (size_t)n));
    return chain_backward(t->chain);
}

/* Copies that take as long as they may, passes one after the other; and each call fails once, which
 * ends the pass with that error, and the next one is as before. */
START_TEST(copies_are_waited_for_and_may_fail)
{
    static const struct {
        int64_t every;
        int n;
        bool in_file;
    } ways[] = {{1, 1, false}, {2, 1, false}, {1, 3, false},
                {1, 3, true},  {0, 3, true},  {0, 2, true}};
    static struct lazy_file file;
    struct toy alone, slow;
    or_apart = true;
    for (size_t way = 0; way < CZ_ARRAY_LEN(ways); way++) {
        const int n = ways[way].n;
        struct ops *ops = open_slow();
        toy_make(&alone, (struct chain_options){.training = true, .n_together = (size_t)n});
        ck_ok(slow_pass(&alone, n));
        file = (struct lazy_file){0};
        slow_make(&slow, ways[way].every, n, ways[way].in_file, ops, &file);
        for (int pass = 0; pass < 3; pass++) {
            n_calls = 0;
            ck_ok(slow_pass(&slow, n));
            expect_same_gradients(&slow, &alone);
        }
        const long n_all = n_calls;
        ck_assert_int_gt(n_all, 4);
        for (long k = 0; k < n_all; k++) {
            copies.n_asked = copies.n_done = file.n_asked = file.n_moved = 0;
            n_calls = 0;
            fails_at = k;
            const cz_status st = slow_pass(&slow, n);
            fails_at = -1;
            ck_assert_msg(st == CZ_IO, "way %zu: call %ld of %ld fails: %d", way, k, n_all,
                          (int)st);
            toy_free(&slow);
            n_events = 0;
            copies.n_asked = copies.n_done = file.n_asked = file.n_moved = 0;
            slow_make(&slow, ways[way].every, n, ways[way].in_file, ops, &file);
            if (k % 8 != 0) continue;
            ck_ok(slow_pass(&slow, n));
            expect_same_gradients(&slow, &alone);
        }
        toy_free(&slow);
        for (size_t i = 0; i < n_events; i++) ck_assert(!events[i].is_made);
        toy_free(&alone);
        ops_destroy(ops);
    }
    /* and while it is made */
    struct ops *ops = open_slow();
    toy_make(&alone, (struct chain_options){.training = true});
    for (long k = 0; k < 8; k++) {
        struct chain *chain;
        const struct chain_options options = {.B = 1,
                                              .T = 1,
                                              .training = true,
                                              .checkpoint_every = 1,
                                              .keep_on_host = true,
                                              .ops = ops};
        n_calls = 0;
        fails_at = k;
        n_events = 0;
        ck_fails(chain_create_layers(alone.layers, N_LAYERS, N_PARAMS, &options, &chain), CZ_IO);
        ck_assert_uint_eq(n_events, (size_t)k);
        for (size_t i = 0; i < n_events; i++) ck_assert(!events[i].is_made);
    }
    fails_at = -1;
    toy_free(&alone);
    ops_destroy(ops);
    or_apart = false;
}
END_TEST

/* ---- what layers share ---- */

static cz_status sharing_size(const void *hp, const struct batch_shape *s, struct layer_sizes *out)
{
    TRY(scale_size(hp, s, out));
    out->shared_nbytes = 300;
    return CZ_OK;
}

/* Counts the layers of a pass and a micro-batch. */
static cz_status sharing_forward(const void *hp, const struct layer_args *a)
{
    float *shared = a->shared;
    for (int i = 0; i < 75 && a->mode != LAYER_RECOMPUTE; i++) {
        ck_assert_float_eq(shared[i], (float)(((const struct scale_hp *)hp)->number - 1));
        shared[i] += 1;
    }
    return scale_forward(hp, a);
}

START_TEST(what_layers_share_begins_at_zero)
{
    struct ops *ops = open_slow();
    struct layer_class cls = scale_class;
    struct toy t;
    cls.size = sharing_size;
    cls.forward = sharing_forward;
    or_apart = is_numbered = true;
    for (int n = 1; n <= N_MICRO; n++) {
        struct chain *chain;
        toy_make(&t, (struct chain_options){.training = true});
        for (int i = 1; i < N_LAYERS - 1; i++) t.layers[i].cls = &cls;
        const struct chain_options options = {
            .B = B_MAX, .T = T_MAX, .training = true, .n_together = (size_t)n, .ops = ops};
        ck_ok(chain_create_layers(t.layers, N_LAYERS, N_PARAMS, &options, &chain));
        const struct chain_sizes sizes = chain_sizes(chain);
        chain_destroy(t.chain);
        t.chain = chain;
        void *activations = malloc(sizes.activations), *gradients = malloc(sizes.gradients);
        memset(activations, 0x41, sizes.activations);
        const struct chain_memory memory = {.activations = activations,
                                            .workspace = t.blocks[1],
                                            .gradients = gradients,
                                            .params = t.params,
                                            .grads = t.grads};
        chain_bind(chain, &memory);
        for (int pass = 0; pass < 2; pass++) {
            float loss;
            ck_ok(slow_pass(&t, n));
            const struct chain_run run = {.batch = &t.batch, .mode = LAYER_EVAL, .loss = &loss};
            ck_ok(chain_forward(chain, &run));
        }
        n_calls = 0;
        fails_at = n - 1;
        ck_fails(slow_pass(&t, n), CZ_IO);
        fails_at = -1;
        free(activations);
        free(gradients);
        toy_free(&t);
    }
    or_apart = is_numbered = false;
    ops_destroy(ops);
}
END_TEST

/* Alone they are summed one after the other: h + e of the tied table, micro-batch by micro-batch.
 * saved: where the layers keep what they save. */
static void check_together(int n, int64_t every, const enum chain_saved *saved,
                           enum kept_where where)
{
    static struct lazy_file file;
    struct toy alone, together;
    struct micro micro[N_MICRO];
    struct chain_run runs[N_MICRO];
    struct device *device;
    struct ops *ops;
    ck_ok(device_open("cpu", 0, &device));
    ck_ok(ops_create(device, &ops));
    or_apart = true;
    toy_make(&alone, (struct chain_options){.training = true});
    file = (struct lazy_file){0};
    toy_make(&together, (struct chain_options){.training = true,
                                               .checkpoint_every = every,
                                               .n_together = N_MICRO,
                                               .keep_in_file = where == IN_FILE,
                                               .keep_on_host = where == ON_HOST,
                                               .ops = ops});
    const size_t all = chain_sizes(together.chain).activations;
    ck_ok(chain_place_saved(together.chain, saved));
    size_t n_swapped = 0;
    for (size_t i = 0; i + 1 < N_LAYERS && every == 0; i++) {
        ck_assert(chain_is_recomputed(together.chain, i) == (saved[i] == CHAIN_SAVED_NOWHERE));
        n_swapped += chain_layer_sizes(together.chain, i).saved_nbytes > 0 &&
                     saved[i] == CHAIN_SAVED_IN_FILE;
    }
    ck_assert(every == 0 || chain_is_recomputed(together.chain, 1));
    const struct chain_sizes sizes = chain_sizes(together.chain);
    free(together.blocks[0]); /* in a file, what the layers save takes whole blocks of memory */
    together.blocks[0] = malloc(sizes.activations);
    if (n_swapped == 0) ck_assert(sizes.activations <= all);
    ck_assert_uint_eq(chain_n_visits(together.chain), 2 * N_LAYERS);
    ck_assert_uint_eq(chain_tied_layer(together.chain), 0);
    memset(together.blocks[0], 0xff, sizes.activations);
    ck_assert((sizes.kept > 0) == (where == ON_HOST));
    ck_assert((sizes.file > 0) == (where == IN_FILE || n_swapped > 0));
    const struct chain_memory memory = {.activations = together.blocks[0],
                                        .workspace = together.blocks[1],
                                        .gradients = together.blocks[2],
                                        .kept = where == ON_HOST ? together.blocks[4] : NULL,
                                        .file = {&file, lazy_write, lazy_read, lazy_wait},
                                        .params = together.params,
                                        .grads = together.grads};
    chain_bind(together.chain, &memory);
    for (int k = 0; k < n; k++) {
        micro_make(&micro[k], k);
        micro[k].run.accumulate = k > 0;
        runs[k] = micro[k].run;
        runs[k].accumulate = false;
        ck_ok(chain_forward(alone.chain, &micro[k].run));
        ck_ok(chain_backward(alone.chain));
    }
    float losses[N_MICRO];
    for (int k = 0; k < n; k++) runs[k].loss = &losses[k];
    for (int pass = 0; pass < 2; pass++) {
        const uint64_t n_asked = file.n_asked;
        ck_ok(chain_forward_all(together.chain, runs, (size_t)n));
        ck_ok(chain_backward(together.chain));
        if (where != IN_FILE) /* each is written once and read once */
            ck_assert_uint_eq(file.n_asked - n_asked, 2 * n_swapped * (size_t)n);
        expect_same_gradients(&together, &alone);
        for (int k = 0; k < n; k++) ck_assert_float_eq(losses[k], micro[k].loss);
    }
    toy_free(&alone);
    toy_free(&together);
    or_apart = false;
    ops_destroy(ops);
    device_close(device);
}

START_TEST(micro_batches_together_give_the_sums_of_one_after_the_other)
{
    for (enum kept_where where = IN_MEMORY; where <= IN_FILE; where++)
        for (int n = 1; n <= N_MICRO; n++) {
            enum chain_saved saved[N_LAYERS] = {0};
            check_together(n, 1, saved, where);
            for (int way = 0; way < 12; way++) {
                for (int i = 0; i < N_LAYERS; i++)
                    saved[i] = way < 3    ? (enum chain_saved)way
                               : way == 3 ? i < 3 ? CHAIN_SAVED_NOWHERE : CHAIN_SAVED_IN_MEMORY
                                          : (enum chain_saved)((i * way + i / 2) % CHAIN_N_SAVED);
                check_together(n, 0, saved, where);
            }
        }
}
END_TEST

/* One after the other in a chain that could take them together: nothing is put off. */
START_TEST(a_chain_for_several_takes_one)
{
    struct toy alone, together;
    struct micro micro[N_MICRO];
    or_apart = true;
    toy_make(&alone, (struct chain_options){.training = true});
    toy_make(&together, (struct chain_options){.training = true, .n_together = N_MICRO});
    for (int k = 0; k < N_MICRO; k++) {
        micro_make(&micro[k], k);
        micro[k].run.accumulate = k > 0;
        ck_ok(chain_forward(alone.chain, &micro[k].run));
        ck_ok(chain_backward(alone.chain));
        ck_ok(chain_forward(together.chain, &micro[k].run));
        ck_ok(chain_backward(together.chain));
    }
    expect_same_gradients(&together, &alone);
    struct chain_run runs[N_MICRO + 1];
    for (int k = 0; k <= N_MICRO; k++) runs[k] = micro[0].run;
    ck_fails(chain_forward_all(together.chain, runs, N_MICRO + 1), CZ_INVALID);
    ck_fails(chain_backward(together.chain), CZ_INVALID);
    toy_free(&alone);
    toy_free(&together);
    or_apart = false;
}
END_TEST

/* Those of the last pass: each of its micro-batches has to use a parameter. */
START_TEST(parameters_without_a_gradient_are_found_and_zero)
{
    struct toy t;
    struct micro micro[N_MICRO];
    struct chain_run runs[N_MICRO];
    struct device *device;
    struct ops *ops;
    float losses[N_MICRO];
    ck_ok(device_open("cpu", 0, &device));
    ck_ok(ops_create(device, &ops));
    or_apart = is_numbered = true;
    for (int n = 1; n <= N_MICRO; n += N_MICRO - 1) {
        toy_make(&t, (struct chain_options){
                         .training = true, .n_together = n, .ops = ops, .grad_dtype = DTYPE_F32});
        for (int k = 0; k < n; k++) {
            micro_make(&micro[k], k);
            runs[k] = micro[k].run;
            runs[k].accumulate = false;
            runs[k].loss = &losses[k];
        }
        struct chain_memory memory = {.activations = t.blocks[0],
                                      .workspace = t.blocks[1],
                                      .gradients = t.blocks[2],
                                      .params = t.params,
                                      .grads = t.grads};
        chain_bind(t.chain, &memory);
        toy_unused = 3;
        ck_ok(chain_forward_all(t.chain, runs, (size_t)n));
        ck_fails(chain_backward(t.chain), CZ_UNSUPPORTED);
        ck_assert_str_eq(cz_last_error(), "layer 3 (scale) gives no gradient of a parameter");
        memory.grad_numel = numels;
        chain_bind(t.chain, &memory);
        for (int pass = 0; pass < 4; pass++) {
            toy_unused = pass % 2 ? 3 : -1;
            memset(t.d_w, 0x55, sizeof t.d_w);
            ck_ok(chain_forward_all(t.chain, runs, (size_t)n));
            ck_ok(chain_backward(t.chain));
            ck_assert_uint_eq(chain_param_unused(t.chain), pass % 2 ? P_FIRST + 2 : SIZE_MAX);
            for (int c = 0; c < C; c++) {
                ck_assert(pass % 2 == 0 || t.d_w[2][c] == 0);
                ck_assert(fabsf(t.d_w[1][c]) < 100 && fabsf(t.d_w[3][c]) < 100);
            }
        }
        t.grads[P_FIRST + 2] = NULL; /* frozen: it needs none */
        ck_ok(chain_forward_all(t.chain, runs, (size_t)n));
        ck_ok(chain_backward(t.chain));
        ck_assert_uint_eq(chain_param_unused(t.chain), SIZE_MAX);
        toy_free(&t);
    }
    toy_unused = -1;
    or_apart = is_numbered = false;
    ops_destroy(ops);
    device_close(device);
}
END_TEST

/* ---- what a walk refuses ---- */

static cz_status fails(const void *hp, const struct layer_args *a)
{
    (void)hp, (void)a;
    return err_set(CZ_UNSUPPORTED, 0, "no");
}

START_TEST(an_error_names_its_layer)
{
    struct toy t;
    for (int backward = 0; backward < 2; backward++)
        for (int mode = LAYER_TRAIN; mode <= LAYER_EVAL; mode++) {
            struct layer_class broken = scale_class;
            broken.name = "broken";
            *(backward ? &broken.backward : &broken.forward) = fails;
            toy_make(&t, (struct chain_options){.training = true});
            t.layers[3].cls = &broken;
            struct chain *chain;
            const struct chain_options options = {.B = B_MAX, .T = T_MAX, .training = true};
            ck_ok(chain_create_layers(t.layers, N_LAYERS, N_PARAMS, &options, &chain));
            const struct chain_memory memory = {.activations = t.blocks[0],
                                                .workspace = t.blocks[1],
                                                .gradients = t.blocks[2],
                                                .params = t.params,
                                                .grads = t.grads};
            chain_bind(chain, &memory);
            float loss;
            const struct chain_run run = {
                .batch = &t.batch, .mode = (enum layer_mode)mode, .dloss = 1, .loss = &loss};
            if (mode == LAYER_RECOMPUTE) {
                ck_fails(chain_forward(chain, &run), CZ_INVALID);
            } else if (!backward) {
                ck_fails(chain_forward(chain, &run), CZ_UNSUPPORTED);
                ck_assert_str_eq(cz_last_error(), "layer 3 (broken): no");
                ck_fails(chain_backward(chain), CZ_INVALID);
            } else {
                ck_ok(chain_forward(chain, &run));
                if (mode == LAYER_TRAIN) {
                    ck_fails(chain_backward(chain), CZ_UNSUPPORTED);
                    ck_assert_str_eq(cz_last_error(), "layer 3 (broken): no");
                }
                ck_fails(chain_backward(chain), CZ_INVALID); /* once */
            }
            chain_destroy(chain);
            toy_free(&t);
        }
}
END_TEST

static cz_status decodes(const void *hp, const struct layer_args *a)
{
    (void)hp;
    ck_assert(a->cache && a->cache_T == T_MAX && a->position < T_MAX);
    ck_assert(a->position + a->batch->T <= T_MAX);
    return CZ_OK;
}

START_TEST(batches_have_the_bounds_of_the_chain)
{
    static const struct {
        int64_t B, T, position;
        bool runs, decodes; /* at that position */
    } table[] = {
        {B_MAX, T_MAX, 0, true, true},
        {1, 1, 0, true, true},
        {B_MAX + 1, T_MAX, 0, false, false},
        {B_MAX, T_MAX + 1, 0, false, false},
        {0, 1, 0, false, false},
        {1, 0, 0, false, false},
        {1, 1, T_MAX - 1, true, true},
        {1, 1, T_MAX, true, false},
        {1, 2, T_MAX - 2, true, true},
        {1, 2, T_MAX - 1, true, false},
        {1, 1, -1, true, false},
    };
    struct toy t;
    struct layer_class classes[3] = {rows_class, scale_class, dot_class};
    for (int i = 0; i < 3; i++) classes[i].decode = decodes;
    toy_make(&t, (struct chain_options){.training = true});
    for (int i = 0; i < N_LAYERS; i++)
        t.layers[i].cls = i == 0 ? &classes[0] : i == N_LAYERS - 1 ? &classes[2] : &classes[1];
    struct chain *chain;
    const struct chain_options options = {.B = B_MAX, .T = T_MAX, .cache = true};
    ck_ok(chain_create_layers(t.layers, N_LAYERS, N_PARAMS, &options, &chain));
    const struct chain_sizes sizes = chain_sizes(chain);
    ck_assert_uint_eq(sizes.cache, N_SCALE * CHAIN_ALIGN); /* of 64 bytes each */
    ck_assert(chain_can_decode(chain));
    const struct chain_memory memory = {.activations = malloc(sizes.activations),
                                        .workspace = malloc(sizes.workspace),
                                        .cache = malloc(sizes.cache),
                                        .params = t.params};
    chain_bind(chain, &memory);
    for (size_t i = 0; i < CZ_ARRAY_LEN(table); i++) {
        float loss;
        t.batch.B = table[i].B, t.batch.T = table[i].T;
        const struct chain_run run = {.batch = &t.batch, .mode = LAYER_EVAL, .loss = &loss};
        ck_assert_msg(chain_forward(chain, &run) == (table[i].runs ? CZ_OK : CZ_INVALID), "%zu", i);
        ck_assert_msg(chain_decode(chain, NULL, &t.batch, table[i].position, NULL) ==
                          (table[i].decodes ? CZ_OK : CZ_INVALID),
                      "%zu", i);
        const struct chain_run train = {
            .batch = &t.batch, .mode = LAYER_TRAIN, .dloss = 1, .loss = &loss};
        ck_assert_msg(chain_forward(t.chain, &train) == (table[i].runs ? CZ_OK : CZ_INVALID), "%zu",
                      i);
    }
    ck_fails(chain_forward_all(t.chain, NULL, 0), CZ_INVALID);
    free(memory.activations);
    free(memory.workspace);
    free(memory.cache);
    chain_destroy(chain);
    toy_free(&t);
}
END_TEST

/* ---- sizes that no memory has ---- */

static struct layer_sizes huge;

static cz_status huge_size(const void *hp, const struct batch_shape *s, struct layer_sizes *out)
{
    (void)hp, (void)s;
    *out = huge;
    return CZ_OK;
}

START_TEST(sizes_do_not_overflow)
{
    static const struct chain_options ways[] = {
        {.training = true},
        {.training = true, .checkpoint_every = 1},
        {.training = true, .checkpoint_every = 1, .keep_on_host = true},
        {.training = true, .checkpoint_every = 2, .n_together = 1},
        {.training = true, .n_together = 3},
        {.training = true, .n_together = 3, .checkpoint_every = 1},
        {.training = true, .n_together = 3, .checkpoint_every = 1, .keep_on_host = true},
        {.training = true, .n_together = 3, .checkpoint_every = 1, .keep_in_file = true},
        {.training = true, .n_together = 3, .unpads = true},
        {.cache = true},
        {.cache = true, .training = true},
    };
    static const size_t sizes[] = {SIZE_MAX / 2 + 1, SIZE_MAX / 2, SIZE_MAX / 3};
    struct toy t;
    struct device *device;
    struct ops *ops;
    ck_ok(device_open("cpu", 0, &device));
    ck_ok(ops_create(device, &ops));
    or_apart = true;
    toy_make(&t, (struct chain_options){.training = true});
    struct layer_class cls = scale_class;
    cls.size = huge_size;
    for (int i = 1; i < N_LAYERS - 1; i++) t.layers[i].cls = &cls;
    for (size_t way = 0; way < CZ_ARRAY_LEN(ways); way++)
        for (size_t k = 0; k < CZ_ARRAY_LEN(sizes); k++)
            for (int field = 0; field < 6; field++) {
                struct chain_options options = ways[way];
                struct chain *chain = NULL;
                options.B = options.T = 1;
                options.ops = ops;
                huge = (struct layer_sizes){.out_nbytes = 64};
                size_t *const fields[] = {&huge.out_nbytes,     &huge.saved_nbytes,
                                          &huge.cache_nbytes,   &huge.shared_nbytes,
                                          &huge.put_off_nbytes, &huge.workspace_nbytes};
                *fields[field] = sizes[k];
                /* what every micro-batch and segment keeps of six layers */
                const size_t n_sets = options.n_together > 1 ? (size_t)options.n_together : 1;
                const size_t every = (size_t)options.checkpoint_every;
                const size_t n_saved = every == 0 ? N_SCALE : n_sets == 1 ? every : 0;
                const size_t times[] = {options.training ? 3 : 2,
                                        options.training ? n_saved * n_sets : 0,
                                        options.cache ? N_SCALE : 0,
                                        n_sets,
                                        0,
                                        0};
                const bool fits =
                    k > 0 && (times[field] == 0 || sizes[k] <= SIZE_MAX / times[field]);
                const cz_status st =
                    chain_create_layers(t.layers, N_LAYERS, N_PARAMS, &options, &chain);
                if (k > 0 && times[field] == 0)
                    ck_assert_msg(st == CZ_OK, "way %zu, field %d, size %zu: %s", way, field, k,
                                  cz_last_error());
                if (!fits)
                    ck_assert_msg(st != CZ_OK && st != CZ_NOMEM, "way %zu, field %d, size %zu: %d",
                                  way, field, k, (int)st);
                chain_destroy(chain);
            }
    toy_free(&t);
    or_apart = false;
    ops_destroy(ops);
    device_close(device);
}
END_TEST

START_TEST(layers_that_share_parameters_do_not_go_together)
{
    struct toy t;
    toy_make(&t, (struct chain_options){.training = true});
    struct chain *chain;
    const struct chain_options options = {.B = 1, .T = 1, .training = true, .n_together = 2};
    ck_fails(chain_create_layers(t.layers, N_LAYERS, N_PARAMS, &options, &chain), CZ_UNSUPPORTED);
    ck_assert_ptr_null(chain);
    toy_free(&t);
}
END_TEST

START_TEST(a_chain_ends_in_its_only_loss_layer)
{
    struct toy t;
    toy_make(&t, (struct chain_options){.training = true});
    struct chain *chain;
    const struct chain_options options = {.B = 1, .T = 1, .training = true};
    ck_fails(chain_create_layers(t.layers, N_LAYERS - 1, N_PARAMS, &options, &chain), CZ_INVALID);
    ck_fails(chain_create_layers(t.layers, 0, N_PARAMS, &options, &chain), CZ_INVALID);
    ck_assert_ptr_null(chain);
    toy_free(&t);
}
END_TEST

TEST_MAIN("engine/chain", gradients_match_finite_differences,
          recomputation_repeats_gradients_to_the_bit,
          inputs_that_wait_in_host_memory_give_the_same_gradients,
          accumulation_adds_to_what_is_there, frozen_parameters_get_no_gradient,
          smaller_batches_run_and_larger_ones_are_refused, evaluation_needs_two_outputs_only,
          hooks_surround_every_layer, micro_batches_together_give_the_sums_of_one_after_the_other,
          a_chain_for_several_takes_one, layers_that_share_parameters_do_not_go_together,
          a_chain_ends_in_its_only_loss_layer, parameters_without_a_gradient_are_found_and_zero,
          an_error_names_its_layer, copies_are_waited_for_and_may_fail,
          what_layers_share_begins_at_zero, batches_have_the_bounds_of_the_chain,
          sizes_do_not_overflow)
