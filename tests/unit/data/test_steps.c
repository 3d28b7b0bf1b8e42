/* Claims: tokenizers that are chains of steps give the ids, rows and decoded texts of Hugging
 * Face's library (tests/interop/tokenizers/steps_make.py made the goldens); decoding gives the same
 * in any portions; a text can be cut where it says so, and long texts can; time is near linear; a
 * bad or unknown step is refused by its name; what a pattern matches is not passed over. */
#include "base/utf8.h"
#include "data/tokenizer/pipe/pipe_impl.h"
#include "data/tokenizer/tokenizer_impl.h"
#include "formats/file_io.h"
#include "formats/json/json.h"
#include "tests/support/check_main.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define DATA CZ_BINARY_DIR "/fixtures/tokenizers/steps/"

static const char *const styles[] = {"llama2", "llama2-new", "xlmr",      "xlmr-new",
                                     "clip",   "gpt1",       "wordlevel", "wordpiece"};

static struct cz_tokenizer *open_style(const char *name)
{
    struct cz_tokenizer *tok;
    char path[512];
    (void)snprintf(path, sizeof path, DATA "%s", name);
    ck_ok(cz_tokenizer_open(path, &tok));
    return tok;
}

/* ---- goldens --------------------------------------------------------------------------------- */

static void check_ids(const int32_t *ids, size_t n, const struct json_node *want, const char *text)
{
    ck_assert_msg(n == json_count(want), "%zu ids, not %zu: %s", n, json_count(want), text);
    for (size_t i = 0; i < n; i++) {
        int64_t id;
        ck_ok(json_as_int(json_child(want, i), &id));
        ck_assert_msg(ids[i] == id, "id %zu is %d, not %lld: %s", i, ids[i], (long long)id, text);
    }
}

static void check_decoded(const struct cz_tokenizer *tok, const int32_t *ids, size_t n,
                          const char *want)
{
    struct cz_tokenizer_decoder *dec;
    const char *text;
    size_t nbytes;
    ck_ok(cz_tokenizer_decoder_create(tok, &dec));
    for (int round = 0; round < 2; round++) { /* a decoder can start another text */
        size_t used = 0;
        for (size_t i = 0; i <= n; i++) {
            if (i < n)
                ck_ok(cz_tokenizer_decode(dec, ids[i], &text, &nbytes));
            else
                cz_tokenizer_decoder_end(dec, &text, &nbytes);
            ck_assert_msg(strncmp(want + used, text, nbytes) == 0, "%s: %s", want, text);
            used += nbytes;
        }
        ck_assert_uint_eq(used, strlen(want));
    }
    cz_tokenizer_decoder_destroy(dec);
}

/* The ids of a text by a tokenizer.json of this content, and the text that they are (NULL: not
 * asked).
 */
static void check_file(const char *file, size_t i, const char *text, const int32_t *want,
                       size_t n_want, const char *decoded)
{
    const char *dir = test_tmp_make();
    char path[512];
    struct cz_tokenizer *tok;
    int32_t *ids;
    size_t n;
    (void)snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    ck_ok(file_save(path, file, strlen(file)));
    ck_ok(cz_tokenizer_open(dir, &tok));
    ck_ok(cz_tokenizer_encode(tok, text, strlen(text), &ids, &n));
    ck_assert_msg(n == n_want && memcmp(ids, want, n * sizeof *ids) == 0,
                  "case %zu: %zu ids, %d first", i, n, n > 0 ? ids[0] : -1);
    if (decoded) check_decoded(tok, ids, n, decoded);
    free(ids);
    cz_tokenizer_close(tok);
    test_tmp_remove(dir);
}

static void check_case(const struct cz_tokenizer *tok, const struct json_node *golden)
{
    const char *text, *decoded;
    const struct json_node *want, *want_row;
    int64_t n_row;
    int32_t *ids, row[1024], types[1024];
    size_t n;
    ck_ok(json_need_string(golden, "text", &text));
    ck_ok(json_need_string(golden, "decoded", &decoded));
    ck_ok(json_need(golden, "ids", JSON_ARRAY, &want));
    ck_ok(json_need(golden, "row", JSON_ARRAY, &want_row));
    ck_ok(cz_tokenizer_encode(tok, text, strlen(text), &ids, &n));
    check_ids(ids, n, want, text);
    check_decoded(tok, ids, n, decoded);
    const struct cz_tokenizer_input input = {.text = text, .nbytes = strlen(text)};
    ck_ok(cz_tokenizer_encode_input(tok, &input, 1024, row, types, &n_row, NULL));
    check_ids(row, (size_t)n_row, want_row, text);
    free(ids);
}

START_TEST(ids_rows_and_texts_are_hugging_faces)
{
    struct json_doc *doc;
    ck_ok(json_load(DATA "golden.json", JSON_STRICT, &doc));
    for (size_t s = 0; s < CZ_ARRAY_LEN(styles); s++) {
        struct cz_tokenizer *tok = open_style(styles[s]);
        const struct json_node *cases = json_get(json_root(doc), styles[s]);
        ck_assert_uint_gt(json_count(cases), 20);
        for (size_t i = 0; i < json_count(cases); i++) check_case(tok, json_child(cases, i));
        cz_tokenizer_close(tok);
    }
    json_free(doc);
}
END_TEST

