/* Claims: byte-level BPE gives the ids, special tokens and decoded text of Hugging Face's library
 * (tests/interop/tokenizers/bpe_make.py made the goldens); a text can be cut where it says so;
 * threads share a tokenizer; the ends of tokens are where their pieces end; a word of a million
 * bytes takes no quadratic time; words of any length are merged in the order of the definition; a
 * bad file gets a sentence with its place. */
#include "base/rng.h"
#include "data/tokenizer/bpe/bpe_impl.h"
#include "data/tokenizer/bpe/bpe_split_impl.h"
#include "data/tokenizer/chars_impl.h"
#include "formats/file_io.h"
#include "formats/json/json.h"
#include "tests/support/check_main.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define DATA CZ_BINARY_DIR "/fixtures/tokenizers/"

static const char *const styles[] = {"gpt2", "qwen2", "llama3"};

static struct cz_tokenizer *open_style(const char *name)
{
    struct cz_tokenizer *tok;
    char path[512];
    (void)snprintf(path, sizeof path, DATA "%s", name);
    ck_ok(cz_tokenizer_open(path, &tok));
    return tok;
}

/* ---- where tokens end ---------------------------------------------------------------------------
 */

/* Where each token ends by what it stands for; false: the pieces one after the other are not the
 * text. */
static bool ends_by_pieces(const struct cz_tokenizer *tok, const struct id_list *ids,
                           const char *text, size_t nbytes, size_t *ends)
{
    char piece[1024];
    size_t at = 0;
    ck_assert(tok->piece_nbytes_max <= sizeof piece);
    for (size_t i = 0; i < ids->n; i++) {
        const size_t n = tok->cls->piece(tok, ids->ids[i], at == 0, piece);
        if (n > nbytes - at || memcmp(text + at, piece, n) != 0) return false;
        at += n;
        ends[i] = at;
        while (ends[i] < nbytes && ((unsigned char)text[ends[i]] & 0xC0) == 0x80) ends[i]++;
    }
    return at == nbytes;
}

/* Texts that NFC changes, broken UTF-8, added tokens, characters in several tokens; prefixes of
 * all, so that every place is an end once. */
START_TEST(ends_are_where_the_pieces_end)
{
    static const char text[] =
        "Hello <|endoftext|> wor ld's<|im_start|>\xE6\x97\xA5\xE6\x9C\xAC x\xF0\x9F\x98\x80\r\n\n "
        "12345  caf\xC3\xA9 e\xCC\x81t\xC3\xA9 \xFF broken";
    for (size_t style = 0; style < CZ_ARRAY_LEN(styles); style++) {
        struct cz_tokenizer *tok = open_style(styles[style]);
        size_t n_known = 0;
        for (size_t n = 0; n < sizeof text; n++) {
            struct id_list ids = {0}, plain = {0}, ends = {0};
            size_t want[sizeof text * 3];
            bool known;
            ck_ok(tok->cls->encode(tok, text, n, &plain));
            ck_ok(tok->cls->encode_ends(tok, text, n, &ids, &ends, &known));
            ck_assert_uint_eq(ids.n, plain.n);
            ck_assert(ids.n == 0 || memcmp(ids.ids, plain.ids, 4 * ids.n) == 0);
            ck_assert_int_eq(known, ends_by_pieces(tok, &ids, text, n, want));
            n_known += known;
            for (size_t i = 0; i < ids.n && known; i++)
                ck_assert_uint_eq((size_t)ends.ids[i], want[i]);
            free(ids.ids);
            free(plain.ids);
            free(ends.ids);
        }
        ck_assert_uint_gt(n_known, 40);
        ck_assert_uint_lt(n_known, sizeof text - 4);
        cz_tokenizer_close(tok);
    }
}
END_TEST

/* ---- goldens ----------------------------------------------------------------------------------
 */

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
    size_t nbytes, used = 0;
    ck_ok(cz_tokenizer_decoder_create(tok, &dec));
    for (size_t i = 0; i <= n; i++) {
        if (i < n)
            ck_ok(cz_tokenizer_decode(dec, ids[i], &text, &nbytes));
        else
            cz_tokenizer_decoder_end(dec, &text, &nbytes);
        ck_assert(strncmp(want + used, text, nbytes) == 0);
        used += nbytes;
    }
    ck_assert_uint_eq(used, strlen(want));
    cz_tokenizer_decoder_destroy(dec);
}

static void check_case(const struct cz_tokenizer *tok, const struct json_node *golden)
{
    const char *text, *decoded;
    const struct json_node *want;
    int64_t n_special, n_row;
    int32_t *ids, row[1024], types[1024];
    size_t n;
    ck_ok(json_need_string(golden, "text", &text));
    ck_ok(json_need_string(golden, "decoded", &decoded));
    ck_ok(json_need(golden, "ids", JSON_ARRAY, &want));
    ck_ok(json_need_int(golden, "n_special", &n_special));
    ck_ok(cz_tokenizer_encode(tok, text, strlen(text), &ids, &n));
    check_ids(ids, n, want, text);
    check_decoded(tok, ids, n, decoded);
    const struct cz_tokenizer_input input = {.text = text, .nbytes = strlen(text)};
    ck_ok(cz_tokenizer_encode_input(tok, &input, 1024, row, types, &n_row, NULL));
    ck_assert_int_eq(n_row, (int64_t)n + n_special); /* all of them in front, in these styles */
    check_ids(row + n_special, n, want, text);
    free(ids);
}

START_TEST(ids_and_texts_are_hugging_faces)
{
    struct json_doc *doc;
    ck_ok(json_load(DATA "golden_bpe.json", JSON_STRICT, &doc));
    for (size_t s = 0; s < CZ_ARRAY_LEN(styles); s++) {
        struct cz_tokenizer *tok = open_style(styles[s]);
        const struct json_node *cases = json_get(json_root(doc), styles[s]);
        ck_assert_uint_gt(json_count(cases), 100);
        for (size_t i = 0; i < json_count(cases); i++) check_case(tok, json_child(cases, i));
        cz_tokenizer_close(tok);
    }
    json_free(doc);
}
END_TEST

