/* The device communicator: the same collectives on a GPU's memory, behind the same vtable.
 *
 * It wraps the host communicator and replaces it: callers use comm_reduce_begin(),
 * comm_all_gather(), comm_agree() … as on the CPU. Each pointer of a collective is the device's
 * memory or the host's, as it comes (the device says which), the same on all ranks:
 *
 *   src, dst device    gradients and parameters that live on the GPU
 *   src device, dst host   gradients that leave for the host (accumulating too)
 *   src host, dst device   parameters that live on the host, fetched into a window
 *   src, dst host      handed to the host communicator as they are: agreements, scalars. The caller
 *                      sees to it that work of a stream that writes src is done.
 *
 * (A NULL that is not used counts as what the other one is.)
 *
 * Order. Where one side is the device's, a collective is ordered with `stream`: it sees what work
 * queued there before begin has written (also into host memory, by copies), and overwrites only
 * after it. It runs on streams of its own beside what is queued later, until comm_wait(): work
 * queued on `stream` after that sees a destination on the device, and the host may read one of its
 * own. comm_wait() stops the host for a destination on the host, and with `staged`; comm_progress()
 * moves staged collectives on without waiting. Collectives are begun in the same order on all
 * ranks, and the host communicator is not used beside this one while any are under way.
 *
 * Kinds: `self` (one rank: kernels and copies alone; also pretends, over comm_self_create), `nccl`
 * (a GPU per rank; libnccl is opened when first asked for) and `staged` (any GPU for any rank:
 * pieces go through page-locked memory and the host communicator). Reductions are canonical
 * (comm.h) in all of them: the same bits as the CPU's. Nothing is allocated after create.
 *
 * Errors, besides those of comm.h: CZ_CUDA; a rank that dies while nccl moves data, and an error of
 * NCCL's, end what is under way: the device continues with unfinished data, and every later call
 * here, comm_agree() included, returns CZ_PEER or CZ_COMM with one sentence. A rank that leaves
 * (comm_leave) is heard of by those that wait for its data over NCCL once it has ended. */
#ifndef CZ_COMM_DEVICE_DEVICE_COMM_H
#define CZ_COMM_DEVICE_DEVICE_COMM_H

#include "comm/comm.h"
#include "device/device.h"

CZ_EXTERN_C_BEGIN

enum device_comm_kind {
    DEVICE_COMM_AUTO = 0, /* see comm_device_pick() */
    DEVICE_COMM_SELF,
    DEVICE_COMM_STAGED,
    DEVICE_COMM_NCCL,
};

#define DEVICE_COMM_ENV "CZERO_DEVICE_COMM" /* nccl or staged, in place of what is picked */

/* The device that a rank opens: ranks of a host are dealt out over its n_devices ≥ 1. */
int comm_device_ordinal(const struct comm *host, int n_devices);

/* The kind for these ranks: self for one (or one that pretends), staged when two share a GPU or one
 * has no usable libnccl (that is warned of), else nccl; CZERO_DEVICE_COMM decides instead (then a
 * missing libnccl is an error). The same on all ranks; collective.
 * Errors: CZ_INVALID (the environment names no kind), CZ_UNSUPPORTED, CZ_PEER, CZ_COMM, CZ_CUDA. */
cz_status comm_device_pick(struct comm *host, struct device *device, enum device_comm_kind *kind);

/* How many of this host's ranks have opened the same GPU, whatever each of them calls it: at least
 * 1. Collective. Errors: CZ_CUDA, CZ_PEER, CZ_COMM, CZ_NOMEM. */
cz_status comm_device_sharing(struct comm *host, struct device *device, int *n_ranks);

/* "self", "staged", "nccl". */
const char *comm_device_kind_name(enum device_comm_kind kind);

/* What a communicator of a kind (not AUTO) allocates on a rank for a plan: page-locked host memory
 * and device memory. NCCL's own buffers are not in it. piece_nbytes as below. */
struct device_comm_nbytes {
    size_t host, device;
};
struct device_comm_nbytes comm_device_staging_nbytes(enum device_comm_kind kind, int world_size,
                                                     size_t piece_nbytes);

struct device_comm_options {
    enum device_comm_kind kind;
    struct comm *host;         /* lent until comm_destroy */
    struct device *device;     /* lent until comm_destroy; kind "cuda" */
    struct dev_stream *stream; /* the one whose work collectives are ordered with */
    size_t piece_nbytes;       /* collectives are cut into pieces of this size; 0: 4 MiB */
};

/* Collective. comm_destroy() waits for what is under way, then leaves `host` as it was.
 * Errors: those of comm_device_pick(); CZ_NOMEM (page-locked or device memory), CZ_INVALID (self
 * for several ranks). A rank's failure is every rank's (CZ_PEER); when NCCL does not start on a
 * rank, that one leaves `host` (comm_leave) and must end for the others to hear of it. */
cz_status comm_device_create(const struct device_comm_options *options, struct comm **out);

CZ_EXTERN_C_END
#endif
