/* Writing a parsed document again. An export holds files of a model folder; copied as bytes, a
 * file of any content could be published with it. */
#include "formats/json/json_copy.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* ---- a document ------------------------------------------------------------------------------ */

/* As it was written: 1e-5 must not become 1.0000000000000001e-05, and a model_max_length of 10^30
 * fits no type. */
static cz_status write_number(struct json_writer *w, const struct json_node *node)
{
    size_t nbytes;
    const char *text = json_text(node, &nbytes);
    char *copy = strndup(text, nbytes);
    if (!copy) return err_set(CZ_NOMEM, 0, "no memory to write JSON");
    json_write_raw(w, copy);
    free(copy);
    return CZ_OK;
}

static cz_status write_children(struct json_writer *w, const struct json_node *node,
                                json_omit *omit)
{
    for (size_t i = 0; i < json_count(node); i++) {
        const struct json_node *child = json_child(node, i);
        if (json_key(child) && omit && omit(child)) continue;
        if (json_key(child)) json_write_key(w, json_key(child));
        TRY(json_write_node(w, child, omit));
    }
    return CZ_OK;
}

/* The parser bounds the depth (JSON_DEPTH_MAX). */
cz_status json_write_node(struct json_writer *w, const struct json_node *node, json_omit *omit)
{
    bool truth = false;
    const char *text = NULL;
    switch (json_type(node)) {
    case JSON_NULL: json_write_null(w); break;
    case JSON_BOOL:
        TRY(json_as_bool(node, &truth));
        json_write_bool(w, truth);
        break;
    case JSON_INT:
    case JSON_FLOAT: return write_number(w, node);
    case JSON_STRING:
        TRY(json_as_string(node, &text));
        json_write_string(w, text);
        break;
    case JSON_ARRAY:
        json_begin_array(w);
        TRY(write_children(w, node, omit));
        json_end_array(w);
        break;
    case JSON_OBJECT:
        json_begin_object(w);
        TRY(write_children(w, node, omit));
        json_end_object(w);
        break;
    }
    return CZ_OK;
}

/* ---- traces ---------------------------------------------------------------------------------- */

static bool ends_in(const char *text, const char *suffix)
{
    const size_t n = strlen(text), n_suffix = strlen(suffix);
    return n >= n_suffix && strcmp(text + n - n_suffix, suffix) == 0;
}

/* "/home/…", "~/…", "file:…", "C:\…": in one line and with something behind it. */
static bool is_absolute_path(const char *text)
{
    const bool has_drive =
        isalpha((unsigned char)text[0]) && text[1] == ':' && (text[2] == '\\' || text[2] == '/');
    const bool begins = (text[0] == '/' && text[1] != '\0') || strncmp(text, "~/", 2) == 0 ||
                        strncmp(text, "file:", 5) == 0 || strncmp(text, "\\\\", 2) == 0;
    return (begins || has_drive) && !strpbrk(text, "\n\r\t{}");
}

/* Keys whose strings are tokens, templates or labels (id2label has numbers for keys). */
static bool is_text(const char *key)
{
    return ends_in(key, "_token") || strcmp(key, "content") == 0 ||
           strcmp(key, "chat_template") == 0 || key[strspn(key, "0123456789")] == '\0';
}

bool json_is_trace(const struct json_node *member)
{
    static const char *const keys[] = {"auto_map", "_name_or_path", "name_or_path", "_commit_hash"};
    const char *key = json_key(member), *text;
    for (size_t i = 0; i < CZ_ARRAY_LEN(keys); i++)
        if (strcmp(key, keys[i]) == 0) return true;
    return json_type(member) == JSON_STRING && !is_text(key) &&
           json_as_string(member, &text) == CZ_OK && is_absolute_path(text);
}
