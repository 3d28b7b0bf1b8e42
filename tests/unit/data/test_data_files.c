/* Claims: what gzip or zstd has compressed is read as what is inside, in one piece or in many, and
 * damage is an error; a compressed file cannot take all of the memory; files that are no text are
 * refused by what they are; rows of JSON are documents with the tokenizer's end behind each, the
 * same whatever the number of threads; rows without a text are refused by line; a folder stands for
 * its files in order. */
#include "data/corpus/store_impl.h"
#include "data/source/byte_stream.h"
#include "data/source/text_source.h"
#include "formats/file_io.h"
#include "tests/support/check_main.h"

#include <fcntl.h>
#include <omp.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <zlib.h>
#include <zstd.h>

static char dir[64];

static void setup(void)
{
    snprintf(dir, sizeof dir, "%s", test_tmp_make());
}

static void teardown(void)
{
    text_packed_limit = 0;
    test_tmp_remove(dir);
}

static const char *in_dir(const char *name)
{
    static char paths[4][256];
    static int turn;
    char *path = paths[turn++ & 3];
    snprintf(path, sizeof paths[0], "%s/%s", dir, name);
    return path;
}

static const char *put(const char *name, const void *bytes, size_t nbytes)
{
    const char *path = in_dir(name);
    char *folder = strdup(path);
    *strrchr(folder, '/') = '\0';
    ck_ok(file_make_dirs(folder));
    free(folder);
    ck_ok(file_save(path, bytes, nbytes));
    return path;
}

static const char *put_text(const char *name, const char *text)
{
    return put(name, text, strlen(text));
}

/* ---- compressing ----------------------------------------------------------------------------- */

