/* Promises: any adapter_config.json with any header of tensors is an adapter of the model or is
 * refused with a sentence; every value of an adapter can be read, in one piece and from its middle;
 * a model that refused an adapter has its parameters as before.
 *
 * Input: a byte that chooses the model and whether it is trained; adapter_config.json; behind a
 * byte of 0 the JSON header of adapter_model.safetensors; behind another one its data, which are
 * filled up with zeros to what the header asks for. */
#include "formats/json/json.h"
#include "model/model.h"
#include "tests/fuzz/fuzz.h"

#include <czero/model.h>

enum { DATA_NBYTES_MAX = 1 << 16 };

static const char gpt2[] =
    "{\"model_type\": \"gpt2\", \"architectures\": [\"GPT2LMHeadModel\"], \"n_layer\": 2, "
    "\"n_embd\": 4, \"n_head\": 2, \"n_positions\": 8, \"vocab_size\": 8}";
static const char bert[] =
    "{\"model_type\": \"bert\", \"architectures\": [\"BertForSequenceClassification\"], "
    "\"hidden_size\": 4, \"intermediate_size\": 8, \"num_attention_heads\": 2, "
    "\"num_hidden_layers\": 1, \"vocab_size\": 8, \"max_position_embeddings\": 8, "
    "\"id2label\": {\"0\": \"a\", \"1\": \"b\"}}";

/* Where the data that the header lists end. */
static size_t data_end(const char *header, size_t n)
{
    struct json_doc *doc;
    int64_t end, most = 0;
    if (json_parse(header, n, "header", JSON_STRICT, &doc) != CZ_OK) return 0;
    const struct json_node *root = json_root(doc);
    for (size_t i = 0; json_type(root) == JSON_OBJECT && i < json_count(root); i++) {
        const struct json_node *tensor = json_child(root, i), *offsets;
        if (json_type(tensor) != JSON_OBJECT) continue;
        offsets = json_get(tensor, "data_offsets");
        if (!offsets || json_type(offsets) != JSON_ARRAY || json_count(offsets) != 2) continue;
        if (json_as_int(json_child(offsets, 1), &end) == CZ_OK && end > most) most = end;
    }
    json_free(doc);
    return most < DATA_NBYTES_MAX ? (size_t)most : DATA_NBYTES_MAX;
}

/* Length, header, data. */
static void put_tensors(const unsigned char *header, size_t nbytes)
{
    const unsigned char *end = nbytes > 0 ? memchr(header, 0, nbytes) : NULL;
    const size_t n = end ? (size_t)(end - header) : nbytes, n_given = end ? nbytes - n - 1 : 0;
    const size_t n_asked = data_end((const char *)header, n);
    const size_t n_data = n_given > n_asked ? n_given : n_asked;
    char *file = calloc(1, 8 + n + n_data);
    FUZZ_CHECK(file);
    const uint64_t length = n;
    memcpy(file, &length, sizeof length);
    if (n > 0) memcpy(file + 8, header, n);
    if (n_given > 0) memcpy(file + 8 + n, end + 1, n_given);
    fuzz_folder_put(fuzz_folder(), "adapter_model.safetensors", file, 8 + n + n_data);
    free(file);
}

static void check_values(struct cz_model *m)
{
    float values[4], last;
    for (size_t i = 0; i < model_params(m)->n_params; i++) {
        const struct param_info *p = &model_params(m)->params[i];
        FUZZ_CHECK(p->name && p->name[0] && p->numel > 0);
        const size_t n = p->numel < 4 ? p->numel : 4;
        FUZZ_CHECK(model_read_weights(m, i, 0, n, values) == CZ_OK);
        FUZZ_CHECK(model_read_weights(m, i, p->numel - 1, 1, &last) == CZ_OK);
        FUZZ_CHECK(p->numel > 4 || memcmp(&last, &values[n - 1], sizeof last) == 0);
    }
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t nbytes)
{
    const struct cz_model_options options = {.size = sizeof options, .config_only = true};
    if (nbytes == 0) return 0;
    const char *config = data[0] & 1 ? bert : gpt2;
    const bool trained = data[0] & 2;
    const unsigned char *end = memchr(data + 1, 0, nbytes - 1);
    const size_t n = end ? (size_t)(end - data) - 1 : nbytes - 1;
    const int folder = fuzz_folder();
    fuzz_folder_put(folder, "config.json", config, strlen(config));
    fuzz_folder_put(folder, "adapter_config.json", data + 1, n);
    put_tensors(end ? end + 1 : data, end ? nbytes - n - 2 : 0);
    struct cz_model *m = cz_model_from_hf_ex(fuzz_folder_path(), &options);
    FUZZ_CHECK(m);
    const size_t n_params = model_params(m)->n_params;
    const cz_status st = cz_model_add_adapter(m, fuzz_folder_path(), trained);
    if (st == CZ_OK) {
        FUZZ_CHECK(cz_model_has_adapter(m) && model_params(m)->n_params >= n_params + 2);
        check_values(m);
    } else if (st != CZ_NOTFOUND) { /* a key is missing */
        fuzz_refused(st);
    }
    cz_model_destroy(m);
    return 0;
}
