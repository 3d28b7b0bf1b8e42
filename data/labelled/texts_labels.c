/* The classes of labelled texts: collected from the labels seen, or matched to known names. */
#include "data/labelled/labels.h"
#include "data/labelled/texts_impl.h"

#include "base/hash.h"
#include "base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_SHOWN 64 /* bytes of a label in a sentence */

static const char *const kind_names[LABEL_N_KINDS] = {[LABEL_NONE] = "missing",
                                                      [LABEL_INT] = "an integer",
                                                      [LABEL_STRING] = "a string",
                                                      [LABEL_BOOL] = "true or false",
                                                      [LABEL_FLOAT] = "a number with a fraction",
                                                      [LABEL_CELL] = "a table's cell"};

/* Bytes of a name to show: whole characters. */
static int shown(const char *name)
{
    size_t n = strlen(name);
    if (n <= NAME_SHOWN) return (int)n;
    for (n = NAME_SHOWN; n > 0 && ((unsigned char)name[n] & 0xC0) == 0x80;) n--;
    return (int)n;
}

/* An integer as one writes it: no plus, no zeros in front, not −0. */
static bool parse_integer(const char *name, int64_t *value)
{
    const char *digits = name[0] == '-' ? name + 1 : name;
    size_t n = strspn(digits, "0123456789");
    if (n == 0 || digits[n] != '\0' || (digits[0] == '0' && (n > 1 || digits != name)))
        return false;
    errno = 0;
    long long parsed = strtoll(name, NULL, 10);
    *value = parsed;
    return errno == 0;
}

/* ---- known names ----------------------------------------------------------------------------- */

struct wanted {
    const struct cz_texts_options *o;
    const char *name;
};

static bool is_label(const void *key, size_t item)
{
    const struct wanted *w = key;
    return strcmp(w->o->labels[item], w->name) == 0;
}

static size_t position_of(const struct label_table *l, const char *name)
{
    return hash_index_find(&l->known, hash_text(name), is_label, &(struct wanted){l->o, name});
}

/* "LABEL_0", "LABEL_1", … are the names that transformers gives classes which have none. */
static bool are_default_names(const struct cz_texts_options *o)
{
    char name[32];
    for (size_t k = 0; k < o->n_labels; k++) {
        snprintf(name, sizeof name, "LABEL_%zu", k);
        if (strcmp(o->labels[k], name) != 0) return false;
    }
    return true;
}

/* Then an integer in the data is a place in the list, as transformers reads it by id2label. */
static bool has_no_integer(const char *const *names, size_t n)
{
    int64_t value;
    for (size_t k = 0; k < n; k++)
        if (parse_integer(names[k], &value)) return false;
    return true;
}

int64_t label_place(const char *const *names, size_t n, const char *label)
{
    int64_t value;
    if (!parse_integer(label, &value) || value < 0 || (uint64_t)value >= n) return -1;
    return has_no_integer(names, n) ? value : -1;
}

static bool find_known(const struct label_table *l, const char *name, int32_t *cls)
{
    const size_t k = position_of(l, name);
    if (k == HASH_NONE) return false;
    *cls = (int32_t)k;
    return true;
}

/* In this order: the name itself, then an integer as a position (of names without integers), then
 * Python's spelling of a boolean. A label that matches nothing is an error with the list: a silent
 * new class would change the model's output. */
static cz_status match_known(const struct label_table *l, const struct text_source *at,
                             struct label_entry *e)
{
    if (find_known(l, e->name, &e->cls)) return CZ_OK;
    bool may_count = e->kind == LABEL_INT || e->kind == LABEL_CELL;
    if (may_count && e->is_integer && l->known_is_numbered && e->value >= 0 &&
        (uint64_t)e->value < l->o->n_labels) {
        e->cls = (int32_t)e->value;
        return CZ_OK;
    }
    if (e->kind == LABEL_BOOL && /* as Python spells them */
        find_known(l, e->name[0] == 't' ? "True" : "False", &e->cls))
        return CZ_OK;
    char list[512];
    size_t n = 0, k = 0;
    for (; k < l->o->n_labels && n + NAME_SHOWN + 8 < sizeof list; k++)
        n += (size_t)snprintf(list + n, sizeof list - n, "%s%.*s", k ? ", " : "",
                              shown(l->o->labels[k]), l->o->labels[k]);
    char places[96] = "";
    if (may_count && e->is_integer && l->known_is_numbered)
        snprintf(places, sizeof places, "; integers number them from 0 to %zu%s",
                 l->o->n_labels - 1,
                 (uint64_t)e->value == l->o->n_labels ? ": subtract 1 if yours begin at 1" : "");
    return text_source_fail(
        at, CZ_INVALID, "the label \"%.*s\" is not one of the %zu known classes: %s%s%s",
        shown(e->name), e->name, l->o->n_labels, list, k < l->o->n_labels ? ", …" : "", places);
}

