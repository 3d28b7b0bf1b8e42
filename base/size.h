/* Checked size arithmetic: every product or sum that sizes memory or a file goes through here. */
#ifndef CZ_BASE_SIZE_H
#define CZ_BASE_SIZE_H

#include "base/status.h"

CZ_EXTERN_C_BEGIN

/* *out = a·b or a+b. CZ_INVALID when the result does not fit in size_t; *out is then untouched. */
cz_status size_mul(size_t a, size_t b, size_t *out);
cz_status size_add(size_t a, size_t b, size_t *out);

/* Round n up to a multiple of `unit` (unit > 0; the caller knows that n + unit does not wrap). */
static inline size_t size_round_up(size_t n, size_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* Raise *nbytes_max to nbytes. */
static inline void size_raise(size_t *nbytes_max, size_t nbytes)
{
    if (nbytes > *nbytes_max) *nbytes_max = nbytes;
}

/* Render bytes as "1.50 GiB" into buf (at least 24 bytes); returns buf. */
const char *size_human(size_t nbytes, char *buf, size_t buf_nbytes);

/* A size that was given, as it may have been written: "24 GB" or "64 GiB" where it is a whole
 * number of them, else as size_human(). */
const char *size_written(size_t nbytes, char *buf, size_t buf_nbytes);

/* A number as people write it, of so many significant digits (1 to 9) and never with an exponent:
 * "18,520", "0.0000587"; below 10^-12 it is "0". Into buf (at least 48 bytes); returns buf. */
const char *size_number(double value, int digits, char *buf, size_t buf_nbytes);

/* Bytes as makers of disks count them: "1.2 TB". Into buf (at least 48 bytes); returns buf. */
const char *size_decimal(double nbytes, char *buf, size_t buf_nbytes);

/* What a noun of n things ends in: "" for one, else "s". */
static inline const char *plural(uint64_t n)
{
    return n == 1 ? "" : "s";
}

/* Read a size as people write it: "24GB" (10^9), "64GiB" (2^30), "1.5TB", "4096". Letters in any
 * case. CZ_INVALID for anything else, less than one byte, and what no size_t holds. */
cz_status size_parse(const char *text, size_t *nbytes);

/* The same for the memory or disk of a machine: CZ_INVALID also for less than 1 MiB, which is a
 * forgotten unit ("24"): the message asks for "24GB". */
cz_status size_parse_machine(const char *text, size_t *nbytes);

CZ_EXTERN_C_END
#endif
