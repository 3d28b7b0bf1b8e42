/* Rotary frequencies: config.json → radians per position, for the kinds that transformers knows.
 *
 * Everything after the logarithms of yarn is rounded to fp32 step by step as PyTorch rounds it
 * there: an angle is position·frequency, so a frequency that is off by one unit shows at large
 * positions. D is the head width, half = D/2, f[i] = 1/theta^(2i/D).
 *
 *   default       f
 *   linear        f/factor
 *   dynamic       f of a larger theta beyond max_position_embeddings ("NTK-aware", by length)
 *   llama3        f for short waves, f/factor for long ones, blended in between
 *   yarn          blended between f and f/factor by dimension; Peng et al., arXiv 2309.00071
 *   longrope      f/short_factor, beyond the original length f/long_factor; arXiv 2402.13753
 *   proportional  f/factor for the first of them, 0 (no rotation) for the rest */
#include "model/decoder/decoder_impl.h"
#include "model/hf/config_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* What every kind is given. */
struct rope_source {
    const struct json_node *config, *params; /* params: NULL when the config has none */
    int64_t D, max_positions;                /* D: what is rotated of a head */
    double theta;
    const struct rope_defaults *defaults;
};

/* null counts as absent, as in transformers. */
static const struct json_node *param(const struct rope_source *s, const char *key)
{
    return s->params ? config_either(s->params, key, NULL) : NULL;
}

/* Positive, in fp32 too. */
static bool is_positive(double x)
{
    return (float)x > 0 && isfinite((float)x);
}

/* A positive number that may be absent. */
static cz_status number(const struct rope_source *s, const char *key, double fallback, double *out)
{
    *out = fallback;
    const struct json_node *node = param(s, key);
    if (!node) return CZ_OK;
    TRY(json_as_double(node, out));
    if (is_positive(*out)) return CZ_OK;
    return config_refuse(node, CZ_INVALID, "a positive number is expected");
}

/* Kinds without a usable default name the key that is missing. */
static cz_status need_number(const struct rope_source *s, const char *key, double *out)
{
    if (param(s, key)) return number(s, key, 0, out);
    char why[96];
    snprintf(why, sizeof why, "%s is missing, which this rope type needs", key);
    return config_refuse(s->params ? s->params : s->config, CZ_NOTFOUND, why);
}

/* Before the scaling: given in the config itself, among the parameters, or the whole context. */
static cz_status original_length(const struct rope_source *s, double *out)
{
    const char *key = "original_max_position_embeddings";
    const bool outer = config_either(s->config, key, NULL) || !s->params || s->defaults->is_phi;
    int64_t length = 0;
    TRY(config_size(outer ? s->config : s->params, key, NULL,
                    s->defaults->is_phi ? 4096 : s->max_positions, INT32_MAX, &length));
    *out = (double)length;
    return CZ_OK;
}

/* theta^(2i/D) */
static float power(float theta, int64_t i, int64_t D)
{
    return (float)pow((double)theta, (double)((float)(2 * i) / (float)D));
}

/* In fp32, as PyTorch makes them. */
static void plain(float theta, int64_t D, float *freq)
{
    for (int64_t i = 0; i < D / 2; i++) freq[i] = 1.0f / power(theta, i, D);
}

static cz_status read_default(const struct rope_source *s, struct rope_plan *p)
{
    plain((float)s->theta, s->D, p->freq);
    return CZ_OK;
}

static cz_status read_linear(const struct rope_source *s, struct rope_plan *p)
{
    double factor;
    TRY(need_number(s, "factor", &factor));
    plain((float)s->theta, s->D, p->freq);
    for (int64_t i = 0; i < p->half; i++) p->freq[i] /= (float)factor;
    return CZ_OK;
}

/* The frequencies of long sequences depend on T: they are made when T is known. */
static cz_status read_dynamic(const struct rope_source *s, struct rope_plan *p)
{
    TRY(need_number(s, "factor", &p->factor));
    if (s->D < 4)
        return config_refuse(s->params, CZ_INVALID, "dynamic scaling needs heads wider than 2");
    p->is_dynamic = true;
    p->theta = s->theta;
    p->t_switch = s->max_positions;
    plain((float)s->theta, s->D, p->freq);
    return CZ_OK;
}

