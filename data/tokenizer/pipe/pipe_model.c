/* Models: a word's ids by BPE of characters, Unigram, WordPiece and WordLevel. */
#include "data/tokenizer/chars_impl.h"
#include "data/tokenizer/pipe/pipe_impl.h"

#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- BPE ------------------------------------------------------------------------------------- */

/* The bit of a pair of characters that some merge may join. */
static inline uint64_t joint_of(const struct pipe *p, int32_t left, int32_t right)
{
    const uint64_t h =
        ((uint64_t)(uint32_t)left << 21 ^ (uint64_t)(uint32_t)right) * 0x9E3779B97F4A7C15u;
    return h >> (64 - p->joint_bits);
}

static inline bool is_joined(const struct pipe *p, int32_t left, int32_t right)
{
    const uint64_t bit = joint_of(p, left, right);
    return p->joints[bit / 64] >> (bit % 64) & 1;
}

static inline bool is_known(const struct pipe *p, int32_t c)
{
    return c < BPE_CHARS && p->chars.ids[c] >= 0;
}

/* A text without a pre-tokenizer is one word. It is cut where no merge can reach across: between
 * known characters of which no token's last and another's first are merged. The ids stay the same,
 * and the words are short and repeat, as the cache likes them. */
static cz_status bpe_chars_word(const struct pipe *p, struct pipe_work *w, const char *s, size_t n,
                                size_t n_more, struct id_list *out)
{
    size_t begin = 0, at = 0, len;
    if (p->ignore_merges) {
        const int32_t whole = bpe_vocab_find(&p->bpe.vocab, s, n);
        if (whole >= 0) return id_list_add(out, whole);
    }
    if (!p->joints) return bpe_word(&p->bpe, w->bpe, s, n, n + n_more, out);
    int32_t before = chars_at(s, n, &at);
    bool was_known = is_known(p, before);
    for (; at < n; at += len) {
        const int32_t c = chars_at(s + at, n - at, &len);
        const bool known = is_known(p, c);
        if (known && was_known && !is_joined(p, before, c)) {
            TRY(bpe_word(&p->bpe, w->bpe, s + begin, at - begin, n - begin + n_more, out));
            begin = at;
        }
        before = c;
        was_known = known;
    }
    return bpe_word(&p->bpe, w->bpe, s + begin, n - begin, n - begin + n_more, out);
}

/* Whether ids before and behind a place between two characters are the same apart as together. */
bool pipe_bpe_parts(const struct pipe *p, int32_t left, int32_t right)
{
    return p->joints && !p->ignore_merges && is_known(p, left) && is_known(p, right) &&
           !is_joined(p, left, right);
}

static cz_status set_affix(const char *text, char *dst, size_t *n)
{
    *n = text ? strlen(text) : 0;
    if (*n >= BPE_AFFIX_MAX)
        return err_set(CZ_UNSUPPORTED, 0, "an affix of %zu bytes; at most %d are supported", *n,
                       BPE_AFFIX_MAX - 1);
    if (*n > 0) memcpy(dst, text, *n);
    return CZ_OK;
}

/* Also for other models: bytes are what SentencePiece's byte_fallback gives. */
static void find_bytes(struct pipe *p)
{
    for (int byte = 0; byte < 256; byte++) {
        char name[8];
        (void)snprintf(name, sizeof name, "<0x%02X>", byte);
        const int32_t id = bpe_vocab_find(&p->bpe.vocab, name, 6);
        if (id >= 0) p->bpe.bytes[byte] = (struct bpe_byte){.ids = {id}, .n = 1};
    }
}

