/* Names of swap files: czero-swap-rank<R>-<host><number>, eight hex digits each. */
#include "base/clock.h"
#include "base/host/process_mark.h"
#include "offload/swap/swap_impl.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/vfs.h>
#include <unistd.h>

#define PREFIX   "czero-swap-rank"
#define N_DIGITS 16

void swap_name_make(char out[SWAP_NAME_NBYTES], int rank)
{
    uint32_t n;
    if (getrandom(&n, sizeof n, GRND_NONBLOCK) != (ssize_t)sizeof n) /* early after a boot */
        n = (uint32_t)((uint64_t)clock_now_ns() * 0x9e3779b97f4a7c15u >> 32) ^ (uint32_t)getpid();
    snprintf(out, SWAP_NAME_NBYTES, PREFIX "%d-%08" PRIx32 "%08" PRIx32, rank, process_mark_host(),
             n);
}

bool swap_name_is_ours(const char *name)
{
    if (strncmp(name, PREFIX, strlen(PREFIX)) != 0) return false;
    const char *at = name + strlen(PREFIX);
    if (!isdigit((unsigned char)*at)) return false;
    while (isdigit((unsigned char)*at)) at++;
    return *at == '-' && strspn(at + 1, "0123456789abcdef") == N_DIGITS && !at[1 + N_DIGITS];
}

bool swap_name_is_of_this_host(const char *name)
{
    char host[9];
    snprintf(host, sizeof host, "%08" PRIx32, process_mark_host());
    return swap_name_is_ours(name) && !strncmp(strrchr(name, '-') + 1, host, 8);
}

/* By the file system's kind: local ones keep locks for all processes of this host, network ones may
 * keep them to each host, or not at all. */
bool swap_folder_is_local(int dir_fd)
{
    static const uint32_t local[] = {
        0xef53,     /* ext2, ext3, ext4 */
        0x58465342, /* xfs */
        0x9123683e, /* btrfs */
        0xca451a4e, /* bcachefs */
        0xf2f52010, /* f2fs */
        0x2fc12fc1, /* zfs */
        0x01021994, /* tmpfs */
        0x858458f6, /* ramfs */
        0x794c7630, /* overlay */
        0x4d44,     /* vfat */
        0x2011bab0, /* exfat */
    };
    struct statfs fs;
    if (fstatfs(dir_fd, &fs) != 0) return false;
    for (size_t i = 0; i < CZ_ARRAY_LEN(local); i++)
        if ((uint32_t)fs.f_type == local[i]) return true;
    return false;
}
