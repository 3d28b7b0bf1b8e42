/* What a path holds: Megatron's pair (.idx, .bin), llm.c's .bin, plain tokens (u8:PATH, u16:PATH,
 * u32:PATH), rows of JSON, or text. Decided by names and magic numbers; a .bin that has neither is
 * refused, because reading tokens as text would train on noise, and so is what is known to be no
 * text. */
#include "data/corpus/store_impl.h"
#include "data/source/byte_stream.h"
#include "data/source/content.h"
#include "data/source/utf8_stream.h"
#include "formats/beneath.h"
#include "formats/file_io.h"

#include <stdlib.h>
#include <string.h>

/* llm.c: 256 int32 (magic, version, number of tokens, zeros), then the tokens. */
#define LLMC_HEADER_NBYTES 1024u

static const struct llmc_form {
    int32_t magic, version;
    enum token_kind kind;
} llmc_forms[] = {
    {20240520, 1, TOKEN_U16}, /* GPT-2's tokens */
    {20240801, 7, TOKEN_U32}, /* LLaMA 3's */
};

static bool ends_with(const char *text, const char *suffix)
{
    size_t n = strlen(text), n_suffix = strlen(suffix);
    return n > n_suffix && strcmp(text + n - n_suffix, suffix) == 0;
}

/* path with its last n_drop characters replaced by `suffix`; NULL: no memory. */
static char *with_suffix(const char *path, size_t n_drop, const char *suffix)
{
    size_t n = strlen(path) - n_drop;
    char *out = malloc(n + strlen(suffix) + 1);
    if (!out) return NULL;
    memcpy(out, path, n);
    strcpy(out + n, suffix);
    return out;
}

/* By the magic number; NULL: another kind of file. */
static cz_status find_llmc_form(const struct token_file *f, const struct llmc_form **out)
{
    int32_t magic;
    *out = NULL;
    if (f->nbytes < sizeof magic) return CZ_OK;
    TRY(store_bytes(f, 0, sizeof magic, &magic));
    for (size_t i = 0; i < CZ_ARRAY_LEN(llmc_forms) && !*out; i++)
        if (llmc_forms[i].magic == magic) *out = &llmc_forms[i];
    return CZ_OK;
}

/* The header's count must fit the file's length exactly: a truncated file is damage, not a shorter
 * one. */
static cz_status add_llmc(struct token_store *s, size_t file_idx, const struct llmc_form *form)
{
    const struct token_file *f = &s->files[file_idx];
    int32_t header[3];
    if (f->nbytes < LLMC_HEADER_NBYTES)
        return err_set(CZ_CORRUPT, 0, "%s: truncated: %llu bytes are too few for the header of %u",
                       f->path, (unsigned long long)f->nbytes, LLMC_HEADER_NBYTES);
    TRY(store_bytes(f, 0, sizeof header, header));
    if (header[1] != form->version)
        return err_set(CZ_VERSION, 0, "%s: version %d of the llm.c token format; %d is read",
                       f->path, header[1], form->version);
    size_t width = token_kind_size(form->kind);
    uint64_t n_tokens = (uint64_t)(uint32_t)header[2];
    uint64_t want = LLMC_HEADER_NBYTES + n_tokens * width;
    if (f->nbytes != want)
        return err_set(CZ_CORRUPT, 0,
                       "%s: %s: its header promises %llu tokens (%llu bytes), the file has %llu",
                       f->path, f->nbytes < want ? "truncated" : "damaged",
                       (unsigned long long)n_tokens, (unsigned long long)want,
                       (unsigned long long)f->nbytes);
    if (n_tokens == 0) return err_set(CZ_INVALID, 0, "%s: contains no tokens", f->path);
    return store_add_run(s, file_idx, form->kind, LLMC_HEADER_NBYTES, n_tokens);
}

const char *const store_suffixes[] = {".txt",  ".text", ".jsonl",   ".ndjson",
                                      ".json", ".bin",  ".parquet", NULL};

/* Texts beyond these are kept in memory: a process may have 1024 files open. */
#define OPEN_FILES_MAX 256

static cz_status add_plain(struct token_store *s, const char *name, enum token_kind kind)
{
    const struct data_path path = {.name = name, .shown = name};
    size_t file_idx, width = token_kind_size(kind);
    if (!*name) return err_set(CZ_INVALID, 0, "u%zu: is not followed by a file's name", 8 * width);
    TRY(store_open(s, &path, &file_idx));
    uint64_t nbytes = s->files[file_idx].nbytes;
    if (nbytes % width != 0)
        return err_set(CZ_CORRUPT, 0, "%s: %llu bytes are no whole number of %zu-bit tokens", name,
                       (unsigned long long)nbytes, 8 * width);
    return store_add_run(s, file_idx, kind, 0, nbytes / width);
}

