/* Promises: any file opens or is refused with a sentence; records are inside the file and apart;
 * their sums can be recomputed; every tensor's first and last elements can be read, by themselves
 * and as fp32; what is outside a tensor cannot. */
#include "formats/pt/pt.h"
#include "tests/fuzz/fuzz.h"

#define N_NODES_MAX 2000
#define N_ELEMS_MAX 64

static void check_records(const struct pt *pt)
{
    uint64_t end = 0;
    for (size_t i = 0; i < pt_n_records(pt); i++) {
        const struct pt_record *r = pt_record_at(pt, i);
        FUZZ_CHECK(r->header_off >= end && r->off > r->header_off);
        FUZZ_CHECK(r->nbytes <= pt_nbytes(pt) && r->off <= pt_nbytes(pt) - r->nbytes);
        FUZZ_CHECK(pt_record_find(pt, r->name) == r);
        end = r->off + r->nbytes;
    }
    FUZZ_CHECK(pt_record_find(pt, "no such record") == NULL);
}

static void check_tensor(const struct pt *pt, const struct pickle_tensor *t)
{
    static unsigned char elems[N_ELEMS_MAX * 16];
    static float floats[N_ELEMS_MAX];
    const struct pt_record *record = pt_storage(pt, t);
    size_t n = t->numel < N_ELEMS_MAX ? (size_t)t->numel : N_ELEMS_MAX;
    FUZZ_CHECK(record && record->nbytes == t->storage_nbytes && t->dtype->size <= 16);
    FUZZ_CHECK(pt_read(pt, t, 0, n, elems) == CZ_OK);
    FUZZ_CHECK(pt_read(pt, t, t->numel - n, n, elems) == CZ_OK);
    FUZZ_CHECK(pt_read(pt, t, t->numel, 1, elems) == CZ_INVALID);
    FUZZ_CHECK(pt_read(pt, t, UINT64_MAX, 2, elems) == CZ_INVALID);
    cz_status st = pt_read_f32(pt, t, t->numel - n, n, floats);
    FUZZ_CHECK(st == CZ_OK || st == CZ_UNSUPPORTED);
}

static void walk(const struct pt *pt, const struct pickle_node *node, int *n_left)
{
    double number;
    if (!node || --*n_left < 0) return;
    if (pt_number(pt, node, &number) != CZ_OK) fuzz_refused(cz_last_status());
    if (node->kind == PICKLE_TENSOR) check_tensor(pt, node->tensor);
    for (size_t i = 0; node->items && *n_left > 0 && i < node->n; i++)
        walk(pt, node->items[i], n_left);
    for (size_t i = 0; *n_left > 0 && i < node->n_pairs; i++)
        walk(pt, node->pairs[i].value, n_left);
    walk(pt, node->more->args, n_left);
    walk(pt, node->more->state, n_left);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t nbytes)
{
    struct pt *pt;
    const struct pt_record *bad = NULL;
    size_t n_unchecked = 0;
    int n_left = N_NODES_MAX;
    cz_status st = pt_open(fuzz_file(data, nbytes), &pt);
    if (st != CZ_OK) {
        FUZZ_CHECK(pt == NULL);
        fuzz_refused(st);
        return 0;
    }
    FUZZ_CHECK(pt_nbytes(pt) == nbytes);
    check_records(pt);
    st = pt_verify(pt, &bad, &n_unchecked);
    FUZZ_CHECK(st == CZ_OK ? bad == NULL : st == CZ_CORRUPT && bad != NULL);
    FUZZ_CHECK(n_unchecked <= pt_n_records(pt));
    walk(pt, pt_root(pt), &n_left);
    pt_close(pt);
    return 0;
}
