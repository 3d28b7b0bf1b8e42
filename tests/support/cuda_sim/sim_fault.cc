/* Faults of kernels, and of host code that touches device memory: a line says which kernel, block
 * and thread, and what was touched; then the earlier handler (AddressSanitizer, the default) gets
 * the fault again. */
#include "sim_exec.h"
#include "sim_runtime.h"

#include <signal.h>
#include <stdio.h>
#include <unistd.h>

namespace {

/* Kernels are compiled to trap on accesses that are not aligned, as hardware does. */
const int signals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
#ifdef __SANITIZE_ADDRESS__
const int n_signals = 1; /* the others come with a report already */
#else
const int n_signals = 4;
#endif
struct sigaction earlier[4];

std::string reason(int signal, const siginfo_t *info)
{
    if (signal == SIGFPE) return "divides an integer by zero";
    if (signal == SIGILL) return "makes an access that is not aligned to its size, or traps";
    if (info->si_code == SI_KERNEL)
        return "touches an address that is not aligned, or cannot exist";
    const char *guard = sim_exec_guard_name(info->si_addr);
    char address[64];
    snprintf(address, sizeof address, "touches %p: ", info->si_addr);
    return address + (guard ? guard : sim_memory_describe(info->si_addr));
}

void on_fault(int signal, siginfo_t *info, void *)
{
    if (signal == SIGSEGV && sim_is_running() && sim_memory_touch(info->si_addr)) return;
    for (int i = 0; i < n_signals; i++) sigaction(signals[i], &earlier[i], nullptr);
    char who[640] = "host code";
    if (sim_exec_describe(who, sizeof who) == 0 && !sim_is_device(info->si_addr)) return;
    char line[1024];
    int n = snprintf(line, sizeof line, "cuda_sim: %s %s\n", who, reason(signal, info).c_str());
    if (write(STDERR_FILENO, line, (size_t)n) < 0) return;
}

/* A fiber that ran out of stack cannot run a handler on it. */
void signal_stack()
{
    static char stack[65536];
    stack_t s = {}, old = {};
    s.ss_sp = stack;
    s.ss_size = sizeof stack;
    if (sigaltstack(nullptr, &old) == 0 && (old.ss_flags & SS_DISABLE)) sigaltstack(&s, nullptr);
}

} // namespace

void sim_faults_catch(void)
{
    static bool caught;
    if (caught) return;
    caught = true;
    signal_stack();
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int i = 0; i < n_signals; i++) sigaction(signals[i], &action, &earlier[i]);
}
