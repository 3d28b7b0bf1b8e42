/* Claims: opening a checkpoint takes time in proportion to its size, however its names, ties,
 * shapes and ids refer to each other. Each hostile file is compared with a benign one of the same
 * size. */
#include "checkpoint/read/checkpoint.h"
#include "checkpoint/store/manifest.h"
#include "tests/support/checkpoint/sparse_ckpt.h"
#include "tests/support/cost.h"

static size_t n_weights = 16000;

enum attack { BUFFERS, CHAIN, SHAPES, STATES };

static void put_one(struct pickle_writer *w, size_t k)
{
    static const int64_t one = 1;
    const struct pickle_tensor_desc t = {
        .dtype = DTYPE_F32, .storage_numel = n_weights, .off = k, .ndim = 1, .shape = &one};
    pickle_put_tensor(w, &t);
}

static void put_names(struct pickle_writer *w, const char *key, size_t n)
{
    char name[64];
    pickle_put_string(w, key);
    pickle_list_begin(w);
    for (size_t k = 0; k < n; k++) {
        snprintf(name, sizeof name, "buffers.%zu", k);
        pickle_put_string(w, name);
    }
    pickle_list_end(w);
}

/* Ties: in a chain each weight is an alias of the one before; else all are the first one's. */
static void put_ties(struct pickle_writer *w, bool is_chain)
{
    char owner[64];
    pickle_put_string(w, "shared_params");
    pickle_dict_begin(w);
    for (size_t k = n_weights; k-- > 1;) {
        snprintf(owner, sizeof owner, "layers.%zu.weight", is_chain ? k - 1 : 0);
        pickle_put_string(w, sparse_name(k));
        pickle_put_string(w, owner);
    }
    pickle_dict_end(w);
}

/* 3,000 dictionaries of one shape each. Aliases of a name that only the last of them has; else of
 * one that the module has. */
static void put_shapes(struct pickle_writer *w, bool in_last_only)
{
    char name[64];
    const int64_t one = 1;
    pickle_put_string(w, "param_shapes");
    pickle_list_begin(w);
    for (size_t d = 0; d < 3000; d++) {
        snprintf(name, sizeof name, "shapes.%zu", d);
        pickle_ordered_dict_begin(w);
        pickle_put_string(w, name);
        pickle_put_size(w, &one, 1);
        pickle_dict_end(w);
    }
    pickle_list_end(w);
    pickle_put_string(w, "shared_params");
    pickle_dict_begin(w);
    for (size_t k = 0; k < n_weights; k++) {
        snprintf(name, sizeof name, "aliases.%zu", k);
        pickle_put_string(w, name);
        pickle_put_string(w, in_last_only ? "shapes.2999" : "layers.2999.weight");
    }
    pickle_dict_end(w);
}

/* States by id, in falling order or in torch's. */
static void put_optimizer(struct pickle_writer *w, bool is_falling)
{
    pickle_put_string(w, "optimizer");
    pickle_dict_begin(w);
    pickle_put_string(w, "state");
    pickle_dict_begin(w);
    for (size_t i = 0; i < n_weights; i++) {
        const size_t k = is_falling ? n_weights - 1 - i : i;
        pickle_put_int(w, (int64_t)k);
        pickle_dict_begin(w);
        pickle_put_string(w, "exp_avg");
        put_one(w, k);
        pickle_dict_end(w);
    }
    pickle_dict_end(w);
    pickle_put_string(w, "param_groups");
    pickle_list_begin(w);
    pickle_dict_begin(w);
    pickle_put_string(w, "params");
    pickle_list_begin(w);
    for (size_t k = 0; k < n_weights; k++) pickle_put_int(w, (int64_t)k);
    pickle_list_end(w);
    pickle_dict_end(w);
    pickle_list_end(w);
    pickle_dict_end(w);
}

