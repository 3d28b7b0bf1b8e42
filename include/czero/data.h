/* Data: tokenizers, token streams for language models, labelled texts for classifiers.
 *
 *   cz_tokenizer_open → cz_data_open → cz_data_next per micro-batch → cz_data_close
 *   cz_texts_open → cz_text_loader_open → cz_text_loader_next per micro-batch → …_close
 *
 * Loaders are needed only if you want them: the engine takes any struct cz_batch. Every loader
 * gives rows in an order that depends on (seed, epoch) alone, and its cursor restores the place in
 * a resumed run, also at another batch size or number of ranks.
 * Threads: a tokenizer and labelled texts may be shared; a loader belongs to one thread at a time.
 */
#ifndef CZERO_DATA_H
#define CZERO_DATA_H

#include <czero/batch.h>

CZ_EXTERN_C_BEGIN

/* ---- tokenizers -------------------------------------------------------------------------------
 * "bytes", WordPiece (BERT: vocab.txt, or tokenizer.json), byte-level BPE (GPT-2, Qwen2, LLaMA 3:
 * tokenizer.json, or vocab.json and merges.txt), any other tokenizer.json whose steps are known
 * (LLaMA 2, Gemma, XLM-R, T5, …), tokenizer.model of SentencePiece, type BPE. Ids equal those of
 * Hugging Face's tokenizers, of tokenizer.model those of sentencepiece.
 * Immutable once open: threads may share one. A decoder belongs to one text. */

struct cz_tokenizer;         /* opaque */
struct cz_tokenizer_decoder; /* opaque */

/* `name` is "bytes" (a token is a byte, its id the byte's value), a folder, or one of the files
 * named above. *out is released by cz_tokenizer_close(); NULL on error. Errors: CZ_NOTFOUND (no
 * such folder, or no tokenizer in it: the sentence lists the files that would do), CZ_IO,
 * CZ_CORRUPT and CZ_UNSUPPORTED (file, position, reason), CZ_NOMEM. */
CZ_API cz_status cz_tokenizer_open(const char *name, struct cz_tokenizer **out);
CZ_API void cz_tokenizer_close(struct cz_tokenizer *tok); /* accepts NULL */

/* The name it was opened by. Owned by the tokenizer. */
CZ_API const char *cz_tokenizer_name(const struct cz_tokenizer *tok);
CZ_API int64_t cz_tokenizer_vocab_size(const struct cz_tokenizer *tok);

/* Whether a folder holds a tokenizer, also a kind that cz_tokenizer_open() refuses (spiece.model):
 * a program should then report that error instead of continuing without a tokenizer. */
CZ_API bool cz_tokenizer_is_in(const char *dir);

/* Write the tokenizer's files (those it was read from, with tokenizer_config.json,
 * special_tokens_map.json, added_tokens.json, chat_template.jinja and tokenizer.model where these
 * exist beside them) into an existing folder, each complete or not at all; nothing for "bytes", and
 * nothing into the folder that they came from. They are written from what was parsed, and without
 * the paths of the machine that they come from; one of the others that is no JSON object, no UTF-8
 * text of up to 1 MiB, or no model of SentencePiece is left out with a warning. Errors: CZ_IO,
 * CZ_NOTFOUND (the files are gone), CZ_CORRUPT (they changed), CZ_NOMEM. */
CZ_API cz_status cz_tokenizer_export(const struct cz_tokenizer *tok, const char *dir);

/* CZ_INVALID if the tokenizer has more ids than a vocabulary of `vocab_size`; `model` is the name
 * for the sentence. */
CZ_API cz_status cz_tokenizer_check_vocab(const struct cz_tokenizer *tok, int64_t vocab_size,
                                          const char *model);

enum cz_special {
    CZ_SPECIAL_PAD = 0,
    CZ_SPECIAL_UNK,
    CZ_SPECIAL_CLS,
    CZ_SPECIAL_SEP,
    CZ_SPECIAL_MASK,
    CZ_SPECIAL_BOS,
    CZ_SPECIAL_EOS
};
#define CZ_SPECIAL_COUNT 7

