/* The option --adapter of generate, eval, predict and train. */
#ifndef CZ_TOOLS_CZERO_TRAIN_ADAPTER_H
#define CZ_TOOLS_CZERO_TRAIN_ADAPTER_H

#include "model/model.h"

/* The option's row in a table; `place` is the offset of the folder's name. */
#define ADAPTER_OPTION(place)                                                                      \
    {                                                                                              \
        "--adapter", ARG_STRING, place, "DIR",                                                     \
            "adapter of this model, as PEFT and czero train --lora write them"                     \
    }

/* --model may name an adapter's folder: the folder of its base takes its place in *model, and it
 * becomes *adapter. Errors: CZ_NOTFOUND (the base is no folder here), CZ_INVALID (*adapter names
 * another one), those of reading. One call per process: *model points into its memory. */
cz_status adapter_find_base(const char **model, const char **adapter);

/* A model with an adapter at rest; `adapter` NULL: without. Of a model without a head for classes,
 * an adapter that has one gives it. NULL: the error of cz_model_open() or cz_model_add_adapter().
 */
struct cz_model *adapter_open(const char *model, const char *adapter);

/* The name of a tokenizer: `given`, or the folder of the adapter (NULL: none) or of the model that
 * has one, or "bytes". */
const char *adapter_tokenizer(const char *given, const char *model, const char *adapter);

/* The folder of the chat template that the weights were trained with: the adapter's (NULL: none),
 * or that of a model without a tokenizer. NULL: the tokenizer's. */
const char *adapter_template(const char *model, const char *adapter);

#endif
