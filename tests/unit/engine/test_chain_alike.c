/* Claims: layers of one kind, alone or a few in turn, are asked for their sizes once; a layer that
 * differs in class, hyper-parameters or branches is asked for its own. */
#include "engine/chain/chain.h"
#include "tests/support/toy_layers.h"

/* A layer's number, then its width. */
struct wide_hp {
    int number;
    int width;
};

static int n_asked;

static cz_status wide_size(const void *hp_, const struct batch_shape *s, struct layer_sizes *out)
{
    const struct wide_hp *hp = hp_;
    n_asked++;
    out->out_nbytes = (size_t)(s->B * s->T) * C * sizeof(float);
    out->saved_nbytes = 64 * (size_t)hp->width;
    for (size_t i = 0; i < s->n_branches; i++)
        out->workspace_nbytes += 64 * (size_t)s->branches[i].rank;
    return CZ_OK;
}

enum { N_MAX = 24 };

struct asked {
    struct wide_hp hp[N_MAX];
    struct model_layer layers[N_MAX + 2];
    struct layer_class wide[2];
    size_t n, idx;
};

static void begin(struct asked *a, const int *widths, size_t n, unsigned flags)
{
    memset(a, 0, sizeof *a);
    a->n = n + 2;
    for (int k = 0; k < 2; k++) {
        a->wide[k] = scale_class;
        a->wide[k].size = wide_size;
        a->wide[k].flags = flags;
    }
    a->layers[0] = (struct model_layer){.cls = &rows_class, .param_idx = &a->idx, .n_params = 1};
    for (size_t i = 0; i < n; i++) {
        a->hp[i] = (struct wide_hp){.number = (int)i, .width = widths[i]};
        a->layers[i + 1] =
            (struct model_layer){.cls = &a->wide[0], .hp = &a->hp[i], .hp_nbytes = sizeof a->hp[i]};
    }
    a->layers[n + 1] = a->layers[0];
    a->layers[n + 1].cls = &dot_class;
}

/* Sizes are each layer's own, even where another was asked. */
static void check(struct asked *a, int want)
{
    struct chain *chain;
    const struct chain_options options = {.B = 1, .T = 2, .training = true};
    n_asked = 0;
    ck_ok(chain_create_layers(a->layers, a->n, 1, &options, &chain));
    ck_assert_int_eq(n_asked, want);
    for (size_t i = 1; i + 1 < a->n; i++) {
        const struct layer_sizes s = chain_layer_sizes(chain, i);
        size_t workspace = 0;
        for (size_t k = 0; k < a->layers[i].n_branches; k++)
            workspace += 64 * (size_t)a->layers[i].branches[k].rank;
        ck_assert_uint_eq(s.saved_nbytes, 64 * (size_t)a->hp[i - 1].width);
        ck_assert_uint_eq(s.workspace_nbytes, workspace);
    }
    chain_destroy(chain);
}

START_TEST(a_layer_that_repeats_is_asked_once)
{
    struct asked a;
    begin(&a, (const int[]){3, 3, 3, 3, 3, 3}, 6, LAYER_INDEXED);
    check(&a, 1);
    begin(&a, (const int[]){3, 3, 3, 5, 3, 3, 3, 5}, 8, LAYER_INDEXED);
    check(&a, 2);
    begin(&a, (const int[]){3, 5, 7, 9}, 4, LAYER_INDEXED);
    check(&a, 4);
    /* Seven others between: found. Eight: too far away. */
    begin(&a, (const int[]){1, 2, 3, 4, 5, 6, 7, 8, 1}, 9, LAYER_INDEXED);
    check(&a, 8);
    begin(&a, (const int[]){1, 2, 3, 4, 5, 6, 7, 8, 9, 1}, 10, LAYER_INDEXED);
    check(&a, 10);
}
END_TEST

/* Without the flag the number may mean anything. */
START_TEST(a_number_counts_unless_the_class_says_otherwise)
{
    struct asked a;
    begin(&a, (const int[]){3, 3, 3}, 3, 0);
    check(&a, 3);
    for (size_t i = 0; i < 3; i++) a.hp[i].number = 9;
    check(&a, 1);
}
END_TEST

START_TEST(another_class_branch_or_length_is_another_layer)
{
    struct asked a;
    const int widths[] = {3, 3, 3, 3};
    struct layer_branch branches[3];
    memset(branches, 0, sizeof branches);
    for (int i = 0; i < 3; i++) branches[i].rank = i < 2 ? 8 : 16;
    begin(&a, widths, 4, LAYER_INDEXED);
    a.layers[2].cls = &a.wide[1];
    check(&a, 2);
    begin(&a, widths, 4, LAYER_INDEXED);
    for (int i = 0; i < 3; i++) {
        a.layers[i + 1].branches = &branches[i];
        a.layers[i + 1].n_branches = 1;
    }
    check(&a, 3); /* 8, 8, 16, none */
    begin(&a, widths, 4, LAYER_INDEXED);
    a.layers[1].branches = a.layers[2].branches = branches;
    a.layers[1].n_branches = 1;
    a.layers[2].n_branches = 2;
    check(&a, 3);
    begin(&a, widths, 2, LAYER_INDEXED);
    a.layers[2].hp_nbytes = sizeof(int); /* nothing is known of the rest */
    check(&a, 2);
    a.layers[1].hp_nbytes = sizeof(int);
    check(&a, 2);
    a.layers[2].hp = a.layers[1].hp;
    check(&a, 1);
}
END_TEST

TEST_MAIN("engine/chain_alike", a_layer_that_repeats_is_asked_once,
          a_number_counts_unless_the_class_says_otherwise,
          another_class_branch_or_length_is_another_layer)
