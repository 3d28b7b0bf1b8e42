/* A kernel of any PTX file on the simulated device, with all that the interpreter watches for.
 *
 *     ptx_file FILE.ptx ENTRY GRID BLOCK SHARED ARGUMENT...
 *
 * GRID and BLOCK: X, X,Y or X,Y,Z; SHARED: bytes of dynamic shared memory. Arguments, in order:
 *     i32:N i64:N f32:X       a number
 *     in:FILE                 a pointer to device memory with the file's bytes
 *     io:FILE                 the same; after the run the file gets what is there
 *     out:FILE:NBYTES         a pointer to so many unwritten bytes; likewise
 *     bytes:FILE[,AT=NAME]... a struct; at byte AT comes a pointer to a buffer that `let` made
 *     let:NAME=in:… io:… out:…  no argument: a buffer for such pointers
 * Exit 1: the run was ended by a sentence on stderr, or a file cannot be used; 2: usage. */
#include "tests/support/cuda_sim/ptx/ptx_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ARGUMENTS_MAX 64

struct buffer {
    char *name, *file; /* file NULL: stays as it is */
    void *at;          /* device memory */
    size_t nbytes;
};

struct run {
    struct buffer buffers[ARGUMENTS_MAX];
    struct ptx_argument arguments[ARGUMENTS_MAX];
    int n_buffers, n_arguments;
};

static void fail(int code, const char *what, const char *of)
{
    fprintf(stderr, "ptx_file: %s: %s\n", of, what);
    exit(code);
}

static void check(cudaError_t error, const char *of)
{
    if (error != cudaSuccess) fail(1, cudaGetErrorString(error), of);
}

/* A file's bytes, with a 0 behind them. */
static char *slurp(const char *path, size_t *nbytes)
{
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END) != 0) fail(1, "cannot be read", path);
    *nbytes = (size_t)ftell(f);
    rewind(f);
    char *bytes = calloc(*nbytes + 1, 1);
    if (!bytes || fread(bytes, 1, *nbytes, f) != *nbytes) fail(1, "cannot be read", path);
    fclose(f);
    return bytes;
}

static void spill(const char *path, const void *bytes, size_t nbytes)
{
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(bytes, 1, nbytes, f) != nbytes || fclose(f) != 0)
        fail(1, "cannot be written", path);
}

/* ---- arguments ---- */

/* "kind:rest" → rest, or NULL. */
static char *after(char *text, const char *kind)
{
    const size_t n = strlen(kind);
    return strncmp(text, kind, n) == 0 && text[n] == ':' ? text + n + 1 : NULL;
}

/* in:…, io:…, out:…; NULL: none of these. */
static struct buffer *buffer_of(struct run *r, char *text)
{
    char *in = after(text, "in"), *io = after(text, "io"), *out = after(text, "out");
    if (!in && !io && !out) return NULL;
    struct buffer *b = &r->buffers[r->n_buffers++];
    if (out) {
        char *size = strrchr(out, ':');
        if (!size) fail(2, "out:FILE:NBYTES", text);
        *size = 0;
        b->file = out;
        b->nbytes = strtoull(size + 1, NULL, 10);
        check(cudaMalloc(&b->at, b->nbytes ? b->nbytes : 1), text);
        return b;
    }
    b->file = io;
    char *bytes = slurp(in ? in : io, &b->nbytes);
    check(cudaMalloc(&b->at, b->nbytes ? b->nbytes : 1), text);
    check(cudaMemcpy(b->at, bytes, b->nbytes, cudaMemcpyHostToDevice), text);
    free(bytes);
    return b;
}

static void let(struct run *r, char *text)
{
    char *value = strchr(text, '=');
    if (!value) fail(2, "let:NAME=BUFFER", text);
    *value = 0;
    struct buffer *b = buffer_of(r, value + 1);
    if (!b) fail(2, "not a buffer", value + 1);
    b->name = text;
}

static const struct buffer *find(const struct run *r, const char *name)
{
    for (int i = 0; i < r->n_buffers; i++)
        if (r->buffers[i].name && strcmp(r->buffers[i].name, name) == 0) return &r->buffers[i];
    fail(2, "no such buffer", name);
    return NULL;
}

/* FILE,AT=NAME,AT=NAME… */
static struct ptx_argument structure(const struct run *r, char *text)
{
    struct ptx_argument a;
    char *bytes = slurp(strtok(text, ","), &a.nbytes);
    for (char *patch; (patch = strtok(NULL, ","));) {
        char *name;
        const size_t at = strtoull(patch, &name, 10);
        if (*name != '=' || at + sizeof(void *) > a.nbytes) fail(2, "not AT=NAME", patch);
        memcpy(bytes + at, &find(r, name + 1)->at, sizeof(void *));
    }
    a.value = bytes;
    return a;
}

/* A copy that outlives the call. */
static struct ptx_argument number(const void *value, size_t nbytes)
{
    void *copy = malloc(nbytes);
    if (!copy) fail(1, "no memory", "a number");
    memcpy(copy, value, nbytes);
    return (struct ptx_argument){copy, nbytes};
}

static void read_argument(struct run *r, char *text)
{
    struct ptx_argument *a = &r->arguments[r->n_arguments];
    char *rest;
    if ((rest = after(text, "let"))) {
        let(r, rest);
        return;
    }
    r->n_arguments++;
    if ((rest = after(text, "i32"))) {
        *a = number(&(int32_t){(int32_t)strtoll(rest, NULL, 0)}, 4);
    } else if ((rest = after(text, "i64"))) {
        *a = number(&(int64_t){strtoll(rest, NULL, 0)}, 8);
    } else if ((rest = after(text, "f32"))) {
        *a = number(&(float){strtof(rest, NULL)}, 4);
    } else if ((rest = after(text, "bytes"))) {
        *a = structure(r, rest);
    } else {
        const struct buffer *b = buffer_of(r, text);
        if (!b) fail(2, "not an argument", text);
        *a = number(&b->at, sizeof b->at);
    }
}

/* "X", "X,Y" or "X,Y,Z" */
static dim3 extent(const char *text)
{
    dim3 d = {1, 1, 1};
    if (sscanf(text, "%u,%u,%u", &d.x, &d.y, &d.z) < 1) fail(2, "not an extent", text);
    return d;
}

static void write_back(const struct buffer *b)
{
    void *bytes = malloc(b->nbytes ? b->nbytes : 1);
    if (!bytes) fail(1, "no memory", b->file);
    check(cudaMemcpy(bytes, b->at, b->nbytes, cudaMemcpyDeviceToHost), b->file);
    spill(b->file, bytes, b->nbytes);
    free(bytes);
}

int main(int argc, char **argv)
{
    static struct run r;
    static const char *text; /* lasts: the device keeps it */
    size_t n;
    if (argc < 6 || argc - 6 > ARGUMENTS_MAX)
        fail(2, "FILE.ptx ENTRY GRID BLOCK SHARED ARGUMENT...", "usage");
    text = slurp(argv[1], &n);
    check(cudaSetDevice(0), "device 0");
    for (int i = 6; i < argc; i++) read_argument(&r, argv[i]);
    check(ptx_launch_text(text, argv[2], extent(argv[3]), extent(argv[4]),
                          strtoull(argv[5], NULL, 10), NULL, r.arguments, r.n_arguments),
          argv[2]);
    check(cudaDeviceSynchronize(), argv[2]);
    for (int i = 0; i < r.n_buffers; i++)
        if (r.buffers[i].file) write_back(&r.buffers[i]);
    return 0;
}
