#include "base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>

static struct {
    pthread_mutex_t lock;
    log_sink sink;
    void *user;
    enum log_level level;
    unsigned mask;
    int rank, world_size;
    int64_t step;
} logger = {.lock = PTHREAD_MUTEX_INITIALIZER, .level = LOG_INFO, .mask = SUB_ALL, .world_size = 1};

void log_set_sink(log_sink sink, void *user)
{
    pthread_mutex_lock(&logger.lock);
    logger.sink = sink;
    logger.user = user;
    pthread_mutex_unlock(&logger.lock);
}

void log_set_level(enum log_level level, unsigned mask)
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

bool log_enabled(enum log_level level, enum log_subsystem sub)
{
    pthread_mutex_lock(&logger.lock);
    bool shown = logger.sink != NULL;
    if (level != LOG_WARN)
        shown = shown && level <= logger.level && (logger.mask & (unsigned)sub) && logger.rank == 0;
    pthread_mutex_unlock(&logger.lock);
    return shown;
}

void log_line(enum log_level level, const char *fmt, ...)
{
    char line[2048];
    pthread_mutex_lock(&logger.lock);
    size_t len = 0;
    if (logger.world_size > 1)
        len = (size_t)snprintf(line, sizeof line, "[rank %d/%d step %lld] ", logger.rank,
                               logger.world_size, (long long)logger.step);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line + len, sizeof line - len, fmt, ap);
    va_end(ap);
    if (logger.sink) logger.sink(level, line, logger.user);
    pthread_mutex_unlock(&logger.lock);
}
