/* Typed settings by table: from a row come parsing, range and type errors, defaults and the nearest
 * name for a typo. Optimizers and schedules declare rows; nothing else in the engine knows their
 * names. */
#include "optim/settings.h"

#include "base/log.h"
#include "base/text/nearest.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

int settings_find(const struct setting_table *table, const char *name)
{
    for (size_t i = 0; i < table->n; i++)
        if (strcmp(table->settings[i].name, name) == 0) return (int)i;
    return -1;
}

const char *settings_nearest(const struct setting_table *table, const char *name)
{
    struct nearest search = nearest_begin(name);
    for (size_t i = 0; i < table->n; i++) nearest_consider(&search, table->settings[i].name);
    return search.best;
}

static bool is_number(const struct setting_value *value)
{
    return value->type == SETTING_NUMBER || value->type == SETTING_INT;
}

/* Beyond 2^53 doubles are not counted in ones. */
static bool is_count(double v)
{
    return v >= 1 && v <= 0x1p53 && v == floor(v);
}

/* Checked before it is stored: a refused value leaves the default. */
static cz_status put_number(const struct setting *s, double *field,
                            const struct setting_value *value)
{
    if (!is_number(value)) return err_set(CZ_INVALID, 0, "%s: a number is needed", s->name);
    if (!isfinite(value->number))
        return err_set(CZ_INVALID, 0, "%s: %g is not a finite number", s->name, value->number);
    if (s->is_count && !is_count(value->number))
        return err_set(CZ_INVALID, 0, "%s: %.15g must be a whole number from 1 on (%s)", s->name,
                       value->number, s->help);
    *field = value->number;
    return CZ_OK;
}

/* lenient: 0.16 took 100.0 for 100. */
static cz_status put_int(const struct setting *s, int64_t *field, const struct setting_value *value,
                         bool lenient)
{
    if (value->type == SETTING_INT) {
        *field = value->integer;
        return CZ_OK;
    }
    bool integral = value->type == SETTING_NUMBER && value->number == floor(value->number) &&
                    fabs(value->number) < 0x1p62;
    if (!lenient || !integral) {
        if (value->type == SETTING_NUMBER)
            return err_set(CZ_INVALID, 0,
                           "%s: must be an integer, got %g; write it without point or exponent",
                           s->name, value->number);
        return err_set(CZ_INVALID, 0, "%s: must be an integer", s->name);
    }
    *field = (int64_t)value->number;
    return CZ_OK;
}

/* JSON has no NaN, but Python's dialect of it has. */
static cz_status check_finite(const struct setting *s, const double *v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(v[i]))
            return err_set(CZ_INVALID, 0, "%s: %g is not a finite number", s->name, v[i]);
    return CZ_OK;
}

/* One number stands for all groups. */
static cz_status put_list(const struct setting *s, struct setting_list *field,
                          const struct setting_value *value)
{
    if (is_number(value)) {
        TRY(put_number(s, &field->v[0], value));
        field->n = 1;
        return CZ_OK;
    }
    if (value->type != SETTING_PAIR && value->type != SETTING_LIST)
        return err_set(CZ_INVALID, 0, "%s: a number, or a list with one per parameter group",
                       s->name);
    if (value->n < 1 || value->n > OPTIM_GROUPS_MAX)
        return err_set(CZ_INVALID, 0, "%s: a list of 1 to %d numbers is needed, got %zu", s->name,
                       OPTIM_GROUPS_MAX, value->n);
    TRY(check_finite(s, value->list, value->n));
    memcpy(field->v, value->list, value->n * sizeof *value->list);
    field->n = value->n;
    return CZ_OK;
}

/* An unknown name is an error, or a warning where DeepSpeed continues with its default. */
static cz_status put_name(const struct setting *s, int *field, const struct setting_value *value)
{
    if (value->type != SETTING_NAME)
        return err_set(CZ_INVALID, 0, "%s: a string is needed, such as \"%s\"", s->name,
                       s->names[0]);
    *field = (int)s->defaults[0];
    for (int i = 0; s->names[i]; i++) {
        if (strcmp(s->names[i], value->name) != 0) continue;
        *field = i;
        return CZ_OK;
    }
    /* The choices are listed. */
    if (s->names_only) {
        char list[256];
        size_t at = 0;
        for (int i = 0; s->names[i] && at < sizeof list; i++)
            at += (size_t)snprintf(list + at, sizeof list - at, "%s\"%s\"", i > 0 ? ", " : "",
                                   s->names[i]);
        return err_set(CZ_INVALID, 0, "%s: \"%s\" is not known; choose from %s", s->name,
                       value->name, list);
    }
    LOGV(LOG_WARN, SUB_CONFIG, "%s: \"%s\" is not known, \"%s\" is used", s->name, value->name,
         s->names[*field]);
    return CZ_OK;
}