/* The id of a special token, or -1 when the tokenizer has none. */
CZ_API int64_t cz_tokenizer_special_id(const struct cz_tokenizer *tok, enum cz_special which);

/* The id that ends a text, or -1 when the vocabulary has none. */
CZ_API int64_t cz_tokenizer_end_id(const struct cz_tokenizer *tok);

/* The id that fills up rows of labelled texts: the padding token, without one the id that ends a
 * text, without either 0. */
CZ_API int32_t cz_tokenizer_padding_id(const struct cz_tokenizer *tok);

/* The ids of a whole text of nbytes bytes. *ids is the caller's, released by cz_free(). Errors:
 * CZ_NOMEM, CZ_INVALID (text that the tokenizer cannot express, or that is not UTF-8; the sentence
 * names the byte). "bytes" takes any bytes. */
CZ_API cz_status cz_tokenizer_encode(const struct cz_tokenizer *tok, const char *text,
                                     size_t nbytes, int32_t **ids, size_t *n_ids);

/* One text, or a pair of texts. Not terminated: lengths are in bytes. */
struct cz_tokenizer_input {
    const char *text;
    size_t nbytes;
    const char *pair; /* NULL: one text */
    size_t pair_nbytes;
};

/* One row as an encoder reads it: [CLS] text [SEP] pair [SEP], with the tokenizer's own special
 * tokens, cut at the end to max_len ids. Of two texts the longer loses tokens until they fit; where
 * both lose and an odd number remains, the first keeps the odd one only if it was the longer
 * ("longest_first" of Hugging Face's tokenizers).
 * ids and types (segments 0 and 1; may be NULL) hold max_len each; *n_ids ≤ max_len. *n_cut (may be
 * NULL): tokens of the texts that did not fit. Errors: CZ_INVALID (max_len leaves no space for the
 * special tokens; a text that is not UTF-8, by its first byte, except for "bytes"), CZ_NOMEM. */
CZ_API cz_status cz_tokenizer_encode_input(const struct cz_tokenizer *tok,
                                           const struct cz_tokenizer_input *input, int64_t max_len,
                                           int32_t *ids, int32_t *types, int64_t *n_ids,
                                           size_t *n_cut);

/* A word of a text: its bytes [begin, begin + nbytes), and its class or -1. */
struct cz_text_word {
    uint32_t begin, nbytes;
    int32_t label;
};

/* One row of a text that is split into words, with special tokens as cz_tokenizer_encode_input()
 * has them, cut at the end to max_len ids. Every word is encoded by itself, as it would be behind a
 * space (the library tokenizers: is_split_into_words, with add_prefix_space where the tokenizer
 * keeps spaces). starts (max_len): the word whose first token stands there; -1 at other tokens. A
 * word without any token starts nowhere. *n_cut (may be NULL): words whose first token did not fit.
 * Errors: as above. */
CZ_API cz_status cz_tokenizer_encode_words(const struct cz_tokenizer *tok, const char *text,
                                           const struct cz_text_word *words, size_t n_words,
                                           int64_t max_len, int32_t *ids, int32_t *types,
                                           int32_t *starts, int64_t *n_ids, size_t *n_cut);

/* Streaming decoding: bytes of an incomplete character are held back; bytes that are no UTF-8
 * become U+FFFD, one for each longest part that could have begun a character. *out is released by
 * cz_tokenizer_decoder_destroy(); the tokenizer must outlive it. Errors: CZ_NOMEM. */
CZ_API cz_status cz_tokenizer_decoder_create(const struct cz_tokenizer *tok,
                                             struct cz_tokenizer_decoder **out);
CZ_API void cz_tokenizer_decoder_destroy(struct cz_tokenizer_decoder *dec); /* accepts NULL */

/* Add one token. *text: the characters that are now complete, valid UTF-8, terminated, nbytes long
 * (may be 0); owned by the decoder until its next call. CZ_INVALID: no such id. */
