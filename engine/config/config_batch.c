/* The batch triangle: train = micro · accumulation · ranks, in Python's arithmetic
 * (docs/deepspeed-behaviour.md, "Batch triangle"). */
#include "engine/config/config_impl.h"

#include <math.h>
#include <string.h>

enum corner { TRAIN = 0, MICRO, STEPS };

static const char *const corner_keys[] = {"train_batch_size", "train_micro_batch_size_per_gpu",
                                          "gradient_accumulation_steps"};

/* A Python number: an int, or a float when any operand was one. */
struct amount {
    bool known;
    bool is_float;
    bool too_large;
    __int128 whole;
    double real;
    const struct cv *given; /* NULL: derived */
};

struct triangle {
    struct config_impl *c;
    struct amount at[3];
    int64_t ranks;
    const char *how; /* the division that a derived value comes from */
};

static struct amount amount_int(int64_t value)
{
    return (struct amount){.known = true, .whole = value, .real = (double)value};
}

static struct amount amount_float(double value)
{
    return (struct amount){.known = true, .is_float = true, .real = value};
}

/* 128 bits for what Python's unlimited integers would hold; past that a value can only be
 * refused. */
static struct amount multiply(struct amount a, struct amount b)
{
    if (a.is_float || b.is_float) return amount_float(a.real * b.real);
    struct amount out = {.known = true, .real = a.real * b.real};
    out.too_large = a.too_large || b.too_large;
    out.too_large |= __builtin_mul_overflow(a.whole, b.whole, &out.whole);
    return out;
}

/* Python's float //: fmod first, so that the quotient is exact, then rounded down to a whole
 * number. */
static struct amount divide(struct amount a, struct amount b)
{
    if (!a.is_float && !b.is_float) {
        struct amount out = {.known = true, .whole = a.whole / b.whole};
        out.real = (double)out.whole;
        return out;
    }
    double quotient = (a.real - fmod(a.real, b.real)) / b.real;
    double below = floor(quotient);
    return amount_float(quotient - below > 0.5 ? below + 1 : below);
}

static bool equal(struct amount a, struct amount b)
{
    if (a.too_large || b.too_large) return false;
    return a.is_float || b.is_float ? a.real == b.real : a.whole == b.whole;
}

static bool positive(struct amount a)
{
    return a.is_float ? a.real > 0 : a.whole > 0;
}

static const char *amount_text(struct triangle *t, struct amount a)
{
    char buf[JSON_FLOAT_NBYTES];
    bool small = !a.is_float && a.whole <= INT64_MAX && a.whole >= INT64_MIN;
    if (small) return cv_text(&t->c->pool, "%lld", (long long)a.whole);
    return cv_text(&t->c->pool, "%s", json_float_text(a.real, buf));
}

/* ---- the corners as given ------------------------------------------------------------------- */

/* Problems of one corner are reported by its own key, before the product is looked at. */
static const struct cv *problem(struct config_impl *c, const struct cv *value, const char *key)
{
    if (cv_is_string(value, CONFIG_AUTO)) {
        config_error(c, value, key, "%s", config_auto_text(c, key));
    } else if (!cv_is_number(value)) {
        config_error(c, value, key, "expected a positive integer, got %s",
                     cv_show(&c->pool, value));
    } else if (value->digits) {
        config_error(c, value, key, "%s is too large", cv_show(&c->pool, value));
    } else if (!(value->real > 0)) {
        config_error(c, value, key, "%s is out of range; it must be above 0",
                     cv_show(&c->pool, value));
    } else {
        return NULL;
    }
    return value;
}

/* ---- deriving what is missing --------------------------------------------------------------- */

/* DeepSpeed's order of cases: with the batch alone, accumulation is 1. */
static bool derive(struct triangle *t)
{
    struct amount *at = t->at, ranks = amount_int(t->ranks);
    if (at[TRAIN].known && at[MICRO].known && at[STEPS].known) return true;
    if (at[TRAIN].known && at[MICRO].known) {
        at[STEPS] = divide(divide(at[TRAIN], at[MICRO]), ranks);
    } else if (at[TRAIN].known && at[STEPS].known) {
        at[MICRO] = divide(divide(at[TRAIN], ranks), at[STEPS]);
    } else if (at[MICRO].known && at[STEPS].known) {
        at[TRAIN] = multiply(multiply(at[MICRO], at[STEPS]), ranks);
    } else if (at[TRAIN].known) {
        at[STEPS] = amount_int(1);
        at[MICRO] = divide(at[TRAIN], ranks);
    } else if (at[MICRO].known) {
        at[STEPS] = amount_int(1);
        at[TRAIN] = multiply(at[MICRO], ranks);
    } else {
        return false;
    }
    return true;
}

/* ---- telling what does not fit -------------------------------------------------------------- */

/* Where a number came from: a mismatch is often between the file and a flag. */
static const char *source(struct triangle *t, struct amount a)
{
    if (!a.given) return "derived";
    switch (a.given->origin) {
    case CV_OPTION: return "option";
    case CV_TRAINER: return "filled in";
    case CV_SET: return "--set";
    case CV_AUTO: return "--auto";
    default: break;
    }
    if (!a.given->node) return "given";
    return cv_text(&t->c->pool, "line %d", json_line(a.given->node));
}