cz_status pipe_finish_bpe(struct pipe *p, const char *prefix, const char *suffix)
{
    struct bpe_chars *chars = &p->chars;
    const struct bpe_vocab *v = &p->bpe.vocab;
    size_t len;
    TRY(set_affix(prefix, chars->prefix, &chars->n_prefix));
    TRY(set_affix(suffix, chars->suffix, &chars->n_suffix));
    chars->ids = malloc(BPE_CHARS * sizeof *chars->ids);
    if (!chars->ids) return err_set(CZ_NOMEM, 0, "no memory for characters");
    for (size_t c = 0; c < BPE_CHARS; c++) chars->ids[c] = -1;
    for (int64_t id = 0; id < v->size; id++) {
        if (v->lens[id] == 0 || v->lens[id] > 3) continue;
        const int32_t c = chars_at(v->bytes + v->offs[id], v->lens[id], &len);
        if (len == v->lens[id] && c < BPE_CHARS) chars->ids[c] = (int32_t)id;
    }
    find_bytes(p);
    p->bpe.chars = chars;
    p->bpe.growth = 1 + (chars->byte_fallback ? chars->n_prefix + chars->n_suffix : 0);
    return CZ_OK;
}

cz_status pipe_joints_init(struct pipe *p, size_t n_merges)
{
    p->joint_bits = 12;
    while (p->joint_bits < 23 && ((size_t)1 << p->joint_bits) < 32 * n_merges) p->joint_bits++;
    p->joints = calloc(((size_t)1 << p->joint_bits) / 64, sizeof *p->joints);
    return p->joints ? CZ_OK : err_set(CZ_NOMEM, 0, "no memory for merges");
}

void pipe_joints_add(struct pipe *p, const char *left, size_t n_left, const char *right,
                     size_t n_right)
{
    size_t len;
    const int32_t a = chars_before(left, n_left, &len), b = chars_at(right, n_right, &len);
    const uint64_t bit = joint_of(p, a, b);
    p->joints[bit / 64] |= (uint64_t)1 << (bit % 64);
}

/* ---- BPE of bytes ---------------------------------------------------------------------------- */

/* Whether the last step writes bytes as characters of the alphabet, and words become tokens of
 * these alone, or of these and a suffix that is of the alphabet, too (here: of ASCII). */
static bool can_take_bytes(const struct pipe *p)
{
    const struct bpe_chars *chars = &p->chars;
    if (p->n_pres == 0 || !p->pres[p->n_pres - 1].cls->finish) return false;
    for (size_t i = 0; i < chars->n_suffix; i++)
        if (chars->suffix[i] < '!' || chars->suffix[i] > '~') return false;
    return chars->n_prefix == 0 && !chars->byte_fallback && !p->ignore_merges;
}

/* The token of a byte's character with `suffix` behind it. */
static struct bpe_byte written_byte(const struct pipe *p, int byte, const char *suffix, size_t n)
{
    char text[2 + BPE_AFFIX_MAX + 1];
    bpe_alphabet_char((unsigned char)byte, text);
    const size_t n_char = strlen(text);
    memcpy(text + n_char, suffix, n);
    const int32_t id = bpe_vocab_find(&p->bpe.vocab, text, n_char + n);
    return id < 0 ? (struct bpe_byte){.n = 0} : (struct bpe_byte){{id}, .n = 1, .is_known = true};
}

/* After all merges. */
static cz_status take_bytes(struct pipe *p)
{
    const struct bpe_vocab *v = &p->bpe.vocab;
    struct bpe_vocab spelled;
    for (int byte = 0; byte < 256; byte++) {
        p->bpe.bytes[byte] = written_byte(p, byte, "", 0);
        p->lasts[byte] = written_byte(p, byte, p->chars.suffix, p->chars.n_suffix);
    }
    if (p->chars.n_suffix > 0) p->bpe.lasts = p->lasts;
    p->bpe.chars = NULL;
    cz_status st = bpe_vocab_init(&spelled, v->size);
    for (int64_t id = 0; st == CZ_OK && id < v->size; id++)
        st = bpe_vocab_set(&spelled, id, v->bytes + v->offs[id], v->lens[id]);
    if (st == CZ_OK) st = bpe_starts_init(&p->bpe, &spelled);
    bpe_vocab_free(&spelled);
    return st;
}

/* ---- BPE in tokenizer.json ------------------------------------------------------------------- */

/* A merge's tokens must be there, and so must what they make. */
static cz_status merge_id(const struct pipe *p, const struct json_node *node, const char *s,
                          size_t n, int32_t *id)
{
    char where[512];
    *id = bpe_vocab_find(&p->bpe.vocab, s, n);
    if (*id >= 0) return CZ_OK;
    return err_set(CZ_CORRUPT, 0,
                   "%s: a merge needs the token \"%.*s\", which is not in the vocabulary",
                   json_where(node, where, sizeof where), n < 80 ? (int)n : 80, s);
}

