/* Claim: communicators that get no memory say so, and leave none behind. */
#include "tests/support/no_memory.h"

#include "comm/comm.h"
#include "comm/shm/shm.h"

#ifndef NO_MEMORY_WORKS

int main(void)
{
    printf("skipped: the sanitizer has an allocator of its own\n");
    return TEST_SKIPPED;
}

#else

static cz_status pretended(const char *world_size)
{
    struct comm *comm;
    TRY(comm_self_create(1, atoi(world_size), &comm));
    cz_status st = comm_barrier(comm);
    comm_destroy(comm);
    return st;
}

static cz_status alone(const char *unused)
{
    struct comm *comm;
    int fd;
    (void)unused;
    TRY(comm_shm_segment_create(1, &fd));
    cz_status st = comm_shm_join(fd, 0, 1, 5, &comm);
    close(fd);
    if (st == CZ_OK) st = comm_barrier(comm);
    comm_destroy(comm);
    return st;
}

START_TEST(every_allocation_fails_once)
{
    no_memory_begin();
    no_memory_each("self", pretended, "3", 100);
    no_memory_each("shm", alone, NULL, 100);
}
END_TEST

TEST_MAIN("comm/no_memory", every_allocation_fails_once)

#endif