static size_t pack_gzip(const char *text, size_t nbytes, unsigned char *dst, size_t cap)
{
    z_stream z = {0};
    ck_assert_int_eq(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    z.next_in = (unsigned char *)(uintptr_t)text;
    z.avail_in = (unsigned)nbytes;
    z.next_out = dst;
    z.avail_out = (unsigned)cap;
    ck_assert_int_eq(deflate(&z, Z_FINISH), Z_STREAM_END);
    deflateEnd(&z);
    return cap - z.avail_out;
}

static size_t pack_zstd(const char *text, size_t nbytes, unsigned char *dst, size_t cap)
{
    const size_t n = ZSTD_compress(dst, cap, text, nbytes, 3);
    ck_assert(!ZSTD_isError(n));
    return n;
}

static const struct packer {
    const char *suffix, *name;
    size_t (*pack)(const char *text, size_t nbytes, unsigned char *dst, size_t cap);
} packers[] = {{".gz", "gzip", pack_gzip}, {".zst", "zstd", pack_zstd}};

/* In `n_members` pieces, each compressed alone. */
static size_t pack_in(const struct packer *p, size_t n_members, const char *text, size_t nbytes,
                      unsigned char **out)
{
    const size_t cap = 2 * nbytes + 1000 * n_members;
    size_t n = 0;
    *out = malloc(cap);
    for (size_t i = 0; i < n_members; i++) {
        const size_t begin = nbytes * i / n_members, end = nbytes * (i + 1) / n_members;
        n += p->pack(text + begin, end - begin, *out + n, cap - n);
    }
    return n;
}

static const char *put_packed(const struct packer *p, const char *name, const char *text)
{
    char full[64];
    unsigned char *packed;
    snprintf(full, sizeof full, "%s%s", name, p->suffix);
    const size_t n = pack_in(p, 1, text, strlen(text), &packed);
    const char *path = put(full, packed, n);
    free(packed);
    return path;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

struct tokens {
    int32_t *ids;
    size_t n;
};

static cz_status try_paths(const char *const *paths, size_t n_paths, const struct cz_tokenizer *tok,
                           struct tokens *out)
{
    struct data_paths found;
    struct token_file *files = NULL;
    struct token_store store;
    *out = (struct tokens){0};
    cz_status st = data_paths_expand(paths, n_paths, store_suffixes, &found);
    if (st == CZ_OK) files = calloc(found.n, sizeof *files);
    store_init(&store, files);
    for (size_t i = 0; st == CZ_OK && i < found.n; i++)
        st = store_add(&store, &found.items[i], tok);
    if (st == CZ_OK) {
        out->n = (size_t)store.n_tokens;
        out->ids = malloc(out->n * sizeof *out->ids);
        st = store_read(&store, 0, out->n, INT32_MAX, out->ids);
    }
    store_free(&store);
    data_paths_free(&found);
    free(files);
    return st;
}

static cz_status try_path(const char *path, const struct cz_tokenizer *tok)
{
    struct tokens t;
    cz_status st = try_paths(&path, 1, tok, &t);
    free(t.ids);
    return st;
}

static void refused(const char *path, const struct cz_tokenizer *tok, cz_status want,
                    const char *words)
{
    ck_fails(try_path(path, tok), want);
    ck_assert_msg(strstr(cz_last_error(), words), "\"%s\" is not in: %s", words, cz_last_error());
    const char *base = strrchr(path, '/') + 1;
    ck_assert_msg(strstr(cz_last_error(), base), "no name in: %s", cz_last_error());
}

/* The tokens of the paths are the bytes `want`. */
static void ck_bytes(const char *const *paths, size_t n_paths, const char *want)
{
    struct tokens t;
    ck_ok(try_paths(paths, n_paths, NULL, &t));
    char *got = calloc(t.n + 1, 1);
    for (size_t i = 0; i < t.n; i++) got[i] = (char)t.ids[i];
    ck_assert_str_eq(got, want);
    free(got);
    free(t.ids);
}

static struct cz_tokenizer *open_gpt2(void)
{
    struct cz_tokenizer *tok;
    ck_ok(cz_tokenizer_open(test_fixture("tokenizers/gpt2"), &tok));
    return tok;
}

/* ---- compressed text ------------------------------------------------------------------------- */

#define COPIES 30 /* of 64 KiB: several parts, and more than the stream's buffers */

static char *long_text(size_t *nbytes)
{
    char *once, *all;
    size_t n;
    ck_ok(file_load(test_fixture("text/fortunes-64k.txt"), 1 << 20, &once, &n));
    all = malloc(n * COPIES);
    for (size_t i = 0; i < COPIES; i++) memcpy(all + i * n, once, n);
    free(once);
    *nbytes = n * COPIES;
    return all;
}

START_TEST(compressed_text_is_the_text)
{
    static const size_t members[] = {1, 2, 300};
    setup();
    size_t nbytes;
    char *text = long_text(&nbytes);
    struct cz_tokenizer *trained = open_gpt2();
    const char *plain = put("a.txt", text, nbytes);
    for (int t = 0; t < 2; t++) {
        const struct cz_tokenizer *tok = t ? trained : NULL;
        struct tokens want, got;
        ck_ok(try_paths(&plain, 1, tok, &want));
        for (size_t k = 0; k < 2 * CZ_ARRAY_LEN(members); k++) {
            unsigned char *packed;
            const size_t n = pack_in(&packers[k & 1], members[k / 2], text, nbytes, &packed);
            const char *path = put("any name", packed, n); /* the content decides */
            ck_ok(try_paths(&path, 1, tok, &got));
            ck_assert_uint_eq(got.n, want.n);
            ck_assert(memcmp(got.ids, want.ids, want.n * sizeof *want.ids) == 0);
            free(got.ids);
            free(packed);
        }
        free(want.ids);
    }
    cz_tokenizer_close(trained);
    free(text);
    teardown();
}
END_TEST

START_TEST(damaged_compressed_data_are_refused)
{
    setup();
    size_t nbytes;
    char *text = long_text(&nbytes);
    for (size_t k = 0; k < CZ_ARRAY_LEN(packers); k++) {
        unsigned char *packed;
        const size_t n = pack_in(&packers[k], 1, text, nbytes, &packed);
        const size_t lengths[] = {5, n / 2, n - 1};
        for (size_t i = 0; i < CZ_ARRAY_LEN(lengths); i++)
            refused(put("cut.txt", packed, lengths[i]), NULL, CZ_CORRUPT, "truncated");
        packed = realloc(packed, n + 3);
        memcpy(packed + n, "abc", 3);
        refused(put("longer.txt", packed, n + 3), NULL, CZ_CORRUPT, "something else follows");
        packed[n / 2] ^= 0x55;
        packed[n / 2 + 1] ^= 0x55;
        ck_fails(try_path(put("wrong.txt", packed, n), NULL), CZ_CORRUPT);
        free(packed);
    }
    /* zeros behind gzip's data are padding of tapes and pipes */
    unsigned char small[200] = {0};
    (void)pack_gzip("some text", 9, small, sizeof small);
    const char *path = put("padded.gz", small, sizeof small);
    ck_bytes(&path, 1, "some text");
    free(text);
    teardown();
}
END_TEST

static struct {
    int fd, n_reads; /* the first read gives two bytes, as a pipe may */
    const char *end; /* of what the first one was offered */
} watched = {.fd = -1};

__attribute__((visibility("default"))) ssize_t read(int fd, void *dst, size_t nbytes)
{
    if (fd >= 0 && fd == watched.fd) {
        const char *end = (const char *)dst + nbytes;
        if (watched.n_reads++ == 0) {
            watched.end = end;
            nbytes = 2;
        }
        ck_assert_ptr_eq(end, watched.end);
    }
    return syscall(SYS_read, fd, dst, nbytes);
}

START_TEST(the_rest_of_a_magic_number_stays_in_the_buffer)
{
    setup();
    unsigned char packed[256];
    char text[64];
    size_t got;
    struct byte_stream *s;
    const size_t n = pack_gzip("some text", 9, packed, sizeof packed);
    const int fd = open(put("pieces.gz", packed, n), O_RDONLY | O_CLOEXEC);
    watched.fd = fd;
    ck_ok(byte_stream_open(fd, "pieces.gz", &s));
    ck_assert_int_eq(watched.n_reads, 2);
    watched.fd = -1;
    ck_assert_int_eq(byte_stream_packing(s), BYTES_GZIP);
    ck_ok(byte_stream_read(s, text, sizeof text, &got));
    ck_assert_uint_eq(got, 9);
    ck_assert_mem_eq(text, "some text", 9);
    byte_stream_close(s);
    close(fd);
    teardown();
}
END_TEST

START_TEST(a_bomb_is_refused)
{
    static const char *const names[] = {"a.txt", "a.jsonl"};
    setup();
    const size_t nbytes = (size_t)12 << 20;
    char *text = malloc(nbytes);
    struct cz_tokenizer *trained = open_gpt2();
    text_packed_limit = (size_t)1 << 20;
    for (size_t f = 0; f < CZ_ARRAY_LEN(names); f++) {
        for (size_t i = 0; i < nbytes; i++) text[i] = "{\"text\": \"a b c d\"}\n"[i % 20];
        for (size_t k = 0; k < CZ_ARRAY_LEN(packers); k++) {
            unsigned char *packed;
            const size_t n = pack_in(&packers[k], 1, text, nbytes - nbytes % 20, &packed);
            const char *path = put(names[f], packed, n);
            refused(path, NULL, CZ_NOMEM, "more than half of the free memory");
            refused(path, trained, CZ_NOMEM, "more than half of the free memory");
            struct cz_texts *t;
            struct cz_texts_options o = {
                .size = sizeof o, .paths = &path, .n_paths = 1, .labels_optional = true};
            ck_fails(cz_texts_open(&o, &t), CZ_NOMEM);
            free(packed);
        }
    }
    cz_tokenizer_close(trained);
    free(text);
    teardown();
}
END_TEST

/* ---- what is no text ------------------------------------------------------------------------- */

START_TEST(other_files_are_refused_by_name)
{
    static const struct {
        const char *bytes, *words;
        size_t nbytes;
    } cases[] = {
#define BYTES(text, words) {text, words, sizeof(text) - 1}
        BYTES("PAR1\x15\0\x15\0", "Parquet"),
        BYTES("ARROW1\0\0\0\0", "Arrow"),
        BYTES("\x40\0\0\0\0\0\0\0{\"a\":{}}", "safetensors"),
        BYTES("PK\x03\x04\x14\0\0\0", "zip"),
        BYTES("\x80\x02}q\0.", "pickle"),
        BYTES("%PDF-1.7\n", "PDF"),
        BYTES("\x89PNG\r\n\x1A\n\0\0", "PNG"),
        BYTES("\xFF\xD8\xFF\xE0\0\x10JFIF", "JPEG"),
        BYTES("SQLite format 3\0\x10\0", "SQLite"),
        BYTES("\x7F"
              "ELF\x02\x01\x01\0",
              "ELF"),
        BYTES("BZh91AY&SY\x1\x2", "bzip2"),
        BYTES("\xFD"
              "7zXZ\0\0\x04",
              "xz"),
        BYTES("\xFF\xFEh\0i\0", "utf-16"),
        BYTES("h\0e\0l\0l\0o\0 \0", "utf-16le"),
        BYTES("\0h\0e\0l\0l\0o\0 ", "utf-16be"),
        BYTES("some text\0and more", "byte 9 is NUL"),
#undef BYTES
    };
    char tar[600] = "a.txt";
    setup();
    struct cz_tokenizer *trained = open_gpt2();
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        refused(put("a.txt", cases[i].bytes, cases[i].nbytes), NULL, CZ_UNSUPPORTED,
                cases[i].words);
        refused(put("a.txt", cases[i].bytes, cases[i].nbytes), trained, CZ_UNSUPPORTED,
                cases[i].words);
        for (size_t k = 0; k < CZ_ARRAY_LEN(packers); k++) {
            unsigned char *packed;
            const size_t n = pack_in(&packers[k], 1, cases[i].bytes, cases[i].nbytes, &packed);
            refused(put("a.txt", packed, n), NULL, CZ_UNSUPPORTED, cases[i].words);
            free(packed);
        }
    }
    memcpy(tar + 257, "ustar", 5);
    refused(put("a.tar", tar, sizeof tar), NULL, CZ_UNSUPPORTED, "tar archive");
    /* text that begins like a format, and bytes that are asked for */
    ck_ok(try_path(put_text("a.txt", "RIFF is a format, GIF89a another"), NULL));
    char name[80];
    snprintf(name, sizeof name, "u8:%s", put("any", "a\0b", 3));
    ck_ok(try_path(name, NULL));
    cz_tokenizer_close(trained);
    teardown();
}
END_TEST

/* ---- rows ------------------------------------------------------------------------------------ */

START_TEST(rows_are_documents)
{
    static const char lines[] = "{\"id\": 1, \"text\": \"First\\ntext\", \"meta\": {\"a\": [1]}}\n"
                                "\n"
                                "{\"text\": \"\"}\r\n"
                                "{\"text\": \"\\u00e4 second\"}",
                      list[] = "[{\"text\": \"First\\ntext\"}, {\"text\": \"\", \"id\": null},\n"
                               "{\"text\": \"\\u00e4 second\"}]\n";
    static const char *const docs[] = {"First\ntext", "\xC3\xA4 second"};
    setup();
    struct cz_tokenizer *tok = open_gpt2();
    const int32_t end = (int32_t)cz_tokenizer_end_id(tok);
    ck_assert_int_ge(end, 0);
    int32_t want[64];
    size_t n_want = 0;
    for (size_t i = 0; i < CZ_ARRAY_LEN(docs); i++) {
        int32_t *ids;
        size_t n;
        ck_ok(cz_tokenizer_encode(tok, docs[i], strlen(docs[i]), &ids, &n));
        memcpy(want + n_want, ids, n * sizeof *ids);
        n_want += n;
        want[n_want++] = end;
        free(ids);
    }
    const char *paths[] = {put_text("a.jsonl", lines), put_text("a.json", list),
                           put_packed(&packers[0], "b.jsonl", lines),
                           put_packed(&packers[1], "b.json", list)};
    for (size_t i = 0; i < CZ_ARRAY_LEN(paths); i++) {
        struct tokens got;
        ck_ok(try_paths(&paths[i], 1, tok, &got));
        ck_assert_uint_eq(got.n, n_want);
        ck_assert(memcmp(got.ids, want, n_want * sizeof *want) == 0);
        free(got.ids);
        ck_bytes(&paths[i], 1, "First\ntext\n\xC3\xA4 second\n");
    }
    cz_tokenizer_close(tok);
    teardown();
}
END_TEST

/* Ids are those without the option but for the end behind a file of plain text; documents rise, and
 * positions begin anew, behind each end. */
START_TEST(documents_of_rows_are_told_apart)
{
    setup();
    struct cz_tokenizer *tok = open_gpt2();
    const int32_t end = (int32_t)cz_tokenizer_end_id(tok);
    const char *paths[] = {put_text("a.txt", "plain text of a file"),
                           put_text("b.jsonl", "{\"text\": \"one two\"}\n{\"text\": \"three\"}\n"),
                           put_text("c.txt", "and another one")};
    struct cz_data_options o = {.size = sizeof o,
                                .paths = paths,
                                .n_paths = 3,
                                .tokenizer = tok,
                                .seq_len = 6,
                                .micro_batch = 2,
                                .once = true,
                                .per_document = true};
    struct cz_data_loader *l;
    struct cz_batch b = {.size = sizeof b};
    size_t n_ends = 0;
    ck_ok(cz_data_open(&o, &l));
    const uint64_t n_tokens = cz_data_n_tokens(l);
    while (!cz_data_is_done(l)) {
        ck_ok(cz_data_next(l, &b));
        for (int64_t i = 0; i < b.B * b.T; i++) {
            const bool is_first = i % b.T == 0, begins = !is_first && b.ids[i - 1] == end;
            ck_assert_int_eq(b.documents[i], is_first ? 0 : b.documents[i - 1] + begins);
            ck_assert_int_eq(b.positions[i], is_first || begins ? 0 : b.positions[i - 1] + 1);
            n_ends += b.ids[i] == end;
        }
    }
    cz_data_close(l);
    ck_assert_uint_ge(n_ends, 3);
    o.per_document = false;
    ck_ok(cz_data_open(&o, &l));
    ck_assert_uint_eq(cz_data_n_tokens(l) + 2, n_tokens);
    ck_ok(cz_data_next(l, &b));
    ck_assert(!b.documents && !b.positions);
    cz_data_close(l);
    o.per_document = true;
    o.tokenizer = NULL;
    ck_fails(cz_data_open(&o, &l), CZ_INVALID);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "has no end-of-text token"));
    cz_tokenizer_close(tok);
    teardown();
}
END_TEST

