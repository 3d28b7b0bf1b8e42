/* The token store: the tokens of all files as one stream.
 *
 * Life cycle: store_init() → store_add() per path → store_read() → store_free(). A file stays open
 * and is read in pieces; a text for a trained tokenizer is encoded into memory. One thread at a
 * time. */
#ifndef CZ_DATA_CORPUS_STORE_IMPL_H
#define CZ_DATA_CORPUS_STORE_IMPL_H

#include "base/status.h"
#include "data/source/paths.h"
#include <czero/data.h>

enum token_kind { TOKEN_U8, TOKEN_I8, TOKEN_U16, TOKEN_I16, TOKEN_U32, TOKEN_I32, TOKEN_I64 };

struct token_file {
    char *path;
    int fd; /* -1: `encoded` */
    uint64_t nbytes;
    unsigned char *encoded; /* the ids of a text; NULL: the file is read */
};

/* A run of tokens that are contiguous in a file. */
struct token_run {
    size_t file_idx;
    enum token_kind kind;
    uint64_t byte_off; /* of the first token in the file */
    uint64_t n_tokens;
    uint64_t first;      /* place of the first token in the whole stream … */
    uint64_t file_first; /* … and among the tokens of its file */
};

struct token_store {
    struct token_file *files;
    size_t n_files;
    struct token_run *runs;
    size_t n_runs, runs_capacity;
    uint64_t n_tokens;
    uint64_t n_checked;   /* bytes of text that were read to check that they are text */
    bool ends_texts;      /* plain text of a file is a document: the tokenizer's end follows it */
    const char *encoding; /* of text, borrowed during store_add(); NULL: UTF-8 */
};

void store_init(struct token_store *s, struct token_file *files);

/* Append what a file holds (the forms are those of data_options). `files` given to store_init has
 * space for one file per call. tok NULL: bytes. Errors: as cz_data_open. */
cz_status store_add(struct token_store *s, const struct data_path *path,
                    const struct cz_tokenizer *tok);

/* Endings of text files, of rows and of tokens, which count in a folder; NULL ends them. */
extern const char *const store_suffixes[];

/* dst[0 … n) = tokens first … first + n of the stream. Errors: CZ_INVALID for an id outside
 * [0, vocab_size) with file and position; CZ_CORRUPT when a file became shorter; CZ_IO. */
cz_status store_read(struct token_store *s, uint64_t first, size_t n, int64_t vocab_size,
                     int32_t *dst);

/* Largest id that the kinds of the files can express. */
int64_t store_id_max(const struct token_store *s);

/* Accepts a zeroed store. Does not free the array of files itself. */
void store_free(struct token_store *s);

/* ---- for the file formats -------------------------------------------------------------------- */

size_t token_kind_size(enum token_kind kind);

/* Append n tokens; a run that continues the last one is joined to it. */
cz_status store_add_run(struct token_store *s, size_t file_idx, enum token_kind kind,
                        uint64_t byte_off, uint64_t n_tokens);

/* Open a file as the store's next. Errors: CZ_INVALID (empty), CZ_NOTFOUND, CZ_IO, CZ_NOMEM,
 * CZ_CORRUPT (a link that leads out of the folder). */
cz_status store_open(struct token_store *s, const struct data_path *path, size_t *file_idx);

/* Bytes [off, off + nbytes) of an open file. Errors: CZ_CORRUPT (it became shorter), CZ_IO. */
cz_status store_bytes(const struct token_file *f, uint64_t off, size_t nbytes, void *dst);

/* The text of an open file becomes its ids, kept in memory instead of the file; is_rows: the texts
 * of its JSON rows, with the tokenizer's end behind each. tok NULL: bytes. Errors: CZ_INVALID (no
 * tokens, a row without a text), CZ_UNSUPPORTED (no text), CZ_CORRUPT (JSON, compressed data; it
 * became shorter), CZ_IO, CZ_NOMEM. */
cz_status store_encode(struct token_store *s, size_t file_idx, const struct cz_tokenizer *tok,
                       bool is_rows);

/* Close and empty one file. */
void store_close(struct token_file *f);

/* Megatron's PREFIX.idx and PREFIX.bin. */
cz_status store_add_megatron(struct token_store *s, const struct data_path *idx_path,
                             const struct data_path *bin_path);

#endif
