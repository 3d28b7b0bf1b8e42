/* Claims: what torch.save and DeepSpeed write becomes typed nodes with torch's values: tensors of
 * every encoding, parameters, containers and their batches, classes as inert objects, numpy's
 * scalars as numbers. The files are made by tests/interop/formats/pickle_golden.py. */
#include "tests/unit/formats/pickle_rig.h"

#include <math.h>

static const struct pickle_node *need(const struct pickle_node *dict, const char *key)
{
    const struct pickle_node *value = pickle_get(dict, key);
    ck_assert_msg(value, "no key \"%s\"", key);
    return value;
}

static const struct pickle_tensor *need_tensor(const struct pickle_node *dict, const char *key)
{
    const struct pickle_node *value = need(dict, key);
    ck_assert_msg(value->kind == PICKLE_TENSOR, "%s is a %s", key, pickle_kind_name(value->kind));
    return value->tensor;
}

static void is_class(const struct pickle_node *node, enum pickle_kind kind, const char *module,
                     const char *name)
{
    ck_assert_ptr_nonnull(node);
    ck_assert_int_eq(node->kind, kind);
    ck_assert_str_eq(node->more->module, module);
    ck_assert_str_eq(node->more->name, name);
}

static void is_bytes(const struct pickle_node *node, const void *want, size_t n)
{
    ck_assert_int_eq(node->kind, PICKLE_BYTES);
    ck_assert_uint_eq(node->n, n);
    ck_assert_mem_eq(node->text, want, n);
}

/* ---- values ------------------------------------------------------------------------------------
 */

START_TEST(numpy_scalars_are_numbers)
{
    struct pickle *p = parse_golden("numbers");
    const struct pickle_node *root = pickle_root(p);
    ck_assert_uint_eq(root->n_pairs, 6);
    for (size_t i = 0; i < 6; i++) {
        const char *key = pickle_to_string(root->pairs[i].key);
        const struct pickle_node *list = root->pairs[i].value;
        double want = strtod(key, NULL), real;
        int64_t integer;
        bool is_number = strcmp(key, "none of them") != 0,
             fits = want == trunc(want) && want < 1e18;
        ck_assert_uint_ge(list->n, 1);
        for (size_t k = 0; k < list->n; k++) {
            ck_assert_msg(pickle_to_double(list->items[k], &real) == is_number, "%s[%zu]", key, k);
            if (is_number) ck_assert_double_eq(real, want);
            bool is_whole = pickle_to_int(list->items[k], &integer);
            ck_assert_msg(is_whole == (is_number && fits), "%s[%zu]", key, k);
            if (is_whole) ck_assert_int_eq(integer, (int64_t)want);
        }
    }
    bool yes = false;
    ck_assert(pickle_to_bool(need(root, "1")->items[0], &yes) && yes);
    pickle_free(p);
}
END_TEST

START_TEST(containers_keep_their_class)
{
    struct pickle *p = parse_golden("containers");
    const struct pickle_node *root = pickle_root(p), *node;
    ck_assert(pickle_is(need(root, "set"), PICKLE_SET));
    ck_assert_str_eq(need(root, "set")->more->name, "set");
    is_int(need(root, "set")->items[0], 1);
    ck_assert(pickle_is(need(root, "frozenset"), PICKLE_SET));
    ck_assert_str_eq(need(root, "frozenset")->more->name, "frozenset");
    is_bytes(need(root, "bytes"), "\x00\x7f\x80\xff", 4);
    is_bytes(need(root, "no bytes"), "", 0);
    node = need(root, "size");
    ck_assert(pickle_is(node, PICKLE_SIZE) && node->n == 2);
    is_int(node->items[1], 3);
    ck_assert(pickle_is(need(root, "no size"), PICKLE_SIZE) && need(root, "no size")->n == 0);
    is_class(need(root, "dtype"), PICKLE_DTYPE, "torch", "bfloat16");
    node = need(root, "device");
    is_class(node, PICKLE_OBJECT, "torch", "device");
    is_string(node->more->args->items[0], "cuda");
    is_int(node->more->args->items[1], 3);
    is_class(need(root, "ordered"), PICKLE_DICT, "collections", "OrderedDict");
    is_int(need(need(root, "ordered"), "a"), 1);
    node = need(root, "default");
    is_class(node, PICKLE_DICT, "collections", "defaultdict");
    is_class(node->more->args->items[0], PICKLE_GLOBAL, "__builtin__", "list");
    is_int(need(node, "k")->items[0], 1);
    is_class(need(root, "counter"), PICKLE_DICT, "collections", "Counter");
    is_int(need(need(root, "counter"), "a"), 2);
    is_class(need(root, "deque"), PICKLE_OBJECT, "collections", "deque");
    ck_assert_ptr_eq(need(root, "twice")->items[0], need(root, "twice")->items[1]);
    pickle_free(p);
}
END_TEST

