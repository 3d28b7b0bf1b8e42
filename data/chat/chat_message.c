/* Messages and their contents, as templates want them: checked first, and written anew only where
 * that changes them. */
#include "data/chat/chat_probe.h"
#include "data/chat/chat_row_impl.h"

#include <stdio.h>

static const char *const reasoning_names[] = {"reasoning_content", "thinking", "reasoning"};

/* The number of the message that is read, as the file counts it. */
static size_t number_of(const struct row_reader *r)
{
    return r->row->n_messages - r->first + 1;
}

static bool mentions(const struct row_reader *r, const char *word)
{
    return !r->reading->chat || chat_template_mentions(r->reading->chat, r->has_tools, word);
}

/* Where memory is short, the row fails at its end. */
static unsigned takes(struct row_reader *r, const char *role, bool for_text)
{
    const struct chat_template *chat = r->reading->chat;
    unsigned found = CHAT_TAKES_TEXTS;
    if (chat && chat_probe_takes(chat, r->has_tools, role, for_text, &found) != CZ_OK)
        r->lacks_memory = true;
    return found;
}

static const struct json_node *reasoning_of(const struct json_node *m)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(reasoning_names); i++)
        if (row_member(m, reasoning_names[i])) return row_member(m, reasoning_names[i]);
    return NULL;
}

static bool is_reasoning(const char *name)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(reasoning_names); i++)
        if (strcmp(name, reasoning_names[i]) == 0) return true;
    return false;
}

static const struct json_node *content_of(const struct json_node *m)
{
    const struct json_node *content = row_member(m, "content");
    return content ? content : row_member(m, "value");
}

/* ---- roles ----------------------------------------------------------------------------------- */

const char *row_role_of(const struct row_reader *r, const struct json_node *m)
{
    static const char *const roles[][2] = {
        {"human", "user"},
        {"user", "user"},
        {"gpt", "assistant"},
        {"assistant", "assistant"},
        {"model", "assistant"},
        {"bot", "assistant"},
        {"chatgpt", "assistant"},
        {"system", "system"},
        {"tool", "tool"},
        {"observation", "tool"},
        {"function_response", "tool"},
        {"function_call", "assistant"},
    };
    static const char *const others[] = {"human", "gpt", "bot", "chatgpt"};
    const char *role = row_text_of(row_member(m, "role"));
    bool is_other = !role; /* a name of ShareGPT's */
    for (size_t i = 0; role && i < CZ_ARRAY_LEN(others); i++)
        is_other |= strcmp(role, others[i]) == 0 && !mentions(r, role);
    if (!is_other) return role;
    if (!role) role = row_text_of(row_member(m, "from"));
    for (size_t i = 0; role && i < CZ_ARRAY_LEN(roles); i++)
        if (strcmp(roles[i][0], role) == 0) return roles[i][1];
    return NULL;
}

/* A turn of ShareGPT whose value is a call, as JSON. */
static bool is_call(const struct json_node *m)
{
    const char *from = row_member(m, "role") ? NULL : row_text_of(row_member(m, "from"));
    return from && strcmp(from, "function_call") == 0;
}

static cz_status check_role(const struct row_reader *r, const struct json_node *m,
                            const char **role)
{
    const char *name = row_member(m, "role") ? "role" : "from";
    const struct json_node *node = row_member(m, name);
    if (!node)
        return ROW_FAIL(r, "%s %zu has neither \"role\" nor \"from\"", r->noun, number_of(r));
    if (json_type(node) != JSON_STRING)
        return ROW_FAIL(r, "%s %zu: \"%s\" is %s, not a text", r->noun, number_of(r), name,
                        json_type_name(json_type(node)));
    *role = row_role_of(r, m);
    if (*role) return CZ_OK;
    return ROW_FAIL(r,
                    "%s %zu is from \"%s\"; known are human, gpt, system, tool, observation, "
                    "function_call",
                    r->noun, number_of(r), row_text_of(node));
}

/* ---- contents -------------------------------------------------------------------------------- */

enum content_form {
    CONTENT_AS_IS,
    CONTENT_JOINED, /* a list of parts becomes one text */
    CONTENT_NAMED   /* a list of parts, each with its type; of a text as well */
};

