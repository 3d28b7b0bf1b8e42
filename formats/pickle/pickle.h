/* The pickles that torch.save writes: a restricted reader and a small writer.
 *
 * Reading never executes anything. Known constructors (tensors, torch.Size, OrderedDict, …) become
 * typed nodes; every other global becomes an inert PICKLE_OBJECT that keeps its module, name,
 * arguments and state. Memory is bounded by a multiple of the input's length (docs/fuzzing.md) and
 * by what the host has; every length, index and depth is checked against it.
 *
 *   pickle_parse() → walk pickle_root() with the accessors → pickle_free()
 *   pickle_writer_create() → one value, containers as begin … end → pickle_writer_take() → destroy
 *
 * Format: docs/deepspeed-behaviour.md, "Pickles". A parsed tree may be read by several threads. */
#ifndef CZ_FORMATS_PICKLE_PICKLE_H
#define CZ_FORMATS_PICKLE_PICKLE_H

#include "base/dtype.h"
#include "base/status.h"

CZ_EXTERN_C_BEGIN

enum pickle_kind {
    PICKLE_NONE = 0,
    PICKLE_BOOL,
    PICKLE_INT,  /* fits 64 bits */
    PICKLE_LONG, /* does not: two's complement, little endian, in text/n */
    PICKLE_FLOAT,
    PICKLE_STRING, /* UTF-8, lone surrogates possible; NUL-terminated, but may hold NULs: use n */
    PICKLE_BYTES,
    PICKLE_LIST,
    PICKLE_TUPLE,
    PICKLE_SET,
    PICKLE_SIZE, /* torch.Size: items are PICKLE_INT */
    PICKLE_DICT, /* also OrderedDict, defaultdict and Counter: `name` is then "OrderedDict", … */
    PICKLE_TENSOR,
    PICKLE_DTYPE,  /* torch.float16: `name` is "float16" */
    PICKLE_GLOBAL, /* a class or function standing by itself */
    PICKLE_OBJECT  /* an instance of, or a call to, anything else. module and name are "" when what
                      is called is an object itself: args are then (object, its arguments) */
};

/* One element type of torch. size: bytes per element. */
struct pickle_dtype {
    const char *torch_name; /* "float32", "bfloat16", "int64", "float8_e4m3fn", "uint8" … */
    size_t size;
    bool has_base; /* base/dtype.h knows it: */
    enum cz_dtype base;
};

#define PICKLE_NDIM_MAX 16

/* A view of a storage: element (i0, i1, …) is storage element off + Σ i_k · stride[k]. */
struct pickle_tensor {
    const struct pickle_dtype *dtype;
    const char *key;         /* its record is "data/<key>" */
    uint64_t storage_nbytes; /* of the whole storage, as the pickle says */
    uint64_t off;            /* elements of dtype */
    uint64_t numel;          /* product of shape */
    int ndim;
    const int64_t *shape, *stride;     /* (ndim) checked: every element is inside the storage */
    bool requires_grad, is_contiguous; /* row-major, dense; true for numel ≤ 1 */
    bool is_parameter;                 /* torch.nn.Parameter */
};

struct pickle_pair;

/* What few nodes have. Others share one that is empty: it is never NULL. */
struct pickle_more {
    const char *module, *name;       /* GLOBAL, OBJECT, DTYPE, DICT's class ("" for dict); SET: name
                                        is "set" or "frozenset" */
    const struct pickle_node *args;  /* OBJECT: TUPLE or NULL; DICT: defaultdict's */
    const struct pickle_node *state; /* what BUILD gave: attributes of OBJECT, DICT (_metadata),
                                        TENSOR (ds_id); or NULL */
    const void *own[2];              /* the reader's */
};

struct pickle_node {
    enum pickle_kind kind : 8;
    bool boolean;        /* BOOL; OBJECT: made by cls.__new__(cls, *args), not by a call */
    uint16_t own_height; /* own…: the reader's */
    uint32_t own_hash;
    uint32_t n, n_pairs; /* bytes of text, or items; pairs */
    union {
        int64_t integer;                    /* INT */
        double real;                        /* FLOAT */
        const char *text;                   /* STRING, BYTES, LONG */
        const struct pickle_tensor *tensor; /* TENSOR */
    };
    const struct pickle_node *const *items; /* LIST, TUPLE, SET, SIZE; OBJECT: appended ones */
    const struct pickle_pair *pairs;        /* DICT in insertion order; a repeated key has its
                                               last value at its first place. OBJECT: items set */
    const struct pickle_more *more;
    uint32_t own_unfolded, own_marks;
};

