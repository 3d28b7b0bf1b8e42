/* Inside the config: the tables of keys. Parsing, range errors, unknown-key errors, `config show`,
 * the typed view and docs/config.md all come from them. */
#ifndef CZ_ENGINE_CONFIG_CONFIG_KEYS_IMPL_H
#define CZ_ENGINE_CONFIG_CONFIG_KEYS_IMPL_H

#include "base/compiler.h"

enum key_type {
    KEY_BOOL = 0,
    KEY_INT,
    KEY_FLOAT,
    KEY_STRING,
    KEY_PATH,    /* a string, normalised as a file path */
    KEY_CHOICE,  /* one of `choices` */
    KEY_STAGE,   /* an integer 0…3 in any spelling that counts as one */
    KEY_STRINGS, /* a list of strings, or one string */
    KEY_CHOICES, /* a list of strings out of `choices` */
    KEY_LIST,
    KEY_DICT,
    KEY_INT_OR_AUTO, /* an integer, or the string "auto" */
    KEY_ANY,
    KEY_SECTION /* `section` */
};

/* What czero does with a key that DeepSpeed knows. */
enum key_effect {
    EFFECT_HONOURED = 0,
    EFFECT_NONE,        /* nothing to do here: said once when the key is given */
    EFFECT_UNSUPPORTED, /* refused by config_check() unless it has its default */
    EFFECT_OFF          /* as UNSUPPORTED, but the whole section matters only when its first key,
                           "enabled" or the like, is on */
};

/* Where the value lands in struct ds_config. */
enum key_field {
    FIELD_NONE = 0,
    FIELD_BOOL,
    FIELD_INT64,
    FIELD_DOUBLE,
    FIELD_STRING, /* const char *, NULL for null */
    FIELD_ENUM    /* int-sized: index into `choices`, or the number itself */
};

enum key_flag {
    KEY_NULLABLE = 1 << 0,
    KEY_ABSENT = 1 << 1,      /* has no default: shown only when given */
    KEY_HIDDEN = 1 << 2,      /* an old name: read, never shown */
    KEY_NO_BOOL = 1 << 3,     /* true and false do not count as 1 and 0 here */
    KEY_ANY_CASE = 1 << 4,    /* KEY_CHOICE: compared without case, shown as in `choices` */
    KEY_NOT_EMPTY = 1 << 5,   /* the parser refuses "", null, 0 and false */
    KEY_PLAIN_INT = 1 << 6,   /* "2.0" in quotes does not count as an integer */
    KEY_PYTHON_FLOAT = 1 << 7 /* read by Python's float(): finite only */
};

struct config_section;

struct config_key {
    const char *name;
    enum key_type type;
    const char *fallback; /* the default as JSON; NULL with KEY_ABSENT and KEY_SECTION */
    const char *help;     /* NULL: `list` writes it */
    const char *(*list)(char *buf, size_t nbytes); /* of another table: the names it takes */
    unsigned flags;
    const char *short_name;    /* the other accepted spelling, or NULL */
    const char *fallback_0_16; /* the default under compat 0.16, or NULL: the same */
    bool has_low, has_high;    /* bounds, inclusive unless `low_open` / `high_open` */
    bool low_open, high_open;
    double low, high;
    const char *const *choices; /* ends with NULL */
    const struct config_section *section;
    enum key_field field;
    size_t offset;
    enum key_effect effect;
    const char *why; /* of the effect: completes "has no effect here: …" / "not supported: …" */
};

enum section_kind {
    SECTION_RAW = 0, /* DeepSpeed reads the keys it knows and takes any value */
    SECTION_MODEL    /* typed: unknown keys are errors, values are coerced, "auto" is dropped */
};

struct config_section {
    const char *name; /* dotted path; "" is the top level */
    enum section_kind kind;
    const char *help;
    const char *(*list)(char *buf, size_t nbytes); /* instead: names of another table */
    const struct config_key *keys;
    size_t n_keys;
    bool nullable;          /* null instead of an object means absent */
    bool optional;          /* null, or nothing, when absent: no defaults are shown */
    bool keep_rest;         /* raw: unknown keys are carried along as DeepSpeed does */
    bool drop_auto;         /* "auto" instead of an object means absent */
    enum key_effect effect; /* EFFECT_OFF: see there; EFFECT_NONE: said once for the section */
    const char *why;
};

/* Words of the tables. */
#define KEY_LIST_NBYTES 512

#define KEY(key_name, key_type, default_json, text, ...)                                           \
    {                                                                                              \
        .name = (key_name), .type = (key_type), .fallback = (default_json), .help = (text),        \
        __VA_ARGS__                                                                                \
    }
#define TO_BOOL(member)   .field = FIELD_BOOL, .offset = offsetof(struct ds_config, member)
#define TO_INT64(member)  .field = FIELD_INT64, .offset = offsetof(struct ds_config, member)
#define TO_DOUBLE(member) .field = FIELD_DOUBLE, .offset = offsetof(struct ds_config, member)
#define TO_STRING(member) .field = FIELD_STRING, .offset = offsetof(struct ds_config, member)
#define TO_ENUM(member)   .field = FIELD_ENUM, .offset = offsetof(struct ds_config, member)
#define AT_LEAST(x)       .has_low = true, .low = (x)
#define ABOVE(x)          .has_low = true, .low_open = true, .low = (x)
#define WITHIN(a, b)      .has_low = true, .low = (a), .has_high = true, .high = (b)
#define BETWEEN(a, b)     WITHIN(a, b), .low_open = true, .high_open = true
#define NO_EFFECT(reason) .effect = EFFECT_NONE, .why = (reason)
#define REFUSED(reason)   .effect = EFFECT_UNSUPPORTED, .why = (reason)

/* The top level and, through its keys, everything else. */
extern const struct config_section config_top;

/* Keys that DeepSpeed 0.19 removed: their presence is an error (0.16: only when they are on). */
struct config_removed {
    const char *path;
    const char *what;    /* "elastic training" */
    const char *instead; /* what would work */
};
extern const struct config_removed config_removed_keys[];
extern const size_t config_n_removed_keys;

/* Defined apart from the others. */
extern const struct config_section config_zero_section;
extern const struct config_section config_elastic_section; /* compat 0.16 only */

const struct config_key *config_find_key(const struct config_section *section, const char *name,
                                         bool *by_short_name);

/* The key of `section` whose name looks most like `name`, or NULL when none comes close. */
const char *config_nearest_key(const struct config_section *section, const char *name);

/* The only dotted path of the tables that ends in exactly `name`, or NULL when there is none, or
 * more than one below the top level. Written to buf. */
const char *config_same_key_elsewhere(const char *name, char *buf, size_t buf_nbytes);

#endif