/* ---- the table ------------------------------------------------------------------------------- */

/* With doubles, a label's class would depend on the order of the list. */
cz_status label_table_init(struct label_table *l, const struct cz_texts_options *o)
{
    memset(l, 0, sizeof *l);
    l->o = o;
    if (o->n_labels > 0) {
        if (o->n_labels < 2 && o->problem != CZ_PROBLEM_MULTI_LABEL)
            return err_set(CZ_INVALID, 0,
                           "classification needs at least two classes; \"%s\" is one",
                           o->labels[0]);
        for (size_t k = 0; k < o->n_labels; k++) {
            const char *name = o->labels[k];
            if (position_of(l, name) != HASH_NONE)
                return err_set(CZ_INVALID, 0, "two of the %zu classes are named \"%.*s\"",
                               o->n_labels, shown(name), name);
            TRY(hash_index_add(&l->known, hash_text(name), k));
        }
    }
    l->known_is_numbered = has_no_integer(o->labels, o->n_labels);
    return CZ_OK;
}

void label_table_free(struct label_table *l)
{
    for (size_t i = 0; i < l->n; i++) free(l->entries[i].name);
    free(l->entries);
    free(l->slots);
    hash_index_free(&l->known);
    memset(l, 0, sizeof *l);
}

static size_t hash_label(enum label_kind kind, const char *name, size_t nbytes)
{
    return (size_t)(hash_bytes(name, nbytes) + (uint64_t)kind);
}

/* The slot that holds this label, or the empty one where it belongs. At most half of the slots are
 * used, so the search ends. The kind is part of the key: the integer 1 and the string "1" are
 * different labels until choose_integers() decides. */
static uint32_t *find_slot(const struct label_table *l, enum label_kind kind, const char *name,
                           size_t nbytes)
{
    for (size_t i = hash_label(kind, name, nbytes);; i++) {
        uint32_t *slot = &l->slots[i % l->n_slots];
        if (*slot == 0) return slot;
        const struct label_entry *e = &l->entries[*slot - 1];
        if (e->kind == kind && strlen(e->name) == nbytes && memcmp(e->name, name, nbytes) == 0)
            return slot;
    }
}

/* Entries first: when only the slots fail, the larger array stays and nothing is lost. */
static cz_status grow(struct label_table *l)
{
    size_t cap = l->cap ? 2 * l->cap : 64, n_slots = 2 * cap;
    if (cap > INT32_MAX) return err_set(CZ_INVALID, 0, "more than %zu labels", l->n);
    struct label_entry *entries = realloc(l->entries, cap * sizeof *entries);
    if (entries) l->entries = entries;
    uint32_t *slots = calloc(n_slots, sizeof *slots);
    if (!entries || !slots) {
        free(slots);
        return err_set(CZ_NOMEM, 0, "no memory for %zu labels", cap);
    }
    free(l->slots);
    l->slots = slots;
    l->n_slots = n_slots;
    l->cap = cap;
    for (size_t i = 0; i < l->n; i++) {
        const struct label_entry *e = &l->entries[i];
        *find_slot(l, e->kind, e->name, strlen(e->name)) = (uint32_t)i + 1;
    }
    return CZ_OK;
}

/* Integers, strings and booleans do not go together, unless the names say what is what. Numbering 1
 * and "1" as one class, or as two, would be a guess. */
