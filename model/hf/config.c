/* Reading config.json of Hugging Face models. Every key that changes what a model computes is
 * either honoured or refused with its place in the file: a key that is silently ignored would give
 * a model that looks right and is not. */
#include "model/hf/config_impl.h"

#include <stdio.h>
#include <string.h>

/* The message begins with file, line and key. */
cz_status config_refuse(const struct json_node *node, cz_status status, const char *why)
{
    char where[512];
    return err_set(status, 0, "%s: %s", json_where(node, where, sizeof where), why);
}

/* The member of an integer key, under either of its names; NULL when neither is given. */
const struct json_node *config_either(const struct json_node *config, const char *key,
                                      const char *other)
{
    const struct json_node *node = json_get(config, key);
    if (!node && other) node = json_get(config, other);
    return node && json_type(node) != JSON_NULL ? node : NULL;
}

/* An integer in 1 … max. */
cz_status config_size(const struct json_node *config, const char *key, const char *other,
                      int64_t fallback, int64_t max, int64_t *out)
{
    const struct json_node *node = config_either(config, key, other);
    *out = fallback;
    if (!node) return CZ_OK;
    TRY(json_as_int(node, out));
    if (*out >= 1 && *out <= max) return CZ_OK;
    char why[96];
    snprintf(why, sizeof why, "%lld is outside 1…%lld", (long long)*out, (long long)max);
    return config_refuse(node, CZ_INVALID, why);
}

/* A number in [min, max). */
cz_status config_number(const struct json_node *config, const char *key, double fallback,
                        double min, double max, double *out)
{
    TRY(json_opt_double(config, key, fallback, out));
    if (*out >= min && *out < max) return CZ_OK;
    char why[96];
    snprintf(why, sizeof why, "%g is outside [%g, %g)", *out, min, max);
    return config_refuse(json_get(config, key), CZ_INVALID, why);
}

/* transformers' names; several of them mean the same function. */
cz_status config_activation(const struct json_node *config, const char *key, const char *fallback,
                            enum activation *out)
{
    static const struct {
        const char *name;
        enum activation act;
    } known[] = {
        {"gelu_new", ACT_GELU_TANH},
        {"gelu_pytorch_tanh", ACT_GELU_TANH},
        {"gelu_fast", ACT_GELU_TANH},
        {"gelu_python_tanh", ACT_GELU_TANH},
        {"gelu_accurate", ACT_GELU_TANH},
        {"gelu", ACT_GELU_ERF},
        {"gelu_python", ACT_GELU_ERF},
        {"relu", ACT_RELU},
        {"silu", ACT_SILU},
        {"swish", ACT_SILU},
        {"tanh", ACT_TANH},
        {"quick_gelu", ACT_QUICK_GELU},
        {"sigmoid", ACT_SIGMOID},
        {"mish", ACT_MISH},
        {"relu2", ACT_RELU2},
    };
    const char *name = NULL;
    TRY(json_opt_string(config, key, fallback, &name));
    for (size_t i = 0; i < CZ_ARRAY_LEN(known); i++)
        if (strcmp(known[i].name, name) == 0) {
            *out = known[i].act;
            return CZ_OK;
        }
    char why[320];
    int n = snprintf(why, sizeof why, "\"%.64s\" is not supported; supported:", name);
    for (size_t i = 0; i < CZ_ARRAY_LEN(known); i++)
        n += snprintf(why + n, sizeof why - (size_t)n, "%s %s", i > 0 ? "," : "", known[i].name);
    return config_refuse(json_get(config, key), CZ_UNSUPPORTED, why);
}

/* For switches whose effect is not implemented. */
cz_status config_refuse_true(const struct json_node *config, const char *key)
{
    bool on = false;
    TRY(json_opt_bool(config, key, false, &on));
    return on ? config_refuse(json_get(config, key), CZ_UNSUPPORTED, "true is not supported")
              : CZ_OK;
}

/* By the name of the method, as far as the file has one. */
static cz_status refuse_quantized(const struct json_node *config)
{
    /* of transformers, of compressed-tensors before, of MLX */
    static const char *const keys[] = {"quantization_config", "compression_config", "quantization"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(keys); i++) {
        const struct json_node *node = config_either(config, keys[i], NULL);
        const struct json_node *method = node ? json_get(node, "quant_method") : NULL;
        const char *name = "";
        char why[200];
        if (!node) continue;
        if (method && json_type(method) == JSON_STRING) TRY(json_as_string(method, &name));
        snprintf(why, sizeof why,
                 "quantized weights%s%.40s%s are not supported: save the model unquantized "
                 "(dequantize() of transformers)",
                 *name ? " (" : "", name, *name ? ")" : "");
        return config_refuse(node, CZ_UNSUPPORTED, why);
    }
    return CZ_OK;
}

/* Variants that any family may ask for. */
cz_status config_refuse_variants(const struct json_node *config)
{
    TRY(config_refuse_true(config, "add_cross_attention"));
    TRY(config_refuse_true(config, "is_encoder_decoder"));
    const struct json_node *pruned = json_get(config, "pruned_heads");
    if (pruned && json_count(pruned) > 0)
        return config_refuse(pruned, CZ_UNSUPPORTED, "pruned heads are not supported");
    return refuse_quantized(config);
}

/* A remainder would silently cut the last head. */
cz_status config_check_heads(const struct json_node *config, const char *key, const char *other,
                             int64_t n_heads, int64_t width)
{
    if (width % n_heads == 0) return CZ_OK;
    char why[96];
    snprintf(why, sizeof why, "%lld heads do not divide a width of %lld", (long long)n_heads,
             (long long)width);
    const struct json_node *node = config_either(config, key, other);
    return config_refuse(node ? node : config, CZ_INVALID, why);
}
