/* The forms of instruction data, written anew as one: {"messages": […], "tools": …}. What a row
 * does not say is not invented; a row of no form is an error with the names of its members. */
#include "data/chat/chat_row.h"

#include "data/chat/chat_row_impl.h"

#include <stdio.h>
#include <stdlib.h>

static const char *const list_names[] = {"messages", "conversations", "conversation"};

/* Which members the form of a row reads. */
struct row_form {
    const char *list; /* of list_names, an array; NULL: none */
    bool is_split;    /* prompt and completion are lists */
    bool is_alpaca;
    const char *input, *output; /* is_alpaca: their names */
};

static bool has_list(const struct row_reader *r, const char *name)
{
    return row_is_type(row_member(r->root, name), JSON_ARRAY);
}

static struct row_form form_of(const struct row_reader *r)
{
    struct row_form f = {.is_split = has_list(r, "prompt") && has_list(r, "completion")};
    for (size_t i = 0; i < CZ_ARRAY_LEN(list_names) && !f.list; i++)
        if (has_list(r, list_names[i])) f.list = list_names[i];
    if (f.list) f.is_split = false;
    f.is_alpaca = !f.list && !f.is_split && row_member(r->root, "instruction");
    f.input = row_member(r->root, "input") ? "input" : "context";
    f.output = row_member(r->root, "output") ? "output" : "response";
    return f;
}

/* ---- members beside the messages
 * --------------------------------------------------------------------------------- */

/* A member that has to be a text where it is there. */
static cz_status get_text(const struct row_reader *r, const char *name, const char **out)
{
    const struct json_node *node = row_member(r->root, name);
    *out = row_text_of(node);
    if (!node || *out) return CZ_OK;
    return ROW_FAIL(r, "\"%s\" is %s, not a text", name, json_type_name(json_type(node)));
}

/* Tools are a list, or the text of one. */
static cz_status read_tools(struct row_reader *r)
{
    const struct json_node *tools = row_member(r->root, "tools");
    const char *text = row_text_of(tools);
    if (!tools || (text && !*text)) return CZ_OK;
    if (text && json_parse(text, strlen(text), "tools", JSON_STRICT, &r->tools) != CZ_OK)
        return err_prefix("%s: \"tools\" is a text that is no JSON", r->where);
    if (r->tools) tools = json_root(r->tools);
    if (json_type(tools) != JSON_ARRAY)
        return ROW_FAIL(r, "\"tools\" is %s, not a list", json_type_name(json_type(tools)));
    r->has_tools = json_count(tools) > 0;
    return CZ_OK;
}

static cz_status check_type(const struct row_reader *r, const char *name, enum json_type type,
                            const char *noun)
{
    const struct json_node *node = row_member(r->root, name);
    if (!node || json_type(node) == type) return CZ_OK;
    return ROW_FAIL(r, "\"%s\" is %s, not %s", name, json_type_name(json_type(node)), noun);
}

static cz_status check_extra(struct row_reader *r)
{
    const struct json_node *extra = row_member(r->root, "chat_template_kwargs");
    const size_t n = json_count(extra);
    TRY(check_type(r, "documents", JSON_ARRAY, "a list"));
    TRY(check_type(r, "chat_template_kwargs", JSON_OBJECT, "an object"));
    if (n > CHAT_EXTRA_MAX)
        return ROW_FAIL(r, "\"chat_template_kwargs\" has %zu members, more than %d", n,
                        CHAT_EXTRA_MAX);
    for (size_t i = 0; i < n; i++) {
        const char *name = json_key(json_child(extra, i));
        if (chat_template_sets(name))
            return ROW_FAIL(r, "\"chat_template_kwargs\" has \"%s\", which the row itself gives",
                            name);
        if (r->reading->chat && !chat_template_reads(r->reading->chat, r->has_tools, name))
            TRY(row_note_unread(r, "chat_template_kwargs.", name));
    }
    return CZ_OK;
}