START_TEST(special_tokens_are_named_by_the_config)
{
    struct cz_tokenizer *gpt2 = open_style("gpt2"), *qwen2 = open_style("qwen2");
    struct cz_tokenizer *llama3 = open_style("llama3");
    ck_assert_str_eq(cz_tokenizer_name(gpt2), "bpe");
    ck_assert_int_eq(cz_tokenizer_vocab_size(gpt2), 501);
    ck_assert_int_eq(cz_tokenizer_end_id(gpt2), 500); /* <|endoftext|>, of added_tokens.json */
    ck_assert_int_eq(cz_tokenizer_end_id(qwen2), 502);
    ck_assert_int_eq(cz_tokenizer_special_id(qwen2, CZ_SPECIAL_PAD), 500);
    ck_assert_int_eq(cz_tokenizer_special_id(qwen2, CZ_SPECIAL_BOS), -1);
    ck_assert_int_eq(cz_tokenizer_special_id(llama3, CZ_SPECIAL_BOS), 503);
    ck_assert_int_eq(cz_tokenizer_end_id(llama3), 505);
    cz_tokenizer_close(gpt2);
    cz_tokenizer_close(qwen2);
    cz_tokenizer_close(llama3);
}
END_TEST

/* ---- cutting, threads, time -------------------------------------------------------------------
 */

/* Broken UTF-8, too, which cz_tokenizer_encode() refuses. */
static void check_cut(const struct cz_tokenizer *tok, const char *text, size_t n, size_t at)
{
    struct id_list whole = {0}, parts = {0};
    ck_ok(tok->cls->encode(tok, text, n, &whole));
    ck_ok(tok->cls->encode(tok, text, at, &parts));
    ck_ok(tok->cls->encode(tok, text + at, n - at, &parts));
    ck_assert_msg(whole.n == parts.n, "cut at %zu: %s", at, text);
    ck_assert(memcmp(whole.ids, parts.ids, whole.n * sizeof *whole.ids) == 0);
    free(whole.ids);
    free(parts.ids);
}

/* Texts of bits that meet in every way, cut wherever it is offered. */
START_TEST(parts_of_a_cut_text_are_the_whole)
{
    static const char *const bits[] = {"word",         "it's",       " ",
                                       "  ",           "\n",         "\n\n",
                                       "\r\n",         ".",          "-\n",
                                       "12",           "\t",         "'LL",
                                       "e\xCC\x81",    "\xCC\x81",   "\xE5\xA4\xA9",
                                       "\xE3\x80\x82", "A",          "/\n",
                                       "\xC2\xA0",     "<|im_end|>", "<|endoftext|>",
                                       "\xFF",         "\xE5\xA4",   "\xE1\x84\x92",
                                       "\xE1\x85\xA1"};
    uint64_t state = 1;
    size_t n_cuts = 0;
    for (size_t s = 0; s < CZ_ARRAY_LEN(styles); s++) {
        struct cz_tokenizer *tok = open_style(styles[s]);
        for (int round = 0; round < 400; round++) {
            char text[512] = "";
            for (int i = 0; i < 14; i++) {
                state = state * 6364136223846793005u + 1442695040888963407u;
                strcat(text, bits[(state >> 33) % CZ_ARRAY_LEN(bits)]);
            }
            size_t n = strlen(text);
            for (size_t at = 1; (at = tok->cls->cut(tok, text, n, at)) < n; at++, n_cuts++)
                check_cut(tok, text, n, at);
        }
        cz_tokenizer_close(tok);
    }
    ck_assert_uint_gt(n_cuts, 1500);
}
END_TEST

START_TEST(threads_share_a_tokenizer)
{
    const char *text = "Threads share it, 1234 times:\n\n  they've got caches of their own.\n";
    struct cz_tokenizer *tok = open_style("llama3");
    int32_t *want;
    size_t n_want;
    int n_wrong = 0;
    ck_ok(cz_tokenizer_encode(tok, text, strlen(text), &want, &n_want));
#pragma omp parallel for num_threads(4) reduction(+ : n_wrong)
    for (int i = 0; i < 400; i++) {
        int32_t *ids;
        size_t n;
        if (cz_tokenizer_encode(tok, text, strlen(text), &ids, &n) != CZ_OK) {
            n_wrong++;
            continue;
        }
        n_wrong += n != n_want || memcmp(ids, want, n * sizeof *ids) != 0;
        free(ids);
    }
    ck_assert_int_eq(n_wrong, 0);
    free(want);
    cz_tokenizer_close(tok);
}
END_TEST

static double encode_seconds(const struct cz_tokenizer *tok, const char *text, size_t n)
{
    struct timespec a, b;
    struct id_list ids = {0};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    ck_ok(tok->cls->encode(tok, text, n, &ids));
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
    free(ids.ids);
    return (double)(b.tv_sec - a.tv_sec) + (double)(b.tv_nsec - a.tv_nsec) * 1e-9;
}

/* One word of a million letters; quadratic time would be minutes. */
START_TEST(a_million_bytes_of_one_word_take_little_time)
{
    const size_t n = 1000000;
    char *text = malloc(n);
    for (size_t s = 0; s < CZ_ARRAY_LEN(styles); s++) {
        struct cz_tokenizer *tok = open_style(styles[s]);
        for (size_t i = 0; i < n; i++) text[i] = "theinandof"[i * i % 10];
        ck_assert_double_lt(encode_seconds(tok, text, n), 5.0);
        memset(text, ' ', n);
        ck_assert_double_lt(encode_seconds(tok, text, n), 5.0);
        memset(text, '\xCC', n); /* no UTF-8: a million U+FFFD */
        ck_assert_double_lt(encode_seconds(tok, text, n), 5.0);
        for (size_t i = 0; i < n; i++) text[i] = i % 2 ? '\x81' : '\xCC'; /* marks */
        ck_assert_double_lt(encode_seconds(tok, text, n), 5.0);
        cz_tokenizer_close(tok);
    }
    free(text);
}
END_TEST

