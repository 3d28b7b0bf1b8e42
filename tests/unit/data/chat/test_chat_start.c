/* Claims: where a template writes another beginning of an answer than its generation prompt, or no
 * prompt at all, each such row is noted with both texts, and the set counts them and says so; rows
 * that begin as their prompt, in whatever way their template forgets reasoning or writes blanks,
 * are not; kept tokens keep the notes; a template that trained is exported in place of the
 * tokenizer's own, and nothing contradicts it. */
#include "data/chat/chat_set.h"
#include "data/tokenizer/tokenizer_export.h"
#include "formats/output.h"
#include "tests/support/chat_show.h"

#define TURNS        "{%- for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
#define PROMPT(text) "{%- if add_generation_prompt %}" text "{% endif %}"

/* "before|prompt" of a row; "": it begins so; "?": nothing was compared. */
static const char *start_of(const char *template, const char *loss, const char *json, bool skips)
{
    static char shown[600];
    struct chat_encoder e = encoder_of(template, loss);
    const struct chat_reading reading = {.chat = e.chat};
    struct chat_scratch scratch = {.skips_start = skips};
    struct chat_row row;
    struct chat_tokens t;
    ck_ok(chat_row_read(json, strlen(json), "f:1", &reading, &row));
    ck_ok(chat_encode_in(&scratch, &e, &row, "f:1", &t));
    strcpy(shown, t.has_start ? "" : "?");
    if (t.start.n > 0)
        snprintf(shown, sizeof shown, "%s|%s", t.start.s, t.start.s + strlen(t.start.s) + 1);
    ck_assert(t.has_start || t.start.n == 0);
    chat_tokens_free(&t);
    chat_row_free(&row);
    chat_scratch_free(&scratch);
    chat_encoder_close(&e);
    return shown;
}

