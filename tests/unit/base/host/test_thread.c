/* Claim: a thread of the library gets none of the program's signals, but its own faults reach the
 * program's handlers; the thread that starts it keeps its mask. */
#include "base/host/thread.h"
#include "tests/support/check_main.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

static pthread_t handled_in;
static sigjmp_buf after_fault;

static void on_signal(int signal)
{
    handled_in = pthread_self();
    if (signal == SIGSEGV) siglongjmp(after_fault, 1);
}

static void *fault(void *page)
{
    if (sigsetjmp(after_fault, 1) == 0) *(volatile char *)page = 1;
    return NULL;
}

START_TEST(a_fault_reaches_the_handler)
{
    pthread_t thread;
    void *page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(page, MAP_FAILED);
    signal(SIGSEGV, on_signal);
    ck_assert_int_eq(thread_start(&thread, NULL, fault, page), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert(pthread_equal(handled_in, thread));
    munmap(page, 4096);
}
END_TEST

static void *wait_for_byte(void *fd)
{
    char byte;
    return read(*(int *)fd, &byte, 1) == 1 ? NULL : fd; /* a signal here: EINTR */
}

START_TEST(signals_stay_with_the_program)
{
    static const int sent[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGALRM, SIGCHLD};
    const struct sigaction action = {.sa_handler = on_signal};
    int ends[2];
    pthread_t thread;
    void *failed;
    ck_assert_int_eq(pipe(ends), 0);
    for (size_t i = 0; i < CZ_ARRAY_LEN(sent); i++) sigaction(sent[i], &action, NULL);
    ck_assert_int_eq(thread_start(&thread, NULL, wait_for_byte, &ends[0]), 0);
    for (size_t i = 0; i < CZ_ARRAY_LEN(sent); i++) {
        pthread_kill(thread, sent[i]); /* stays pending */
        kill(getpid(), sent[i]);
        ck_assert(pthread_equal(handled_in, pthread_self()));
    }
    ck_assert_int_eq((int)write(ends[1], "", 1), 1);
    ck_assert_int_eq(pthread_join(thread, &failed), 0);
    ck_assert_ptr_null(failed);
    close(ends[0]), close(ends[1]);
}
END_TEST

START_TEST(the_mask_stays)
{
    sigset_t wanted, now;
    pthread_t thread;
    pthread_attr_t attr;
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGUSR2);
    pthread_sigmask(SIG_SETMASK, &wanted, NULL);
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, (size_t)1 << 46); /* more than there is: no thread */
    ck_assert_int_eq(thread_start(&thread, &attr, fault, NULL), EAGAIN);
    pthread_attr_destroy(&attr);
    pthread_sigmask(SIG_SETMASK, NULL, &now);
    for (int s = 1; s < NSIG; s++) ck_assert_int_eq(sigismember(&now, s), s == SIGUSR2);
}
END_TEST

TEST_MAIN("base/thread", a_fault_reaches_the_handler, signals_stay_with_the_program, the_mask_stays)
