/* What OpenMPI needs besides the standard. With another MPI all of this finds nothing and does
 * nothing.
 *
 * When a TCP connection breaks, OpenMPI 4 reports that at length through its daemon and waits for
 * the answer, inside whatever MPI call was made. But the daemon is busy then, killing the job:
 * first gently, a second later for good; ranks would be gone before they could report what they
 * were doing. So the reports come here: a lost connection is noted (it is how ranks learn that one
 * of another host has died), anything else becomes a warning in the log. */
#include "comm/mpi/mpi_world_impl.h"

#include "base/clock.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

typedef int (*help_fn)(const char *file, const char *topic, bool has_header, ...);
typedef char *(*help_text_fn)(const char *file, const char *topic, bool has_header, va_list args);

static int64_t link_lost_ns;
static help_text_fn help_text;

int64_t mpi_link_lost_ns(void)
{
    return link_lost_ns;
}

static bool is_lost_link(const char *file, const char *topic)
{
    return strcmp(file, "help-mpi-btl-tcp.txt") == 0 &&
           (strcmp(topic, "peer hung up") == 0 || strcmp(topic, "client connect fail") == 0);
}

static int take_help(const char *file, const char *topic, bool has_header, ...)
{
    va_list args;
    if (is_lost_link(file, topic)) {
        if (link_lost_ns == 0) link_lost_ns = clock_now_ns();
        return 0;
    }
    va_start(args, has_header);
    char *text = help_text ? help_text(file, topic, has_header, args) : NULL;
    va_end(args);
    mpi_host.warn(text ? text : topic);
    free(text);
    return 0;
}

/* In OpenMPI 3 and 4 the name is that of a variable which holds the function. */
void mpi_take_help(void)
{
    Dl_info info;
    const ElfW(Sym) *symbol = NULL;
    void *at = dlsym(RTLD_DEFAULT, "opal_show_help");
    if (!at || !dladdr1(at, &info, (void **)&symbol, RTLD_DL_SYMENT) || !symbol) return;
    if (ELF64_ST_TYPE(symbol->st_info) != STT_OBJECT || symbol->st_size != sizeof(help_fn)) return;
    void *text = dlsym(RTLD_DEFAULT, "opal_show_help_vstring");
    memcpy(&help_text, &text, sizeof help_text);
    *(help_fn *)at = take_help;
}

/* SIGPIPE would kill a rank that writes to a dead one, without a word. A handler of the program's
 * own is left alone. */
void mpi_survive_lost_links(void)
{
    struct sigaction now;
    if (sigaction(SIGPIPE, NULL, &now) != 0 || now.sa_handler != SIG_DFL) return;
    now.sa_handler = SIG_IGN;
    (void)sigaction(SIGPIPE, &now, NULL); /* cannot fail where reading it did not */
}

/* Read by OpenMPI when it starts. What the user has set stays. */
void mpi_yield_when_cores_are_shared(void)
{
    const char *n_local = getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
    if (n_local && atoi(n_local) > mpi_host.allowed_cores)
        setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0); /* what the user has set stays */
}
