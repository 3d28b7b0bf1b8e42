/* A program of your own over several ranks: each takes its share of a text file's rows, and rank 0
 * reports.
 *
 *   over_ranks CONFIG TEXT [STEPS]                          one rank
 *   czero launch -n 4 -- ./over_ranks CONFIG TEXT [STEPS]   four ranks of this host
 *   mpirun -n 4 ./over_ranks CONFIG TEXT [STEPS]            the same over MPI
 *
 * What ZeRO stage the ranks use is the config's business. */
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

#define SEQ_LEN 32

struct run {
    struct cz_world *world;
    struct cz_model *model; /* NULL once the engine owns it */
    struct cz_engine *engine;
    struct cz_data_loader *data;
};

static cz_status run_open(struct run *r, const char *config, const char *text)
{
    r->model = cz_model_open("gpt2-tiny");
    if (!r->model) return cz_last_status();
    CHECK(cz_model_init_from(r->model, NULL, 42)); /* the same weights on every rank */
    CHECK(cz_model_set_shape(r->model, SEQ_LEN));
    const struct cz_engine_options options = {
        .size = sizeof options, .config_path = config, .world = r->world, .seed = 42};
    r->engine = engine_initialize_ex(&options, r->model);
    if (!r->engine) return cz_last_status();
    r->model = NULL;
    const struct cz_data_options data = {.size = sizeof data,
                                         .paths = &text,
                                         .n_paths = 1,
                                         .seq_len = SEQ_LEN,
                                         .micro_batch = engine_get_micro_batch(r->engine),
                                         .rank = engine_world_rank(r->world),
                                         .world_size = engine_world_size(r->world),
                                         .shuffle = true,
                                         .seed = 42};
    return cz_data_open(&data, &r->data);
}

static cz_status train(struct run *r, long n_steps)
{
    double first = 0;
    while (engine_get_global_steps(r->engine) < n_steps) {
        struct cz_batch batch = {.size = sizeof batch};
        CHECK(cz_data_next(r->data, &batch));
        CHECK(engine_forward(r->engine, &batch, NULL));
        CHECK(engine_backward(r->engine));
        CHECK(engine_step(r->engine));
        if (engine_get_global_steps(r->engine) == 1) first = engine_get_boundary_loss(r->engine);
    }
    if (engine_world_rank(r->world) == 0)
        printf("%d ranks: loss went from %.4f to %.4f\n", engine_world_size(r->world), first,
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
    if (argc < 3 || strcmp(argv[1], "--help") == 0) {
        printf("Usage: over_ranks CONFIG TEXT [STEPS]\n\n"
               "Train gpt2-tiny on the bytes of a text file, over the ranks it is started with.\n");
        return argc > 1 && strcmp(argv[1], "--help") == 0 ? 0 : 2;
    }
    long n_steps = argc > 3 ? strtol(argv[3], NULL, 10) : 100;
    struct run r = {0};
    cz_status st = engine_world_create(&r.world);
    if (st == CZ_OK) st = run_open(&r, argv[1], argv[2]);
    if (st == CZ_OK) st = train(&r, n_steps);
    if (st != CZ_OK) {
        fprintf(stderr, "over_ranks: %s\n", cz_last_error());
        engine_world_leave(r.world, cz_last_error()); /* the others shall not wait for this one */
    }
    run_close(&r);
    return st == CZ_OK ? 0 : 1;
}
