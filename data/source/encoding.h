/* Text that is not UTF-8: the one check, a guess at the encoding, and converters.
 *
 * Files are read by utf8_stream.h, which uses these. A string that comes from elsewhere (a prompt,
 * a list of names) is checked by encoding_check(). */
#ifndef CZ_DATA_SOURCE_ENCODING_H
#define CZ_DATA_SOURCE_ENCODING_H

#include "base/status.h"

#include <iconv.h>

CZ_EXTERN_C_BEGIN

/* The name for --encoding that the bytes look like, which are not UTF-8: "gb18030", "euc-kr",
 * "euc-jp", "windows-1252", "latin-1", and at the beginning of a file "utf-16" and "utf-32";
 * "utf-8" where most characters are valid and a few bytes are damaged. NULL: nothing is certain. */
const char *encoding_guess(const void *bytes, size_t nbytes, bool is_beginning);

/* CZ_OK: the n bytes are UTF-8. CZ_CORRUPT: "PATH:LINE: byte 0xd5 at offset 7 is not UTF-8 …" with
 * the encoding that they look like. `line` is that of s, from 1; 0 names no line. */
cz_status encoding_check(const char *path, uint64_t line, const char *s, size_t n);

/* A converter to UTF-8 from an encoding that iconv(3) has; names of Python's are taken, too.
 * Released by iconv_close(). CZ_INVALID: no such encoding on this host. */
cz_status encoding_open(const char *name, iconv_t *out);

/* Whether a name means UTF-8; NULL does. */
bool encoding_is_utf8(const char *name);

CZ_EXTERN_C_END
#endif
