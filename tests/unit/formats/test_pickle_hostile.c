/* Claims: whatever the bytes are, parsing ends soon, in a tree or in a sentence, and takes no more
 * memory than a multiple of their length: cut off at every byte, damaged, nested, cyclic, made to
 * blow up. */
#include "base/rng.h"
#include "tests/unit/formats/pickle_rig.h"

#include <malloc.h>
#include <time.h>

static const char *const goldens[] = {"numbers",      "parameters",    "version3",
                                      "containers",   "model_s2_fp16", "optim_s2_fp16",
                                      "optim_s3_bf16"};

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void repeat(struct bytes *b, const char *text, size_t n_bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) add(b, text, n_bytes);
}

#define REPEAT(b, literal, n) repeat(b, literal, sizeof(literal) - 1, n)

/* The bytes are refused with a sentence that holds `sentence`, and freed. */
static void refuse(struct bytes *b, cz_status status, const char *sentence)
{
    refuse_bytes(b->data, b->n, status, sentence);
    free(b->data);
    *b = (struct bytes){0};
}

/* Parse if possible. A copy of exactly the length lets ASan see a byte too far. */
static cz_status parse(const unsigned char *bytes, size_t n, struct pickle **out)
{
    unsigned char *copy = malloc(n ? n : 1);
    ck_assert_ptr_nonnull(copy);
    memcpy(copy, bytes, n);
    cz_status st = pickle_parse(copy, n, "f", out);
    free(copy);
    return st;
}

/* ---- cut and damaged ---------------------------------------------------------------------------
 */

START_TEST(no_part_of_a_pickle_is_one)
{
    for (size_t g = 0; g < CZ_ARRAY_LEN(goldens); g++) {
        size_t n;
        unsigned char *bytes = load_golden(goldens[g], &n);
        struct pickle *p;
        for (size_t cut = 0; cut < n; cut++) {
            ck_fails(parse(bytes, cut, &p), CZ_CORRUPT);
            ck_assert_ptr_null(p);
        }
        ck_ok(parse(bytes, n, &p));
        pickle_free(p);
        free(bytes);
    }
}
END_TEST

START_TEST(bytes_behind_the_end_are_refused)
{
    REFUSE("N.N", CZ_CORRUPT, "byte 3: 1 bytes follow the end");
    REFUSE("N..", CZ_CORRUPT, "follow the end");
    refuse_bytes("", 0, CZ_CORRUPT, "not a pickle of protocol 2");
    refuse_bytes("N.", 2, CZ_CORRUPT, "not a pickle of protocol 2");
    refuse_bytes("\x80\x01N.", 4, CZ_UNSUPPORTED, "protocol 1");
    refuse_bytes("\x80\x06N.", 4, CZ_UNSUPPORTED, "protocol 6");
}
END_TEST

START_TEST(flips_never_crash)
{
    size_t n_refused = 0, n_runs = 0;
    for (size_t g = 0; g < CZ_ARRAY_LEN(goldens); g++) {
        size_t n;
        unsigned char *bytes = load_golden(goldens[g], &n);
        for (size_t i = 0; i < 4000; i++, n_runs++) {
            uint64_t random = rng_mix64(g << 32 | i);
            unsigned char *at = &bytes[(random >> 8) % n], was = *at;
            *at = (unsigned char)(i % 2 ? random : was ^ 1u << random % 8);
            struct pickle *p;
            cz_status st = parse(bytes, n, &p);
            if (st != CZ_OK) {
                ck_assert(st == CZ_CORRUPT || st == CZ_UNSUPPORTED);
                ck_assert_ptr_null(p);
                n_refused++;
            }
            pickle_free(p);
            *at = was;
        }
        free(bytes);
    }
    ck_assert_uint_gt(n_refused, n_runs / 4);
    ck_assert_uint_lt(n_refused, n_runs); /* text may change unseen */
}
END_TEST

/* ---- the machine -------------------------------------------------------------------------------
 */

