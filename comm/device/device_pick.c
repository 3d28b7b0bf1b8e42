/* Which device a rank opens, which kind of communicator the ranks get, and what memory that takes.
 * All ranks must choose the same kind, so they decide from gathered facts, never from their own
 * alone. */
#include "comm/device/device_pick_impl.h"

#include "base/hash.h"
#include "base/log.h"
#include "base/size.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- host and GPU of a rank
 * ------------------------------------------------------------------------- */

static uint64_t add_text(uint64_t h, const char *text)
{
    return hash_fixed(h, text, strlen(text));
}

/* Machines by their boot, and containers by their space of process numbers. */
static uint64_t hash_host(void)
{
    char text[128] = "";
    uint64_t h = HASH_FIXED_BEGIN;
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (f) {
        if (fgets(text, sizeof text, f)) h = add_text(h, text);
        fclose(f);
    }
    if (gethostname(text, sizeof text - 1) == 0) h = add_text(h, text);
    ssize_t n = readlink("/proc/self/ns/pid", text, sizeof text - 1);
    text[n > 0 ? n : 0] = '\0';
    return add_text(h, text);
}

/* A seat is what the ranks compare: same host and same PCI bus mean the same GPU, whatever
 * CUDA_VISIBLE_DEVICES calls it. */
struct device_seat device_seat_here(void)
{
    return (struct device_seat){.host = hash_host(), .pid = (int)getpid()};
}

int comm_device_ordinal(const struct comm *host, int n_devices)
{
    return n_devices > 0 ? host->rank_host % n_devices : 0;
}

/* ---- kinds ----------------------------------------------------------------------------------- */

const char *comm_device_kind_name(enum device_comm_kind kind)
{
    static const char *const names[] = {"auto", "self", "staged", "nccl"};
    return (size_t)kind < CZ_ARRAY_LEN(names) ? names[kind] : "?";
}

/* Sizes are compared besides the version, since the plug-in reads the library's structs. */
cz_status device_planes_find(const struct device_planes **out)
{
    void *symbol;
    *out = NULL;
    TRY(device_plugin_symbol(DEVICE_PLANES_SYMBOL, &symbol));
    const struct device_planes *planes = symbol;
    if (planes->version != DEVICE_PLANES_VERSION ||
        planes->args_nbytes != sizeof(struct plane_args) ||
        planes->comm_nbytes != sizeof(struct comm))
        return err_set(CZ_UNSUPPORTED, 0,
                       "device cuda: the plug-in's communicator belongs to another version of "
                       "czero");
    *out = planes;
    return CZ_OK;
}

/* For tests and for networks on which NCCL fails; "self" cannot be asked for. */
static cz_status asked_by_environment(int *kind)
{
    const char *text = getenv(DEVICE_COMM_ENV);
    *kind = DEVICE_COMM_AUTO;
    if (!text || !*text) return CZ_OK;
    for (int k = DEVICE_COMM_STAGED; k <= DEVICE_COMM_NCCL; k++)
        if (strcmp(text, comm_device_kind_name((enum device_comm_kind)k)) == 0) *kind = k;
    if (*kind != DEVICE_COMM_AUTO) return CZ_OK;
    return err_set(CZ_INVALID, 0, "%s is \"%s\": use nccl or staged", DEVICE_COMM_ENV, text);
}

/* All that a rank contributes to the decision, gathered before anything is decided. */
static cz_status take_seat(struct device *device, struct device_seat *seat)
{
    struct device_info info;
    const struct device_planes *planes;
    *seat = device_seat_here();
    TRY(asked_by_environment(&seat->asked));
    TRY(device->ops->info(device, &info));
    memcpy(seat->pci_bus_id, info.pci_bus_id, sizeof seat->pci_bus_id);
    TRY(device_planes_find(&planes));
    return CZ_OK;
}

static bool is_same_gpu(const struct device_seat *a, const struct device_seat *b)
{
    return a->host == b->host && memcmp(a->pci_bus_id, b->pci_bus_id, sizeof a->pci_bus_id) == 0;
}

static bool share_a_gpu(const struct device_seat *seats, int n)
{
    for (int a = 0; a < n; a++)
        for (int b = a + 1; b < n; b++)
            if (is_same_gpu(&seats[a], &seats[b])) return true;
    return false;
}

/* nccl where every rank can open it, staged otherwise. With nccl asked for, a rank without it is an
 * error on all ranks; by default it is a warning. */