/* The text of a part: a text, or an object with one. */
static const char *part_text(const struct json_node *part)
{
    return row_text_of(row_is_type(part, JSON_OBJECT) ? row_member(part, "text") : part);
}

/* In a list that stays one the template may read a member; in one text nothing reads it. */
static cz_status check_part_members(struct row_reader *r, const struct json_node *part, size_t k,
                                    bool takes_lists)
{
    static const char *const known[] = {"type", "text", "cache_control"};
    char of[200];
    snprintf(of, sizeof of, "%s[].content[].", r->list);
    for (size_t i = 0; i < json_count(part); i++) {
        const struct json_node *value = json_child(part, i);
        const char *name = json_key(value);
        if (row_is_empty(value) || ROW_IS_AMONG(name, known)) continue;
        if (row_is_flag(name))
            return ROW_FAIL(r,
                            "%s %zu: part %zu has \"%s\": czero trains whole turns; give the flag "
                            "to the turn",
                            r->noun, number_of(r), k + 1, name);
        if (!row_is_harmless(name) && !(takes_lists && mentions(r, name)))
            TRY(row_note_unread(r, of, name));
    }
    return CZ_OK;
}

static const char *const part_texts[] = {"text", "input_text", "output_text"};

/* Whether a part is text; *is_other: of another kind, which the template writes. */
static cz_status check_part(struct row_reader *r, const struct json_node *part, size_t k,
                            bool takes_lists, bool *is_other)
{
    static const char *const seen[] = {"image", "image_url", "input_image",
                                       "video", "video_url", "input_video",
                                       "audio", "audio_url", "input_audio"};
    const struct json_node *type = row_is_type(part, JSON_OBJECT) ? row_member(part, "type") : NULL;
    const char *name = row_text_of(type);
    *is_other = false;
    if (json_type(part) == JSON_STRING) return CZ_OK;
    if (json_type(part) != JSON_OBJECT)
        return ROW_FAIL(r, "%s %zu: part %zu of the content is %s, not a text or an object",
                        r->noun, number_of(r), k + 1, json_type_name(json_type(part)));
    if (type && !name)
        return ROW_FAIL(r, "%s %zu: part %zu of the content: \"type\" is %s, not a text", r->noun,
                        number_of(r), k + 1, json_type_name(json_type(type)));
    if (!name || ROW_IS_AMONG(name, part_texts)) {
        if (!part_text(part))
            return ROW_FAIL(r, "%s %zu: part %zu of the content has no \"text\"", r->noun,
                            number_of(r), k + 1);
        return check_part_members(r, part, k, takes_lists);
    }
    *is_other = takes_lists && !ROW_IS_AMONG(name, seen) && mentions(r, name);
    if (*is_other) return CZ_OK;
    r->row->is_unseen = true;
    return ROW_FAIL(
        r, "%s %zu: part %zu of the content is \"%s\", which %s", r->noun, number_of(r), k + 1,
        name, ROW_IS_AMONG(name, seen) ? "the model cannot read" : "the template does not write");
}

/* Whether a list stays one. */
static bool takes_list(struct row_reader *r, const struct json_node *list, const char *role)
{
    const size_t n = json_count(list);
    return n > 0 && (takes(r, role, false) & (n == 1 ? CHAT_TAKES_PART : CHAT_TAKES_LISTS));
}

static cz_status check_parts(struct row_reader *r, const struct json_node *list, const char *role,
                             enum content_form *form)
{
    const bool takes_lists = takes_list(r, list, role);
    bool is_named = true, is_other;
    for (size_t k = 0; k < json_count(list); k++) {
        const struct json_node *part = json_child(list, k);
        TRY(check_part(r, part, k, takes_lists, &is_other));
        const char *type = row_text_of(row_member(part, "type"));
        is_named = is_named && (is_other || (type && strcmp(type, "text") == 0));
    }
    *form = !takes_lists ? CONTENT_JOINED : is_named ? CONTENT_AS_IS : CONTENT_NAMED;
    return CZ_OK;
}

/* Whether the template writes contents of this role in lists alone. */
static bool takes_lists_only(struct row_reader *r, const char *role)
{
    return (takes(r, role, true) & (CHAT_TAKES_PART | CHAT_TAKES_TEXTS)) == CHAT_TAKES_PART;
}