START_TEST(tokenizer_model_gives_the_ids_of_sentencepiece)
{
    struct json_doc *doc;
    struct cz_tokenizer *tok;
    ck_ok(json_load(DATA "../pieces/golden.json", JSON_STRICT, &doc));
    ck_ok(cz_tokenizer_open(DATA "../pieces", &tok));
    ck_assert_int_eq(cz_tokenizer_special_id(tok, CZ_SPECIAL_BOS), 1);
    ck_assert_int_eq(cz_tokenizer_end_id(tok), 2);
    const struct json_node *cases = json_root(doc);
    ck_assert_uint_gt(json_count(cases), 30);
    for (size_t i = 0; i < json_count(cases); i++) {
        const struct json_node *golden = json_child(cases, i), *want;
        const char *text, *decoded;
        int32_t *ids;
        size_t n;
        ck_ok(json_need_string(golden, "text", &text));
        ck_ok(json_need_string(golden, "decoded", &decoded));
        ck_ok(json_need(golden, "ids", JSON_ARRAY, &want));
        ck_ok(cz_tokenizer_encode(tok, text, strlen(text), &ids, &n));
        check_ids(ids, n, want, text);
        check_decoded(tok, ids, n, decoded);
        free(ids);
    }
    cz_tokenizer_close(tok);
    json_free(doc);
}
END_TEST

/* Each prefix of a tokenizer.model, and each with a byte changed, is read or refused with a
 * sentence. */
START_TEST(a_damaged_tokenizer_model_is_refused_or_read)
{
    const char *dir = test_tmp_make();
    char path[512], *data;
    size_t n;
    (void)snprintf(path, sizeof path, "%s/tokenizer.model", dir);
    ck_ok(file_load(DATA "../pieces/tokenizer.model", (size_t)1 << 20, &data, &n));
    for (size_t i = 0; i < n; i += 1 + i / 16) {
        for (int what = 0; what < 2; what++) {
            struct cz_tokenizer *tok;
            int32_t *ids;
            size_t n_ids;
            data[i] = (char)(data[i] ^ (what ? 0x15 : 0));
            ck_ok(file_save(path, data, what ? n : i));
            data[i] = (char)(data[i] ^ (what ? 0x15 : 0));
            if (cz_tokenizer_open(dir, &tok) != CZ_OK) {
                ck_assert(*cz_last_error());
                continue;
            }
            ck_ok(cz_tokenizer_encode(tok, "a b\xC3\xA9the", 8, &ids, &n_ids));
            free(ids);
            cz_tokenizer_close(tok);
        }
    }
    free(data);
    test_tmp_remove(dir);
}
END_TEST

/* ---- cutting, time --------------------------------------------------------------------------- */

static void encode_with(cz_status (*encode)(const struct cz_tokenizer *, const char *, size_t,
                                            struct id_list *),
                        const struct cz_tokenizer *tok, const char *text, size_t n,
                        struct id_list *out)
{
    ck_ok(encode(tok, text, n, out));
}

static size_t check_cuts(const struct cz_tokenizer *tok, const char *text, size_t n)
{
    size_t n_cuts = 0, at = 1;
    struct id_list whole = {0};
    encode_with(tok->cls->encode, tok, text, n, &whole);
    while ((at = tok->cls->cut(tok, text, n, at)) < n) {
        struct id_list parts = {0};
        encode_with(tok->cls->encode, tok, text, at, &parts);
        encode_with(tok->cls->encode_rest, tok, text + at, n - at, &parts);
        ck_assert_msg(whole.n == parts.n, "cut at %zu of %s", at, text);
        ck_assert(memcmp(whole.ids, parts.ids, whole.n * sizeof *whole.ids) == 0);
        free(parts.ids);
        at++;
        n_cuts++;
    }
    free(whole.ids);
    return n_cuts;
}

START_TEST(parts_of_a_cut_text_are_the_whole)
{
    static const char text[] =
        "The quick  brown fox, 12 and 345 dogs it's the end of A line\nand on the next <s> one "
        "more "
        "<mask> word na\xC3\xAFve e\xCC\x81 x \xE5\xA4\xA9 y <|user|>  z  the and the and";
    for (size_t s = 0; s < CZ_ARRAY_LEN(styles); s++) {
        struct cz_tokenizer *tok = open_style(styles[s]);
        const size_t n_cuts = check_cuts(tok, text, sizeof text - 1);
        ck_assert_msg(n_cuts > 10, "%s: %zu cuts", styles[s], n_cuts);
        cz_tokenizer_close(tok);
    }
}
END_TEST

/* Processor time of a text of n bytes. */
static double seconds_of(const struct cz_tokenizer *tok, const char *bit, size_t n)
{
    char *text = malloc(n);
    const size_t len = strlen(bit);
    struct id_list ids = {0};
    ck_assert_ptr_nonnull(text);
    for (size_t i = 0; i < n; i++) text[i] = bit[i % len];
    const clock_t begin = clock();
    ck_ok(tok->cls->encode(tok, text, n, &ids));
    const double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
    free(ids.ids);
    free(text);
    return seconds;
}

/* A hundred thousand bytes of what makes long words, long runs and long marks. */
START_TEST(hostile_texts_take_little_time)
{
    static const char *const bits[] = {
        "a",           " ",    "\xCC\x81",     "\xCC\x81\xCC\x96", "ab",
        "<",           "\xFF", "\xE2\x96\x81", "\xF0\x9F\x91\x8D", "'",
        "\xE1\x84\x92"};
    for (size_t s = 0; s < CZ_ARRAY_LEN(styles); s++) {
        struct cz_tokenizer *tok = open_style(styles[s]);
        for (size_t i = 0; i < CZ_ARRAY_LEN(bits); i++) {
            const double seconds = seconds_of(tok, bits[i], 100000);
            ck_assert_msg(seconds < 1.0, "%s: %.1f s for %s", styles[s], seconds, bits[i]);
        }
        cz_tokenizer_close(tok);
    }
}
END_TEST

/* ---- refusals -------------------------------------------------------------------------------- */

