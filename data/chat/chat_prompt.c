/* Reads prompts into memory as a whole: they are small compared with a model. */
#include "data/chat/chat_prompt.h"

#include "base/text/unread.h"
#include "data/source/json_stream.h"
#include "formats/json/json_copy.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Flags say what is trained, which is nothing here. */
static cz_status read_row(struct chat_prompts *p, size_t i, const char *shown,
                          const struct chat_template *chat)
{
    const struct chat_reading reading = {.chat = chat, .trains_all = true};
    char where[600];
    snprintf(where, sizeof where, "%s:%" PRIu64, shown, p->lines[i]);
    return chat_row_read(p->json[i].s, p->json[i].n, where, &reading, &p->rows[i]);
}

static cz_status add_row(struct chat_prompts *p, const char *json, size_t n, const char *shown,
                         uint64_t line)
{
    if (p->n == p->cap) {
        const size_t cap = 2 * p->cap + 8;
        struct chat_row *rows = realloc(p->rows, cap * sizeof *rows);
        if (rows) p->rows = rows;
        uint64_t *lines = rows ? realloc(p->lines, cap * sizeof *lines) : NULL;
        if (lines) p->lines = lines;
        struct text_buf *texts = lines ? realloc(p->json, cap * sizeof *texts) : NULL;
        if (!texts) return err_set(CZ_NOMEM, 0, "no memory for %zu conversations", cap);
        p->json = texts;
        p->cap = cap;
    }
    if (!p->shown && !(p->shown = strdup(shown)))
        return err_set(CZ_NOMEM, 0, "no memory for a name");
    p->lines[p->n] = line;
    p->json[p->n] = (struct text_buf){0};
    memset(&p->rows[p->n], 0, sizeof *p->rows);
    p->n++;
    TRY(text_buf_put(&p->json[p->n - 1], json, n));
    return read_row(p, p->n - 1, shown, NULL);
}

cz_status chat_prompts_bind(struct chat_prompts *p, const struct chat_template *chat)
{
    struct unread unread = {.what = "members of conversations"};
    for (size_t i = 0; i < p->n; i++) {
        const struct text_buf *names = &p->rows[i].unread;
        chat_row_free(&p->rows[i]);
        TRY(read_row(p, i, p->shown, chat));
        for (size_t at = 0; at < names->n; at += strlen(names->s + at) + 1)
            unread_add(&unread, names->s + at, "line %" PRIu64, p->lines[i]);
    }
    return unread_report(&unread, p->n > 0 ? p->shown : "");
}

/* A conversation from its list of messages. */
static cz_status add_messages(struct chat_prompts *p, struct json_writer *w, const char *shown,
                              uint64_t line)
{
    char *text;
    size_t n;
    TRY(json_writer_take(w, &text, &n));
    cz_status st = add_row(p, text, n, shown, line);
    free(text);
    return st;
}

cz_status chat_prompts_add(struct chat_prompts *p, const struct chat_message *messages, size_t n)
{
    struct json_writer w;
    json_writer_init(&w, 0);
    json_begin_object(&w);
    json_write_key(&w, "messages");
    json_begin_array(&w);
    for (size_t i = 0; i < n; i++) {
        json_begin_object(&w);
        json_put_string(&w, "role", messages[i].role);
        json_put_string(&w, "content", messages[i].content);
        json_end_object(&w);
    }
    json_end_array(&w);
    json_end_object(&w);
    return add_messages(p, &w, "message", n);
}

/* Messages have a role, or as ShareGPT writes them a sender; rows have neither. */
static bool is_message(const struct json_node *node)
{
    return node && json_type(node) == JSON_OBJECT &&
           (json_get(node, "role") || json_get(node, "from")) && !json_get(node, "messages");
}

static cz_status wrap_list(struct chat_prompts *p, const struct json_node *list, const char *shown)
{
    struct json_writer w;
    const bool is_sharegpt = !json_get(json_child(list, 0), "role");
    json_writer_init(&w, 0);
    json_begin_object(&w);
    json_write_key(&w, is_sharegpt ? "conversations" : "messages");
    cz_status st = json_write_node(&w, list, NULL);
    json_end_object(&w);
    if (st == CZ_OK) return add_messages(p, &w, shown, 1);
    json_writer_free(&w);
    return st;
}

