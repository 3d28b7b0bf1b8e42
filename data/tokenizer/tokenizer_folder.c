/* Which tokenizer a folder or file holds, by the names of the files, and copying it beside a
 * trained model, so that the model can be used alone. */
#include "data/tokenizer/tokenizer_impl.h"

#include "formats/file_io.h"
#include "formats/json/json.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* The files that make a tokenizer: what opens them, and what is copied with them. */
struct folder_kind {
    const char *files[3]; /* all are needed */
    cz_status (*open)(const char *dir, struct cz_tokenizer **out);
};

static cz_status open_json(const char *dir, struct cz_tokenizer **out);

/* The first kind whose files are there rules: tokenizer.json holds all that the others say. */
static const struct folder_kind kinds[] = {
    {{"tokenizer.json"}, open_json},
    {{"vocab.txt"}, wordpiece_open_vocab},
    {{"vocab.json", "merges.txt"}, bpe_open_vocab},
};

#define FILES_THAT_DO "tokenizer.json, or vocab.txt (WordPiece), or vocab.json and merges.txt (BPE)"

/* Copied along: names and flags that Hugging Face keeps beside a tokenizer. */
static const char *const companions[] = {"tokenizer_config.json", "special_tokens_map.json",
                                         "added_tokens.json"};

static const char *const sentencepiece[] = {"tokenizer.model", "spiece.model",
                                            "sentencepiece.bpe.model"};

static bool has_file(const char *dir, const char *name)
{
    char *path = file_join(dir, name);
    bool has = path && file_exists(path);
    free(path);
    return has;
}

/* A kind counts as present only with all of its files, or a half-copied folder would hide a
 * complete kind. */
static bool has_all(const char *dir, const struct folder_kind *kind)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(kind->files) && kind->files[i]; i++)
        if (!has_file(dir, kind->files[i])) return false;
    return true;
}

static const struct folder_kind *kind_of_folder(const char *dir)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(kinds); i++)
        if (has_all(dir, &kinds[i])) return &kinds[i];
    return NULL;
}

/* Recognised to name the way out in the error; their format is not read. */
static const char *sentencepiece_in(const char *dir)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(sentencepiece); i++)
        if (has_file(dir, sentencepiece[i])) return sentencepiece[i];
    return NULL;
}

/* True for SentencePiece, too: opening then gives the error that says what to do. */
bool cz_tokenizer_is_in(const char *dir)
{
    return kind_of_folder(dir) || sentencepiece_in(dir);
}

/* ---- opening --------------------------------------------------------------------------------- */

/* model.type; files older than that member show their kind in others. */
static cz_status json_model_type(const struct json_node *root, const char **type)
{
    const struct json_node *model;
    TRY(json_need(root, "model", JSON_OBJECT, &model));
    TRY(json_opt_string(model, "type", NULL, type));
    if (*type) return CZ_OK;
    bool is_pieces = json_get(model, "max_input_chars_per_word") != NULL;
    *type = json_get(model, "merges") ? "BPE" : is_pieces ? "WordPiece" : "unknown";
    return CZ_OK;
}

/* Unigram and WordLevel are the other types. */
static cz_status open_json_doc(const char *dir, const struct json_node *root,
                               struct cz_tokenizer **out)
{
    const char *type;
    char where[512];
    TRY(json_model_type(root, &type));
    if (strcmp(type, "WordPiece") == 0) return wordpiece_open_json(dir, root, out);
    if (strcmp(type, "BPE") == 0) return bpe_open_json(dir, root, out);
    return err_set(CZ_UNSUPPORTED, 0,
                   "%s: a tokenizer of type %s is not read; those of types WordPiece and BPE are",
                   json_where(json_get(root, "model"), where, sizeof where), type);
}

static cz_status open_json(const char *dir, struct cz_tokenizer **out)
{
    char *path = file_join(dir, "tokenizer.json");
    struct json_doc *doc = NULL;
    if (!path) return err_set(CZ_NOMEM, 0, "no memory for a path");
    cz_status st = json_load(path, JSON_STRICT, &doc);
    free(path);
    TRY(st);
    st = open_json_doc(dir, json_root(doc), out);
    json_free(doc);
    return st;
}

