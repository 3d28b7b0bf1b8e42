/* Elasticity (docs/deepspeed-behaviour.md, "Elasticity"): the batch out of the ranks that happen
 * to be there. Only --compat 0.16 has it; the batch it finds replaces the three batch keys, and the
 * section is then done with. */
#include "engine/config/config_impl.h"

#include <math.h>
#include <string.h>

#define MICROS_MAX 64
#define BATCH_MAX  INT64_C(100000000)

static const struct config_key elastic_keys[] = {
    KEY("enabled", KEY_BOOL, "false", "compute the batch"),
    KEY("max_train_batch_size", KEY_INT, "2000", "largest batch; must be given", ABOVE(0)),
    KEY("micro_batch_sizes", KEY_LIST, "[2, 4, 6]", "micro-batches to choose from; must be given"),
    KEY("min_gpus", KEY_INT, "1", "fewest ranks", ABOVE(0)),
    KEY("max_gpus", KEY_INT, "10000", "most ranks", ABOVE(0)),
    KEY("num_gpus_per_node", KEY_INT, "1", "ranks of a host", ABOVE(0)),
    KEY("model_parallel_size", KEY_INT, "1", "ranks that share a model", ABOVE(0)),
    KEY("min_time", KEY_INT, "0", "minutes before the ranks change; not used", AT_LEAST(0)),
    KEY("prefer_larger_batch", KEY_BOOL, "true", "of equal choices, the larger batch"),
    KEY("ignore_non_elastic_batch_info", KEY_BOOL, "false", "overwrite given batch keys"),
    KEY("version", KEY_FLOAT, "0.2", "0.1 or 0.2 (whole hosts)"),
};

const struct config_section config_elastic_section = {
    .name = "elasticity",
    .kind = SECTION_MODEL,
    .help = "The batch out of the number of ranks, under `--compat 0.16` only.",
    .keys = elastic_keys,
    .n_keys = CZ_ARRAY_LEN(elastic_keys),
};

struct elastic {
    int64_t micros[MICROS_MAX];
    size_t n_micros;
    int64_t max_batch, min_ranks, max_ranks;
    bool larger;
};

/* ---- the algorithm -------------------------------------------------------------------------- */

static const int64_t highly_composite[] = {
    1,      2,      4,      6,      12,     24,     36,     48,    60,    120,
    180,    240,    360,    720,    840,    1260,   1680,   2520,  5040,  7560,
    10080,  15120,  20160,  25200,  27720,  45360,  50400,  55440, 83160, 110880,
    166320, 221760, 277200, 332640, 498960, 554400, 665280, 720720};

/* Some micro-batch divides the batch into equal shares for all ranks. */
static bool fits(const struct elastic *e, int64_t batch, int64_t ranks)
{
    for (size_t i = 0; i < e->n_micros; i++)
        if (batch % e->micros[i] == 0 && (batch / e->micros[i]) % ranks == 0) return true;
    return false;
}

static bool counts(const struct elastic *e, int64_t batch, int64_t ranks)
{
    return ranks >= e->min_ranks && ranks <= e->max_ranks && fits(e, batch, ranks);
}

/* Only divisors of the batch fit, and they come in pairs: 10,000 attempts at BATCH_MAX, however
 * many ranks the file allows. */
static int64_t count_ranks(const struct elastic *e, int64_t batch)
{
    int64_t n = 0;
    for (int64_t ranks = 1; ranks <= batch / ranks; ranks++) {
        if (batch % ranks != 0) continue;
        n += counts(e, batch, ranks);
        if (batch / ranks != ranks) n += counts(e, batch, batch / ranks);
    }
    return n;
}

/* The largest multiple of `base` by a highly composite number within the maximum; 0: none. */
static int64_t candidate(const struct elastic *e, int64_t base)
{
    int64_t best = 0;
    for (size_t i = 0; i < CZ_ARRAY_LEN(highly_composite); i++)
        if (highly_composite[i] <= e->max_batch / base) best = base * highly_composite[i];
    return best;
}