static cz_status add_merge(struct pipe *p, const struct json_node *node, uint32_t rank,
                           const char *left, size_t n_left, const char *right, size_t n_right)
{
    int32_t ids[3];
    const size_t skip = p->chars.n_prefix < n_right ? p->chars.n_prefix : n_right;
    char *whole = malloc(n_left + n_right + 1);
    if (!whole) return err_set(CZ_NOMEM, 0, "no memory for a merge");
    memcpy(whole, left, n_left);
    memcpy(whole + n_left, right + skip, n_right - skip);
    cz_status st = merge_id(p, node, left, n_left, &ids[0]);
    if (st == CZ_OK) st = merge_id(p, node, right, n_right, &ids[1]);
    if (st == CZ_OK) st = merge_id(p, node, whole, n_left + n_right - skip, &ids[2]);
    free(whole);
    TRY(st);
    bpe_merges_add(&p->bpe.merges, ids[0], ids[1], rank, ids[2]);
    if (p->joints && n_left > 0 && n_right > 0) pipe_joints_add(p, left, n_left, right, n_right);
    return CZ_OK;
}

static cz_status read_merges(struct pipe *p, const struct json_node *model)
{
    const struct json_node *list;
    TRY(json_need(model, "merges", JSON_ARRAY, &list));
    TRY(bpe_merges_init(&p->bpe.merges, json_count(list)));
    if (p->chars.n_prefix + p->chars.n_suffix == 0 && !p->takes_bytes)
        TRY(pipe_joints_init(p, json_count(list)));
    for (size_t i = 0; i < json_count(list); i++) {
        const struct json_node *node = json_child(list, i);
        const struct bpe_place place = {.node = node};
        const char *left, *right;
        size_t n_left;
        if (json_type(node) == JSON_ARRAY && json_count(node) == 2) {
            TRY(json_as_string(json_child(node, 0), &left));
            TRY(json_as_string(json_child(node, 1), &right));
            n_left = strlen(left);
        } else {
            TRY(json_as_string(node, &left));
            TRY(bpe_split_merge(left, strlen(left), &n_left, &place));
            right = left + n_left + 1;
        }
        TRY(add_merge(p, node, (uint32_t)i, left, n_left, right, strlen(right)));
    }
    return CZ_OK;
}

/* The id of a member's token; required or −1. */
static cz_status token_of(const struct pipe *p, const struct json_node *model, const char *key,
                          const char *fallback, bool is_needed, int32_t *id)
{
    const char *text;
    char where[512];
    TRY(json_opt_string(model, key, fallback, &text));
    *id = text ? bpe_vocab_find(&p->bpe.vocab, text, strlen(text)) : -1;
    if (*id >= 0 || !is_needed) return CZ_OK;
    return err_set(CZ_CORRUPT, 0, "%s: %s \"%s\" is not in the vocabulary",
                   json_where(model, where, sizeof where), key, text ? text : "");
}

static cz_status read_bpe(struct pipe *p, const struct json_node *model)
{
    double dropout;
    const char *prefix, *suffix, *unk;
    char where[512];
    TRY(json_opt_double(model, "dropout", 0.0, &dropout));
    if (dropout != 0.0)
        return err_set(CZ_UNSUPPORTED, 0, "%s: merges are never dropped here; set it to null",
                       json_where(json_get(model, "dropout"), where, sizeof where));
    TRY(json_opt_string(model, "continuing_subword_prefix", "", &prefix));
    TRY(json_opt_string(model, "end_of_word_suffix", "", &suffix));
    TRY(json_opt_bool(model, "byte_fallback", false, &p->chars.byte_fallback));
    TRY(json_opt_bool(model, "fuse_unk", false, &p->bpe.fuse_unk));
    TRY(json_opt_bool(model, "ignore_merges", false, &p->ignore_merges));
    TRY(json_opt_string(model, "unk_token", NULL, &unk));
    TRY(token_of(p, model, "unk_token", NULL, unk != NULL, &p->bpe.unk_id));
    TRY(pipe_finish_bpe(p, prefix, suffix));
    p->takes_bytes = can_take_bytes(p);
    TRY(read_merges(p, model));
    return p->takes_bytes ? take_bytes(p) : CZ_OK;
}

