/* Claims: prompts of conversations have the ids of transformers' apply_chat_template(); answers at
 * a conversation's end are left out; files hold a list of messages, rows after each other or a list
 * of rows, and what is none of these is refused with its line; the token that ends a turn is found
 * by the template, as a token, as a word, or as what begins the next message. */
#include "data/chat/chat_encode.h"
#include "data/chat/chat_prompt.h"
#include "data/tokenizer/tokenizer_impl.h"
#include "formats/file_io.h"
#include "formats/json/json_copy.h"
#include "tests/support/check_main.h"

#include <stdlib.h>
#include <string.h>

static char dir[64], file[96], template_file[96];

static void setup(void)
{
    snprintf(dir, sizeof dir, "%s", test_tmp_make());
    snprintf(file, sizeof file, "%s/rows.json", dir);
    snprintf(template_file, sizeof template_file, "%s/t.jinja", dir);
}

static void teardown(void)
{
    test_tmp_remove(dir);
}

static const char *text_of(const struct json_node *line, const char *key)
{
    const char *text;
    ck_ok(json_need_string(line, key, &text));
    return text;
}

static void open_encoder(const char *tokenizer, const char *template_text,
                         struct cz_tokenizer **tok, struct chat_encoder *e)
{
    ck_ok(file_save(template_file, template_text, strlen(template_text)));
    ck_ok(cz_tokenizer_open(tokenizer, tok));
    ck_ok(chat_encoder_open(e, *tok, template_file, NULL));
}

static void check_line(const struct json_node *line)
{
    struct cz_tokenizer *tok;
    struct chat_encoder e;
    struct chat_row row;
    struct json_writer w;
    struct text_buf text = {0};
    char path[128], *json;
    size_t n_json, n;
    int32_t *ids;
    const struct json_node *want = json_get(line, "ids");
    snprintf(path, sizeof path, "tokenizers/%s", text_of(line, "tokenizer"));
    open_encoder(test_fixture(path), text_of(line, "template"), &tok, &e);
    json_writer_init(&w, 0);
    ck_ok(json_write_node(&w, json_get(line, "row"), NULL));
    ck_ok(json_writer_take(&w, &json, &n_json));
    const struct chat_reading reading = {.chat = e.chat};
    ck_ok(chat_row_read(json, n_json, "row", &reading, &row));
    ck_ok(chat_encode_prompt(&e, &row, "row", &text, &ids, &n));
    ck_assert_msg(text.n == strlen(text_of(line, "text")) &&
                      memcmp(text.s, text_of(line, "text"), text.n) == 0,
                  "%.*s instead of %s", (int)text.n, text.s, text_of(line, "text"));
    ck_assert_msg(n == json_count(want), "%s: %zu ids instead of %zu", path, n, json_count(want));
    for (size_t i = 0; i < n; i++) {
        int64_t id;
        ck_ok(json_as_int(json_child(want, i), &id));
        ck_assert_msg(ids[i] == id, "%s: id %zu is %d instead of %d", path, i, ids[i], (int)id);
    }
    free(ids);
    free(json);
    text_buf_free(&text);
    chat_row_free(&row);
    chat_encoder_close(&e);
    cz_tokenizer_close(tok);
}

START_TEST(prompts_have_the_ids_of_transformers)
{
    char *text;
    size_t n, n_lines = 0;
    setup();
    ck_ok(file_load_named(test_fixture("chat_prompts.jsonl"), 1 << 20, &text, &n));
    for (char *line = text, *end; (end = memchr(line, '\n', (size_t)(text + n - line)));
         line = end + 1, n_lines++) {
        struct json_doc *doc;
        ck_ok(json_parse(line, (size_t)(end - line), "golden", JSON_STRICT, &doc));
        check_line(json_root(doc));
        json_free(doc);
    }
    ck_assert_uint_eq(n_lines, 42);
    free(text);
    teardown();
}
END_TEST

#define PLAIN                                                                                      \
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"                             \
    "{% if add_generation_prompt %}<assistant>{% endif %}"

