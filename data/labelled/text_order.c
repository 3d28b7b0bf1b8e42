/* The order of examples: a permutation per epoch, cut into windows that are sorted by length, so
 * that the rows of a micro-batch need little padding.
 *
 * An epoch's sequence is all examples, permuted if shuffled. Window w is the sequence from w ·
 * window_size · step_size on. Its whole steps are sorted together; what is left at the epoch's end,
 * a part of a step, is sorted by itself, so that it is no longer or shorter than others. Every rank
 * computes the same order, so none has to be sent. */
#include "data/labelled/text_loader_impl.h"

#include "base/rng.h"
#include "base/size.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define NONE       UINT64_MAX
#define TOKEN_COST 8u /* of a token: costs are eighths */

/* ---- lengths --------------------------------------------------------------------------------- */

enum char_kind { CHAR_SPACE, CHAR_LETTER, CHAR_SINGLE, CHAR_REST };

/* What a byte begins: a letter or digit (also Greek, Cyrillic, … of two bytes), a character that is
 * mostly a token by itself (punctuation; Chinese and others of three bytes), or nothing. */
static enum char_kind kind_of(unsigned char c)
{
    if (c >= 0xE0) return CHAR_SINGLE;
    if (c >= 0xC0) return CHAR_LETTER;
    if (c >= 0x80) return CHAR_REST;
    if (c <= ' ' || c == 0x7F) return CHAR_SPACE;
    unsigned char letter = c | 0x20;
    bool is_letter = (letter >= 'a' && letter <= 'z') || (c >= '0' && c <= '9');
    return is_letter ? CHAR_LETTER : CHAR_SINGLE;
}

/* About how many tokens a text has, times TOKEN_COST: a word is one and letter_cost for each letter
 * after the first. Every rank estimates all texts of a window, so this must be much faster than
 * making tokens. */
static uint64_t estimate(const struct text_order *o, const char *text, size_t nbytes)
{
    uint64_t sum = 0;
    enum char_kind before = CHAR_SPACE;
    for (size_t i = 0; i < nbytes; i++) {
        unsigned char c = (unsigned char)text[i];
        enum char_kind kind = kind_of(c);
        if (kind == CHAR_REST) continue;
        if (c >= 0xE0)
            sum += o->wide_cost;
        else if (kind != CHAR_SPACE)
            sum += kind == CHAR_LETTER && before == CHAR_LETTER ? o->letter_cost : TOKEN_COST;
        before = kind;
    }
    return sum;
}

/* The cost of a unit (a letter, a character) for this tokenizer, from a sample text. */
static cz_status probe(const struct cz_tokenizer *tok, const char *text, size_t n_units,
                       size_t n_free, uint32_t *cost)
{
    int32_t *ids;
    size_t n_ids;
    TRY(cz_tokenizer_encode(tok, text, strlen(text), &ids, &n_ids));
    free(ids);
    size_t n = n_ids > n_free ? TOKEN_COST * (n_ids - n_free) / n_units : 0;
    *cost = n > 0 ? (uint32_t)n : 1;
    return CZ_OK;
}

static uint32_t length_of(const struct text_order *o, size_t example)
{
    struct cz_tokenizer_input in = cz_texts_at(o->texts, example);
    uint64_t n = estimate(o, in.text, in.nbytes);
    if (in.pair) n += estimate(o, in.pair, in.pair_nbytes);
    return n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
}

/* Equal lengths keep their order, so that qsort() gives the same result everywhere. */
static int compare_entries(const void *a, const void *b)
{
    const struct text_order_entry *x = a, *y = b;
    if (x->length != y->length) return x->length < y->length ? -1 : 1;
    return (x->at > y->at) - (x->at < y->at);
}

/* ---- opening --------------------------------------------------------------------------------- */

/* Labels of words depend on which words fit, so each text is looked at once, when its step comes.
 */
