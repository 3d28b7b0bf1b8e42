/* Claims: what the writer makes reads back as what was put, in torch.save's own bytes where a value
 * has one form; wrong use is one sentence at the end; parsed trees are written again as they were.
 */
#include "tests/unit/formats/pickle_rig.h"

static struct pickle *take(struct pickle_writer *w)
{
    unsigned char *bytes;
    size_t n;
    struct pickle *p;
    ck_ok(pickle_writer_take(w, &bytes, &n));
    ck_ok(pickle_parse(bytes, n, "written", &p));
    free(bytes);
    pickle_writer_destroy(w);
    return p;
}

static struct pickle_writer *begin(void)
{
    struct pickle_writer *w = pickle_writer_create();
    ck_assert_ptr_nonnull(w);
    return w;
}

static void fails(struct pickle_writer *w, const char *sentence)
{
    unsigned char *bytes;
    size_t n;
    ck_fails(pickle_writer_take(w, &bytes, &n), CZ_INVALID);
    ck_assert_ptr_null(bytes);
    ck_assert_msg(strstr(cz_last_error(), sentence), "%s", cz_last_error());
    pickle_writer_destroy(w);
}

static void takes(struct pickle_writer *w, const void *want, size_t n_want)
{
    unsigned char *bytes;
    size_t n;
    ck_ok(pickle_writer_take(w, &bytes, &n));
    ck_assert_uint_eq(n, n_want);
    ck_assert_mem_eq(bytes, want, n);
    free(bytes);
    pickle_writer_destroy(w);
}

#define TAKES(w, literal) takes(w, literal, sizeof(literal) - 1)

/* ---- values ------------------------------------------------------------------------------------
 */

static void is_written(int64_t value, const void *want, size_t n)
{
    struct pickle_writer *w = begin();
    pickle_put_int(w, value);
    takes(w, want, n);
}

#define IS_WRITTEN(value, literal)                                                                 \
    is_written(value, "\x80\x02" literal ".", sizeof("\x80\x02" literal ".") - 1)

START_TEST(numbers_take_pythons_forms)
{
    IS_WRITTEN(0, "K\x00");
    IS_WRITTEN(255, "K\xff");
    IS_WRITTEN(256, "M\x00\x01");
    IS_WRITTEN(65535, "M\xff\xff");
    IS_WRITTEN(65536, "J\x00\x00\x01\x00");
    IS_WRITTEN(-1, "J\xff\xff\xff\xff");
    IS_WRITTEN(INT32_MAX, "J\xff\xff\xff\x7f");
    IS_WRITTEN(INT32_MIN, "J\x00\x00\x00\x80");
    IS_WRITTEN(INT64_C(1) << 31, "\x8a\x05\x00\x00\x00\x80\x00");
    IS_WRITTEN(-(INT64_C(1) << 31) - 1, "\x8a\x05\xff\xff\xff\x7f\xff");
    IS_WRITTEN(INT64_MAX, "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f");
    IS_WRITTEN(INT64_MIN, "\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80");
    struct pickle_writer *w = begin();
    pickle_put_double(w, -2.5);
    TAKES(w, "\x80\x02G\xc0\x04\x00\x00\x00\x00\x00\x00.");
    w = begin();
    pickle_tuple_begin(w);
    pickle_put_none(w);
    pickle_put_bool(w, true);
    pickle_put_bool(w, false);
    pickle_put_string(w, "h\xc3\xa9");
    pickle_put_string(w, "h\xc3\xa9"); /* fetched */
    pickle_tuple_end(w);
    TAKES(w, "\x80\x02(N\x88\x89X\x03\x00\x00\x00h\xc3\xa9q\x00h\x00t.");
}
END_TEST

START_TEST(ints_of_every_width_read_back)
{
    for (unsigned bit = 0; bit < 63; bit++)
        for (int64_t delta = -1; delta <= 1; delta++)
            for (int sign = -1; sign <= 1; sign += 2) {
                int64_t value = sign * ((INT64_C(1) << bit) + delta);
                struct pickle_writer *w = begin();
                pickle_put_int(w, value);
                struct pickle *p = take(w);
                is_int(pickle_root(p), value);
                pickle_free(p);
            }
}
END_TEST

/* ---- containers --------------------------------------------------------------------------------
 */

static size_t count_op(const unsigned char *bytes, size_t n, unsigned char op)
{
    size_t count = 0;
    for (size_t i = 2; i < n; i++) count += bytes[i] == op;
    return count;
}