START_TEST(beginnings_are_compared_with_the_generation_prompt)
{
    static const char one[] = "{'messages': [{'role': 'user', 'content': 'q'}, "
                              "{'role': 'assistant', 'content': 'yes'}]}";
    static const char two[] = "{'messages': [{'role': 'user', 'content': 'q'}, {'role': "
                              "'assistant', 'content': 'no', 'reasoning_content': 'r'}, {'role': "
                              "'user', 'content': 'q'}, {'role': 'assistant', 'content': 'yes', "
                              "'reasoning_content': 's'}]}";
    static const char parts[] = "{'prompt': [{'role': 'user', 'content': 'q'}], 'completion': "
                                "[{'role': 'assistant', 'content': 'yes'}]}";
    static const char asks[] = "{'messages': [{'role': 'user', 'content': 'q'}, {'role': "
                               "'assistant', 'content': 'a'}, {'role': 'user', 'content': 'q'}]}";
    static const char hidden[] = "{'messages': [{'role': 'user', 'content': 'q'}, {'role': "
                                 "'assistant', 'content': 'a'}, {'role': 'user', 'content': 'q'}, "
                                 "{'role': 'assistant', 'content': 'b', 'weight': 0}]}";
    static const char calls[] = "{'messages': [{'role': 'user', 'content': 'q'}, {'role': "
                                "'assistant', 'content': '', 'tool_calls': [{'type': 'function', "
                                "'function': {'name': 'f', 'arguments': {}}}]}]}";
    static const struct {
        const char *template, *loss, *row, *start;
    } table[] = {
        {TURNS PROMPT("<|assistant|>"), NULL, one, ""},
        {TURNS PROMPT("<|assistant|>"), "completion", one, ""},
        {TURNS PROMPT("<|assistant|>"), "all", one, ""},
        {TURNS PROMPT("<|model|>"), NULL, one, "<|assistant|>|<|model|>"},
        {TURNS PROMPT("<|model|>"), "completion", one, "<|assistant|>|<|model|>"},
        {TURNS PROMPT("<|model|>"), "all", one, "<|assistant|>|<|model|>"},
        {TURNS PROMPT("<|assistant|><think>\n\n</think>\n"), NULL, one,
         "<|assistant|>|<|assistant|><think>\n\n</think>\n"},
        {TURNS PROMPT("<|assistant|> "), NULL, one, "<|assistant|>|<|assistant|> "},
        {TURNS, NULL, one, "<|assistant|>|"},
        {TURNS, "all", one, "<|assistant|>|"},
        {TURNS, NULL, parts, "<|assistant|>|"},
        {TURNS PROMPT("<|assistant|>"), NULL, parts, ""},
        /* marks */
        {MARKED, NULL, one, ""},
        {"{% for m in messages %}<{{ m.role }}>{% generation %}{{ m.content }}{% endgeneration %}"
         "{% endfor %}" PROMPT("<bot>"),
         NULL, one, "<assistant>|<bot>"},
        /* no header of an answer: there is nothing to ask with */
        {"{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %} "
         "{{ m.content }}</s>{% endif %}{% endfor %}",
         NULL, one, ""},
        /* what follows the prompt, the model writes itself */
        {"{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}<final>{% endif %}"
         "{{ m.content }}{% endfor %}" PROMPT("<assistant>"),
         NULL, one, ""},
        /* earlier turns are written otherwise; the last one has its reasoning */
        {FORGETS, NULL, two, ""},
        {"{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' and loop.last %}<think>"
         "{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}{% endfor %}" PROMPT(
             "<assistant><think>"),
         NULL, two, ""},
        {TURNS PROMPT("<|model|>"), NULL, calls, "<|assistant|>|<|model|>"},
        {TURNS PROMPT("<|assistant|>"), NULL, calls, ""},
        /* nothing to compare */
        {TURNS PROMPT("<|model|>"), NULL, asks, "?"},
        {TURNS PROMPT("<|model|>"), NULL, hidden, "?"},
        {TURNS PROMPT("<|model|>"), NULL, "{'prompt': 'a', 'completion': 'b'}", "?"},
        {TURNS PROMPT("{{ raise_exception('no') }}"), "all", one, "?"},
    };
    setup();
    for (size_t i = 0; i < CZ_ARRAY_LEN(table); i++) {
        const char *found = start_of(table[i].template, table[i].loss, J(table[i].row), false);
        ck_assert_msg(strcmp(found, table[i].start) == 0, "%s\n%s\n\"%s\", not \"%s\"",
                      table[i].template, table[i].row, found, table[i].start);
    }
    /* a rendering more is saved, where the answers were not searched for */
    ck_assert_str_eq(start_of(TURNS PROMPT("<|model|>"), "all", J(one), true), "?");
    ck_assert_str_eq(start_of(TURNS PROMPT("<|model|>"), NULL, J(one), true),
                     "<|assistant|>|<|model|>");
    teardown();
}
END_TEST

static struct chat_set *open_rows(const char *template, const char *loss, const char *cache,
                                  bool packs)
{
    const char *path = file;
    struct chat_encoder e = encoder_of(template, loss);
    const struct chat_set_options options = {.paths = &path,
                                             .n_paths = 1,
                                             .encoder = e,
                                             .max_len = 64,
                                             .packs = packs,
                                             .cache_dir = cache};
    struct chat_set *s;
    ck_ok(chat_set_open(&options, &s));
    chat_encoder_close(&e);
    return s;
}

