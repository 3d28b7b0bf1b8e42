/* Universal folders (spec/checkpoint-and-offload.md §4). */
#include "checkpoint/checkpoint_impl.h"

cz_status ckpt_universal_read(struct ckpt *ck, const struct ckpt_folder *folder, uint32_t file_idx)
{
    (void)folder;   /* comes with the next landing */
    (void)file_idx; /* the same */
    return err_set(CZ_UNSUPPORTED, 0, "%s: universal folders are not read yet", ck->tag_dir);
}