static cz_status init_words(struct text_order *o, const struct cz_text_loader_options *options)
{
    size_t n_words, n = (size_t)o->n, max_len = (size_t)options->max_len;
    if (o->n == 0 || !cz_texts_words(o->texts, 0, &n_words)) return CZ_OK;
    o->tokenizer = options->tokenizer;
    o->max_len = options->max_len;
    o->n_labels = malloc(n * sizeof *o->n_labels);
    o->ids = malloc(max_len * sizeof *o->ids);
    o->starts = malloc(max_len * sizeof *o->starts);
    if (!o->n_labels || !o->ids || !o->starts)
        return err_set(CZ_NOMEM, 0, "no memory to count the labels of %zu examples", n);
    for (size_t i = 0; i < n; i++) o->n_labels[i] = UINT32_MAX;
    return CZ_OK;
}

/* Memory is for one window, not for the epoch. */
cz_status text_order_init(struct text_order *o, const struct cz_text_loader_options *options)
{
    size_t nbytes;
    memset(o, 0, sizeof *o);
    o->texts = options->texts;
    o->n = cz_texts_count(options->texts);
    o->micro_batch = (uint64_t)options->micro_batch;
    o->n_parts = (uint64_t)options->accumulation * (uint64_t)options->world_size;
    o->shuffle = options->shuffle;
    o->bucket = options->bucket;
    o->seed = options->seed;
    o->epoch = o->counted_step = NONE;
    TRY(size_mul(o->micro_batch, o->n_parts, &o->step_size));
    o->n_steps = o->n / o->step_size;
    if (!options->drop_last && o->n % o->step_size != 0) o->n_steps++;
    if (o->n_steps == 0)
        return err_set(CZ_INVALID, 0,
                       "%" PRIu64 " examples do not fill one step of %" PRIu64
                       ", and incomplete steps are to be dropped",
                       o->n, o->step_size);
    o->window_size = o->bucket ? TEXT_LOADER_WINDOW : 1;
    size_t n_held = (size_t)o->n;
    if (o->step_size < o->n / o->window_size) n_held = (size_t)(o->step_size * o->window_size);
    if (o->bucket) {
        /* Words are one token or one per letter, Chinese characters one or several, as the
         * vocabulary has it. Every rank finds the same. */
        TRY(probe(options->tokenizer, "important information together", 9 + 11 + 8 - 3, 3,
                  &o->letter_cost));
        TRY(probe(options->tokenizer, "\u6211\u4eec\u4eca\u5929", 4, 0, &o->wide_cost));
    }
    TRY(size_mul(n_held, sizeof *o->entries, &nbytes));
    o->entries = malloc(nbytes);
    if (!o->entries) return err_set(CZ_NOMEM, 0, "no memory to sort %zu examples", n_held);
    return init_words(o, options);
}

void text_order_free(struct text_order *o)
{
    free(o->entries);
    free(o->n_labels);
    free(o->ids);
    free(o->starts);
    memset(o, 0, sizeof *o);
}

/* ---- windows --------------------------------------------------------------------------------- */

/* Whole steps of a window. */
static uint64_t n_whole(const struct text_order *o, uint64_t window)
{
    uint64_t left = o->n / o->step_size - window * o->window_size;
    return left < o->window_size ? left : o->window_size;
}

/* Windows are computed when they are reached, and kept until the next one. */
static void hold_window(struct text_order *o, uint64_t epoch, uint64_t window)
{
    if (o->epoch == epoch && o->window == window) return;
    uint64_t first = window * o->window_size * o->step_size;
    size_t whole = (size_t)(n_whole(o, window) * o->step_size);
    size_t n = (size_t)(o->n - first);
    if (n / o->step_size >= o->window_size) n = (size_t)(o->window_size * o->step_size);
    for (size_t i = 0; i < n; i++) {
        struct text_order_entry *e = &o->entries[i];
        e->at = i;
        e->example = (size_t)(first + i);
        if (o->shuffle) e->example = (size_t)rng_permute(o->seed, epoch, o->n, first + i);
        if (o->bucket) e->length = length_of(o, e->example);
    }
    if (o->bucket) {
        qsort(o->entries, whole, sizeof *o->entries, compare_entries);
        qsort(o->entries + whole, n - whole, sizeof *o->entries, compare_entries);
    }
    o->epoch = epoch;
    o->window = window;
}