struct pickle_pair {
    const struct pickle_node *key, *value;
};

struct pickle; /* a parsed tree; owns its nodes and a copy of all text */

/* Parse one pickle of nbytes (protocol 2 to 5; exactly one, no bytes after STOP). `label` stands in
 * front of sentences ("FILE: data.pkl"). *out is released by pickle_free(); NULL on error.
 * Errors: CZ_CORRUPT (truncated, unknown opcode, stack underflow, bad memo index, bad UTF-8, a
 * length beyond the input, tensor outside its storage, nesting beyond 1000, a cycle), with the byte
 * offset; CZ_UNSUPPORTED (sparse or quantised tensors, text-protocol opcodes, more than
 * PICKLE_NDIM_MAX dimensions), CZ_NOMEM. */
cz_status pickle_parse(const void *bytes, size_t nbytes, const char *label, struct pickle **out);
const struct pickle_node *pickle_root(const struct pickle *p);
void pickle_free(struct pickle *p); /* accepts NULL */

/* Value of a string key of a DICT (or of items set on an OBJECT); NULL when there is none or node
 * is NULL or of another kind. */
const struct pickle_node *pickle_get(const struct pickle_node *dict, const char *key);

/* The same of a whole number (1, 1.0 and True are one key). */
const struct pickle_node *pickle_get_int(const struct pickle_node *dict, int64_t key);

/* Attribute of an OBJECT: from its state (a DICT, or the first of a (dict, slots) pair). */
const struct pickle_node *pickle_attr(const struct pickle_node *object, const char *key);

/* The value if node (may be NULL) is of that kind. A number may be INT, BOOL, FLOAT, a 0-d enum
 * object such as ZeroStageEnum(2) (its first argument), or a numpy scalar, but not a tensor: that
 * is in a record. */
bool pickle_to_int(const struct pickle_node *node, int64_t *out); /* FLOAT: if integral */
bool pickle_to_double(const struct pickle_node *node, double *out);
bool pickle_to_bool(const struct pickle_node *node, bool *out);
const char *pickle_to_string(const struct pickle_node *node); /* NULL: no string, or it
                                                                       holds a NUL */
static inline bool pickle_is(const struct pickle_node *node, enum pickle_kind kind)
{
    return node && node->kind == kind;
}

/* STRING, BYTES, LONG: `text` is valid, of n bytes. */
static inline bool pickle_has_text(const struct pickle_node *node)
{
    return node->kind == PICKLE_STRING || node->kind == PICKLE_BYTES || node->kind == PICKLE_LONG;
}

const char *pickle_kind_name(enum pickle_kind kind);   /* "dict", "tensor", … */
const char *pickle_kind_phrase(enum pickle_kind kind); /* in a sentence: "a dict", "an int", … */

/* By torch's name ("bfloat16"), or from base's enum. NULL: unknown. */
const struct pickle_dtype *pickle_dtype_find(const char *torch_name);

/* "FloatStorage"; NULL: torch keeps it in untyped storages only, and it cannot be written. */
const char *pickle_storage_of_dtype(const struct pickle_dtype *dtype);

/* float8 has no place in base/dtype.h, but numbers: n elements of src widened to fp32, exactly, as
 * torch's .float() does. pickle_is_float8() says of which types. */
bool pickle_is_float8(const struct pickle_dtype *dtype);
void pickle_float8_widen(const struct pickle_dtype *dtype, const void *src, size_t n, float *dst);
const struct pickle_dtype *pickle_dtype_of(enum cz_dtype dtype);

/* ---- writing ---------------------------------------------------------------------------------
 * Protocol 2, as torch.save's. Calls append; the first failure (memory) is kept and returned by
 * pickle_writer_take(), so that calls need no checks. Between dict_begin and dict_end keys and
 * values alternate. */

