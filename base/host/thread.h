/* Threads that the library starts in a program of others. */
#ifndef CZ_BASE_HOST_THREAD_H
#define CZ_BASE_HOST_THREAD_H

#include <pthread.h>

/* pthread_create() for a thread to which the program's signals are not delivered: its handlers
 * belong to its own threads, and a signal would interrupt reads and writes. Faults of the thread
 * itself (SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGSYS) are: the kernel ends a process whose
 * thread blocks them without asking a handler, such as a sanitizer's. It computes, formats and
 * parses as calls of the API do (base/host/entry.h). attr may be NULL. Returns 0
 * or an errno value. */
int thread_start(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *arg);

#endif
