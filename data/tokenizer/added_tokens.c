/* Added tokens: a tree over bytes, walked at every place where one may begin. They are cut out of a
 * text before anything else looks at it, so that no other rule can split them. */
#include "data/tokenizer/added_tokens_impl.h"

#include "data/tokenizer/chars_impl.h"

#include <stdlib.h>
#include <string.h>

void added_tokens_init(struct added_tokens *set)
{
    memset(set, 0, sizeof *set);
}

void added_tokens_free(struct added_tokens *set)
{
    free(set->tokens);
    free(set->nodes);
    memset(set, 0, sizeof *set);
}

/* Nodes are numbered, since realloc moves them. Node 0 is the root, which no node has as a child: 0
 * means "none" in child and sibling. */
static cz_status new_node(struct added_tokens *set, unsigned char byte, uint32_t *node)
{
    if (set->n_nodes == set->cap_nodes) {
        size_t cap = 2 * set->cap_nodes + 64;
        struct added_node *nodes = realloc(set->nodes, cap * sizeof *nodes);
        if (!nodes) return err_set(CZ_NOMEM, 0, "no memory for added tokens");
        set->nodes = nodes;
        set->cap_nodes = cap;
    }
    if (set->n_nodes >= UINT32_MAX) return err_set(CZ_NOMEM, 0, "too many added tokens");
    *node = (uint32_t)set->n_nodes++;
    set->nodes[*node] = (struct added_node){.token = -1, .byte = byte};
    return CZ_OK;
}

/* The root has a table of 256, because it is asked at every byte of a text; other nodes have few
 * children, in a list. */
static uint32_t find_child(const struct added_tokens *set, uint32_t node, unsigned char byte)
{
    if (node == 0) return set->first[byte];
    uint32_t child = set->nodes[node].child;
    while (child && set->nodes[child].byte != byte) child = set->nodes[child].sibling;
    return child;
}

/* New children go to the front of the list: order does not matter, bytes differ. */
static cz_status need_child(struct added_tokens *set, uint32_t node, unsigned char byte,
                            uint32_t *child)
{
    *child = find_child(set, node, byte);
    if (*child) return CZ_OK;
    TRY(new_node(set, byte, child));
    if (node == 0) {
        set->first[byte] = *child;
        set->n_first++;
        set->last_first = byte;
        return CZ_OK;
    }
    set->nodes[*child].sibling = set->nodes[node].child;
    set->nodes[node].child = *child;
    return CZ_OK;
}

/* Of two equal contents the later one counts. */
cz_status added_tokens_add(struct added_tokens *set, const char *content, size_t nbytes,
                           const struct added_token *token)
{
    uint32_t node = 0;
    if (nbytes == 0) return err_set(CZ_INVALID, 0, "an added token is empty");
    if (nbytes > ADDED_TOKEN_NBYTES_MAX)
        return err_set(
            CZ_UNSUPPORTED, 0,
            "the added token that begins with \"%.20s\" has %zu bytes; at most %d are supported",
            content, nbytes, ADDED_TOKEN_NBYTES_MAX);
    if (set->n_nodes == 0) TRY(new_node(set, 0, &node));
    for (size_t i = 0; i < nbytes; i++)
        TRY(need_child(set, node, (unsigned char)content[i], &node));
    if (set->nodes[node].token >= 0) {
        set->tokens[set->nodes[node].token] = *token;
        return CZ_OK;
    }
    if (set->n >= INT32_MAX) return err_set(CZ_NOMEM, 0, "too many added tokens");
    if ((set->n & (set->n - 1)) == 0) { /* the array doubles at powers of two */
        size_t cap = set->n ? 2 * set->n : 1;
        struct added_token *tokens = realloc(set->tokens, cap * sizeof *tokens);
        if (!tokens) return err_set(CZ_NOMEM, 0, "no memory for added tokens");
        set->tokens = tokens;
    }
    set->tokens[set->n] = *token;
    set->nodes[node].token = (int32_t)set->n++;
    if (nbytes > set->nbytes_max) set->nbytes_max = nbytes;
    return CZ_OK;
}

/* ---- finding --------------------------------------------------------------------------------- */