/* ---- bad files --------------------------------------------------------------------------------
 */

static char folder[] = "/tmp/czero-bpe-XXXXXX";

static void write_file(const char *name, const char *text)
{
    char path[256];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    fputs(text, f);
    fclose(f);
}

static void remove_file(const char *name)
{
    char path[256];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    (void)unlink(path);
}

static void expect(cz_status want, const char *sentence)
{
    struct cz_tokenizer *tok = (void *)&tok;
    cz_status st = cz_tokenizer_open(folder, &tok);
    ck_assert_msg(st == want, "status %d for %s: %s", st, sentence, cz_last_error());
    ck_assert_ptr_null(tok);
    ck_assert_msg(strstr(cz_last_error(), sentence) && strstr(cz_last_error(), folder), "%s: %s",
                  sentence, cz_last_error());
}

#define PRE   "\"pre_tokenizer\":{\"type\":\"ByteLevel\"}"
#define VOCAB "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2}"
#define MODEL "\"model\":{\"type\":\"BPE\"," VOCAB ",\"merges\":[\"a b\"]}"

START_TEST(bad_tokenizer_json_gets_a_sentence)
{
    static const struct {
        const char *text, *sentence;
        cz_status st;
    } cases[] = {
        {"{" PRE "," MODEL, "tokenizer.json:1", CZ_CORRUPT},
        {"[]", "\"model\" is missing", CZ_CORRUPT},
        {"{" PRE "}", "model", CZ_CORRUPT},
        {"{" PRE ",\"model\":{\"type\":\"BPE\",\"merges\":[]}}", "vocab", CZ_CORRUPT},
        {"{" PRE ",\"model\":{\"type\":\"BPE\"," VOCAB "}}", "merges", CZ_CORRUPT},
        {"{" PRE ",\"model\":{\"type\":\"BPE\",\"vocab\":[],\"merges\":[]}}", "an object",
         CZ_CORRUPT},
        {"{" PRE ",\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]}}", "empty", CZ_CORRUPT},
        {"{" PRE ",\"model\":{\"type\":\"BPE\"," VOCAB ",\"merges\":[\"a c\"]}}", "model.merges[0]",
         CZ_CORRUPT},
        {"{" PRE ",\"model\":{\"type\":\"BPE\"," VOCAB ",\"merges\":[\"b a\"]}}", "\"ba\"",
         CZ_CORRUPT},
        {"{" PRE ",\"model\":{\"type\":\"BPE\"," VOCAB ",\"merges\":[\"ab\"]}}", "two tokens",
         CZ_CORRUPT},
        {"{" PRE ",\"model\":{\"type\":\"BPE\"," VOCAB ",\"merges\":[\"a \"]}}", "two tokens",
         CZ_CORRUPT},
        {"{" PRE ",\"model\":{\"type\":\"BPE\"," VOCAB ",\"merges\":[\" b\"]}}", "two tokens",
         CZ_CORRUPT},
        {"{" PRE ",\"model\":{\"type\":\"BPE\"," VOCAB ",\"merges\":[\"a b a\"]}}", "two tokens",
         CZ_CORRUPT},
        {"{" PRE ",\"model\":{\"type\":\"BPE\"," VOCAB ",\"merges\":[[\"a\"]]}}", "merges[0]",
         CZ_CORRUPT},
        {"{" PRE ",\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":1,\"b\":1},\"merges\":[]}}",
         "has id 1 already", CZ_CORRUPT},
        {"{" PRE ",\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}}", "id -1",
         CZ_CORRUPT},
        {"{" PRE ",\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":4000000000},\"merges\":[]}}",
         "id 4000000000", CZ_CORRUPT},
        {"{" PRE ",\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":1e300},\"merges\":[]}}", "integer",
         CZ_CORRUPT},
        {"{" PRE ",\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":\"x\"},\"merges\":[]}}",
         "model.vocab.a", CZ_CORRUPT},
        {"{" PRE ",\"model\":{\"type\":\"BPE\",\"unk_token\":\"u\"," VOCAB ",\"merges\":[]}}",
         "unk_token", CZ_CORRUPT},
        {"{" PRE ",\"model\":{\"type\":\"BPE\",\"dropout\":0.1," VOCAB ",\"merges\":[]}}",
         "dropout", CZ_UNSUPPORTED},
        {"{" PRE "," MODEL ",\"added_tokens\":[{\"id\":1,\"content\":\"a\"}]}", "id 0", CZ_CORRUPT},
        {"{" PRE "," MODEL ",\"added_tokens\":[{\"id\":1,\"content\":\"x\"}]}", "already",
         CZ_CORRUPT},
        {"{" PRE "," MODEL ",\"added_tokens\":[{\"content\":\"x\"}]}", "id", CZ_CORRUPT},
        {"{\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"}," MODEL "}", "UnicodeScripts",
         CZ_UNSUPPORTED},
        {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"x+\"},\"behavior\":"
         "\"Isolated\",\"invert\":false}," MODEL "}",
         "those of GPT-2", CZ_UNSUPPORTED},
        {"{" PRE ",\"normalizer\":{\"type\":\"Odd\"}," MODEL "}", "Odd", CZ_UNSUPPORTED},
        {"{" PRE ",\"decoder\":{\"type\":\"Odd\"}," MODEL "}", "decoder", CZ_UNSUPPORTED},
        {"{" PRE ",\"post_processor\":{\"type\":\"Odd\"}," MODEL "}", "Odd", CZ_UNSUPPORTED},
        {"{" PRE
         ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":"
         "{\"id\":\"<s>\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"pair\":[]}"
         "," MODEL "}",
         "<s>", CZ_CORRUPT},
    };
    ck_assert_ptr_nonnull(mkdtemp(folder));
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        write_file("tokenizer.json", cases[i].text);
        expect(cases[i].st, cases[i].sentence);
    }
    remove_file("tokenizer.json");
    (void)rmdir(folder);
}
END_TEST

