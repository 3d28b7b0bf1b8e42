#include "base/host/thread.h"

#include "base/compiler.h"
#include "base/host/entry.h"

#include <semaphore.h>
#include <signal.h>

struct start {
    void *(*run)(void *);
    void *arg;
    sem_t taken;
};

/* A new thread has the program's locale. */
static void *begin(void *start)
{
    void *(*run)(void *) = ((struct start *)start)->run;
    void *arg = ((struct start *)start)->arg;
    sem_post(&((struct start *)start)->taken);
    entry_begin_thread();
    return run(arg);
}

/* Waiting for the thread to take its arguments saves an allocation, which could fail. */
int thread_start(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *arg)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGSYS};
    sigset_t blocked, before;
    struct start start = {.run = run, .arg = arg};
    sem_init(&start.taken, 0, 0);
    sigfillset(&blocked);
    for (size_t i = 0; i < CZ_ARRAY_LEN(faults); i++) sigdelset(&blocked, faults[i]);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    const int error = pthread_create(thread, attr, begin, &start);
    while (!error && sem_wait(&start.taken) != 0) continue; /* interrupted */
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    sem_destroy(&start.taken);
    return error;
}