START_TEST(lengths_beyond_the_input)
{
    REFUSE("X\x05\0\0\0abc.", CZ_CORRUPT, "needs 5 bytes, 4 are left");
    REFUSE("X\xff\xff\xff\xff.", CZ_CORRUPT, "needs 4294967295 bytes");
    REFUSE("\x8d\xff\xff\xff\xff\xff\xff\xff\xff.", CZ_CORRUPT, "needs 18446744073709551615 bytes");
    REFUSE("B\xff\xff\xff\x7f.", CZ_CORRUPT, "needs 2147483647 bytes");
    REFUSE("\x8e\0\0\0\0\0\0\0\x80.", CZ_CORRUPT, "needs");
    REFUSE("\x8b\xff\xff\xff\xff.", CZ_CORRUPT, "needs 4294967295 bytes");
    REFUSE("T\xff\xff\xff\xff.", CZ_CORRUPT, "needs");
    REFUSE("\x95\xff\0\0\0\0\0\0\0.", CZ_CORRUPT, "a frame of 255 bytes");
    REFUSE("\x95\x03\0\0\0\0\0\0\0N.", CZ_CORRUPT, "a frame of 3 bytes, 2 are left");
    REFUSE("\x95\0\0\0\0\0\0\0\x80N.", CZ_CORRUPT, "a frame of");
    pickle_free(PARSE("\x95\x02\0\0\0\0\0\0\0N")); /* up to the end exactly */
    REFUSE("cposix", CZ_CORRUPT, "a name does not end");
    REFUSE("cposix\nsystem", CZ_CORRUPT, "a name does not end");
}
END_TEST

START_TEST(the_stack_never_underflows)
{
    static const unsigned char poppers[] = "02a\x85\x86\x87QRbs\x81\x92\x93q";
    for (size_t i = 0; i < sizeof poppers - 1; i++) {
        unsigned char empty[] = {0x80, 2, poppers[i], 0, '.'};
        unsigned char hidden[] = {0x80, 2, 'N', '(', poppers[i], 0, '.'}; /* N is below a mark */
        struct pickle *p;
        ck_fails(parse(empty, sizeof empty, &p), CZ_CORRUPT);
        ck_fails(parse(hidden, sizeof hidden, &p), CZ_CORRUPT);
    }
    REFUSE("t.", CZ_CORRUPT, "finds no mark");
    REFUSE("e.", CZ_CORRUPT, "finds no mark");
    REFUSE("u.", CZ_CORRUPT, "finds no mark");
    REFUSE("1.", CZ_CORRUPT, "finds no mark");
    REFUSE("\x90.", CZ_CORRUPT, "finds no mark");
    REFUSE("\x91.", CZ_CORRUPT, "finds no mark");
    REFUSE("(u.", CZ_CORRUPT, "needs 1 values, the stack has 0");
    REFUSE(".", CZ_CORRUPT, "STOP with 0 values");
    REFUSE("NN.", CZ_CORRUPT, "STOP with 2 values and 0 marks");
    REFUSE("N(.", CZ_CORRUPT, "STOP with 1 values and 1 marks");
    REFUSE("\xff.", CZ_CORRUPT, "unknown opcode 0xff");
    REFUSE("\0.", CZ_CORRUPT, "unknown opcode 0x00");
    REFUSE("I1\n.", CZ_UNSUPPORTED, "text opcode 'I'");
}
END_TEST

/* ---- made to blow up ---------------------------------------------------------------------------
 */

START_TEST(depth_is_bounded)
{
    for (size_t depth = 998; depth <= 1002; depth++) {
        struct bytes b = {0};
        struct pickle *p;
        ADD(&b, "\x80\x02");
        REPEAT(&b, "]", depth);
        REPEAT(&b, "a", depth - 1);
        ADD(&b, ".");
        if (depth <= 1000) {
            ck_ok(pickle_parse(b.data, b.n, "f", &p));
            pickle_free(p);
            free(b.data);
        } else {
            refuse(&b, CZ_CORRUPT, "nested more than 1000 deep");
        }
    }
    struct bytes b = {0};
    ADD(&b, "\x80\x02N");
    REPEAT(&b, "\x85", 300000);
    ADD(&b, ".");
    refuse(&b, CZ_CORRUPT, "nested more than 1000 deep");
    ADD(&b, "\x80\x02");
    REPEAT(&b, "(", 300000);
    ADD(&b, ".");
    refuse(&b, CZ_CORRUPT, "STOP with 0 values and 300000 marks");
}
END_TEST