START_TEST(bad_older_files_get_a_sentence)
{
    ck_assert_ptr_nonnull(mkdtemp(folder));
    write_file("vocab.json", "{\"a\":0,\"b\":1,\"ab\":2}");
    write_file("merges.txt", "#version: 0.2\na b\na c\n");
    expect(CZ_CORRUPT, "merges.txt:3");
    write_file("merges.txt", "#version: 0.2\na  b\n");
    expect(CZ_CORRUPT, "merges.txt:2");
    write_file("vocab.json", "{\"a\":0,\"b\":0,\"ab\":2}");
    expect(CZ_CORRUPT, "already");
    write_file("vocab.json", "[1]");
    expect(CZ_CORRUPT, "expected an object");
    write_file("vocab.json", "{\"a\":0,\"b\":1,\"ab\":2}");
    write_file("tokenizer_config.json", "{\"tokenizer_class\":\"OddTokenizer\"}");
    expect(CZ_UNSUPPORTED, "OddTokenizer");
    write_file("tokenizer_config.json", "{\"added_tokens_decoder\":{\"x\":{\"content\":\"y\"}}}");
    expect(CZ_CORRUPT, "is not an id");
    remove_file("tokenizer_config.json");
    remove_file("vocab.json");
    remove_file("merges.txt");
    (void)rmdir(folder);
}
END_TEST

static void check_text(const char *text, const int32_t *want, size_t n_want, const char *decoded)
{
    struct cz_tokenizer *tok;
    int32_t *ids;
    size_t n;
    ck_ok(cz_tokenizer_open(folder, &tok));
    ck_ok(cz_tokenizer_encode(tok, text, strlen(text), &ids, &n));
    ck_assert_uint_eq(n, n_want);
    for (size_t i = 0; i < n; i++) ck_assert_int_eq(ids[i], want[i]);
    check_decoded(tok, ids, n, decoded);
    free(ids);
    cz_tokenizer_close(tok);
}

/* A file without a decoder: the library joins the tokens as they are written by spaces. Its
 * decoders without ByteLevel are read as chains of steps. */
START_TEST(without_a_decoder_tokens_are_shown_as_written)
{
    static const char form[] =
        "{\"added_tokens\":[{\"id\":4,\"content\":\"<x y>\",\"special\":true}],"
        "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},%s"
        "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"\xc4\xa0\":3},"
        "\"merges\":[\"a b\"]}}";
    static const char *const decoders[][2] = {
        {"", "ab \xc4\xa0 <x y> b"},
        {"\"decoder\":null,", "ab \xc4\xa0 <x y> b"},
        {"\"decoder\":{\"type\":\"ByteLevel\"},", "ab <x y>b"},
        {"\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":"
         "\"ByteLevel\"}]},",
         "ab <x y>b"},
        {"\"decoder\":{\"type\":\"Fuse\"},", "ab\xc4\xa0<x y>b"}};
    static const int32_t want[] = {2, 3, 4, 1};
    char text[1024];
    ck_assert_ptr_nonnull(mkdtemp(folder));
    for (size_t i = 0; i < CZ_ARRAY_LEN(decoders); i++) {
        snprintf(text, sizeof text, form, decoders[i][0]);
        write_file("tokenizer.json", text);
        check_text("ab <x y>b", want, CZ_ARRAY_LEN(want), decoders[i][1]);
    }
    remove_file("tokenizer.json");
    (void)rmdir(folder);
}
END_TEST

/* transformers 5.24: what vocab.json lacks gets the ids behind it, in the order bos, eos, unk, sep,
 * pad, cls, mask, then the additional ones; null means none. */
START_TEST(special_tokens_that_the_vocabulary_lacks_are_added)
{
    static const struct {
        const char *config, *text;
        int32_t want[8];
        size_t n;
        int64_t vocab_size, eos, pad;
    } cases[] = {{"{}", "a<|endoftext|>b", {0, 3, 1}, 3, 4, 3, -1},
                 {"{\"eos_token\":\"<e>\"}", "<|endoftext|><e>", {3, 4}, 2, 5, 4, -1},
                 {"{\"bos_token\":\"<b>\",\"pad_token\":\"<p>\"}",
                  "<b><|endoftext|><p>",
                  {3, 4, 5},
                  3,
                  6,
                  4,
                  5},
                 {"{\"bos_token\":null,\"eos_token\":null,\"unk_token\":null}",
                  "a<|endoftext|>b",
                  {0, 1},
                  2,
                  3,
                  -1,
                  -1},
                 {"{\"tokenizer_class\":\"Qwen2Tokenizer\",\"eos_token\":\"<e>\"}",
                  "<e><|endoftext|>",
                  {3, 4},
                  2,
                  5,
                  3,
                  4},
                 {"{\"tokenizer_class\":\"RobertaTokenizer\"}",
                  "<s></s><unk><pad><mask>",
                  {3, 4, 5, 6, 7},
                  5,
                  8,
                  4,
                  6},
                 {"{\"additional_special_tokens\":[\"<y>\"],\"mask_token\":\"<m>\"}",
                  "<y><m>",
                  {5, 4},
                  2,
                  6,
                  3,
                  -1},
                 {"{\"added_tokens_decoder\":{\"3\":{\"content\":\"<x>\"}}}",
                  "<x><|endoftext|>",
                  {3, 4},
                  2,
                  5,
                  4,
                  -1}};
    struct cz_tokenizer *tok;
    ck_assert_ptr_nonnull(mkdtemp(folder));
    write_file("vocab.json", "{\"a\":0,\"b\":1,\"ab\":2}");
    write_file("merges.txt", "a b\n");
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        int32_t *ids;
        size_t n;
        write_file("tokenizer_config.json", cases[i].config);
        ck_ok(cz_tokenizer_open(folder, &tok));
        ck_assert_int_eq(cz_tokenizer_vocab_size(tok), cases[i].vocab_size);
        ck_assert_int_eq(cz_tokenizer_special_id(tok, CZ_SPECIAL_EOS), cases[i].eos);
        ck_assert_int_eq(cz_tokenizer_special_id(tok, CZ_SPECIAL_PAD), cases[i].pad);
        ck_ok(cz_tokenizer_encode(tok, cases[i].text, strlen(cases[i].text), &ids, &n));
        ck_assert_uint_eq(n, cases[i].n);
        for (size_t k = 0; k < n; k++) ck_assert_int_eq(ids[k], cases[i].want[k]);
        free(ids);
        cz_tokenizer_close(tok);
    }
    /* Around one and two texts. */
    int32_t ids[8], types[8];
    int64_t n;
    const struct cz_tokenizer_input input = {
        .text = "a", .nbytes = 1, .pair = "b", .pair_nbytes = 1};
    static const int32_t want[] = {3, 0, 3, 3, 1, 3}, want_types[] = {0, 0, 0, 1, 1, 1};
    write_file("tokenizer_config.json", "{\"add_bos_token\":true,\"add_eos_token\":true}");
    ck_ok(cz_tokenizer_open(folder, &tok));
    ck_ok(cz_tokenizer_encode_input(tok, &input, 8, ids, types, &n, NULL));
    ck_assert_int_eq(n, 6);
    ck_assert_mem_eq(ids, want, sizeof want);
    ck_assert_mem_eq(types, want_types, sizeof want_types);
    cz_tokenizer_close(tok);
    remove_file("tokenizer_config.json");
    remove_file("vocab.json");
    remove_file("merges.txt");
    (void)rmdir(folder);
}
END_TEST

