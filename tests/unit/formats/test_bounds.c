/* Claims: time to read a file grows with its size, not faster, whatever its keys are; memory is at
 * most the multiple of its size that docs/fuzzing.md gives. Each hostile input is compared with a
 * benign one of the same size. */
#include "base/rng.h"
#include "formats/json/json.h"
#include "formats/pickle/pickle_impl.h"
#include "formats/pt/pt.h"
#include "tests/support/cost.h"
#include "tests/unit/formats/pickle_rig.h"

#include <fcntl.h>

#define MIB ((size_t)1 << 20)

static void end(struct bytes *b)
{
    ADD(b, "\0");
    b->n--;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void read_json(const void *user)
{
    const struct bytes *b = user;
    struct json_doc *doc;
    if (json_parse((const char *)b->data, b->n, "f", JSON_STRICT, &doc) != CZ_OK) _exit(1);
    json_free(doc);
}

static uint32_t fnv(uint32_t h, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)text[i]) * 16777619u;
    return h;
}

#define BLOCK 8

/* A block of letters for each number. */
static void letters(uint32_t number, char text[BLOCK])
{
    uint64_t bits = rng_mix64(number);
    for (int i = 0; i < BLOCK; i++, bits >>= 8) text[i] = (char)('a' + (bits & 0xff) % 26);
}

/* Two blocks that bring FNV-1a from state h to one state. */
static uint32_t collide(uint32_t h, char a[BLOCK], char b[BLOCK])
{
    enum { N_SLOTS = 1 << 20 };
    uint32_t *slots = calloc(N_SLOTS, sizeof *slots);
    ck_assert_ptr_nonnull(slots);
    for (uint32_t i = 0; i < 1u << 20; i++) {
        letters(i, a);
        uint32_t to = fnv(h, a, BLOCK), *slot = &slots[(to * 2654435761u) >> 12];
        if (*slot) letters(*slot - 1, b);
        if (*slot && fnv(h, b, BLOCK) == to) {
            free(slots);
            return to;
        }
        *slot = i + 1;
    }
    ck_abort_msg("no collision of FNV-1a found");
    return 0;
}

/* An object of 2^n_pairs keys, each n_pairs blocks: `pairs` gives two blocks for
 * each place. With pairs that collide, all keys have one hash. */
static struct bytes object_of(char pairs[][2][BLOCK], int n_pairs)
{
    struct bytes b = {0};
    ADD(&b, "{");
    for (uint32_t k = 0; k < 1u << n_pairs; k++) {
        add(&b, k ? ",\"" : "\"", k ? 2 : 1);
        for (int p = 0; p < n_pairs; p++) add(&b, pairs[p][k >> p & 1], BLOCK);
        ADD(&b, "\":0");
    }
    ADD(&b, "}");
    end(&b);
    return b;
}

START_TEST(keys_that_collide_under_a_known_hash_cost_no_more)
{
    enum { N_PAIRS = 14 };
    static char equal[N_PAIRS][2][BLOCK], other[N_PAIRS][2][BLOCK];
    uint32_t h = 2166136261u;
    for (uint32_t p = 0; p < N_PAIRS; p++) {
        h = collide(h, equal[p][0], equal[p][1]);
        letters(1000 + 7 * p, other[p][0]);
        letters(90000 + 11 * p, other[p][1]);
    }
    struct bytes hostile = object_of(equal, N_PAIRS), benign = object_of(other, N_PAIRS);
    ck_assert_uint_eq(hostile.n, benign.n);
    cost_compare("json: colliding keys", cost_of(read_json, &hostile), cost_of(read_json, &benign),
                 4);
    free(hostile.data);
    free(benign.data);
}
END_TEST

static struct bytes repeated(const char *head, const char *part, const char *tail, size_t nbytes)
{
    struct bytes b = {0};
    add(&b, head, strlen(head));
    while (b.n < nbytes) add(&b, part, strlen(part));
    b.n -= strlen(tail) > 0 && b.data[b.n - 1] == ','; /* JSON: no comma before the end */
    add(&b, tail, strlen(tail));
    end(&b);
    return b;
}

START_TEST(a_json_tree_takes_a_small_multiple_of_its_text)
{
    static const char *const parts[] = {"0,", "[],", "{},", "\"\",", "[0],", "{\"a\":0},"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(parts); i++) {
        struct bytes b = repeated("[", parts[i], "]", 2 * MIB);
        cost_limit(parts[i], cost_of(read_json, &b), b.n, JSON_BYTES_PER_INPUT, (double)MIB);
        free(b.data);
    }
    struct bytes b = {0};
    for (size_t i = 0; b.n < 2 * MIB; i++) { /* one object of different short keys */
        char text[32];
        add(&b, text, (size_t)snprintf(text, sizeof text, "%s\"%zx\":0", i ? "," : "{", i));
    }
    ADD(&b, "}");
    end(&b);
    cost_limit("json: short keys", cost_of(read_json, &b), b.n, JSON_BYTES_PER_INPUT, (double)MIB);
    free(b.data);
}
END_TEST

/* ---- pickles --------------------------------------------------------------------------------- */

static void read_pickle(const void *user)
{
    const struct bytes *b = user;
    struct pickle *p;
    if (pickle_parse(b->data, b->n, "f", &p) == CZ_OK) pickle_free(p);
}

