/* A program that may be killed at any moment and started again with the same command: it continues
 * from its newest checkpoint, at the row of the data where it was, and ends with the same weights.
 *
 *   restartable CONFIG TEXT CHECKPOINTS [STEPS]
 *   czero launch -n 2 -- ./restartable CONFIG TEXT CHECKPOINTS [STEPS]
 *
 * Between two starts the number of ranks and the config's ZeRO stage may change. The checkpoints
 * are DeepSpeed's: its own scripts read them, and so does zero_to_fp32. */
#include <czero/czero.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Pass the first error on; its sentence stays in cz_last_error(). */
#define CHECK(call)                                                                                \
    do {                                                                                           \
        cz_status status_ = (call);                                                                \
        if (status_ != CZ_OK) return status_;                                                      \
    } while (0)

#define SEQ_LEN    32
#define SAVE_EVERY 5

struct run {
    const char *config, *text, *checkpoints;
    struct cz_world *world;
    struct cz_model *model; /* NULL once the engine owns it */
    struct cz_engine *engine;
    struct cz_data_loader *data;
};

static cz_status run_open(struct run *r)
{
    r->model = cz_model_open("gpt2-tiny");
    if (!r->model) return cz_last_status();
    CHECK(cz_model_init_from(r->model, NULL, 42));
    CHECK(cz_model_set_shape(r->model, SEQ_LEN));
    const struct cz_engine_options options = {
        .size = sizeof options, .config_path = r->config, .world = r->world, .seed = 42};
    r->engine = engine_initialize_ex(&options, r->model);
    if (!r->engine) return cz_last_status();
    r->model = NULL;
    const struct cz_data_options data = {.size = sizeof data,
                                         .paths = &r->text,
                                         .n_paths = 1,
                                         .seq_len = SEQ_LEN,
                                         .micro_batch = engine_get_micro_batch(r->engine),
                                         .rank = engine_world_rank(r->world),
                                         .world_size = engine_world_size(r->world),
                                         .shuffle = true,
                                         .seed = 42};
    return cz_data_open(&data, &r->data);
}

/* The first start finds nothing to continue from; anything else that is wrong is an error. */
static cz_status resume(struct run *r)
{
    struct cz_load_result result = {.size = sizeof result};
    cz_status st = engine_load_checkpoint_ex(r->engine, r->checkpoints, NULL, &result);
    if (st == CZ_NOTFOUND) {
        cz_clear_error();
        return CZ_OK;
    }
    CHECK(st);
    st = result.has_cursor ? cz_data_seek(r->data, &result.cursor) : CZ_OK;
    cz_load_result_free(&result);
    return st;
}

/* In the background: training continues while the files are written. */
static cz_status save(struct run *r)
{
    struct cz_data_cursor cursor;
    cz_data_tell(r->data, &cursor);
    const struct cz_save_options options = {.size = sizeof options, .cursor = &cursor, .keep = 2};
    return engine_save_begin(r->engine, r->checkpoints, &options);
}

static cz_status train(struct run *r, long n_steps)
{
    int64_t first = engine_get_global_steps(r->engine);
    while (engine_get_global_steps(r->engine) < n_steps) {
        struct cz_batch batch = {.size = sizeof batch};
        CHECK(cz_data_next(r->data, &batch));
        CHECK(engine_forward(r->engine, &batch, NULL));
        CHECK(engine_backward(r->engine));
        CHECK(engine_step(r->engine));
        if (!engine_was_step_applied(r->engine)) continue;
        if (engine_get_global_steps(r->engine) % SAVE_EVERY == 0) CHECK(save(r));
    }
    CHECK(engine_save_wait(r->engine)); /* the last one is on disk, or we know why not */
    if (engine_world_rank(r->world) == 0)
        printf("steps %lld to %ld, loss %.6f\n", (long long)first + 1, n_steps,
               engine_get_boundary_loss(r->engine));
    return CZ_OK;
}

static void run_close(struct run *r)
{
    cz_data_close(r->data);
    engine_destroy(r->engine);
    cz_model_destroy(r->model);
    engine_world_destroy(r->world);
}

int main(int argc, char **argv)
{
    if (argc < 4 || strcmp(argv[1], "--help") == 0) {
        printf("Usage: restartable CONFIG TEXT CHECKPOINTS [STEPS]\n\n"
               "Train gpt2-tiny on the bytes of a text file; resumes after it was killed.\n");
        return argc > 1 && strcmp(argv[1], "--help") == 0 ? 0 : 2;
    }
    long n_steps = argc > 4 ? strtol(argv[4], NULL, 10) : 20;
    struct run r = {.config = argv[1], .text = argv[2], .checkpoints = argv[3]};
    cz_status st = engine_world_create(&r.world);
    if (st == CZ_OK) st = run_open(&r);
    if (st == CZ_OK) st = resume(&r);
    if (st == CZ_OK) st = train(&r, n_steps);
    if (st != CZ_OK) {
        fprintf(stderr, "restartable: %s\n", cz_last_error());
        engine_world_leave(r.world, cz_last_error()); /* the others shall not wait for this one */
    }
    run_close(&r);
    return st == CZ_OK ? 0 : 1;
}