static cz_status add_item(struct chat_prompts *p, const struct json_node *row, const char *shown)
{
    struct json_writer w;
    json_writer_init(&w, 0);
    cz_status st = json_write_node(&w, row, NULL);
    if (st == CZ_OK) return add_messages(p, &w, shown, (uint64_t)json_line(row));
    json_writer_free(&w);
    return st;
}

static cz_status add_list(struct chat_prompts *p, const struct text_buf *text, const char *shown)
{
    struct json_doc *doc;
    TRY(json_parse(text->s, text->n, shown, JSON_STRICT, &doc));
    const struct json_node *root = json_root(doc);
    cz_status st = CZ_OK;
    if (json_count(root) > 0 && is_message(json_child(root, 0)))
        st = wrap_list(p, root, shown);
    else
        for (size_t i = 0; i < json_count(root) && st == CZ_OK; i++)
            st = add_item(p, json_child(root, i), shown);
    json_free(doc);
    return st;
}

/* Where the object that begins at `at` ends; n: it does not. */
static size_t find_object_end(const char *s, size_t n, size_t at, uint64_t *line)
{
    size_t depth = 0;
    for (bool in_string = false; at < n; at++) {
        const char c = s[at];
        *line += c == '\n';
        if (in_string && c == '\\')
            at++;
        else if (c == '"')
            in_string = !in_string;
        else if (!in_string && (c == '{' || c == '['))
            depth++;
        else if (!in_string && (c == '}' || c == ']') && --depth == 0)
            return at + 1;
    }
    return n;
}

static cz_status add_objects(struct chat_prompts *p, const struct text_buf *text, const char *shown)
{
    uint64_t line = 1;
    for (size_t at = 0; at < text->n;) {
        const char c = text->s[at];
        const uint64_t first = line;
        if (c == ' ' || c == '\t' || c == '\r' || c == '\n') {
            line += c == '\n';
            at++;
            continue;
        }
        if (c != '{')
            return err_set(CZ_CORRUPT, 0,
                           "%s:%" PRIu64 ": no conversation: a JSON object with \"messages\", or a "
                           "list of messages, begins with { or [",
                           shown, line);
        const size_t end = find_object_end(text->s, text->n, at, &line);
        TRY(add_row(p, text->s + at, end - at, shown, first));
        at = end;
    }
    return CZ_OK;
}

static cz_status read_text(const char *path, const char *encoding, struct text_buf *text)
{
    struct text_source in = {0};
    cz_status st = text_source_open(&in, NULL, path, path, encoding);
    while (st == CZ_OK && text_source_peek(&in) >= 0) {
        if (in.n - in.at > CHAT_PROMPTS_NBYTES_MAX - text->n)
            st = err_set(CZ_CORRUPT, 0, "%s: more than %zu MiB of messages", path,
                         CHAT_PROMPTS_NBYTES_MAX >> 20);
        if (st == CZ_OK) st = text_buf_put(text, in.block + in.at, in.n - in.at);
        in.at = in.n;
    }
    if (st == CZ_OK) st = in.status;
    text_source_close(&in);
    return st;
}

cz_status chat_prompts_read(const char *path, const char *encoding, struct chat_prompts *out)
{
    struct text_buf text = {0};
    const char *shown = strcmp(path, "-") == 0 ? "standard input" : path;
    memset(out, 0, sizeof *out);
    cz_status st = read_text(path, encoding, &text);
    size_t at = 0;
    while (st == CZ_OK && at < text.n && strchr(" \t\r\n", text.s[at]) && text.s[at]) at++;
    if (st == CZ_OK)
        st = at < text.n && text.s[at] == '[' ? add_list(out, &text, shown)
                                              : add_objects(out, &text, shown);
    if (st == CZ_OK && out->n == 0) st = err_set(CZ_INVALID, 0, "%s: no conversation", shown);
    text_buf_free(&text);
    return st;
}

void chat_prompts_free(struct chat_prompts *p)
{
    for (size_t i = 0; i < p->n; i++) {
        chat_row_free(&p->rows[i]);
        text_buf_free(&p->json[i]);
    }
    free(p->rows);
    free(p->json);
    free(p->shown);
    free(p->lines);
    memset(p, 0, sizeof *p);
}