struct pickle_writer;

struct pickle_writer *pickle_writer_create(void);    /* NULL: no memory */
void pickle_writer_destroy(struct pickle_writer *w); /* accepts NULL */

/* End the pickle; *bytes is the caller's to free(). CZ_NOMEM; CZ_INVALID (an unclosed container).
 */
cz_status pickle_writer_take(struct pickle_writer *w, unsigned char **bytes, size_t *nbytes);

void pickle_put_none(struct pickle_writer *w);
void pickle_put_bool(struct pickle_writer *w, bool value);
void pickle_put_int(struct pickle_writer *w, int64_t value);
void pickle_put_double(struct pickle_writer *w, double value);
void pickle_put_string(struct pickle_writer *w, const char *utf8); /* memoised */
void pickle_put_global(struct pickle_writer *w, const char *module, const char *name);
void pickle_put_size(struct pickle_writer *w, const int64_t *shape, int ndim);

void pickle_dict_begin(struct pickle_writer *w);
void pickle_ordered_dict_begin(struct pickle_writer *w);
void pickle_dict_end(struct pickle_writer *w); /* of both */
void pickle_list_begin(struct pickle_writer *w);
void pickle_list_end(struct pickle_writer *w);
void pickle_tuple_begin(struct pickle_writer *w);
void pickle_tuple_end(struct pickle_writer *w);

/* The object on top has attributes: state_begin, pairs as in a dict, state_end (BUILD). For an
 * ordered dict's _metadata, after its dict_end. */
void pickle_state_begin(struct pickle_writer *w);
void pickle_state_end(struct pickle_writer *w);

/* cls.__new__(cls), ready for a state. */
void pickle_put_new(struct pickle_writer *w, const char *module, const char *name);

/* cls(args…): call_begin, arguments, call_end. ZeroStageEnum(2), set([…]). */
void pickle_call_begin(struct pickle_writer *w, const char *module, const char *name);
void pickle_call_end(struct pickle_writer *w);

struct pickle_tensor_desc {
    enum cz_dtype dtype;
    const struct pickle_dtype
        *torch_dtype;       /* instead of dtype, where base/dtype.h does not know the
                               type; it must have a storage class. NULL: dtype's */
    size_t storage_idx;     /* its record is "data/<storage_idx>"; number them by first use */
    uint64_t storage_numel; /* of the whole storage */
    uint64_t off;
    int ndim;
    const int64_t *shape; /* row-major, dense */
    bool requires_grad;
    const char *ds_id; /* Python attribute of stage-3 flat groups; NULL: a plain tensor */
};
void pickle_put_tensor(struct pickle_writer *w, const struct pickle_tensor_desc *t);

/* A parsed value again, tensors excepted (CZ_INVALID at take). For state that is carried on. */
void pickle_put_node(struct pickle_writer *w, const struct pickle_node *node);

/* How the pairs of a parsed dict are written. An error of a callback is returned at take. What the
 * writer of a file cannot hold becomes the call czero.client_state.tensor(dtype, shape, elements in
 * row-major order), and back. Members may be NULL. */
#define PICKLE_TENSOR_MODULE "czero.client_state"
#define PICKLE_TENSOR_NAME   "tensor"
struct pickle_part {
    void *user;
    bool (*keeps)(const struct pickle_node *key); /* NULL: all */

    /* The elements of a tensor, which then becomes a call; elements beyond nbytes_max in all are
     * None. A storage becomes the class torch.UntypedStorage, and a class loses its attributes.
     * NULL: tensors are CZ_INVALID at take. */
    cz_status (*read)(void *user, const struct pickle_tensor *t, void *dst);
    uint64_t nbytes_max;

    /* The tensor that such a call becomes: a storage of the file. */
    cz_status (*place)(void *user, const void *elements, size_t nbytes, size_t *storage_idx);
};

/* The pairs of a parsed DICT, into the dict that is open. part NULL: as pickle_put_node(). */
void pickle_put_pairs(struct pickle_writer *w, const struct pickle_node *dict,
                      const struct pickle_part *part);

CZ_EXTERN_C_END
#endif
