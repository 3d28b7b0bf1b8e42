/* Inside the pickle writer: what both its files use. */
#ifndef CZ_FORMATS_PICKLE_PICKLE_WRITE_IMPL_H
#define CZ_FORMATS_PICKLE_PICKLE_WRITE_IMPL_H

#include "formats/pickle/pickle.h"

#define PICKLE_BATCH 1000 /* items of one APPENDS, pairs of one SETITEMS: as Python's */

enum pickle_open {
    PICKLE_OPEN_DICT,
    PICKLE_OPEN_LIST,
    PICKLE_OPEN_TUPLE,
    PICKLE_OPEN_STATE,
    PICKLE_OPEN_CALL
};

struct pickle_level { /* a container that is not closed */
    enum pickle_open kind;
    size_t n; /* values in it so far: keys count too */
};

/* What GET fetches: bytes that were written before (a string or a global, by its bytes in the
 * buffer), or a node that was. */
struct pickle_seen {
    size_t off, nbytes;
    const struct pickle_node *node;
    uint32_t memo_idx;
};

struct pickle_table { /* open addressing; slots hold 1 + index into entries */
    struct pickle_seen *entries;
    size_t n, capacity;
    uint32_t *slots;
    size_t n_slots;
};

struct pickle_writer {
    unsigned char *bytes;
    size_t nbytes, capacity;
    struct pickle_level *levels;
    size_t n_levels, levels_capacity;
    struct pickle_table texts, nodes;
    uint32_t n_memo;
    size_t n_values; /* outside all containers */
    cz_status failed;
    const char *why;                /* a literal; NULL: in `error` */
    struct err error;               /* of a callback of `part` */
    const struct pickle_part *part; /* during pickle_put_pairs(); or NULL */
    uint64_t nbytes_read;           /* of its tensors */
};

void pickle_write_fail(struct pickle_writer *w, cz_status status, const char *why);
void pickle_write_fail_as_told(struct pickle_writer *w); /* by cz_last_error() */
void pickle_write(struct pickle_writer *w, const void *bytes, size_t nbytes);
void pickle_write_op(struct pickle_writer *w, int op);
void pickle_write_number(struct pickle_writer *w, int op, size_t width, uint64_t value);

/* Before each value: opens and closes the batches of the container that it goes to. */
void pickle_write_next(struct pickle_writer *w);
void pickle_write_open(struct pickle_writer *w, enum pickle_open kind);
void pickle_write_close(struct pickle_writer *w, enum pickle_open kind);

/* Values, once pickle_write_next() was called. */
void pickle_write_int(struct pickle_writer *w, int64_t value);
void pickle_write_double(struct pickle_writer *w, double value);
void pickle_write_text(struct pickle_writer *w, const char *utf8, size_t n);
void pickle_write_global(struct pickle_writer *w, const char *module, const char *name);
void pickle_write_tensor(struct pickle_writer *w, const struct pickle_tensor_desc *t);

/* Nodes of one pickle_put_node(): fetch one that was written (true), or remember it. */
bool pickle_write_get_node(struct pickle_writer *w, const struct pickle_node *node);
void pickle_write_put_node(struct pickle_writer *w, const struct pickle_node *node);
void pickle_write_forget_nodes(struct pickle_writer *w);

#endif