/* A list and a dict of n small ints: 1000 of them to a batch. */
static void check_batches(size_t n)
{
    for (int is_dict = 0; is_dict < 2; is_dict++) {
        struct pickle_writer *w = begin();
        is_dict ? pickle_dict_begin(w) : pickle_list_begin(w);
        for (size_t i = 0; i < n; i++) {
            pickle_put_int(w, (int64_t)(i % 7)); /* no byte of it is an opcode that is counted */
            if (is_dict) pickle_put_none(w);
        }
        is_dict ? pickle_dict_end(w) : pickle_list_end(w);
        unsigned char *bytes;
        size_t n_bytes;
        struct pickle *p;
        ck_ok(pickle_writer_take(w, &bytes, &n_bytes));
        ck_assert_uint_eq(count_op(bytes, n_bytes, is_dict ? 'u' : 'e'), (n + 999) / 1000);
        ck_assert_uint_eq(count_op(bytes, n_bytes, '('), (n + 999) / 1000);
        ck_ok(pickle_parse(bytes, n_bytes, "written", &p));
        const struct pickle_node *root = pickle_root(p);
        if (is_dict)
            ck_assert_uint_eq(root->n_pairs, n < 7 ? n : 7);
        else
            ck_assert_uint_eq(root->n, n);
        for (size_t i = 0; !is_dict && i < n; i++) is_int(root->items[i], (int64_t)(i % 7));
        pickle_free(p);
        free(bytes);
        pickle_writer_destroy(w);
    }
}

START_TEST(batches_hold_1000)
{
    static const size_t sizes[] = {0, 1, 2, 999, 1000, 1001, 1999, 2000, 2001};
    for (size_t i = 0; i < CZ_ARRAY_LEN(sizes); i++) check_batches(sizes[i]);
}
END_TEST

START_TEST(classes_and_state)
{
    struct pickle_writer *w = begin();
    pickle_ordered_dict_begin(w);
    pickle_put_string(w, "scaler");
    pickle_put_new(w, "deepspeed.runtime.fp16.loss_scaler", "LossScaler");
    pickle_state_begin(w);
    pickle_put_string(w, "cur_scale");
    pickle_put_double(w, 1024);
    pickle_state_end(w);
    pickle_put_string(w, "stage");
    pickle_call_begin(w, "deepspeed.runtime.zero.config", "ZeroStageEnum");
    pickle_put_int(w, 3);
    pickle_call_end(w);
    pickle_put_string(w, "shape");
    pickle_put_size(w, (const int64_t[]){2, 3, 4, 5}, 4);
    pickle_put_string(w, "dtype");
    pickle_put_global(w, "torch", "bfloat16");
    pickle_dict_end(w);
    pickle_state_begin(w);
    pickle_put_string(w, "_metadata");
    pickle_dict_begin(w);
    pickle_dict_end(w);
    pickle_state_end(w);
    struct pickle *p = take(w);
    const struct pickle_node *root = pickle_root(p);
    double scale;
    int64_t stage;
    ck_assert_str_eq(root->more->name, "OrderedDict");
    ck_assert(pickle_is(pickle_get(root->more->state, "_metadata"), PICKLE_DICT));
    const struct pickle_node *scaler = pickle_get(root, "scaler");
    ck_assert(pickle_is(scaler, PICKLE_OBJECT) && scaler->boolean);
    ck_assert(pickle_to_double(pickle_attr(scaler, "cur_scale"), &scale) && scale == 1024);
    ck_assert(pickle_to_int(pickle_get(root, "stage"), &stage) && stage == 3);
    ck_assert(pickle_is(pickle_get(root, "shape"), PICKLE_SIZE) &&
              pickle_get(root, "shape")->n == 4);
    is_int(pickle_get(root, "shape")->items[3], 5);
    ck_assert(pickle_is(pickle_get(root, "dtype"), PICKLE_DTYPE));
    pickle_free(p);
}
END_TEST

START_TEST(tensors_of_every_dtype)
{
    static const int64_t shape[] = {2, 1, 3};
    for (int dtype = 0; dtype < DTYPE_COUNT; dtype++)
        for (int has_id = 0; has_id < 2; has_id++) {
            struct pickle_tensor_desc desc = {.dtype = (enum cz_dtype)dtype,
                                              .storage_idx = 12,
                                              .storage_numel = 100,
                                              .off = 94,
                                              .ndim = 3,
                                              .shape = shape,
                                              .requires_grad = dtype % 2,
                                              .ds_id = has_id ? "0_27" : NULL};
            struct pickle_writer *w = begin();
            pickle_put_tensor(w, &desc);
            struct pickle *p = take(w);
            const struct pickle_node *root = pickle_root(p);
            const struct pickle_tensor *t = root->tensor;
            ck_assert_int_eq(root->kind, PICKLE_TENSOR);
            ck_assert_ptr_eq(t->dtype, pickle_dtype_of((enum cz_dtype)dtype));
            ck_assert_str_eq(t->key, "12");
            ck_assert(t->off == 94 && t->numel == 6 && t->is_contiguous && t->ndim == 3);
            ck_assert_uint_eq(t->storage_nbytes, 100 * t->dtype->size);
            ck_assert_mem_eq(t->shape, shape, sizeof shape);
            ck_assert_int_eq(t->requires_grad, dtype % 2);
            if (has_id) is_string(pickle_get(root->more->state, "ds_id"), "0_27");
            pickle_free(p);
        }
}
END_TEST