/* The folder is remembered for cz_tokenizer_export(). */
static cz_status open_kind(const char *dir, const struct folder_kind *kind,
                           struct cz_tokenizer **out)
{
    char *kept = strdup(dir);
    if (!kept) return err_set(CZ_NOMEM, 0, "no memory for a path");
    cz_status st = kind->open(dir, out);
    if (st != CZ_OK) {
        free(kept);
        *out = NULL;
        return err_trace(st, __func__, __LINE__);
    }
    (*out)->dir = kept;
    (*out)->files = kind->files;
    return CZ_OK;
}

/* Names what is there and what is missing: a SentencePiece model alone is the most frequent
 * case. */
static cz_status nothing_in(const char *dir)
{
    const char *model = sentencepiece_in(dir);
    if (model)
        return err_set(CZ_UNSUPPORTED, 0,
                       "%s: %s (SentencePiece) is not read; save the tokenizer with "
                       "transformers' fast class to get a tokenizer.json",
                       dir, model);
    if (has_file(dir, "vocab.json") || has_file(dir, "merges.txt"))
        return err_set(CZ_NOTFOUND, 0, "%s: %s is there, but %s is missing", dir,
                       has_file(dir, "vocab.json") ? "vocab.json" : "merges.txt",
                       has_file(dir, "vocab.json") ? "merges.txt" : "vocab.json");
    return err_set(CZ_NOTFOUND, 0, "%s: contains no tokenizer; expected one of: " FILES_THAT_DO,
                   dir);
}

/* A file named by its path means its kind, whatever else the folder holds. vocab.json and
 * merges.txt both lead to BPE. */
static const struct folder_kind *kind_of_file(const char *base)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(kinds); i++)
        for (size_t k = 0; k < CZ_ARRAY_LEN(kinds[i].files) && kinds[i].files[k]; k++)
            if (strcmp(base, kinds[i].files[k]) == 0) return &kinds[i];
    return NULL;
}

cz_status tokenizer_folder_open(const char *name, struct cz_tokenizer **out)
{
    struct stat info;
    *out = NULL;
    if (stat(name, &info) != 0)
        return err_set(errno == ENOENT ? CZ_NOTFOUND : CZ_IO, errno,
                       "tokenizer %s (\"bytes\" is built in; else a folder or file is named)",
                       name);
    if (!S_ISDIR(info.st_mode)) {
        const char *slash = strrchr(name, '/');
        const char *base = slash ? slash + 1 : name;
        const struct folder_kind *kind = kind_of_file(base);
        if (!kind)
            return err_set(CZ_UNSUPPORTED, 0,
                           "%s: a tokenizer is a folder, or a file with the name " FILES_THAT_DO,
                           name);
        size_t n = slash == name ? 1 : slash ? (size_t)(slash - name) : 0;
        char *dir = slash ? strndup(name, n) : strdup(".");
        if (!dir) return err_set(CZ_NOMEM, 0, "no memory for a path");
        cz_status st = has_all(dir, kind) ? open_kind(dir, kind, out) : nothing_in(dir);
        free(dir);
        return st;
    }
    const struct folder_kind *kind = kind_of_folder(name);
    return kind ? open_kind(name, kind, out) : nothing_in(name);
}

/* ---- copying --------------------------------------------------------------------------------- */

#define FILE_NBYTES_MAX ((size_t)1 << 30)

/* Through memory and file_save(), so that the copy appears whole or not at all. */
static cz_status copy_file(const char *from_dir, const char *name, const char *to_dir)
{
    char *from = file_join(from_dir, name), *to = file_join(to_dir, name), *bytes = NULL;
    size_t nbytes;
    cz_status st = CZ_NOMEM;
    if (!from || !to) {
        err_set(CZ_NOMEM, 0, "no memory for a path");
        goto done;
    }
    TRY_GOTO(file_load(from, FILE_NBYTES_MAX, &bytes, &nbytes), done);
    TRY_GOTO(file_save(to, bytes, nbytes), done);
done:
    free(from);
    free(to);
    free(bytes);
    return st;
}

/* The bytes tokenizer has no files. */
cz_status cz_tokenizer_export(const struct cz_tokenizer *tok, const char *dir)
{
    if (!tok->dir) return CZ_OK;
    for (size_t i = 0; i < CZ_ARRAY_LEN(kinds->files) && tok->files[i]; i++)
        TRY(copy_file(tok->dir, tok->files[i], dir));
    for (size_t i = 0; i < CZ_ARRAY_LEN(companions); i++)
        if (has_file(tok->dir, companions[i])) TRY(copy_file(tok->dir, companions[i], dir));
    return CZ_OK;
}
