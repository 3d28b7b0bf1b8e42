/* Claims: when any one allocation fails while a chat template is opened or instruction data is
 * read, rendered, encoded, packed or dealt into batches, the call fails with CZ_NOMEM and leaks
 * nothing. Kept tokens are the exception: without memory for them, they are read anew. */
#include "data/chat/chat_loader.h"
#include "data/chat/chat_prompt.h"
#include "data/chat/chat_set.h"
#include "formats/file_io.h"
#include "tests/support/no_memory.h"

#include <string.h>
#include <sys/stat.h>

#ifndef NO_MEMORY_WORKS

int main(void)
{
    printf("skipped: the sanitizer has an allocator of its own\n");
    return TEST_SKIPPED;
}

#else

#define USER(text)   "{\"role\": \"user\", \"content\": \"" text "\"}"
#define ANSWER(text) "{\"role\": \"assistant\", \"content\": \"" text "\"}"

/* Answers are found by search, and earlier ones are written differently. */
#define FORGETS                                                                                    \
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' and loop.last %}"            \
    "<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}{% for c in m.tool_calls "  \
    "%}({{ c.function.name }}){% endfor %}.{% endfor %}"                                           \
    "{% if add_generation_prompt %}<assistant>{% endif %}"
#define MARKED                                                                                     \
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}"          \
    "{{ m.content }}.{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"

static char dir[64], forgets[128];

static const char *path_of(const char *name)
{
    static char paths[4][128];
    static int turn;
    char *path = paths[turn++ & 3];
    snprintf(path, sizeof paths[0], "%s/%s", dir, name);
    return path;
}

static void write_named(const char *name, const char *text)
{
    ck_ok(file_save(path_of(name), text, strlen(text)));
}

static void setup(void)
{
    no_memory_begin();
    snprintf(dir, sizeof dir, "%s", test_tmp_make());
    write_named("forgets.jinja", FORGETS);
    write_named("marked.jinja", MARKED);
    snprintf(forgets, sizeof forgets, "%s", path_of("forgets.jinja"));
}

static void teardown(void)
{
    test_tmp_remove(dir);
}

/* ---- templates ---- */

static cz_status open_folder(const char *given)
{
    struct chat_template *t;
    TRY(chat_template_open(dir, given, &t));
    chat_template_close(t);
    return CZ_OK;
}

START_TEST(templates_of_folders)
{
    setup();
    write_named("tokenizer_config.json",
                "{\"chat_template\": [{\"name\": \"default\", \"template\": \"D\"}, {\"name\": "
                "\"tool_use\", \"template\": \"T{{ eos_token }}\"}], \"eos_token\": \"</s>\"}");
    write_named("special_tokens_map.json", "{\"bos_token\": \"<s>\"}");
    no_memory_must("a config", open_folder, NULL, 1000);
    no_memory_must("a file", open_folder, path_of("marked.jinja"), 1000);
    ck_assert_int_eq(mkdir(path_of("additional_chat_templates"), 0777), 0);
    write_named("additional_chat_templates/a.jinja", "A");
    no_memory_must("a further folder", open_folder, "a", 1000);
    write_named("chat_template.jinja", "F");
    no_memory_must("a folder", open_folder, NULL, 1000);
    teardown();
}
END_TEST

/* ---- rows ---- */

static const char *row_json, *row_loss;

/* With an encoder of a template that is named by `given`. */
static cz_status encode_row(const char *given)
{
    struct cz_tokenizer *tok;
    struct chat_encoder e;
    struct chat_row row = {0};
    struct chat_tokens t = {0};
    TRY(cz_tokenizer_open(row_loss ? test_fixture("tokenizers/qwen2") : "bytes", &tok));
    cz_status st = chat_encoder_open(&e, tok, given, row_loss);
    if (st == CZ_OK) {
        const struct chat_reading reading = {e.chat, e.loss == CHAT_LOSS_ALL};
        st = chat_row_read(row_json, strlen(row_json), "f:1", &reading, &row);
    }
    if (st == CZ_OK) st = chat_encode(&e, &row, "f:1", &t);
    chat_tokens_free(&t);
    chat_row_free(&row);
    chat_encoder_close(&e);
    cz_tokenizer_close(tok);
    return st;
}

START_TEST(rows_of_every_form)
{
    static const struct {
        const char *name, *template, *loss, *json;
    } table[] = {
        {"found answers", "forgets.jinja", NULL,
         "{\"messages\": [" USER("a") ", " ANSWER("b") ", " USER("c") ", " ANSWER("d") "]}"},
        {"marked answers", "marked.jinja", NULL,
         "{\"messages\": [" USER("a") ", " ANSWER("b") ", " USER("c") ", " ANSWER("d") "]}"},
        {"excluded answers", "forgets.jinja", NULL,
         "{\"loss_masks\": [0, 0, 0, 1], \"messages\": [" USER("a") ", " ANSWER("b") ", " USER(
             "c") ", " ANSWER("d") "]}"},
        {"excluded marks", "marked.jinja", "all",
         "{\"loss_masks\": [1, 0, 0, 1], \"messages\": [" USER("a") ", " ANSWER("b") ", " USER(
             "c") ", " ANSWER("d") "], \"note\": 5}"},
        {"a completion", "forgets.jinja", "completion",
         "{\"prompt\": [" USER("a") "], \"completion\": [" ANSWER("b") "]}"},
        {"texts", "forgets.jinja", NULL, "{\"prompt\": \"a\", \"completion\": \"b\"}"},
        {"Alpaca's form", "forgets.jinja", NULL,
         "{\"instruction\": \"i\", \"input\": \"x\", \"output\": \"o\", \"system\": \"s\", "
         "\"history\": [[\"q\", \"a\"]]}"},
        {"ShareGPT's form", "forgets.jinja", NULL,
         "{\"tools\": \"[{\\\"name\\\": \\\"f\\\"}]\", \"conversations\": [{\"from\": \"human\", "
         "\"value\": \"a\"}, {\"from\": \"function_call\", \"value\": \"{\\\"name\\\": "
         "\\\"f\\\"}\"}, {\"from\": \"observation\", \"value\": \"o\"}, {\"from\": \"gpt\", "
         "\"value\": \"b\", \"thinking\": \"t\"}]}"},
        {"parts", "forgets.jinja", NULL,
         "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": "
         "\"x\"}, \"y\"]}, " ANSWER("b") "]}"},
    };
    setup();
    for (size_t i = 0; i < CZ_ARRAY_LEN(table); i++) {
        row_json = table[i].json;
        row_loss = table[i].loss;
        no_memory_must(table[i].name, encode_row, path_of(table[i].template), 600);
    }
    teardown();
}
END_TEST

/* A refused row leaves nothing behind. */
START_TEST(refused_rows)
{
    static const char *const table[] = {
        "{\"conversations\": [{\"from\": \"function_call\", \"value\": \"[]\"}]}",
        "{\"conversations\": [{\"from\": \"function_call\", \"value\": \"{}\"}]}",
        "{\"conversations\": [{\"from\": \"me\", \"value\": \"a\"}]}",
        "{\"tools\": \"{}\", \"messages\": [" USER("a") "]}",
        "{\"system\": \"s\", \"messages\": []}",
        "{\"instruction\": \"i\", \"output\": \"o\", \"history\": [[\"a\", \"b\"], 5]}",
        "{\"messages\": [" ANSWER("a") ", 5]}",
        "{\"note\": 1, \"loss_masks\": [1, 1, 1], \"messages\": [" USER("a") "]}",
        "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image\"}]}]}",
        "{\"a\": 1}",
        "[]",
        "{",
    };
    setup();
    row_loss = NULL;
    for (size_t i = 0; i < CZ_ARRAY_LEN(table); i++) {
        row_json = table[i];
        cz_status st = encode_row(forgets);
        ck_assert_msg(st == CZ_INVALID || st == CZ_CORRUPT, "%s", table[i]);
        const long live = n_live;
        ck_assert_int_eq(encode_row(forgets), st);
        ck_assert_msg(n_live == live, "%s: %ld blocks leak", table[i], n_live - live);
    }
    teardown();
}
END_TEST

static cz_status encode_prompts(const char *path)
{
    struct cz_tokenizer *tok;
    struct chat_encoder e;
    struct chat_prompts p = {0};
    struct text_buf text = {0};
    int32_t *ids = NULL;
    size_t n;
    TRY(cz_tokenizer_open("bytes", &tok));
    cz_status st = chat_encoder_open(&e, tok, forgets, NULL);
    if (st == CZ_OK) st = chat_prompts_read(path, NULL, &p);
    if (st == CZ_OK) st = chat_prompts_add(&p, (const struct chat_message[]){{"user", "a"}}, 1);
    if (st == CZ_OK) st = chat_prompts_bind(&p, e.chat);
    if (st == CZ_OK) st = chat_encode_prompt(&e, &p.rows[0], "row", &text, &ids, &n);
    free(ids);
    text_buf_free(&text);
    chat_prompts_free(&p);
    chat_encoder_close(&e);
    cz_tokenizer_close(tok);
    return st;
}

START_TEST(prompts_of_files)
{
    setup();
    write_named("list.json", "[" USER("a") ", " ANSWER("b") ", " USER("c") "]");
    no_memory_must("a list of messages", encode_prompts, path_of("list.json"), 600);
    write_named("rows.json", "[{\"messages\": [" USER("a") "]}]");
    no_memory_must("a list of rows", encode_prompts, path_of("rows.json"), 600);
    write_named("lines.json", "{\"messages\": [" USER("a") "]}\n{\"messages\": [" USER("a") "]}");
    no_memory_must("lines", encode_prompts, path_of("lines.json"), 600);
    teardown();
}
END_TEST

/* ---- sets ---- */

static const char *cache; /* NULL: none */

static cz_status open_set(const char *path)
{
    struct cz_tokenizer *tok;
    struct chat_encoder e;
    struct chat_set *s = NULL, *held = NULL;
    struct chat_loader *l = NULL;
    struct cz_batch batch;
    TRY(cz_tokenizer_open("bytes", &tok));
    cz_status st = chat_encoder_open(&e, tok, forgets, NULL);
    const struct chat_set_options o = {.paths = &path,
                                       .n_paths = 1,
                                       .encoder = e,
                                       .max_len = 20,
                                       .packs = true,
                                       .split_share = cache ? 0 : 0.3,
                                       .held = cache ? NULL : &held,
                                       .cache_dir = cache};
    if (st == CZ_OK) st = chat_set_open(&o, &s);
    const struct chat_loader_options lo = {.set = s,
                                           .max_len = 20,
                                           .micro_batch = 1,
                                           .accumulation = 1,
                                           .world_size = 1,
                                           .is_packed = true};
    if (st == CZ_OK) st = chat_loader_open(&lo, &l);
    if (st == CZ_OK) chat_loader_next(l, &batch);
    chat_loader_close(l);
    chat_set_close(s);
    chat_set_close(held);
    chat_encoder_close(&e);
    cz_tokenizer_close(tok);
    return st;
}

START_TEST(sets_and_loaders)
{
    setup();
    write_named("set.jsonl", "{\"prompt\": \"aa\", \"completion\": \"b\"}\n"
                             "{\"messages\": [" USER("a") ", " ANSWER(
                                 "b") "]}\n"
                                      "{\"prompt\": \"a\", \"completion\": \"b\"}\n");
    no_memory_must("a set", open_set, path_of("set.jsonl"), 600);
    char kept[128];
    snprintf(kept, sizeof kept, "%s", path_of("cache"));
    cache = kept;
    no_memory_each("a set with kept tokens", open_set, path_of("set.jsonl"), 600);
    teardown();
}
END_TEST

TEST_MAIN("data/chat_no_memory", templates_of_folders, rows_of_every_form, refused_rows,
          prompts_of_files, sets_and_loaders)

#endif
