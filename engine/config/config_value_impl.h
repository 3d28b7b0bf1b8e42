/* Inside the config: values as Python's parser would hold them, and the pool they live in.
 *
 * DeepSpeed's parser is Python code over dicts; what it accepts depends on Python's rules (True is
 * 1, 5e8 read by Hjson is an int, "x" * 2 is a string). A cv is such a value, and remembers where
 * it came from. */
#ifndef CZ_ENGINE_CONFIG_CONFIG_VALUE_IMPL_H
#define CZ_ENGINE_CONFIG_CONFIG_VALUE_IMPL_H

#include "base/hash.h"
#include "base/status.h"
#include "formats/json/json.h"
#include "formats/json/json_write.h"

/* Everything a config needs, in one block sized from its input and never outgrown. */
struct cv_pool {
    char *base;
    size_t used, nbytes;
    bool no_memory; /* a value could not be read; see cv_parse() */
};

cz_status cv_pool_init(struct cv_pool *pool, size_t input_nbytes);
void cv_pool_free(struct cv_pool *pool);
void *cv_alloc(struct cv_pool *pool, size_t nbytes); /* zeroed, aligned, never NULL */
const char *cv_text(struct cv_pool *pool, const char *fmt, ...) CZ_PRINTF(2, 3);

enum cv_kind { CV_NULL = 0, CV_BOOL, CV_INT, CV_FLOAT, CV_STRING, CV_LIST, CV_DICT };

/* Where a value comes from: options of the command, --set, --auto, or what a trainer would say. */
enum cv_origin { CV_DEFAULT = 0, CV_FILE, CV_OPTION, CV_SET, CV_AUTO, CV_TRAINER, CV_DERIVED };

struct cv {
    enum cv_kind kind;
    enum cv_origin origin;
    bool boolean;
    bool as_float;      /* an int written as a float: Hjson reads 5e8 and 1.0 as ints */
    int64_t integer;    /* clamped when `digits` is set */
    const char *digits; /* an int beyond int64, in decimal; else NULL */
    double real;        /* also set for ints */
    const char *string;
    struct cv **items; /* of a list or a dict */
    const char **keys; /* of a dict, in the order given */
    size_t n, capacity;
    const struct json_node *node; /* CV_FILE: the value's place */
};

struct cv *cv_new(struct cv_pool *pool, enum cv_kind kind, enum cv_origin origin);
struct cv *cv_bool(struct cv_pool *pool, bool value, enum cv_origin origin);
struct cv *cv_int(struct cv_pool *pool, int64_t value, enum cv_origin origin);
struct cv *cv_float(struct cv_pool *pool, double value, enum cv_origin origin);
struct cv *cv_string(struct cv_pool *pool, const char *value, enum cv_origin origin);

/* A shallow copy whose place and origin stay. */
struct cv *cv_copy(struct cv_pool *pool, const struct cv *value);

/* The same tree as the JSON node. Errors: numbers too large for a double. */
cz_status cv_import(struct cv_pool *pool, const struct json_node *node, enum cv_origin origin,
                    struct cv **out);

/* VALUE of --set and --auto, and defaults of the tables: JSON, or else the text as a string. */
struct cv *cv_parse(struct cv_pool *pool, const char *text, enum cv_origin origin);

void cv_append(struct cv_pool *pool, struct cv *list, struct cv *item);
void cv_put(struct cv_pool *pool, struct cv *dict, const char *key, struct cv *value);
void cv_push(struct cv_pool *pool, struct cv *dict, const char *key, struct cv *value); /* is new */
void cv_remove(struct cv *dict, const char *key);
struct cv *cv_get(const struct cv *dict, const char *key); /* NULL: no dict, or no such key */

/* cv_get() of many keys in constant time each. Without memory for the table it is cv_get(). The
 * dict must not change in between. */
struct cv_index {
    const struct cv *dict;
    struct hash_index keys; /* empty: search the dict */
};
struct cv_index cv_index_open(const struct cv *dict);
struct cv *cv_index_get(const struct cv_index *x, const char *key);
void cv_index_close(struct cv_index *x);
bool cv_is_given(const struct cv *value);                  /* not NULL, and no default */

bool cv_is_string(const struct cv *value, const char *text);
bool cv_is_number(const struct cv *value); /* int, float or bool, as Python counts them */
bool cv_is_true(const struct cv *value);   /* Python's truth */
bool cv_equal(const struct cv *a, const struct cv *b);

/* At most `limit` bytes of the value as one-line JSON, for sentences. */
const char *cv_show(struct cv_pool *pool, const struct cv *value);

void cv_write(struct json_writer *w, const struct cv *value);

#endif
