/* Promises: any bytes parse or are refused with a sentence; a tree can be walked; what the tree
 * says of tensors is consistent; a tree that we write again reads back as the same tree. */
#include "formats/pickle/pickle.h"
#include "tests/fuzz/fuzz.h"

#define N_STEPS_MAX 20000 /* shared values make trees large: a part will do */

static bool is_same_pairs(const struct pickle_node *a, const struct pickle_node *b, int *n_left);

static bool is_same_text(const char *a, const char *b)
{
    return strcmp(a, b) == 0;
}

/* Equal kind, value, names and, as far as steps are left, everything below. */
static bool is_same(const struct pickle_node *a, const struct pickle_node *b, int *n_left)
{
    if (!a || !b) return a == b;
    if (--*n_left < 0) return true;
    if (a->kind != b->kind || a->n != b->n || a->n_pairs != b->n_pairs || a->boolean != b->boolean)
        return false;
    if ((a->kind == PICKLE_INT || a->kind == PICKLE_FLOAT) && a->integer != b->integer)
        return false; /* all bits, also of a float */
    if (!is_same_text(a->more->module, b->more->module)) return false;
    if (!is_same_text(a->more->name, b->more->name)) return false;
    if (pickle_has_text(a) && memcmp(a->text, b->text, a->n) != 0) return false;
    for (size_t i = 0; a->items && *n_left > 0 && i < a->n; i++)
        if (!is_same(a->items[i], b->items[i], n_left)) return false;
    return is_same_pairs(a, b, n_left) && is_same(a->more->args, b->more->args, n_left) &&
           is_same(a->more->state, b->more->state, n_left);
}

static bool is_same_pairs(const struct pickle_node *a, const struct pickle_node *b, int *n_left)
{
    for (size_t i = 0; *n_left > 0 && i < a->n_pairs; i++)
        if (!is_same(a->pairs[i].key, b->pairs[i].key, n_left) ||
            !is_same(a->pairs[i].value, b->pairs[i].value, n_left))
            return false;
    return true;
}

static void check_tensor(const struct pickle_tensor *t)
{
    uint64_t numel = 1, last = t->off;
    FUZZ_CHECK(t->dtype && t->key && t->ndim >= 0 && t->ndim <= PICKLE_NDIM_MAX);
    for (int i = 0; i < t->ndim; i++) {
        FUZZ_CHECK(t->shape[i] >= 0 && t->stride[i] >= 0);
        numel *= (uint64_t)t->shape[i];
        if (t->shape[i] > 0) last += ((uint64_t)t->shape[i] - 1) * (uint64_t)t->stride[i];
    }
    FUZZ_CHECK(t->numel == numel);
    FUZZ_CHECK(numel == 0 || (last + 1) * t->dtype->size <= t->storage_nbytes);
}

static void check_dict(const struct pickle_node *node)
{
    for (size_t i = 0; i < node->n_pairs && i < 64; i++) {
        const char *key = pickle_to_string(node->pairs[i].key);
        if (key) FUZZ_CHECK(pickle_get(node, key) == node->pairs[i].value);
    }
}

static void walk(const struct pickle_node *node, int *n_left)
{
    int64_t integer;
    double real;
    bool boolean;
    if (!node || --*n_left < 0) return;
    pickle_to_int(node, &integer);
    pickle_to_double(node, &real);
    pickle_to_bool(node, &boolean);
    FUZZ_CHECK(pickle_kind_name(node->kind)[0] != '?');
    FUZZ_CHECK(node->more->module && node->more->name);
    if (pickle_has_text(node)) FUZZ_CHECK(node->text[node->n] == '\0');
    if (node->kind == PICKLE_TENSOR) check_tensor(node->tensor);
    if (node->kind == PICKLE_DICT) check_dict(node);
    pickle_attr(node, "ds_id");
    for (size_t i = 0; node->items && *n_left > 0 && i < node->n; i++) walk(node->items[i], n_left);
    for (size_t i = 0; *n_left > 0 && i < node->n_pairs; i++) {
        walk(node->pairs[i].key, n_left);
        walk(node->pairs[i].value, n_left);
    }
    walk(node->more->args, n_left);
    walk(node->more->state, n_left);
}

/* Trees without tensors can be written; a refusal must say so. */
static void write_and_read(const struct pickle_node *root)
{
    unsigned char *bytes;
    size_t nbytes;
    struct pickle *again;
    int n_left = N_STEPS_MAX;
    struct pickle_writer *w = pickle_writer_create();
    FUZZ_CHECK(w);
    pickle_put_node(w, root);
    cz_status st = pickle_writer_take(w, &bytes, &nbytes);
    pickle_writer_destroy(w);
    if (st != CZ_OK) {
        fuzz_refused(st);
        return;
    }
    FUZZ_CHECK(pickle_parse(bytes, nbytes, "again", &again) == CZ_OK);
    FUZZ_CHECK(is_same(root, pickle_root(again), &n_left));
    pickle_free(again);
    free(bytes);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t nbytes)
{
    struct pickle *p;
    char *copy = fuzz_copy(data, nbytes);
    cz_status st = pickle_parse(copy, nbytes, "in", &p);
    free(copy); /* a tree owns its text */
    if (st != CZ_OK) {
        fuzz_refused(st);
        return 0;
    }
    int n_left = N_STEPS_MAX;
    walk(pickle_root(p), &n_left);
    write_and_read(pickle_root(p));
    pickle_free(p);
    return 0;
}