/* ---- wrong use ---------------------------------------------------------------------------------
 */

START_TEST(misuse_is_told_at_the_end)
{
    struct pickle_writer *w = begin();
    fails(w, "no value");
    w = begin();
    pickle_list_begin(w);
    fails(w, "not closed");
    w = begin();
    pickle_put_none(w);
    pickle_put_none(w);
    fails(w, "more than one value");
    w = begin();
    pickle_list_begin(w);
    pickle_dict_end(w);
    fails(w, "an end without its begin");
    w = begin();
    pickle_dict_begin(w);
    pickle_put_none(w);
    pickle_dict_end(w);
    fails(w, "a key without a value");
    w = begin();
    pickle_put_string(w, "\xff");
    fails(w, "not UTF-8");
    w = begin();
    pickle_put_global(w, "a\nb", "c");
    fails(w, "name of a class");
    w = begin();
    pickle_put_tensor(w, &(struct pickle_tensor_desc){.ndim = PICKLE_NDIM_MAX + 1});
    fails(w, "dimensions");
    w = begin();
    pickle_state_begin(w);
    fails(w, "attributes without an object");
    pickle_writer_destroy(NULL);
}
END_TEST

/* ---- parsed trees again ------------------------------------------------------------------------
 */

static bool is_same(const struct pickle_node *a, const struct pickle_node *b)
{
    if (!a || !b) return a == b;
    if (a->kind != b->kind || a->n != b->n || a->n_pairs != b->n_pairs) return false;
    if (a->boolean != b->boolean) return false;
    if ((a->kind == PICKLE_INT || a->kind == PICKLE_FLOAT) && a->integer != b->integer)
        return false; /* all bits, also of a float */
    if (strcmp(a->more->module, b->more->module) != 0) return false;
    if (strcmp(a->more->name, b->more->name) != 0) return false;
    if (pickle_has_text(a) && memcmp(a->text, b->text, a->n) != 0) return false;
    for (size_t i = 0; a->items && i < a->n; i++)
        if (!is_same(a->items[i], b->items[i])) return false;
    for (size_t i = 0; i < a->n_pairs; i++)
        if (!is_same(a->pairs[i].key, b->pairs[i].key) ||
            !is_same(a->pairs[i].value, b->pairs[i].value))
            return false;
    return is_same(a->more->args, b->more->args) && is_same(a->more->state, b->more->state);
}

START_TEST(trees_are_written_as_they_were)
{
    static const char *const names[] = {"containers", "numbers", "batches"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(names); i++) {
        struct pickle *p = parse_golden(names[i]);
        struct pickle_writer *w = begin();
        pickle_list_begin(w);
        pickle_put_node(w, pickle_root(p));
        pickle_put_node(w, pickle_root(p)); /* not fetched: its address may be another's by now */
        pickle_list_end(w);
        struct pickle *again = take(w);
        const struct pickle_node *list = pickle_root(again);
        ck_assert(is_same(list->items[0], pickle_root(p)));
        ck_assert(is_same(list->items[1], pickle_root(p)));
        ck_assert_ptr_ne(list->items[0], list->items[1]);
        const struct pickle_node *twice = pickle_get(list->items[0], "twice");
        if (twice) ck_assert_ptr_eq(twice->items[0], twice->items[1]); /* what is shared stays so */
        pickle_free(again);
        pickle_free(p);
    }
    struct pickle *p = parse_golden("parameters");
    struct pickle_writer *w = begin();
    pickle_put_node(w, pickle_root(p));
    fails(w, "a tensor cannot be carried over");
    pickle_free(p);
}
END_TEST

struct elements {
    size_t n_read;
    cz_status status;
};

static bool is_no_int(const struct pickle_node *key)
{
    return key->kind != PICKLE_INT;
}

