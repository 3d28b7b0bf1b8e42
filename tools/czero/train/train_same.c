/* What a run has to have in common: its ranks with each other, and the run with the weights that it
 * begins with. Ranks must train the same rows. Hosts may have copies of their own: other rows,
 * another order, or classes whose numbers mean something else, which no later step would notice. */
#include "data/chat/chat_set.h"
#include "tools/czero/train/train.h"

#include "base/hash.h"
#include "base/log.h"
#include "base/printable.h"
#include "base/text/unread.h"
#include "formats/beneath.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One line each, the plainest differences first: the first line that differs is shown. */

static void put_classes(FILE *f, const struct cz_texts *t)
{
    const char *const *names = cz_texts_labels(t);
    printable_print(f, "%zu classes:", cz_texts_n_labels(t));
    for (size_t k = 0; k < cz_texts_n_labels(t); k++) printable_print(f, " %s", names[k]);
    printable_print(f, "\n");
}

static cz_status put_tokens(FILE *f, struct cz_data_loader *l, const char *role)
{
    uint64_t hash;
    if (!l) return CZ_OK;
    TRY(cz_data_hash(l, &hash));
    printable_print(f, "%" PRIu64 " tokens of %s\n", cz_data_n_tokens(l), role);
    printable_print(f, "tokens of %s with the hash %016" PRIx64 "\n", role, hash);
    return CZ_OK;
}

static void put_texts(FILE *f, const struct cz_texts *t, const char *role)
{
    if (!t) return;
    printable_print(f, "%zu rows of %s\n", cz_texts_count(t), role);
    put_classes(f, t);
    printable_print(f, "rows of %s with the hash %016" PRIx64 "\n", role, cz_texts_hash(t));
}

static void put_chats(FILE *f, const struct chat_set *s, const char *role)
{
    if (!s) return;
    printable_print(f, "%" PRIu64 " rows of %s, %zu of them trained\n", s->n_rows, role,
                    s->n_examples);
    printable_print(f, "rows of %s with the hash %016" PRIx64 "\n", role, chat_set_hash(s));
}

/* What the first ids stand for: a small vocabulary may know nothing of the probe. */
static cz_status hash_vocabulary(const struct cz_tokenizer *tok, uint64_t *hash)
{
    enum { IDS_MAX = 4096 };
    const int64_t n_all = cz_tokenizer_vocab_size(tok), n = n_all < IDS_MAX ? n_all : IDS_MAX;
    struct cz_tokenizer_decoder *decoder;
    const char *text;
    size_t nbytes;
    TRY(cz_tokenizer_decoder_create(tok, &decoder));
    for (int64_t id = 0; id < n; id++) {
        if (cz_tokenizer_decode(decoder, id, &text, &nbytes) == CZ_OK)
            *hash = hash_fixed(*hash, text, nbytes);
        else
            err_clear(); /* a hole */
    }
    cz_tokenizer_decoder_destroy(decoder);
    return CZ_OK;
}

/* Ids of a few scripts, so that vocabularies of one size differ. */
static cz_status probe_tokenizer(const struct cz_tokenizer *tok, uint64_t *hash)
{
    static const char probe[] = "The quick brown fox, 12 345.67 naïve Füße Жизнь 正体 नमस्ते \t{}";
    int32_t *ids;
    size_t n;
    TRY(cz_tokenizer_encode(tok, probe, sizeof probe - 1, &ids, &n));
    *hash = hash_fixed(HASH_FIXED_BEGIN, ids, n * sizeof *ids);
    free(ids);
    return hash_vocabulary(tok, hash);
}

static cz_status put_tokenizer(FILE *f, const struct cz_tokenizer *tok)
{
    uint64_t hash = 0;
    TRY(probe_tokenizer(tok, &hash));
    printable_print(f, "tokenizer %s of %" PRId64 " tokens with the hash %016" PRIx64 "\n",
                    cz_tokenizer_name(tok), cz_tokenizer_vocab_size(tok), hash);
    return CZ_OK;
}

static cz_status put_all(FILE *f, const struct run *r)
{
    printable_print(f, "task %s\n", r->task->name);
    put_texts(f, r->texts, "--data");
    put_chats(f, r->chats, "--data");
    TRY(put_tokens(f, r->data, "--data"));
    put_texts(f, r->eval_texts, "--eval-data");
    put_chats(f, r->eval_chats, "--eval-data");
    TRY(put_tokens(f, r->eval_data, "--eval-data"));
    put_texts(f, r->test_texts, "--test-data");
    put_chats(f, r->test_chats, "--test-data");
    TRY(put_tokens(f, r->test_data, "--test-data"));
    TRY(put_tokenizer(f, r->tokenizer));
    printable_print(f, "%" PRId64 " steps, evaluated every %" PRId64 " steps%s\n", r->steps,
                    r->eval_interval, r->eval_epochs ? " and after each epoch" : "");
    printable_print(f, "seed %" PRIu64 ", shuffling %s\n", r->seed, r->shuffle ? "on" : "off");
    return CZ_OK;
}