/* Ids may have holes, bytes may have no token, lines may end in \r\n. */
START_TEST(odd_files_that_are_fine)
{
    struct cz_tokenizer *tok;
    int32_t *ids;
    size_t n;
    ck_assert_ptr_nonnull(mkdtemp(folder));
    write_file("vocab.json", "{\"a\":0,\"b\":7,\"ab\":100}");
    write_file("merges.txt", "a b\r\n\r\n");
    ck_ok(cz_tokenizer_open(folder, &tok));
    ck_assert_int_eq(cz_tokenizer_vocab_size(tok), 102);   /* <|endoftext|> */
    ck_ok(cz_tokenizer_encode(tok, "abz b", 5, &ids, &n)); /* z and the space are left out */
    ck_assert_uint_eq(n, 2);
    ck_assert_int_eq(ids[0], 100);
    ck_assert_int_eq(ids[1], 7);
    check_decoded(tok, ids, n, "abb");
    ids[0] = 50; /* a hole */
    check_decoded(tok, ids, 1, "");
    free(ids);
    cz_tokenizer_close(tok);
    /* A space in front of the text, where there is none. */
    write_file("vocab.json", "{\"\xc4\xa0\":0,\"a\":1,\"b\":2,\"\xc4\xa0"
                             "a\":3}");
    write_file("merges.txt", "\xc4\xa0 a\n");
    for (int prefix = 0; prefix < 2; prefix++) {
        static const char *const texts[] = {"a", " a", "ab", "b", "  a"};
        static const int32_t want[2][5][3] = {
            {{1, -1}, {3, -1}, {1, 2, -1}, {2, -1}, {0, 3, -1}},
            {{3, -1}, {3, -1}, {3, 2, -1}, {0, 2, -1}, {0, 3, -1}}};
        write_file("tokenizer_config.json", prefix ? "{\"add_prefix_space\":true}" : "{}");
        ck_ok(cz_tokenizer_open(folder, &tok));
        for (size_t i = 0; i < 5; i++) {
            ck_ok(cz_tokenizer_encode(tok, texts[i], strlen(texts[i]), &ids, &n));
            for (size_t k = 0; k < n; k++) ck_assert_int_eq(ids[k], want[prefix][i][k]);
            ck_assert(n > 0 && (n == 3 || want[prefix][i][n] == -1));
            free(ids);
        }
        cz_tokenizer_close(tok);
    }
    remove_file("tokenizer_config.json");
    remove_file("vocab.json");
    remove_file("merges.txt");
    (void)rmdir(folder);
}
END_TEST

/* ---- the order of merges ------------------------------------------------------------------------
 */

/* Random pairs of a few letters and of what they make: many places of a word change their pair
 * before its turn comes. */
enum { N_LETTERS = 3, N_MERGES = 24, WORD_MAX = 160 };

struct rule {
    int32_t left, right, id;
};

static uint64_t draw(uint64_t *x, uint64_t below)
{
    return rng_mix64((*x)++) % below;
}

/* rules[i] is merged in turn ranks[i]: what a later pair makes may well come first. */
static void rules_make(struct bpe_model *b, struct rule *rules, uint64_t *x)
{
    memset(b, 0, sizeof *b);
    b->unk_id = -1;
    b->growth = 1;
    for (int c = 0; c < N_LETTERS; c++)
        b->bytes['a' + c] = (struct bpe_byte){.ids = {c}, .n = 1, .is_known = true};
    int32_t turn[N_MERGES];
    ck_ok(bpe_merges_init(&b->merges, N_MERGES));
    for (int i = 0; i < N_MERGES; i++) {
        size_t at = draw(x, (uint64_t)i + 1);
        turn[i] = turn[at];
        turn[at] = i;
    }
    for (int i = 0; i < N_MERGES;) {
        struct rule r = {(int32_t)draw(x, (uint64_t)(N_LETTERS + i)),
                         (int32_t)draw(x, (uint64_t)(N_LETTERS + i)), N_LETTERS + i};
        bool is_new = true;
        for (int k = 0; k < i; k++)
            is_new &= rules[turn[k]].left != r.left || rules[turn[k]].right != r.right;
        if (!is_new) continue;
        rules[turn[i]] = r;
        bpe_merges_add(&b->merges, r.left, r.right, (uint32_t)turn[i], r.id);
        i++;
    }
}

/* The definition: of all pairs that merge, the lowest rank and of those the leftmost, again and
 * again. */
static size_t merge_plainly(const struct rule *rules, int32_t *ids, size_t n)
{
    for (int rank = 0; rank < N_MERGES; rank++)
        for (size_t i = 0; i + 1 < n; i++)
            if (ids[i] == rules[rank].left && ids[i + 1] == rules[rank].right) {
                ids[i] = rules[rank].id;
                memmove(ids + i + 1, ids + i + 2, (--n - i - 1) * sizeof *ids);
                rank = -1; /* a new pair may have a lower rank */
                break;
            }
    return n;
}

