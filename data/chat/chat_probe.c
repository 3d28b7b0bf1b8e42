/* A template for texts writes Python's text of a list, JSON, or nothing; one for lists writes each
 * part. Which one it is shows in what it writes for parts that no template contains. */
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

/* Render a conversation of its own; false: the template refuses it. */
static bool write_chat(const struct chat_template *t, bool has_tools, const char *messages,
                       size_t n_messages, struct jinja_text *out)
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
    if (st != CZ_OK) err_clear();
    return st == CZ_OK;
}

static bool has(const struct jinja_text *t, const char *what)
{
    return t->text.n > 0 && memmem(t->text.s, t->text.n, what, strlen(what));
}

/* Beside enum chat_takes. */
enum { KNOWS_TEXTS = 256, KNOWS_LISTS = 512 };

/* Templates may run long, so that none is rendered for what its words rule out: parts of text are
 * read by the name of their member. */
static unsigned find_texts(const struct chat_template *t, bool has_tools, enum chat_probe_role role)
{
    struct jinja_text text = {0};
    unsigned takes = KNOWS_TEXTS;
    if (!chat_template_mentions(t, has_tools, "text") ||
        (write_chat(t, has_tools, texts_of[role], 0, &text) && has(&text, "czero-part-a")))
        takes |= CHAT_TAKES_TEXTS;
    jinja_text_free(&text);
    return takes;
}

static unsigned find_lists(const struct chat_template *t, bool has_tools, enum chat_probe_role role)
{
    struct jinja_text text = {0};
    unsigned takes = KNOWS_LISTS;
    const bool reads_parts = chat_template_mentions(t, has_tools, "text");
    for (size_t k = 0; reads_parts && k < CZ_ARRAY_LEN(lists_of); k++) {
        if (!write_chat(t, has_tools, lists_of[k][role], 0, &text) || !has(&text, "czero-part-a") ||
            has(&text, "'text'") || has(&text, "\"text\""))
            continue;
        if (k >= 2) takes |= CHAT_TAKES_PART;
        if (k < 2 && has(&text, "czero-part-b")) takes |= CHAT_TAKES_LISTS;
    }
    if (role == CHAT_PROBE_TOOL &&
        write_chat(t, has_tools, "[" USER("\"q\"") "," CALL("\"\"") "," RESULT(OBJECT) "]", 0,
                   &text) &&
        has(&text, "\"czero-key\"") && has(&text, "\"czero-value\""))
        takes |= CHAT_TAKES_OBJECTS;
    jinja_text_free(&text);
    return takes;
}

/* The common beginning of two conversations whose first answers differ in their first letter. */
static void find_head(const struct chat_template *t, bool has_tools, struct chat_probe *p)
{
    struct jinja_text asked = {0}, a = {0}, b = {0};
    if (write_chat(t, has_tools, TURNS("Aczero"), 1, &asked) &&
        write_chat(t, has_tools, TURNS("Aczero"), 0, &a) &&
        write_chat(t, has_tools, TURNS("Bczero"), 0, &b)) {
        const struct text_buf *x = &a.text, *y = &b.text;
        size_t n = 0;
        while (n < x->n && n < y->n && x->s[n] == y->s[n]) n++;
        const size_t n_head = n > asked.text.n ? n - asked.text.n : 0;
        const bool begins =
            n_head > 0 && (asked.text.n == 0 || memcmp(x->s, asked.text.s, asked.text.n) == 0);
        if (begins && n_head < sizeof p->head && x->n - n >= 6 &&
            memcmp(x->s + n, "Aczero", 6) == 0)
            memcpy(p->head, x->s + n - n_head, n_head);
    }
    jinja_text_free(&asked);
    jinja_text_free(&a);
    jinja_text_free(&b);
}

static enum chat_probe_role role_number(const char *role)
{
    if (strcmp(role, "assistant") == 0 || strcmp(role, "model") == 0) return CHAT_PROBE_ASSISTANT;
    if (strcmp(role, "system") == 0 || strcmp(role, "developer") == 0) return CHAT_PROBE_SYSTEM;
    return chat_template_is_tool_role(role) ? CHAT_PROBE_TOOL : CHAT_PROBE_USER;
}

unsigned chat_probe_takes(const struct chat_template *t, bool has_tools, const char *role,
                          bool for_text)
{
    const enum chat_probe_role number = role_number(role);
    struct chat_probe *p = chat_template_probe(t, has_tools);
    unsigned takes = atomic_load(&p->takes[number]);
    if ((takes & KNOWS_LISTS) || (for_text && (takes & CHAT_TAKES_TEXTS))) return takes;
    pthread_mutex_lock(&p->lock);
    takes = atomic_load(&p->takes[number]);
    if (!(takes & KNOWS_TEXTS)) takes |= find_texts(t, has_tools, number);
    if (!(takes & KNOWS_LISTS) && !(for_text && (takes & CHAT_TAKES_TEXTS)))
        takes |= find_lists(t, has_tools, number);
    atomic_store(&p->takes[number], takes);
    pthread_mutex_unlock(&p->lock);
    return takes;
}

const char *chat_probe_head(const struct chat_template *t, bool has_tools)
{
    struct chat_probe *p = chat_template_probe(t, has_tools);
    pthread_mutex_lock(&p->lock);
    if (!p->has_head) find_head(t, has_tools, p);
    p->has_head = true;
    pthread_mutex_unlock(&p->lock);
    return p->head;
}
