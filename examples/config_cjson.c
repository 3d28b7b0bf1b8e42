/* A program that builds its config as a tree with cJSON and hands the text to the engine.
 *
 *   config_cjson [LR]
 *
 * Link it with cJSON as well: cc config_cjson.c $(pkg-config --cflags --libs czero libcjson) */
#include <czero/czero.h>

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* NULL: no memory. cJSON_free() releases the text. cJSON prints integers from 2^31 on as doubles,
 * of 15 digits: add longer ones with cJSON_AddRawToObject(). */
static char *config_text(double lr)
{
    cJSON *config = cJSON_CreateObject(), *optimizer, *params;
    char *text = NULL;
    if (cJSON_AddNumberToObject(config, "train_micro_batch_size_per_gpu", 2) &&
        (optimizer = cJSON_AddObjectToObject(config, "optimizer")) &&
        cJSON_AddStringToObject(optimizer, "type", "AdamW") &&
        (params = cJSON_AddObjectToObject(optimizer, "params")) &&
        cJSON_AddNumberToObject(params, "lr", lr))
        text = cJSON_PrintUnformatted(config);
    cJSON_Delete(config);
    return text;
}

/* Three steps over two rows of the program's own. */
static cz_status train(struct cz_engine *engine)
{
    static const int32_t ids[] = {1, 2, 3, 4, 1, 2, 3, 4}, labels[] = {2, 3, 4, 5, 2, 3, 4, 5};
    const struct cz_batch batch = {
        .size = sizeof batch, .B = 2, .T = 4, .ids = ids, .labels = labels};
    cz_status st = CZ_OK;
    for (int i = 0; i < 3 && st == CZ_OK; i++) {
        st = engine_forward(engine, &batch, NULL);
        if (st == CZ_OK) st = engine_backward(engine);
        if (st == CZ_OK) st = engine_step(engine);
    }
    return st;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--help") == 0)
        return puts("Usage: config_cjson [LR]\n\nTrain gpt2-tiny with a config of cJSON."), 0;
    char *config = config_text(argc > 1 ? strtod(argv[1], NULL) : 1e-3);
    struct cz_model *model = cz_model_open("gpt2-tiny");
    struct cz_engine *engine = NULL;
    const struct cz_engine_options options = {.size = sizeof options, .config_json = config};
    if (config && model && cz_model_init_from(model, NULL, 42) == CZ_OK &&
        cz_model_set_shape(model, 4) == CZ_OK)
        engine = engine_initialize_ex(&options, model);
    if (engine) model = NULL; /* the engine's */
    const bool trained = engine && train(engine) == CZ_OK;
    if (trained)
        printf("%s\nloss %.6f\n", config, engine_get_boundary_loss(engine));
    else
        fprintf(stderr, "config_cjson: %s\n", config ? cz_last_error() : "no memory");
    engine_destroy(engine);
    cz_model_destroy(model);
    cJSON_free(config);
    return trained ? 0 : 1;
}
