/* Tidying up at signals: swap files hold gigabytes and must go before the process does. A handler
 * may not do this work (nothing there is async-signal-safe), so the signals are blocked in all
 * threads and one thread waits for them. Blocking comes first, before any other thread exists,
 * because threads inherit the mask. */
#include "tools/czero/tool.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <unistd.h>

static sigset_t held;
static void (*tidy_up)(void), (*ask_to_stop)(void);

/* A signal that is ignored (nohup) or handled already is left as it is. */
static void hold(int number)
{
    struct sigaction now;
    if (sigaction(number, NULL, &now) == 0 && now.sa_handler == SIG_DFL) sigaddset(&held, number);
}

void tool_hold_signals(int too)
{
    sigemptyset(&held);
    if (too > 0) hold(too);
    hold(SIGINT);
    hold(SIGHUP);
    hold(SIGQUIT);
    pthread_sigmask(SIG_BLOCK, &held, NULL);
}

/* After tidying up the signal is sent again with its default action: the parent sees the true cause
 * of death. */
static void *wait_for_one(void *unused)
{
    int number;
    (void)unused;
    do {
        if (sigwait(&held, &number) != 0) return NULL;
        if (number != SIGINT || !ask_to_stop) break;
        ask_to_stop();
        ask_to_stop = NULL;
    } while (true);
    tidy_up();
    signal(number, SIG_DFL);
    pthread_sigmask(SIG_UNBLOCK, &held, NULL);
    kill(getpid(), number);
    return NULL;
}

int tool_handle_signal(int number, void (*handler)(int))
{
    static char stack[64 << 10]; /* AMX's registers alone take 8 KiB */
    const stack_t own = {.ss_sp = stack, .ss_size = sizeof stack};
    const struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART | SA_ONSTACK};
    if (sigaltstack(&own, NULL) != 0) return -1;
    return sigaction(number, &action, NULL);
}

void tool_tidy_at_signals(void (*tidy)(void), int but, void (*ask)(void))
{
    pthread_t thread;
    sigset_t own;
    tidy_up = tidy;
    ask_to_stop = ask;
    sigemptyset(&own);
    if (but > 0) {
        sigdelset(&held, but);
        sigaddset(&own, but);
        pthread_sigmask(SIG_UNBLOCK, &own, NULL);
    }
    if (pthread_create(&thread, NULL, wait_for_one, NULL) == 0)
        pthread_detach(thread);
    else /* untidy is better than not at all */
        pthread_sigmask(SIG_UNBLOCK, &held, NULL);
}