/* Documents of all lengths, among them one of several parts. */
START_TEST(many_rows_do_not_depend_on_threads)
{
    setup();
    size_t nbytes, n_doc, n = 0, n_want = 0, n_docs = 0;
    char *text = long_text(&nbytes), *json = malloc(8 * nbytes);
    int32_t *want = malloc(4 * nbytes * sizeof *want);
    struct cz_tokenizer *tok = open_gpt2();
    for (size_t at = 0; at < nbytes; at += n_doc, n_docs++) {
        n_doc = n_docs == 7 ? (size_t)1700000 : n_docs % 97 + 1;
        if (n_doc > nbytes - at) n_doc = nbytes - at;
        int32_t *ids;
        size_t n_ids;
        ck_ok(cz_tokenizer_encode(tok, text + at, n_doc, &ids, &n_ids));
        memcpy(want + n_want, ids, n_ids * sizeof *ids);
        n_want += n_ids;
        want[n_want++] = (int32_t)cz_tokenizer_end_id(tok);
        free(ids);
        n += (size_t)sprintf(json + n, "{\"text\": \"");
        for (size_t i = 0; i < n_doc; i++) {
            const unsigned char c = (unsigned char)text[at + i];
            n += (size_t)(c < 0x20 || c == '"' || c == '\\' ? sprintf(json + n, "\\u%04x", c)
                                                            : sprintf(json + n, "%c", c));
        }
        n += (size_t)sprintf(json + n, "\"}\n");
    }
    ck_assert_uint_gt(n_docs, 1000);
    const char *path = put("a.jsonl", json, n);
    for (int threads = 1; threads <= 3; threads += 2) {
        struct tokens got;
        omp_set_num_threads(threads);
        ck_ok(try_paths(&path, 1, tok, &got));
        ck_assert_uint_eq(got.n, n_want);
        ck_assert(memcmp(got.ids, want, n_want * sizeof *want) == 0);
        free(got.ids);
    }
    cz_tokenizer_close(tok);
    free(text);
    free(json);
    free(want);
    teardown();
}
END_TEST