/* 0, 1, … as int32. */
static cz_status count_up(void *user, const struct pickle_tensor *t, void *dst)
{
    struct elements *e = user;
    e->n_read++;
    for (uint64_t i = 0; i < t->numel; i++) {
        const int32_t value = (int32_t)i;
        memcpy((char *)dst + i * sizeof value, &value, sizeof value);
    }
    return e->status == CZ_OK ? CZ_OK : err_set(e->status, 0, "data/0: a disk's own error");
}

/* {"t": tensor of 2×3 int32, 5: "dropped", "u": [the same tensor], "s": its storage} */
static struct pickle *with_tensors(void)
{
    return PARSE("}(X\x01\x00\x00\x00tctorch._utils\n_rebuild_tensor_v2\n(("
                 "X\x07\x00\x00\x00storagectorch\nIntStorage\nX\x01\x00\x00\x00"
                 "0X\x03\x00\x00\x00"
                 "cpuK\x06tQq\x01K\x00K\x02K\x03\x86K\x03K\x01\x86\x89NtRq\x00"
                 "K\x05X\x07\x00\x00\x00"
                 "droppedX\x01\x00\x00\x00u]h\x00"
                 "aX\x01\x00\x00\x00sh\x01u");
}

static struct pickle_writer *part_of(const struct pickle *p, const struct pickle_part *part)
{
    struct pickle_writer *w = begin();
    pickle_dict_begin(w);
    pickle_put_string(w, "first");
    pickle_put_bool(w, true);
    pickle_put_pairs(w, pickle_root(p), part);
    pickle_dict_end(w);
    return w;
}

START_TEST(pairs_go_into_a_dict)
{
    struct pickle *p = with_tensors();
    struct elements elements = {0};
    struct pickle_part part = {
        .keeps = is_no_int, .read = count_up, .user = &elements, .nbytes_max = 24};
    struct pickle *again = take(part_of(p, &part));
    const struct pickle_node *root = pickle_root(again), *t = pickle_get(root, "t");
    ck_assert_uint_eq(root->n_pairs, 4);
    ck_assert_ptr_nonnull(pickle_get(root, "first"));
    ck_assert_ptr_null(pickle_get_int(root, 5));
    ck_assert_int_eq(t->kind, PICKLE_OBJECT);
    ck_assert_str_eq(t->more->module, "czero.client_state");
    ck_assert_str_eq(t->more->name, "tensor");
    is_string(t->more->args->items[0], "int32");
    is_int(t->more->args->items[1]->items[0], 2);
    is_int(t->more->args->items[1]->items[1], 3);
    ck_assert_int_eq(t->more->args->items[2]->kind, PICKLE_BYTES);
    ck_assert_uint_eq(t->more->args->items[2]->n, 24);
    for (int32_t i = 0; i < 6; i++)
        ck_assert_mem_eq(t->more->args->items[2]->text + (size_t)i * sizeof i, &i, sizeof i);
    ck_assert_ptr_eq(pickle_get(root, "u")->items[0], t); /* read once */
    ck_assert_uint_eq(elements.n_read, 1);
    ck_assert_int_eq(pickle_get(root, "s")->kind, PICKLE_GLOBAL);
    pickle_free(again);

    part.nbytes_max = 23; /* one byte short */
    again = take(part_of(p, &part));
    ck_assert_int_eq(pickle_get(pickle_root(again), "t")->more->args->items[2]->kind, PICKLE_NONE);
    ck_assert_uint_eq(elements.n_read, 1);
    pickle_free(again);

    part.nbytes_max = 24;
    elements.status = CZ_IO; /* the callback's words and status, also after a later error */
    unsigned char *bytes;
    size_t nbytes;
    struct pickle_writer *w = part_of(p, &part);
    err_set(CZ_INVALID, 0, "another error");
    ck_fails(pickle_writer_take(w, &bytes, &nbytes), CZ_IO);
    ck_assert_str_eq(cz_last_error(), "data/0: a disk's own error");
    pickle_writer_destroy(w);
    fails(part_of(p, NULL), "a tensor cannot be carried over");
    pickle_free(p);
    p = PARSE("}(K\x05X\x01\x00\x00\x00"
              "aX\x01\x00\x00\x00sctorch\nSize\nu");
    again = take(part_of(p, NULL)); /* all of them */
    is_string(pickle_get_int(pickle_root(again), 5), "a");
    ck_assert_uint_eq(pickle_root(again)->n_pairs, 3);
    pickle_free(again);
    pickle_free(p);
}
END_TEST

TEST_MAIN("formats/pickle_write", numbers_take_pythons_forms, ints_of_every_width_read_back,
          batches_hold_1000, classes_and_state, tensors_of_every_dtype, misuse_is_told_at_the_end,
          trees_are_written_as_they_were, pairs_go_into_a_dict)
