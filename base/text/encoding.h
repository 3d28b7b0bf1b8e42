/* Text that is not UTF-8: the one check, and a guess at its encoding.
 *
 * Files of data are read by data/source/utf8_stream.h, which uses the guess. A string that comes
 * from elsewhere (a prompt, a vocabulary) is checked by encoding_check(). */
#ifndef CZ_BASE_TEXT_ENCODING_H
#define CZ_BASE_TEXT_ENCODING_H

#include "base/status.h"

CZ_EXTERN_C_BEGIN

/* The name for --encoding that the bytes look like, which are not UTF-8: "gb18030", "euc-kr",
 * "euc-jp", "windows-1252", "latin-1", at the beginning of a file also those of encoding_wide(),
 * and "utf-16" for its mark; "utf-8" where most characters are valid and a few bytes are damaged.
 * NULL: nothing is certain. */
const char *encoding_guess(const void *bytes, size_t nbytes, bool is_beginning);

/* The encoding of a file's beginning with NUL among its bytes: "utf-16", "utf-16le", "utf-16be" or
 * "utf-32". NULL: none of these. */
const char *encoding_wide(const void *bytes, size_t nbytes);

/* CZ_OK: the n bytes are UTF-8. CZ_CORRUPT: "PATH:LINE: byte 0xd5 at offset 7 is not UTF-8 …" with
 * the encoding that they look like. `line` is that of s, from 1; 0 names no line. */
cz_status encoding_check(const char *path, uint64_t line, const char *s, size_t n);

CZ_EXTERN_C_END
#endif
