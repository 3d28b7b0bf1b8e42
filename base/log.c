/* Log lines: one sink, a level, a mask of subsystems. The sink is called under the lock, so lines
 * of threads do not mix; the library itself never prints. Other ranks than 0 only report
 * warnings. */
#include "base/log.h"

#include "base/printable.h"

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
    bool common;
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

void log_set_common(bool on)
{
    pthread_mutex_lock(&logger.lock);
    logger.common = on;
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
    if (level != LOG_WARN || logger.common) shown = shown && logger.rank == 0;
    pthread_mutex_unlock(&logger.lock);
    return shown;
}

/* A line that is too long is cut at a character's border; strings are escaped, so that a name
 * cannot begin a line of its own. */
void log_line(enum cz_log_level level, const char *fmt, ...)
{
    char line[2048];
    pthread_mutex_lock(&logger.lock);
    if (logger.common && logger.rank > 0) {
        pthread_mutex_unlock(&logger.lock);
        return;
    }
    size_t len = 0;
    if (logger.rank > 0)
        len = (size_t)snprintf(line, sizeof line, "[rank %d/%d step %lld] ", logger.rank,
                               logger.world_size, (long long)logger.step);
    va_list ap;
    va_start(ap, fmt);
    printable_vformat(line + len, sizeof line - len, 0, fmt, ap);
    va_end(ap);
    if (logger.sink) logger.sink(level, line, logger.user);
    pthread_mutex_unlock(&logger.lock);
}
