/* The files of a vocabulary, as transformers and czero read them. */
#include "data/tokenizer/vocab_impl.h"

#include "formats/file_io.h"
#include "formats/json/json_write.h"
#include "formats/output.h"

#include <stdlib.h>
#include <string.h>

static cz_status save_in(const struct out_folder *dir, const char *name,
                         struct json_writer *w)
{
    char *text = NULL;
    size_t nbytes;
    cz_status st;
    TRY_GOTO(json_writer_take(w, &text, &nbytes), done);
    TRY_GOTO(file_save_in(dir, name, text, nbytes), done);
done:
    free(text);
    return st;
}

/* The rules that were used to count, so that transformers and czero read the vocabulary alike. */
static cz_status save_config(const struct vocab *v, const struct out_folder *dir)
{
    static const char *const names[VOCAB_N_SPECIALS] = {"pad_token", "unk_token", "cls_token",
                                                        "sep_token", "mask_token"};
    struct json_writer w;
    json_writer_init(&w, 2);
    json_begin_object(&w);
    json_put_string(&w, "tokenizer_class", "BertTokenizer");
    json_put_bool(&w, "do_lower_case", v->options.lowercase);
    json_put_bool(&w, "strip_accents", v->options.lowercase);
    json_put_bool(&w, "tokenize_chinese_chars", true);
    for (int i = 0; i < VOCAB_N_SPECIALS; i++) json_put_string(&w, names[i], vocab_specials[i]);
    json_end_object(&w);
    json_write_text(&w, "\n");
    return save_in(dir, "tokenizer_config.json", &w);
}

/* A token's line is its id, so nothing else may be in the file. */
static cz_status save_lines(const struct vocab *v, const struct out_folder *dir)
{
    struct json_writer w;
    json_writer_init(&w, 0);
    for (uint32_t i = 0; i < v->tokens.n; i++) {
        json_write_bytes(&w, strings_text(&v->tokens, i), v->tokens.rows[i].nbytes);
        json_write_text(&w, "\n");
    }
    return save_in(dir, "vocab.txt", &w);
}

/* ---- BPE ------------------------------------------------------------------------------------- */

static void write_token(struct json_writer *w, const struct vocab *v, uint32_t idx)
{
    json_write_string_n(w, strings_text(&v->tokens, idx), v->tokens.rows[idx].nbytes);
}

static void write_model(struct json_writer *w, const struct vocab *v)
{
    static const char *const unset[] = {"dropout", "unk_token", "continuing_subword_prefix",
                                        "end_of_word_suffix"};
    json_begin_object(w);
    json_put_string(w, "type", "BPE");
    for (size_t i = 0; i < CZ_ARRAY_LEN(unset); i++) {
        json_write_key(w, unset[i]);
        json_write_null(w);
    }
    json_put_bool(w, "fuse_unk", false);
    json_put_bool(w, "byte_fallback", false);
    json_put_bool(w, "ignore_merges", false);
    json_write_key(w, "vocab");
    json_begin_object(w);
    for (uint32_t i = 0; i < v->tokens.n; i++) {
        json_write_key_n(w, strings_text(&v->tokens, i), v->tokens.rows[i].nbytes);
        json_write_int(w, i);
    }
    json_end_object(w);
    json_write_key(w, "merges");
    json_begin_array(w);
    for (size_t i = 0; i < v->n_merges; i++) {
        json_begin_array(w);
        write_token(w, v, v->merges[i].left);
        write_token(w, v, v->merges[i].right);
        json_end_array(w);
    }
    json_end_array(w);
    json_end_object(w);
}

#define BYTE_LEVEL                                                                                 \
    "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, "              \
    "\"use_regex\": true}"
#define END_OF_TEXT                                                                                \
    "[{\"id\": 0, \"content\": \"" VOCAB_END_OF_TEXT "\", \"single_word\": false, \"lstrip\": "    \
    "false, \"rstrip\": false, \"normalized\": false, \"special\": true}]"

/* GPT-2's tokenizer in all but its tokens. */
static cz_status save_bpe(const struct vocab *v, const struct out_folder *dir)
{
    static const struct {
        const char *key, *json;
    } steps[] = {{"truncation", "null"},        {"padding", "null"},
                 {"added_tokens", END_OF_TEXT}, {"normalizer", "null"},
                 {"pre_tokenizer", BYTE_LEVEL}, {"post_processor", "null"},
                 {"decoder", BYTE_LEVEL}};
    static const char *const names[] = {"bos_token", "eos_token", "unk_token"};
    struct json_writer w;
    json_writer_init(&w, 1);
    json_begin_object(&w);
    json_put_string(&w, "version", "1.0");
    for (size_t i = 0; i < CZ_ARRAY_LEN(steps); i++) {
        json_write_key(&w, steps[i].key);
        json_write_raw(&w, steps[i].json);
    }
    json_write_key(&w, "model");
    write_model(&w, v);
    json_end_object(&w);
    json_write_text(&w, "\n");
    TRY(save_in(dir, "tokenizer.json", &w));
    json_writer_init(&w, 2);
    json_begin_object(&w);
    json_put_string(&w, "tokenizer_class", "GPT2Tokenizer");
    json_put_bool(&w, "add_prefix_space", false);
    for (size_t i = 0; i < CZ_ARRAY_LEN(names); i++)
        json_put_string(&w, names[i], VOCAB_END_OF_TEXT);
    json_end_object(&w);
    json_write_text(&w, "\n");
    return save_in(dir, "tokenizer_config.json", &w);
}

cz_status vocab_save(const struct vocab *v, const char *dir)
{
    struct out_folder folder;
    TRY(out_folder_open(dir, &folder));
    cz_status st = vocab_is_bpe(v) ? save_bpe(v, &folder) : save_lines(v, &folder);
    if (st == CZ_OK && !vocab_is_bpe(v)) st = save_config(v, &folder);
    out_folder_close(&folder);
    return st;
}