static cz_status check_mix(const struct label_table *l, const struct text_source *at,
                           const struct label_entry *e)
{
    if (l->o->n_labels > 0 || e->kind == LABEL_CELL) return CZ_OK;
    for (int kind = LABEL_INT; kind <= LABEL_FLOAT; kind++) {
        const bool are_numbers = (e->kind == LABEL_INT || e->kind == LABEL_FLOAT) &&
                                 (kind == LABEL_INT || kind == LABEL_FLOAT);
        if (kind == (int)e->kind || l->first_of[kind] == 0 || are_numbers) continue;
        const struct label_entry *other = &l->entries[l->first_of[kind] - 1];
        return text_source_fail(at, CZ_INVALID,
                                "the label %.*s is %s, but %.*s (%s:%" PRIu64
                                ") is %s: labels must be of one kind",
                                shown(e->name), e->name, kind_names[e->kind], shown(other->name),
                                other->name, other->path, other->line, kind_names[kind]);
    }
    return CZ_OK;
}

/* A NUL would end the name early, so two labels could become one. */
static cz_status add_entry(struct label_table *l, const struct text_source *at,
                           enum label_kind kind, const char *name, size_t nbytes)
{
    if (memchr(name, '\0', nbytes))
        return text_source_fail(at, CZ_INVALID, "the label contains a NUL character");
    struct label_entry e = {.kind = kind, .path = at->path, .line = at->line, .cls = -1};
    e.name = malloc(nbytes + 1);
    if (!e.name) return err_set(CZ_NOMEM, 0, "no memory for a label of %zu bytes", nbytes);
    memcpy(e.name, name, nbytes);
    e.name[nbytes] = '\0';
    e.is_integer = parse_integer(e.name, &e.value);
    cz_status st = CZ_OK;
    if (kind == LABEL_INT && !e.is_integer)
        st = text_source_fail(at, CZ_INVALID, "the label %.*s is beyond 64 bits", shown(e.name),
                              e.name);
    if (st == CZ_OK) st = check_mix(l, at, &e);
    if (st == CZ_OK && l->o->n_labels > 0) st = match_known(l, at, &e);
    if (st != CZ_OK) {
        free(e.name);
        return st;
    }
    l->entries[l->n++] = e;
    if (l->first_of[kind] == 0) l->first_of[kind] = l->n;
    return CZ_OK;
}

/* Each distinct label is parsed and matched once; examples keep an index of it, since classes get
 * their numbers only when all have been seen. */
cz_status label_table_intern(struct label_table *l, const struct text_source *at,
                             enum label_kind kind, const char *name, size_t nbytes,
                             size_t *entry_idx)
{
    if (l->n == l->cap) TRY(grow(l));
    uint32_t *slot = find_slot(l, kind, name, nbytes);
    if (*slot == 0) {
        TRY(add_entry(l, at, kind, name, nbytes));
        *slot = (uint32_t)l->n;
    }
    *entry_idx = *slot - 1;
    return CZ_OK;
}

/* ---- numbering ------------------------------------------------------------------------------- */

/* By value and not as text, so that 10 comes after 9. */
static int compare_values(const void *a, const void *b)
{
    int64_t x = (*(struct label_entry *const *)a)->value;
    int64_t y = (*(struct label_entry *const *)b)->value;
    return (x > y) - (x < y);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp((*(struct label_entry *const *)a)->name, (*(struct label_entry *const *)b)->name);
}

/* Cells are what the other labels are; with no others, integers if all of them are. */
static cz_status choose_integers(const struct label_table *l, bool *integers)
{
    bool others = l->first_of[LABEL_STRING] != 0 || l->first_of[LABEL_BOOL] != 0 ||
                  l->first_of[LABEL_FLOAT] != 0;
    *integers = !others;
    for (size_t i = 0; i < l->n; i++) {
        const struct label_entry *e = &l->entries[i];
        if (e->kind != LABEL_CELL || e->is_integer) continue;
        if (l->first_of[LABEL_INT] != 0) {
            const struct label_entry *other = &l->entries[l->first_of[LABEL_INT] - 1];
            return err_set(CZ_INVALID, 0,
                           "%s:%" PRIu64 ": the label \"%.*s\" is a string, but %s (%s:%" PRIu64
                           ") is an integer: labels must be of one kind",
                           e->path, e->line, shown(e->name), e->name, other->name, other->path,
                           other->line);
        }
        *integers = false;
    }
    return CZ_OK;
}

/* Entries of one name (a cell and a string, say) are one class. The order of the classes is the
 * order of the sort, never of first occurrence: shuffling the file must not renumber them. */