#define WORDS                                                                                      \
    "\"model\":{\"type\":\"WordLevel\",\"vocab\":{\"<unk>\":0,\"a\":1},\"unk_token\":\"<unk>\"}"

#define BERT_ENDS "{\"type\":\"BertProcessing\",\"sep\":[\"a\",1],\"cls\":[\"a\",1]}"

/* A tokenizer.json of this text. */
static cz_status open_text(const char *text, struct cz_tokenizer **out)
{
    const char *dir = test_tmp_make();
    char path[512];
    (void)snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    ck_assert_int_ge(fputs(text, f), 0);
    ck_assert_int_eq(fclose(f), 0);
    const cz_status st = cz_tokenizer_open(dir, out);
    test_tmp_remove(dir);
    return st;
}

#define LETTERS                                                                                    \
    "{\"model\":{\"type\":\"BPE\",\"end_of_word_suffix\":\"</w>\",\"vocab\":{\"a\":0,\"b</w>\":1," \
    "\"ab</w>\":2},\"merges\":"

START_TEST(what_is_not_known_is_named)
{
    static const struct {
        const char *text, *sentence;
        cz_status st;
    } cases[] = {
        {"{\"normalizer\":{\"type\":\"Odd\"}," WORDS "}", "normalizer of type Odd", CZ_UNSUPPORTED},
        {"{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"x+\"},\"content\":\"\"}"
         "," WORDS "}",
         "\"x+\" is not known", CZ_UNSUPPORTED},
        {"{\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"!\"}," WORDS "}",
         "base64", CZ_CORRUPT},
        {"{\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"/////w==\"}," WORDS
         "}",
         "character map", CZ_CORRUPT},
        {"{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"x\"},\"content\":\"\"},"
         "\"added_tokens\":[{\"id\":9,\"content\":\"xx\",\"normalized\":true}]," WORDS "}",
         "leaves nothing of \"xx\"", CZ_UNSUPPORTED},
        {LETTERS "[[1,\"b</w>\"]]}}", "merges[0][0]", CZ_CORRUPT},
        {LETTERS "[[\"a\",1]]}}", "merges[0][1]", CZ_CORRUPT},
        {LETTERS "[[\"a\"]]}}", "merges[0]", CZ_CORRUPT},
        {LETTERS "[[\"a\",\"b</w>\",\"\"]]}}", "merges[0]", CZ_CORRUPT},
        {LETTERS "[5]}}", "merges[0]", CZ_CORRUPT},
        {LETTERS "[\"a\"]}}", "merges[0]", CZ_CORRUPT},
        {LETTERS "[\"a c\"]}}", "merges[0]", CZ_CORRUPT},
        {LETTERS "5}}", "merges", CZ_CORRUPT},
        {"{\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"}," WORDS "}", "UnicodeScripts",
         CZ_UNSUPPORTED},
        {"{\"normalizer\":{\"type\":\"NFKD\"},\"pre_tokenizer\":{\"type\":\"Sequence\","
         "\"pretokenizers\":"
         "[{\"type\":\"Digits\"},{\"type\":\"Metaspace\",\"prepend_scheme\":\"first\"}]}," WORDS
         "}",
         "the prepend_scheme first", CZ_UNSUPPORTED},
        {"{\"pre_tokenizer\":{\"type\":\"Punctuation\",\"behavior\":\"Odd\"}," WORDS "}",
         "behavior Odd", CZ_UNSUPPORTED},
        {"{\"decoder\":{\"type\":\"Odd\"}," WORDS "}", "decoder of type Odd", CZ_UNSUPPORTED},
        {"{\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":"
         "\"ByteFallback\"}]}," WORDS "}",
         "ByteFallback in this place", CZ_UNSUPPORTED},
        {"{\"model\":{\"type\":\"Odd\",\"vocab\":{}}}", "model of type Odd", CZ_UNSUPPORTED},
        {"{\"model\":{\"type\":\"WordLevel\",\"vocab\":{\"a\":1},\"unk_token\":\"u\"}}",
         "unk_token \"u\"", CZ_CORRUPT},
        {"{\"model\":{\"type\":\"WordLevel\",\"vocab\":{\"a\":1,\"b\":1}}}", "already", CZ_CORRUPT},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",-1]]}}", "unk_id", CZ_UNSUPPORTED},
        {"{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"a\",-1],[\"a\",-2]]}}",
         "the text of another", CZ_UNSUPPORTED},
        {"{\"post_processor\":{\"type\":\"Sequence\",\"processors\":[" BERT_ENDS "," BERT_ENDS
         "]}," WORDS "}",
         "a second post-processor", CZ_UNSUPPORTED},
        {"{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"a\"]]}}", "its score",
         CZ_CORRUPT},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a b\"]}}",
         "\"b\", which is not", CZ_CORRUPT},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        struct cz_tokenizer *tok;
        const cz_status st = open_text(cases[i].text, &tok);
        ck_assert_msg(st == cases[i].st && strstr(cz_last_error(), cases[i].sentence),
                      "%s: status %d, %s", cases[i].sentence, st, cz_last_error());
    }
}
END_TEST

/* ---- growth ---------------------------------------------------------------------------------- */