/* Either file of the pair may be named, or their common prefix. */
static bool is_megatron(const struct data_path *path, size_t *n_drop)
{
    *n_drop = 0;
    if (ends_with(path->name, ".idx")) {
        *n_drop = 4;
        return true;
    }
    if (ends_with(path->name, ".bin"))
        *n_drop = 4;
    else if (beneath_is_there(path->dir, path->name))
        return false;
    char *idx = with_suffix(path->name, *n_drop, ".idx");
    bool found = idx && beneath_is_there(path->dir, idx);
    free(idx);
    return found;
}

static cz_status add_pair(struct token_store *s, const struct data_path *path, size_t n_drop)
{
    struct data_path idx = {.dir = path->dir}, bin = idx;
    char *names[4] = {
        with_suffix(path->name, n_drop, ".idx"), with_suffix(path->shown, n_drop, ".idx"),
        with_suffix(path->name, n_drop, ".bin"), with_suffix(path->shown, n_drop, ".bin")};
    idx.name = names[0];
    idx.shown = names[1];
    bin.name = names[2];
    bin.shown = names[3];
    cz_status st = names[0] && names[1] && names[2] && names[3]
                       ? store_add_megatron(s, &idx, &bin)
                       : err_set(CZ_NOMEM, 0, "%s: no memory for file names", path->shown);
    for (size_t i = 0; i < CZ_ARRAY_LEN(names); i++) free(names[i]);
    return st;
}

/* Of all texts that are read where they are: seconds at the start, not the length of the data. */
#define CHECKED_NBYTES ((uint64_t)256 << 20)

static cz_status check_utf8(struct token_store *s, const struct token_file *f)
{
    struct utf8_stream *text;
    char block[4096];
    size_t got = 1;
    const struct utf8_stream_options options = {.path = f->path, .n_raw = f->nbytes};
    TRY(utf8_stream_open(f->fd, &options, &text));
    cz_status st = CZ_OK;
    while (st == CZ_OK && got > 0 && s->n_checked < CHECKED_NBYTES) {
        st = utf8_stream_read(text, block, sizeof block, &got);
        s->n_checked += got;
    }
    utf8_stream_close(text);
    return st;
}

/* A file without a trained tokenizer is read where it is, if it is text. A byte order mark is no
 * part of it. */
static cz_status add_bytes(struct token_store *s, size_t file_idx)
{
    const struct token_file *f = &s->files[file_idx];
    const size_t n = f->nbytes < CONTENT_HEAD_NBYTES ? (size_t)f->nbytes : CONTENT_HEAD_NBYTES;
    char *head = malloc(n);
    if (!head) return err_set(CZ_NOMEM, 0, "%s: no memory to read it", f->path);
    cz_status st = store_bytes(f, 0, n, head);
    if (st == CZ_OK) st = content_check_text(f->path, head, n);
    const uint64_t skip = st == CZ_OK && n >= 3 && memcmp(head, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
    free(head);
    TRY(st);
    TRY(check_utf8(s, f));
    if (f->nbytes == skip) return err_set(CZ_INVALID, 0, "%s: is empty", f->path);
    return store_add_run(s, file_idx, TOKEN_U8, skip, f->nbytes - skip);
}

cz_status store_add(struct token_store *s, const struct data_path *path,
                    const struct cz_tokenizer *tok)
{
    static const struct {
        const char *prefix;
        enum token_kind kind;
    } plain[] = {{"u8:", TOKEN_U8}, {"u16:", TOKEN_U16}, {"u32:", TOKEN_U32}};
    const struct llmc_form *form;
    unsigned char magic[4] = {0};
    size_t n_drop, file_idx;
    for (size_t i = 0; i < CZ_ARRAY_LEN(plain) && !path->dir; i++) {
        const size_t n = strlen(plain[i].prefix);
        if (strncmp(path->name, plain[i].prefix, n) == 0)
            return add_plain(s, path->name + n, plain[i].kind);
    }
    if (is_megatron(path, &n_drop)) return add_pair(s, path, n_drop);
    TRY(store_open(s, path, &file_idx));
    const struct token_file *f = &s->files[file_idx];
    TRY(find_llmc_form(f, &form));
    if (form) return add_llmc(s, file_idx, form);
    if (ends_with(path->name, ".bin"))
        return err_set(CZ_CORRUPT, 0,
                       "%s: has neither the header of llm.c's tokens (magic 20240520 or 20240801) "
                       "nor a Megatron .idx beside it; tokens without a header are read as "
                       "u16:%s or u32:%s",
                       f->path, f->path, f->path);
    const bool is_rows = data_path_is_rows(path->name);
    TRY(store_bytes(f, 0, f->nbytes < sizeof magic ? (size_t)f->nbytes : sizeof magic, magic));
    const bool is_bytes = !tok || strcmp(cz_tokenizer_name(tok), "bytes") == 0;
    if (is_bytes && !is_rows && utf8_stream_is_utf8(s->encoding) && file_idx < OPEN_FILES_MAX &&
        byte_packing_of(magic, sizeof magic) == BYTES_PLAIN)
        return add_bytes(s, file_idx);
    return store_encode(s, file_idx, tok, is_rows);
}
