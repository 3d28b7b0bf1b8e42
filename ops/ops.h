/* ops: the numeric kernels of one device, chosen once.
 *
 * Life cycle: ops_create() picks, for every op, the best row that the CPU (after CZERO_ISA) or the
 * device supports; layers and the optimizer sweep call ops_<op>(), each declared in its op's header
 * (ops/rope/rope.h: ops_rope()); ops_destroy().
 * Every call is asynchronous on its stream (on the host it is done when it returns), validates its
 * arguments before any work (CZ_INVALID), and allocates nothing after its first use of a shape. A
 * device may lack an op: calling it is CZ_UNSUPPORTED, with the op's name; ops_require() asks
 * before. Matmul primitives are created when a shape is first seen: ops_matmul_workspace() at plan
 * time does that for shapes known then. Threads: one caller at a time per struct ops; kernels use
 * the OpenMP pool inside.
 *
 * Workspace: ops_<op>_workspace() is what a call with these shapes needs, in bytes (pointers in the
 * args are ignored). The same workspace may serve successive calls; ask for each and take the
 * maximum. */
#ifndef CZ_OPS_OPS_H
#define CZ_OPS_OPS_H

#include "device/device.h"

CZ_EXTERN_C_BEGIN

struct ops; /* ops/table_impl.h */

/* Matrix products of a GPU so far. What the library refuses of them is right all the same, and
 * slow; a warning names each shape. */
struct ops_products {
    uint64_t n;
    uint64_t n_split; /* whose bias, activation or bias gradient it refused: passes of their own */
    uint64_t n_slow;  /* which it refused altogether: a product of ours, many times slower */
};

/* Choose rows for `device` (borrowed until ops_destroy). Errors: CZ_INVALID (CZERO_ISA names
 * nothing this CPU has), CZ_NOMEM. */
cz_status ops_create(struct device *device, struct ops **out);
void ops_destroy(struct ops *ops); /* accepts NULL */

struct device *ops_device(const struct ops *ops);
const char *ops_isa(const struct ops *ops); /* the rows chosen: cpu_isa_name() or "cuda" */
struct ops_products ops_products(const struct ops *ops); /* 0 on the host */

/* Whether fp32 products of a GPU are made in TF32; at first CZERO_TF32=1 decides. */
void ops_allow_tf32(struct ops *ops, bool allow);

/* Device memory, aligned to 256 bytes, through which a GPU's products pass operands that are not
 * aligned to 16 bytes, if they have space there: equal products are then computed alike, to the
 * bit, wherever their operands are. Calls of one stream at a time use it. It stays the caller's; 0
 * bytes: none any more. The host needs none. */
void ops_lend_aligned(struct ops *ops, void *memory, size_t nbytes);

/* Whether products add a residual (matmul_args.residual). */
bool ops_adds_residual(const struct ops *ops);

/* CZ_OK when the device has the op of this name ("rope": the function is ops_rope()). Errors:
 * CZ_UNSUPPORTED (it has none), CZ_INVALID (no op has this name). */
cz_status ops_require(const struct ops *ops, const char *name);

CZ_EXTERN_C_END
#endif
