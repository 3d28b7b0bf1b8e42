/* A warp's access to memory: addresses of its lanes, checked, as places that the host can touch. */
#ifndef CZ_TESTS_PTX_ACCESS_H
#define CZ_TESTS_PTX_ACCESS_H

#include "ptx_run.h"

struct ptx_access {
    uint64_t address[PTX_WARP]; /* as the program sees it */
    char *at[PTX_WARP];         /* of the lanes in w.mask */
};

/* Lanes touch o.nbytes each at s[slot] + imm, in o.space. Fails on what is not there, not aligned,
 * never written, or a race. */
void ptx_access_lanes(ptx_warp &w, const ptx_op &o, int slot, ptx_touch touch, ptx_access *a);

/* The addresses alone. */
void ptx_addresses(ptx_warp &w, const ptx_op &o, int slot, uint64_t out[PTX_WARP]);

/* A store of bits that are in shared memory already, which the settings take for none. */
bool ptx_is_echo(ptx_warp &w, int lane, uint64_t at, const void *bits, uint32_t n);

/* A lane's n bytes of shared memory, or of global memory, checked likewise. */
char *ptx_shared_at(ptx_warp &w, int lane, uint64_t at, uint32_t n);
char *ptx_global_at(ptx_warp &w, int lane, uint64_t at, uint32_t n, ptx_touch touch);

/* ... of whatever a generic address means. */
char *ptx_generic_at(ptx_warp &w, int lane, uint64_t at, uint32_t n, ptx_touch touch);

#endif