START_TEST(a_set_counts_and_says_them)
{
    char text[400 * 96], said[CHAT_START_NBYTES], cache[96];
    size_t n = 0;
    setup();
    for (int i = 0; i < 400; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s\n",
                              i % 4 == 3
                                  ? J("{'prompt': 'a', 'completion': 'b'}")
                                  : J("{'messages': [{'role': 'user', 'content': 'q'}, {'role': "
                                      "'assistant', 'content': 'a'}]}"));
    ck_ok(file_save(file, text, n));
    snprintf(cache, sizeof cache, "%s/kept", dir);
    for (int run = 0; run < 2; run++) { /* the second one finds its tokens */
        struct chat_set *s = open_rows(TURNS PROMPT("\n<|model|>\n"), NULL, cache, run == 1);
        ck_assert_uint_eq(s->n_kept, run == 0 ? 0 : 400);
        ck_assert_uint_eq(s->n_starts, 300);
        ck_assert_uint_eq(s->n_other_starts, 300);
        ck_assert_str_eq(chat_set_start(s, said),
                         "answers follow \"<|assistant|>\", but the generation prompt is "
                         "\"<|model|>\\n\": generate will not begin as trained (300 of 300 "
                         "rows)");
        chat_set_close(s);
    }
    struct chat_set *s = open_rows(TURNS PROMPT("<|assistant|>"), NULL, NULL, false);
    ck_assert_uint_eq(s->n_starts, 300);
    ck_assert_ptr_null(chat_set_start(s, said));
    chat_set_close(s);
    s = open_rows(TURNS, NULL, NULL, false);
    ck_assert_str_eq(chat_set_start(s, said),
                     "the template writes no generation prompt (add_generation_prompt), so "
                     "\"<|assistant|>\" is trained as part of the answers and generate begins "
                     "without it (300 of 300 rows)");
    chat_set_close(s);
    /* the first 256 lines, then every 16th: of 9 those that are chats */
    s = open_rows(TURNS PROMPT("<|model|>"), "all", NULL, false);
    ck_assert_uint_eq(s->n_starts, 192);
    chat_set_close(s);
    teardown();
}
END_TEST

/* ---- exports ------------------------------------------------------------------------------------
 */

static char from[96], to[96];

static void write_in(const char *folder, const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    ck_ok(file_save(path, text, strlen(text)));
}

/* The text of a file; "-": there is none. */
static const char *text_in(const char *folder, const char *name)
{
    static char kept[4][512];
    static int turn;
    char path[256], *text, *out = kept[turn++ % 4];
    size_t n;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    strcpy(out, "-");
    if (file_load(path, sizeof kept[0] - 1, &text, &n) != CZ_OK) {
        err_clear();
        return out;
    }
    memcpy(out, text, n);
    out[n] = '\0';
    free(text);
    return out;
}

static void export_with(const char *template_dir, const char *given, const char *where)
{
    struct cz_tokenizer *tok;
    struct chat_encoder e;
    struct out_folder folder;
    ck_ok(cz_tokenizer_open(from, &tok));
    ck_ok(chat_encoder_open_in(&e, tok, template_dir, given, NULL));
    ck_ok(out_folder_open(where, &folder));
    ck_ok(chat_template_export(e.chat, tok, &folder));
    out_folder_close(&folder);
    chat_encoder_close(&e);
    cz_tokenizer_close(tok);
}

static void folders_begin(void)
{
    char command[512];
    setup();
    snprintf(from, sizeof from, "%s/from", dir);
    snprintf(to, sizeof to, "%s/to", dir);
    snprintf(command, sizeof command, "mkdir -p %s/additional_chat_templates %s && cp %s/* %s/",
             from, to, test_fixture("tokenizers/qwen2"), from);
    ck_assert_int_eq(system(command), 0);
    write_in(from, "tokenizer_config.json",
             J("{'eos_token': '<|endoftext|>', 'chat_template': 'CONFIG'}"));
    write_in(dir, "mine.jinja", "MINE");
}

