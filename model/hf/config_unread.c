/* Keys of config.json that mean nothing to a model here. Keys that a family reads are not listed: a
 * reader that asks for a key has it noted (json_unread.h). All others are named in a warning. */
#include "formats/json/json_unread.h"
#include "model/hf/config_impl.h"

static const struct json_harmless harmless[] = {
    /* where the file comes from, and by what it was written */
    {"model_type", NULL, NULL},
    {"architectures", NULL, NULL}, /* read before the options were written into the config */
    {"_name_or_path", NULL, NULL},
    {"name_or_path", NULL, NULL},
    {"_commit_hash", NULL, NULL},
    {"transformers_version", NULL, NULL},
    {"auto_map", NULL, NULL}, /* a class in a file of Python's: code is never run */
    {"custom_pipelines", NULL, NULL},
    {"tokenizer_class", NULL, NULL},
    {"finetuning_task", NULL, NULL},
    {"unsloth_version", NULL, NULL},
    {"unsloth_fixed", NULL, NULL},
    {"license", NULL, NULL},
    {"language", NULL, NULL},

    /* how a program stores and computes, with equal results */
    {"dtype", NULL, NULL}, /* files say their own */
    {"torch_dtype", NULL, NULL},
    {"use_cache", NULL, NULL},
    {"cache_implementation", NULL, NULL},
    {"_attn_implementation", NULL, NULL},
    {"attn_implementation", NULL, NULL},
    {"_attn_implementation_autoset", NULL, NULL},
    {"_experts_implementation", NULL, NULL},
    {"gradient_checkpointing", NULL, NULL},
    {"chunk_size_feed_forward", NULL, NULL},
    {"pretraining_tp", NULL, NULL}, /* products in so many parts */
    {"use_bfloat16", NULL, NULL},
    {"torchscript", NULL, NULL},
    {"tf_legacy_loss", NULL, NULL},
    {"reorder_and_upcast_attn", NULL, "gpt2"}, /* scores are fp32 here */
    {"reference_compile", NULL, "modernbert"},
    {"repad_logits_with_grad", NULL, "modernbert"},
    {"deterministic_flash_attn", NULL, "modernbert"},
    {"router_jitter_noise", "0", NULL},

    /* what a model's class returns beside logits */
    {"return_dict", NULL, NULL},
    {"use_return_dict", NULL, NULL},
    {"output_attentions", NULL, NULL},
    {"output_hidden_states", NULL, NULL},
    {"output_past", NULL, NULL},

    /* tokens: the tokenizer's business, or generation's; the padding token is asked for where it
     * counts */
    {"*_token_id", NULL, NULL},
    {"*_token_ids", NULL, NULL},
    {"prefix", NULL, NULL},

    /* how text is generated, which older versions stored here */
    {"max_length", NULL, NULL},
    {"min_length", NULL, NULL},
    {"max_new_tokens", NULL, NULL},
    {"do_sample", NULL, NULL},
    {"early_stopping", NULL, NULL},
    {"num_beams", NULL, NULL},
    {"num_beam_groups", NULL, NULL},
    {"num_return_sequences", NULL, NULL},
    {"temperature", NULL, NULL},
    {"top_k", NULL, NULL},
    {"top_p", NULL, NULL},
    {"typical_p", NULL, NULL},
    {"repetition_penalty", NULL, NULL},
    {"diversity_penalty", NULL, NULL},
    {"length_penalty", NULL, NULL},
    {"no_repeat_ngram_size", NULL, NULL},
    {"encoder_no_repeat_ngram_size", NULL, NULL},
    {"bad_words_ids", NULL, NULL},
    {"suppress_tokens", NULL, NULL},
    {"begin_suppress_tokens", NULL, NULL},
    {"output_scores", NULL, NULL},
    {"return_dict_in_generate", NULL, NULL},
    {"remove_invalid_values", NULL, NULL},
    {"exponential_decay_length_penalty", NULL, NULL},
    {"task_specific_params", NULL, NULL},

    /* of heads that this model does not have: classes are asked for by those that do */
    {"id2label", NULL, NULL},
    {"label2id", NULL, NULL}, /* id2label the other way round */
    {"num_labels", NULL, NULL},
    {"_num_labels", NULL, NULL},
    {"problem_type", NULL, NULL},
    {"classifier_dropout", NULL, NULL},
    {"hidden_dropout", NULL, NULL},
    {"token_classification_bias", NULL, NULL},
    {"cls_dropout", NULL, NULL},
    {"qa_dropout", NULL, "distilbert"},
    {"seq_classif_dropout", NULL, "distilbert"},
    {"summary_type", NULL, NULL},
    {"summary_use_proj", NULL, NULL},
    {"summary_activation", NULL, NULL},
    {"summary_proj_to_labels", NULL, NULL},
    {"summary_first_dropout", NULL, NULL},
    {"summary_last_dropout", NULL, NULL},
    {"sparse_pred_ignore_index", NULL, "modernbert"},
    {"pooler_fc_size", NULL, "bert"}, /* of the first Chinese BERT: transformers reads none */
    {"pooler_num_attention_heads", NULL, "bert"},
    {"pooler_num_fc_layers", NULL, "bert"},
    {"pooler_size_per_head", NULL, "bert"},
    {"pooler_type", NULL, "bert"},
    {"directionality", "\"bidi\"", "bert"},

    /* only in use with another key, or written beside it */
    {"initializer_cutoff_factor", NULL, "modernbert"}, /* of random weights' tails */
    {"layer_norm_eps", NULL, "modernbert"},            /* norm_eps counts */
    {"position_embedding_type", "\"absolute\"", NULL},
    {"_sliding_window_pattern", NULL, "gemma3_text"}, /* layer_types or the name without _ counts */
    {"sliding_window_size", NULL, "gemma2"},          /* sliding_window counts */
    {"original_max_position_embeddings", NULL, "phi3"}, /* of longrope, which asks for it */
    {"rope_parameters.original_max_position_embeddings", NULL, "phi3"},
    {"rope_scaling.original_max_position_embeddings", NULL, "phi3"},
    {"rope_parameters.type", NULL, NULL}, /* the older name of rope_type, which counts */
    {"rope_scaling.type", NULL, NULL},
    {"embd_pdrop", NULL, "phi3"}, /* transformers applies none */
    {"full_attn_mod", "1", "phi3"},
    {"interpolate_factor", "1", "phi3"},
    {"max_window_layers", NULL, "smollm3"}, /* transformers reads it for Qwen alone */
    {"max_window_layers", NULL, "qwen3_moe"},
};

void config_collect_unread(const struct json_watch *watch, const char *model_type,
                           struct unread *unread)
{
    json_watch_collect(watch, harmless, CZ_ARRAY_LEN(harmless), model_type, unread);
}