static size_t number_classes(struct label_entry **sorted, size_t n)
{
    size_t n_classes = 0;
    for (size_t i = 0; i < n; i++) {
        if (i == 0 || strcmp(sorted[i - 1]->name, sorted[i]->name) != 0) n_classes++;
        sorted[i]->cls = (int32_t)n_classes - 1;
    }
    return n_classes;
}

/* Pointers and texts in one block, which the owner frees at once. */
cz_status label_names_copy(const char *const *src, size_t n, char ***names)
{
    size_t nbytes = n * sizeof **names;
    for (size_t k = 0; k < n; k++) nbytes += strlen(src[k]) + 1;
    *names = malloc(nbytes ? nbytes : 1);
    if (!*names) return err_set(CZ_NOMEM, 0, "no memory for %zu classes", n);
    char *at = (char *)(*names + n);
    for (size_t k = 0; k < n; k++) {
        (*names)[k] = strcpy(at, src[k]);
        at += strlen(at) + 1;
    }
    return CZ_OK;
}

static cz_status collect(struct label_table *l, struct label_entry **sorted, const char **src,
                         char ***names, size_t *n_classes)
{
    bool integers;
    TRY(choose_integers(l, &integers));
    for (size_t i = 0; i < l->n; i++) sorted[i] = &l->entries[i];
    qsort(sorted, l->n, sizeof *sorted, integers ? compare_values : compare_names);
    *n_classes = number_classes(sorted, l->n);
    if (*n_classes == 1 && !l->o->labels_optional && !l->has_sets)
        return err_set(CZ_INVALID, 0,
                       "all examples have the label \"%.*s\": classification needs at least two "
                       "classes",
                       shown(sorted[0]->name), sorted[0]->name);
    for (size_t i = 0; i < l->n; i++) src[sorted[i]->cls] = sorted[i]->name;
    return label_names_copy(src, *n_classes, names);
}

cz_status label_names_numbered(const char *prefix, size_t n, char ***names)
{
    const size_t width = strlen(prefix) + 24;
    char *texts = malloc(n * width);
    const char **src = malloc(n * sizeof *src);
    cz_status st = texts && src ? CZ_OK : err_set(CZ_NOMEM, 0, "no memory for %zu classes", n);
    for (size_t k = 0; st == CZ_OK && k < n; k++) {
        snprintf(texts + k * width, width, "%s%zu", prefix, k);
        src[k] = texts + k * width;
    }
    if (st == CZ_OK) st = label_names_copy(src, n, names);
    free(src);
    free(texts);
    return st;
}

/* Known names keep their order, which is that of the model's outputs. If they are LABEL_0, LABEL_1,
 * …, and all labels of the data are integers, the integers become the names. */
static cz_status take_known(const struct label_table *l, char ***names)
{
    const struct cz_texts_options *o = l->o;
    size_t n_places = 0;
    for (size_t i = 0; i < l->n; i++)
        n_places += l->entries[i].is_integer && l->entries[i].kind != LABEL_STRING;
    if (n_places == 0 || !l->known_is_numbered)
        return label_names_copy(o->labels, o->n_labels, names);
    if (are_default_names(o))
        return n_places == l->n ? label_names_numbered("", o->n_labels, names)
                                : label_names_copy(o->labels, o->n_labels, names);
    LOGV(LOG_INFO, SUB_DATA, "data: integers number the classes: 0 is \"%.*s\", %zu is \"%.*s\"",
         shown(o->labels[0]), o->labels[0], o->n_labels - 1, shown(o->labels[o->n_labels - 1]),
         o->labels[o->n_labels - 1]);
    return label_names_copy(o->labels, o->n_labels, names);
}

cz_status label_table_finish(struct label_table *l, char ***names, size_t *n_classes)
{
    if (l->o->n_labels > 0) {
        *n_classes = l->o->n_labels;
        return take_known(l, names);
    }
    struct label_entry **sorted = calloc(l->n + 1, sizeof *sorted);
    const char **src = calloc(l->n + 1, sizeof *src);
    cz_status st = sorted && src ? collect(l, sorted, src, names, n_classes)
                                 : err_set(CZ_NOMEM, 0, "no memory for %zu labels", l->n);
    free(src);
    free(sorted);
    return st;
}