/* Not one per group: counts of updates, for example. */
static cz_status put_steps(const struct setting *s, struct setting_list *field,
                           const struct setting_value *value)
{
    if (value->type != SETTING_PAIR && value->type != SETTING_LIST)
        return err_set(CZ_INVALID, 0, "%s: a list of numbers is needed", s->name);
    if (value->n > OPTIM_GROUPS_MAX)
        return err_set(CZ_INVALID, 0, "%s: %zu numbers; at most %d are possible", s->name, value->n,
                       OPTIM_GROUPS_MAX);
    TRY(check_finite(s, value->list, value->n));
    memcpy(field->v, value->list, value->n * sizeof *value->list);
    field->n = value->n;
    return CZ_OK;
}

/* What the owner takes for "not given". */
static cz_status put_null(const struct setting *s, void *field)
{
    if (!s->takes_null) return err_set(CZ_INVALID, 0, "%s: null is no value for it", s->name);
    switch (s->type) {
    case SETTING_NUMBER: *(double *)field = NAN; break;
    case SETTING_INT: *(int64_t *)field = 0; break;
    case SETTING_LIST:
    case SETTING_STEPS: ((struct setting_list *)field)->n = 0; break;
    default: *(int *)field = (int)s->defaults[0]; break; /* SETTING_NAME */
    }
    return CZ_OK;
}

/* A setting's type decides which values it takes; no conversion happens twice. */
cz_status settings_put(const struct setting *setting, void *owner,
                       const struct setting_value *value, bool lenient_int)
{
    void *field = (char *)owner + setting->offset;
    if (value->type == SETTING_NULL) return put_null(setting, field);
    switch (setting->type) {
    case SETTING_NUMBER: return put_number(setting, field, value);
    case SETTING_INT: return put_int(setting, field, value, lenient_int);
    case SETTING_BOOL:
        if (value->type != SETTING_BOOL)
            return err_set(CZ_INVALID, 0, "%s: true or false is needed", setting->name);
        *(bool *)field = value->number != 0;
        return CZ_OK;
    case SETTING_PAIR: /* A wrong length is reported before the values are looked at. */
        if (value->type != SETTING_PAIR && value->type != SETTING_LIST)
            return err_set(CZ_INVALID, 0, "%s: a list of two numbers is needed", setting->name);
        if (value->n != 2)
            return err_set(CZ_INVALID, 0, "%s: two numbers are needed, got %zu", setting->name,
                           value->n);
        TRY(check_finite(setting, value->list, 2));
        memcpy(field, value->list, 2 * sizeof(double));
        return CZ_OK;
    case SETTING_LIST: return put_list(setting, field, value);
    case SETTING_NAME: return put_name(setting, field, value);
    case SETTING_STEPS: return put_steps(setting, field, value);
    case SETTING_NULL: break;
    }
    return err_set(CZ_INVALID, 0, "%s: %s, which a config cannot hold: only null is possible",
                   setting->name, setting->help);
}

/* `given` remembers which rows the user set: some defaults depend on it. */
cz_status settings_set(const struct setting_table *table, const char *owner_name, void *owner,
                       uint64_t *given, const char *name, const struct setting_value *value,
                       bool lenient_int)
{
    int idx = settings_find(table, name);
    if (idx < 0) {
        const char *nearest = settings_nearest(table, name);
        if (nearest)
            return err_set(CZ_INVALID, 0, "%s: %s has no such parameter; did you mean \"%s\"?",
                           name, owner_name, nearest);
        return err_set(CZ_INVALID, 0, "%s: %s has no such parameter", name, owner_name);
    }
    TRY(settings_put(&table->settings[idx], owner, value, lenient_int));
    *given |= UINT64_C(1) << idx;
    return CZ_OK;
}

/* A row of another dialect (offload, fused, torch) must not be given here. */
cz_status settings_fill(const struct setting_table *table, const char *owner_name, void *owner,
                        uint64_t given, unsigned dialect)
{
    for (size_t i = 0; i < table->n; i++) {
        const struct setting *s = &table->settings[i];
        bool exists = s->dialects == 0 || (s->dialects >> dialect & 1u);
        if (given >> i & 1u) {
            if (!exists)
                return err_set(CZ_INVALID, 0, "%s: %s has no such parameter here", s->name,
                               owner_name);
            continue;
        }
        if (!exists) continue;
        if (s->required)
            return err_set(CZ_INVALID, 0, "%s: %s needs this parameter", s->name, owner_name);
        /* Defaults are stored by type. */
        void *field = (char *)owner + s->offset;
        struct setting_list *list = field;
        switch (s->type) {
        case SETTING_NUMBER: *(double *)field = s->defaults[0]; break;
        case SETTING_INT:
            *(int64_t *)field = isnan(s->defaults[0]) ? 0 : (int64_t)s->defaults[0];
            break;
        case SETTING_BOOL: *(bool *)field = s->defaults[0] != 0; break;
        case SETTING_PAIR: memcpy(field, s->defaults, sizeof s->defaults); break;
        case SETTING_LIST:
        case SETTING_STEPS:
            list->n = isnan(s->defaults[0]) ? 0u : 1u;
            list->v[0] = s->defaults[0];
            break;
        case SETTING_NAME: *(int *)field = (int)s->defaults[0]; break;
        case SETTING_NULL: break;
        }
    }
    return CZ_OK;
}
