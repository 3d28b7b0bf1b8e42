/* Which tokenizer a folder or file holds, by the names of the files, and writing it beside a
 * trained model, so that the model can be used alone. */
#include "data/tokenizer/tokenizer_json_impl.h"

#include "data/tokenizer/proto_impl.h"

#include "base/host/entry.h"
#include "base/log.h"
#include "base/utf8.h"
#include "data/tokenizer/tokenizer_export.h"
#include "formats/beneath.h"
#include "formats/file_io.h"
#include "formats/json/json_copy.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The files that make a tokenizer: what opens them, and what is copied with them. */
struct folder_kind {
    const char *files[3]; /* all are needed */
    cz_status (*open)(const char *dir, struct cz_tokenizer **out);
};

static cz_status open_json(const char *dir, struct cz_tokenizer **out);

#define PIECES         "tokenizer.model"
#define DEBERTA_PIECES "spm.model"

/* The first kind whose files are there rules: tokenizer.json holds all that the others say. */
static const struct folder_kind kinds[] = {
    {{"tokenizer.json"}, open_json},
    {{"vocab.txt"}, wordpiece_open_vocab},
    {{"vocab.json", "merges.txt"}, bpe_open_vocab},
    {{PIECES}, pipe_open_pieces},
    {{DEBERTA_PIECES}, pipe_open_deberta},
};

#define FILES_THAT_DO                                                                              \
    "tokenizer.json, or vocab.txt (WordPiece), or vocab.json and merges.txt (BPE), or "            \
    "tokenizer.model or spm.model (SentencePiece)"

/* Exported, too: names and flags that Hugging Face keeps beside a tokenizer. */
static const char *const companions[] = {"tokenizer_config.json", "special_tokens_map.json",
                                         "added_tokens.json"};

/* Exported, too, when they are what they seem: a chat template, SentencePiece's model. */
#define CHAT_TEMPLATE            "chat_template.jinja"
#define CHAT_TEMPLATES           "additional_chat_templates"
#define CHAT_TEMPLATE_NBYTES_MAX ((size_t)1 << 20)
#define PIECES_NBYTES_MAX        ((size_t)64 << 20)

/* Under these names ids are not the pieces' places: transformers' classes move them. */
static const char *const sentencepiece[] = {"spiece.model", "sentencepiece.bpe.model"};

/* A kind counts as present only with all of its files, or a half-copied folder would hide a
 * complete kind. */
static bool has_all(const char *dir, const struct folder_kind *kind)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(kind->files) && kind->files[i]; i++)
        if (!beneath_is_there(dir, kind->files[i])) return false;
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
        if (beneath_is_there(dir, sentencepiece[i])) return sentencepiece[i];
    return NULL;
}

/* True for SentencePiece, too: opening then gives the error that says what to do. */
bool cz_tokenizer_is_in(const char *dir)
{
    API_ENTRY;
    NEED_OR(dir, false);
    return kind_of_folder(dir) || sentencepiece_in(dir);
}

/* ---- opening --------------------------------------------------------------------------------- */

/* BERT's WordPiece and byte-level BPE have faster code than any other chain of steps. */
static cz_status open_json_doc(const char *dir, const struct json_node *root,
                               struct cz_tokenizer **out)
{
    const char *type;
    TRY(tokenizer_json_model_type(root, &type));
    if (strcmp(type, "WordPiece") == 0 && wordpiece_is_bert(root))
        return wordpiece_open_json(dir, root, out);
    bool is_byte_level = false;
    if (strcmp(type, "BPE") == 0) TRY(bpe_is_byte_level(root, &is_byte_level));
    if (is_byte_level) return bpe_open_json(dir, root, out);
    return pipe_open_json(dir, root, out);
}

static cz_status open_json(const char *dir, struct cz_tokenizer **out)
{
    struct json_doc *doc;
    TRY(json_load_in(dir, "tokenizer.json", JSON_STRICT, &doc));
    cz_status st = open_json_doc(dir, json_root(doc), out);
    json_free(doc);
    return st;
}

/* A file that is exported, too, if it is there: one that is a link to elsewhere is refused here, not
 * after hours of training. */
static cz_status check_companion(const char *dir, const char *name)
{
    struct stat info;
    const cz_status st = beneath_stat(dir, name, &info);
    if (st != CZ_NOTFOUND) return st;
    err_clear();
    return CZ_OK;
}

