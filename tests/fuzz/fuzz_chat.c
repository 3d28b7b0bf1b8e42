/* Promises: any bytes are rows of instruction data or are refused with a sentence; tokens of a row
 * are its text, those trained are some of them; bins hold every example that trains something once,
 * and no more than the longest length; rows that are left out have a reason. The first byte of the
 * input chooses the options, and one of two templates, or the one that stands in front of the rows,
 * up to a byte of 0. */
#include "data/chat/chat_set.h"
#include "tests/fuzz/fuzz.h"

#include <czero/data.h>

static const char marked[] =
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}"
    "{{ m.content }}{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}."
    "{% endgeneration %}{% else %}{{ m.content }}.{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";
/* Earlier answers lose their reasoning, as in many templates. */
static const char plain[] =
    "{{ tools | tojson if tools }}{% for m in messages %}<{{ m.role }}>"
    "{% if m.role == 'assistant' and loop.last %}<think>{{ m.reasoning_content }}</think>{% endif "
    "%}"
    "{{ m.content }}{% for c in m.tool_calls %}({{ c.function.name }}){% endfor %}.{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";

static struct cz_tokenizer *tokenizer;

static void check(const struct chat_set *s, const struct chat_set_options *o)
{
    uint64_t n_trained = 0;
    size_t n_used = 0, n_in_bins = 0;
    for (size_t i = 0; i < s->n_examples; i++) {
        const struct chat_example *e = &s->examples[i];
        size_t n = 0;
        FUZZ_CHECK(e->n <= e->n_full && e->n <= (size_t)o->max_len && e->line > 0);
        FUZZ_CHECK(e->begin + (o->keeps_all ? e->n_full : e->n) <= s->n_tokens);
        for (size_t k = 0; k < e->n; k++) {
            const int32_t token = s->tokens[e->begin + k];
            FUZZ_CHECK((token & INT32_MAX) < 256);
            n += k > 0 && token < 0;
        }
        FUZZ_CHECK(n == e->n_trained);
        n_trained += n;
        n_used += n > 0;
    }
    FUZZ_CHECK(n_trained == s->n_trained);
    for (size_t b = 0; b < s->n_bins; b++) {
        size_t n = 0;
        for (size_t i = 0; i < s->bins[b].n; i++)
            n += s->examples[s->order[s->bins[b].begin + i]].n;
        FUZZ_CHECK(n == s->bins[b].n_tokens && n <= (size_t)o->max_len && s->bins[b].n_trained > 0);
        n_in_bins += s->bins[b].n;
    }
    FUZZ_CHECK(n_in_bins == n_used);
    for (size_t i = 0; i < s->n_left_out; i++)
        FUZZ_CHECK((s->left_out[i].sentence != NULL) == (s->left_out[i].fault <= CHAT_UNSEEN));
    FUZZ_CHECK(!o->keeps_all || s->n_rows == n_used + s->n_left_out);
}

static const unsigned char *second_line_end(const unsigned char *at, const unsigned char *end)
{
    for (int i = 0; i < 2 && at < end; i++) {
        const unsigned char *line = memchr(at, '\n', (size_t)(end - at));
        at = line ? line + 1 : end;
    }
    return at;
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t nbytes)
{
    static const char *const losses[] = {NULL, "assistant", "completion", "all"};
    char rows[160], template[160];
    const char *path = rows;
    struct chat_encoder e = {0};
    struct chat_set *s;
    if (nbytes == 0) return 0;
    const bool has_template = data[0] & 64;
    const unsigned char *body = data + 1, *end = data + nbytes;
    if (!tokenizer) FUZZ_CHECK(cz_tokenizer_open("bytes", &tokenizer) == CZ_OK);
    const char *text = data[0] & 1 ? plain : marked;
    const int folder = fuzz_folder();
    fuzz_folder_put(folder, "t.jinja", text, strlen(text));
    if (has_template) {
        const unsigned char *zero = memchr(body, 0, (size_t)(end - body));
        fuzz_folder_put(folder, "t.jinja", body, (size_t)((zero ? zero : end) - body));
        body = zero ? zero + 1 : end;
        end = second_line_end(body, end); /* each row may take all steps that a rendering has */
    }
    fuzz_folder_put(folder, "t.jsonl", body, (size_t)(end - body));
    snprintf(rows, sizeof rows, "%s/t.jsonl", fuzz_folder_path());
    snprintf(template, sizeof template, "%s/t.jinja", fuzz_folder_path());
    cz_status st = chat_encoder_open(&e, tokenizer, template, losses[data[0] >> 1 & 3]);
    FUZZ_CHECK(has_template || st == CZ_OK);
    if (st != CZ_OK) {
        fuzz_refused(st);
        return 0;
    }
    const struct chat_set_options o = {.paths = &path,
                                       .n_paths = 1,
                                       .encoder = e,
                                       .max_len = data[0] & 8 ? 40 : 4096,
                                       .packs = data[0] & 16,
                                       .keeps_all = data[0] & 32};
    st = chat_set_open(&o, &s);
    FUZZ_CHECK((st == CZ_OK) == (s != NULL));
    if (st == CZ_OK)
        check(s, &o);
    else
        fuzz_refused(st);
    chat_set_close(s);
    chat_encoder_close(&e);
    return 0;
}