static void check_word(const struct bpe_model *b, struct bpe_work *w, const struct rule *rules,
                       size_t n, uint64_t *x)
{
    char word[WORD_MAX];
    int32_t want[WORD_MAX];
    struct id_list have = {0};
    for (size_t i = 0; i < n; i++) word[i] = (char)('a' + (want[i] = (int32_t)draw(x, N_LETTERS)));
    size_t n_want = merge_plainly(rules, want, n);
    ck_ok(bpe_word(b, w, word, n, n, &have));
    ck_assert_msg(have.n == n_want && memcmp(have.ids, want, n_want * sizeof *want) == 0,
                  "%zu ids, not %zu, of %.*s", have.n, n_want, (int)n, word);
    free(have.ids);
}

/* Lengths on both sides of where long words begin. */
START_TEST(words_of_any_length_merge_by_rank_and_from_the_left)
{
    struct bpe_model b = {0};
    struct bpe_work w = {.cache = calloc(BPE_CACHE_SLOTS, sizeof *w.cache)};
    struct rule rules[N_MERGES];
    uint64_t x = 1;
    for (int round = 0; round < 40; round++) {
        rules_make(&b, rules, &x);
        for (size_t n = 1; n <= WORD_MAX; n += n < 60 ? 1 : 10) check_word(&b, &w, rules, n, &x);
        memset(w.cache, 0, BPE_CACHE_SLOTS * sizeof *w.cache);
        bpe_merges_free(&b.merges);
    }
    free(w.cache);
    free(w.ids);
    free(w.left);
    free(w.right);
    free(w.heap);
}
END_TEST

/* ---- patterns ----------------------------------------------------------------------------------
 */

static const struct bpe_split *split_named(const char *name)
{
    static const char o200k[] =
        "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+"
        "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}| "
        "?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
    static const char llama3[] =
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
        "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
    static const char qwen3_5[] =
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| "
        "?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
    const struct bpe_split *split = strcmp(name, "GPT-2") == 0     ? &bpe_split_gpt2
                                    : strcmp(name, "Qwen2") == 0   ? &bpe_split_qwen2
                                    : strcmp(name, "o200k") == 0   ? bpe_split_find(o200k)
                                    : strcmp(name, "LLaMA 3") == 0 ? bpe_split_find(llama3)
                                                                   : bpe_split_find(qwen3_5);
    ck_assert_ptr_nonnull(split);
    ck_assert_str_eq(split->name, name);
    return split;
}

/* `marked`: a text with a bar at every cut. Every shorter text is cut inside, too. */
static void check_pieces(const char *name, const char *marked)
{
    const struct bpe_split *split = split_named(name);
    char text[256], have[256];
    size_t n = 0, used = 0;
    for (const char *c = marked; *c; c++)
        if (*c != '|') text[n++] = *c;
    for (size_t at = 0; at < n;) {
        size_t len = split->next(text + at, n - at);
        ck_assert_msg(len > 0 && len <= n - at, "%s: %zu bytes of %s", name, len, marked);
        if (at > 0) have[used++] = '|';
        memcpy(have + used, text + at, len);
        used += len;
        at += len;
    }
    have[used] = '\0';
    ck_assert_msg(strcmp(have, marked) == 0, "%s: %s, not %s", name, have, marked);
}

/* What the regular expressions of tokenizer.json match, one after the other. */
START_TEST(patterns_cut_where_their_expressions_do)
{
    static const char *const cases[][2] = {
        {"o200k", "Hello|World"},
        {"o200k", "HELLOworld"},
        {"o200k", "HELLO| World"},
        {"o200k", "ab|Cd|EF"},
        {"o200k", "don't| I'LL| x|'?"},
        {"o200k", "it's|2"},
        {"o200k", "we'Re|'re"},
        {"o200k", "123|456|7"},
        {"o200k", "a|/b|//\n\n/|c"},
        {"o200k", " .,/\n/|x"},
        {"o200k", " /\r\n|1"},
        {"o200k", "!a|\tb|\n|c"},
        {"o200k", "1|a|_B|_|1"},
        {"o200k", "a|  | hi"},
        {"o200k", "a| \n\n|  | b"},
        {"o200k", "a|\t\n| |\tb"},
        {"o200k", "a|   "},
        {"o200k", "a|  | |1"},
        {"o200k", "a|\xC3\x80"}, /* small, capital */
        {"o200k", "ABC\xE6\x97\xA5"},
        {"o200k", "\xE6\x97\xA5\xE6\x9C\xAC"
                  "Ab"},
        {"o200k", "\xE6\x97\xA5\xE6\x9C\xAC|A"}, /* the capital is given back */
        {"o200k", "\xE6\x97\xA5|AB| c"},
        {"o200k", "e\xCC\x81"
                  "a|B\xCC\x81|C"},
        {"o200k", " \xCC\x81"
                  "a"},
        {"o200k", "\xCC\x81|1"},
        {"o200k", " ,;|1"},
        {"LLaMA 3", "we|'Re|'s|123|4|!a| .,\n\n|b"},
        {"LLaMA 3", "x|'\xC5\xBF|y|'l"},
        {"LLaMA 3", "e|\xCC\x81"
                    "a"},
        {"LLaMA 3", "a| \n\n|  | b|  "},
        {"Qwen2", "a|1|2|!b| !?\n|c"},
        {"Qwen3.5", "e\xCC\x81"
                    "x|1|2|!\xCC\x81"
                    "a| .\n|b"},
        {"GPT-2", "we|'re|'|Re| don|'t| it|'ll"},
        {"GPT-2", "a|  | b|12| 3| ?!|\n \n| x| "},
        {"GPT-2", "e|\xCC\x81|a|'"},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) check_pieces(cases[i][0], cases[i][1]);
}
END_TEST

