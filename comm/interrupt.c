/* When the launcher's SIGTERM came, for waits that end some time after it. The handler only notes
 * the time: nothing else is safe in it. */
#include "base/clock.h"
#include "comm/comm_impl.h"

#include <stdatomic.h>

static _Atomic int64_t interrupted_ns; /* lock-free where int64_t is, so signal handlers may */

void comm_interrupt(void)
{
    int64_t never = 0;
    atomic_compare_exchange_strong(&interrupted_ns, &never, clock_now_ns());
}

void comm_interrupt_over(void)
{
    atomic_store(&interrupted_ns, 0);
}

int64_t comm_interrupted_ns(void)
{
    return atomic_load_explicit(&interrupted_ns, memory_order_relaxed);
}
