/* Where ranks sit, and which kind of device communicator suits them. */
#ifndef CZ_COMM_DEVICE_DEVICE_PICK_IMPL_H
#define CZ_COMM_DEVICE_DEVICE_PICK_IMPL_H

#include "comm/device/device_plane_impl.h"

/* What a rank tells the others. */
struct device_seat {
    uint64_t host; /* of the machine, and of the process numbers that mean something there */
    int pid;
    int asked; /* enum device_comm_kind, by the environment */
    int has_nccl;
    char pci_bus_id[16];
};

/* host and pid alone. */
struct device_seat device_seat_here(void);

/* The plug-in's planes. CZ_UNSUPPORTED: no plug-in, or of another version. */
cz_status device_planes_find(const struct device_planes **out);

/* asked, or a kind's default for 0. */
size_t device_piece_nbytes(enum device_comm_kind kind, size_t asked);

#endif
