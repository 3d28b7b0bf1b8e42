/* Reading what describes tensors: JSON, headers of safetensors, pickles. Everything is made here,
 * of the size that a model of N tensors has, and read from memory (safetensors: from a file in
 * DIR).
 *
 *   bench_read DIR [--tensors N]
 *
 * Prints the best of seven runs in processor time, and the most memory that the process had beyond
 * what it had before the first run. */
#include "formats/file_io.h"
#include "formats/json/json.h"
#include "formats/pickle/pickle.h"
#include "formats/safetensors/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#define N_RUNS 7

struct input {
    const char *path;
    char *bytes;
    size_t n;
};

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double peak_mib(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_maxrss / 1024;
}

static cz_status measure(const char *what, cz_status (*read)(const struct input *in),
                         const struct input *in)
{
    double best = 1e9, before = peak_mib();
    for (int i = 0; i < N_RUNS; i++) {
        double since = cpu_seconds();
        TRY(read(in));
        double took = cpu_seconds() - since;
        if (took < best) best = took;
    }
    printf("%-12s %6.1f MB in %6.1f ms: %4.0f MB/s, at most %5.1f MiB\n", what, (double)in->n / 1e6,
           1e3 * best, (double)in->n / 1e6 / best, peak_mib() - before);
    return CZ_OK;
}

static cz_status read_json(const struct input *in)
{
    struct json_doc *doc;
    TRY(json_parse(in->bytes, in->n, "header", JSON_STRICT, &doc));
    json_free(doc);
    return CZ_OK;
}

static cz_status read_safetensors(const struct input *in)
{
    struct safetensors *st;
    TRY(safetensors_open(in->path, &st));
    safetensors_close(st);
    return CZ_OK;
}

static cz_status read_pickle(const struct input *in)
{
    struct pickle *p;
    TRY(pickle_parse(in->bytes, in->n, "data.pkl", &p));
    pickle_free(p);
    return CZ_OK;
}

static void tensor_name(int i, char name[64])
{
    snprintf(name, 64, "model.layers.%d.self_attn.q_proj.weight", i);
}

static cz_status make_header(int n, struct input *out)
{
    char name[64];
    out->bytes = malloc((size_t)n * 160 + 16);
    if (!out->bytes) return err_set(CZ_NOMEM, 0, "no memory");
    size_t at = 0;
    for (int i = 0; i < n; i++) {
        tensor_name(i, name);
        at += (size_t)sprintf(out->bytes + at,
                              "%s\"%s\":{\"dtype\":\"BF16\",\"shape\":[2,2],"
                              "\"data_offsets\":[%d,%d]}",
                              i ? "," : "{", name, 8 * i, 8 * i + 8);
    }
    out->n = at + (size_t)sprintf(out->bytes + at, "}");
    return CZ_OK;
}

static cz_status make_file(int n, const struct input *header, const char *path)
{
    const size_t n_data = 8 * (size_t)n, total = 8 + header->n + n_data;
    char *file = calloc(1, total);
    if (!file) return err_set(CZ_NOMEM, 0, "no memory");
    for (size_t i = 0; i < 8; i++) file[i] = (char)(header->n >> 8 * i);
    memcpy(file + 8, header->bytes, header->n);
    cz_status st = file_save(path, file, total);
    free(file);
    return st;
}

/* A state dict as torch.save writes it, and a list of as many numbers. */
static cz_status make_pickle(int n, struct input *out)
{
    static const int64_t shape[] = {2, 2};
    char name[64];
    unsigned char *bytes;
    struct pickle_writer *w = pickle_writer_create();
    if (!w) return err_set(CZ_NOMEM, 0, "no memory");
    pickle_ordered_dict_begin(w);
    for (int i = 0; i < n; i++) {
        const struct pickle_tensor_desc t = {.dtype = DTYPE_BF16,
                                             .storage_idx = (size_t)i,
                                             .storage_numel = 4,
                                             .ndim = 2,
                                             .shape = shape};
        tensor_name(i, name);
        pickle_put_string(w, name);
        pickle_put_tensor(w, &t);
    }
    pickle_dict_end(w);
    cz_status st = pickle_writer_take(w, &bytes, &out->n);
    pickle_writer_destroy(w);
    out->bytes = (char *)bytes;
    return st;
}

static cz_status run(const char *dir, int n)
{
    struct input header = {0}, pickle = {0};
    char *path = file_join(dir, "bench_read.safetensors");
    cz_status st = path ? make_header(n, &header) : err_set(CZ_NOMEM, 0, "no memory");
    if (st == CZ_OK) st = make_file(n, &header, path);
    header.path = path;
    if (st == CZ_OK) st = measure("json", read_json, &header);
    if (st == CZ_OK) st = measure("safetensors", read_safetensors, &header);
    if (st == CZ_OK) st = make_pickle(n, &pickle);
    if (st == CZ_OK) st = measure("pickle", read_pickle, &pickle);
    if (path) remove(path);
    free(path);
    free(header.bytes);
    free(pickle.bytes);
    return st;
}

int main(int argc, char **argv)
{
    int n = argc == 4 && strcmp(argv[2], "--tensors") == 0 ? atoi(argv[3]) : 60000;
    if ((argc != 2 && argc != 4) || n < 1 || n > 10000000) {
        fprintf(stderr, "usage: bench_read DIR [--tensors N]\n");
        return 2;
    }
    if (run(argv[1], n) == CZ_OK) return 0;
    fprintf(stderr, "bench_read: %s\n", cz_last_error());
    return 1;
}
