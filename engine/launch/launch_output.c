/* What ranks other than 0 print, passed on line by line so that lines of different ranks do not
 * mix. */
#include "engine/launch/launch_impl.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The log's own lines name their rank: "czero: warning: [rank 3/8 step 120] …". */
static bool names_its_rank(const char *line, size_t len)
{
    static const char mark[] = "[rank ";
    const size_t far = 24; /* where a log line has it at the latest */
    for (size_t i = 0; i < far && i + sizeof mark <= len; i++)
        if (memcmp(line + i, mark, sizeof mark - 1) == 0) return true;
    return false;
}

/* One write per line: rank 0 writes to the same place at the same time. */
static void pass_on(const struct launch_stream *s, const struct launch_options *o, const char *text,
                    size_t len)
{
    char line[sizeof s->buffer + 32];
    int n_prefix = 0;
    if (len == 0) return;
    if (s->to_stderr && !s->mid_line && !names_its_rank(text, len))
        n_prefix = snprintf(line, sizeof line, "[rank %d] ", s->rank);
    memcpy(line + n_prefix, text, len);
    o->write(s->to_stderr, line, (size_t)n_prefix + len, o->write_user);
}

/* The last line of a rank may lack its newline. */
static void pass_rest(struct launch_stream *s, const struct launch_options *o)
{
    if (s->n == 0 && !s->mid_line) return;
    s->buffer[s->n++] = '\n'; /* there is space: a full buffer has been passed on */
    pass_on(s, o, s->buffer, s->n);
    s->mid_line = false;
    s->n = 0;
}

/* Non-blocking: takes what is there. `flush` at the end: nothing more will come. */
void launch_stream_pump(struct launch_stream *s, const struct launch_options *o, bool flush)
{
    while (s->fd >= 0) {
        ssize_t n = read(s->fd, s->buffer + s->n, sizeof s->buffer - 1 - s->n);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) break;
        if (n <= 0) {
            pass_rest(s, o);
            close(s->fd);
            s->fd = -1;
            return;
        }
        s->n += (size_t)n;
        /* Whole lines, so that ranks do not interleave within one; a full buffer without a newline
         * is passed on as it is. */
        size_t begin = 0;
        const char *end;
        while ((end = memchr(s->buffer + begin, '\n', s->n - begin)) != NULL) {
            size_t len = (size_t)(end + 1 - (s->buffer + begin));
            pass_on(s, o, s->buffer + begin, len);
            s->mid_line = false;
            begin += len;
        }
        s->n -= begin;
        memmove(s->buffer, s->buffer + begin, s->n);
        if (s->n >= sizeof s->buffer - 1) {
            pass_on(s, o, s->buffer, s->n);
            s->mid_line = true;
            s->n = 0;
        }
    }
    if (flush) pass_rest(s, o);
}
