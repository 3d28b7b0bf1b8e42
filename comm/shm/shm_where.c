/* For launchers: where a rank of a segment stood last. */
#include "comm/shm/shm_segment_impl.h"

#include <stdio.h>

cz_status comm_shm_where(int fd, int world_size, int rank, char *text, size_t text_nbytes)
{
    struct shm_segment seg;
    text[0] = '\0';
    if (rank < 0 || rank >= world_size)
        return err_set(CZ_INVALID, 0, "there is no rank %d in a world of %d", rank, world_size);
    TRY(shm_segment_map(fd, world_size, &seg));
    struct shm_where where = shm_where_is(&seg.ranks[rank], "");
    snprintf(text, text_nbytes, "%s", where.text);
    shm_segment_unmap(&seg);
    return CZ_OK;
}