/* mp_rank_00_model_states.pt of n_weights; the part that the attack is about is hostile or not. */
static const char *make_folder(enum attack attack, bool is_hostile)
{
    struct sparse_zip zip;
    const char *dir = test_tmp_make();
    struct pickle_writer *w = pickle_writer_create();
    pickle_dict_begin(w);
    pickle_put_string(w, "module");
    pickle_ordered_dict_begin(w);
    for (size_t k = 0; k < n_weights; k++) {
        pickle_put_string(w, sparse_name(k));
        put_one(w, k);
    }
    pickle_dict_end(w);
    if (attack == BUFFERS) put_names(w, is_hostile ? "buffer_names" : "other_names", 2 * n_weights);
    if (attack != BUFFERS || !is_hostile) put_names(w, "buffer_names", 0);
    if (attack == CHAIN) put_ties(w, is_hostile);
    if (attack == SHAPES) put_shapes(w, is_hostile);
    if (attack == STATES) put_optimizer(w, is_hostile);
    if (attack != STATES) sparse_key_none(w, "optimizer");
    sparse_key_int(w, "dp_world_size", 1);
    pickle_put_string(w, "ds_version");
    pickle_put_string(w, "0.19.8");
    pickle_dict_end(w);
    sparse_start(&zip, dir, "mp_rank_00_model_states.pt", w);
    sparse_record(&zip, "data/0", NULL, n_weights * sizeof(float));
    sparse_finish(&zip);
    return dir;
}

static void open_folder(const void *user)
{
    const struct ckpt_open_options options = {.dir = user};
    struct ckpt *ck;
    if (ckpt_open(&options, &ck) == CZ_OK) ckpt_close(ck);
}

static struct cost cost_of_folder(enum attack attack, bool is_hostile, cz_status *st)
{
    const char *dir = make_folder(attack, is_hostile);
    const struct ckpt_open_options options = {.dir = dir};
    struct ckpt *ck;
    struct cost cost = cost_of(open_folder, dir);
    *st = cost.seconds < COST_SECONDS_MAX / 2 ? ckpt_open(&options, &ck) : CZ_BUSY;
    if (*st == CZ_OK) ckpt_close(ck);
    test_tmp_remove(dir);
    return cost;
}

static void compare(enum attack attack, const char *what)
{
    cz_status hostile_st, benign_st;
    struct cost hostile = cost_of_folder(attack, true, &hostile_st);
    struct cost benign = cost_of_folder(attack, false, &benign_st);
    cost_compare(what, hostile, benign, 5);
    ck_assert_int_eq(hostile_st, benign_st); /* both were read as far */
}

START_TEST(names_of_buffers)
{
    compare(BUFFERS, "checkpoint: buffer_names");
}
END_TEST

START_TEST(ties_in_a_chain)
{
    n_weights = 50000;
    compare(CHAIN, "checkpoint: a chain of ties");
}
END_TEST

START_TEST(aliases_of_a_name_in_the_last_dictionary)
{
    compare(SHAPES, "checkpoint: aliases and shapes");
}
END_TEST

START_TEST(states_in_falling_order)
{
    compare(STATES, "checkpoint: states in falling order");
}
END_TEST

/* ---- manifests ------------------------------------------------------------------------------- */

struct text {
    char *text;
    size_t nbytes;
};

static void read_manifest(const void *user)
{
    const struct text *t = user;
    struct manifest m;
    if (manifest_from_json(t->text, t->nbytes, "f", &m) != CZ_OK) _exit(1);
    manifest_free(&m);
}

/* n files without tensors, or one file with n. */
static struct text make_manifest(int n, bool of_files)
{
    struct text t;
    struct manifest m;
    struct manifest_file *file;
    char name[64];
    manifest_init(&m);
    m.world_size = 1;
    for (int i = 0; i < (of_files ? n : 1); i++) {
        snprintf(name, sizeof name, "zero_pp_rank_%07d_mp_rank_00_optim_states.pt", i);
        ck_ok(manifest_add_file(&m, name, (uint64_t)n, 0, &file));
    }
    for (int i = 0; i < n && !of_files; i++) {
        snprintf(name, sizeof name, "layers.%d.weight", i);
        ck_ok(manifest_add_tensor(file, name, "master", (uint64_t)i, 1, 0));
    }
    ck_ok(manifest_to_json(&m, &t.text, &t.nbytes));
    manifest_free(&m);
    return t;
}

START_TEST(many_files)
{
    struct text hostile = make_manifest(20000, true), benign = make_manifest(20000, false);
    cost_compare("manifest: 20,000 files", cost_of(read_manifest, &hostile),
                 cost_of(read_manifest, &benign), 4);
    free(hostile.text);
    free(benign.text);
}
END_TEST

TEST_MAIN("checkpoint/ckpt_bounds", names_of_buffers, ties_in_a_chain,
          aliases_of_a_name_in_the_last_dictionary, states_in_falling_order, many_files)