/* The prompts of a file, each in front of "|"; an error as its text. */
static const char *prompts_of(const char *content, cz_status want)
{
    static char out[1000];
    struct cz_tokenizer *tok;
    struct chat_encoder e;
    struct chat_prompts p;
    struct text_buf text = {0};
    size_t n, used = 0;
    int32_t *ids = NULL;
    ck_ok(file_save(file, content, strlen(content)));
    open_encoder("bytes", PLAIN, &tok, &e);
    cz_status st = chat_prompts_read(file, NULL, &p);
    if (st == CZ_OK) st = chat_prompts_bind(&p, e.chat);
    for (size_t i = 0; i < p.n && st == CZ_OK; i++) {
        text.n = 0;
        st = chat_encode_prompt(&e, &p.rows[i], "row", &text, &ids, &n);
        free(ids);
        used += (size_t)snprintf(out + used, sizeof out - used, "%.*s|", (int)text.n, text.s);
    }
    if (st != CZ_OK) snprintf(out, sizeof out, "%s", cz_last_error());
    ck_assert_msg(st == want, "%s: %s", content, out);
    text_buf_free(&text);
    chat_prompts_free(&p);
    chat_encoder_close(&e);
    cz_tokenizer_close(tok);
    return out;
}

static void check_prompts(const char *content, const char *want)
{
    ck_assert_str_eq(prompts_of(content, CZ_OK), want);
}

static void check_error(const char *content, cz_status want, const char *words)
{
    const char *text = prompts_of(content, want);
    ck_assert_msg(strstr(text, words), "no \"%s\" in: %s", words, text);
}

#define USER(text)   "{\"role\": \"user\", \"content\": \"" text "\"}"
#define ANSWER(text) "{\"role\": \"assistant\", \"content\": \"" text "\"}"

START_TEST(conversations_of_every_form_are_read)
{
    setup();
    check_prompts("[" USER("a") "]", "<user>a<assistant>|");
    check_prompts("\n [" USER("a") ", " ANSWER("b") ", " USER("c") "]\n",
                  "<user>a<assistant>b<user>c<assistant>|");
    check_prompts("{\"messages\": [" USER("a") "]}", "<user>a<assistant>|");
    check_prompts("{\"messages\":\n [" USER("a}\\\"]{") "\n]}\n\n{\"messages\": [" USER("b") "]}",
                  "<user>a}\"]{<assistant>|<user>b<assistant>|");
    check_prompts("[{\"messages\": [" USER("a") "]}, {\"messages\": [" USER("b") "]}]",
                  "<user>a<assistant>|<user>b<assistant>|");
    check_prompts("[{\"from\": \"human\", \"value\": \"a\"}]", "<user>a<assistant>|");
    check_prompts("{\"conversations\": [{\"from\": \"system\", \"value\": \"s\"}, {\"from\": "
                  "\"human\", \"value\": \"a\"}]}",
                  "<system>s<user>a<assistant>|");
    /* answers at the end, and completions, are left out */
    check_prompts("{\"messages\": [" USER("a") ", " ANSWER("b") "]}", "<user>a<assistant>|");
    check_prompts("[" USER("a") ", " ANSWER("b") ", " ANSWER("c") "]", "<user>a<assistant>|");
    check_prompts(
        "{\"prompt\": [" USER("a") ", " ANSWER("b") "], \"completion\": [" ANSWER("c") "]}",
        "<user>a<assistant>b<assistant>|");
    check_prompts("{\"instruction\": \"a\", \"output\": \"b\"}", "<user>a<assistant>|");
    teardown();
}
END_TEST

START_TEST(what_is_no_conversation_is_refused)
{
    setup();
    check_error("", CZ_INVALID, "rows.json: no conversation");
    check_error("[]", CZ_INVALID, "rows.json: no conversation");
    check_error("\n\nHello", CZ_CORRUPT, "rows.json:3: no conversation: a JSON object");
    check_error("{\"messages\": [" USER("a") "]}\nx", CZ_CORRUPT, "rows.json:2: no conversation");
    check_error("{\"messages\": [" USER("a") "]}\n{\"messages\": [" USER("a") "]", CZ_CORRUPT,
                "rows.json:2");
    check_error("[" USER("a"), CZ_CORRUPT, "rows.json:1");
    check_error("[1]", CZ_INVALID, "rows.json:1: the row is no object");
    check_error("\n\n[1]", CZ_INVALID, "rows.json:3: the row is no object");
    check_error("[" USER("a") "]\n]", CZ_CORRUPT, "rows.json:2: expected the end of the file");
    check_error("[" USER("a") ", 7]", CZ_INVALID, "message 2 is");
    check_error("{\"question\": \"a\"}", CZ_INVALID, "rows.json:1: no messages");
    check_error("{\"messages\": []}", CZ_INVALID, "rows.json:1: the conversation has no message");
    check_error("{\"messages\": [" ANSWER("a") "]}", CZ_INVALID, "no message asks for an answer");
    check_error("{\"text\": \"a\"}", CZ_INVALID, "plain text: --prompt and --prompts take it");
    check_error("{\"prompt\": \"a\", \"completion\": \"b\"}", CZ_INVALID, "plain text");
    teardown();
}
END_TEST

