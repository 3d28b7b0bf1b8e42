/* Pickles made of literals, parsed or refused; what tests of pickles compare. */
#ifndef CZ_TESTS_PICKLE_RIG_H
#define CZ_TESTS_PICKLE_RIG_H

#include "formats/file_io.h"
#include "formats/pickle/pickle.h"
#include "tests/support/check_main.h"

#include <string.h>

/* A pickle in the making: bytes of a literal behind each other. */
struct bytes {
    unsigned char *data;
    size_t n, capacity;
};

static inline void add(struct bytes *b, const void *data, size_t n)
{
    if (b->n + n > b->capacity) {
        b->capacity = 2 * (b->n + n);
        b->data = realloc(b->data, b->capacity);
        ck_assert_ptr_nonnull(b->data);
    }
    memcpy(b->data + b->n, data, n);
    b->n += n;
}

#define ADD(b, literal) add(b, literal, sizeof(literal) - 1)

/* A literal between the protocol mark and STOP, parsed. */
static inline struct pickle *parse_body(const char *body, size_t n)
{
    struct bytes b = {0};
    struct pickle *p;
    ADD(&b, "\x80\x02");
    add(&b, body, n);
    ADD(&b, ".");
    ck_ok(pickle_parse(b.data, b.n, "f.pt: data.pkl", &p));
    free(b.data);
    return p;
}

#define PARSE(literal) parse_body(literal, sizeof(literal) - 1)

static inline void refuse_bytes(const void *bytes, size_t n, cz_status status, const char *sentence)
{
    struct pickle *p = (void *)1;
    ck_fails(pickle_parse(bytes, n, "f.pt: data.pkl", &p), status);
    ck_assert_ptr_null(p);
    ck_assert_msg(strstr(cz_last_error(), sentence), "\"%s\" does not hold \"%s\"", cz_last_error(),
                  sentence);
    ck_assert_msg(strncmp(cz_last_error(), "f.pt: data.pkl: ", 16) == 0, "%s", cz_last_error());
}

#define REFUSE(literal, status, sentence)                                                          \
    refuse_bytes("\x80\x02" literal, sizeof("\x80\x02" literal) - 1, status, sentence)

static inline void is_int(const struct pickle_node *node, int64_t want)
{
    ck_assert_ptr_nonnull(node);
    ck_assert_int_eq(node->kind, PICKLE_INT);
    ck_assert_int_eq(node->integer, want);
}

static inline void is_string(const struct pickle_node *node, const char *want)
{
    ck_assert_ptr_nonnull(node);
    ck_assert_int_eq(node->kind, PICKLE_STRING);
    ck_assert_str_eq(node->text, want);
    ck_assert_uint_eq(node->n, strlen(want));
}

/* A file of fixtures/formats/pickle, the caller's to free(). */
static inline unsigned char *load_golden(const char *name, size_t *nbytes)
{
    char path[256], *bytes;
    snprintf(path, sizeof path, "formats/pickle/%s.pkl", name);
    ck_ok(file_load(test_fixture(path), (size_t)1 << 20, &bytes, nbytes));
    return (unsigned char *)bytes;
}

static inline struct pickle *parse_golden(const char *name)
{
    size_t nbytes;
    struct pickle *p;
    unsigned char *bytes = load_golden(name, &nbytes);
    ck_ok(pickle_parse(bytes, nbytes, name, &p));
    free(bytes);
    return p;
}

#endif