static cz_status check_content(struct row_reader *r, const struct json_node *content,
                               const char *role, enum content_form *form)
{
    *form = CONTENT_AS_IS;
    if (!content) return CZ_OK;
    if (json_type(content) == JSON_STRING) {
        if (takes_lists_only(r, role)) *form = CONTENT_NAMED;
        return CZ_OK;
    }
    if (json_type(content) == JSON_ARRAY) return check_parts(r, content, role, form);
    if (json_type(content) == JSON_OBJECT && (takes(r, role, false) & CHAT_TAKES_OBJECTS))
        return CZ_OK;
    return ROW_FAIL(r, "%s %zu: \"%s\" is %s: write a text, or a list of parts of text", r->noun,
                    number_of(r), json_key(content), json_type_name(json_type(content)));
}

/* A text, or the list of it alone. */
static void put_text(struct row_reader *r, const char *text, size_t n, bool in_list)
{
    if (in_list) {
        json_begin_array(&r->w);
        json_begin_object(&r->w);
        json_put_string(&r->w, "type", "text");
        json_write_key(&r->w, "text");
    }
    json_write_string_n(&r->w, text, n);
    if (!in_list) return;
    json_end_object(&r->w);
    json_end_array(&r->w);
}

/* Parts of text as one, each on a line of its own, as vLLM joins them. */
static cz_status put_joined(struct row_reader *r, const struct json_node *list, bool in_list)
{
    struct text_buf text = {0};
    cz_status st = CZ_OK;
    for (size_t k = 0; k < json_count(list) && st == CZ_OK; k++) {
        const char *part = part_text(json_child(list, k));
        if (k > 0) st = text_buf_put_char(&text, '\n');
        if (st == CZ_OK) st = text_buf_put(&text, part, strlen(part));
    }
    if (st == CZ_OK) put_text(r, text.n > 0 ? text.s : "", text.n, in_list);
    text_buf_free(&text);
    return st;
}

/* A part of text with its type; those of other kinds as they are. */
static cz_status put_part(struct row_reader *r, const struct json_node *part)
{
    const char *type = row_text_of(row_member(part, "type"));
    if (type && !ROW_IS_AMONG(type, part_texts)) return json_write_node(&r->w, part, NULL);
    json_begin_object(&r->w);
    json_put_string(&r->w, "type", "text");
    json_put_string(&r->w, "text", part_text(part));
    for (size_t i = 0; i < json_count(part); i++) {
        const struct json_node *value = json_child(part, i);
        static const char *const written[] = {"type", "text"};
        if (json_type(value) == JSON_NULL || ROW_IS_AMONG(json_key(value), written)) continue;
        json_write_key(&r->w, json_key(value));
        TRY(json_write_node(&r->w, value, NULL));
    }
    json_end_object(&r->w);
    return CZ_OK;
}

static cz_status put_named(struct row_reader *r, const struct json_node *list)
{
    json_begin_array(&r->w);
    for (size_t k = 0; k < json_count(list); k++) TRY(put_part(r, json_child(list, k)));
    json_end_array(&r->w);
    return CZ_OK;
}