START_TEST(odd_texts_and_numbers)
{
    struct pickle *p = parse_golden("containers");
    const struct pickle_node *root = pickle_root(p);
    double real;
    int64_t integer;
    const struct pickle_node *large = need(root, "large"), *text = need(root, "text");
    ck_assert_int_eq(large->kind, PICKLE_LONG);
    ck_assert(pickle_to_double(large, &real) && !pickle_to_int(large, &integer));
    ck_assert_double_eq(real, 0x1p70);
    ck_assert_uint_eq(text->n, 8);
    ck_assert_mem_eq(text->text, "h\xc3\xa9\0\xf0\x9f\x98\x80", 9);
    ck_assert_ptr_null(pickle_to_string(text));
    ck_assert_str_eq(pickle_to_string(need(root, "surrogate")), "\xed\xa0\x80");
    pickle_free(p);
}
END_TEST

static void counts_from_0(const struct pickle_node *node, size_t n)
{
    ck_assert_uint_eq(node->kind == PICKLE_DICT ? node->n_pairs : node->n, n);
    for (size_t i = 0; i < n; i++)
        is_int(node->kind == PICKLE_DICT ? node->pairs[i].key : node->items[i], (int64_t)i);
}

START_TEST(batches_of_1000_join)
{
    static const size_t lists[] = {0, 1, 2, 999, 1000, 1001, 2001}, dicts[] = {0, 1, 2, 1000, 1001};
    static const size_t ordered[] = {0, 1, 1000, 1001};
    struct pickle *p = parse_golden("batches");
    const struct pickle_node *root = pickle_root(p);
    for (size_t i = 0; i < CZ_ARRAY_LEN(lists); i++)
        counts_from_0(need(root, "lists")->items[i], lists[i]);
    for (size_t i = 0; i < CZ_ARRAY_LEN(dicts); i++)
        counts_from_0(need(root, "dicts")->items[i], dicts[i]);
    for (size_t i = 0; i < CZ_ARRAY_LEN(ordered); i++)
        counts_from_0(need(root, "ordered")->items[i], ordered[i]);
    pickle_free(p);
}
END_TEST

/* ---- tensors -----------------------------------------------------------------------------------
 */

START_TEST(parameters_and_attributes)
{
    struct pickle *p = parse_golden("parameters");
    const struct pickle_node *root = pickle_root(p);
    const struct pickle_tensor *t = need_tensor(root, "weight");
    ck_assert(t->is_parameter && t->requires_grad && t->is_contiguous);
    ck_assert_int_eq(t->ndim, 2);
    ck_assert(t->shape[0] == 2 && t->shape[1] == 3 && t->stride[0] == 3 && t->stride[1] == 1);
    ck_assert(t->numel == 6 && t->off == 0 && t->storage_nbytes == 24);
    ck_assert_str_eq(t->key, "0");
    t = need_tensor(root, "frozen");
    ck_assert(t->is_parameter && !t->requires_grad);
    ck_assert(need_tensor(root, "tagged")->is_parameter);
    is_string(pickle_get(need(root, "tagged")->more->state, "ds_id"), "7");
    ck_assert(!need_tensor(root, "plain")->is_parameter);
    is_string(pickle_get(need(root, "plain")->more->state, "ds_id"), "0_27");
    t = need_tensor(root, "needs");
    ck_assert(!t->is_parameter && t->requires_grad);
    ck_assert_ptr_null(need(root, "needs")->more->state);
    pickle_free(p);
}
END_TEST

