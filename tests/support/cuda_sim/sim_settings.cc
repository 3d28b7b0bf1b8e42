/* Reading the environment: see sim_settings.h. A word that is not understood ends the process, as
 * a test that asks for a fault and gets none would pass for the wrong reason. */
#include "sim_settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct sim_settings sim_settings;

[[noreturn]] static void refuse(const char *name, const char *value)
{
    fprintf(stderr, "cuda_sim: %s=%s is not understood\n", name, value);
    abort();
}

/* The index of value in words (its part before ':'); the number after ':' goes to *seed. */
static int choice(const char *name, const char *const *words, int n, uint64_t *seed)
{
    const char *value = getenv(name);
    *seed = 0;
    if (!value || !*value) return 0;
    size_t length = strcspn(value, ":");
    if (value[length] == ':') *seed = strtoull(value + length + 1, nullptr, 10);
    for (int i = 0; i < n; i++)
        if (strlen(words[i]) == length && strncmp(value, words[i], length) == 0) return i;
    refuse(name, value);
}

static uint64_t number(const char *name, uint64_t by_default)
{
    const char *value = getenv(name);
    if (!value || !*value) return by_default;
    char *end;
    uint64_t n = strtoull(value, &end, 10);
    if (*end || n == 0) refuse(name, value);
    return n;
}

static bool counted(const char *word, const char *prefix, uint64_t *out)
{
    size_t length = strlen(prefix);
    if (strncmp(word, prefix, length) != 0) return false;
    *out = strtoull(word + length, nullptr, 10);
    return *out > 0;
}

static void fault(struct sim_settings *s, const char *word)
{
    if (strcmp(word, "no-driver") == 0)
        s->driver = SIM_DRIVER_NONE;
    else if (strcmp(word, "old-driver") == 0)
        s->driver = SIM_DRIVER_OLD;
    else if (strcmp(word, "no-device") == 0)
        s->n_devices = 0;
    else if (sscanf(word, "capability:%d.%d", &s->major, &s->minor) != 2 &&
             !counted(word, "lost-at:", &s->lost_at) && !counted(word, "oom-at:", &s->oom_at) &&
             !counted(word, "host-oom-at:", &s->host_oom_at) &&
             !counted(word, "start-error:", &s->start_error))
        refuse("CZERO_CUDA_SIM_FAULT", word);
}

static void faults(struct sim_settings *s)
{
    const char *value = getenv("CZERO_CUDA_SIM_FAULT");
    if (!value) return;
    char words[256];
    snprintf(words, sizeof words, "%s", value);
    char *save = nullptr;
    for (char *word = strtok_r(words, ",", &save); word; word = strtok_r(nullptr, ",", &save))
        fault(s, word);
}

/* As CUDA reads it: up to the first that there is not. */
static void choose_devices(struct sim_settings *s)
{
    const char *at = getenv("CUDA_VISIBLE_DEVICES");
    const int n_there = s->n_devices < SIM_PLACES_MAX ? s->n_devices : SIM_PLACES_MAX;
    for (int i = 0; i < n_there; i++) s->place[i] = i;
    if (!at) return;
    for (s->n_devices = 0; s->n_devices < SIM_PLACES_MAX; at++) {
        char *end;
        const long place = strtol(at, &end, 10);
        if (end == at || place < 0 || place >= n_there) return;
        s->place[s->n_devices++] = (int)place;
        at = end;
        if (*at != ',') return;
    }
}

static void code(struct sim_settings *s)
{
    const char *value = getenv("CZERO_CUDA_SIM_CODE");
    if (!value || !*value || strcmp(value, "c++") == 0) return;
    if (strncmp(value, "ptx", 3) != 0 || (value[3] && value[3] != ':'))
        refuse("CZERO_CUDA_SIM_CODE", value);
    s->runs_ptx = true;
    if (value[3]) snprintf(s->ptx_folder, sizeof s->ptx_folder, "%s", value + 4);
}

/* KiB of shared memory that a block may have. Source: NVIDIA, CUDA C++ Programming Guide,
 * "Technical specifications per compute capability". */
static uint64_t shared_kib(int major, int minor)
{
    if (major < 8) return 64;
    if (major == 8) return minor == 0 || minor == 7 ? 163 : 99;
    return major < 12 ? 227 : 99;
}

void sim_settings_read(void)
{
    static const char *const orders[] = {"forward", "reverse", "random"};
    static const char *const streams[] = {"lazy", "eager", "random"};
    struct sim_settings s = {};
    s.order = (enum sim_order)choice("CZERO_CUDA_SIM_ORDER", orders, 3, &s.order_seed);
    s.streams = (enum sim_streams)choice("CZERO_CUDA_SIM_STREAMS", streams, 3, &s.streams_seed);
    s.memory_nbytes = number("CZERO_CUDA_SIM_MEMORY", (uint64_t)1 << 30);
    s.n_devices = (int)number("CZERO_CUDA_SIM_DEVICES", 1);
    choose_devices(&s);
    s.n_multiprocessors = (int)number("CZERO_CUDA_SIM_MULTIPROCESSORS", 132);
    const char *guard = getenv("CZERO_CUDA_SIM_GUARD");
    s.guard = !guard || strcmp(guard, "off") != 0;
    const char *dry = getenv("CZERO_CUDA_SIM_DRY");
    s.dry = dry && strcmp(dry, "on") == 0;
    s.approx_seed = number("CZERO_CUDA_SIM_APPROX", 0);
    const char *echo = getenv("CZERO_CUDA_SIM_ECHO");
    s.echo = echo && strcmp(echo, "on") == 0;
    s.count = number("CZERO_CUDA_SIM_COUNT", 0) != 0;
    code(&s);
    s.major = 9;
    faults(&s);
    s.shared_block_nbytes = number("CZERO_CUDA_SIM_SHARED", shared_kib(s.major, s.minor)) << 10;
    s.shared_multiprocessor_nbytes = s.shared_block_nbytes + ((size_t)1 << 10);
    sim_settings = s;
}