CZ_API cz_status cz_tokenizer_decode(struct cz_tokenizer_decoder *dec, int64_t id,
                                     const char **text, size_t *nbytes);

/* End of the text: what was held back, as U+FFFD. The decoder can start another text. */
CZ_API void cz_tokenizer_decoder_end(struct cz_tokenizer_decoder *dec, const char **text,
                                     size_t *nbytes);

/* ---- the place in the data ------------------------------------------------------------------- */

/* The same on all ranks: `sample` rows of epoch `epoch` have been taken. n_rows, seed and shuffle
 * say which data and order the place refers to. A checkpoint stores it (cz_save_options.cursor).
 * Its layout is part of the checkpoint format and does not change. */
struct cz_data_cursor {
    uint64_t epoch, sample;
    uint64_t n_rows, seed;
    bool shuffle;
};

/* ---- token streams for language models ---------------------------------------------------------
 * All tokens of all paths, joined in order, are one stream; row k is its tokens [k·T, k·T + T], T
 * inputs whose targets are shifted by one: floor((tokens - 1) / T) rows. Micro-batch m (counted
 * over all steps and accumulation) gives rank r the samples (m·world + r)·B + i, i < B. Sample q is
 * row q mod N of epoch q / N, N rows being an epoch; with shuffling, its image under a permutation
 * drawn from (seed, epoch). */

struct cz_data_loader; /* opaque */

/* Masked language modelling as in BERT (Devlin et al. 2018, section 3.1): each token is chosen with
 * `probability`; of the chosen, 80 % become [MASK], 10 % any id below vocab_size, 10 % stay.
 * Special tokens are never chosen; a row with other tokens has at least one chosen. Choices are
 * drawn from (seed, sample, position): they differ from epoch to epoch and repeat after a resume.
 */
struct cz_masking {
    size_t size;       /* sizeof(struct cz_masking) */
    float probability; /* 0: off, rows are for next-token models */
    int32_t mask_id;
    int32_t first_id, last_id; /* around a row: both, or -1 */
    int64_t vocab_size;        /* of random replacements */
    int32_t special_ids[16];   /* the first n_special_ids are used */
    size_t n_special_ids;
    /* Instead, all chosen tokens become a random id below vocab_size, and the labels say of every
     * token whether it is another now (1) or not (0), for models of CZ_LABELS_REPLACED. */
    bool detects;
};

/* Fill `masking` (its size set by the caller) with a tokenizer's special tokens. CZ_INVALID: the
 * tokenizer has no mask token; probability outside (0, 1). */
CZ_API cz_status cz_masking_init(struct cz_masking *masking, const struct cz_tokenizer *tok,
                                 float probability);

struct cz_data_options {
    size_t size; /* sizeof(struct cz_data_options) */
    /* At least one path. The format follows from the name and the first bytes:
     *   NAME.bin with NAME.idx beside it, NAME.idx, or NAME alone   Megatron's indexed tokens
     *   the header of llm.c's .bin (magic 20240520 or 20240801)     16- or 32-bit tokens
     *   u8:FILE, u16:FILE, u32:FILE                                 plain tokens without a header
     *   NAME.jsonl, NAME.ndjson, NAME.json                          rows with a member "text"
     *   a folder                                                    its files, docs/data.md
     *   any other file                                              text, for the tokenizer
     * Text and rows may be compressed (gzip, zstd; NAME.jsonl.gz). A row is a document: the
     * tokenizer's end id follows it, or a line end where it has none. */
    const char *const *paths;
    size_t n_paths;
    const struct cz_tokenizer
        *tokenizer;           /* for text, borrowed during cz_data_open(); NULL: bytes */
    int64_t seq_len;          /* T */
    int64_t micro_batch;      /* B */
    int64_t rank, world_size; /* world_size 0 means 1 */
    bool shuffle;
    uint64_t seed;                    /* of the shuffle and the masking */
    const struct cz_masking *masking; /* copied; NULL: none, rows are for next-token models */
    /* dataloader_drop_last: leave out the rows at an epoch's end that do not fill a micro-batch on
     * every rank. Otherwise such a micro-batch continues with the next epoch's first rows. */
    bool drop_last;
    bool once; /* stop after one epoch (evaluation) instead of starting the next */
    /* Rows with cz_batch.documents and positions: attention stays within a document, and positions
     * begin anew with each. A document ends with the tokenizer's end id, which is put behind each
     * file of plain text, too. CZ_INVALID with masking, or without such an id. */
    bool per_document;
    /* Stop after so many epochs (1.5 is one and a half), without a row of the next: the rows of an
     * incomplete last step, of accumulation · world_size micro-batches, are dealt out evenly over
     * these, and loss_divisor is their mean number of labels. 0: no end. */
    double epochs;
    int64_t accumulation; /* micro-batches of a rank per step; 0 means 1 */
    /* Of text and rows, a name of iconv(3) such as "gb18030", "latin-1" or "utf-16", borrowed
     * during cz_data_open(). NULL means UTF-8. Bytes that are not of the encoding are CZ_CORRUPT.
     */
    const char *encoding;
};