/* A dict of n float keys: all NaN, or all different. */
static struct bytes dict_of_floats(size_t n, bool nan)
{
    struct bytes b = {0};
    ADD(&b, "\x80\x02}(");
    for (size_t i = 0; i < n; i++) {
        unsigned char key[] = {'G', 0x7f, 0xf8, 0, 0, 0, 0, 0, 0, 'N'};
        if (!nan) key[1] = 0x3f, key[4] = (unsigned char)(i >> 16);
        if (!nan) key[5] = (unsigned char)(i >> 8), key[6] = (unsigned char)i;
        add(&b, key, sizeof key);
    }
    ADD(&b, "u.");
    return b;
}

START_TEST(keys_that_equal_nothing_cost_no_more)
{
    struct bytes hostile = dict_of_floats(100000, true), benign = dict_of_floats(100000, false);
    struct pickle *p;
    ck_ok(pickle_parse(hostile.data, hostile.n, "f", &p));
    ck_assert_uint_eq(pickle_root(p)->n_pairs, 100000); /* each is a key of its own, as in Python */
    pickle_free(p);
    cost_compare("pickle: NaN keys", cost_of(read_pickle, &hostile), cost_of(read_pickle, &benign),
                 4);
    free(hostile.data);
    free(benign.data);
}
END_TEST

/* A dict whose values are 20,000 times one tuple of 2,000 items, given to torch.Size: each call
 * looks at all of it. */
START_TEST(values_that_are_looked_at_again_are_counted)
{
    struct bytes hostile = {0};
    ADD(&hostile, "\x80\x02(");
    for (int i = 0; i < 2000; i++) ADD(&hostile, "K\x01");
    ADD(&hostile, "tq\x00(ctorch\nSize\nq\x01");
    for (int i = 0; i < 20000; i++) ADD(&hostile, "h\x01h\x00\x85R");
    ADD(&hostile, "t\x86.");
    struct bytes benign = repeated("\x80\x02(", "K\x01", "t.", hostile.n);
    cost_compare("pickle: one long tuple", cost_of(read_pickle, &hostile),
                 cost_of(read_pickle, &benign), 6);
    free(hostile.data);
    free(benign.data);
}
END_TEST

START_TEST(a_pickle_takes_a_small_multiple_of_its_bytes)
{
    static const char *const parts[] = {"]",          "}",       "N",          "K\x01",
                                        ")",          "\x8f",    "]\x94",      "}\x94",
                                        "X\1\0\0\0a", "cA\nB\n", "]N\x85\x30", "K\x01\x85"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(parts); i++) {
        struct bytes b = {0};
        const size_t n = parts[i][0] == 'X' ? 6 : strlen(parts[i]);
        ADD(&b, "\x80\x04(");
        while (b.n < MIB) add(&b, parts[i], n);
        ADD(&b, "t.");
        cost_limit("pickle", cost_of(read_pickle, &b), b.n, (double)PICKLE_BYTES_PER_INPUT,
                   (double)MIB);
        free(b.data);
    }
}
END_TEST

/* ---- zip ------------------------------------------------------------------------------------- */

static void open_pt(const void *user)
{
    struct pt *pt;
    if (pt_open(user, &pt) == CZ_OK) pt_close(pt);
}

/* Its end says that there is a directory of 512 MiB, which is a hole. */
START_TEST(a_directory_of_holes_takes_no_memory)
{
    enum { END = 22, LOCATOR = 20, END64 = 56 };
    const uint64_t nbytes = 512 * MIB, n_entries = nbytes / 64;
    unsigned char tail[END64 + LOCATOR + END] = {0}, *end64 = tail, *locator = tail + END64,
                                         *last = tail + END64 + LOCATOR;
    memcpy(end64, "PK\6\6", 4);
    memcpy(locator, "PK\6\7", 4);
    memcpy(last, "PK\5\6", 4);
    end64[4] = END64 - 12;
    memcpy(end64 + 24, &n_entries, 8);
    memcpy(end64 + 32, &n_entries, 8);
    memcpy(end64 + 40, &nbytes, 8);
    memcpy(locator + 8, &nbytes, 8);
    locator[16] = 1;
    memset(last + 8, 0xff, 12); /* see the 64-bit record */
    char path[128];
    const char *dir = test_tmp_make();
    snprintf(path, sizeof path, "%s/holes.pt", dir);
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(pwrite(fd, tail, sizeof tail, (off_t)nbytes), sizeof tail);
    close(fd);
    struct pt *pt;
    ck_fails(pt_open(path, &pt), CZ_CORRUPT);
    ck_assert_msg(strstr(cz_last_error(), "no directory entry at byte 0"), "%s", cz_last_error());
    cost_limit("zip: a directory of holes", cost_of(open_pt, path), sizeof tail, 1,
               (double)(4 * MIB));
    test_tmp_remove(dir);
}
END_TEST

TEST_MAIN("formats/bounds", keys_that_collide_under_a_known_hash_cost_no_more,
          a_json_tree_takes_a_small_multiple_of_its_text, keys_that_equal_nothing_cost_no_more,
          values_that_are_looked_at_again_are_counted, a_pickle_takes_a_small_multiple_of_its_bytes,
          a_directory_of_holes_takes_no_memory)