cz_status run_hash_data(struct run *r)
{
    if (r->texts) r->data_hash = cz_texts_hash(r->texts);
    if (r->chats) r->data_hash = chat_set_hash(r->chats);
    return r->data ? cz_data_hash(r->data, &r->data_hash) : CZ_OK;
}

cz_status run_check_same(const struct run *r)
{
    char *text = NULL;
    size_t nbytes;
    if (engine_world_size(r->world) == 1) return CZ_OK;
    FILE *f = open_memstream(&text, &nbytes);
    cz_status st = f ? put_all(f, r) : err_set(CZ_NOMEM, 0, "no memory to compare ranks");
    if (f && fclose(f) != 0 && st == CZ_OK) st = err_set(CZ_NOMEM, 0, "no memory to compare ranks");
    st = engine_world_agree(r->world, st, NULL);
    if (st == CZ_OK) st = engine_world_same(r->world, "data and options", text);
    free(text);
    return st;
}

/* ---- the weights that the run begins with ---------------------------------------------------- */

/* RUN/model of a folder of checkpoints, RUN/best and RUN/TAG included. */
static bool find_described(const char *dir, char path[PATH_MAX])
{
    static const char *const places[] = {SAVER_MODEL_FOLDER, "../" SAVER_MODEL_FOLDER};
    for (size_t i = 0; i < CZ_ARRAY_LEN(places); i++)
        if (snprintf(path, PATH_MAX, "%s/%s", dir, places[i]) < PATH_MAX &&
            beneath_is_there(path, "config.json"))
            return true;
    return false;
}

bool run_origin(const struct run *r, char path[PATH_MAX])
{
    const struct train_options *o = r->options;
    if (r->resume.dir) return find_described(r->resume.dir, path);
    if (o->init && strcmp(o->init, "random") == 0) return false;
    bool is_run = false;
    if (o->init && find_checkpoint(o->init, &is_run) != CZ_OK) err_clear(); /* open_model() says */
    if (is_run) return find_described(o->init, path);
    snprintf(path, PATH_MAX, "%s", o->init ? o->init : o->model);
    return beneath_is_there(path, "config.json");
}

/* No run continues with other classes or tokens; weights alone may begin another one. */
static cz_status say_differs(const struct run *r, const char *sentence)
{
    if (r->resume.dir || unread_is_strict()) return err_set(CZ_INVALID, 0, "%s", sentence);
    LOGV(LOG_WARN, SUB_MODEL, "%s", sentence);
    return CZ_OK;
}

/* A name that a config does not give, "LABEL_3", says nothing. */
static bool is_given(const char *name, size_t k)
{
    char usual[32];
    snprintf(usual, sizeof usual, "LABEL_%zu", k);
    return strcmp(name, usual) != 0;
}

/* Another number of classes has another head, which loading reports. */
static cz_status check_classes(const struct run *r, const char *origin)
{
    const struct cz_model_options options = {
        .size = sizeof options, .task = r->task->model_task, .config_only = true};
    const size_t n = r->texts ? cz_texts_n_labels(r->texts) : 0;
    struct cz_model *m = n > 0 ? cz_model_open_ex(origin, &options) : NULL;
    cz_status st = CZ_OK;
    err_clear(); /* what is wrong with it, opening the run's model says */
    for (size_t k = 0; m && (size_t)cz_model_n_classes(m) == n && k < n && st == CZ_OK; k++) {
        const char *theirs = cz_model_label_name(m, (int64_t)k),
                   *ours = cz_texts_labels(r->texts)[k];
        char sentence[PATH_MAX + 512];
        if (!is_given(theirs, k) || strcmp(theirs, ours) == 0) continue;
        snprintf(
            sentence, sizeof sentence,
            "%s: class %zu is \"%.64s\", but \"%.64s\" in --data: the head keeps what it learnt "
            "of the other classes",
            origin, k, theirs, ours);
        st = say_differs(r, sentence);
        break;
    }
    cz_model_destroy(m);
    return st;
}

static cz_status check_tokenizer(const struct run *r, const char *origin)
{
    struct cz_tokenizer *theirs;
    uint64_t hash = 0, other = 0;
    char sentence[PATH_MAX + 256];
    if (!cz_tokenizer_is_in(origin)) return CZ_OK;
    TRY(cz_tokenizer_open(origin, &theirs));
    cz_status st = probe_tokenizer(theirs, &other);
    if (st == CZ_OK) st = probe_tokenizer(r->tokenizer, &hash);
    cz_tokenizer_close(theirs);
    TRY(st);
    if (hash == other) return CZ_OK;
    snprintf(sentence, sizeof sentence,
             "%s: its weights were trained with another tokenizer than this run's (%s): use "
             "--tokenizer %s",
             origin, cz_tokenizer_name(r->tokenizer), origin);
    return say_differs(r, sentence);
}

cz_status run_check_origin(const struct run *r)
{
    char origin[PATH_MAX];
    if (!run_origin(r, origin)) return CZ_OK;
    /* of a folder with weights, reading it says so */
    if (r->resume.dir || r->init_from_checkpoint) TRY(check_classes(r, origin));
    return check_tokenizer(r, origin);
}
