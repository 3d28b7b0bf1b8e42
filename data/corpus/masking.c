/* Which tokens of a row are to be guessed, and what replaces them, as in BERT: of the chosen ones
 * 80 % become the mask token, 10 % a random token, 10 % stay. Random numbers come from sample and
 * position, so a row is masked in the same way on every number of ranks. Rows of a discriminator
 * have random tokens in all of these places, and labels that tell where. */
#include "data/corpus/masking_impl.h"

#include "base/host/entry.h"
#include "base/options.h"
#include "base/rng.h"

#include <inttypes.h>
#include <string.h>

/* Far from the sites of layers, which count up from 0. */
#define MASKING_SITE UINT32_MAX

cz_status cz_masking_init(struct cz_masking *out, const struct cz_tokenizer *tok, float probability)
{
    API_ENTRY;
    NEED(out, "masking");
    NEED(tok, "tokenizer");
    int64_t mask = cz_tokenizer_special_id(tok, CZ_SPECIAL_MASK);
    int64_t first = cz_tokenizer_special_id(tok, CZ_SPECIAL_CLS);
    int64_t last = cz_tokenizer_special_id(tok, CZ_SPECIAL_SEP);
    struct cz_masking ours = {0}, *m = &ours;
    if (mask < 0)
        return err_set(CZ_INVALID, 0,
                       "masked language modelling needs a tokenizer with a mask token; this one "
                       "(%s) has none",
                       cz_tokenizer_name(tok));
    if (!(probability > 0.0f && probability < 1.0f))
        return err_set(CZ_INVALID, 0, "a share of %g masked tokens is outside (0, 1)",
                       (double)probability);
    m->probability = probability;
    m->mask_id = (int32_t)mask;
    bool framed = first >= 0 && last >= 0;
    m->first_id = framed ? (int32_t)first : -1;
    m->last_id = framed ? (int32_t)last : -1;
    m->vocab_size = cz_tokenizer_vocab_size(tok);
    for (int k = 0; k < CZ_SPECIAL_COUNT; k++) {
        int64_t id = cz_tokenizer_special_id(tok, (enum cz_special)k);
        if (id >= 0) m->special_ids[m->n_special_ids++] = (int32_t)id;
    }
    return OPTIONS_GIVE(cz_masking, out, m);
}

static bool is_framed(const struct cz_masking *m)
{
    return m->first_id >= 0;
}

cz_status masking_check(const struct cz_masking *m, int64_t seq_len)
{
    if (m->probability == 0) return CZ_OK;
    if (!(m->probability > 0 && m->probability < 1))
        return err_set(CZ_INVALID, 0, "masking with a probability of %g is impossible",
                       (double)m->probability);
    if (m->vocab_size < 1 || m->vocab_size > INT32_MAX || m->mask_id < 0 ||
        m->mask_id >= m->vocab_size || m->n_special_ids > CZ_SPECIAL_COUNT)
        return err_set(CZ_INVALID, 0,
                       "mask token %" PRId32 " is outside the vocabulary of %" PRId64, m->mask_id,
                       m->vocab_size);
    if ((m->first_id < 0) != (m->last_id < 0))
        return err_set(CZ_INVALID, 0, "rows need a first and a last token, or neither");
    if (masking_row_ntokens(m, seq_len) < 1)
        return err_set(CZ_INVALID, 0,
                       "a sequence length of %" PRId64
                       " leaves no tokens between the first and the last one",
                       seq_len);
    return CZ_OK;
}

int64_t masking_row_ntokens(const struct cz_masking *m, int64_t seq_len)
{
    return seq_len - (is_framed(m) ? 2 : 0);
}

static bool is_special(const struct cz_masking *m, int32_t id)
{
    for (size_t k = 0; k < m->n_special_ids; k++)
        if (m->special_ids[k] == id) return true;
    return false;
}

/* Four random words of position t. */
static void draw(const uint32_t key[2], const uint32_t hi[2], int64_t t, uint32_t words[4])
{
    const uint32_t counter[4] = {(uint32_t)t, 0, hi[0], hi[1]};
    rng_philox4x32(counter, key, words);
}

/* words[1] decides between the three cases; words[2] picks the random token. */
static int32_t replace(const struct cz_masking *m, int32_t id, const uint32_t words[4])
{
    const uint32_t tenth = UINT32_MAX / 10;
    const int32_t any = (int32_t)((uint64_t)words[2] * (uint64_t)m->vocab_size >> 32);
    if (m->detects) return any;
    if (words[1] < 8 * tenth) return m->mask_id;
    return words[1] < 9 * tenth ? any : id;
}

/* A chosen token, and what its label says. */
static void choose(const struct cz_masking *m, int32_t id, const uint32_t words[4], int32_t *to,
                   int32_t *label)
{
    *to = replace(m, id, words);
    *label = m->detects ? *to != id : id;
}

void masking_fill(const struct cz_masking *m, uint64_t seed, uint64_t sample, const int32_t *src,
                  int64_t seq_len, int32_t *ids, int32_t *labels)
{
    const struct rng_key place = {.seed = seed, .site = MASKING_SITE, .sample = sample};
    const int64_t n = masking_row_ntokens(m, seq_len), shift = is_framed(m) ? 1 : 0;
    uint32_t key[2], hi[2], words[4], least_word = UINT32_MAX;
    int64_t least = -1, n_chosen = 0;
    rng_key_expand(&place, key, hi);
    for (int64_t t = 0; t < seq_len; t++) labels[t] = m->detects ? 0 : CZ_IGNORE_LABEL;
    if (is_framed(m)) {
        ids[0] = m->first_id;
        ids[seq_len - 1] = m->last_id;
    }
    memcpy(ids + shift, src, (size_t)n * sizeof *ids);
    for (int64_t t = 0; t < n; t++) {
        if (is_special(m, src[t])) continue;
        draw(key, hi, t, words);
        if (least < 0 || words[0] < least_word) {
            least = t;
            least_word = words[0];
        }
        if ((double)words[0] * 0x1p-32 >= (double)m->probability) continue;
        n_chosen++;
        choose(m, src[t], words, &ids[shift + t], &labels[shift + t]);
    }
    if (n_chosen > 0 || least < 0) return;
    draw(key, hi, least, words); /* a row without labels teaches nothing */
    choose(m, src[least], words, &ids[shift + least], &labels[shift + least]);
}
