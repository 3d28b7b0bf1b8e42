/* What chat_probe.c finds out about a template and chat_template.c keeps. */
#ifndef CZ_DATA_CHAT_CHAT_TEMPLATE_IMPL_H
#define CZ_DATA_CHAT_CHAT_TEMPLATE_IMPL_H

#include "data/chat/chat_template.h"

#include <pthread.h>
#include <stdatomic.h>

enum chat_probe_role {
    CHAT_PROBE_USER,
    CHAT_PROBE_SYSTEM,
    CHAT_PROBE_ASSISTANT,
    CHAT_PROBE_TOOL,
    CHAT_PROBE_ROLES
};

struct chat_probe {
    pthread_mutex_t lock;
    bool has_head;
    atomic_uint takes[CHAT_PROBE_ROLES]; /* enum chat_takes, and what is known; read without lock */
    char head[1024];
};

/* That of the template for conversations with or without tools. */
struct chat_probe *chat_template_probe(const struct chat_template *t, bool has_tools);

#endif
