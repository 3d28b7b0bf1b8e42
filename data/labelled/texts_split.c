/* A share of the examples for evaluation: which ones depends on the seed and on the order of the
 * files alone, so that ranks and resumed runs agree without a list of them. */
#include "data/labelled/texts_impl.h"
#include "data/source/split.h"

#include <stdlib.h>
#include <string.h>

/* Each class is a stratum, so that a rare class is in both parts. All examples without a single
 * class are one stratum. */
static size_t stratum_of(const struct cz_texts *t, size_t i)
{
    const bool has_class = t->problem == CZ_PROBLEM_SINGLE_LABEL && !t->has_words;
    return has_class && t->examples[i].label >= 0 ? (size_t)t->examples[i].label : t->n_labels;
}

static void move_example(struct cz_texts *t, size_t to, size_t from)
{
    if (to == from) return;
    t->examples[to] = t->examples[from];
    if (t->values) t->values[to] = t->values[from];
    for (size_t k = 0; k < t->n_keep; k++)
        t->kept[to * t->n_keep + k] = t->kept[from * t->n_keep + k];
}

static void count_labels(struct cz_texts *t)
{
    memset(t->n_of_label, 0, t->n_labels * sizeof *t->n_of_label);
    for (size_t i = 0; i < t->n; i++) {
        const struct text_example *e = &t->examples[i];
        for (size_t k = 0; k < e->n_words; k++) {
            const int32_t label =
                t->has_words ? t->words[e->first_word + k].label : t->sets[e->first_word + k];
            if (label >= 0) t->n_of_label[label]++;
        }
        if (!t->has_words && t->problem == CZ_PROBLEM_SINGLE_LABEL && e->label >= 0)
            t->n_of_label[e->label]++;
    }
}

cz_status texts_take_part(struct texts_reader *r)
{
    const struct cz_texts_options *o = r->o;
    struct cz_texts *t = r->t;
    if (o->split_share == 0) return CZ_OK;
    const size_t n_all = t->n, n_strata = t->n_labels + 1;
    uint64_t *n_of = calloc(n_strata, sizeof *n_of), *met = calloc(n_strata, sizeof *met);
    cz_status st =
        n_of && met ? CZ_OK : err_set(CZ_NOMEM, 0, "no memory for %zu classes", n_strata);
    size_t n = 0;
    for (size_t i = 0; st == CZ_OK && i < n_all; i++) n_of[stratum_of(t, i)]++;
    for (size_t i = 0; st == CZ_OK && i < n_all; i++) {
        const size_t s = stratum_of(t, i);
        const bool taken = split_takes(o->split_share, o->split_seed, s, n_of[s], met[s]++);
        if (taken == (o->split_part == 1)) move_example(t, n++, i);
    }
    free(n_of);
    free(met);
    TRY(st);
    if (n == 0)
        return err_set(CZ_INVALID, 0, "%s: a share of %g takes none of %zu examples", o->paths[0],
                       o->split_share, n_all);
    t->n = n;
    if (t->n_of_label) count_labels(t);
    return CZ_OK;
}