const struct pipe_model_class pipe_model_bpe = {"BPE", read_bpe, bpe_chars_word};

/* ---- Unigram --------------------------------------------------------------------------------- */

#define UNK_PENALTY 10.0

/* A token's end is reached; the way there is taken when it is better than the one before, not when
 * it is as good. */
static inline void reach(struct unigram_node *to, double before, double score, size_t start,
                         int32_t id, bool is_single)
{
    const double sum = score + before;
    const double candidate = is_single ? (double)(float)sum : sum;
    if (to->id >= 0 && !(candidate > to->score)) return;
    to->score = candidate;
    to->start = (uint32_t)start;
    to->id = id;
}

/* SentencePiece adds in single precision. Where a sum has fallen below SINGLE_MIN, that place
 * becomes 0, and what is reached behind it moves along: so a long text keeps its last bits. */
#define SINGLE_MIN (-100000.0)

static void lift(struct unigram_node *nodes, size_t at, size_t reached)
{
    const double low = nodes[at].score;
    for (size_t i = at; i <= reached; i++)
        if (nodes[i].id >= 0) nodes[i].score = (double)(float)(nodes[i].score - low);
}

/* The best way from each place of s to the next, through all tokens that begin there. */
static inline void search(const struct pipe *p, struct unigram_node *nodes, const char *s, size_t n,
                          bool is_single)
{
    const struct unigram *u = &p->unigram;
    const struct wp_node *trie = p->trie.nodes;
    size_t len, reached = 0;
    for (size_t i = 0; i <= n; i++) nodes[i].id = -1;
    nodes[0].score = 0.0;
    for (size_t at = 0; at < n; at += len) {
        if (is_single && nodes[at].score < SINGLE_MIN) lift(nodes, at, reached);
        const double before = nodes[at].score;
        bool has_char = false;
        int32_t node = 0;
        (void)chars_at(s + at, n - at, &len);
        for (size_t i = at; i < n; i++) {
            const int32_t next = trie[node].base + (unsigned char)s[i];
            if (trie[next].parent != node) break;
            node = next;
            const int32_t id = trie[node].id;
            if (id < 0) continue;
            const size_t n_token = i + 1 - at;
            reach(&nodes[i + 1], before, u->scores[id], at, id, is_single);
            has_char |= n_token == len;
            if (is_single && i + 1 > reached) reached = i + 1;
        }
        if (at + len > reached) reached = at + len;
        if (has_char) continue;
        const double unknown = u->unk_score + before;
        reach(&nodes[at + len], 0.0, is_single ? (double)(float)unknown : unknown, at,
              p->bpe.unk_id, is_single);
    }
}

/* Turn the links around: nodes[start].start is where the token ends that begins there. */
static void turn(struct unigram_node *nodes, size_t n)
{
    size_t end = n, start = nodes[n].start;
    for (;;) {
        const size_t before = start > 0 ? nodes[start].start : 0;
        nodes[start].start = (uint32_t)end;
        if (start == 0) break;
        end = start;
        start = before;
    }
}

/* Unknown text: a token after all, its bytes, or the unknown token. */
static cz_status add_unknown(const struct pipe *p, const char *s, size_t n, struct id_list *out)
{
    const int32_t id = bpe_vocab_find(&p->bpe.vocab, s, n);
    bool has_bytes = p->unigram.byte_fallback;
    if (id >= 0 && !p->unigram.is_single) return id_list_add(out, id);
    for (size_t i = 0; i < n && has_bytes; i++) has_bytes = p->bpe.bytes[(unsigned char)s[i]].n > 0;
    if (!has_bytes) return id_list_add(out, p->bpe.unk_id);
    for (size_t i = 0; i < n; i++) TRY(id_list_add(out, p->bpe.bytes[(unsigned char)s[i]].ids[0]));
    return CZ_OK;
}

