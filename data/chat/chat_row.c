/* The forms of instruction data, written anew as one: {"messages": […], "tools": …}. What a row
 * does not say is not invented; a row of no form is an error with the names of its members. */
#include "data/chat/chat_row.h"

#include "formats/json/json_copy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct reader {
    const struct json_node *root;
    const char *where;
    struct json_writer w;
    struct chat_row *row;
};

#define ROW_FAIL(r, ...) (err_set(CZ_INVALID, 0, __VA_ARGS__), err_prefix("%s", (r)->where))

static const struct json_node *member(const struct json_node *object, const char *name)
{
    const struct json_node *node = json_get(object, name);
    return node && json_type(node) != JSON_NULL ? node : NULL;
}

static bool is_type(const struct json_node *node, enum json_type type)
{
    return node && json_type(node) == type;
}

static const char *text_of(const struct json_node *node)
{
    const char *text = NULL;
    if (is_type(node, JSON_STRING)) json_as_string(node, &text);
    return text;
}

/* ---- messages
 * ------------------------------------------------------------------------------------ */

static void put_text_message(struct reader *r, const char *role, const char *text)
{
    json_begin_object(&r->w);
    json_put_string(&r->w, "role", role);
    json_put_string(&r->w, "content", text);
    json_end_object(&r->w);
    r->row->n_messages++;
}

/* A message as it is, without members that are null. Reasoning stands under the first of three
 * names that has a value; templates read reasoning_content, some thinking. */
static cz_status put_message(struct reader *r, const struct json_node *m)
{
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    const struct json_node *reasoning = NULL;
    if (!is_type(m, JSON_OBJECT))
        return ROW_FAIL(r, "message %zu is %s, not an object", r->row->n_messages + 1,
                        json_type_name(json_type(m)));
    for (size_t i = 0; i < 3 && !reasoning; i++) reasoning = member(m, names[i]);
    json_begin_object(&r->w);
    if (reasoning && !member(m, "thinking")) {
        json_write_key(&r->w, "thinking");
        TRY(json_write_node(&r->w, reasoning, NULL));
    }
    for (size_t i = 0; i < json_count(m); i++) {
        const struct json_node *value = json_child(m, i);
        if (json_type(value) == JSON_NULL) continue;
        json_write_key(&r->w, json_key(value));
        TRY(json_write_node(&r->w, value, NULL));
    }
    if (reasoning && !member(m, "reasoning_content")) {
        json_write_key(&r->w, "reasoning_content");
        TRY(json_write_node(&r->w, reasoning, NULL));
    }
    json_end_object(&r->w);
    r->row->n_messages++;
    return CZ_OK;
}

static cz_status put_messages(struct reader *r, const struct json_node *list)
{
    for (size_t i = 0; i < json_count(list); i++) TRY(put_message(r, json_child(list, i)));
    return CZ_OK;
}

/* ShareGPT's {"from": …, "value": …}. */
static cz_status put_turn(struct reader *r, const struct json_node *turn)
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
    };
    const char *from = text_of(member(turn, "from")), *role = NULL;
    const char *value = text_of(member(turn, "value"));
    if (is_type(turn, JSON_OBJECT) && member(turn, "role")) return put_message(r, turn);
    if (!from || !value)
        return ROW_FAIL(r, "turn %zu has no texts \"from\" and \"value\"", r->row->n_messages + 1);
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (strcmp(roles[i][0], from) == 0) role = roles[i][1];
    if (role) {
        put_text_message(r, role, value);
        return CZ_OK;
    }
    if (strcmp(from, "function_call") != 0)
        return ROW_FAIL(r,
                        "turn %zu is from \"%s\"; known are human, gpt, system, tool, "
                        "observation, function_call",
                        r->row->n_messages + 1, from);
    struct json_doc *call;
    TRY(json_parse(value, strlen(value), r->where, JSON_STRICT, &call));
    json_begin_object(&r->w);
    json_put_string(&r->w, "role", "assistant");
    json_put_string(&r->w, "content", "");
    json_write_key(&r->w, "tool_calls");
    json_begin_array(&r->w);
    json_begin_object(&r->w);
    json_put_string(&r->w, "type", "function");
    json_write_key(&r->w, "function");
    cz_status st = json_write_node(&r->w, json_root(call), NULL);
    json_free(call);
    TRY(st);
    json_end_object(&r->w);
    json_end_array(&r->w);
    json_end_object(&r->w);
    r->row->n_messages++;
    return CZ_OK;
}