/* A character map of one key, "a", in base64 for a tokenizer.json: `text` stands for it. */
static void write_map(FILE *f, const char *text)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    enum { N_UNITS = 512, AT = 256 ^ 'a' };
    static unsigned char blob[4 + 4 * N_UNITS + 1024];
    uint32_t units[N_UNITS] = {256u << 10};
    units[AT] = (uint32_t)(AT ^ 300) << 10 | 0x100u | 'a';
    units[300] = 0x80000000u;
    size_t n = 0;
    for (int i = -1; i < N_UNITS; i++) {
        const uint32_t unit = i < 0 ? 4 * N_UNITS : units[i];
        for (int k = 0; k < 4; k++) blob[n++] = (unsigned char)(unit >> 8 * k);
    }
    memcpy(blob + n, text, strlen(text) + 1);
    n += strlen(text) + 1;
    fputs("{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"", f);
    for (size_t i = 0; i < n; i += 3) { /* without padding: as many digits as there are bits */
        const uint32_t bits = (uint32_t)blob[i] << 16 |
                              (i + 1 < n ? (uint32_t)blob[i + 1] << 8 : 0) |
                              (i + 2 < n ? blob[i + 2] : 0u);
        for (size_t k = 0; k < 4 && 3 * k < 4 * (n - i); k++)
            fputc(digits[bits >> (18 - 6 * k) & 63], f);
    }
    fputs("\"}", f);
}

/* `n` times the step that write() writes, as the normalizer of WORDS. */
static cz_status open_chain(int n, void (*write)(FILE *f, const char *text), const char *text,
                            struct cz_tokenizer **out)
{
    char *json = NULL;
    size_t nbytes = 0;
    FILE *f = open_memstream(&json, &nbytes);
    fputs("{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[", f);
    for (int i = 0; i < n; i++) {
        if (i > 0) fputc(',', f);
        write(f, text);
    }
    fputs("]}," WORDS "}", f);
    ck_assert_int_eq(fclose(f), 0);
    const cz_status st = open_text(json, out);
    free(json);
    return st;
}

static void write_text(FILE *f, const char *text)
{
    fputs(text, f);
}

static cz_status encode(struct cz_tokenizer *tok, const char *text, size_t n)
{
    struct id_list ids = {0};
    const cz_status st = tok->cls->encode(tok, text, n, &ids);
    free(ids.ids);
    return st;
}

/* Chains that make 200^16 or 2^16 times as much, and a step at its bound. */
START_TEST(normalizers_are_bounded_together)
{
    char text[201], many[4001];
    struct cz_tokenizer *tok;
    memset(text, 'a', 200);
    memset(many, 'a', 4000);
    text[200] = many[4000] = '\0';
    for (size_t n = 196; n <= 200; n += 1) { /* all remainders of base64 */
        ck_ok(open_chain(1, write_map, text + 200 - n, &tok));
        ck_ok(encode(tok, "a", 1));
        ck_ok(encode(tok, many, 400));
        ck_fails(encode(tok, many, 4000), CZ_INVALID);
        cz_tokenizer_close(tok);
    }
    ck_fails(open_chain(16, write_map, text, &tok), CZ_INVALID);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "more than 64 times longer"));

    ck_ok(open_chain(16, write_text, "{\"type\":\"ByteLevel\"}", &tok));
    ck_ok(encode(tok, "b", 1));
    for (size_t i = 0; i < 4000; i += 2) memcpy(many + i, "\xC3\xA9", 2);
    ck_fails(encode(tok, many, 4000), CZ_INVALID);
    cz_tokenizer_close(tok);

    static char step[PIPE_GROWTH_FREE + 200];
    const size_t most = PIPE_GROWTH_MAX + PIPE_GROWTH_FREE; /* of one byte */
    for (size_t n = most; n <= most + 1; n++) {
        size_t at = (size_t)sprintf(
            step, "{\"type\":\"Replace\",\"pattern\":{\"String\":\"x\"},\"content\":\"");
        memset(step + at, 'b', n);
        strcpy(step + at + n, "\"}");
        ck_ok(open_chain(1, write_text, step, &tok));
        ck_ok(encode(tok, "a", 1));
        if (n == most)
            ck_ok(encode(tok, "x", 1));
        else
            ck_fails(encode(tok, "x", 1), CZ_INVALID);
        cz_tokenizer_close(tok);
    }

    /* texts on both sides of a token are one text */
    size_t at =
        (size_t)sprintf(step, "{\"added_tokens\":[{\"id\":9,\"content\":\"<t>\",\"special\":"
                              "true}],\"normalizer\":{\"type\":\"Replace\",\"pattern\":{"
                              "\"String\":\"x\"},\"content\":\"");
    memset(step + at, 'b', PIPE_GROWTH_FREE / 2 + PIPE_GROWTH_MAX);
    strcpy(step + at + PIPE_GROWTH_FREE / 2 + PIPE_GROWTH_MAX, "\"}," WORDS "}");
    ck_ok(open_text(step, &tok));
    ck_ok(encode(tok, "x<t>x", 5));
    ck_ok(encode(tok, "x<t>x", 5)); /* each has its own share */
    ck_fails(encode(tok, "x<t>x<t>x", 9), CZ_INVALID);
    cz_tokenizer_close(tok);
}
END_TEST

START_TEST(decoders_are_bounded_together)
{
    char json[8192], pattern[300];
    struct cz_tokenizer *tok;
    struct cz_tokenizer_decoder *dec;
    const char *text;
    size_t nbytes, n = (size_t)sprintf(json, "{\"decoder\":{\"type\":\"Sequence\",\"decoders\":[");
    for (int i = 0; i < 16; i++)
        n += (size_t)sprintf(json + n,
                             "%s{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":"
                             "\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"}",
                             i > 0 ? "," : "");
    sprintf(json + n, "]}," WORDS "}");
    ck_ok(open_text(json, &tok));
    ck_ok(cz_tokenizer_decoder_create(tok, &dec));
    ck_ok(cz_tokenizer_decode(dec, 0, &text, &nbytes));
    ck_fails(cz_tokenizer_decode(dec, 1, &text, &nbytes), CZ_INVALID);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "a token more than 64 times longer"));
    cz_tokenizer_decoder_destroy(dec);
    cz_tokenizer_close(tok);

    memset(pattern, 'p', sizeof pattern);
    for (int i = 256; i <= 257; i++) {
        sprintf(json,
                "{\"decoder\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"%.*s\"},\"content\":"
                "\"\"}," WORDS "}",
                i, pattern);
        if (i == 257) {
            ck_fails(open_text(json, &tok), CZ_UNSUPPORTED);
        } else {
            ck_ok(open_text(json, &tok));
            cz_tokenizer_close(tok);
        }
    }
}
END_TEST

