/* What libczero and its Parquet plug-in, libczero_parquet.so, give each other: the plug-in is the
 * only thing that is linked against Arrow's C++ libraries, and is opened at the first Parquet file.
 * Plain C, so that no other type crosses the border. */
#ifndef CZ_DATA_SOURCE_PARQUET_PLUGIN_IMPL_H
#define CZ_DATA_SOURCE_PARQUET_PLUGIN_IMPL_H

#include <stddef.h>
#include <stdint.h>

#define PARQUET_PLUGIN_FILE    "libczero_parquet.so"
#define PARQUET_PLUGIN_SYMBOL  "czero_parquet_plugin"
#define PARQUET_PLUGIN_VERSION 1 /* rises with any change here */

enum parquet_result { PARQUET_OK = 0, PARQUET_DAMAGED, PARQUET_NO_MEMORY, PARQUET_UNSUPPORTED };

struct parquet_plugin {
    uint32_t version;
    /* A file's rows as JSON lines, an object of all columns each. fd is lent until close. why: what
     * is wrong, why_nbytes bytes, terminated. */
    enum parquet_result (*open)(int fd, void **state, char *why, size_t why_nbytes);
    /* Up to n bytes; *got 0 is the end. */
    enum parquet_result (*read)(void *state, void *dst, size_t n, size_t *got, char *why,
                                size_t why_nbytes);
    void (*close)(void *state);
};

#endif
