/* The model families that a Hugging Face folder or a preset may be of, as texts for people: help,
 * prompts and sentences list them from here. The table is MODEL_FAMILIES in model_impl.h. */
#ifndef CZ_MODEL_FAMILIES_H
#define CZ_MODEL_FAMILIES_H

#include "base/status.h"

CZ_EXTERN_C_BEGIN

/* Those with a `buf` write at most nbytes there and return it. */

/* "GPT-2, LLaMA, Qwen2, BERT, DistilBERT" */
const char *model_family_titles(char *buf, size_t nbytes);

/* A family's name for people, and its presets by index; NULL past the end. Borrowed from the
 * program. */
const char *model_family_title(size_t family);
const char *model_family_preset(size_t family, size_t idx);

/* A preset by index, family after family; NULL past the end. Borrowed from the program. */
const char *model_preset_name(size_t idx);

/* Every preset: "gpt2-tiny, gpt2, gpt2-medium, …, distilbert-base" */
const char *model_preset_names(char *buf, size_t nbytes);

/* The preset whose name is closest to a mistyped one (base/nearest.h); NULL: none is close. */
const char *model_preset_nearest(const char *name);

/* One preset of each family, for help: "gpt2, llama-160m, …" */
const char *model_preset_examples(char *buf, size_t nbytes);

CZ_EXTERN_C_END
#endif