/* The characters that Unicode gives the property White_Space, and no other. */
START_TEST(white_space_is_unicodes)
{
    static const int32_t spaces[] = {0x9,    0xA,    0xB,    0xC,    0xD,    0x20,   0x85,
                                     0xA0,   0x1680, 0x2000, 0x2001, 0x2002, 0x2003, 0x2004,
                                     0x2005, 0x2006, 0x2007, 0x2008, 0x2009, 0x200A, 0x2028,
                                     0x2029, 0x202F, 0x205F, 0x3000};
    size_t n = 0;
    for (int32_t c = 0; c < 0x110000; c++)
        if (chars_is_space(c)) {
            ck_assert_msg(n < CZ_ARRAY_LEN(spaces) && spaces[n] == c, "U+%04X", (unsigned)c);
            n++;
        }
    ck_assert_uint_eq(n, CZ_ARRAY_LEN(spaces));
}
END_TEST

/* Letters, marks and digits, and what Unicode counts among letters though it is a symbol. */
START_TEST(words_have_unicodes_other_letters)
{
    static const int32_t ranges[][2] = {{0x200C, 0x200D},   {0x24B6, 0x24E9},   {0x1F130, 0x1F149},
                                        {0x1F150, 0x1F169}, {0x1F170, 0x1F189}, {'A', 'Z'},
                                        {'a', 'z'},         {'0', '9'},         {'_', '_'}};
    for (size_t i = 0; i < CZ_ARRAY_LEN(ranges); i++) {
        for (int32_t c = ranges[i][0]; c <= ranges[i][1]; c++)
            ck_assert_msg(chars_is_word(c), "U+%04X", (unsigned)c);
        ck_assert_msg(!chars_is_word(ranges[i][0] - 1), "before U+%04X", (unsigned)ranges[i][0]);
        ck_assert_msg(!chars_is_word(ranges[i][1] + 1), "after U+%04X", (unsigned)ranges[i][1]);
    }
}
END_TEST

/* tokenizer.json of before model.type was written: what it holds tells. */
START_TEST(a_model_without_a_type_is_known_by_its_members)
{
    struct cz_tokenizer *tok;
    int32_t *ids;
    size_t n;
    ck_assert_ptr_nonnull(mkdtemp(folder));
    write_file("tokenizer.json", "{" PRE ",\"model\":{" VOCAB ",\"merges\":[\"a b\"]}}");
    ck_ok(cz_tokenizer_open(folder, &tok));
    ck_ok(cz_tokenizer_encode(tok, "abb", 3, &ids, &n));
    ck_assert_uint_eq(n, 2);
    ck_assert_int_eq(ids[0], 2);
    ck_assert_int_eq(ids[1], 1);
    free(ids);
    cz_tokenizer_close(tok);
    write_file("tokenizer.json",
               "{" PRE ",\"model\":{" VOCAB ",\"max_input_chars_per_word\":100}}");
    expect(CZ_CORRUPT, "unk_token \"[UNK]\" is not in the vocabulary");
    write_file("tokenizer.json", "{" PRE ",\"model\":{" VOCAB "}}");
    expect(CZ_UNSUPPORTED, "a model of type unknown is not known");
    remove_file("tokenizer.json");
    (void)rmdir(folder);
}
END_TEST

/* Bytes that have no token of their own are the tokens of their character's UTF-8, if there are
 * those; else they are left out. */
START_TEST(bytes_fall_back_to_tokens_of_their_utf8)
{
    static const char format[] = "{" PRE ",\"model\":{\"type\":\"BPE\",\"byte_fallback\":%s,"
                                 "\"vocab\":{\"a\":5,\"<0xC4>\":1,\"%s\":2},\"merges\":[]}}";
    static const struct {
        const char *fallback, *second;
        size_t n;
        int32_t ids[6];
    } cases[] = {{"true", "<0xA0>", 6, {1, 2, 5, 1, 2, 5}},
                 {"true", "<0xA1>", 2, {5, 5}},
                 {"false", "<0xA0>", 2, {5, 5}}};
    struct cz_tokenizer *tok;
    int32_t *ids;
    size_t n;
    ck_assert_ptr_nonnull(mkdtemp(folder));
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        char text[512];
        snprintf(text, sizeof text, format, cases[i].fallback, cases[i].second);
        write_file("tokenizer.json", text);
        ck_ok(cz_tokenizer_open(folder, &tok));
        ck_ok(cz_tokenizer_encode(tok, "a a", 3, &ids, &n));
        ck_assert_uint_eq(n, cases[i].n);
        ck_assert_mem_eq(ids, cases[i].ids, n * sizeof *ids);
        free(ids);
        cz_tokenizer_close(tok);
    }
    remove_file("tokenizer.json");
    (void)rmdir(folder);
}
END_TEST

/* Special tokens of any id, also 0, surround a text if the config says so. */
START_TEST(the_ends_of_a_text_are_added_as_the_config_says)
{
    static const struct {
        const char *config;
        int32_t ids[4];
        int64_t n;
    } cases[] = {
        {"\"add_bos_token\":true,\"add_eos_token\":true", {1, 2, 0}, 3},
        {"\"add_eos_token\":true", {2, 0}, 2},
        {"\"add_bos_token\":true", {1, 2}, 2},
        {"\"add_bos_token\":false", {2}, 1},
    };
    struct cz_tokenizer *tok;
    char text[256];
    ck_assert_ptr_nonnull(mkdtemp(folder));
    write_file("vocab.json", "{\"<e>\":0,\"<b>\":1,\"a\":2}");
    write_file("merges.txt", "");
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        const struct cz_tokenizer_input input = {"a", 1, NULL, 0};
        int32_t ids[4], types[4];
        int64_t n;
        snprintf(text, sizeof text, "{\"eos_token\":\"<e>\",\"bos_token\":\"<b>\",%s}",
                 cases[i].config);
        write_file("tokenizer_config.json", text);
        ck_ok(cz_tokenizer_open(folder, &tok));
        ck_ok(cz_tokenizer_encode_input(tok, &input, 4, ids, types, &n, NULL));
        ck_assert_msg(n == cases[i].n && memcmp(ids, cases[i].ids, (size_t)n * sizeof *ids) == 0,
                      "case %zu: %d ids, %d first", i, (int)n, n > 0 ? ids[0] : -1);
        cz_tokenizer_close(tok);
    }
    remove_file("tokenizer_config.json");
    remove_file("vocab.json");
    remove_file("merges.txt");
    (void)rmdir(folder);
}
END_TEST