START_TEST(rows_without_a_text_are_refused_by_line)
{
    setup();
#define GOOD "{\"text\": \"a\"}\n"
    refused(put_text("a.jsonl", GOOD GOOD "{\"content\": \"b\", \"id\": 1}\n"), NULL, CZ_INVALID,
            "a.jsonl:3: no member \"text\"; there is content, id");
    refused(put_text("a.jsonl", GOOD "{\"messages\": [{\"role\": \"user\"}]}\n"), NULL, CZ_INVALID,
            "a.jsonl:2: no member \"text\"; there is messages: instructions and chats are "
            "read by --task sft");
    refused(put_text("a.jsonl", "{\"prompt\": \"a\", \"completion\": \"b\"}\n"), NULL, CZ_INVALID,
            "--task sft");
    refused(put_text("a.jsonl", GOOD "{\"text\": 5}\n"), NULL, CZ_INVALID,
            "a.jsonl:2: the text is an integer, not a string");
    refused(put_text("a.jsonl", GOOD "{\"text\": \"b\"\n" GOOD), NULL, CZ_CORRUPT, "a.jsonl:3:");
    refused(put_text("a.jsonl", GOOD "[1, 2]\n"), NULL, CZ_CORRUPT, "a.jsonl:2:");
    refused(put_text("a.json", "[" GOOD ", {\"id\": 1}]"), NULL, CZ_INVALID, "item 2: no member");
    refused(put_text("a.json", "[" GOOD), NULL, CZ_CORRUPT, "found the end of the file");
    refused(put_text("a.jsonl", "{\"text\": \"\"}\n"), NULL, CZ_INVALID, "no tokens");
    refused(put_packed(&packers[0], "a.jsonl", GOOD "{}\n"), NULL, CZ_INVALID,
            "a.jsonl.gz:2: no member \"text\"; there is nothing");
    teardown();
}
END_TEST