/* An array that leads back to itself has endless keys; a value's unit may lead out of it. */
START_TEST(character_maps_that_lead_nowhere_take_little_time)
{
    enum { N = 200000 };
    unsigned char blob[4 + 4 * 256 + 2] = {0, 4};
    struct charsmap map;
    size_t n_key;
    const uint32_t loop = 'a' | (uint32_t)'a' << 10;
    for (int k = 0; k < 4; k++) blob[4 + 4 * 'a' + k] = (unsigned char)(loop >> 8 * k);
    blob[4 + 4 * 256] = 'a';
    ck_ok(charsmap_init(&map, (const char *)blob, sizeof blob));
    char *text = malloc(N);
    memset(text, 'a', N);
    const clock_t begin = clock();
    for (size_t i = 0; i < N; i++)
        ck_assert_ptr_null(charsmap_find(&map, text + i, N - i, true, &n_key));
    ck_assert_double_lt((double)(clock() - begin) / CLOCKS_PER_SEC, 5);
    free(text);
    const uint32_t out = 'a' | 0x100u | 0x200u | 0x1fffffu << 10;
    map.units['a'] = out;
    ck_assert_ptr_null(charsmap_find(&map, "a", 1, true, &n_key));
    charsmap_free(&map);
}
END_TEST

/* ---- what random files found -----------------------------------------------------------------
 */

#define MANY_WORDS                                                                                 \
    "\"unk_token\":\"<unk>\",\"vocab\":{\"<unk>\":0,\"a\":1,\"b\":2,\"\xEA\x9F\x93\":3,"           \
    "\"e\xE0\xA2\x98\":4,\"e\":5,\",\":6,\"##b\":7,\"\xE3\x8B\xBF\":8,\"\xF0\x91\xAF\x80\":9}}"

/* What czero makes of a text must be what tokenizers 0.23.3 makes of it. */
START_TEST(steps_are_hugging_faces_where_random_files_differed)
{
    static const struct {
        const char *steps, *text;
        int32_t ids[4];
        size_t n;
        const char *decoded;
    } cases[] = {
        /* A token of white space that another one's rstrip has taken is found all the same. */
        {"\"added_tokens\":[{\"id\":10,\"content\":\" \",\"rstrip\":true,\"lstrip\":false,"
         "\"single_word\":false,\"normalized\":false,\"special\":false}],",
         "a  b",
         {1, 10, 10, 2},
         4,
         "a     b"},
        /* A small letter between two capitals that have none in utf8proc. */
        {"\"normalizer\":{\"type\":\"Lowercase\"},", "\xEA\x9F\x93", {3}, 1, "\xEA\x9F\x93"},
        /* A mark that the library's normalizers do not know. */
        {"\"normalizer\":{\"type\":\"StripAccents\"},", "e\xE0\xA2\x98", {4}, 1, "e\xE0\xA2\x98"},
        {"\"normalizer\":{\"type\":\"StripAccents\"},", "e\xCC\x81", {5}, 1, "e"},
        {"\"normalizer\":{\"type\":\"NFKC\"},", "\xE3\x8B\xBF", {8}, 1, "\xE3\x8B\xBF"},
        /* A letter of Unicode 16. */
        {"\"pre_tokenizer\":{\"type\":\"Whitespace\"},",
         "a,\xF0\x91\xAF\x80",
         {1, 6, 9},
         3,
         "a , \xF0\x91\xAF\x80"},
        /* BERT's own code joins tokens in one way; a file may want another. */
        {"\"normalizer\":{\"type\":\"BertNormalizer\"},\"pre_tokenizer\":{\"type\":"
         "\"BertPreTokenizer\"},\"decoder\":{\"type\":\"WordPiece\",\"prefix\":\"##\","
         "\"cleanup\":false},",
         "a,",
         {1, 6},
         2,
         "a ,"},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        char file[2048];
        (void)snprintf(file, sizeof file, "{%s\"model\":{\"type\":\"%s\"," MANY_WORDS "}",
                       cases[i].steps, strstr(cases[i].steps, "Bert") ? "WordPiece" : "WordLevel");
        check_file(file, i, cases[i].text, cases[i].ids, cases[i].n, cases[i].decoded);
    }
}
END_TEST

