/* From options of a command to what the engine's config is asked for. */
#include "tools/czero/config_args.h"

#include "base/text/nearest.h"
#include "formats/json/json_write.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct config_args config_args_none(void)
{
    return (struct config_args){.warmup_steps = -1,
                                .lr = NAN,
                                .weight_decay = NAN,
                                .eps = NAN,
                                .max_grad_norm = NAN,
                                .warmup_ratio = NAN};
}

static cz_status add(struct config_wanted *w, const char *fmt, ...) CZ_PRINTF(2, 3);

static cz_status add(struct config_wanted *w, const char *fmt, ...)
{
    char *text = w->texts[w->n];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(text, sizeof w->texts[0], fmt, args);
    va_end(args);
    if (n < 0 || (size_t)n >= sizeof w->texts[0])
        return err_set(CZ_INVALID, 0, "%.40s…: the value is too long", text);
    w->items[w->n++] = text;
    return CZ_OK;
}

static cz_status add_number(struct config_wanted *w, const char *path, double value)
{
    return isnan(value) ? CZ_OK : add(w, "%s=%.17g", path, value);
}

static cz_status add_int(struct config_wanted *w, const char *path, int64_t value, int64_t min)
{
    return value < min ? CZ_OK : add(w, "%s=%lld", path, (long long)value);
}

static cz_status add_text(struct config_wanted *w, const char *path, const char *value)
{
    return value ? add(w, "%s=%s", path, value) : CZ_OK;
}

/* So that "3" is a text, too. */
static cz_status add_quoted(struct config_wanted *w, const char *path, const char *value)
{
    struct json_writer quoted;
    char *text;
    json_writer_init(&quoted, 0);
    json_write_string(&quoted, value);
    TRY(json_writer_take(&quoted, &text, NULL));
    cz_status st = add(w, "%s=%s", path, text);
    free(text);
    return st;
}

/* ---- --lora ---------------------------------------------------------------------------------- */

static cz_status add_lora_key(struct config_wanted *w, const char *key, const char *value)
{
    static const struct {
        const char *key, *peft;
        bool is_text;
    } keys[] = {{"rank", "r", false},
                {"alpha", "lora_alpha", false},
                {"dropout", "lora_dropout", false},
                {"targets", "target_modules", true},
                {"layers", "layers_to_transform", true},
                {"rslora", "use_rslora", false},
                {"dora", "use_dora", false},
                {"modules_to_save", NULL, true}};
    struct nearest search = nearest_begin(key);
    for (size_t i = 0; i < CZ_ARRAY_LEN(keys); i++) {
        nearest_consider(&search, keys[i].key);
        if (strcmp(keys[i].key, key) != 0 && (!keys[i].peft || strcmp(keys[i].peft, key) != 0))
            continue;
        if (!keys[i].is_text) return add(w, "czero.lora.%s=%s", keys[i].key, value);
        char path[64];
        snprintf(path, sizeof path, "czero.lora.%s", keys[i].key);
        return add_quoted(w, path, value);
    }
    return err_set(CZ_INVALID, 0, "--lora: \"%s\" is not a key; %s%s", key,
                   search.best ? "did you mean "
                               : "there are rank, alpha, targets, layers, "
                                 "dropout, rslora, dora, modules_to_save",
                   search.best ? search.best : "");
}

/* "rank=16,targets=q_proj,v_proj,dropout=0.05": a part without = belongs to the value before it.
 */
static cz_status add_lora(struct config_wanted *w, const char *lora)
{
    char text[CONFIG_WANTED_NBYTES], *key = NULL, *value = NULL, *rest = text;
    if (!lora) return CZ_OK;
    if (*lora == '\0') return add(w, "czero.lora={}");
    if (strlen(lora) >= sizeof text)
        return err_set(CZ_INVALID, 0,
                       "--lora %.40s…: is too long; the config's czero.lora has no "
                       "limit",
                       lora);
    strcpy(text, lora);
    while (rest) {
        char *part = rest, *comma = strchr(rest, ',');
        char *equals = strchr(part, '=');
        const bool is_key = equals && (!comma || equals < comma);
        if (!key && !is_key)
            return err_set(CZ_INVALID, 0, "--lora %s: KEY=VALUE is needed, such as rank=16", lora);
        if (is_key) {
            if (key) {
                part[-1] = '\0'; /* the comma behind the value before */
                TRY(add_lora_key(w, key, value));
            }
            *equals = '\0';
            key = part;
            value = equals + 1;
        }
        rest = comma ? comma + 1 : NULL;
    }
    return add_lora_key(w, key, value);
}

/* ---- all of them ----------------------------------------------------------------------------- */

cz_status config_args_wanted(const struct config_args *a, struct config_wanted *w)
{
    memset(w, 0, sizeof *w);
    if (a->warmup_steps >= 0 && !isnan(a->warmup_ratio))
        return err_set(CZ_INVALID, 0,
                       "--warmup-steps and --warmup-ratio exclude each other: give one");
    TRY(add_int(w, "train_micro_batch_size_per_gpu", a->micro_batch, 1));
    TRY(add_int(w, "gradient_accumulation_steps", a->accumulation, 1));
    TRY(add_number(w, "gradient_clipping", a->max_grad_norm));
    TRY(add_text(w, "optimizer.type", a->optimizer));
    TRY(add_number(w, "optimizer.params.lr", a->lr));
    TRY(add_number(w, "optimizer.params.weight_decay", a->weight_decay));
    TRY(add_text(w, "optimizer.params.betas", a->betas));
    TRY(add_number(w, "optimizer.params.eps", a->eps));
    TRY(add_text(w, "scheduler.type", a->scheduler));
    TRY(add_int(w, "scheduler.params.warmup_num_steps", a->warmup_steps, 0));
    TRY(add_number(w, "warmup_ratio", a->warmup_ratio));
    TRY(add_lora(w, a->lora));
    if (a->profile) TRY(add_quoted(w, "czero.machine_profile", a->profile));
    if (!a->precision) return CZ_OK;
    TRY(add(w, "fp16.enabled=%s", strcmp(a->precision, "fp16") == 0 ? "true" : "false"));
    return add(w, "bf16.enabled=%s", strcmp(a->precision, "bf16") == 0 ? "true" : "false");
}

struct config_options config_args_options(const struct config_args *a,
                                          const struct config_wanted *wanted)
{
    struct config_options o = config_options_default();
    o.autos = a->autos.items;
    o.n_autos = a->autos.n;
    o.strict_autos = true;
    o.wanted = wanted->items;
    o.n_wanted = wanted->n;
    o.sets = a->sets.items;
    o.n_sets = a->sets.n;
    o.strict = a->strict;
    o.trainer = true;
    if (a->compat)
        o.compat = strcmp(a->compat, "0.16") == 0 ? CONFIG_COMPAT_0_16 : CONFIG_COMPAT_0_19;
    return o;
}

/* By way of a config, which knows the keys and their bounds. */
cz_status config_args_lora(const char *text, struct ds_config **config,
                           const struct config_lora **out)
{
    struct config_args args = config_args_none();
    struct config_wanted wanted;
    args.lora = text;
    args.micro_batch = 1;
    TRY(config_args_wanted(&args, &wanted));
    const struct config_options options = config_args_options(&args, &wanted);
    TRY(config_load_text("{}", 2, "--lora", &options, config));
    *out = &(*config)->czero.lora;
    return CZ_OK;
}
