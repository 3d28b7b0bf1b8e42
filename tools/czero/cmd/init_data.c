/* What training data hold, by their first rows. A look, not a check: the run reads all of them and
 * names what is wrong. What cannot be read here is taken for text. */
#include "tools/czero/cmd/init.h"

#include "data/source/json_stream.h"
#include "data/source/paths.h"

#include <ctype.h>
#include <string.h>

#define N_LINES    200 /* of a file of words: enough to tell */
#define LINE_BYTES 4096

/* ---- members of an object -------------------------------------------------------------------- */

struct members {
    bool has_chat, has_instruction, has_prompt, has_answer, has_text, has_label;
    bool has_words, has_tags; /* lists */
};

static bool is_one_of(const char *name, const char *const *names)
{
    for (; *names; names++)
        if (strcmp(*names, name) == 0) return true;
    return false;
}

/* The names that chat_row.h and cz_texts_options read. */
static void note(struct members *m, const struct init_flags *f, const char *name, bool is_list)
{
    static const char *const chats[] = {"messages", "conversations", "conversation", NULL};
    static const char *const answers[] = {"completion", "output", "response", NULL};
    static const char *const texts[] = {"text",   "sentence",  "sentence1", "content",
                                        "review", "sentence2", NULL};
    static const char *const labels[] = {"label", "labels", "class", "target", "category", NULL};
    static const char *const words[] = {"tokens", "words", NULL};
    static const char *const tags[] = {"ner_tags", "tags", "labels", NULL};
    m->has_chat |= is_list && is_one_of(name, chats);
    m->has_instruction |= strcmp(name, "instruction") == 0;
    m->has_prompt |= strcmp(name, "prompt") == 0;
    m->has_answer |= is_one_of(name, answers);
    m->has_text |= is_one_of(name, texts);
    m->has_label |= is_one_of(name, labels);
    m->has_label |= f->label_column && strcmp(name, f->label_column) == 0;
    m->has_words |= is_list && is_one_of(name, words);
    m->has_tags |= is_list && is_one_of(name, tags);
}

static cz_status read_members(struct text_source *in, const struct init_flags *f, struct members *m)
{
    struct text_buf name = {0}, value = {0};
    bool done = false;
    cz_status st = CZ_OK;
    text_source_skip(in); /* { */
    while (st == CZ_OK && !done && json_stream_peek(in) == '"') {
        TRY_GOTO(json_stream_key(in, &name), end);
        TRY_GOTO(text_buf_put_char(&name, '\0'), end);
        const bool is_list = json_stream_peek(in) == '[';
        note(m, f, name.s, is_list);
        name.n = 0;
        TRY_GOTO(json_stream_skip(in, &value, 1), end);
        TRY_GOTO(json_stream_separator(in, '}', &done), end);
    }
end:
    text_buf_free(&name);
    text_buf_free(&value);
    return st;
}

static enum init_kind kind_of_members(const struct members *m)
{
    if (m->has_words && m->has_tags) return INIT_WORDS;
    if (m->has_chat || m->has_instruction || (m->has_prompt && m->has_answer)) return INIT_CHATS;
    return m->has_label ? INIT_LABELLED : INIT_TEXT;
}

/* The first row of JSON lines or of a list. A row that is a list is [text, label]. */
static cz_status look_at_json(struct text_source *in, const struct init_flags *f,
                              enum init_kind *out)
{
    struct members m = {0};
    if (json_stream_peek(in) == '[') {
        text_source_skip(in);
        *out =
            json_stream_peek(in) == '[' || json_stream_peek(in) == '"' ? INIT_LABELLED : INIT_TEXT;
    }
    if (json_stream_peek(in) != '{') return CZ_OK;
    TRY(read_members(in, f, &m));
    *out = kind_of_members(&m);
    return CZ_OK;
}

/* ---- words with tags, a line each ------------------------------------------------------------ */

/* "O", "B-PER", "I-LOC", "E-ORG", "S-MISC", … */
static bool is_tag(const char *word)
{
    if (strcmp(word, "O") == 0) return true;
    return strchr("BIESLUM", word[0]) && word[0] && (word[1] == '-' || word[1] == '_') && word[2];
}

/* A blank line, a comment and a document's beginning say nothing. */
static bool says_nothing(const char *line)
{
    return !*line || *line == '#' || strncmp(line, "-DOCSTART-", 10) == 0;
}

/* Every line has a word and ends in a tag, and some tag is no "O". */
static bool holds_words(struct text_source *in)
{
    char line[LINE_BYTES];
    size_t n_rows = 0, n_tags = 0;
    for (int k = 0; k < N_LINES; k++) {
        size_t n = 0;
        int c;
        while ((c = text_source_take(in)) >= 0 && c != '\n')
            if (n + 1 < sizeof line) line[n++] = (char)c;
        while (n > 0 && isspace((unsigned char)line[n - 1])) n--;
        line[n] = '\0';
        const char *last = line + n;
        while (last > line && last[-1] != ' ' && last[-1] != '\t') last--;
        if (!says_nothing(line)) {
            if (last == line || !is_tag(last)) return false;
            n_rows++;
            n_tags += strcmp(last, "O") != 0;
        }
        if (c < 0) break;
    }
    return n_rows > 0 && n_tags > 0;
}

/* ---- a file ---------------------------------------------------------------------------------- */

static cz_status look(const struct data_path *path, const struct init_flags *f, enum init_kind *out)
{
    struct text_source in = {0};
    *out = INIT_TEXT;
    cz_status st = text_source_open(&in, path->dir, path->name, path->shown, f->encoding);
    int c = st == CZ_OK ? json_stream_peek(&in) : -1;
    if (c < 0) goto done;
    if (data_path_is_table(path->name))
        *out = INIT_LABELLED;
    else if (c == '{' || (c == '[' && data_path_is_rows(path->name)))
        st = look_at_json(&in, f, out);
    else if (data_path_is_words(path->name) || holds_words(&in))
        *out = INIT_WORDS;
done:
    text_source_close(&in);
    return st;
}

enum init_kind init_look(const struct init *in)
{
    static const char *const suffixes[] = {".json", ".jsonl", ".ndjson", ".parquet",
                                           ".csv",  ".tsv",   ".conll",  ".bio",
                                           ".iob",  ".iob2",  ".txt",    NULL};
    struct data_paths paths = {0};
    enum init_kind kind = INIT_TEXT;
    cz_status st = data_paths_expand(in->data.items, 1, suffixes, &paths);
    if (st == CZ_OK && paths.n > 0) st = look(&paths.items[0], in->flags, &kind);
    data_paths_free(&paths);
    if (st != CZ_OK) err_clear();
    return kind;
}