START_TEST(messages_become_a_conversation)
{
    struct chat_prompts p = {0};
    const struct chat_message messages[] = {{"system", "s\"\n"}, {"user", "a"}};
    for (size_t i = 0; i < 20; i++) ck_ok(chat_prompts_add(&p, messages + i % 2, 2 - i % 2));
    ck_assert_uint_eq(p.n, 20);
    ck_assert_uint_eq(p.rows[0].n_messages, 2);
    ck_assert_uint_eq(p.rows[1].n_messages, 1);
    ck_assert_uint_eq(chat_n_asked(&p.rows[18]), 2);
    for (size_t i = 0; i < 20; i++) {
        const char *role, *content;
        const struct json_node *last =
            json_child(p.rows[i].chat.messages, p.rows[i].n_messages - 1);
        ck_ok(json_need_string(last, "role", &role));
        ck_ok(json_need_string(last, "content", &content));
        ck_assert_str_eq(role, "user");
        ck_assert_str_eq(content, "a");
    }
    chat_prompts_free(&p);
    chat_prompts_free(&p);
}
END_TEST

static char said[1000];

static void note(enum cz_log_level level, const char *line, void *arg)
{
    (void)arg;
    if (level == CZ_LOG_WARN)
        snprintf(said + strlen(said), sizeof said - strlen(said), "%s\n", line);
}

START_TEST(unread_members_of_prompts_are_said_once)
{
    setup();
    cz_log_set_sink(note, NULL);
    check_prompts("{\"messages\": [" USER("a") "], \"note\": 1}\n{\"messages\": [" USER(
                      "b") "], \"id\": 1}\n{\"messages\": [" USER("c") "], \"note\": 2}",
                  "<user>a<assistant>|<user>b<assistant>|<user>c<assistant>|");
    cz_log_set_sink(NULL, NULL);
    ck_assert_msg(strstr(said, "rows.json: members of conversations that czero does not use: note "
                               "(2 times, first: line 1)"),
                  "%s", said);
    teardown();
}
END_TEST

static void check_turn_end(const char *tokenizer, const char *text, int64_t id, const char *word)
{
    struct cz_tokenizer *tok;
    struct chat_encoder e;
    open_encoder(tokenizer, text, &tok, &e);
    ck_assert_msg(e.turn_id == id, "%s: token %d ends a turn instead of %d", text, (int)e.turn_id,
                  (int)id);
    ck_assert_str_eq(e.turn_end, word);
    chat_encoder_close(&e);
    cz_tokenizer_close(tok);
}

#define TURNS(answer)                                                                              \
    "{% for m in messages %}{% if m.role == 'assistant' %}" answer "{% else %}Q: {{ m.content }}"  \
    "<|endoftext|>{% endif %}{% endfor %}"

START_TEST(the_end_of_a_turn_is_found)
{
    const char *qwen = test_fixture("tokenizers/qwen2"),
               *llama = test_fixture("tokenizers/steps/llama2");
    setup();
    check_turn_end(qwen, TURNS("{{ m.content }}<|im_end|>\n"), 502, "<|im_end|>");
    check_turn_end(qwen, TURNS("{{ m.content }}. \n<|im_end|>\n<|endoftext|>"), 502, "<|im_end|>");
    check_turn_end(qwen, TURNS("<|im_end|>{{ m.content }}\n###\n"), -1, "###");
    check_turn_end(qwen, TURNS("{{ m.content }} \n"), -1, "");
    check_turn_end(qwen, TURNS("{{ m.content }}|"), -1, "|");
    check_turn_end("bytes", TURNS("{{ m.content }}#"), -1, "#");
    check_turn_end(qwen, TURNS("{{ raise_exception('no') }}"), -1, "");
    check_turn_end(qwen, TURNS("an answer"), -1, "");
    check_turn_end(llama, TURNS(" {{ m.content }} </s>"), 2, "</s>");
    check_turn_end("bytes", TURNS("{{ m.content }}</s>\n"), -1, "</s>");
    check_turn_end(test_fixture("tokenizers/steps/xlmr"), TURNS("{{ m.content }} 龘"), -1,
                   "龘"); /* unknown */
    /* nothing ends an answer, but the next message begins with a token, or does not */
    check_turn_end(qwen,
                   "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% endfor %}",
                   501, "");
    check_turn_end(qwen, "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", -1,
                   "");
    /* of 255 bytes, and one more */
    char longest[400], word[256];
    memset(word, 'x', 255);
    word[255] = '\0';
    snprintf(longest, sizeof longest, "{%% for m in messages %%}{{ m.content }}%s{%% endfor %%}",
             word);
    check_turn_end("bytes", longest, -1, word);
    snprintf(longest, sizeof longest, "{%% for m in messages %%}{{ m.content }}%sx{%% endfor %%}",
             word);
    check_turn_end("bytes", longest, -1, "");
    teardown();
}
END_TEST