static cz_status unigram_word(const struct pipe *p, struct pipe_work *w, const char *s, size_t n,
                              size_t n_more, struct id_list *out)
{
    const struct bpe_slot place = bpe_slot_of(w->bpe, s, n, n + n_more);
    const size_t n_before = out->n;
    if (place.pair) {
        const struct bpe_cached *hit = bpe_cache_find(&place);
        if (hit) {
            TRY(id_list_reserve(out, BPE_CACHED_IDS));
            memcpy(out->ids + out->n, hit->ids, sizeof hit->ids);
            out->n += hit->n_ids;
            return CZ_OK;
        }
    }
    if (n >= w->cap_nodes) {
        if (n >= UINT32_MAX / 2) return err_set(CZ_NOMEM, 0, "a text of %zu bytes is too long", n);
        free(w->nodes);
        w->cap_nodes = n + n / 4 + 64;
        w->nodes = malloc(w->cap_nodes * sizeof *w->nodes);
        if (!w->nodes) w->cap_nodes = 0;
        if (!w->nodes) return err_set(CZ_NOMEM, 0, "no memory for a word of %zu bytes", n);
    }
    if (p->unigram.is_single)
        search(p, w->nodes, s, n, true);
    else
        search(p, w->nodes, s, n, false);
    turn(w->nodes, n);
    for (size_t at = 0, end; at < n; at = end) {
        end = w->nodes[at].start;
        const int32_t id = w->nodes[end].id;
        if (id != p->bpe.unk_id) {
            TRY(id_list_add(out, id));
            continue;
        }
        while (end < n && w->nodes[w->nodes[end].start].id == p->bpe.unk_id)
            end = w->nodes[end].start;
        TRY(add_unknown(p, s + at, end - at, out));
    }
    if (place.pair) bpe_cache_put(&place, out->ids + n_before, out->n - n_before);
    return CZ_OK;
}

/* A tree of the model's tokens by their text. */
static cz_status make_trie(struct pipe *p)
{
    const struct bpe_vocab *v = &p->bpe.vocab;
    size_t n = 0;
    struct wp_token *tokens = malloc((size_t)v->size * sizeof *tokens);
    if (!tokens) return err_set(CZ_NOMEM, 0, "no memory for a vocabulary's tree");
    for (int64_t id = 0; id < v->size; id++)
        if (v->lens[id] > 0)
            tokens[n++] = (struct wp_token){v->bytes + v->offs[id], v->lens[id], (int32_t)id};
    cz_status st = wp_trie_build(&p->trie, tokens, n);
    free(tokens);
    return st;
}

/* A score as the library's JSON parser reads it: its digits as one integer, divided or multiplied
 * by a power of ten. That is not always the nearest double, and ties between ways of the same score
 * are decided by the last bit. */
static double score_of(const struct json_node *node)
{
    size_t n, i = 0;
    const char *s = json_text(node, &n);
    uint64_t digits = 0;
    int64_t exponent = 0, written = 0;
    bool is_full = false, is_behind = false;
    const bool is_negative = n > 0 && s[0] == '-';
    for (i = is_negative ? 1 : 0; i < n && s[i] != 'e' && s[i] != 'E'; i++) {
        const uint64_t digit = (uint64_t)(unsigned char)s[i] - '0';
        if (s[i] == '.') {
            is_behind = true;
            continue;
        }
        is_full = is_full || digits > (UINT64_MAX - digit) / 10;
        if (!is_full) digits = digits * 10 + digit;
        exponent += is_full ? !is_behind : -(int64_t)is_behind;
    }
    const bool is_small = i + 1 < n && s[i + 1] == '-';
    for (i += 1; i < n; i++)
        if (s[i] >= '0' && s[i] <= '9' && written < 100000) written = written * 10 + (s[i] - '0');
    exponent += is_small ? -written : written;
    double f = (double)digits;
    for (; exponent < -308 && f != 0.0; exponent += 308) f /= 1e308;
    double power = 1.0;
    char text[16];
    (void)snprintf(text, sizeof text, "1e%d", (int)(exponent < 0 ? -exponent : exponent) % 309);
    power = strtod(text, NULL);
    f = exponent < 0 ? f / power : f * power;
    return is_negative ? -f : f;
}