/* ---- folders --------------------------------------------------------------------------------- */

START_TEST(a_folder_is_its_files_in_order)
{
    setup();
    (void)put_text("d/b.txt", "2");
    (void)put_text("d/a.TXT", "1");
    (void)put_text("d/.hidden.txt", "hidden");
    (void)put_text("d/.git/x.txt", "hidden");
    (void)put_text("d/README.md", "no data");
    (void)put_text("d/sub/c.jsonl", "{\"text\": \"4\"}");
    (void)put_packed(&packers[0], "d/c.txt", "3");
    (void)put_text("d/z.txt", "5");
    ck_assert_int_eq(symlink("z.txt", in_dir("d/zz.txt")), 0);
    ck_assert_int_eq(symlink(".", in_dir("d/loop")), 0);
    const char *paths[] = {in_dir("d"), put_text("last", "6")};
    ck_bytes(paths, 2, "1234\n556");
    (void)put_text("e/only.md", "x");
    refused(in_dir("e"), NULL, CZ_INVALID, "no file that ends in .txt");
    ck_ok(file_make_dirs(in_dir("f")));
    ck_assert_int_eq(symlink("../d/b.txt", in_dir("f/out.txt")), 0);
    refused(in_dir("f"), NULL, CZ_CORRUPT, "leads out of");
    teardown();
}
END_TEST