/* Whether a conversation uses a member of its row. */
static bool uses(const struct row_form *f, const char *name)
{
    static const char *const split[] = {"prompt", "completion", NULL};
    static const char *const alpaca[] = {"instruction", "history", NULL};
    if (strcmp(name, "system") == 0 || strcmp(name, "chat_template_kwargs") == 0) return true;
    if (f->list) return strcmp(name, f->list) == 0;
    for (size_t i = 0; f->is_split && split[i]; i++)
        if (strcmp(name, split[i]) == 0) return true;
    for (size_t i = 0; f->is_alpaca && alpaca[i]; i++)
        if (strcmp(name, alpaca[i]) == 0) return true;
    if (f->is_alpaca && (strcmp(name, f->input) == 0 || strcmp(name, f->output) == 0)) return true;
    return false;
}

static cz_status note_members(struct row_reader *r, const struct row_form *f)
{
    const struct chat_row *row = r->row;
    for (size_t i = 0; i < json_count(r->root); i++) {
        const struct json_node *value = json_child(r->root, i);
        const char *name = json_key(value);
        bool is_used = row_is_empty(value) || row_is_flag(name) || row_is_harmless(name);
        if (row->form == CHAT_TEXT) is_used |= strcmp(name, "text") == 0;
        if (row->form == CHAT_TEXTS)
            is_used |= strcmp(name, "prompt") == 0 || strcmp(name, "completion") == 0;
        if (row->form == CHAT_MESSAGES) {
            is_used |= uses(f, name);
            if (strcmp(name, "tools") == 0 || strcmp(name, "documents") == 0)
                is_used |=
                    !r->reading->chat || chat_template_reads(r->reading->chat, r->has_tools, name);
        }
        if (!is_used) TRY(row_note_unread(r, "", name));
    }
    return CZ_OK;
}

/* ---- forms
 * ------------------------------------------------------------------------------------- */

/* The name of a member that is a list of turns, under a name that czero does not know. */
static const char *find_turns(const struct row_reader *r)
{
    for (size_t i = 0; i < json_count(r->root); i++) {
        const struct json_node *list = json_child(r->root, i);
        const struct json_node *turn =
            json_type(list) == JSON_ARRAY && json_count(list) > 0 ? json_child(list, 0) : NULL;
        if (row_is_type(turn, JSON_OBJECT) &&
            ((row_member(turn, "role") && row_member(turn, "content")) ||
             (row_member(turn, "from") && row_member(turn, "value"))))
            return json_key(list);
    }
    return NULL;
}

static cz_status fail_form(struct row_reader *r)
{
    static const char *const known[] = {"messages", "conversations", "conversation",
                                        "prompt",   "completion",    "text"};
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
    if (row_member(r->root, "prompt") && row_member(r->root, "completion"))
        return ROW_FAIL(
            r, "prompt and completion are both texts or both lists of messages; there is %s",
            names);
    if (find_turns(r))
        return ROW_FAIL(r, "\"%s\" is a list of messages: name it messages", find_turns(r));
    return ROW_FAIL(r,
                    "no messages, prompt and completion, conversations, instruction and output, or "
                    "text; there is %s",
                    names);
}

static cz_status put_text(struct row_reader *r, const char *role, const char *text)
{
    row_write_text(r, role, text);
    return row_add_turn(r, strcmp(role, "assistant") == 0);
}

static cz_status put_history(struct row_reader *r)
{
    const struct json_node *history = row_member(r->root, "history");
    TRY(check_type(r, "history", JSON_ARRAY, "a list of pairs of texts"));
    for (size_t i = 0; i < json_count(history); i++) {
        const struct json_node *pair = json_child(history, i);
        const bool is_pair = json_type(pair) == JSON_ARRAY && json_count(pair) == 2;
        const char *asked = is_pair ? row_text_of(json_child(pair, 0)) : NULL;
        const char *told = asked ? row_text_of(json_child(pair, 1)) : NULL;
        if (!told) return ROW_FAIL(r, "\"history\" is no list of pairs of texts");
        TRY(put_text(r, "user", asked));
        TRY(put_text(r, "assistant", told));
    }
    return CZ_OK;
}

