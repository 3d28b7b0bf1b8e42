/* generation_config.json: how the makers of a model choose its tokens. Options that the user gives
 * come first. As in transformers, temperature, top_k and top_p count only with "do_sample": true.
 */
#include "tools/czero/infer/answer.h"

#include "formats/json/json_unread.h"
#include "tools/czero/tool.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>

/* Members without an effect here, at these values or at all. */
static const struct json_harmless harmless[] = {
    /* read by model_read_ends(); the others are the tokenizer's business, for one text at a time */
    {"eos_token_id", NULL, NULL},
    {"bos_token_id", NULL, NULL},
    {"pad_token_id", NULL, NULL},
    {"decoder_start_token_id", NULL, NULL},

    /* where the file comes from */
    {"_from_model_config", NULL, NULL},
    {"transformers_version", NULL, NULL},
    {"_commit_hash", NULL, NULL},
    {"trust_remote_code", NULL, NULL}, /* code is never run */

    /* how a program computes and what it returns, with equal text */
    {"use_cache", NULL, NULL},
    {"cache_implementation", NULL, NULL},
    {"cache_config", NULL, NULL},
    {"disable_compile", NULL, NULL},
    {"low_memory", NULL, NULL},
    {"prefill_chunk_size", NULL, NULL},
    {"output_attentions", NULL, NULL},
    {"output_hidden_states", NULL, NULL},
    {"output_scores", NULL, NULL},
    {"output_logits", NULL, NULL},
    {"return_dict_in_generate", NULL, NULL},
    {"remove_invalid_values", NULL, NULL},
    {"renormalize_logits", NULL, NULL},

    /* of ways to generate that czero does not have, and that other members turn on */
    {"early_stopping", NULL, NULL},
    {"length_penalty", NULL, NULL},
    {"num_assistant_tokens", NULL, NULL},
    {"num_assistant_tokens_schedule", NULL, NULL},
    {"target_lookbehind", NULL, NULL},
    {"assistant_lookbehind", NULL, NULL},
    {"assistant_confidence_threshold", NULL, NULL},

    /* values that change nothing */
    {"num_beams", "1", NULL},
    {"num_beam_groups", "1", NULL},
    {"num_return_sequences", "1", NULL},
    {"diversity_penalty", "0", NULL},
    {"typical_p", "1", NULL},
    {"epsilon_cutoff", "0", NULL},
    {"eta_cutoff", "0", NULL},
    {"min_p", "0", NULL},
    {"min_length", "0", NULL},
    {"min_new_tokens", "0", NULL},
    {"no_repeat_ngram_size", "0", NULL},
    {"encoder_no_repeat_ngram_size", "0", NULL},
    {"encoder_repetition_penalty", "1", NULL},
    {"guidance_scale", "1", NULL},
    {"max_length", NULL, NULL}, /* of prompt and answer together: the model's context bounds it */
};

/* What one folder's file says; members that it lacks keep their value. */
struct defaults {
    bool samples;
    double temperature, top_p, penalty; /* NAN: not said */
    int64_t top_k, max_new_tokens;      /* -1: not said */
};

static cz_status out_of_range(const struct json_node *root, const char *key, const char *range)
{
    char where[256];
    return err_set(CZ_CORRUPT, 0, "%s: %s is needed",
                   json_where(json_get(root, key), where, sizeof where), range);
}

static cz_status read_defaults(const struct json_node *root, struct defaults *d)
{
    TRY(json_opt_bool(root, "do_sample", d->samples, &d->samples));
    TRY(json_opt_double(root, "temperature", d->temperature, &d->temperature));
    TRY(json_opt_double(root, "top_p", d->top_p, &d->top_p));
    TRY(json_opt_int(root, "top_k", d->top_k, &d->top_k));
    TRY(json_opt_double(root, "repetition_penalty", d->penalty, &d->penalty));
    TRY(json_opt_int(root, "max_new_tokens", d->max_new_tokens, &d->max_new_tokens));
    if (d->temperature < 0) return out_of_range(root, "temperature", "a number of at least 0");
    if (d->top_p < 0 || d->top_p > 1) return out_of_range(root, "top_p", "a number from 0 to 1");
    if (d->top_k < -1) return out_of_range(root, "top_k", "a number of at least 0");
    if (d->penalty <= 0) return out_of_range(root, "repetition_penalty", "a number above 0");
    if (d->max_new_tokens < -1 || d->max_new_tokens == 0 || d->max_new_tokens > INT_MAX)
        return out_of_range(root, "max_new_tokens", "a number of tokens above 0");
    return CZ_OK;
}

static cz_status take_file(const char *dir, struct defaults *d)
{
    struct unread unread = {.what = "settings"};
    struct json_watch *watch = NULL;
    struct json_doc *doc;
    char path[PATH_MAX];
    TRY(json_load_object(dir, "generation_config.json", &doc));
    if (!doc) return CZ_OK;
    cz_status st = json_watch_begin(doc, &watch);
    if (st == CZ_OK) st = read_defaults(json_root(doc), d);
    if (st == CZ_OK) json_watch_collect(watch, harmless, CZ_ARRAY_LEN(harmless), NULL, &unread);
    json_watch_end(watch);
    json_free(doc);
    snprintf(path, sizeof path, "%s/generation_config.json", dir);
    return st == CZ_OK ? unread_report(&unread, path) : st;
}

static double first_number(double given, double said, double usual)
{
    return !isnan(given) ? given : !isnan(said) ? said : usual;
}

static int64_t first_count(int64_t given, int64_t said, int64_t usual)
{
    return given >= 0 ? given : said >= 0 ? said : usual;
}

/* What a user would not expect without having read the file. */
static void say(const char *model, const struct answer_sampling *s, const struct defaults *d)
{
    if (s->temperature > 0 && d->samples)
        tool_note(
            "czero: %s/generation_config.json: sampling with temperature %g, top-k %lld, top-p %g; "
            "--temperature 0 takes the likeliest tokens",
            model, s->temperature, (long long)s->top_k, s->top_p > 0 ? s->top_p : 1.0);
    if (s->penalty != 1 && s->penalty == d->penalty)
        tool_note("czero: %s/generation_config.json: repetition penalty %g", model, s->penalty);
}

cz_status answer_take_defaults(const char *model, const char *adapter, int64_t usual_tokens,
                               struct answer_sampling *s)
{
    struct defaults d = {
        .temperature = NAN, .top_p = NAN, .penalty = NAN, .top_k = -1, .max_new_tokens = -1};
    TRY(take_file(model, &d));
    if (adapter) TRY(take_file(adapter, &d));
    const bool asked = s->top_k > 0 || s->top_p > 0;
    if (!d.samples) {
        d.temperature = d.top_p = NAN;
        d.top_k = -1;
    }
    s->temperature = first_number(s->temperature, d.temperature, asked || d.samples ? 1 : 0);
    s->top_p = first_number(s->top_p, d.top_p, 0);
    s->top_k = first_count(s->top_k, d.top_k, 0);
    s->penalty = first_number(s->penalty, d.penalty, 1);
    s->max_new_tokens = first_count(s->max_new_tokens, d.max_new_tokens, usual_tokens);
    say(model, s, &d);
    return CZ_OK;
}