static cz_status pick_nccl(struct comm *host, struct device_seat *seats,
                           enum device_comm_kind *kind)
{
    const struct device_planes *planes;
    struct device_seat *mine = &seats[host->rank];
    cz_status st = device_planes_find(&planes);
    if (st == CZ_OK) st = planes->nccl_open();
    if (mine->asked == DEVICE_COMM_NCCL) return comm_agree(host, st);
    mine->has_nccl = st == CZ_OK;
    if (st != CZ_OK)
        LOGV(LOG_WARN, SUB_COMM, "%s: collectives go through host memory", cz_last_error());
    TRY(comm_all_gather(host, mine, seats, sizeof *seats));
    for (int r = 0; r < host->world_size; r++)
        if (!seats[r].has_nccl) *kind = DEVICE_COMM_STAGED;
    return CZ_OK;
}

/* NCCL refuses two ranks on one GPU, so those go through host memory. */
static cz_status pick(struct comm *host, struct device *device, struct device_seat *seats,
                      enum device_comm_kind *kind)
{
    struct device_seat *mine = &seats[host->rank];
    TRY(comm_agree(host, take_seat(device, mine)));
    TRY(comm_all_gather(host, mine, seats, sizeof *seats));
    for (int r = 0; r < host->world_size; r++)
        if (seats[r].asked != seats[0].asked)
            return err_set(CZ_INVALID, 0, "%s differs between rank 0 and rank %d", DEVICE_COMM_ENV,
                           r);
    bool is_alone = host->world_size == 1;
    *kind = (enum device_comm_kind)mine->asked;
    if (*kind == DEVICE_COMM_AUTO && is_alone) *kind = DEVICE_COMM_SELF;
    if (*kind == DEVICE_COMM_AUTO)
        *kind = share_a_gpu(seats, host->world_size) ? DEVICE_COMM_STAGED : DEVICE_COMM_NCCL;
    return *kind == DEVICE_COMM_NCCL ? pick_nccl(host, seats, kind) : CZ_OK;
}

/* Memory for all ranks' seats, or on no rank. The caller frees. */
static cz_status take_seats(struct comm *host, struct device_seat **seats)
{
    *seats = calloc((size_t)host->world_size, sizeof **seats);
    return comm_agree(host, *seats ? CZ_OK : err_set(CZ_NOMEM, 0, "no memory for ranks"));
}

cz_status comm_device_pick(struct comm *host, struct device *device, enum device_comm_kind *kind)
{
    *kind = DEVICE_COMM_SELF;
    if (host->world_size > 1 && strcmp(host->ops->name, "self") == 0) return CZ_OK; /* pretends */
    struct device_seat *seats;
    cz_status st = take_seats(host, &seats);
    if (st == CZ_OK) st = pick(host, device, seats, kind);
    free(seats);
    return st;
}

/* For the share of a GPU's memory that each rank may plan with. */
static cz_status count_sharing(struct comm *host, struct device *device, struct device_seat *seats,
                               int *n_ranks)
{
    struct device_seat *mine = &seats[host->rank];
    struct device_info info = {0};
    *mine = device_seat_here();
    TRY(comm_agree(host, device->ops->info(device, &info)));
    memcpy(mine->pci_bus_id, info.pci_bus_id, sizeof mine->pci_bus_id);
    TRY(comm_all_gather(host, mine, seats, sizeof *seats));
    *n_ranks = 0;
    for (int r = 0; r < host->world_size; r++) *n_ranks += is_same_gpu(&seats[r], mine);
    return CZ_OK;
}

cz_status comm_device_sharing(struct comm *host, struct device *device, int *n_ranks)
{
    *n_ranks = 1;
    if (host->world_size == 1 || strcmp(host->ops->name, "self") == 0) return CZ_OK;
    struct device_seat *seats;
    cz_status st = take_seats(host, &seats);
    if (st == CZ_OK) st = count_sharing(host, device, seats, n_ranks);
    free(seats);
    return st;
}

/* ---- memory ---------------------------------------------------------------------------------- */

size_t device_piece_nbytes(enum device_comm_kind kind, size_t asked)
{
    if (asked > 0) return asked;
    return kind == DEVICE_COMM_STAGED ? STAGED_PIECE_NBYTES : PLANE_PIECE_NBYTES;
}

/* As staged.c and plane.c allocate it: the planner must count it before it is there. */
struct device_comm_nbytes comm_device_staging_nbytes(enum device_comm_kind kind, int world_size,
                                                     size_t piece_nbytes)
{
    size_t slot = plane_slot_nbytes(device_piece_nbytes(kind, piece_nbytes), world_size);
    size_t piece = slot * (size_t)world_size;
    struct device_comm_nbytes n = {0, 0};
    if (kind == DEVICE_COMM_STAGED)
        n.host = size_round_up(STAGED_SLOTS * 2 * piece, STAGED_PAGE_NBYTES);
    else if (kind != DEVICE_COMM_AUTO)
        n.device = PLANE_REGIONS * piece + PLANE_WORD_NBYTES;
    if (kind == DEVICE_COMM_NCCL) n.host = STAGED_PAGE_NBYTES;
    return n;
}