/* The key "a" leads to a place far away, and its value looks like the key "`". */
static void check_far_map(bool is_shifted)
{
    enum { FAR = 0x8000, N_UNITS = FAR + 0x100, PLACE = 0x60, N_TEXTS = PLACE + 2 };
    uint32_t units[N_UNITS] = {0};
    unsigned char *blob = malloc(4 + 4 * N_UNITS + N_TEXTS);
    struct charsmap map;
    size_t n_key = 0;
    units[0] = is_shifted ? (uint32_t)(FAR >> 8) << 10 | 0x200u : (uint32_t)FAR << 10;
    units[FAR ^ 'a'] = 'a' | 0x100u | 1u << 10;
    units[FAR ^ 'a' ^ 1] = 0x80000000u | PLACE;
    for (size_t i = 0; i <= N_UNITS; i++) {
        const uint32_t unit = i == 0 ? 4 * N_UNITS : units[i - 1];
        for (int k = 0; k < 4; k++) blob[4 * i + (size_t)k] = (unsigned char)(unit >> 8 * k);
    }
    memset(blob + 4 + 4 * N_UNITS, 'x', PLACE);
    memcpy(blob + 4 + 4 * N_UNITS + PLACE, "z", 2);
    ck_ok(charsmap_init(&map, (const char *)blob, 4 + 4 * N_UNITS + N_TEXTS));
    const char *text = charsmap_find(&map, "ab", 2, true, &n_key);
    ck_assert_ptr_nonnull(text);
    ck_assert_str_eq(text, "z");
    ck_assert_uint_eq(n_key, 1);
    ck_assert_ptr_null(charsmap_find(&map, "`", 1, true, &n_key));
    ck_assert_ptr_null(charsmap_find(&map, "b", 1, true, &n_key));
    charsmap_free(&map);
    free(blob);
}

START_TEST(units_of_a_character_map_have_32_bits)
{
    check_far_map(false);
    check_far_map(true); /* bit 9: the offset is counted in steps of 256 */
}
END_TEST

/* ---- BPE behind ByteLevel, patterns ---------------------------------------------------------- */

/* As one step of a chain, which the normalizer makes it; the ids are those of tokenizers 0.23.3. */
START_TEST(bpe_behind_byte_level_has_all_options)
{
    static const char file[] =
        "{\"normalizer\":{\"type\":\"Lowercase\"},\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_"
        "prefix_space\":false},\"model\":{"
        "\"type\":\"BPE\",%s,\"merges\":[],\"vocab\":{\"\xC3\x83\":0,\"<unk>\":1,\"a\":2,"
        "\"\xC3\x83\xC2\xA9\":3,\"##\xC2\xA9\":4,\"<0xC2>\":5,\"<0xA9>\":6,\"a</w>\":7,"
        "\"\xC2\xA9</w>\":8,\"\xC2\xA9\xE4\xBA\xBA\":9}}}";
    static const struct {
        const char *option, *text;
        int32_t ids[4];
        size_t n;
    } cases[] = {
        {"\"ignore_merges\":true", "\xC3\xA9", {3}, 1},
        {"\"continuing_subword_prefix\":\"##\"", "a\xC3\xA9", {2, 4}, 2},
        {"\"byte_fallback\":true",
         "\xC3\xA9"
         "a",
         {0, 5, 6, 2},
         4},
        {"\"end_of_word_suffix\":\"</w>\"", "a\xC3\xA9", {2, 0, 8}, 3},
        {"\"end_of_word_suffix\":\"</w>\"",
         "\xC3\xA9"
         "a",
         {0, 7},
         2},
        {"\"end_of_word_suffix\":\"</w>\",\"unk_token\":\"<unk>\"",
         "\xC3\xA9"
         "a",
         {0, 1, 7},
         3},
        {"\"end_of_word_suffix\":\"</w>\",\"unk_token\":\"<unk>\"", "a\xC3\x83", {2, 0, 1}, 3},
        {"\"end_of_word_suffix\":\"\xE4\xBA\xBA\"", "\xC3\xA9", {0, 9}, 2},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        char text[1024];
        (void)snprintf(text, sizeof text, file, cases[i].option);
        check_file(text, i, cases[i].text, cases[i].ids, cases[i].n, NULL);
    }
}
END_TEST

#define DEEPSEEK                                                                                   \
    "[!\\\"#$%&'()*+,\\\\-./"                                                                      \
    ":;<=>?@\\\\[\\\\\\\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\\\p{L}\\\\p{P}\\\\p{S}]?[\\"             \
    "\\p{L}\\\\p{M}]+| ?[\\\\p{P}\\\\p{S}]+[\\r\\n]*|\\\\s*[\\r\\n]+|\\\\s+(?!\\\\S)|\\\\s+"