START_TEST(the_template_that_trained_is_exported)
{
    char mine[128];
    folders_begin();
    snprintf(mine, sizeof mine, "%s/mine.jinja", dir);
    /* the tokenizer's own: as it is */
    export_with(NULL, NULL, to);
    ck_assert_str_eq(text_in(to, "chat_template.jinja"), "-");
    ck_assert_ptr_nonnull(strstr(text_in(to, "tokenizer_config.json"), "CONFIG"));
    /* a file of the user's: nothing contradicts it */
    export_with(NULL, mine, to);
    ck_assert_str_eq(text_in(to, "chat_template.jinja"), "MINE");
    ck_assert_ptr_null(strstr(text_in(to, "tokenizer_config.json"), "CONFIG"));
    ck_assert_ptr_nonnull(strstr(text_in(to, "tokenizer_config.json"), "eos_token"));
    /* the own one again: what the export before wrote is gone */
    export_with(NULL, NULL, to);
    ck_assert_str_eq(text_in(to, "chat_template.jinja"), "-");
    ck_assert_ptr_nonnull(strstr(text_in(to, "tokenizer_config.json"), "CONFIG"));
    /* several: all of them, or the one that was chosen by its name */
    write_in(from, "chat_template.jinja", "FILE");
    write_in(from, "additional_chat_templates/tool_use.jinja", "TOOLS");
    write_in(from, "additional_chat_templates/rag.jinja", "RAG");
    export_with(NULL, NULL, to);
    ck_assert_str_eq(text_in(to, "chat_template.jinja"), "FILE");
    ck_assert_str_eq(text_in(to, "additional_chat_templates/tool_use.jinja"), "TOOLS");
    ck_assert_str_eq(text_in(to, "additional_chat_templates/rag.jinja"), "RAG");
    export_with(NULL, "rag", to);
    ck_assert_str_eq(text_in(to, "chat_template.jinja"), "RAG");
    ck_assert_str_eq(text_in(to, "additional_chat_templates/tool_use.jinja"), "-");
    teardown();
}
END_TEST

START_TEST(another_folder_may_have_the_template)
{
    char other[128];
    struct cz_tokenizer *tok = NULL;
    struct chat_template *t;
    struct out_folder folder;
    folders_begin();
    snprintf(other, sizeof other, "%s/other", dir);
    ck_ok(out_folder_open(other, &folder));
    out_folder_close(&folder);
    ck_assert(!chat_template_is_in(other));
    ck_assert(chat_template_is_in(from));
    write_in(other, "tokenizer_config.json", J("{'chat_template': null}"));
    ck_assert(!chat_template_is_in(other));
    write_in(other, "tokenizer_config.json",
             J("{'chat_template': [{'name': 'default', 'template': 'THEIRS'}, {'name': 'tool_use', "
               "'template': 'TOOLS'}]}"));
    ck_assert(chat_template_is_in(other));
    export_with(other, NULL, to);
    ck_assert_str_eq(text_in(to, "chat_template.jinja"), "THEIRS");
    ck_assert_str_eq(text_in(to, "additional_chat_templates/tool_use.jinja"), "TOOLS");
    ck_assert_ptr_null(strstr(text_in(to, "tokenizer_config.json"), "chat_template"));
    /* into the tokenizer's own folder */
    export_with(other, NULL, from);
    ck_assert_str_eq(text_in(from, "chat_template.jinja"), "THEIRS");
    ck_assert_ptr_null(strstr(text_in(from, "tokenizer_config.json"), "chat_template"));
    /* without a tokenizer that has files */
    ck_ok(chat_template_open(other, NULL, &t));
    ck_ok(out_folder_open(dir, &folder));
    ck_ok(chat_template_export(t, tok, &folder));
    ck_ok(chat_template_export(t, bytes, &folder));
    ck_ok(chat_template_export(NULL, bytes, &folder));
    out_folder_close(&folder);
    chat_template_close(t);
    ck_assert_str_eq(text_in(dir, "chat_template.jinja"), "THEIRS");
    ck_assert_str_eq(text_in(dir, "tokenizer_config.json"), "-");
    teardown();
}
END_TEST

TEST_MAIN("data/chat_start", beginnings_are_compared_with_the_generation_prompt,
          a_set_counts_and_says_them, the_template_that_trained_is_exported,
          another_folder_may_have_the_template)
