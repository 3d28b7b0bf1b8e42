/* A template for texts writes Python's text of a list, JSON, or nothing; one for lists writes each
 * part. They are told apart by rendering parts whose texts no template contains. */
#include "data/chat/chat_probe.h"

#include "data/chat/chat_template_impl.h"

#include <stdlib.h>
#include <string.h>

#define PARTS                                                                                      \
    "[{\"type\":\"text\",\"text\":\"czero-part-a\"},{\"type\":\"text\",\"text\":\"czero-part-b\"}" \
    "]"
#define PART    "[{\"type\":\"text\",\"text\":\"czero-part-a\"}]"
#define OBJECT  "{\"czero-key\":\"czero-value\"}"
#define USER(c) "{\"role\":\"user\",\"content\":" c "}"
#define CALL(c)                                                                                    \
    "{\"role\":\"assistant\",\"content\":" c ",\"tool_calls\":[{\"type\":\"function\",\"id\":"     \
    "\"czero1234\",\"function\":{\"name\":\"f\",\"arguments\":{}}}]}"
#define RESULT(c)                                                                                  \
    "{\"role\":\"tool\",\"name\":\"f\",\"tool_call_id\":\"czero1234\",\"content\":" c "}"
#define TOOLS                                                                                      \
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"f\",\"parameters\":"   \
    "{\"type\":\"object\",\"properties\":{}}}}]"
#define TURNS(a)                                                                                   \
    "[" USER("\"q\"") ",{\"role\":\"assistant\",\"content\":\"" a                                  \
                      "\"}," USER("\"q\"") ",{\"role\":\"assistant\",\"content\":\"z\"}]"

#define CHATS(content, other, called)                                                              \
    {                                                                                              \
        [CHAT_PROBE_USER] = "[" USER(content) "]",                                                 \
        [CHAT_PROBE_SYSTEM] = "[{\"role\":\"system\",\"content\":" content "}," USER(other) "]",   \
        [CHAT_PROBE_ASSISTANT] =                                                                   \
            "[" USER(other) ",{\"role\":\"assistant\",\"content\":" content "}]",                  \
        [CHAT_PROBE_TOOL] = "[" USER(other) "," CALL(called) "," RESULT(content) "]",              \
    }

/* Lists in all messages, and in one of them; a list of one part. */
#define OTHER "[{\"type\":\"text\",\"text\":\"q\"}]"
static const char *const lists_of[][CHAT_PROBE_ROLES] = {
    CHATS(PARTS, OTHER, OTHER), CHATS(PARTS, "\"q\"", "\"\""), CHATS(PART, OTHER, OTHER),
    CHATS(PART, "\"q\"", "\"\"")};
static const char *const texts_of[CHAT_PROBE_ROLES] = CHATS("\"czero-part-a\"", "\"q\"", "\"\"");

/* Render a conversation of its own. *written: the template does not refuse it. CZ_NOMEM. */
static cz_status write_chat(const struct chat_template *t, bool has_tools, const char *messages,
                            size_t n_messages, struct jinja_text *out, bool *written)
{
    struct json_doc *chat = NULL, *tools = NULL;
    cz_status st = json_parse(messages, strlen(messages), "probe", JSON_STRICT, &chat);
    if (st == CZ_OK && has_tools)
        st = json_parse(TOOLS, strlen(TOOLS), "probe", JSON_STRICT, &tools);
    if (st == CZ_OK) {
        const struct chat_view view = {.messages = json_root(chat),
                                       .tools = tools ? json_root(tools) : NULL};
        if (n_messages == 0) n_messages = json_count(view.messages);
        st = chat_template_render(t, &view, n_messages, false, 0, out);
    }
    json_free(chat);
    json_free(tools);
    *written = st == CZ_OK;
    if (st == CZ_OK || st == CZ_NOMEM) return st;
    err_clear();
    return CZ_OK;
}

static bool has(const struct jinja_text *t, const char *what)
{
    return t->text.n > 0 && memmem(t->text.s, t->text.n, what, strlen(what));
}

/* Beside enum chat_takes. */
enum { KNOWS_TEXTS = 256, KNOWS_LISTS = 512 };

/* Templates may run long, so that none is rendered for what its words rule out: parts of text are
 * read by the name of their member. */
static cz_status find_texts(const struct chat_template *t, bool has_tools,
                            enum chat_probe_role role, struct jinja_text *text, unsigned *takes)
{
    bool written = true;
    const bool reads_parts = chat_template_mentions(t, has_tools, "text");
    if (reads_parts) TRY(write_chat(t, has_tools, texts_of[role], 0, text, &written));
    if (!reads_parts || (written && has(text, "czero-part-a"))) *takes |= CHAT_TAKES_TEXTS;
    *takes |= KNOWS_TEXTS;
    return CZ_OK;
}

