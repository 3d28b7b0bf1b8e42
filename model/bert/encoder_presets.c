/* Presets of encoders, written as a config.json, so that a preset takes the same way as a folder.
 * The keys stand in the order in which transformers writes them. */
#include "formats/json/json_write.h"
#include "model/bert/encoder_impl.h"

#include <string.h>

const char *encoder_preset_name(const struct encoder_presets *presets, size_t idx)
{
    return idx < presets->n ? presets->list[idx].name : NULL;
}

const char *const encoder_ignored[] = {".embeddings.position_ids", NULL};

static cz_status write_config(const struct encoder_presets *f, const struct model_family *family,
                              const struct encoder_preset *p, char **text)
{
    const bool has_ends = f->first_id != 0 || f->last_id != 0;
    struct json_writer w;
    json_writer_init(&w, 2);
    json_begin_object(&w);
    json_write_key(&w, "architectures");
    json_begin_array(&w);
    json_write_string(&w, family->heads[0].architecture);
    json_end_array(&w);
    json_put_double(&w, "attention_probs_dropout_prob", 0.1);
    if (has_ends) json_put_int(&w, "bos_token_id", f->first_id);
    if (p->E > 0) json_put_int(&w, "embedding_size", p->E);
    if (has_ends) json_put_int(&w, "eos_token_id", f->last_id);
    json_put_string(&w, "hidden_act", "gelu");
    json_put_double(&w, "hidden_dropout_prob", 0.1);
    json_put_int(&w, "hidden_size", p->C);
    json_put_double(&w, "initializer_range", 0.02);
    json_put_int(&w, "intermediate_size", 4 * p->C);
    json_put_double(&w, "layer_norm_eps", f->eps);
    json_put_int(&w, "max_position_embeddings", f->P);
    json_put_string(&w, "model_type", family->model_type);
    json_put_int(&w, "num_attention_heads", p->H);
    json_put_int(&w, "num_hidden_layers", p->n_layers);
    json_put_int(&w, "pad_token_id", f->padding_id);
    json_put_string(&w, "torch_dtype", "float32");
    if (f->S > 0) json_put_int(&w, "type_vocab_size", f->S);
    json_put_int(&w, "vocab_size", f->V);
    json_end_object(&w);
    return json_writer_take(&w, text, NULL);
}

cz_status encoder_preset_write(const struct encoder_presets *presets,
                               const struct model_family *family, const char *name, char **text)
{
    for (size_t i = 0; i < presets->n; i++)
        if (strcmp(presets->list[i].name, name) == 0)
            return write_config(presets, family, &presets->list[i], text);
    return err_set(CZ_NOTFOUND, 0, "\"%s\" is not a preset of %s", name, family->title);
}
