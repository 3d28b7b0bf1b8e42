/* Promises: any config.json of a Hugging Face model describes one or is refused with a sentence;
 * its parameters have names and shapes whose product is their size; classes have names. The first
 * byte of the input chooses the task. */
#include "formats/json/json.h"
#include "tests/fuzz/fuzz.h"
#include <czero/model.h>

static void check_params(const struct cz_model *m)
{
    struct cz_param_info info = {.size = sizeof info};
    size_t n = cz_model_n_params(m);
    FUZZ_CHECK(n > 0 && cz_model_param(m, n, &info) == CZ_INVALID);
    for (size_t i = 0; i < n && i < 100; i++) {
        size_t numel = 1;
        FUZZ_CHECK(cz_model_param(m, i, &info) == CZ_OK && info.name && info.name[0]);
        FUZZ_CHECK(info.ndim >= 1 && info.ndim <= CZ_NDIM_MAX);
        for (int d = 0; d < info.ndim; d++) {
            FUZZ_CHECK(info.shape[d] > 0 && (size_t)info.shape[d] <= SIZE_MAX / 16 / numel);
            numel *= (size_t)info.shape[d];
        }
        FUZZ_CHECK(info.numel == numel);
    }
}

/* Models of up to 65536 layers are read; deep ones are only slow. */
static bool is_deep(const void *text, size_t nbytes)
{
    static const char *const keys[] = {"n_layer", "n_layers", "num_hidden_layers"};
    struct json_doc *doc;
    int64_t n;
    bool deep = false;
    if (json_parse(text, nbytes, "in", JSON_STRICT, &doc) != CZ_OK) return false;
    for (size_t i = 0; i < CZ_ARRAY_LEN(keys); i++) {
        const struct json_node *node = json_get(json_root(doc), keys[i]);
        deep |= node && json_as_int(node, &n) == CZ_OK && n > 64;
    }
    json_free(doc);
    return deep;
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t nbytes)
{
    if (nbytes == 0 || is_deep(data + 1, nbytes - 1)) return 0;
    const struct cz_model_options options = {
        .size = sizeof options, .task = (enum cz_task)(data[0] % 4), .config_only = true};
    fuzz_folder_put(fuzz_folder(), "config.json", data + 1, nbytes - 1);
    struct cz_model *m = cz_model_from_hf_ex(fuzz_folder_path(), &options);
    if (!m) {
        if (cz_last_status() != CZ_NOTFOUND) fuzz_refused(cz_last_status()); /* a key is missing */
        return 0;
    }
    FUZZ_CHECK(cz_model_vocab_size(m) > 0 && cz_model_hidden_size(m) > 0 && cz_model_t_max(m) > 0);
    check_params(m);
    int64_t n_classes = cz_model_n_classes(m);
    FUZZ_CHECK((n_classes > 1) == (cz_model_labels(m) == CZ_LABELS_CLASS));
    for (int64_t k = 0; k < n_classes && k < 64; k++) FUZZ_CHECK(cz_model_label_name(m, k));
    FUZZ_CHECK(!cz_model_label_name(m, n_classes) && !cz_model_label_name(m, -1));
    cz_model_destroy(m);
    return 0;
}