static cz_status find_lists(const struct chat_template *t, bool has_tools,
                            enum chat_probe_role role, struct jinja_text *text, unsigned *takes)
{
    static const char object[] = "[" USER("\"q\"") "," CALL("\"\"") "," RESULT(OBJECT) "]";
    unsigned found = KNOWS_LISTS;
    bool written;
    const bool reads_parts = chat_template_mentions(t, has_tools, "text");
    for (size_t k = 0; reads_parts && k < CZ_ARRAY_LEN(lists_of); k++) {
        TRY(write_chat(t, has_tools, lists_of[k][role], 0, text, &written));
        if (!written || !has(text, "czero-part-a") || has(text, "'text'") || has(text, "\"text\""))
            continue;
        if (k >= 2) found |= CHAT_TAKES_PART;
        if (k < 2 && has(text, "czero-part-b")) found |= CHAT_TAKES_LISTS;
    }
    if (role == CHAT_PROBE_TOOL) {
        TRY(write_chat(t, has_tools, object, 0, text, &written));
        if (written && has(text, "\"czero-key\"") && has(text, "\"czero-value\""))
            found |= CHAT_TAKES_OBJECTS;
    }
    *takes |= found;
    return CZ_OK;
}

/* The common beginning of two conversations whose first answers differ in their first letter. */
static cz_status find_head(const struct chat_template *t, bool has_tools, struct chat_probe *p,
                           struct jinja_text text[3])
{
    static const char *const chats[3] = {TURNS("Aczero"), TURNS("Aczero"), TURNS("Bczero")};
    const struct text_buf *asked = &text[0].text, *x = &text[1].text, *y = &text[2].text;
    bool written = true;
    size_t n = 0;
    for (size_t i = 0; i < 3 && written; i++)
        TRY(write_chat(t, has_tools, chats[i], i == 0, &text[i], &written));
    while (written && n < x->n && n < y->n && x->s[n] == y->s[n]) n++;
    const size_t n_head = n > asked->n ? n - asked->n : 0;
    if (n_head < sizeof p->head && x->n - n >= 6 && memcmp(x->s + n, "Aczero", 6) == 0 &&
        (asked->n == 0 || memcmp(x->s, asked->s, asked->n) == 0))
        memcpy(p->head, x->s + asked->n, n_head);
    p->has_head = true;
    return CZ_OK;
}

static enum chat_probe_role role_number(const char *role)
{
    if (chat_template_is_answer_role(role)) return CHAT_PROBE_ASSISTANT;
    if (chat_template_is_system_role(role)) return CHAT_PROBE_SYSTEM;
    return chat_template_is_tool_role(role) ? CHAT_PROBE_TOOL : CHAT_PROBE_USER;
}

cz_status chat_probe_takes(const struct chat_template *t, bool has_tools, const char *role,
                           bool for_text, unsigned *takes)
{
    const enum chat_probe_role number = role_number(role);
    struct chat_probe *p = chat_template_probe(t, has_tools);
    struct jinja_text text = {0};
    cz_status st = CZ_OK;
    *takes = atomic_load(&p->takes[number]);
    if ((*takes & KNOWS_LISTS) || (for_text && (*takes & CHAT_TAKES_TEXTS))) return CZ_OK;
    pthread_mutex_lock(&p->lock);
    *takes = atomic_load(&p->takes[number]);
    if (!(*takes & KNOWS_TEXTS)) st = find_texts(t, has_tools, number, &text, takes);
    if (st == CZ_OK && !(*takes & KNOWS_LISTS) && !(for_text && (*takes & CHAT_TAKES_TEXTS)))
        st = find_lists(t, has_tools, number, &text, takes);
    atomic_store(&p->takes[number], *takes);
    pthread_mutex_unlock(&p->lock);
    jinja_text_free(&text);
    return st;
}

cz_status chat_probe_head(const struct chat_template *t, bool has_tools, const char **head)
{
    struct chat_probe *p = chat_template_probe(t, has_tools);
    struct jinja_text text[3] = {0};
    cz_status st = CZ_OK;
    pthread_mutex_lock(&p->lock);
    if (!p->has_head) st = find_head(t, has_tools, p, text);
    pthread_mutex_unlock(&p->lock);
    for (size_t i = 0; i < CZ_ARRAY_LEN(text); i++) jinja_text_free(&text[i]);
    *head = p->head;
    return st;
}
