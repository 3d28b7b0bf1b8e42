/* zero_to_fp32: consolidate a DeepSpeed checkpoint. The reader of checkpoints is not part of this
 * version; the tool says so instead of doing something else. */
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        printf("zero_to_fp32 (czero) %s\n", CZERO_VERSION);
        return 0;
    }
    if (argc == 2 && strcmp(argv[1], "--help") == 0) {
        printf("Usage: zero_to_fp32 CHECKPOINT_DIR OUTPUT_DIR\n\n"
               "Not yet: this version of czero reads no checkpoints.\n");
        return 0;
    }
    fprintf(stderr, "zero_to_fp32: not yet: this version of czero reads no checkpoints\n");
    return 2;
}