/* Open all files, check their formats and sizes. Memory stays small whatever the size of the data,
 * but for the ids of text under a trained tokenizer, of rows and of compressed text, which are
 * kept; nothing is allocated afterwards. *out is released by cz_data_close(); NULL on error.
 * Errors: CZ_INVALID (an option, an empty file or folder, a row without a text, too few tokens for
 * one row), CZ_NOTFOUND, CZ_IO, CZ_CORRUPT (bad magic, truncated, index and tokens disagree, bad
 * JSON, damaged compressed data, a link that leads out of a folder), CZ_VERSION, CZ_UNSUPPORTED (a
 * file that is no text), CZ_NOMEM (also where the ids of a compressed file would take more than
 * half of the memory that the host has left). Each sentence names the file. */
CZ_API cz_status cz_data_open(const struct cz_data_options *options, struct cz_data_loader **out);
CZ_API void cz_data_close(struct cz_data_loader *loader); /* accepts NULL */

/* Refuse tokens outside 0 … vocab_size - 1 (vocab_size ≥ 1), here and in every later
 * cz_data_next(). Types that cannot exceed the vocabulary are not searched; of others, up to 256 Mi
 * tokens are, at once. CZ_INVALID: "token 300 at position 17 of FILE is outside …". */
CZ_API cz_status cz_data_check_vocab(struct cz_data_loader *loader, int64_t vocab_size);

/* The next micro-batch of this rank. Its arrays belong to the loader and stay unchanged until the
 * next call. batch->sample is the running number of the first row. With `once`, B is smaller in the
 * epoch's last micro-batch and 0 after it (an outcome, not an error); then the arrays are NULL.
 * With `epochs` B is 0 after the last step, too; in it, a rank without a row gets one without
 * labels. Errors: CZ_INVALID (token outside the vocabulary), CZ_CORRUPT (a file became shorter),
 * CZ_IO. */
CZ_API cz_status cz_data_next(struct cz_data_loader *loader, struct cz_batch *batch);

/* With `once` or `epochs`: every rank has received its last row. Always false otherwise. */
CZ_API bool cz_data_is_done(const struct cz_data_loader *loader);

CZ_API void cz_data_tell(const struct cz_data_loader *loader, struct cz_data_cursor *out);

/* Continue from a saved place; batch size and world size may have changed since. A zeroed cursor is
 * the start of any data. CZ_INVALID: saved for other data, seed or order (the sentence says which).
 */
CZ_API cz_status cz_data_seek(struct cz_data_loader *loader, const struct cz_data_cursor *cursor);

/* A number of the tokens in their order: equal on all ranks of a run (with engine_world_same()).
 * Above 4 million tokens, it hashes a thousand samples of them. Errors: CZ_INVALID (an id outside
 * of the vocabulary), CZ_CORRUPT (a file became shorter), CZ_IO, CZ_NOMEM. */