static cz_status put_alpaca(struct reader *r)
{
    const char *instruction = text_of(member(r->root, "instruction"));
    const char *input = text_of(member(r->root, "input"));
    const char *output = text_of(member(r->root, "output"));
    const char *system = text_of(member(r->root, "system"));
    const struct json_node *history = member(r->root, "history");
    if (!output) output = text_of(member(r->root, "response"));
    if (!instruction || !output)
        return ROW_FAIL(r, "\"instruction\" and \"output\" have to be texts");
    if (system && *system) put_text_message(r, "system", system);
    for (size_t i = 0; i < json_count(history); i++) {
        const struct json_node *pair = json_child(history, i);
        const char *asked = json_count(pair) == 2 ? text_of(json_child(pair, 0)) : NULL;
        const char *told = asked ? text_of(json_child(pair, 1)) : NULL;
        if (!told) return ROW_FAIL(r, "\"history\" is no list of pairs of texts");
        put_text_message(r, "user", asked);
        put_text_message(r, "assistant", told);
    }
    if (input && *input) {
        size_t n = strlen(instruction) + strlen(input) + 2;
        char *both = malloc(n);
        if (!both) return err_set(CZ_NOMEM, 0, "no memory for a row");
        snprintf(both, n, "%s\n%s", instruction, input);
        put_text_message(r, "user", both);
        free(both);
    } else {
        put_text_message(r, "user", instruction);
    }
    put_text_message(r, "assistant", output);
    return CZ_OK;
}

/* ---- the row
 * ------------------------------------------------------------------------------------- */

/* Tools are a list, or the text of one. */
static cz_status put_tools(struct reader *r, const struct json_node *tools)
{
    const char *text = text_of(tools);
    if (!tools || (text && !*text)) return CZ_OK;
    json_write_key(&r->w, "tools");
    if (!text) return json_write_node(&r->w, tools, NULL);
    struct json_doc *doc;
    TRY(json_parse(text, strlen(text), r->where, JSON_STRICT, &doc));
    cz_status st = json_write_node(&r->w, json_root(doc), NULL);
    json_free(doc);
    return st;
}

static cz_status fail_form(struct reader *r)
{
    static const char *const known[] = {"messages", "conversations", "prompt", "completion",
                                        "text"};
    char names[300] = "nothing";
    for (size_t i = 0, at = 0; i < json_count(r->root) && at < sizeof names - 1; i++) {
        const struct json_node *value = json_child(r->root, i);
        bool is_known = false; /* so its type is wrong, or its other half missing */
        for (size_t k = 0; k < CZ_ARRAY_LEN(known); k++)
            is_known |= strcmp(known[k], json_key(value)) == 0;
        at +=
            (size_t)snprintf(names + at, sizeof names - at, "%s%s%s%s%s", i ? ", " : "",
                             json_key(value), is_known ? " (" : "",
                             is_known ? json_type_name(json_type(value)) : "", is_known ? ")" : "");
    }
    if (member(r->root, "prompt") && member(r->root, "completion"))
        return ROW_FAIL(
            r, "prompt and completion are both texts or both lists of messages; there is %s",
            names);
    return ROW_FAIL(r,
                    "no messages, prompt and completion, conversations, instruction and output, or "
                    "text; there is %s",
                    names);
}

static cz_status write_messages(struct reader *r)
{
    const struct json_node *messages = member(r->root, "messages");
    const struct json_node *prompt = member(r->root, "prompt");
    const struct json_node *completion = member(r->root, "completion");
    const struct json_node *turns = member(r->root, "conversations");
    const char *system = text_of(member(r->root, "system"));
    if (is_type(messages, JSON_ARRAY)) return put_messages(r, messages);
    if (is_type(prompt, JSON_ARRAY) && is_type(completion, JSON_ARRAY)) {
        TRY(put_messages(r, prompt));
        r->row->n_prompt = r->row->n_messages;
        r->row->has_prompt = true;
        return put_messages(r, completion);
    }
    if (!is_type(turns, JSON_ARRAY)) return put_alpaca(r);
    if (system && *system) put_text_message(r, "system", system);
    for (size_t i = 0; i < json_count(turns); i++) TRY(put_turn(r, json_child(turns, i)));
    return CZ_OK;
}

