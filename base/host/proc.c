/* A number after a key in a file of /proc, such as MemAvailable. It reads with small fixed buffers
 * and no allocation: it is called in the middle of a step, and when memory is short. */
#include "base/host/proc.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

/* What a line is, as far as it has been read. */
enum line { LINE_MAYBE = 0, LINE_OTHER, LINE_FOUND };

struct search {
    const char *key;
    enum line line;
    size_t n_matched;
    char value[64]; /* the text after the key */
    size_t n_value;
};

/* One character of the file through the search. False: the line that was looked for has ended. */
static bool take(struct search *s, char c)
{
    if (c == '\n') {
        if (s->line == LINE_FOUND) return false;
        s->line = LINE_MAYBE;
        s->n_matched = 0;
    } else if (s->line == LINE_FOUND) {
        if (s->n_value + 1 < sizeof s->value) s->value[s->n_value++] = c;
    } else if (s->line == LINE_MAYBE) {
        s->line = s->key[s->n_matched++] == c ? LINE_MAYBE : LINE_OTHER;
        if (s->line == LINE_MAYBE && !s->key[s->n_matched]) s->line = LINE_FOUND;
    }
    return true;
}

uint64_t proc_number(const char *path, const char *key, int base)
{
    struct search s = {.key = key};
    char text[1024];
    ssize_t n = 1;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    for (bool goes_on = true; goes_on && n > 0;) {
        n = read(fd, text, sizeof text);
        for (ssize_t i = 0; i < n && goes_on; i++) goes_on = take(&s, text[i]);
    }
    close(fd);
    return strtoull(s.value, NULL, base);
}

size_t proc_nbytes(const char *path, const char *key)
{
    return (size_t)proc_number(path, key, 10) * 1024;
}
