/* TensorBoard event files: scalars over steps, in the framing that TensorBoard follows live.
 *
 * Life cycle: tfevents_open() makes a new file in a folder → tfevents_scalar() collects →
 * tfevents_flush() writes what was collected → tfevents_close(). A record is complete in the file
 * or not there at all. Nothing is allocated after open. One thread at a time. */
#ifndef CZ_FORMATS_TFEVENTS_H
#define CZ_FORMATS_TFEVENTS_H

#include "formats/output.h"

CZ_EXTERN_C_BEGIN

#define TFEVENTS_TAG_NBYTES_MAX 1024

struct tfevents;

/* Create in the folder events.out.tfevents.TIME.HOST.PID.N with its version record. *out is released by tfevents_close(); NULL on error. Errors: CZ_IO (path), CZ_NOMEM. */
cz_status tfevents_open(const struct out_folder *in, struct tfevents **out);

/* Collect one point: `value` (stored as float) of curve `tag` at `step`, stamped with the time.
 * Errors: CZ_INVALID (tag longer than the limit or not UTF-8), CZ_IO (when the buffer had to be
 * written first). */
cz_status tfevents_scalar(struct tfevents *w, const char *tag, double value, int64_t step);

/* A run continues after an earlier run that had got further: readers drop the points at `step` and
 * later of the files before this one. Collected as a point is. Errors: CZ_IO. */
cz_status tfevents_restart(struct tfevents *w, int64_t step);

/* Write what was collected. Errors: CZ_IO; the collected points are then dropped and the file
 * ends with the record before them. */
cz_status tfevents_flush(struct tfevents *w);

const char *tfevents_path(const struct tfevents *w);

/* Flush and release. Accepts NULL. Errors: as tfevents_flush(); released in any case. */
cz_status tfevents_close(struct tfevents *w);

/* CRC-32C (Castagnoli), as records carry it. */
uint32_t tfevents_crc32c(const void *data, size_t nbytes);

CZ_EXTERN_C_END
#endif