static const char *described(struct triangle *t, enum corner corner)
{
    return cv_text(&t->c->pool, "%s %s (%s)", corner_keys[corner], amount_text(t, t->at[corner]),
                   source(t, t->at[corner]));
}

/* An assignment that works, keeping as much as possible. */
static const char *advice(struct triangle *t)
{
    struct amount ranks = amount_int(t->ranks), *at = t->at;
    struct amount micro = positive(at[MICRO]) ? at[MICRO] : amount_int(1);
    struct amount steps = positive(at[STEPS]) ? at[STEPS] : amount_int(1);
    struct amount per_step = multiply(micro, ranks);
    struct amount train = multiply(per_step, steps);
    const char *first = cv_text(&t->c->pool, "train_batch_size %s with %s %s and %s %s",
                                amount_text(t, train), corner_keys[MICRO], amount_text(t, micro),
                                corner_keys[STEPS], amount_text(t, steps));
    struct amount fitting = divide(at[TRAIN], per_step);
    if (!positive(fitting) || !equal(multiply(per_step, fitting), at[TRAIN])) return first;
    return cv_text(&t->c->pool, "%s; or %s %s", first, corner_keys[STEPS], amount_text(t, fitting));
}

static void tell_mismatch(struct triangle *t)
{
    struct amount product = multiply(multiply(t->at[MICRO], t->at[STEPS]), amount_int(t->ranks));
    const struct cv *place = t->at[TRAIN].given ? t->at[TRAIN].given : t->at[MICRO].given;
    config_error(t->c, place, corner_keys[TRAIN],
                 "%s is not %s x %s x %lld rank%s (%s) = %s; what works: %s", described(t, TRAIN),
                 described(t, MICRO), described(t, STEPS), (long long)t->ranks,
                 t->ranks == 1 ? "" : "s",
                 t->c->world_size_given ? "as asked for" : "the default; see --world-size",
                 amount_text(t, product), advice(t));
}

/* ---- the result ----------------------------------------------------------------------------- */

/* A whole float becomes an int, as the checkpoint and the messages of DeepSpeed show it. */
static void store(struct triangle *t, struct cv *top, enum corner corner)
{
    struct amount a = t->at[corner];
    struct cv_pool *pool = &t->c->pool;
    enum cv_origin origin = a.given ? a.given->origin : CV_DERIVED;
    bool whole = !a.is_float || (a.real == floor(a.real) && fabs(a.real) < 1e10);
    struct cv *out = whole ? cv_int(pool, a.is_float ? (int64_t)a.real : (int64_t)a.whole, origin)
                           : cv_float(pool, a.real, origin);
    out->node = a.given ? a.given->node : NULL;
    cv_put(pool, top, corner_keys[corner], out);
}

/* Sequence-parallel ranks share a batch. One rank alone is one data-parallel rank. */
static int64_t data_parallel_ranks(struct config_impl *c, const struct cv *top)
{
    const struct cv *share = cv_get(top, "sequence_parallel_size");
    if (!share || c->world_size == 1 || share->kind != CV_INT) return c->world_size;
    if (share->integer > 0 && c->world_size % share->integer == 0)
        return c->world_size / share->integer;
    config_error(c, share, "sequence_parallel_size", "%s does not divide the world size %lld",
                 cv_show(&c->pool, share), (long long)c->world_size);
    return c->world_size;
}

/* Positive and equal are checked after deriving, as DeepSpeed asserts them: a derived 0 (a batch
 * smaller than the ranks) is a mismatch with advice, not a silent rounding. */
void config_resolve_batch(struct config_impl *c, struct cv *top)
{
    struct triangle t = {.c = c, .ranks = data_parallel_ranks(c, top)};
    bool ok = true;
    for (int i = TRAIN; i <= STEPS; i++) {
        const struct cv *value = cv_get(top, corner_keys[i]);
        if (!value || value->kind == CV_NULL) continue;
        if (problem(t.c, value, corner_keys[i])) {
            ok = false;
            continue;
        }
        t.at[i] = value->kind == CV_FLOAT ? amount_float(value->real) : amount_int(value->integer);
        t.at[i].given = value;
    }
    if (!ok) return;
    if (!derive(&t)) {
        /* Two of the three can be derived, none of all three. */
        const struct cv *place = t.at[STEPS].given;
        config_error(t.c, place, corner_keys[TRAIN],
                     "either train_batch_size or train_micro_batch_size_per_gpu must be given, for "
                     "instance \"train_micro_batch_size_per_gpu\": 1");
        return;
    }
    struct amount product = multiply(multiply(t.at[MICRO], t.at[STEPS]), amount_int(t.ranks));
    bool fits = positive(t.at[TRAIN]) && positive(t.at[MICRO]) && positive(t.at[STEPS]) &&
                equal(t.at[TRAIN], product) && !t.at[TRAIN].too_large &&
                (t.at[TRAIN].is_float || t.at[TRAIN].whole <= INT64_MAX);
    if (!fits) {
        tell_mismatch(&t);
        return;
    }
    for (int i = TRAIN; i <= STEPS; i++) store(&t, top, (enum corner)i);
}