START_TEST(cycles_are_found)
{
    REFUSE("]q\0h\0a.", CZ_CORRUPT, "a list contains itself");
    REFUSE("}q\0K\x01h\0s.", CZ_CORRUPT, "a dict contains itself");
    REFUSE("ca\nB\n)\x81q\0}K\x01h\0sb.", CZ_CORRUPT, "an object contains itself");
    REFUSE("ca\nB\n)\x81q\0h\0b.", CZ_CORRUPT, "contains itself");
    REFUSE("]q\0]q\1h\0aa.", CZ_CORRUPT, "contains itself");
    pickle_free(PARSE("]q\0h\0a0N")); /* out of reach of the root */
}
END_TEST

/* Ten of each before it, sixteen levels: a walk would see 10^16 values. */
START_TEST(laughs_are_refused)
{
    struct bytes b = {0};
    ADD(&b, "\x80\x02]q\x00");
    for (unsigned char level = 0; level < 16; level++) {
        unsigned char get[] = {'h', level}, put[] = {'q', (unsigned char)(level + 1)};
        ADD(&b, "](");
        for (size_t i = 0; i < 10; i++) add(&b, get, 2);
        ADD(&b, "e");
        add(&b, put, 2);
    }
    REPEAT(&b, "\x86", 16);
    ADD(&b, ".");
    refuse(&b, CZ_CORRUPT, "written out without sharing, the values are more than");
}
END_TEST

/* n values in a list; the copies of it are one REDUCE each. */
static void add_copies(struct bytes *b, size_t n, const char *class, size_t n_copies)
{
    ADD(b, "\x80\x02](");
    REPEAT(b, "K\x01", n);
    ADD(b, "eq\x00(");
    add(b, class, strlen(class));
    ADD(b, "q\x01");
    REPEAT(b, "h\x01h\x00\x85R", n_copies);
    ADD(b, "t\x86.");
}

START_TEST(copies_of_a_long_list_take_no_time)
{
    static const char *const classes[] = {"c__builtin__\nlist\n", "c__builtin__\nset\n",
                                          "ctorch\nSize\n", "ccollections\nOrderedDict\n",
                                          "ca\nB\n"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(classes); i++) {
        struct bytes b = {0};
        struct pickle *p;
        add_copies(&b, 100000, classes[i], 50000);
        double before = seconds();
        cz_status st = parse(b.data, b.n, &p);
        double took = seconds() - before;
        ck_assert_msg(st == CZ_CORRUPT, "%s: %s", classes[i], cz_status_name(st));
        ck_assert_msg(took < 2.0, "%s: %.1f s for %zu bytes", classes[i], took, b.n);
        free(b.data);
    }
}
END_TEST

START_TEST(memory_is_a_multiple_of_the_length)
{
    struct bytes b = {0};
    struct pickle *p;
    add_copies(&b, 1000, "c__builtin__\nlist\n", 1); /* as a list of lists that grow: copied */
    b.n--;
    for (size_t i = 0; i < 2000; i++)
        ADD(&b, "h\x01h\x00\x85RK\x01"
                "a0");
    ADD(&b, ".");
    struct mallinfo2 before = mallinfo2();
    ck_fails(parse(b.data, b.n, &p), CZ_CORRUPT);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "96 bytes of memory per byte"));
    ck_assert_uint_le(mallinfo2().uordblks, before.uordblks + 4096);
    free(b.data);

    b = (struct bytes){0}; /* the dearest byte there is */
    ADD(&b, "\x80\x02(");
    REPEAT(&b, "}", 200000);
    ADD(&b, "t.");
    before = mallinfo2();
    ck_ok(parse(b.data, b.n, &p));
    struct mallinfo2 after = mallinfo2();
    size_t taken = after.uordblks + after.hblkhd - before.uordblks - before.hblkhd;
    ck_assert_uint_le(taken, 96 * b.n + (1 << 20));
    pickle_free(p);
    free(b.data);
}
END_TEST

TEST_MAIN("formats/pickle_hostile", no_part_of_a_pickle_is_one, bytes_behind_the_end_are_refused,
          flips_never_crash, lengths_beyond_the_input, the_stack_never_underflows, depth_is_bounded,
          cycles_are_found, laughs_are_refused, copies_of_a_long_list_take_no_time,
          memory_is_a_multiple_of_the_length)