static cz_status write_chat(struct reader *r)
{
    static const char *const more[] = {"documents", "chat_template_kwargs"};
    json_begin_object(&r->w);
    json_write_key(&r->w, "messages");
    json_begin_array(&r->w);
    TRY(write_messages(r));
    json_end_array(&r->w);
    TRY(put_tools(r, member(r->root, "tools")));
    for (size_t i = 0; i < 2; i++) {
        if (!member(r->root, more[i])) continue;
        json_write_key(&r->w, more[i]);
        TRY(json_write_node(&r->w, member(r->root, more[i]), NULL));
    }
    json_end_object(&r->w);
    return CZ_OK;
}

/* Whether a conversation is as templates want it, which saves writing it anew: most are. */
static bool is_plain(const struct reader *r)
{
    const struct json_node *messages = member(r->root, "messages"),
                           *tools = member(r->root, "tools");
    if (!is_type(messages, JSON_ARRAY) || (tools && !is_type(tools, JSON_ARRAY))) return false;
    for (size_t i = 0; i < json_count(messages); i++) {
        const struct json_node *m = json_child(messages, i);
        if (!is_type(m, JSON_OBJECT)) return false;
        for (size_t k = 0; k < json_count(m); k++)
            if (json_type(json_child(m, k)) == JSON_NULL) return false;
        if (member(m, "reasoning_content") || member(m, "thinking") || member(m, "reasoning"))
            return false;
    }
    return true;
}

/* A conversation, written anew where it has to be; texts stay where they are. */
static cz_status read_form(struct reader *r, struct json_doc **chat)
{
    struct chat_row *row = r->row;
    const char *prompt = text_of(member(r->root, "prompt"));
    const char *completion = text_of(member(r->root, "completion"));
    bool has_chat = is_type(member(r->root, "messages"), JSON_ARRAY) ||
                    is_type(member(r->root, "conversations"), JSON_ARRAY) ||
                    (is_type(member(r->root, "prompt"), JSON_ARRAY) &&
                     is_type(member(r->root, "completion"), JSON_ARRAY)) ||
                    member(r->root, "instruction");
    if (!has_chat) {
        row->form = prompt && completion ? CHAT_TEXTS : CHAT_TEXT;
        row->has_prompt = row->form == CHAT_TEXTS;
        row->prompt = prompt;
        row->text = row->has_prompt ? completion : text_of(member(r->root, "text"));
        return row->text ? CZ_OK : fail_form(r);
    }
    row->form = CHAT_MESSAGES;
    const struct json_node *root = r->root;
    if (is_plain(r)) {
        row->n_messages = json_count(member(root, "messages"));
    } else {
        char *text;
        size_t n;
        TRY(write_chat(r));
        TRY(json_writer_take(&r->w, &text, &n));
        TRY(json_adopt(text, n, r->where, JSON_STRICT, chat));
        root = json_root(*chat);
    }
    row->chat = (struct chat_view){.messages = member(root, "messages"),
                                   .tools = member(root, "tools"),
                                   .documents = member(root, "documents"),
                                   .extra = member(root, "chat_template_kwargs")};
    if (json_count(row->chat.tools) == 0) row->chat.tools = NULL;
    return row->n_messages > 0 ? CZ_OK : ROW_FAIL(r, "the conversation has no message");
}

cz_status chat_row_read(const char *json, size_t n, const char *where, struct chat_row *out)
{
    struct reader r = {.where = where, .row = out};
    struct json_doc *chat = NULL;
    memset(out, 0, sizeof *out);
    TRY(json_parse(json, n, where, JSON_STRICT, &out->doc));
    r.root = json_root(out->doc);
    if (json_type(r.root) != JSON_OBJECT) return ROW_FAIL(&r, "the row is no object");
    json_writer_init(&r.w, 0);
    cz_status st = read_form(&r, &chat);
    json_writer_free(&r.w);
    if (chat) { /* the texts of the other forms are lent from the first document */
        json_free(out->doc);
        out->doc = chat;
    }
    return st;
}

void chat_row_free(struct chat_row *row)
{
    json_free(row->doc);
    memset(row, 0, sizeof *row);
}

bool chat_row_is_answer(const struct chat_row *row, size_t i)
{
    const char *role = text_of(member(json_child(row->chat.messages, i), "role"));
    return role && (strcmp(role, "assistant") == 0 || strcmp(role, "model") == 0);
}