CZ_API cz_status cz_data_hash(struct cz_data_loader *loader, uint64_t *hash);

CZ_API uint64_t cz_data_n_tokens(const struct cz_data_loader *loader);
CZ_API uint64_t cz_data_n_rows(const struct cz_data_loader *loader);

/* Rows that an epoch trains: fewer than cz_data_n_rows() with drop_last. */
CZ_API uint64_t cz_data_rows_per_epoch(const struct cz_data_loader *loader);

/* Micro-batches that each rank takes in an epoch; rounded up unless drop_last. */
CZ_API uint64_t cz_data_n_batches(const struct cz_data_loader *loader);

/* ---- labelled texts ----------------------------------------------------------------------------
 * The examples of a classification task, read whole. Immutable once open: threads may share them.
 *
 * The format follows from the name and the first character:
 *   NAME.csv, NAME.tsv   rows under a header line; RFC 4180 quoting in .csv, none in .tsv; a UTF-8
 *                        byte order mark is skipped; CR LF or LF
 *   "["                  a JSON list, of [text, label] or [text, pair, label] or of objects
 *   "{"                  JSON lines: an object, or a list as above, per line
 *   NAME.txt, or options.plain      one text per line, no labels
 *   NAME "-"             standard input, the same
 * All may be compressed (gzip, zstd; NAME.csv.gz). A folder stands for its files.
 *
 * With options.words an example is a list of words with a class each (token classification):
 *   "{"                  JSON lines, or in a "[" list, objects with a member "tokens" or "words",
 *                        a list of strings, and "ner_tags", "tags" or "labels", as long a list; or,
 *                        without labels, with a member "text"
 *   options.plain, NAME.txt with labels_optional    one text per line, split by cz_text_split()
 *   any other            CoNLL: a word per line with columns between tabs, or spaces where the line
 *                        has no tab, the word first and its class last; a blank line ends an
 *                        example, -DOCSTART- lines and "# key = value" comments are passed over.
 *                        Column names are numbers from 1 there
 * The text of such an example is its words with a space between them. */

struct cz_texts; /* opaque */

struct cz_texts_options {
    size_t size; /* sizeof(struct cz_texts_options) */
    const char *const *paths;
    size_t n_paths;
    /* Names of members or columns. NULL: the first of "text", "sentence", "sentence1", "content",
     * "review" that exists; for the pair the first of "pair", "sentence2", "text_pair", or none;
     * for the label "label", "labels", "class", "target", "category". A given name must exist. */
    const char *text_column, *pair_column, *label_column;
    bool strip_spaces; /* drop all white space inside texts (texts segmented into words) */
    bool plain;        /* every file is one text per line */
    /* The known classes (a model's), in order: another label is CZ_INVALID. n_labels 0: classes are
     * collected from the data: integers in numeric order, other labels in the order of their bytes.
     * An integer k also names class k when none of the known names is an integer. Where these are
     * LABEL_0, LABEL_1, … and all labels are integers, cz_texts_labels() gives 0, 1, … */
    const char *const *labels;
    size_t n_labels;
    bool labels_optional; /* accept rows without a label (label -1) */
    bool labels_ignored;  /* with labels_optional: read no label, all are -1 */
    /* Every example is words with a class each. */
    bool words;
    /* What the labels are. CZ_PROBLEM_AUTO: values where all are numbers and some have a fraction,
     * sets of classes where they are lists, else one class each; with known names one class each.
     * Sets are read from members of objects: a list of names or integers, or of zeros and ones, as
     * many as there are classes (2 or more). */
    enum cz_problem problem;
    /* A random share of the examples for evaluation (0 < share < 1; 0: no split), drawn by the
     * seed, of each class alike where an example has one class: split_part 0 is what remains for
     * training, 1 the share. The classes are those of all examples. */
    double split_share;
    uint64_t split_seed;
    int split_part;
    /* Columns or members that are kept with each example, for cz_texts_kept(); borrowed during
     * cz_texts_open(). CZ_INVALID: no row has one; plain text, CoNLL and rows that are lists have
     * none. */
    const char *const *keep;
    size_t n_keep;
    /* Of the files, a name of iconv(3) such as "gb18030", "latin-1" or "utf-16", borrowed during
     * cz_texts_open(). NULL means UTF-8. Bytes that are not of the encoding are CZ_CORRUPT. */
    const char *encoding;
    /* Leave out rows without a label, with one warning that counts them. false: they are one
     * CZ_INVALID, which counts them and names the first. */
    bool skip_unlabelled;
};