/* Random texts; braces surround what the expression matches, by Python's package regex. */
START_TEST(patterns_match_what_their_expressions_do)
{
    static const char *const cases[][2] = {
        {" {2,}",
         "\rぁ぀Z½\nA7éー￥\ń `kk\na 'll\t ́7@1é11aa{  }77.+  {   "
         "}́/Zー'll79\r@中/a中@/ぁ/￥+ ￥￥"
         " A\rZぁ'sZx'llー́aéz{  }é\n½ぁ龦ぁ぀\r½`ー.z'[ 中龦ー9中\t [/+/ "
         "[9/￥7A[ 'sz\nぁ\r½'ll9Az龥中 "
         "1kk1'll`7'ー9A'll.9½7぀½龥+￥\t.￥'s9é́  龥中"},
        {" +",
         "{ }[龥\t龦x龦ー@ぁz/ーx\t龥\r.中{ }a￥x\r+\t½.龦ぁぁ\tぁ'llぁ{ "
         "}éー中぀9぀7{ "
         "}ー￥.['ll7぀'ll/x\tZ{ "
         "}7é{ }\n{ }z￥\n7A1é+{ }￥{ }xz'll½ぁ́@{ }\nーaぁ's\t'lléxーzx/`. 龦中.ぁ1'll'llkk ー½97́"
         "kk￥{ }1[ぁá`+kk 9+kḱ''\n龥.￥́́7\r/龥\r'llZ+/龥.9￥Zéé\n.z1'sa￥ x"},
        {"\\\\s+",
         "{\t\n}￥z{\n}龥{\t}9..龥￥぀éZ1/.{ }中.぀Z½ぁー1za{\r}x½`{  "
         "}a''kk￥́￥'s{ "
         "}.½@/a'.￥/97￥x龥"
         "中{ }9'{ }A@{\n\t}[@Z中'@'s龥Aéé{\n}é1.é9{  }'ll7@{ }zx`́@{\t}Akkkké's1a'[+龥龥ぁーA1."
         "9kk龦.xx{\n\r}@x{\n\r}.぀1{\n}ー½́{ "
         "}1Z中[kkz[é龦½{\n}́½￥+`぀Z{ }́A9'{\n}é[龥"},
        {"\\\\s",
         "{ }1́ぁ{\n}.中ぁ́́1ぁ.'ー぀zkk{ }{ }'s@`zz{ }{ }{ }z龥￥ぁa'￥/'+½½`{ "
         "}97@ー́￥9x{\r}é{\t}7"
         ".{\n}z￥zぁー+AZ½￥9é+.½{\n}7z{ }Zkk{\n}['sー/{ }½ー.@½7{\n}{ }{ "
         "}z'{\t}a½Aé'll7zzx぀k"
         "kぁ`@{\n}龥[￥A{\n}A龥'sAA{\r}'llé/Az{ }{ }龦's{ }{ }{\n}[+`[{ }7@{ "
         "}Zé{ }ぁ龥'kḱ぀1a/"
         "é{\n}xé1/￥"},
        {"\\\\s{2,}|[\\\\n\\\\r\\\\t]",
         "[{\r}'s+11 [￥{\n}['kk{\n\t}A龥{\n}A .ー`@'ll+́xa.1kkZé9ZA'{\t}`́x1+@/71{\r}龥+.z@ "
         "xZZéA1ぁ'{\r}Z{\n}぀'1ー 中ぁa77`{\t}぀79é''é中+é{\n}½'7éA7 ￥龥a`1'llA "
         "azkk{\n}￥ぁ's½{  "
         "\t }/x぀ぁ{\n}ーぁ{\n}A龥'sぁ99{\n}龥́z`7's`. +￥￥ [ ́a`龦 "
         "́Z+Z/龦́龦￥"},
        {"[\\\\n\\\\r\\\\t]",
         " 'séxA 9'llーZ぀ ..@Z[ぁ'll/a{\t}{\n}@z[/ぁx ￥぀[é{\n}中 ''sá́ ぀ "
         "+́+`xー{\n}` "
         "./{\t}@"
         "7@'ll {\n}@kkkk 'll'll{\n}'￥぀{\n}/'ll{\t}[中 'llZ9é.kkxkk ' +`中@A龥1぀@+ "
         "½́{\n}￥`a"
         " 7é[中9ー`kké+ x`ー`@  +ー ½[{\n}'s ½́aéー1a龥́中@龥.Zé￥ぁ 中́9.龥[kk"},
        {"\\\\n", "é.'ll中@぀'A{\n}'ll{\n}\t@9\t`x￥'  ́{\n}[éぁ1[a9ーZZ\rx½́぀[A  "
                  "éa￥぀[\t￥龦ZA7's龦'z Z'l"
                  "l'll'́a7中9/ '@ー 's'll \t1￥ー.aé7½@@́z'll9 Z龥+½1½{\n}@ーZa '[\t1ー中 "
                  "9.぀x[.é`'sー/ー￥x"
                  "é{\n}kk1\rZ á1{\n}￥Aaa 'll{\n}龦{\n}/A龦{\n}źぁZx/éé`éー"},
        {"\\\\p{N}",
         "kk぀\t́́/{7}@éA ぀́`龦/xー'll{1}{½}ぁ@龥akkkk "
         "kk{½}zA[é中{9}ー中\r\t￥{9}é\r\rZ\ŕ{7}\n\r"
         "é {1}kkAぁxéa{½}z龥zZ'llé'll぀ékk\n é@[z@{½}/぀ @\té's/\r{½}//a+぀龥{½}́{9} "
         "\r+ "
         "{½}[{"
         "9}ぁ['é぀'s  {1}龥{7}龦ékkぁZ{9}'\tkk龥龦  x\n{7}'llx\r+.` \r'ぁ぀\r龥[éé中``. "
         "A ́ "
         "中\r`"},
        {"\\\\p{N}{1,3}",
         "'ll中`/@.中'll'll@@/@ z`龦'll`{½}'ll@\n'llZkk .`龦+ー@{½}́`{7}\né `[ ́'é\t/x{½}'z 龦{"
         "1}́  +぀@{1}/A{½}/éxkk龦\r.{7}\r{½}￥'s`{1} "
         "{½}`é\n{1}\n{7}[é\r{½7}￥`/\rぁA xé "
         "Z中kk"
         "￥龥぀.中A.{1}぀'ll.'llー{1}. "
         "za龥{7}/'ll.'ll{½}中぀龦+a{7}kk龥a ￥{½}ーz\n a￥é "
         "{77}龦\n's`́'"
         "ll\n\t"},
        {"[一-龥぀-ゟ゠-ヿ]+",
         "a \n@龦{ー}'/\n`{ー}xxéA\r{぀}a9'A½a  ` ½é￥￥.{぀}@Z½ Zé龦 @{中} ` {ー}[ "
         "\n'saz'A/ "
         "́'s7é"
         "́  1'sé9'llZ\t½{぀} \t[\n''llxé  +\rz  7{ー}`'{ー}9. "
         "a 9'`ax½+[{龥}9{ー}aA{ー}￥\rkké{"
         "中} 'll7's'xéZ\n￥.`龦@ ￥\n[+`[+'ll +{ぁ}z/é{぀}[[z{龥}龦￥ é/9'\té"},
        {DEEPSEEK, "{kk}{@}぀{\n}{.[/@}{́}{.'}{ll}{`}{7ぁ}{'[}{中}{ "
                   "ぁ}{`}½{+`}{龥}{+z}{éA}{\n}{./\r}{½龦"
                   "}{぀ぁ龦龦}{[}{龦kké}{'ll}{ '}{s}{'}{é}1{@}{é}{+z}{/}{ー}{'ll}{`}{ "
                   "aé}9{/zkk}{`A}{@[."
                   "..'\n}{z}{'}½{.}{7中}{぀龦kk}{'s}½{½z}{ "
                   "ー}{￥+[}{éé}{\tー中é́}{'s}{é}{\r}19{ }{½ぁ}{\t"
                   " }{ '}{lla}{'s}{+\r}{ }9{'}぀{½é}{.}{́z}{ }{ "
                   "'}{s}{\n}{龥龦Zéx}{/`}{中中ぁ}{7az}{ 龥z}"
                   "{\t}{￥}぀{ z}{\n}{中}{+\n}{ー}{½Zzé}{ `/}{é}"},
        {"'s|'t|'re|'ve|'m|'ll|'d|[\\\\p{L}]+|[\\\\p{N}]|[^\\\\s\\\\p{L}\\\\p{N}]+",
         "\n{@}{éぁ中}\r{'ll}{7}\t{/@'}{s} \n{龥a}{/￥}\n{Ax} {́}{kk}{`.}{龥z}\r{a}{½}{9}{é}{["
         "}\n{+}{ー}\n{龥aa}{+぀'}{sぁ}{+}\t {.}{é}{9}{a} \n{akk}{/[}\n\n {́} {.}{1} "
         "{7}{é龥}\n"
         "{é}{/}\r{[} {½} {`}{ぁkk}{￥぀}{a}{/}{ax}{7}{7}{/́}\t{￥}{中}{1} {éxx} "
         "{`}{Z龥} "
         "{.} {"
         "Z} \t{7}\t{'s}\t{[}{ぁ}{/}{é}\n{Z}\n\t{́}{é}\r{@￥'}{s龥}{9}{'s}{￥} {A}{'s}{z} {龦}"
         "\r{中龦} {ー}{'}{7}{́}\n{kkA}{.}\n{'ll}{龥}{￥぀} {½}{￥}{龥ékk}\n"},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        struct pipe_pattern pattern = {0};
        struct json_doc *doc;
        char json[512], text[1024], have[2048];
        size_t n = 0, used = 0, done = 0, start, end;
        for (const char *c = cases[i][1]; *c; c++)
            if (*c != '{' && *c != '}') text[n++] = *c;
        (void)snprintf(json, sizeof json, "{\"pattern\":{\"Regex\":\"%s\"}}", cases[i][0]);
        ck_ok(json_parse(json, strlen(json), "pattern", JSON_STRICT, &doc));
        ck_ok(pipe_pattern_read(json_root(doc), &pattern));
        while (pipe_pattern_find(&pattern, text, n, done, &start, &end)) {
            ck_assert(start >= done && end > start && end <= n);
            used += (size_t)sprintf(have + used, "%.*s{%.*s}", (int)(start - done), text + done,
                                    (int)(end - start), text + start);
            done = end;
        }
        (void)sprintf(have + used, "%.*s", (int)(n - done), text + done);
        ck_assert_msg(strcmp(have, cases[i][1]) == 0, "%s\n%s\nnot\n%s", cases[i][0], have,
                      cases[i][1]);
        free(pattern.text);
        json_free(doc);
    }
}
END_TEST