static cz_status put_content(struct row_reader *r, const struct json_node *content,
                             const char *role)
{
    const enum json_type type = json_type(content);
    const char *text = row_text_of(content);
    json_write_key(&r->w, "content");
    if (type == JSON_ARRAY && takes_list(r, content, role)) return put_named(r, content);
    if (type == JSON_ARRAY) return put_joined(r, content, takes_lists_only(r, role));
    if (!text) return json_write_node(&r->w, content, NULL);
    put_text(r, text, strlen(text), takes_lists_only(r, role));
    return CZ_OK;
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* The calls in a turn of ShareGPT: an object with name and arguments, or a list of these. */
static cz_status parse_call(const struct row_reader *r, const struct json_node *m,
                            struct json_doc **out)
{
    const char *value = row_text_of(content_of(m));
    *out = NULL;
    if (!value)
        return ROW_FAIL(r, "%s %zu is a function_call without a text \"value\"", r->noun,
                        number_of(r));
    if (json_parse(value, strlen(value), "value", JSON_STRICT, out) != CZ_OK)
        return err_prefix("%s: %s %zu is a function_call that is no JSON", r->where, r->noun,
                          number_of(r));
    const struct json_node *root = json_root(*out);
    const bool is_list = json_type(root) == JSON_ARRAY;
    bool is_sound = !is_list || json_count(root) > 0;
    for (size_t i = 0; i < (is_list ? json_count(root) : 1); i++)
        is_sound &= row_text_of(row_member(is_list ? json_child(root, i) : root, "name")) != NULL;
    if (is_sound) return CZ_OK;
    json_free(*out);
    *out = NULL;
    return ROW_FAIL(r, "%s %zu is a function_call without a \"name\"", r->noun, number_of(r));
}

static cz_status put_calls(struct row_reader *r, const struct json_node *m)
{
    struct json_doc *calls;
    TRY(parse_call(r, m, &calls));
    const struct json_node *root = json_root(calls);
    const bool is_list = json_type(root) == JSON_ARRAY;
    cz_status st = CZ_OK;
    json_put_string(&r->w, "content", "");
    json_write_key(&r->w, "tool_calls");
    json_begin_array(&r->w);
    for (size_t i = 0; i < (is_list ? json_count(root) : 1) && st == CZ_OK; i++) {
        json_begin_object(&r->w);
        json_put_string(&r->w, "type", "function");
        json_write_key(&r->w, "function");
        st = json_write_node(&r->w, is_list ? json_child(root, i) : root, NULL);
        json_end_object(&r->w);
    }
    json_end_array(&r->w);
    json_free(calls);
    return st;
}

/* ---- members --------------------------------------------------------------------------------- */

/* A member that no form has: read by the template, harmless, or unread. */
static cz_status check_other(struct row_reader *r, const struct json_node *value, const char *role)
{
    const char *name = json_key(value);
    char of[200];
    bool is_used = mentions(r, name);
    if (is_reasoning(name)) {
        for (size_t i = 0; i < CZ_ARRAY_LEN(reasoning_names); i++)
            is_used |= mentions(r, reasoning_names[i]);
        if (is_used && json_type(value) != JSON_STRING)
            return ROW_FAIL(r, "%s %zu: \"%s\" is %s, not a text", r->noun, number_of(r), name,
                            json_type_name(json_type(value)));
    }
    if (is_used || row_is_empty(value)) return CZ_OK;
    if (strcmp(name, "function_call") == 0)
        return ROW_FAIL(r, "%s %zu: \"function_call\" is the older form of tool_calls: write that",
                        r->noun, number_of(r));
    /* What a tool returned follows the call in order, which has the name. */
    if (strcmp(name, "tool_call_id") == 0) return CZ_OK;
    if (strcmp(name, "name") == 0 && chat_template_is_tool_role(role)) return CZ_OK;
    if (row_is_harmless(name)) return CZ_OK;
    snprintf(of, sizeof of, "%s[].", r->list);
    return row_note_unread(r, of, name);
}

/* Whether a member was read as the role or the content: ShareGPT's names, where there are no
 * others.
 */
static bool is_role_or_content(const struct json_node *m, const char *name)
{
    return strcmp(name, "role") == 0 || strcmp(name, "content") == 0 ||
           (strcmp(name, "from") == 0 && !row_member(m, "role")) ||
           (strcmp(name, "value") == 0 && !row_member(m, "content"));
}

static cz_status check_members(struct row_reader *r, const struct json_node *m, const char *role,
                               bool is_answer, bool *is_plain)
{
    const struct json_node *calls = row_member(m, "tool_calls");
    if (calls && json_type(calls) != JSON_ARRAY)
        return ROW_FAIL(r, "%s %zu: \"tool_calls\" is %s, not a list", r->noun, number_of(r),
                        json_type_name(json_type(calls)));
    for (size_t i = 0; i < json_count(m); i++) {
        const struct json_node *value = json_child(m, i);
        const char *name = json_key(value);
        if (json_type(value) == JSON_NULL) {
            *is_plain = false;
        } else if (is_role_or_content(m, name)) {
            *is_plain &= strcmp(name, "role") == 0 || strcmp(name, "content") == 0;
        } else if (row_is_flag(name)) {
            TRY(row_obey_flag(r, value, is_answer));
        } else {
            TRY(check_other(r, value, role));
        }
    }
    return CZ_OK;
}

/* A message that has no content, but something else that nothing reads, means that as its content.
 */
static cz_status check_silence(const struct row_reader *r, const struct json_node *m,
                               size_t n_unread)
{
    const struct text_buf *unread = &r->row->unread;
    if (json_get(m, "content") || json_get(m, "value") || row_member(m, "tool_calls") ||
        reasoning_of(m) || unread->n == n_unread)
        return CZ_OK;
    return ROW_FAIL(r, "%s %zu has no \"content\" but %s: rename it", r->noun, number_of(r),
                    unread->s + n_unread + strlen(r->list) + 3);
}

static cz_status check_message(struct row_reader *r, const struct json_node *m, bool *is_plain)
{
    enum content_form form = CONTENT_AS_IS;
    const char *role;
    struct json_doc *calls;
    if (!row_is_type(m, JSON_OBJECT))
        return ROW_FAIL(r, "%s %zu is %s, not an object", r->noun, number_of(r),
                        json_type_name(json_type(m)));
    TRY(check_role(r, m, &role));
    const bool is_answer = chat_template_is_answer_role(role);
    const size_t n_unread = r->row->unread.n;
    if (is_call(m)) {
        TRY(parse_call(r, m, &calls));
        json_free(calls);
        if (row_member(m, "tool_calls"))
            return ROW_FAIL(r, "%s %zu is a function_call and has \"tool_calls\"", r->noun,
                            number_of(r));
    } else {
        TRY(check_content(r, content_of(m), role, &form));
    }
    TRY(check_members(r, m, role, is_answer, is_plain));
    TRY(check_silence(r, m, n_unread));
    *is_plain = *is_plain && form == CONTENT_AS_IS && !reasoning_of(m) &&
                role == row_text_of(row_member(m, "role"));
    return row_add_turn(r, is_answer);
}

cz_status row_check_messages(struct row_reader *r, const struct json_node *list, bool *is_plain)
{
    for (size_t i = 0; i < json_count(list); i++)
        TRY(check_message(r, json_child(list, i), is_plain));
    return CZ_OK;
}

/* ---- written anew ---------------------------------------------------------------------------- */

void row_write_text(struct row_reader *r, const char *role, const char *text)
{
    json_begin_object(&r->w);
    json_put_string(&r->w, "role", role);
    json_write_key(&r->w, "content");
    put_text(r, text, strlen(text), takes_lists_only(r, role));
    json_end_object(&r->w);
}

/* Without members that are null. Reasoning stands under the first of three names that has a value;
 * templates read reasoning_content, some thinking. */
static cz_status put_message(struct row_reader *r, const struct json_node *m)
{
    const struct json_node *reasoning = reasoning_of(m);
    const char *role = row_role_of(r, m);
    const bool calls = is_call(m);
    json_begin_object(&r->w);
    json_put_string(&r->w, "role", role);
    if (reasoning && !row_member(m, "thinking")) {
        json_write_key(&r->w, "thinking");
        TRY(json_write_node(&r->w, reasoning, NULL));
    }
    if (calls)
        TRY(put_calls(r, m));
    else if (content_of(m))
        TRY(put_content(r, content_of(m), role));
    for (size_t i = 0; i < json_count(m); i++) {
        const struct json_node *value = json_child(m, i);
        if (json_type(value) == JSON_NULL || is_role_or_content(m, json_key(value))) continue;
        json_write_key(&r->w, json_key(value));
        TRY(json_write_node(&r->w, value, NULL));
    }
    if (reasoning && !row_member(m, "reasoning_content")) {
        json_write_key(&r->w, "reasoning_content");
        TRY(json_write_node(&r->w, reasoning, NULL));
    }
    json_end_object(&r->w);
    return CZ_OK;
}

cz_status row_put_messages(struct row_reader *r, const struct json_node *list)
{
    for (size_t i = 0; i < json_count(list); i++) TRY(put_message(r, json_child(list, i)));
    return CZ_OK;
}