/* *out is released by cz_texts_close(); NULL on error. Errors: CZ_NOTFOUND, CZ_IO; CZ_CORRUPT (not
 * the format it seems to be; the sentence has file and line), CZ_INVALID (no examples, an
 * unknown label, fewer than two classes, a missing column: lists those that exist), CZ_NOMEM. */
CZ_API cz_status cz_texts_open(const struct cz_texts_options *options, struct cz_texts **out);
CZ_API void cz_texts_close(struct cz_texts *t); /* accepts NULL */

CZ_API size_t cz_texts_count(const struct cz_texts *t);

/* Example i < count: its texts (owned by `t`), and its class or -1. */
CZ_API struct cz_tokenizer_input cz_texts_at(const struct cz_texts *t, size_t i);
CZ_API int32_t cz_texts_label(const struct cz_texts *t, size_t i);

/* What options.keep[k] is of example i, owned by `t`, with its length and a NUL behind it: the text
 * of a table's cell, or a member's value as JSON on one line (*is_json). NULL: the row lacks it. */
CZ_API const char *cz_texts_kept(const struct cz_texts *t, size_t i, size_t k, size_t *nbytes,
                                 bool *is_json);

/* With options.words: the words of example i, owned by `t`; *n: how many. NULL otherwise. */
CZ_API const struct cz_text_word *cz_texts_words(const struct cz_texts *t, size_t i, size_t *n);

/* The words of a text (UTF-8): runs without white space, whose punctuation at either end is split
 * off, and Chinese characters one by one; labels are -1. *words is the caller's, released by
 * cz_free(). Errors: CZ_NOMEM, CZ_INVALID (4 GiB or more). */
CZ_API cz_status cz_text_split(const char *text, size_t nbytes, struct cz_text_word **words,
                               size_t *n_words);

/* The classes, known or collected; the names are owned by `t`. */
CZ_API size_t cz_texts_n_labels(const struct cz_texts *t);
CZ_API const char *const *cz_texts_labels(const struct cz_texts *t);

/* What the labels are: never CZ_PROBLEM_AUTO. Values have no classes. */
CZ_API enum cz_problem cz_texts_problem(const struct cz_texts *t);

/* The targets of example i into `targets`: its value (1), or 1 for each class that it has and 0 for
 * the others (classes); NaN in front of those of an example without a label. cz_texts_label() is
 * then 0 of examples with a label. */
CZ_API void cz_texts_targets(const struct cz_texts *t, size_t i, float *targets);

/* A number of the texts, labels and class names, in their order: equal on all ranks of a run (with
 * engine_world_same()). Above 64 MiB of texts, it hashes the beginning of each. */
CZ_API uint64_t cz_texts_hash(const struct cz_texts *t);

/* How many examples (words) have class k. */
CZ_API size_t cz_texts_n_of_label(const struct cz_texts *t, size_t k);

/* ---- labelled texts as micro-batches -----------------------------------------------------------
 * An epoch visits every example exactly once. A step is accumulation · world_size · micro_batch
 * examples; an epoch has ceil(examples / step) of them. The last step's examples are dealt out
 * evenly over its accumulation · world_size micro-batches, and cz_batch.loss_divisor is the mean
 * number of labels per micro-batch, so that every example of a step has the same weight
 * (of texts with words: every labelled word that was not cut). A rank
 * without an example gets one row whose label is CZ_IGNORE_LABEL.
 *
 * With `bucket`, the (shuffled) epoch is cut into windows of 64 steps; inside a window examples are
 * sorted by length, cut into steps, and the steps are shuffled, so that the rows of a micro-batch
 * have similar lengths. A batch is as wide as its longest row, rounded up to 8 tokens and at most
 * max_len; padding holds the tokenizer's pad id (without one its end id, or 0), type 0, key_mask 0.
 *
 * A thread of the loader's own tokenizes ahead of use. Order and content depend on data, options,
 * seed and epoch alone. */

