/* Settings: parameters of an optimizer or schedule as a table (name, type, default, place).
 *
 * A table describes fields of one struct. The owner of a parsed config walks the table, or sets
 * values by name; this module does not know JSON. Values that were not set take their defaults when
 * the owner of the struct finishes it (optim_hyper_finish, schedule_params_finish). */
#ifndef CZ_OPTIM_SETTINGS_H
#define CZ_OPTIM_SETTINGS_H

#include "base/status.h"

CZ_EXTERN_C_BEGIN

#define OPTIM_GROUPS_MAX 64 /* parameter groups of one engine */

enum setting_type {
    SETTING_NUMBER = 0, /* double; an integer is welcome */
    SETTING_INT,        /* int64_t; 1e3 is not an integer (DeepSpeed 0.19) */
    SETTING_BOOL,       /* bool */
    SETTING_PAIR,       /* double[2]: betas */
    SETTING_LIST,       /* struct setting_list: one number for all groups, or one per group */
    SETTING_NAME,       /* int: index into `names` */
    SETTING_STEPS,      /* struct setting_list: any numbers; null is none */
    SETTING_NULL        /* of a value: null; of a parameter: null is all that it takes */
};

struct setting_list {
    double v[OPTIM_GROUPS_MAX];
    size_t n; /* 0: not given; 1: for every group; else one per group (STEPS: as many as given) */
};

struct setting {
    const char *name;
    enum setting_type type;
    size_t offset;      /* of the field in the owner's struct */
    double defaults[2]; /* [0] alone but for pairs; bools 0 or 1 */
    bool is_count;      /* SETTING_NUMBER: a whole number from 1 on, or an error with `help` */
    bool required;      /* no default: finishing without it is an error */
    const char *const *names; /* SETTING_NAME: NULL-terminated choices; another string is warned of
                                 and taken as the default, as in DeepSpeed */
    bool names_only;          /* another string is an error */
    bool takes_null;   /* DeepSpeed's default is None, so null may be given: an empty list, NAN,
                          0, the first name */
    unsigned dialects; /* where it exists: bits 1 << dialect of the owner; 0: everywhere */
    const char *help;
};

/* A table over one struct; bit i of a `given` mask stands for settings[i]. */
struct setting_table {
    const struct setting *settings;
    size_t n; /* ≤ 64 */
};

/* One value as a config gives it. An integer literal is SETTING_INT, with `number` equal to it. */
struct setting_value {
    enum setting_type type;
    double number; /* NUMBER, INT, BOOL (0 or 1) */
    int64_t integer;
    const double *list; /* PAIR and LIST: n numbers */
    size_t n;
    const char *name; /* NAME: any string */
};

/* Index of `name` in the table, or -1. */
int settings_find(const struct setting_table *table, const char *name);

/* The table's name nearest to a misspelt one; NULL when none is near. */
const char *settings_nearest(const struct setting_table *table, const char *name);

/* Put a value into the field of settings[idx] of `owner`. `lenient_int`: SETTING_INT takes a float
 * without fraction (DeepSpeed 0.16). CZ_INVALID with "NAME: …" when the type does not fit. */
cz_status settings_put(const struct setting *setting, void *owner,
                       const struct setting_value *value, bool lenient_int);

/* Find `name`, put the value and set its bit in *given. `owner_name` stands in sentences ("AdamW").
 * CZ_INVALID: unknown (with the nearest name), or a type that does not fit. */
cz_status settings_set(const struct setting_table *table, const char *owner_name, void *owner,
                       uint64_t *given, const char *name, const struct setting_value *value,
                       bool lenient_int);

/* Defaults for all fields outside `given`. CZ_INVALID when a required one is not given, or one is
 * given that does not exist in `dialect`. A default of NAN leaves a list empty. */
cz_status settings_fill(const struct setting_table *table, const char *owner_name, void *owner,
                        uint64_t given, unsigned dialect);

CZ_EXTERN_C_END
#endif