START_TEST(types_without_a_storage_class)
{
    static const struct {
        const char *name;
        size_t size;
    } types[] = {
        {"float8_e4m3fn", 1}, {"float8_e5m2", 1}, {"uint16", 2}, {"uint32", 4}, {"uint64", 8}};
    struct pickle *p = parse_golden("version3");
    const struct pickle_node *root = pickle_root(p);
    for (size_t i = 0; i < CZ_ARRAY_LEN(types); i++) {
        const struct pickle_tensor *t = need_tensor(root, types[i].name);
        ck_assert_str_eq(t->dtype->torch_name, types[i].name);
        ck_assert_ptr_eq(t->dtype, pickle_dtype_find(types[i].name));
        ck_assert(t->dtype->size == types[i].size && !t->dtype->has_base);
        ck_assert(t->numel == 12 && t->storage_nbytes == 12 * types[i].size);
    }
    const struct pickle_tensor *view = need_tensor(root, "view");
    ck_assert(view->off == 4 && view->stride[0] == 4 && view->stride[1] == 2);
    ck_assert(view->numel == 4 && !view->is_contiguous && view->storage_nbytes == 24);
    ck_assert_str_eq(view->key, need_tensor(root, "uint16")->key);
    pickle_free(p);
}
END_TEST

/* ('storage', torch.FloatStorage, '0', 'cpu', 6) */
#define TEXT(length, text) "X" length "\0\0\0" text
#define STORAGE                                                                                    \
    "(" TEXT("\x07", "storage") "ctorch\nFloatStorage\n" TEXT("\x01", "0")                         \
        TEXT("\x03", "cpu") "K\x06tQ"
#define HOOKS       "ccollections\nOrderedDict\n)R"
#define REBUILD     "ctorch._utils\n_rebuild_tensor_v2\n("
#define VIEW(where) REBUILD STORAGE where "\x89" HOOKS "tR"

START_TEST(views_lie_in_their_storage)
{
    struct pickle *p = PARSE(VIEW("K\x00K\x02K\x03\x86K\x03K\x01\x86"));
    ck_assert(pickle_root(p)->tensor->is_contiguous && pickle_root(p)->tensor->numel == 6);
    pickle_free(p);
    p = PARSE(VIEW("K\x00K\x03K\x02\x86K\x01K\x03\x86")); /* transposed */
    ck_assert(!pickle_root(p)->tensor->is_contiguous);
    pickle_free(p);
    p = PARSE(VIEW("K\x05M\x00\x10K\x01\x86K\x00K\x09\x86")); /* expanded */
    ck_assert(pickle_root(p)->tensor->numel == 4096 && !pickle_root(p)->tensor->is_contiguous);
    pickle_free(p);
    p = PARSE(VIEW("K\x05))")); /* a scalar */
    ck_assert(pickle_root(p)->tensor->numel == 1 && pickle_root(p)->tensor->ndim == 0);
    pickle_free(p);
    p = PARSE(VIEW("K\x63K\x00K\x09\x86K\x09K\x01\x86")); /* nothing, wherever it begins */
    ck_assert(pickle_root(p)->tensor->numel == 0 && pickle_root(p)->tensor->is_contiguous);
    pickle_free(p);
    REFUSE(VIEW("K\x01K\x02K\x03\x86K\x03K\x01\x86") ".", CZ_CORRUPT,
           "reaches element 6 of storage 0, which has 6");
    REFUSE(VIEW("K\x06))") ".", CZ_CORRUPT, "reaches element 6");
    REFUSE(VIEW("K\x00K\x02\x85K\x06\x85") ".", CZ_CORRUPT, "reaches element 6");
    REFUSE(VIEW("J\xff\xff\xff\xff))") ".", CZ_CORRUPT, "offset");
    REFUSE(VIEW("K\x00J\xff\xff\xff\xff\x85K\x01\x85") ".", CZ_CORRUPT, "impossible shape");
    REFUSE(VIEW("K\x00K\x02\x85J\xff\xff\xff\xff\x85") ".", CZ_CORRUPT, "impossible strides");
    REFUSE(VIEW("K\x00K\x02\x85)") ".", CZ_CORRUPT, "impossible strides");
    REFUSE(VIEW("K\x00NN") ".", CZ_CORRUPT, "impossible shape");
    /* 2^40 · 2^40 elements, of stride 0 */
#define LARGE "\x8a\x06\0\0\0\0\0\x01"
    REFUSE(VIEW("K\x00" LARGE LARGE "\x86K\0K\0\x86") ".", CZ_CORRUPT, "larger than any memory");
    REFUSE(VIEW("K\x00" LARGE "K\x02\x86" LARGE "K\x01\x86") ".", CZ_CORRUPT, "larger than any");
    REFUSE(VIEW("K\x00(K\1K\1K\1K\1K\1K\1K\1K\1K\1K\1K\1K\1K\1K\1K\1K\1K\1t)") ".", CZ_UNSUPPORTED,
           "more than 16 dimensions");
}
END_TEST