/* Wavelengths between the two bounds blend linearly in length/wavelength. */
static cz_status read_llama3(const struct rope_source *s, struct rope_plan *p)
{
    double factor, low, high, length = 0;
    TRY(need_number(s, "factor", &factor));
    TRY(need_number(s, "low_freq_factor", &low));
    TRY(need_number(s, "high_freq_factor", &high));
    TRY(original_length(s, &length));
    if (high == low)
        return config_refuse(s->params, CZ_INVALID, "low_freq_factor equals high_freq_factor");
    const float two_pi = (float)(2.0 * 3.14159265358979323846);
    const float longest = (float)(length / low), shortest = (float)(length / high);
    plain((float)s->theta, s->D, p->freq);
    for (int64_t i = 0; i < p->half; i++) {
        const float f = p->freq[i], wave = 1.0f / f * two_pi;
        if (wave > longest) {
            p->freq[i] = f / (float)factor;
        } else if (!(wave < shortest)) {
            const float smooth = (1.0f / wave * (float)length - (float)low) / (float)(high - low);
            p->freq[i] = (1.0f - smooth) * f / (float)factor + smooth * f;
        }
    }
    return CZ_OK;
}

/* ---- yarn ----------------------------------------------------------------------------------- */

/* How much sharper attention gets when positions are squeezed by `factor`. */
static double yarn_mscale(double factor, double mscale)
{
    return factor <= 1 ? 1.0 : 0.1 * mscale * log(factor) + 1.0;
}

static cz_status yarn_scale(const struct rope_source *s, double factor, float *out)
{
    double given, mscale = 0, mscale_all = 0;
    TRY(number(s, "attention_factor", 0, &given));
    TRY(json_opt_double(s->params, "mscale", 0, &mscale));
    TRY(json_opt_double(s->params, "mscale_all_dim", 0, &mscale_all));
    if (given == 0 && mscale != 0 && mscale_all != 0)
        given = yarn_mscale(factor, mscale) / yarn_mscale(factor, mscale_all);
    *out = (float)(given != 0 ? given : yarn_mscale(factor, 1.0));
    return CZ_OK;
}

/* The dimension that turns `rotations` times over `length` positions. */
static double yarn_dimension(const struct rope_source *s, double rotations, double length)
{
    return (double)s->D * log(length / (rotations * 2.0 * 3.14159265358979323846)) /
           (2.0 * log(s->theta));
}

/* A number whose 0 means the default. */
static cz_status yarn_beta(const struct rope_source *s, const char *key, double fallback,
                           double *out)
{
    TRY(json_opt_double(s->params, key, fallback, out));
    if (*out == 0) *out = fallback;
    return *out > 0 ? CZ_OK
                    : config_refuse(param(s, key), CZ_INVALID, "a positive number is expected");
}

/* Dimensions between the two bounds blend linearly by index. */
static cz_status read_yarn(const struct rope_source *s, struct rope_plan *p)
{
    double length = 0, factor, fast, slow;
    bool truncate = true;
    TRY(original_length(s, &length));
    TRY(number(s, "factor", (double)s->max_positions / length, &factor));
    TRY(yarn_scale(s, factor, &p->scale));
    TRY(yarn_beta(s, "beta_fast", 32, &fast));
    TRY(yarn_beta(s, "beta_slow", 1, &slow));
    TRY(json_opt_bool(s->params, "truncate", true, &truncate));
    if (s->theta == 1)
        return config_refuse(s->params, CZ_INVALID, "yarn needs a rope_theta other than 1");
    double low = yarn_dimension(s, fast, length), high = yarn_dimension(s, slow, length);
    if (truncate) low = floor(low), high = ceil(high);
    if (low < 0) low = 0;
    if (high > (double)(s->D - 1)) high = (double)(s->D - 1);
    if (low == high) high += 0.001;
    for (int64_t i = 0; i < p->half; i++) {
        const float wave = power((float)s->theta, i, s->D);
        float ramp = ((float)i - (float)low) / (float)(high - low);
        ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
        const float keep = 1.0f - ramp;
        p->freq[i] = 1.0f / ((float)factor * wave) * (1.0f - keep) + 1.0f / wave * keep;
    }
    return CZ_OK;
}

/* ---- longrope ------------------------------------------------------------------------------- */

