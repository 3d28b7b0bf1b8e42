/* czero init, in parts: what they share.
 *
 * cmd_init.c     the options, the search for a config that fits, the files
 * init_data.c    what the data hold, by their first rows
 * init_ask.c     the questions: asked on a terminal, answered by flags, or by guesses */
#ifndef CZ_TOOLS_CZERO_CMD_INIT_H
#define CZ_TOOLS_CZERO_CMD_INIT_H

#include "base/status.h"
#include "tools/czero/args.h"

#include "engine/config/config.h"
#include "model/model.h"
#include <czero/data.h>

struct init_flags { /* as given; numbers are read as answers are */
    const char *model, *task, *tokenizer, *device, *gpu, *host, *ranks, *precision;
    const char *seq_len, *epochs, *steps, *batch;
    const char *encoding, *lora;
    const char *nvme, *nvme_path, *text_column, *pair_column, *label_column, *out, *script;
    struct arg_list data, eval_data;
    bool strip_spaces, skip_unlabelled, packing, force, yes;
};

/* What a row is. */
enum init_kind {
    INIT_TEXT = 0,
    INIT_LABELLED, /* a text and its label */
    INIT_CHATS,    /* a conversation, or an instruction and its answer */
    INIT_WORDS     /* words with a tag each */
};

struct init {
    const struct init_flags *flags;

    /* Answers. Strings are the flags', or in `lines`. */
    const char *model, *tokenizer; /* tokenizer NULL: the model's own */
    struct arg_list data, eval_data;
    const char *eval_split; /* a share of the data; NULL: none */
    enum cz_task task;
    bool is_sft;                    /* a language model on chats */
    struct cz_texts *texts;         /* a classifier's data; NULL: other tasks */
    const struct config_lora *lora; /* in `lora_config`; NULL: all weights are trained */
    struct ds_config *lora_config;
    const struct config_lora *usual_lora; /* LORA_USUAL, in `lora_config`; NULL: it is not read */
    bool on_gpu;
    size_t gpu_nbytes, host_nbytes, nvme_nbytes;
    int64_t ranks, seq_len, epochs, steps, batch; /* epochs or steps is 0 */
    enum cz_dtype dtype;

    /* What answers tell about each other. */
    enum init_kind kind;
    enum cz_labels head; /* of the model as it is */
    bool is_preset, has_weights;
    int64_t t_max;
    int64_t vocab_size; /* of `tokenizer`; 0: the model's own */
    char *lines[32];
    size_t n_lines;
};

/* Ask for what no flag says. Errors: CZ_INVALID (an answer that makes no sense, a missing flag
 * without a terminal, the end of input), and what opening the model or its tokenizer says. */
cz_status init_ask(struct init *in);

/* All weights, or an adapter? `guess`: "all" or "adapter". Sets in->lora. */
cz_status init_ask_training(struct init *in, const char *guess);

/* By the first row of the first file; INIT_TEXT where that cannot be read. */
enum init_kind init_look(const struct init *in);

void init_free(struct init *in);

/* "classification", as --task has it. */
const char *init_task_name(const struct init *in);

#endif