/* The folder is remembered for cz_tokenizer_export(). */
static cz_status open_kind(const char *dir, const struct folder_kind *kind,
                           struct cz_tokenizer **out)
{
    static const char *const others[] = {CHAT_TEMPLATE, PIECES, DEBERTA_PIECES};
    for (size_t i = 0; i < CZ_ARRAY_LEN(companions); i++) TRY(check_companion(dir, companions[i]));
    for (size_t i = 0; i < CZ_ARRAY_LEN(others); i++) TRY(check_companion(dir, others[i]));
    TRY(tokenizer_check_companions(dir));
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
    if (beneath_is_there(dir, "vocab.json") || beneath_is_there(dir, "merges.txt"))
        return err_set(CZ_NOTFOUND, 0, "%s: %s is there, but %s is missing", dir,
                       beneath_is_there(dir, "vocab.json") ? "vocab.json" : "merges.txt",
                       beneath_is_there(dir, "vocab.json") ? "merges.txt" : "vocab.json");
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

/* ---- writing --------------------------------------------------------------------------------- */

static bool ends_in(const char *name, const char *suffix)
{
    const size_t n = strlen(name), n_suffix = strlen(suffix);
    return n >= n_suffix && strcmp(name + n - n_suffix, suffix) == 0;
}

/* A vocabulary or a list of tokens on one line, as transformers writes it; others over many. */
static cz_status json_as_text(const char *dir, const char *name, json_omit *omit, char **text,
                              size_t *nbytes)
{
    struct json_doc *doc;
    struct json_writer w;
    TRY(json_load_in(dir, name, JSON_STRICT, &doc));
    const struct json_node *root = json_root(doc);
    const bool is_list = strcmp(name, "vocab.json") == 0 || strcmp(name, "added_tokens.json") == 0;
    cz_status st = CZ_OK;
    if (json_type(root) != JSON_OBJECT)
        st = err_set(CZ_CORRUPT, 0, "%s/%s: is no object of JSON", dir, name);
    int64_t id;
    for (size_t i = 0; is_list && st == CZ_OK && i < json_count(root); i++)
        st = json_as_int(json_child(root, i), &id);
    json_writer_init(&w, is_list ? 0 : 2);
    if (st == CZ_OK) st = json_write_node(&w, root, omit);
    json_write_text(&w, "\n");
    if (st == CZ_OK)
        st = json_writer_take(&w, text, nbytes);
    else
        json_writer_free(&w);
    json_free(doc);
    return st;
}

static cz_status export_json(const char *from_dir, const char *name, const struct out_folder *to)
{
    char *text;
    size_t nbytes;
    TRY(json_as_text(from_dir, name, NULL, &text, &nbytes));
    cz_status st = file_save_in(to, name, text, nbytes);
    free(text);
    return st;
}

/* Besides traces: another template stands in chat_template.jinja. */
static bool is_trace_or_template(const struct json_node *member)
{
    return strcmp(json_key(member), "chat_template") == 0 || json_is_trace(member);
}

/* The tokenizer works without it, so one that says nothing is left out, and a run does not fail at
 * its end. What names the machine that it comes from stays behind. */
static cz_status export_companion(const char *from_dir, const char *name, json_omit *omit,
                                  const struct out_folder *to)
{
    char *text;
    size_t nbytes;
    if (!beneath_is_there(from_dir, name)) return CZ_OK;
    cz_status st = json_as_text(from_dir, name, omit, &text, &nbytes);
    if (st == CZ_NOMEM) return st;
    if (st != CZ_OK) {
        LOGV(LOG_WARN, SUB_DATA, "not exported: %s", cz_last_error());
        err_clear();
        return CZ_OK;
    }
    st = file_save_in(to, name, text, nbytes);
    free(text);
    return st;
}

static cz_status check_template(const char *text, size_t nbytes)
{
    if (utf8_is_valid(text, nbytes) && !memchr(text, 0, nbytes)) return CZ_OK;
    return err_set(CZ_CORRUPT, 0, "is no UTF-8 text");
}

/* A piece: its text (1), score (2) and kind (3). */
static bool is_piece(const unsigned char *at, size_t n)
{
    const unsigned char *end = at + n;
    struct proto_field f;
    bool has_text = false;
    while (at < end) {
        if (!proto_next(&at, end, &f)) return false;
        if (f.number == 1 && (f.type != 2 || !utf8_is_valid((const char *)f.bytes, f.nbytes)))
            return false;
        if ((f.number == 2 && f.type != 5) || (f.number == 3 && f.type != 0)) return false;
        has_text = has_text || f.number == 1;
    }
    return has_text;
}

/* SentencePiece's ModelProto: pieces (1), and messages of how it was made and normalizes (2 to 5,
 * and extensions from 200 on). */
static cz_status check_pieces(const char *text, size_t nbytes)
{
    const unsigned char *at = (const unsigned char *)text, *end = at + nbytes;
    struct proto_field f;
    uint64_t n_pieces = 0;
    while (at < end) {
        if (!proto_next(&at, end, &f) || f.number == 0 || (f.number > 5 && f.number < 200) ||
            (f.number <= 5 && f.type != 2) || (f.number == 1 && !is_piece(f.bytes, f.nbytes)))
            return err_set(CZ_CORRUPT, 0, "is no model of SentencePiece (byte %zu)",
                           (size_t)(at - (const unsigned char *)text));
        n_pieces += f.number == 1;
    }
    return n_pieces > 0 ? CZ_OK
                        : err_set(CZ_CORRUPT, 0, "is a model of SentencePiece without pieces");
}

/* A file whose form was checked from end to end. As with the companions, one that is something else
 * is left out. */
static cz_status export_checked(const char *from_dir, const char *name, size_t nbytes_max,
                                cz_status (*check)(const char *text, size_t nbytes),
                                const struct out_folder *to)
{
    char *text;
    size_t nbytes;
    if (!beneath_is_there(from_dir, name)) return CZ_OK;
    cz_status st = beneath_load(from_dir, name, nbytes_max, &text, &nbytes);
    if (st == CZ_OK && (st = check(text, nbytes)) != CZ_OK)
        (void)err_prefix("%s/%s", from_dir, name); /* the status is kept */
    if (st == CZ_OK) {
        st = file_save_in(to, name, text, nbytes);
    } else if (st != CZ_NOMEM) {
        LOGV(LOG_WARN, SUB_DATA, "not exported: %s", cz_last_error());
        err_clear();
        st = CZ_OK;
    }
    free(text);
    return st;
}

/* Those of an export that this one replaces would count. */
static cz_status remove_templates(const char *from_dir, const struct out_folder *to)
{
    struct out_folder below = {.path = NULL};
    if (!beneath_is_there(from_dir, CHAT_TEMPLATE)) TRY(out_remove(to, CHAT_TEMPLATE));
    if (!out_is_there(to, CHAT_TEMPLATES)) return CZ_OK;
    TRY(out_folder_below(to, CHAT_TEMPLATES, false, &below));
    cz_status st = out_remove(&below, "tool_use.jinja");
    out_folder_close(&below);
    return st;
}

/* chat_template.jinja, additional_chat_templates/NAME.jinja */
static cz_status export_templates(const char *from_dir, const struct out_folder *to)
{
    enum { TEMPLATES_MAX = 64 };
    struct out_folder below = {.path = NULL};
    char from[PATH_MAX];
    int fd, n = 0;
    cz_status st = CZ_OK;
    TRY(export_checked(from_dir, CHAT_TEMPLATE, CHAT_TEMPLATE_NBYTES_MAX, check_template, to));
    if (!beneath_is_folder(from_dir, CHAT_TEMPLATES) ||
        snprintf(from, sizeof from, "%s/" CHAT_TEMPLATES, from_dir) >= PATH_MAX)
        return CZ_OK;
    TRY(beneath_open_folder(from_dir, CHAT_TEMPLATES, &fd));
    DIR *dir = fdopendir(fd);
    if (!dir) close(fd);
    if (dir) st = out_folder_below(to, CHAT_TEMPLATES, true, &below);
    for (struct dirent *e; st == CZ_OK && dir && n < TEMPLATES_MAX && (e = readdir(dir));) {
        if (!ends_in(e->d_name, ".jinja")) continue;
        st = export_checked(from, e->d_name, CHAT_TEMPLATE_NBYTES_MAX, check_template, &below);
        n++;
    }
    out_folder_close(&below);
    if (dir) closedir(dir);
    return st;
}

static bool is_same_folder(const char *a, const struct out_folder *b)
{
    struct stat left, right;
    return stat(a, &left) == 0 && fstat(b->fd, &right) == 0 && left.st_dev == right.st_dev &&
           left.st_ino == right.st_ino;
}

/* Nothing is copied as bytes of unknown content: JSON is parsed and written anew, vocab.txt and
 * merges.txt are what was understood of them, a chat template is text, SentencePiece's model is
 * walked through. The bytes tokenizer has no files. */
cz_status tokenizer_export(const struct cz_tokenizer *tok, const struct out_folder *to,
                           bool with_templates)
{
    json_omit *omit = with_templates ? json_is_trace : is_trace_or_template;
    if (!tok->dir || (is_same_folder(tok->dir, to) && with_templates)) return CZ_OK;
    if (is_same_folder(tok->dir, to)) return export_companion(tok->dir, companions[0], omit, to);
    for (size_t i = 0; i < CZ_ARRAY_LEN(kinds->files) && tok->files[i]; i++) {
        if (ends_in(tok->files[i], ".json"))
            TRY(export_json(tok->dir, tok->files[i], to));
        else if (!ends_in(tok->files[i], ".model")) /* those are with the companions, below */
            TRY(file_save_in(to, tok->files[i], tok->lines, tok->lines_nbytes));
    }
    for (size_t i = 0; i < CZ_ARRAY_LEN(companions); i++)
        TRY(export_companion(tok->dir, companions[i], omit, to));
    TRY(remove_templates(tok->dir, to));
    if (with_templates) TRY(export_templates(tok->dir, to));
    TRY(export_checked(tok->dir, PIECES, PIECES_NBYTES_MAX, check_pieces, to));
    return export_checked(tok->dir, DEBERTA_PIECES, PIECES_NBYTES_MAX, check_pieces, to);
}

cz_status cz_tokenizer_export(const struct cz_tokenizer *tok, const char *dir)
{
    API_ENTRY;
    NEED(tok, "tokenizer");
    NEED(dir, "dir");
    struct out_folder folder;
    TRY(out_folder_open(dir, &folder));
    cz_status st = tokenizer_export(tok, &folder, true);
    out_folder_close(&folder);
    return st;
}