/* One factor per frequency, or the list belongs to another head width. */
static cz_status longrope_factors(const struct rope_source *s, const char *key, float *freq)
{
    const struct json_node *list = param(s, key);
    const int64_t half = s->D / 2;
    char why[128];
    snprintf(why, sizeof why, "longrope needs %s, a list of %lld numbers", key, (long long)half);
    if (!list) return config_refuse(s->params, CZ_NOTFOUND, why);
    if (json_type(list) != JSON_ARRAY || json_count(list) != (size_t)half)
        return config_refuse(list, CZ_INVALID, why);
    for (int64_t i = 0; i < half; i++) {
        double factor;
        TRY(json_as_double(json_child(list, (size_t)i), &factor));
        if (!is_positive(factor))
            return config_refuse(json_child(list, (size_t)i), CZ_INVALID,
                                 "a positive number is expected");
        freq[i] = 1.0f / ((float)factor * power((float)s->theta, i, s->D));
    }
    return CZ_OK;
}

/* Beyond the original length the other list applies to the whole sequence. */
static cz_status read_longrope(const struct rope_source *s, struct rope_plan *p)
{
    double length = 0, factor, scale;
    TRY(original_length(s, &length));
    TRY(number(s, "factor", (double)s->max_positions / length, &factor));
    TRY(longrope_factors(s, "short_factor", p->freq));
    TRY(longrope_factors(s, "long_factor", p->freq_long));
    if (length < 2)
        return config_refuse(s->params, CZ_INVALID, "longrope needs an original length above 1");
    const double fallback = factor <= 1 ? 1.0 : sqrt(1.0 + log(factor) / log(length));
    TRY(number(s, "attention_factor", fallback, &scale));
    p->scale = (float)scale;
    p->t_switch = (int64_t)length;
    return CZ_OK;
}

/* Heads rotate in part: the remaining dimensions do not turn at all. */
static cz_status read_proportional(const struct rope_source *s, struct rope_plan *p)
{
    double factor, part = 1;
    TRY(number(s, "factor", 1, &factor));
    TRY(config_number(s->config, "partial_rotary_factor", 1, 0, 1.0000001, &part));
    TRY(config_number(s->params, "partial_rotary_factor", part, 0, 1.0000001, &part));
    const int64_t n_turning = (int64_t)floor(part * (double)s->D / 2.0);
    plain((float)s->theta, s->D, p->freq);
    for (int64_t i = 0; i < p->half; i++)
        p->freq[i] = i < n_turning ? p->freq[i] / (float)factor : 0.0f;
    return CZ_OK;
}

/* ---- which ---------------------------------------------------------------------------------- */

static const struct rope_kind {
    const char *name;
    cz_status (*read)(const struct rope_source *s, struct rope_plan *p);
} kinds[] = {
    {"default", read_default},           {"linear", read_linear},
    {"dynamic", read_dynamic},           {"yarn", read_yarn},
    {"longrope", read_longrope},         {"llama3", read_llama3},
    {"proportional", read_proportional},
};

/* An unknown kind is refused with the list of known ones. */
static cz_status kind_find(const struct rope_source *s, const struct rope_kind **out)
{
    *out = &kinds[0];
    const struct json_node *node = param(s, "rope_type");
    if (!node) node = param(s, "type"); /* the older name */
    if (!node) return CZ_OK;
    const char *name;
    TRY(json_as_string(node, &name));
    if (s->defaults->is_phi && (strcmp(name, "su") == 0 || strcmp(name, "yarn") == 0))
        name = "longrope";
    for (size_t i = 0; i < CZ_ARRAY_LEN(kinds); i++)
        if (strcmp(kinds[i].name, name) == 0) {
            *out = &kinds[i];
            return CZ_OK;
        }
    char why[256];
    snprintf(why, sizeof why, "rope type \"%s\" is not supported; supported: ", name);
    for (size_t i = 0; i < CZ_ARRAY_LEN(kinds); i++)
        snprintf(why + strlen(why), sizeof why - strlen(why), "%s%s", i ? ", " : "", kinds[i].name);
    return config_refuse(node, CZ_UNSUPPORTED, why);
}

/* rope_scaling, where it says something, stands before rope_parameters; of a family whose kinds of
 * layers differ it is about those that see everything. */