static void check_lacks(const char *text, bool lacks)
{
    static const char json[] =
        "{\"messages\": [" USER("q") ", " ANSWER("a") ", " USER("r") ", " ANSWER("b") "]}";
    struct cz_tokenizer *tok;
    struct chat_encoder e;
    struct chat_row row;
    struct chat_tokens t;
    open_encoder(test_fixture("tokenizers/qwen2"), text, &tok, &e);
    const struct chat_reading reading = {.chat = e.chat};
    ck_ok(chat_row_read(json, sizeof json - 1, "row", &reading, &row));
    ck_ok(chat_encode(&e, &row, "row", &t));
    ck_assert_msg(t.lacks_end == lacks, "%s", text);
    chat_tokens_free(&t);
    chat_row_free(&row);
    chat_encoder_close(&e);
    cz_tokenizer_close(tok);
}

/* A row's text with what is trained in brackets. */
static void check_trained(const char *text, const char *want)
{
    static const char json[] =
        "{\"messages\": [" USER("q") ", " ANSWER("a") ", " USER("r") ", " ANSWER("b") "]}";
    char shown[400] = "", piece[80];
    struct cz_tokenizer *tok;
    struct chat_encoder e;
    struct chat_row row;
    struct chat_tokens t;
    open_encoder(test_fixture("tokenizers/qwen2"), text, &tok, &e);
    const struct chat_reading reading = {.chat = e.chat};
    ck_ok(chat_row_read(json, sizeof json - 1, "row", &reading, &row));
    ck_ok(chat_encode(&e, &row, "row", &t));
    ck_assert_uint_lt(tok->piece_nbytes_max, sizeof piece);
    for (size_t i = 0; i < t.n; i++) {
        const size_t n = tok->cls->piece(tok, t.ids[i], i == 0, piece);
        const bool begins = t.trained[i] && (i == 0 || !t.trained[i - 1]);
        const bool ends = t.trained[i] && (i + 1 == t.n || !t.trained[i + 1]);
        snprintf(shown + strlen(shown), sizeof shown - strlen(shown), "%s%.*s%s", begins ? "[" : "",
                 (int)n, piece, ends ? "]" : "");
    }
    ck_assert_str_eq(shown, want);
    chat_tokens_free(&t);
    chat_row_free(&row);
    chat_encoder_close(&e);
    cz_tokenizer_close(tok);
}

START_TEST(an_end_token_after_all_messages_ends_no_answer)
{
    setup();
    check_trained("{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}"
                  "{% if add_generation_prompt %}<|im_start|>{% else %}<|im_end|>{% endif %}",
                  "<|im_start|>q<|im_start|>[a]<|im_start|>r<|im_start|>[b<|im_end|>]");
    check_trained("{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
                  "{% if add_generation_prompt %}<|im_start|>{% endif %}",
                  "<|im_start|>q<|im_end|><|im_start|>[a<|im_end|>]<|im_start|>r"
                  "<|im_end|><|im_start|>[b<|im_end|>]");
    teardown();
}
END_TEST

START_TEST(an_end_outside_of_the_marks_is_missed)
{
    setup();
    check_lacks(TURNS("{% generation %}{{ m.content }}{% endgeneration %}<|im_end|>\n"), true);
    check_lacks(TURNS("{% generation %}{{ m.content }}{% endgeneration %}\n<|im_end|>\n"), true);
    check_lacks(TURNS("{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}\n"), false);
    check_lacks(TURNS("{% generation %}{{ m.content }}{% endgeneration %}\n###\n"), false);
    check_lacks(TURNS("{{ m.content }}<|im_end|>\n"), false);
    teardown();
}
END_TEST

TEST_MAIN("data/chat_prompt", prompts_have_the_ids_of_transformers,
          conversations_of_every_form_are_read, what_is_no_conversation_is_refused,
          messages_become_a_conversation, unread_members_of_prompts_are_said_once,
          an_end_token_after_all_messages_ends_no_answer, the_end_of_a_turn_is_found,
          an_end_outside_of_the_marks_is_missed)