struct cz_text_loader; /* opaque */

struct cz_text_loader_options {
    size_t size;                          /* sizeof(struct cz_text_loader_options) */
    const struct cz_texts *texts;         /* borrowed until close */
    const struct cz_tokenizer *tokenizer; /* borrowed until close */
    int64_t max_len;                      /* longest row in tokens; longer texts are cut */
    int64_t micro_batch, accumulation;
    int64_t rank, world_size; /* world_size 0 means 1 */
    bool shuffle;
    uint64_t seed;
    bool bucket;
    bool drop_last; /* leave out the epoch's last step when it is not full */
    bool once;      /* stop after one epoch (evaluation); accumulation is then 1 */
};

/* *out is released by cz_text_loader_close(); NULL on error. Errors: CZ_INVALID (options; special
 * tokens that max_len cannot hold), CZ_NOMEM. */
CZ_API cz_status cz_text_loader_open(const struct cz_text_loader_options *options,
                                     struct cz_text_loader **out);
CZ_API void cz_text_loader_close(struct cz_text_loader *l); /* accepts NULL */

/* The next micro-batch of this rank: ids, types, key_mask, labels (B), loss_divisor, sample,
 * and targets where the texts have values or sets. Its arrays belong to the loader and stay
 * unchanged until the next call. With `once`, B is 0 after the last one. Errors: CZ_NOMEM, and what
 * the tokenizer reports. */
CZ_API cz_status cz_text_loader_next(struct cz_text_loader *l, struct cz_batch *batch);

/* Which examples the rows of the last batch are: (B) indices into texts, SIZE_MAX for a row that
 * only fills the batch. */
CZ_API const size_t *cz_text_loader_rows(const struct cz_text_loader *l);

/* Of texts with words, whose labels are (B,T), CZ_IGNORE_LABEL but at the first token of a labelled
 * word: (B,T) the word of the row's example whose first token stands there, -1 at other tokens. */
CZ_API const int32_t *cz_text_loader_words(const struct cz_text_loader *l);

/* With `once`: every example has been given. */
CZ_API bool cz_text_loader_is_done(const struct cz_text_loader *l);

CZ_API uint64_t cz_text_loader_steps_per_epoch(const struct cz_text_loader *l);
CZ_API uint64_t cz_text_loader_n_examples(const struct cz_text_loader *l);

/* Examples that an epoch trains: fewer than all with drop_last. */
CZ_API uint64_t cz_text_loader_rows_per_epoch(const struct cz_text_loader *l);

/* Texts of this rank that were cut to max_len so far. */
CZ_API uint64_t cz_text_loader_n_cut(const struct cz_text_loader *l);

/* Seconds that cz_text_loader_next() has waited for the tokenizer, except for the first batch. */
CZ_API double cz_text_loader_waited_s(const struct cz_text_loader *l);

/* The place, counted in steps (a started step counts as taken): cursor.sample is the first
 * example's running number in its epoch, cursor.n_rows the number of examples. Batch size and world
 * size may change in between: seek goes to the step that holds cursor.sample, and logs when that
 * step begins earlier; with `bucket`, examples of the current window may then come twice or not at
 * all in this epoch. CZ_INVALID: saved for other data, seed or order; nothing changes then. */
CZ_API void cz_text_loader_tell(const struct cz_text_loader *l, struct cz_data_cursor *out);
CZ_API cz_status cz_text_loader_seek(struct cz_text_loader *l, const struct cz_data_cursor *cursor);

CZ_EXTERN_C_END
#endif