/* The steps of a sorted window are shuffled again: otherwise every window would begin with short
 * texts and end with long ones. */
static uint64_t step_in_window(const struct text_order *o, uint64_t epoch, uint64_t window,
                               uint64_t k)
{
    uint64_t n = n_whole(o, window);
    if (!o->shuffle || !o->bucket || k >= n) return k; /* the incomplete one stays the last */
    uint64_t seed = rng_mix64(o->seed ^ rng_mix64(epoch + 0x9FB21C651E98DF25u));
    return rng_permute(seed, window, n, k);
}

cz_status text_words_encode(const struct cz_texts *texts, const struct cz_tokenizer *tokenizer,
                            size_t example, int64_t max_len, int32_t *ids, int32_t *types,
                            int32_t *starts, int64_t *n_ids, size_t *n_cut)
{
    size_t n_words;
    const struct cz_text_word *words = cz_texts_words(texts, example, &n_words);
    return cz_tokenizer_encode_words(tokenizer, cz_texts_at(texts, example).text, words, n_words,
                                     max_len, ids, types, starts, n_ids, n_cut);
}

/* How many labels the row of an example has. */
static cz_status labels_of(struct text_order *o, size_t example, uint64_t *n)
{
    size_t n_words;
    int64_t n_ids;
    const struct cz_text_word *words = cz_texts_words(o->texts, example, &n_words);
    *n = cz_texts_label(o->texts, example) >= 0;
    if (!o->n_labels) return CZ_OK;
    *n = o->n_labels[example];
    if (*n != UINT32_MAX) return CZ_OK;
    TRY(text_words_encode(o->texts, o->tokenizer, example, o->max_len, o->ids, NULL, o->starts,
                          &n_ids, NULL));
    *n = 0;
    for (int64_t t = 0; t < n_ids; t++) *n += o->starts[t] >= 0 && words[o->starts[t]].label >= 0;
    o->n_labels[example] = (uint32_t)*n;
    return CZ_OK;
}

/* Labels per part: what every part's sum of losses is divided by. A step without a label has no
 * loss; any divisor does. */
static cz_status count_labels(struct text_order *o, uint64_t step, const struct text_order_entry *e,
                              uint64_t n)
{
    if (o->counted_step == step) return CZ_OK;
    uint64_t n_labels = 0, of_row;
    for (uint64_t i = 0; i < n; i++) {
        TRY(labels_of(o, e[i].example, &of_row));
        n_labels += of_row;
    }
    o->counted_step = step;
    o->counted = (float)((double)(n_labels ? n_labels : n) / (double)o->n_parts);
    return CZ_OK;
}

/* An incomplete step is dealt evenly, so that no rank has all of it. */
cz_status text_order_part(struct text_order *o, uint64_t step, uint64_t part, struct text_part *out)
{
    uint64_t epoch = step / o->n_steps, in_epoch = step % o->n_steps;
    uint64_t window = in_epoch / o->window_size;
    hold_window(o, epoch, window);
    uint64_t k = step_in_window(o, epoch, window, in_epoch % o->window_size);
    const struct text_order_entry *entries = o->entries + k * o->step_size;
    uint64_t n = o->n - in_epoch * o->step_size;
    if (n > o->step_size) n = o->step_size;
    /* n texts are in memory, and n_parts is a number of micro-batches: n · part does not wrap. */
    uint64_t begin = n == o->step_size ? part * o->micro_batch : n * part / o->n_parts;
    uint64_t end = n == o->step_size ? begin + o->micro_batch : n * (part + 1) / o->n_parts;
    TRY(count_labels(o, step, entries, n));
    *out = (struct text_part){.entries = entries + begin,
                              .n = (size_t)(end - begin),
                              .divisor = o->counted,
                              .sample = step * o->step_size + part * o->micro_batch};
    return CZ_OK;
}