static cz_status put_alpaca(struct row_reader *r, const struct row_form *f)
{
    const char *instruction, *input, *output;
    TRY(get_text(r, "instruction", &instruction));
    TRY(get_text(r, f->input, &input));
    TRY(get_text(r, f->output, &output));
    if (!instruction || !output)
        return ROW_FAIL(r, "\"instruction\" and \"output\" have to be texts");
    TRY(put_history(r));
    if (input && *input) {
        struct text_buf both = {0};
        cz_status st = text_buf_put(&both, instruction, strlen(instruction));
        if (st == CZ_OK) st = text_buf_put_char(&both, '\n');
        if (st == CZ_OK) st = text_buf_put(&both, input, strlen(input) + 1);
        if (st == CZ_OK) st = put_text(r, "user", both.s);
        text_buf_free(&both);
        TRY(st);
    } else {
        TRY(put_text(r, "user", instruction));
    }
    return put_text(r, "assistant", output);
}

static cz_status check_list(struct row_reader *r, const char *list, const char *noun,
                            bool *is_plain)
{
    r->list = list;
    r->noun = noun;
    r->first = r->row->n_messages;
    return row_check_messages(r, row_member(r->root, list), is_plain);
}

/* Check the lists of a conversation and count their messages. */
static cz_status check_lists(struct row_reader *r, const struct row_form *f, bool *is_plain)
{
    if (f->list) {
        *is_plain = strcmp(f->list, "messages") == 0;
        return check_list(r, f->list, *is_plain ? "message" : "turn", is_plain);
    }
    *is_plain = false;
    if (!f->is_split) return CZ_OK;
    TRY(check_list(r, "prompt", "prompt: message", is_plain));
    r->row->n_prompt = r->row->n_messages;
    r->row->has_prompt = true;
    return check_list(r, "completion", "completion: message", is_plain);
}

/* The row's own system text, unless its first message says the same. */
static cz_status get_system(struct row_reader *r, const struct row_form *f, const char **out)
{
    const char *name = f->list ? f->list : "prompt", *said = NULL;
    TRY(get_text(r, "system", out));
    if (*out && !**out) *out = NULL;
    if (!*out || f->is_alpaca) return CZ_OK;
    const struct json_node *first =
        json_count(row_member(r->root, name)) > 0 ? json_child(row_member(r->root, name), 0) : NULL;
    const char *role = row_is_type(first, JSON_OBJECT) ? row_role_of(r, first) : NULL;
    if (!role || !chat_template_is_system_role(role)) return CZ_OK;
    said = row_text_of(row_member(first, row_member(first, "content") ? "content" : "value"));
    if (!said || strcmp(said, *out) != 0)
        return ROW_FAIL(r, "\"system\" and the first of \"%s\" are two system messages: keep one",
                        name);
    *out = NULL;
    return CZ_OK;
}

static cz_status write_chat(struct row_reader *r, const struct row_form *f, const char *system)
{
    static const char *const more[] = {"documents", "chat_template_kwargs"};
    json_begin_object(&r->w);
    json_write_key(&r->w, "messages");
    json_begin_array(&r->w);
    if (system) row_write_text(r, "system", system); /* counted */
    if (f->is_alpaca) TRY(put_alpaca(r, f));
    if (f->list) TRY(row_put_messages(r, row_member(r->root, f->list)));
    if (f->is_split) {
        TRY(row_put_messages(r, row_member(r->root, "prompt")));
        TRY(row_put_messages(r, row_member(r->root, "completion")));
    }
    json_end_array(&r->w);
    if (r->has_tools) {
        json_write_key(&r->w, "tools");
        TRY(json_write_node(&r->w, r->tools ? json_root(r->tools) : row_member(r->root, "tools"),
                            NULL));
    }
    for (size_t i = 0; i < 2; i++) {
        if (!row_member(r->root, more[i])) continue;
        json_write_key(&r->w, more[i]);
        TRY(json_write_node(&r->w, row_member(r->root, more[i]), NULL));
    }
    json_end_object(&r->w);
    return CZ_OK;
}

