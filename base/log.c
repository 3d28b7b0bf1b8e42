/* Log lines: one sink, a level, a mask of subsystems. The sink is called under the lock, so lines
 * of threads do not mix; the library itself never prints. Other ranks than 0 only report
 * warnings. */
#include "base/log.h"

#include "base/utf8.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>

static struct {
    pthread_mutex_t lock;
    cz_log_sink sink;
    void *user;
    enum cz_log_level level;
    unsigned mask;
    int rank, world_size;
    int64_t step;
} logger = {.lock = PTHREAD_MUTEX_INITIALIZER, .level = LOG_INFO, .mask = SUB_ALL, .world_size = 1};

void cz_log_set_sink(cz_log_sink sink, void *user)
{
    pthread_mutex_lock(&logger.lock);
    logger.sink = sink;
    logger.user = user;
    pthread_mutex_unlock(&logger.lock);
}

void log_set_level(enum cz_log_level level, unsigned mask)
{
    pthread_mutex_lock(&logger.lock);
    logger.level = level;
    logger.mask = mask;
    pthread_mutex_unlock(&logger.lock);
}

void log_set_rank(int rank, int world_size)
{
    pthread_mutex_lock(&logger.lock);
    logger.rank = rank;
    logger.world_size = world_size;
    pthread_mutex_unlock(&logger.lock);
}

void log_set_step(int64_t step)
{
    pthread_mutex_lock(&logger.lock);
    logger.step = step;
    pthread_mutex_unlock(&logger.lock);
}

/* Asked before a line is formatted, so that disabled lines cost one lock. */
bool log_enabled(enum cz_log_level level, enum log_subsystem sub)
{
    pthread_mutex_lock(&logger.lock);
    bool shown = logger.sink && level <= logger.level;
    if (level > LOG_WARN) shown = shown && (logger.mask & (unsigned)sub);
    if (level != LOG_WARN) shown = shown && logger.rank == 0;
    pthread_mutex_unlock(&logger.lock);
    return shown;
}

/* The bytes of a character that the end of the buffer cut in two. */
static size_t cut_tail(const char *line, size_t len)
{
    size_t n = 0;
    while (n < 3 && n < len && ((unsigned char)line[len - 1 - n] & 0xc0u) == 0x80u) n++;
    if (n == len) return 0;
    const char *lead = line + len - 1 - n;
    return utf8_length(lead, n + 1) == -1 ? n + 1 : 0;
}

/* A line that is too long is cut at a character's border. */
void log_line(enum cz_log_level level, const char *fmt, ...)
{
    char line[2048];
    pthread_mutex_lock(&logger.lock);
    size_t len = 0;
    if (logger.world_size > 1)
        len = (size_t)snprintf(line, sizeof line, "[rank %d/%d step %lld] ", logger.rank,
                               logger.world_size, (long long)logger.step);
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line + len, sizeof line - len, fmt, ap);
    va_end(ap);
    if (n >= (int)(sizeof line - len)) {
        len = sizeof line - 1;
        line[len - cut_tail(line, len)] = '\0';
    }
    utf8_make_printable(line);
    if (logger.sink) logger.sink(level, line, logger.user);
    pthread_mutex_unlock(&logger.lock);
}