START_TEST(storages_and_functions_are_checked)
{
    REFUSE("(" TEXT("\x07", "storage") "ctorch\nFatStorage\n" TEXT("\x01", "0")
               TEXT("\x03", "cpu") "K\x06tQ.",
           CZ_UNSUPPORTED, "unknown type torch.FatStorage");
    REFUSE("(" TEXT("\x07", "storage") "cevil\nFloatStorage\n" TEXT("\x01", "0")
               TEXT("\x03", "cpu") "K\x06tQ.",
           CZ_UNSUPPORTED, "unknown type evil.FloatStorage");
    REFUSE("(" TEXT("\x07", "storage") "ctorch\nFloatStorage\n" TEXT("\x01", "0")
               TEXT("\x03", "cpu") "J\xff\xff\xff\xfftQ.",
           CZ_CORRUPT, "impossible length");
    REFUSE("(" TEXT("\x07", "storage") "ctorch\nFloatStorage\n" TEXT("\x01", "0")
               TEXT("\x03", "cpu") "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7ftQ.",
           CZ_CORRUPT, "impossible length");
    REFUSE("K\x01Q.", CZ_CORRUPT, "persistent id");
    REFUSE("(" TEXT("\x06", "module") "NNNNtQ.", CZ_CORRUPT, "persistent id");
    REFUSE(REBUILD "NK\x00))\x89" HOOKS "tR.", CZ_CORRUPT, "without a storage");
    REFUSE(REBUILD "tR.", CZ_CORRUPT, "_rebuild_tensor_v2 has 0 arguments");
    REFUSE("ctorch._utils\n_rebuild_sparse_tensor\n)R.", CZ_UNSUPPORTED, "_rebuild_sparse_tensor");
    REFUSE("ctorch._utils\n_rebuild_qtensor\n)R.", CZ_UNSUPPORTED, "_rebuild_qtensor");
    REFUSE("ctorch._utils\n_rebuild_parameter\nN\x88N\x87R.", CZ_CORRUPT, "rebuilt from None");
    REFUSE("ctorch._tensor\n_rebuild_from_type_v2\n)R.", CZ_CORRUPT, "other arguments");
}
END_TEST

/* ---- objects -----------------------------------------------------------------------------------
 */

START_TEST(unknown_classes_are_inert)
{
    struct pickle *p = PARSE("cposix\nsystem\n" TEXT("\x04", "true") "\x85R");
    is_class(pickle_root(p), PICKLE_OBJECT, "posix", "system");
    is_string(pickle_root(p)->more->args->items[0], "true");
    ck_assert(!pickle_root(p)->boolean);
    pickle_free(p);

    p = PARSE("ca\nB\n)\x81(K\x01K\x02"
              "eK\x03K\x04s}K\x05K\x06sb");
    const struct pickle_node *root = pickle_root(p);
    is_class(root, PICKLE_OBJECT, "a", "B");
    ck_assert(root->boolean && root->more->args->n == 0 && root->n == 2 && root->n_pairs == 1);
    is_int(root->items[1], 2);
    is_int(root->pairs[0].value, 4);
    is_int(root->more->state->pairs[0].value, 6);
    pickle_free(p);

    p = PARSE("ca\nB\n)RK\x01\x85R"); /* what a call gave is called */
    is_class(pickle_root(p), PICKLE_OBJECT, "", "");
    is_class(pickle_root(p)->more->args->items[0], PICKLE_OBJECT, "a", "B");
    is_int(pickle_root(p)->more->args->items[1]->items[0], 1);
    pickle_free(p);

    p = PARSE(TEXT("\x01", "a") TEXT("\x01", "B") "\x93)}\x92"); /* STACK_GLOBAL, NEWOBJ_EX */
    is_class(pickle_root(p), PICKLE_OBJECT, "copyreg", "__newobj_ex__");
    is_class(pickle_root(p)->more->args->items[0], PICKLE_GLOBAL, "a", "B");
    pickle_free(p);
    REFUSE("K\x01)R.", CZ_CORRUPT, "an int is called like a function");
    REFUSE("ca\nB\nK\x01R.", CZ_CORRUPT, "not a tuple");
    REFUSE("c\nB\n.", CZ_CORRUPT, "name of a class");
    REFUSE("]}b.", CZ_CORRUPT, "a list is given attributes");
    REFUSE("\x82\x01.", CZ_UNSUPPORTED, "extension code");
}
END_TEST

