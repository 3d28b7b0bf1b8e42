/* In place of base/threads.c in clang's builds of the targets: they have no OpenMP. */
#include "base/threads.h"

int threads_count(void)
{
    return 1;
}
