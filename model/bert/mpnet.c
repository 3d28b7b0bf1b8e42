/* MPNet: config.json → chain, and the presets as config.json.
 * Sources: Song et al., "MPNet: masked and permuted pre-training for language understanding"
 * (2020), arXiv 2004.09297; buckets of distances: Raffel et al. (T5), arXiv 1910.10683, section
 * 2.1; names, defaults and the init rule are those of Hugging Face's
 * MPNetForSequenceClassification and MPNetForMaskedLM. It is RoBERTa without token types, with a
 * table of what distances add to scores, which all blocks share. */
#include "model/bert/encoder_impl.h"
#include "model/hf/config_impl.h"

#include <math.h>
#include <stdlib.h>

/* transformers takes these whatever config.json says. */
enum { PADDING_ID = 1, BUCKETS = 32, DISTANCE_MAX = 128 };

static const char *const block_names[ENCODER_N_PARAMS] = {
    [ENCODER_Q_W] = "attention.attn.q.weight",      [ENCODER_Q_B] = "attention.attn.q.bias",
    [ENCODER_K_W] = "attention.attn.k.weight",      [ENCODER_K_B] = "attention.attn.k.bias",
    [ENCODER_V_W] = "attention.attn.v.weight",      [ENCODER_V_B] = "attention.attn.v.bias",
    [ENCODER_PROJ_W] = "attention.attn.o.weight",   [ENCODER_PROJ_B] = "attention.attn.o.bias",
    [ENCODER_LN1_W] = "attention.LayerNorm.weight", [ENCODER_LN1_B] = "attention.LayerNorm.bias",
    [ENCODER_FC_W] = "intermediate.dense.weight",   [ENCODER_FC_B] = "intermediate.dense.bias",
    [ENCODER_OUT_W] = "output.dense.weight",        [ENCODER_OUT_B] = "output.dense.bias",
    [ENCODER_LN2_W] = "output.LayerNorm.weight",    [ENCODER_LN2_B] = "output.LayerNorm.bias",
};

static const struct encoder_names names = {
    ENCODER_EMBEDDINGS("mpnet."),
    ENCODER_EMBEDDING_NORM("mpnet."),
    .block_prefix = "mpnet.encoder.layer",
    .block = block_names,
    ENCODER_ROBERTA_HEADS,
};

/* Of a key `behind` positions before the query: near ones have a bucket each, then they widen with
 * the logarithm, up to the last; keys behind the query have the other half. In fp32, as PyTorch
 * computes it: where a bucket begins depends on the rounding. */
static int32_t bucket_of(int64_t behind)
{
    const int32_t half = BUCKETS / 2, exact = half / 2, side = behind < 0 ? half : 0;
    const int64_t distance = behind < 0 ? -behind : behind;
    if (distance < exact) return side + (int32_t)distance;
    const float widened = logf((float)distance / (float)exact) /
                          (float)log((double)DISTANCE_MAX / exact) * (float)(half - exact);
    const int32_t far = exact + (int32_t)widened;
    return side + (far < half - 1 ? far : half - 1);
}

static cz_status read_positions(const struct json_node *config, struct encoder_config *c)
{
    const char *key = "relative_attention_num_buckets";
    TRY(config_size(config, key, NULL, BUCKETS, (1 << 16) - 1, &c->positions.n_buckets));
    if (c->positions.n_buckets < BUCKETS)
        return config_refuse(json_get(config, key), CZ_UNSUPPORTED,
                             "transformers computes 32 buckets, which the table must have");
    if (c->P <= PADDING_ID + 1)
        return config_refuse(json_get(config, "max_position_embeddings"), CZ_INVALID,
                             "positions of tokens begin at 2: there must be at least 3");
    c->buckets = malloc((size_t)(2 * c->P) * sizeof *c->buckets);
    if (!c->buckets)
        return err_set(CZ_NOMEM, 0, "no memory for %lld buckets", (long long)(2 * c->P));
    for (int64_t i = 0; i < 2 * c->P - 1; i++) c->buckets[i] = bucket_of(c->P - 1 - i);
    c->positions.buckets = c->buckets;
    c->positions.table_name = "mpnet.encoder.relative_attention_bias.weight";
    return CZ_OK;
}

static cz_status mpnet_build(const struct json_node *config, const char *name, enum cz_task task,
                             struct cz_model **out)
{
    struct encoder_config c = {.no_types = true, .counts_positions = true};
    *out = NULL;
    TRY(encoder_config_bert(config, 30527, task, &c));
    c.padding_id = PADDING_ID;
    if (c.V <= PADDING_ID)
        return config_refuse(json_get(config, "vocab_size"), CZ_INVALID,
                             "token 1 is padding: there must be at least 2");
    TRY(read_positions(config, &c));
    return encoder_build(&c, &names, name, task, out);
}

/* ---- presets -------------------------------------------------------------------------------- */

static const struct encoder_preset list[] = {
    {"mpnet-base", 12, 768, 12, 0},
};

static const struct encoder_presets mpnet_presets = {
    .V = 30527,
    .P = 514,
    .padding_id = PADDING_ID,
    .first_id = 0,
    .last_id = 2,
    .eps = 1e-5,
    .list = list,
    .n = CZ_ARRAY_LEN(list),
};

ENCODER_FAMILY(mpnet, "mpnet", "MPNet", "mpnet.", "MPNet", "lm_head.decoder.weight", "mpnet-base");