START_TEST(enums_and_attributes)
{
    struct pickle *p = PARSE("cdeepspeed.runtime.zero.config\nZeroStageEnum\nK\x02\x85R");
    int64_t stage;
    ck_assert(pickle_to_int(pickle_root(p), &stage) && stage == 2);
    pickle_free(p);
    p = PARSE("ca\nB\n)\x81N}" TEXT("\x01", "x") "K\x07s\x86"
                                                 "b"); /* slots */
    is_int(pickle_attr(pickle_root(p), "x"), 7);
    ck_assert_ptr_null(pickle_attr(pickle_root(p), "y"));
    ck_assert_ptr_null(pickle_attr(NULL, "x"));
    pickle_free(p);
}
END_TEST

START_TEST(deepspeed_state_is_read)
{
    struct pickle *p = parse_golden("optim_s2_fp16");
    const struct pickle_node *optim = need(pickle_root(p), "optimizer_state_dict");
    int64_t integer;
    double real;
    bool dynamic = false;
    ck_assert(pickle_to_int(need(optim, "zero_stage"), &integer) && integer == 2);
    const struct pickle_node *scaler = need(optim, "loss_scaler");
    is_class(scaler, PICKLE_OBJECT, "deepspeed.runtime.fp16.loss_scaler", "DynamicLossScaler");
    ck_assert(pickle_to_double(pickle_attr(scaler, "cur_scale"), &real) && real > 0);
    ck_assert(pickle_to_bool(pickle_attr(scaler, "dynamic"), &dynamic) && dynamic);
    is_class(pickle_attr(scaler, "dtype"), PICKLE_DTYPE, "torch", "float16");
    const struct pickle_node *maps = need(optim, "param_slice_mappings");
    ck_assert_uint_ge(maps->n, 1);
    const struct pickle_node *first = maps->items[0]->pairs[0].value;
    is_class(first, PICKLE_OBJECT, "deepspeed.utils.tensor_fragment", "fragment_address");
    ck_assert(pickle_to_int(pickle_attr(first, "numel"), &integer) && integer > 0);
    pickle_free(p);

    p = parse_golden("optim_s3_bf16");
    optim = need(pickle_root(p), "optimizer_state_dict");
    const struct pickle_node *flat = need(optim, "fp32_flat_groups")->items[0];
    ck_assert_int_eq(flat->kind, PICKLE_TENSOR);
    ck_assert_ptr_nonnull(pickle_to_string(pickle_get(flat->more->state, "ds_id")));
    pickle_free(p);

    p = parse_golden("model_s2_fp16");
    const struct pickle_node *module = need(pickle_root(p), "module");
    is_class(module, PICKLE_DICT, "collections", "OrderedDict");
    ck_assert(pickle_is(pickle_get(module->more->state, "_metadata"), PICKLE_DICT));
    pickle_free(p);
}
END_TEST

TEST_MAIN("formats/pickle_torch", numpy_scalars_are_numbers, containers_keep_their_class,
          odd_texts_and_numbers, batches_of_1000_join, parameters_and_attributes,
          types_without_a_storage_class, views_lie_in_their_storage,
          storages_and_functions_are_checked, unknown_classes_are_inert, enums_and_attributes,
          deepspeed_state_is_read)
