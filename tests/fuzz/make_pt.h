/* A .pt around any pickle, in the fuzzer's folder: readers of checkpoints get archives that are
 * sound, so that what is behind the archive is reached. Its storages are as large as the pickle
 * says, and zero. */
#ifndef CZ_TESTS_MAKE_PT_H
#define CZ_TESTS_MAKE_PT_H

#include "formats/pickle/pickle.h"
#include "tests/fuzz/fuzz.h"

/* ---- a zip without sums ------------------------------------------------------------------------
 */

#define PT_RECORDS_MAX      256
#define STORAGES_NBYTES_MAX ((uint64_t)16 << 20)

struct pt_file_record {
    const char *name; /* without the folder */
    uint32_t nbytes, off;
};

struct pt_file {
    int fd;
    uint32_t off;
    struct pt_file_record records[PT_RECORDS_MAX];
    size_t n;
};

static inline void put(struct pt_file *z, const void *bytes, size_t nbytes)
{
    FUZZ_CHECK(pwrite(z->fd, bytes, nbytes, z->off) == (ssize_t)nbytes);
    z->off += (uint32_t)nbytes;
}

static inline void set_number(unsigned char *at, size_t width, uint32_t value)
{
    for (size_t i = 0; i < width; i++) at[i] = (unsigned char)(value >> 8 * i);
}

/* A local header, or the entry of the directory; both are followed by the name. */
static inline void put_header(struct pt_file *z, const struct pt_file_record *r, bool is_entry)
{
    unsigned char header[46] = {'P', 'K', 3, 4};
    char name[300];
    int n_name = snprintf(name, sizeof name, "a/%.250s", r->name);
    size_t sizes_at = is_entry ? 20 : 18;
    if (is_entry) memcpy(header, "PK\1\2", 4);
    set_number(header + sizes_at, 4, r->nbytes);
    set_number(header + sizes_at + 4, 4, r->nbytes);
    set_number(header + sizes_at + 8, 2, (uint32_t)n_name);
    if (is_entry) set_number(header + 42, 4, r->off);
    put(z, header, is_entry ? 46 : 30);
    put(z, name, (size_t)n_name);
}

/* A record; bytes NULL: zeros, which take no memory. */
static inline void put_record(struct pt_file *z, const char *name, const void *bytes, size_t nbytes)
{
    struct pt_file_record *r = &z->records[z->n++];
    *r = (struct pt_file_record){.name = name, .nbytes = (uint32_t)nbytes, .off = z->off};
    put_header(z, r, false);
    if (bytes)
        put(z, bytes, nbytes);
    else
        z->off += (uint32_t)nbytes;
}

static inline void put_directory(struct pt_file *z)
{
    unsigned char end[22] = {'P', 'K', 5, 6};
    uint32_t begin = z->off;
    for (size_t i = 0; i < z->n; i++) put_header(z, &z->records[i], true);
    set_number(end + 8, 2, (uint32_t)z->n);
    set_number(end + 10, 2, (uint32_t)z->n);
    set_number(end + 12, 4, z->off - begin);
    set_number(end + 16, 4, begin);
    put(z, end, sizeof end);
}

/* ---- a .pt of any pickle -----------------------------------------------------------------------
 */

struct pt_storages {
    const struct pickle_tensor *tensors[PT_RECORDS_MAX]; /* one of each storage */
    char names[PT_RECORDS_MAX][64];
    size_t n;
    uint64_t nbytes;
    int n_left; /* nodes to look at */
};

static inline void find_storages(struct pt_storages *s, const struct pickle_node *node)
{
    if (!node || --s->n_left < 0) return;
    for (size_t i = 0; node->kind == PICKLE_TENSOR && i <= s->n; i++) {
        if (i == s->n && s->n < PT_RECORDS_MAX - 2) {
            snprintf(s->names[i], sizeof s->names[i], "data/%s", node->tensor->key);
            s->tensors[s->n++] = node->tensor;
            s->nbytes += node->tensor->storage_nbytes;
            break;
        }
        if (i < s->n && strcmp(s->tensors[i]->key, node->tensor->key) == 0) break;
    }
    for (size_t i = 0; node->items && i < node->n && s->n_left > 0; i++)
        find_storages(s, node->items[i]);
    for (size_t i = 0; i < node->n_pairs && s->n_left > 0; i++)
        find_storages(s, node->pairs[i].value);
    find_storages(s, node->more->args);
    find_storages(s, node->more->state);
}

/* False: no pickle, or too large a one. */
static inline bool make_pt(const char *name, const unsigned char *bytes, size_t nbytes)
{
    static struct pt_storages s;
    static struct pt_file z;
    struct pickle *p;
    if (pickle_parse(bytes, nbytes, name, &p) != CZ_OK) return false;
    s.n = 0;
    s.nbytes = 0;
    s.n_left = 5000;
    find_storages(&s, pickle_root(p));
    bool fits = s.nbytes <= STORAGES_NBYTES_MAX;
    for (size_t i = 0; i < s.n; i++) fits &= s.tensors[i]->storage_nbytes <= STORAGES_NBYTES_MAX;
    if (fits) {
        z.fd = openat(fuzz_folder(), name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        z.off = 0;
        z.n = 0;
        FUZZ_CHECK(z.fd >= 0);
        put_record(&z, "data.pkl", bytes, nbytes);
        put_record(&z, "version", "3\n", 2);
        for (size_t i = 0; i < s.n; i++)
            put_record(&z, s.names[i], NULL, (size_t)s.tensors[i]->storage_nbytes);
        put_directory(&z);
        close(z.fd);
    }
    pickle_free(p);
    return fits;
}

#endif