const struct added_token *added_tokens_find(const struct added_tokens *set, const char *content,
                                            size_t nbytes)
{
    uint32_t node = 0;
    if (set->n_nodes == 0) return NULL;
    for (size_t i = 0; i < nbytes; i++) {
        node = find_child(set, node, (unsigned char)content[i]);
        if (!node) return NULL;
    }
    return set->nodes[node].token >= 0 ? &set->tokens[set->nodes[node].token] : NULL;
}

/* The longest content at s; its index, or −1. Longest, because one added token may begin with
 * another. */
static int32_t longest_at(const struct added_tokens *set, const char *s, size_t n, size_t *nbytes)
{
    int32_t best = -1;
    uint32_t node = 0;
    for (size_t i = 0; i < n; i++) {
        node = find_child(set, node, (unsigned char)s[i]);
        if (!node) break;
        if (set->nodes[node].token < 0) continue;
        best = set->nodes[node].token;
        *nbytes = i + 1;
    }
    return best;
}

const struct added_token *added_tokens_at(const struct added_tokens *set, const char *text,
                                          size_t n, size_t *nbytes)
{
    const int32_t idx = set->n > 0 ? longest_at(set, text, n, nbytes) : -1;
    return idx < 0 ? NULL : &set->tokens[idx];
}

/* single_word: no letter or digit may touch the token. */
static bool stands_alone(const char *text, size_t nbytes, size_t start, size_t end)
{
    size_t len;
    if (start > 0 && chars_is_word(chars_before(text, start, &len))) return false;
    return end == nbytes || !chars_is_word(chars_at(text + end, nbytes - end, &len));
}

static size_t skip_spaces_back(const char *text, size_t at)
{
    size_t len;
    while (at > 0 && chars_is_space(chars_before(text, at, &len))) at -= len;
    return at;
}

static size_t skip_spaces(const char *text, size_t nbytes, size_t at)
{
    size_t len;
    while (at < nbytes && chars_is_space(chars_at(text + at, nbytes - at, &len))) at += len;
    return at;
}

/* lstrip and rstrip take white space along. A token of white space that an rstrip before it has
 * taken is found all the same, as in Hugging Face's library; nothing is between the two. */
bool added_tokens_next(const struct added_tokens *set, const char *text, size_t nbytes, size_t done,
                       size_t *from, size_t *start, size_t *end, struct added_token *token)
{
    if (set->n == 0) return false;
    for (size_t at = *from; at < nbytes; at++) {
        size_t len;
        if (set->n_first == 1) { /* all begin alike, as with "<" */
            const char *next = memchr(text + at, set->last_first, nbytes - at);
            if (!next) return false;
            at = (size_t)(next - text);
        }
        if (!set->first[(unsigned char)text[at]]) continue;
        int32_t idx = longest_at(set, text + at, nbytes - at, &len);
        if (idx < 0) continue;
        *token = set->tokens[idx];
        *from = at + len;
        if (token->single_word && !stands_alone(text, nbytes, at, at + len)) {
            at = *from - 1;
            continue;
        }
        *start = at;
        if (token->lstrip) *start = skip_spaces_back(text, at);
        if (*start < done) *start = done;
        *end = token->rstrip ? skip_spaces(text, nbytes, at + len) : at + len;
        return true;
    }
    return false;
}

/* Whether a token may reach across `at`: then a text must not be cut there. */
bool added_tokens_touch(const struct added_tokens *set, const char *text, size_t nbytes, size_t at)
{
    size_t from = at > set->nbytes_max ? at - set->nbytes_max : 0;
    if (set->n == 0) return false;
    for (size_t s = from; s <= at && s < nbytes; s++) {
        uint32_t node = 0;
        for (size_t i = s; i < nbytes; i++) {
            node = find_child(set, node, (unsigned char)text[i]);
            if (!node) break;
            if (set->nodes[node].token >= 0 && i + 1 >= at) return true;
        }
    }
    return false;
}

bool added_tokens_have(const struct added_tokens *set, int64_t id)
{
    for (size_t i = 0; i < set->n; i++)
        if (set->tokens[i].id == id) return true;
    return false;
}