/* Reads a conversation. Most rows are used as they are; the others are first rewritten. */
static cz_status read_chat(struct row_reader *r, const struct row_form *f, struct json_doc **chat)
{
    struct chat_row *row = r->row;
    const struct json_node *root = r->root;
    const char *system;
    bool is_plain = true;
    TRY(read_tools(r));
    TRY(check_extra(r));
    TRY(get_system(r, f, &system));
    if (system) TRY(row_add_turn(r, false));
    TRY(check_lists(r, f, &is_plain));
    if (!is_plain || system || r->tools) {
        char *text;
        size_t n;
        TRY(write_chat(r, f, system));
        TRY(json_writer_take(&r->w, &text, &n));
        TRY(json_adopt(text, n, r->where, JSON_STRICT, chat));
        root = json_root(*chat);
    }
    TRY(row_obey_own_flags(r, system != NULL));
    row->chat = (struct chat_view){.messages = row_member(root, "messages"),
                                   .tools = r->has_tools ? row_member(root, "tools") : NULL,
                                   .documents = row_member(root, "documents"),
                                   .extra = row_member(root, "chat_template_kwargs")};
    return row->n_messages > (system != NULL) ? CZ_OK
                                              : ROW_FAIL(r, "the conversation has no message");
}

/* Texts stay where they are. */
static cz_status read_form(struct row_reader *r, struct json_doc **chat)
{
    struct chat_row *row = r->row;
    const struct row_form f = form_of(r);
    TRY(row_check_kind(r));
    if (f.list || f.is_split || f.is_alpaca) {
        row->form = CHAT_MESSAGES;
        TRY(read_chat(r, &f, chat));
    } else {
        const char *prompt = row_text_of(row_member(r->root, "prompt"));
        const char *completion = row_text_of(row_member(r->root, "completion"));
        row->form = prompt && completion ? CHAT_TEXTS : CHAT_TEXT;
        row->has_prompt = row->form == CHAT_TEXTS;
        row->prompt = prompt;
        row->text = row->has_prompt ? completion : row_text_of(row_member(r->root, "text"));
        if (!row->text) return fail_form(r);
        TRY(row_obey_own_flags(r, 0));
    }
    return note_members(r, &f);
}

cz_status chat_row_read(const char *json, size_t n, const char *where,
                        const struct chat_reading *reading, struct chat_row *out)
{
    struct row_reader r = {.where = where, .reading = reading, .row = out};
    struct json_doc *chat = NULL;
    memset(out, 0, sizeof *out);
    TRY(json_parse(json, n, where, JSON_STRICT, &out->doc));
    r.root = json_root(out->doc);
    if (json_type(r.root) != JSON_OBJECT) return ROW_FAIL(&r, "the row is no object");
    json_writer_init(&r.w, 0);
    cz_status st = read_form(&r, &chat);
    if (r.lacks_memory) st = err_set(CZ_NOMEM, 0, "%s: no memory to render a conversation", where);
    json_writer_free(&r.w);
    json_free(r.tools);
    if (chat) { /* the texts of the other forms are lent from the first document */
        json_free(out->doc);
        out->doc = chat;
    }
    return st;
}

void chat_row_free(struct chat_row *row)
{
    json_free(row->doc);
    free(row->turns);
    text_buf_free(&row->unread);
    memset(row, 0, sizeof *row);
}
