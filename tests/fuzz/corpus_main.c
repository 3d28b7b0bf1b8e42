/* A fuzz target without a fuzzer: gives it every file of a folder, whole, cut off, and with bits
 * flipped, in the same way each time. This is how the corpora run as a normal test.
 *   fuzz.TARGET FOLDER|FILE... */
#include "base/rng.h"
#include "formats/file_io.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/guarded_memory.h"

#include <dirent.h>
#include <sys/stat.h>

#define FILE_NBYTES_MAX ((size_t)16 << 20)
#define N_CUTS          16
#define N_FLIPS         24

static size_t n_runs;

/* In a block of its own, as a fuzzer gives it: a read behind it is seen. */
static void run(const char *bytes, size_t nbytes)
{
    unsigned char *input = malloc(nbytes);
    if (!input && nbytes > 0) abort();
    if (nbytes > 0) memcpy(input, bytes, nbytes);
    LLVMFuzzerTestOneInput(input, nbytes);
    free(input);
    n_runs++;
}

static void run_damaged(char *bytes, size_t nbytes)
{
    for (size_t i = 0; i < N_CUTS; i++) run(bytes, nbytes * i / N_CUTS);
    for (size_t i = 0; i < N_FLIPS && nbytes > 0; i++) {
        uint64_t random = rng_mix64(nbytes + (i << 32));
        size_t at = (size_t)((random >> 3) % nbytes);
        char flip = (char)(1 << random % 8);
        bytes[at] ^= flip;
        run(bytes, nbytes);
        bytes[at] ^= flip;
    }
}

static int run_file(const char *path)
{
    char *bytes;
    size_t nbytes;
    if (file_load(path, FILE_NBYTES_MAX, &bytes, &nbytes) != CZ_OK) {
        fprintf(stderr, "%s\n", cz_last_error());
        return 1;
    }
    run(bytes, nbytes);
    run_damaged(bytes, nbytes);
    free(bytes);
    return 0;
}

static int run_folder(const char *path)
{
    struct dirent **entries;
    int n = scandir(path, &entries, NULL, alphasort), n_failed = n < 0;
    for (int i = 0; i < n; i++) {
        char *file = file_join(path, entries[i]->d_name);
        if (entries[i]->d_name[0] != '.') n_failed += run_file(file);
        free(file);
        free(entries[i]);
    }
    if (n >= 0) free(entries);
    return n_failed;
}

int main(int argc, char **argv)
{
    int n_failed = 0;
    guarded_begin();
    for (int i = 1; i < argc; i++) {
        struct stat st;
        bool is_folder = stat(argv[i], &st) == 0 && S_ISDIR(st.st_mode);
        n_failed += is_folder ? run_folder(argv[i]) : run_file(argv[i]);
    }
    printf("%zu inputs\n", n_runs);
    return n_failed > 0 || n_runs == 0;
}