/* Ids go up to 4 194 303. */
START_TEST(the_largest_id_is_taken_and_the_next_refused)
{
    static const char *const configs[] = {
        "{\"added_tokens_decoder\":{\"%d\":{\"content\":\"<x>\"}}}", NULL};
    struct cz_tokenizer *tok;
    char text[256];
    ck_assert_ptr_nonnull(mkdtemp(folder));
    write_file("vocab.json", "{\"a\":0,\"b\":1,\"ab\":2}");
    write_file("merges.txt", "a b\n");
    for (int more = 0; more < 2; more++) {
        snprintf(text, sizeof text, configs[0], BPE_ID_MAX + more);
        write_file("tokenizer_config.json", text);
        if (more == 0) {
            ck_ok(cz_tokenizer_open(folder, &tok));
            ck_assert_int_eq(cz_tokenizer_vocab_size(tok), BPE_ID_MAX + 1);
            cz_tokenizer_close(tok);
        } else {
            expect(CZ_CORRUPT, "\"4194304\" is not an id (0 … 4194303)");
        }
    }
    static const char *const bad[] = {"", "-1", "1x", "x"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(bad); i++) {
        snprintf(text, sizeof text, "{\"added_tokens_decoder\":{\"%s\":{\"content\":\"<x>\"}}}",
                 bad[i]);
        write_file("tokenizer_config.json", text);
        expect(CZ_CORRUPT, "is not an id (0 … 4194303)");
    }
    remove_file("tokenizer_config.json");
    remove_file("vocab.json");
    remove_file("merges.txt");
    (void)rmdir(folder);
}
END_TEST

/* A space is added in front of a text that no expression cuts, too. */
START_TEST(uncut_texts_may_get_a_space)
{
    static const char format[] =
        "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"use_regex\":false,\"add_prefix_space\":%s},"
        "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"\xc4\xa0\":1,\"\xc4\xa0"
        "a\":2},\"merges\":[\"\xc4\xa0 a\"]}}";
    ck_assert_ptr_nonnull(mkdtemp(folder));
    for (int32_t prefix = 0; prefix < 2; prefix++) {
        char text[512];
        struct cz_tokenizer *tok;
        int32_t *ids;
        size_t n;
        snprintf(text, sizeof text, format, prefix ? "true" : "false");
        write_file("tokenizer.json", text);
        ck_ok(cz_tokenizer_open(folder, &tok));
        ck_ok(cz_tokenizer_encode(tok, "a a", 3, &ids, &n));
        ck_assert_uint_eq(n, 2);
        ck_assert_int_eq(ids[0], 2 * prefix);
        ck_assert_int_eq(ids[1], 2);
        free(ids);
        cz_tokenizer_close(tok);
    }
    remove_file("tokenizer.json");
    (void)rmdir(folder);
}
END_TEST

/* An added token that is normalized stands in the vocabulary in its normal form, which the
 * ByteLevel decoder takes for bytes: \u00e9 for the byte 0xE9. One that the form leaves as it is
 * stays as written. */
START_TEST(added_tokens_are_decoded_in_their_normal_form)
{
    static const char text[] =
        "{" PRE ",\"normalizer\":{\"type\":\"NFC\"},\"decoder\":{\"type\":\"ByteLevel\"},"
        "\"added_tokens\":[{\"id\":3,\"content\":\"fe\\u0301\",\"normalized\":true},"
        "{\"id\":4,\"content\":\"ge\\u0301\",\"normalized\":false},"
        "{\"id\":5,\"content\":\"h\\u0101\",\"normalized\":true}]," MODEL "}";
    static const char said[] = "af\xc3\xa9"
                               "bfe\xcc\x81"
                               "age\xcc\x81h\xc4\x81";
    static const int32_t want[] = {0, 3, 1, 3, 0, 4, 5};
    static const char decoded[] = "af\xef\xbf\xbd"
                                  "bf\xef\xbf\xbd"
                                  "age\xcc\x81h\x01"; /* U+0101 stands for the byte 1 */
    struct cz_tokenizer *tok;
    int32_t *ids;
    size_t n;
    ck_assert_ptr_nonnull(mkdtemp(folder));
    write_file("tokenizer.json", text);
    ck_ok(cz_tokenizer_open(folder, &tok));
    ck_ok(cz_tokenizer_encode(tok, said, sizeof said - 1, &ids, &n));
    ck_assert_uint_eq(n, CZ_ARRAY_LEN(want));
    ck_assert_mem_eq(ids, want, sizeof want);
    check_decoded(tok, ids, n, decoded);
    free(ids);
    cz_tokenizer_close(tok);
    remove_file("tokenizer.json");
    (void)rmdir(folder);
}
END_TEST

TEST_MAIN("data/bpe", ends_are_where_the_pieces_end, ids_and_texts_are_hugging_faces,
          special_tokens_are_named_by_the_config, parts_of_a_cut_text_are_the_whole,
          threads_share_a_tokenizer, a_million_bytes_of_one_word_take_little_time,
          words_of_any_length_merge_by_rank_and_from_the_left, bad_tokenizer_json_gets_a_sentence,
          without_a_decoder_tokens_are_shown_as_written,
          special_tokens_that_the_vocabulary_lacks_are_added, bad_older_files_get_a_sentence,
          odd_files_that_are_fine, patterns_cut_where_their_expressions_do, white_space_is_unicodes,
          words_have_unicodes_other_letters, a_model_without_a_type_is_known_by_its_members,
          bytes_fall_back_to_tokens_of_their_utf8, the_ends_of_a_text_are_added_as_the_config_says,
          the_largest_id_is_taken_and_the_next_refused, uncut_texts_may_get_a_space,
          added_tokens_are_decoded_in_their_normal_form)
