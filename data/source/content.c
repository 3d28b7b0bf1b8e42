/* What a file is that was given as text, by its first bytes. A model trains on anything, so a
 * Parquet file read as text costs hours before the samples look odd. */
#include "data/source/content.h"

#include "base/text/encoding.h"

#include <string.h>

#define AS_ROWS                                                                                    \
    "write its rows as JSON lines, for example with pandas: to_json(orient=\"records\", "          \
    "lines=True)"
#define AS_TEXT "extract its text first"
#define NO_TEXT "give files of text"

static const struct format {
    size_t off;
    const char *magic;
    size_t n_magic;
    const char *name, *advice;
} formats[] = {
#define MAGIC(text) text, sizeof(text) - 1
    {0, MAGIC("PAR1"), "a Parquet file without its end, or not in a file", "give the whole file"},
    {0, MAGIC("ARROW1\0\0"), "an Arrow file", AS_ROWS},
    {0, MAGIC("\xFF\xFF\xFF\xFF"), "an Arrow stream", AS_ROWS},
    {0, MAGIC("Obj\x01"), "an Avro file", AS_ROWS},
    {0, MAGIC("ORC\x0A"), "an ORC file", AS_ROWS},
    {0, MAGIC("\x89HDF\r\n\x1A\n"), "an HDF5 file", AS_ROWS},
    {0, MAGIC("SQLite format 3\0"), "an SQLite database", AS_ROWS},
    {0, MAGIC("\x93NUMPY"), "a NumPy array",
     "write token ids with tofile() and give them as u16:FILE or u32:FILE"},
    {0, MAGIC("PK\x03\x04"), "a zip archive (or a PyTorch, NumPy or office file, which are such)",
     "unpack it, or " AS_TEXT},
    {0, MAGIC("PK\x05\x06"), "an empty zip archive", NO_TEXT},
    {257, MAGIC("ustar"), "a tar archive", "unpack it and give the folder"},
    {0, MAGIC("7z\xBC\xAF\x27\x1C"), "a 7z archive", "unpack it"},
    {0, MAGIC("Rar!\x1A\x07"), "a RAR archive", "unpack it"},
    {0, MAGIC("\x1F\x8B\x08"), "gzip data in compressed data", "decompress it once"},
    {0, MAGIC("\x28\xB5\x2F\xFD"), "zstd data in compressed data", "decompress it once"},
    {0,
     MAGIC("\xFD"
           "7zXZ\0"),
     "xz data", "decompress it: gzip and zstd are read as they are"},
    {4, MAGIC("1AY&SY"), "bzip2 data", "decompress it: gzip and zstd are read as they are"},
    {0, MAGIC("\x04\x22\x4D\x18"), "lz4 data", "decompress it: gzip and zstd are read as they are"},
    {0, MAGIC("%PDF-"), "a PDF file", AS_TEXT},
    {0, MAGIC("\x89PNG\r\n\x1A\n"), "a PNG image", NO_TEXT},
    {0, MAGIC("\xFF\xD8\xFF"), "a JPEG image", NO_TEXT},
    {0, MAGIC("GIF8"), "a GIF image", NO_TEXT},
    {0, MAGIC("RIFF"), "a RIFF file (sound or images)", NO_TEXT},
    {0, MAGIC("OggS"), "an Ogg file", NO_TEXT},
    {0,
     MAGIC("\x7F"
           "ELF"),
     "a program (ELF)", NO_TEXT},
    {0, MAGIC("\xD0\xCF\x11\xE0\xA1\xB1\x1A\xE1"), "an office document", AS_TEXT},
    {0, MAGIC("GGUF"), "a GGUF model", NO_TEXT},
    {0, MAGIC("MMIDIDX\0\0"), "the index of Megatron's tokens",
     "name it .idx, with the .bin beside it"},
#undef MAGIC
};

/* The length of a JSON header in 8 bytes, and its brace. */
static bool is_safetensors(const unsigned char *p, size_t n)
{
    return n > 10 && p[8] == '{' && p[9] == '"' && p[5] == 0 && p[6] == 0 && p[7] == 0;
}

/* Protocols 2 to 5: the first two bytes, and a frame or another opcode that begins a pickle. */
static bool is_pickle(const unsigned char *p, size_t n)
{
    return n > 2 && p[0] == 0x80 && p[1] >= 2 && p[1] <= 5;
}

/* A name that text could begin with counts only where a NUL shows that it is none. */
static bool is_format(const struct format *f, const unsigned char *p, size_t n)
{
    if (n < f->off + f->n_magic || memcmp(p + f->off, f->magic, f->n_magic) != 0) return false;
    bool is_printable = f->magic[0] != '%' && f->off != 4; /* a PDF; bzip2 has random bytes */
    for (size_t i = 0; i < f->n_magic; i++)
        is_printable = is_printable && f->magic[i] >= ' ' && f->magic[i] < 0x7F;
    return !is_printable || memchr(p, 0, n);
}

static cz_status refuse(const char *path, const char *name, const char *advice)
{
    return err_set(CZ_UNSUPPORTED, 0, "%s: is %s, not text: %s", path, name, advice);
}

cz_status content_check_format(const char *path, const void *head, size_t nbytes)
{
    const unsigned char *p = head;
    for (size_t i = 0; i < CZ_ARRAY_LEN(formats); i++)
        if (is_format(&formats[i], p, nbytes))
            return refuse(path, formats[i].name, formats[i].advice);
    if (is_safetensors(p, nbytes))
        return refuse(path, "a safetensors file (weights)", "give its folder to --model");
    if (is_pickle(p, nbytes))
        return refuse(path, "a pickle (Python objects, or an old PyTorch file)", AS_TEXT);
    const char *encoding = encoding_wide(p, nbytes);
    if (encoding)
        return err_set(CZ_UNSUPPORTED, 0,
                       "%s: is text in %s: use --encoding %s, or convert it to UTF-8", path,
                       encoding, encoding);
    return CZ_OK;
}

cz_status content_check_text(const char *path, const void *head, size_t nbytes)
{
    TRY(content_check_format(path, head, nbytes));
    const char *nul = nbytes ? memchr(head, 0, nbytes) : NULL;
    if (!nul) return CZ_OK;
    return err_set(CZ_UNSUPPORTED, 0,
                   "%s: is no text: byte %zu is NUL (tokens without a header are given as u16:FILE "
                   "or u32:FILE, bytes of any kind as u8:FILE)",
                   path, (size_t)(nul - (const char *)head));
}
