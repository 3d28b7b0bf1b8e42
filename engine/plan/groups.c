/* Parameter groups: one by default, by name patterns, or decay / no decay as Hugging Face does.
 * Groups exist because a learning rate, a weight decay and betas may differ by parameter; zero lays
 * out each group's elements together. Groups that no parameter falls into are dropped, as an empty
 * one would have no partition. */
#include "engine/plan/groups.h"
#include "base/log.h"
#include "base/options.h"
#include "base/text/regex.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Rules in the order in which groups stand; the last one takes what no other does. */
struct rules {
    struct optim_group_rule rules[OPTIM_GROUPS_MAX];
    struct regex *regexes[OPTIM_GROUPS_MAX];
    size_t n;
    uint64_t work; /* left of REGEX_WORK_MAX, for all names */
};

/* Patterns are kept in the caller's order: the first that matches takes a parameter. */
static cz_status collect_rules(const struct cz_engine_options *o, struct rules *out)
{
    memset(out, 0, sizeof *out);
    out->work = REGEX_WORK_MAX;
    if (o->n_groups > 0 && o->groups_hf)
        return err_set(CZ_INVALID, 0, "groups and groups_hf exclude each other: choose one");
    if (o->n_groups >= OPTIM_GROUPS_MAX)
        return err_set(CZ_INVALID, 0, "%zu parameter groups are too many: at most %d", o->n_groups,
                       OPTIM_GROUPS_MAX - 1);
    for (size_t i = 0; i < o->n_groups; i++) {
        struct cz_engine_group g; /* the array's elements are as wide as the caller compiled them */
        const unsigned char *groups = (const unsigned char *)o->groups;
        TRY(OPTIONS_TAKE(cz_engine_group, &g, groups + i * o->groups->size));
        if (!g.name_regex)
            return err_set(CZ_INVALID, 0, "parameter group %zu has no name pattern", i);
        if (regex_compile(g.name_regex, &out->work, &out->regexes[i]) != CZ_OK)
            return err_prefix("parameter group %zu", i);
        out->rules[out->n++] = (struct optim_group_rule){.name_regex = g.name_regex,
                                                         .lr = g.lr,
                                                         .weight_decay = g.weight_decay,
                                                         .beta1 = g.beta1,
                                                         .beta2 = g.beta2};
    }
    return CZ_OK;
}

/* Which of the possible groups (n rules, then the rest; or decay, then no decay) takes a parameter.
 */
static cz_status choose(const struct cz_engine_options *o, struct rules *r,
                        const struct param_info *info, size_t *group)
{
    bool found = false;
    if (o->groups_hf) {
        *group = info->decay_hint ? 0 : 1;
        return CZ_OK;
    }
    for (*group = 0; *group < r->n; ++*group) {
        if (regex_match(r->regexes[*group], info->name, strlen(info->name), false, &r->work,
                        &found) != CZ_OK)
            return err_prefix("parameter group %zu", *group);
        if (found) break;
    }
    return CZ_OK;
}

/* NAN means "as the optimizer's params say". */
static cz_status make_group(struct description *d, const struct cz_engine_options *o,
                            const struct rules *r, size_t possible)
{
    struct optim_group *group = &d->groups[d->n_groups++];
    const struct optim_hyper *base = &d->config->optimizer.hyper;
    const struct optim_group_rule no_decay = {
        .name_regex = "no decay", .lr = NAN, .weight_decay = 0, .beta1 = NAN, .beta2 = NAN};
    if (o->groups_hf) return optim_group_init(group, base, possible == 1 ? &no_decay : NULL);
    return optim_group_init(group, base, possible < r->n ? &r->rules[possible] : NULL);
}

static cz_status make_groups(struct description *d, const struct cz_engine_options *options,
                             struct rules *rules)
{
    const struct param_table *table = model_params(d->model);
    size_t n_possible = (options->groups_hf ? 1 : rules->n) + 1;
    d->group_of = calloc(table->n_params + 1, sizeof *d->group_of);
    d->groups = calloc(n_possible, sizeof *d->groups);
    if (!d->group_of || !d->groups)
        return err_set(CZ_NOMEM, 0, "no memory for %zu parameter groups", n_possible);

    size_t
        number[OPTIM_GROUPS_MAX]; /* of each possible group; groups without parameters have none */
    bool used[OPTIM_GROUPS_MAX] = {false};
    for (size_t i = 0; i < table->n_params; i++) {
        if (!table->params[i].trainable) continue;
        TRY(choose(options, rules, &table->params[i], &d->group_of[i]));
        used[d->group_of[i]] = true;
    }
    for (size_t g = 0; g < n_possible; g++) {
        number[g] = d->n_groups;
        if (used[g])
            TRY(make_group(d, options, rules, g));
        else if (g < rules->n && d->comm->rank == 0)
            LOGV(LOG_WARN, SUB_ENGINE,
                 "parameter group %zu: \"%s\" matches no parameter that is left", g,
                 rules->rules[g].name_regex);
    }
    if (d->n_groups == 0) return err_set(CZ_INVALID, 0, "no trainable parameters remain");
    /* From possible groups to those that exist. */
    for (size_t i = 0; i < table->n_params; i++) d->group_of[i] = number[d->group_of[i]];
    return CZ_OK;
}

cz_status groups_make(struct description *d, const struct cz_engine_options *options)
{
    struct rules rules;
    cz_status st = collect_rules(options, &rules);
    if (st == CZ_OK) st = make_groups(d, options, &rules);
    for (size_t i = 0; i < CZ_ARRAY_LEN(rules.regexes); i++) regex_free(rules.regexes[i]);
    return st;
}