/* More than a process may have open. */
START_TEST(a_folder_may_have_many_files)
{
    char want[401] = "", name[32];
    const struct rlimit few = {320, 320};
    snprintf(dir, sizeof dir, "%s", test_tmp_make_fast());
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    for (int i = 0; i < 400; i++) {
        snprintf(name, sizeof name, "d/%04d.txt", i);
        want[i] = (char)('a' + i % 26);
        (void)put(name, &want[i], 1);
    }
    const char *path = in_dir("d");
    ck_bytes(&path, 1, want);
    teardown();
}
END_TEST

/* ---- labelled texts -------------------------------------------------------------------------- */

START_TEST(labelled_texts_may_be_compressed)
{
    setup();
    for (size_t k = 0; k < CZ_ARRAY_LEN(packers); k++) {
        const char *paths[] = {put_packed(&packers[k], "d/a.csv", "text,label\ngood,1\nbad,0\n"),
                               put_packed(&packers[k], "d/b.tsv", "text\tlabel\nfine\t1\n"),
                               put_packed(&packers[k], "d/c.jsonl", "[\"poor\", 0]\n")};
        const char *folder = in_dir("d");
        for (size_t i = 0; i < 2; i++) {
            struct cz_texts *t;
            struct cz_texts_options o = {
                .size = sizeof o, .paths = i ? &folder : paths, .n_paths = i ? 1 : 3};
            ck_ok(cz_texts_open(&o, &t));
            ck_assert_uint_eq(cz_texts_count(t), 4);
            ck_assert_str_eq(cz_texts_at(t, 3).text, "poor");
            ck_assert_int_eq(cz_texts_label(t, 2), 1);
            cz_texts_close(t);
        }
        test_tmp_remove(in_dir("d"));
    }
    struct cz_texts *t;
    const char *path = put("a.csv", "PAR1\x15\0\x15\0", 8);
    struct cz_texts_options o = {.size = sizeof o, .paths = &path, .n_paths = 1};
    ck_fails(cz_texts_open(&o, &t), CZ_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "Parquet"));
    teardown();
}
END_TEST

TEST_MAIN("data/data_files", compressed_text_is_the_text, damaged_compressed_data_are_refused,
          a_bomb_is_refused, other_files_are_refused_by_name, rows_are_documents,
          documents_of_rows_are_told_apart, many_rows_do_not_depend_on_threads,
          rows_without_a_text_are_refused_by_line, a_folder_is_its_files_in_order,
          a_folder_may_have_many_files, labelled_texts_may_be_compressed,
          the_rest_of_a_magic_number_stays_in_the_buffer)
