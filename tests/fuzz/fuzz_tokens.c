/* Promises: any file of tokens opens or is refused with a sentence; its runs are inside their files
 * and make one stream; both ends of the stream can be read, in one piece or in two, to ids of the
 * vocabulary or a refusal.
 *
 * Input: a byte that chooses the form: llm.c's .bin, Megatron's pair (two bytes of the index's
 * length, the index, the tokens), plain tokens of 16 or 32 bits, rows of JSON, text; the last two
 * may be compressed. */
#include "data/corpus/store_impl.h"
#include "tests/fuzz/fuzz.h"

#define N_ENDS     64
#define VOCAB_SIZE 50257

static void check_runs(const struct token_store *s)
{
    uint64_t n = 0;
    for (size_t r = 0; r < s->n_runs; r++) {
        const struct token_run *run = &s->runs[r];
        const struct token_file *file = &s->files[run->file_idx];
        uint64_t width = token_kind_size(run->kind);
        FUZZ_CHECK(run->file_idx < s->n_files && run->first == n && run->n_tokens > 0);
        FUZZ_CHECK(run->byte_off <= file->nbytes);
        FUZZ_CHECK(run->n_tokens <= (file->nbytes - run->byte_off) / width);
        n += run->n_tokens;
    }
    FUZZ_CHECK(n == s->n_tokens && n > 0 && store_id_max(s) > 0);
}

static void check_piece(struct token_store *s, uint64_t first, size_t n)
{
    int32_t ids[N_ENDS], halves[N_ENDS];
    cz_status st = store_read(s, first, n, VOCAB_SIZE, ids);
    if (st != CZ_OK) {
        fuzz_refused(st);
        return;
    }
    FUZZ_CHECK(store_read(s, first, n / 2, VOCAB_SIZE, halves) == CZ_OK);
    FUZZ_CHECK(store_read(s, first + n / 2, n - n / 2, VOCAB_SIZE, halves + n / 2) == CZ_OK);
    FUZZ_CHECK(memcmp(ids, halves, n * sizeof *ids) == 0);
    for (size_t i = 0; i < n; i++) FUZZ_CHECK(ids[i] >= 0 && ids[i] < VOCAB_SIZE);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t nbytes)
{
    static const char *const forms[] = {"%s/llmc.bin",  "%s/pair",       "u16:%s/plain",
                                        "u32:%s/plain", "%s/rows.jsonl", "%s/text.txt"};
    static const char *const names[] = {"llmc.bin", "pair.bin",   "plain",
                                        "plain",    "rows.jsonl", "text.txt"};
    if (nbytes < 3) return 0;
    int form = data[0] % (int)CZ_ARRAY_LEN(forms);
    size_t n_idx = form == 1 ? data[1] | (size_t)data[2] << 8 : 0, off = form == 1 ? 3 : 1;
    if (n_idx > nbytes - off) n_idx = nbytes - off;
    if (form == 1) fuzz_folder_put(fuzz_folder(), "pair.idx", data + off, n_idx);
    off += n_idx;
    fuzz_folder_put(fuzz_folder(), names[form], data + off, nbytes - off);

    char path[128];
    struct token_file files[2];
    struct token_store s;
    store_init(&s, files);
    snprintf(path, sizeof path, forms[form], fuzz_folder_path());
    cz_status st = store_add(&s, &(struct data_path){.name = path, .shown = path}, NULL);
    if (st == CZ_OK) {
        size_t n = s.n_tokens < N_ENDS ? (size_t)s.n_tokens : N_ENDS;
        check_runs(&s);
        check_piece(&s, 0, n);
        check_piece(&s, s.n_tokens - n, n);
    } else {
        fuzz_refused(st);
    }
    store_free(&s);
    return 0;
}
