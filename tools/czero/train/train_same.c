/* Ranks must train the same rows. Hosts may have copies of their own: other rows, another order, or
 * classes whose numbers mean something else, which no later step would notice. */
#include "data/chat/chat_set.h"
#include "tools/czero/train/train.h"

#include "base/hash.h"
#include "base/printable.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

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

/* Ids of a few scripts, so that vocabularies of one size differ. */
static cz_status put_tokenizer(FILE *f, const struct cz_tokenizer *tok)
{
    static const char probe[] = "The quick brown fox, 12 345.67 naïve Füße Жизнь 正体 नमस्ते \t{}";
    int32_t *ids;
    size_t n;
    TRY(cz_tokenizer_encode(tok, probe, sizeof probe - 1, &ids, &n));
    printable_print(f, "tokenizer %s of %" PRId64 " tokens with the hash %016" PRIx64 "\n",
                    cz_tokenizer_name(tok), cz_tokenizer_vocab_size(tok),
                    hash_fixed(HASH_FIXED_BEGIN, ids, n * sizeof *ids));
    free(ids);
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