static cz_status find_params(const struct json_node *config, const char *kind,
                             const struct json_node **out)
{
    const bool is_local = kind && strcmp(kind, "sliding_attention") == 0;
    *out = is_local ? NULL : config_either(config, "rope_scaling", NULL);
    if (!*out || json_count(*out) == 0) *out = config_either(config, "rope_parameters", NULL);
    if (*out && kind && json_type(*out) == JSON_OBJECT) {
        const struct json_node *own = config_either(*out, kind, NULL);
        if (own || is_local) *out = own;
    }
    if (!*out) return CZ_OK;
    if (json_type(*out) != JSON_OBJECT)
        return config_refuse(*out, CZ_INVALID, "an object is expected");
    for (size_t i = 0; i < json_count(*out); i++)
        if (json_type(json_child(*out, i)) == JSON_OBJECT)
            return config_refuse(json_child(*out, i), CZ_UNSUPPORTED,
                                 "rope parameters by kind of layer are not supported");
    return CZ_OK;
}

/* Rotating a part of each head is another model here, except where "proportional" says how. */
static cz_status refuse_partial(const struct rope_source *s)
{
    const struct json_node *const places[] = {s->params, s->config};
    for (size_t i = 0; i < CZ_ARRAY_LEN(places); i++) {
        double part = 1;
        if (!places[i]) continue;
        TRY(json_opt_double(places[i], "partial_rotary_factor", 1, &part));
        if (part != 1)
            return config_refuse(json_get(places[i], "partial_rotary_factor"), CZ_UNSUPPORTED,
                                 "heads that are rotated in part are not supported");
    }
    return CZ_OK;
}

/* The first partial_rotary_factor of each head, of families that have it. */
static cz_status read_part(struct rope_source *s)
{
    double part = 1;
    if (!s->defaults->in_part) return CZ_OK;
    TRY(config_number(s->config, "partial_rotary_factor", 1, 0, 1.0000001, &part));
    if (s->params)
        TRY(config_number(s->params, "partial_rotary_factor", part, 0, 1.0000001, &part));
    const int64_t width = (int64_t)((double)s->D * part);
    if (width >= 2 && width % 2 == 0) {
        s->D = width;
        return CZ_OK;
    }
    char why[96];
    snprintf(why, sizeof why, "%g of heads of %lld: rotary positions take even widths", part,
             (long long)s->D);
    return config_refuse(s->config, CZ_INVALID, why);
}

/* The default kind needs no parameters; every other one must find its own. */
cz_status rope_read(const struct json_node *config, int64_t D, int64_t max_positions,
                    const struct rope_defaults *defaults, struct rope_plan *out)
{
    struct rope_source s = {
        .config = config, .D = D, .max_positions = max_positions, .defaults = defaults};
    const struct rope_kind *kind;
    *out = (struct rope_plan){.half = D / 2, .scale = 1.0f};
    if (D % 2 != 0 || D / 2 > ROPE_HALF_MAX) {
        char why[96];
        snprintf(why, sizeof why, "heads of %lld: rotary positions take even widths up to %d",
                 (long long)D, 2 * ROPE_HALF_MAX);
        const struct json_node *node = config_either(config, "head_dim", NULL);
        return config_refuse(node ? node : config, CZ_INVALID, why);
    }
    TRY(find_params(config, defaults->kind, &s.params));
    TRY(read_part(&s));
    out->half = s.D / 2;
    /* rope_parameters wins over the older top-level key. */
    TRY(config_number(s.config, defaults->theta_key ? defaults->theta_key : "rope_theta",
                      defaults->theta > 0 ? defaults->theta : 1e4, 1e-3, 1e15, &s.theta));
    if (s.params) TRY(config_number(s.params, "rope_theta", s.theta, 1e-3, 1e15, &s.theta));
    TRY(kind_find(&s, &kind));
    if (kind->read != read_proportional && !defaults->in_part) TRY(refuse_partial(&s));
    if (defaults->is_phi && kind->read != read_default && kind->read != read_longrope)
        return config_refuse(s.params, CZ_UNSUPPORTED,
                             "this model's rope types are default and longrope");
    return kind->read(&s, out);
}

/* By the length of this batch: a cached decode must use one length throughout. */
const float *rope_frequencies(const struct rope_plan *plan, int64_t T, float buf[ROPE_HALF_MAX])
{
    if (plan->t_switch == 0 || T <= plan->t_switch) return plan->freq;
    if (!plan->is_dynamic) return plan->freq_long;
    const double D = 2.0 * (double)plan->half;
    const float grown = (float)plan->factor * (float)T / (float)plan->t_switch;
    const double exponent = D / (D - 2.0);
    const float stretch =
        (float)pow((double)(grown - (float)(plan->factor - 1.0)), (double)(float)exponent);
    plain((float)plan->theta * stretch, 2 * plan->half, buf);
    return buf;
}