/* Stops once it exceeds the maximum: it could overflow, and no candidate fits any more. */
static int64_t least_common_multiple(const struct elastic *e)
{
    int64_t lcm = 1;
    for (size_t i = 0; i < e->n_micros && lcm <= e->max_batch; i++) {
        int64_t a = lcm, b = e->micros[i];
        while (b) {
            int64_t rest = a % b;
            a = b;
            b = rest;
        }
        lcm = lcm / a * e->micros[i];
    }
    return lcm;
}

/* The batch that the most numbers of ranks can share; 0: none fits. */
static int64_t best_batch(const struct elastic *e)
{
    int64_t best = 0, most = 0;
    for (size_t i = 0; i <= e->n_micros; i++) {
        int64_t base = i < e->n_micros ? e->micros[i] : least_common_multiple(e);
        int64_t batch = candidate(e, base);
        int64_t n = batch ? count_ranks(e, batch) : 0;
        bool tie = n == most && (e->larger ? batch > best : batch < best);
        if (n > most || (n > 0 && tie)) {
            best = batch;
            most = n;
        }
    }
    return best;
}

/* Version 0.2: the same over hosts, then times the data-parallel ranks of a host. Hosts that the
 * result does not cover get the batch that comes closest to the maximum. */
static int64_t best_batch_of_hosts(const struct elastic *e, int64_t per_host, int64_t model_ranks,
                                   int64_t world)
{
    int64_t data_per_host = per_host / model_ranks, n_hosts = world / per_host;
    struct elastic hosts = *e;
    hosts.max_batch = e->max_batch / data_per_host;
    hosts.min_ranks = e->min_ranks / per_host > 0 ? e->min_ranks / per_host : 1;
    hosts.max_ranks = e->max_ranks / per_host;
    int64_t batch = best_batch(&hosts), data_ranks = n_hosts * data_per_host, best = 0;
    bool covered = batch > 0 && n_hosts >= hosts.min_ranks && n_hosts <= hosts.max_ranks;
    if (covered && fits(&hosts, batch, n_hosts)) return batch * data_per_host;
    for (size_t i = 0; i < e->n_micros && data_ranks > 0; i++) {
        int64_t least = e->micros[i] * data_ranks, most = e->max_batch / least * least;
        bool better = e->larger ? most > best : most < best;
        if (most > 0 && (best == 0 || better)) best = most;
    }
    return best;
}

/* Larger micro-batches use a device better; accumulation is the rest. */
static int64_t largest_micro(const struct elastic *e, int64_t per_rank)
{
    int64_t best = 0;
    for (size_t i = 0; i < e->n_micros; i++)
        if (per_rank % e->micros[i] == 0 && e->micros[i] > best) best = e->micros[i];
    return best;
}

/* ---- from the section to the batch keys ----------------------------------------------------- */

static int64_t whole(const struct cv *section, const char *key)
{
    return cv_get(section, key)->integer;
}

static bool read_section(struct config_impl *c, const struct cv *section, struct elastic *e)
{
    static const char *const required[] = {"max_train_batch_size", "micro_batch_sizes"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(required); i++) {
        if (cv_is_given(cv_get(section, required[i]))) continue;
        config_error(c, section, "elasticity", "\"%s\" is missing", required[i]);
        return false;
    }
    e->max_batch = whole(section, "max_train_batch_size");
    e->min_ranks = whole(section, "min_gpus");
    e->max_ranks = whole(section, "max_gpus");
    e->larger = cv_is_true(cv_get(section, "prefer_larger_batch"));
    if (e->max_batch > BATCH_MAX || e->min_ranks > e->max_ranks) {
        bool batch = e->max_batch > BATCH_MAX;
        config_error(c, section, batch ? "elasticity.max_train_batch_size" : "elasticity.min_gpus",
                     batch ? "is too large" : "is above max_gpus");
        return false;
    }
    /* The list is the user's: its length and every member are bounded before they are multiplied.
     */
    const struct cv *list = cv_get(section, "micro_batch_sizes");
    bool ok = list->n > 0 && list->n <= MICROS_MAX;
    for (size_t i = 0; ok && i < list->n; i++) {
        const struct cv *micro = list->items[i];
        ok = micro->kind == CV_INT && micro->integer > 0 && micro->integer <= BATCH_MAX;
        e->micros[i] = micro->integer;
    }
    e->n_micros = list->n;
    if (!ok)
        config_error(c, list, "elasticity.micro_batch_sizes",
                     "expected a list of 1 to %d positive integers, got %s", MICROS_MAX,
                     cv_show(&c->pool, list));
    return ok;
}

