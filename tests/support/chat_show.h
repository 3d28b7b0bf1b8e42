/* Rows of instruction data under a template, as text with the trained parts in brackets. Tokens are
 * bytes, so that masks are shown exactly. */
#ifndef CZ_TESTS_SUPPORT_CHAT_SHOW_H
#define CZ_TESTS_SUPPORT_CHAT_SHOW_H

#include "data/chat/chat_encode.h"
#include "formats/file_io.h"
#include "tests/support/check_main.h"
#include "tests/support/guarded_memory.h"

#include <stdlib.h>
#include <string.h>

#define MARKED                                                                                     \
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}"          \
    "{{ m.content }}.{% endgeneration %}{% else %}{{ m.content }}.{% endif %}{% endfor %}"         \
    "{% if add_generation_prompt %}<assistant>{% endif %}"
#define PLAIN                                                                                      \
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}.{% endfor %}"                            \
    "{% if add_generation_prompt %}<assistant>{% endif %}"
/* Reasoning stays in the last answer only, as many templates have it. */
#define FORGETS                                                                                    \
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% if loop.last %}"        \
    "<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}{% else %}{{ m.content }}"  \
    "{% endif %}.{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"

static char dir[64], file[96], template_file[96];
static struct cz_tokenizer *bytes;

/* Without guards around blocks, which cost a system call each: for cases of thousands of rows. */
static inline void setup_unguarded(void)
{
    snprintf(dir, sizeof dir, "%s", test_tmp_make());
    snprintf(file, sizeof file, "%s/rows.jsonl", dir);
    snprintf(template_file, sizeof template_file, "%s/t.jinja", dir);
    ck_ok(cz_tokenizer_open("bytes", &bytes));
}

static inline void setup(void)
{
    guarded_begin();
    setup_unguarded();
}

static void teardown(void)
{
    cz_tokenizer_close(bytes);
    test_tmp_remove(dir);
}

static inline struct chat_encoder encoder_of(const char *text, const char *loss)
{
    struct chat_encoder e;
    ck_ok(file_save(template_file, text, strlen(text)));
    ck_ok(chat_encoder_open(&e, bytes, template_file, loss));
    return e;
}

/* JSON written with ' for ". Lent until eight further calls. */
static inline const char *J(const char *text)
{
    static char kept[8][4096];
    static int i;
    char *s = kept[i++ % 8];
    ck_assert_uint_lt(strlen(text), sizeof kept[0]);
    strcpy(s, text);
    for (char *c = s; *c; c++)
        if (*c == '\'') *c = '"';
    return s;
}

struct shown {
    char text[1000];   /* with trained parts in brackets */
    char unread[1000]; /* names, each followed by a space */
    bool has_empty, is_unseen;
    enum chat_fault fault;
};

static inline cz_status show(const char *template, const char *loss, const char *json,
                             struct shown *out)
{
    struct chat_encoder e = encoder_of(template, loss);
    const struct chat_reading reading = {e.chat, e.loss == CHAT_LOSS_ALL};
    struct chat_row row;
    struct chat_tokens t = {0};
    cz_status st = chat_row_read(json, strlen(json), "f:1", &reading, &row);
    char *at = out->text;
    bool on = false;
    memset(out, 0, sizeof *out);
    if (st == CZ_OK) st = chat_encode(&e, &row, "f:1", &t);
    for (size_t i = 0; i <= t.n && st == CZ_OK; i++) {
        bool trained = i < t.n && t.trained[i];
        if (trained != on) *at++ = trained ? '[' : ']';
        on = trained;
        if (i < t.n) *at++ = (char)t.ids[i];
    }
    for (size_t i = 0; i < row.unread.n && i < sizeof out->unread - 1; i++)
        out->unread[i] = row.unread.s[i] ? row.unread.s[i] : ' ';
    out->has_empty = t.has_empty;
    out->fault = t.fault;
    out->is_unseen = row.is_unseen;
    chat_tokens_free(&t);
    chat_row_free(&row);
    chat_encoder_close(&e);
    return st;
}

static inline void check_shown(const char *template, const char *loss, const char *json,
                               const char *expected)
{
    struct shown s;
    cz_status st = show(template, loss, json, &s);
    ck_assert_msg(st == CZ_OK, "%s: %s", json, cz_last_error());
    ck_assert_msg(strcmp(s.text, expected) == 0, "%s: %s", json, s.text);
}

static inline void check_unread(const char *template, const char *json, const char *expected)
{
    struct shown s;
    cz_status st = show(template, "all", json, &s);
    ck_assert_msg(st == CZ_OK, "%s: %s", json, cz_last_error());
    ck_assert_msg(strcmp(s.unread, expected) == 0, "%s: %s", json, s.unread);
}

static inline void check_refused(const char *template, const char *json, cz_status status,
                                 const char *words)
{
    struct shown s;
    cz_status st = show(template, NULL, json, &s);
    ck_assert_msg(st == status, "%s: %d %s", json, (int)st, cz_last_error());
    ck_assert_msg(strstr(cz_last_error(), words), "%s: %s", json, cz_last_error());
}

/* Left out, but no error of the file. */
static inline void check_left_out(const char *template, const char *json, enum chat_fault fault,
                                  const char *words)
{
    struct shown s;
    cz_status st = show(template, NULL, json, &s);
    ck_assert_msg(st == CZ_INVALID, "%s: %d %s", json, (int)st, cz_last_error());
    ck_assert_msg(strstr(cz_last_error(), words), "%s: %s", json, cz_last_error());
    ck_assert_msg(s.is_unseen == (fault == CHAT_UNSEEN), "%s", json);
    if (fault != CHAT_UNSEEN) ck_assert_int_eq(s.fault, fault);
}

#endif
