/* Prompts stay in memory: they are small compared with a model. */
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

/* Parsed as a whole, after line feeds for the lines before, so that its lines are the file's. */
static cz_status add_list(struct chat_prompts *p, struct text_source *in, const char *shown)
{
    struct text_buf text = {0};
    struct json_doc *doc = NULL;
    cz_status st = CZ_OK;
    for (uint64_t line = 1; st == CZ_OK && line < in->line; line++)
        st = text_buf_put_char(&text, '\n');
    if (st == CZ_OK) st = json_stream_object(in, CHAT_PROMPTS_NBYTES_MAX, &text);
    const int next = st == CZ_OK ? json_stream_peek(in) : -1;
    if (st == CZ_OK && in->status != CZ_OK) st = in->status;
    if (st == CZ_OK && next >= 0) st = json_stream_fail(in, next, "the end of the file");
    if (st == CZ_OK) st = json_parse(text.s, text.n, shown, JSON_STRICT, &doc);
    const struct json_node *root = st == CZ_OK ? json_root(doc) : NULL;
    if (root && json_count(root) > 0 && is_message(json_child(root, 0)))
        st = wrap_list(p, root, shown);
    else
        for (size_t i = 0; root && i < json_count(root) && st == CZ_OK; i++)
            st = add_item(p, json_child(root, i), shown);
    json_free(doc);
    text_buf_free(&text);
    return st;
}

static cz_status add_objects(struct chat_prompts *p, struct text_source *in, const char *shown)
{
    struct text_buf row = {0};
    size_t n_all = 0;
    cz_status st = CZ_OK;
    for (int c; st == CZ_OK && (c = json_stream_peek(in)) >= 0;) {
        const uint64_t line = in->line;
        row.n = 0;
        if (c != '{')
            st = text_source_fail(in, CZ_CORRUPT,
                                  "no conversation: a JSON object with \"messages\", or a list of "
                                  "messages, begins with { or [");
        if (st == CZ_OK) st = json_stream_object(in, CHAT_PROMPTS_NBYTES_MAX, &row);
        n_all += row.n;
        if (st == CZ_OK && n_all > CHAT_PROMPTS_NBYTES_MAX)
            st = text_source_fail(in, CZ_CORRUPT, "more than %zu MiB of messages",
                                  CHAT_PROMPTS_NBYTES_MAX >> 20);
        if (st == CZ_OK) st = add_row(p, row.s, row.n, shown, line);
    }
    text_buf_free(&row);
    return st == CZ_OK ? in->status : st;
}

cz_status chat_prompts_read(const char *path, const char *encoding, struct chat_prompts *out)
{
    struct text_source in = {0};
    const char *shown = strcmp(path, "-") == 0 ? "standard input" : path;
    memset(out, 0, sizeof *out);
    cz_status st = text_source_open(&in, NULL, path, shown, encoding);
    if (st == CZ_OK)
        st =
            json_stream_peek(&in) == '[' ? add_list(out, &in, shown) : add_objects(out, &in, shown);
    if (st == CZ_OK && out->n == 0) st = err_set(CZ_INVALID, 0, "%s: no conversation", shown);
    text_source_close(&in);
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