static cz_status read_unigram(struct pipe *p, const struct json_node *model)
{
    const struct json_node *list;
    struct unigram *u = &p->unigram;
    char where[512];
    int64_t unk;
    double min = 0.0;
    TRY(json_need(model, "vocab", JSON_ARRAY, &list));
    TRY(json_opt_int(model, "unk_id", -1, &unk));
    TRY(json_opt_bool(model, "byte_fallback", false, &u->byte_fallback));
    if (unk < 0 || unk >= (int64_t)json_count(list))
        return err_set(CZ_UNSUPPORTED, 0, "%s: Unigram without an unknown token (unk_id)",
                       json_where(model, where, sizeof where));
    p->bpe.unk_id = (int32_t)unk;
    u->scores = calloc(json_count(list), sizeof *u->scores);
    if (!u->scores) return err_set(CZ_NOMEM, 0, "no memory for scores");
    for (size_t i = 0; i < json_count(list); i++) {
        const struct json_node *score = json_child(json_child(list, i), 1);
        TRY(json_as_double(score, &u->scores[i])); /* whether it is a number */
        u->scores[i] = score_of(score);
        if (i == 0 || u->scores[i] < min) min = u->scores[i];
    }
    u->unk_score = min - UNK_PENALTY;
    find_bytes(p);
    return make_trie(p);
}

const struct pipe_model_class pipe_model_unigram = {"Unigram", read_unigram, unigram_word};

/* ---- WordPiece ------------------------------------------------------------------------------- */

static cz_status wordpiece_word(const struct pipe *p, struct pipe_work *w, const char *s, size_t n,
                                size_t n_more, struct id_list *out)
{
    size_t n_chars = 0;
    const size_t n_before = out->n;
    int32_t node = 0;
    (void)w;
    (void)n_more;
    for (size_t i = 0; i < n; i++) n_chars += ((unsigned char)s[i] & 0xC0) != 0x80;
    if (n_chars > p->n_chars_max) return id_list_add(out, p->bpe.unk_id);
    for (size_t at = 0, len = 0; at < n; at += len, node = p->inside) {
        const int32_t id = node < 0 ? -1 : wp_trie_longest(&p->trie, node, s + at, n - at, &len);
        if (id < 0) {
            out->n = n_before;
            return id_list_add(out, p->bpe.unk_id);
        }
        TRY(id_list_add(out, id));
    }
    return CZ_OK;
}

static cz_status read_wordpiece(struct pipe *p, const struct json_node *model)
{
    const char *prefix;
    char where[512];
    int64_t n_chars;
    TRY(token_of(p, model, "unk_token", "[UNK]", true, &p->bpe.unk_id));
    TRY(json_opt_string(model, "continuing_subword_prefix", "##", &prefix));
    TRY(json_opt_int(model, "max_input_chars_per_word", WP_N_CHARS_DEFAULT, &n_chars));
    if (n_chars < 0 || n_chars > WP_N_CHARS_MAX)
        return err_set(CZ_UNSUPPORTED, 0, "%s: words of %lld characters",
                       json_where(model, where, sizeof where), (long long)n_chars);
    p->n_chars_max = (size_t)n_chars;
    TRY(make_trie(p));
    p->inside = wp_trie_walk(&p->trie, 0, prefix, strlen(prefix));
    return CZ_OK;
}

const struct pipe_model_class pipe_model_wordpiece = {"WordPiece", read_wordpiece, wordpiece_word};

/* ---- WordLevel ------------------------------------------------------------------------------- */

static cz_status wordlevel_word(const struct pipe *p, struct pipe_work *w, const char *s, size_t n,
                                size_t n_more, struct id_list *out)
{
    const int32_t id = bpe_vocab_find(&p->bpe.vocab, s, n);
    (void)w;
    (void)n_more;
    return id_list_add(out, id >= 0 ? id : p->bpe.unk_id);
}

static cz_status read_wordlevel(struct pipe *p, const struct json_node *model)
{
    return token_of(p, model, "unk_token", "<unk>", true, &p->bpe.unk_id);
}

const struct pipe_model_class pipe_model_wordlevel = {"WordLevel", read_wordlevel, wordlevel_word};