static void put_batch(struct config_impl *c, struct cv *given, const char *key, int64_t value)
{
    cv_put(&c->pool, given, key, cv_int(&c->pool, value, CV_DERIVED));
}

/* DeepSpeed refuses both together: it could not tell which one was meant. */
static bool may_replace(struct config_impl *c, const struct cv *section, const struct cv *given)
{
    static const char *const batch[] = {"train_batch_size", "train_micro_batch_size_per_gpu",
                                        "gradient_accumulation_steps"};
    if (cv_is_true(cv_get(section, "ignore_non_elastic_batch_info"))) return true;
    for (size_t i = 0; i < CZ_ARRAY_LEN(batch); i++) {
        const struct cv *value = cv_get(given, batch[i]);
        if (!value) continue;
        config_error(c, value, batch[i],
                     "is given together with elasticity; remove one of them, or set "
                     "elasticity.ignore_non_elastic_batch_info to true");
        return false;
    }
    return true;
}

/* Version and shape of the hosts; false after telling what is wrong with them. */
static bool check_hosts(struct config_impl *c, const struct cv *section)
{
    const struct cv *version = cv_get(section, "version");
    if (version->real != 0.1 && version->real != 0.2) {
        config_error(c, version, "elasticity.version", "%s is neither 0.1 nor 0.2",
                     cv_show(&c->pool, version));
        return false;
    }
    if (whole(section, "num_gpus_per_node") % whole(section, "model_parallel_size") == 0)
        return true;
    config_error(c, cv_get(section, "num_gpus_per_node"), "elasticity.num_gpus_per_node",
                 "must be a multiple of model_parallel_size");
    return false;
}

/* The batch for the ranks there are; 0: none. */
static int64_t find_batch(const struct cv *section, const struct elastic *e, int64_t world)
{
    if (cv_get(section, "version")->real == 0.2)
        return best_batch_of_hosts(e, whole(section, "num_gpus_per_node"),
                                   whole(section, "model_parallel_size"), world);
    int64_t batch = best_batch(e);
    bool covered = batch > 0 && world >= e->min_ranks && world <= e->max_ranks;
    return covered && fits(e, batch, world) ? batch : 0;
}

/* Elasticity writes the three batch keys before the batch triangle is resolved, which then finds
 * them consistent. */
void config_resolve_elastic(struct config_impl *c, const struct cv *section, struct cv *given)
{
    struct elastic e = {0};
    if (!may_replace(c, section, given) || !read_section(c, section, &e)) return;
    if (!check_hosts(c, section)) return;
    int64_t world = c->world_size, data_ranks = world / whole(section, "model_parallel_size");
    int64_t batch = data_ranks > 0 ? find_batch(section, &e, world) : 0;
    int64_t micro = batch > 0 ? largest_micro(&e, batch / data_ranks) : 0;
    if (micro == 0) {
        config_error(c, section, "elasticity",
                     "no batch up to %lld can be shared by %lld ranks with these micro-batches",
                     (long long)e.max_batch, (long long)world);
        return;
    }
    put_batch(c, given, "train_batch_size", batch);
    put_batch(c, given, "train_micro_batch_size_per_gpu", micro);
    put_batch(c, given, "gradient_accumulation_steps", batch / (micro * data_ranks));
    config_say(c, CONFIG_NOTE_CHOICE, section, "elasticity",
               "train_batch_size is %lld with micro-batches of %lld", (long long)batch,
               (long long)micro);
}