/* Each character twice, as some patterns want two. */
START_TEST(what_a_pattern_matches_begins_as_it_says)
{
    static const char *const regexes[] = {
        " {2,}",
        " +",
        "\\\\s+",
        "\\\\s",
        "\\\\s{2,}|[\\\\n\\\\r\\\\t]",
        "[\\\\n\\\\r\\\\t]",
        "\\\\n",
        "\\\\p{N}",
        "\\\\p{N}{1,3}",
        "[\xE4\xB8\x80-\xE9\xBE\xA5\xE3\x81\x80-\xE3\x82\x9F\xE3\x82\xA0-\xE3\x83\xBF]+",
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(regexes); i++) {
        struct pipe_pattern pattern = {0};
        struct json_doc *doc;
        char text[256];
        size_t n_found = 0;
        (void)snprintf(text, sizeof text, "{\"pattern\":{\"Regex\":\"%s\"}}", regexes[i]);
        ck_ok(json_parse(text, strlen(text), "pattern", JSON_STRICT, &doc));
        ck_ok(pipe_pattern_read(json_root(doc), &pattern));
        for (uint32_t c = 0; c < 0x110000; c++) {
            char two[8];
            const size_t n = utf8_encode(c, two), n_both = n + utf8_encode(c, two + n);
            if (pattern.match(two, n_both) == 0) continue;
            n_found++;
            ck_assert_msg(pattern.begins[(unsigned char)two[0]], "%s: U+%04X", regexes[i], c);
        }
        ck_assert_uint_gt(n_found, 0);
        free(pattern.text);
        json_free(doc);
    }
}
END_TEST

TEST_MAIN("data/steps", ids_rows_and_texts_are_hugging_faces,
          tokenizer_model_gives_the_ids_of_sentencepiece,
          a_damaged_tokenizer_model_is_refused_or_read, parts_of_a_cut_text_are_the_whole,
          hostile_texts_take_little_time, what_is_not_known_is_named,
          normalizers_are_bounded_together, decoders_are_bounded_together,
          character_maps_that_lead_nowhere_take_little_time, units_of_a_character_map_have_32_bits,
          steps_are_hugging_faces_where_random_files_differed,
          bpe_behind_byte_level_has_all_options, patterns_match_what_their_expressions_do,
          what_a_pattern_matches_begins_as_it_says)
