/* A .pt of more than 4 GiB that takes no space: its large storage is a hole but for its end.
 * Include it in the one .c file of a test program. */
#ifndef CZ_TESTS_PT_LARGE_H
#define CZ_TESTS_PT_LARGE_H

#include "formats/crc32.h"
#include "formats/pt/pt_impl.h"
#include "tests/support/check_main.h"
#include "tests/support/faults.h"

#define LARGE_NUMEL  ((((uint64_t)5 << 30) + 4096) / 4) /* fp32 */
#define LARGE_NBYTES (LARGE_NUMEL * 4)

static const float large_tail[3] = {1.5f, -2.0f, 3.25f}; /* the last elements of "large" */
static const float large_after[4] = {1, 2, 3, 4};        /* "after", wholly behind 4 GiB */

/* CRC of n zero bytes. */
static inline uint32_t crc_of_zeros(uint64_t n)
{
    if (n == 0) return 0;
    uint32_t half = crc_of_zeros(n / 2), both = crc32_concat(half, half, n / 2);
    return n % 2 == 0 ? both : crc32_update(both, "", 1);
}

static inline void large_put_tensor(struct pickle_writer *p, const char *name, size_t idx,
                                    int64_t numel)
{
    pickle_put_string(p, name);
    pickle_put_tensor(p, &(struct pickle_tensor_desc){.dtype = DTYPE_F32,
                                                      .storage_idx = idx,
                                                      .storage_numel = (uint64_t)numel,
                                                      .ndim = 1,
                                                      .shape = &numel});
}

static inline struct pt_written large_make(const char *path)
{
    static const uint64_t sizes[] = {LARGE_NBYTES, sizeof large_after, 0};
    struct pickle_writer *p = pickle_writer_create();
    struct pt_writer *w;
    struct pt_written written;
    unsigned char *bytes;
    size_t nbytes;
    pickle_dict_begin(p);
    large_put_tensor(p, "large", 0, (int64_t)LARGE_NUMEL);
    large_put_tensor(p, "after", 1, 4);
    large_put_tensor(p, "empty", 2, 0);
    pickle_dict_end(p);
    ck_ok(pickle_writer_take(p, &bytes, &nbytes));
    pickle_writer_destroy(p);
    faults_clear();
    faults_plan(FAULT_RESERVE, 0, EOPNOTSUPP); /* the disk may be smaller than the file */
    ck_ok(pt_create(&(struct pt_create_options){.path = path,
                                                .pickle = bytes,
                                                .pickle_nbytes = nbytes,
                                                .storage_nbytes = sizes,
                                                .n_storages = 3},
                    &w));
    uint64_t hole = LARGE_NBYTES - sizeof large_tail;
    ck_ok(pt_write_elsewhere(w, 0, 0, hole, crc_of_zeros(hole)));
    ck_ok(pt_write(w, 0, hole, sizeof large_tail, large_tail, NULL));
    ck_ok(pt_write(w, 1, 0, sizeof large_after, large_after, NULL));
    ck_ok(pt_finish(w, true, &written));
    pt_writer_destroy(w);
    free(bytes);
    return written;
}

#endif
