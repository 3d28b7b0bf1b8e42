/* Several files, one swap: its blocks are divided among a file in each folder, in shares of the
 * folders' rates, so that a transfer of many blocks keeps all disks busy for equally long. A
 * pattern of SWAP_PERIOD stripes says which file each belongs to, and repeats; within a file its
 * stripes are side by side. */
#include "base/size.h"
#include "offload/swap/swap_impl.h"

#include <math.h>

static double rate_of(const struct swap_options *o, size_t path)
{
    return o->rates ? o->rates[path] : 1;
}

/* Stripes of each file in a period: by rate, at least one, all of them together SWAP_PERIOD. */
static void deal_counts(const struct swap_options *o, struct swap_stripes *s)
{
    double sum = 0;
    int left = SWAP_PERIOD;
    for (size_t i = 0; i < s->n_paths; i++) sum += rate_of(o, i);
    for (size_t i = 0; i < s->n_paths; i++) {
        long n = lround(rate_of(o, i) / sum * SWAP_PERIOD);
        s->n_of[i] = n < 1 ? 1 : (int)n;
        left -= s->n_of[i];
    }
    while (left != 0) { /* rounding: the largest share takes or gives it */
        size_t most = 0;
        for (size_t i = 1; i < s->n_paths; i++)
            if (s->n_of[i] > s->n_of[most]) most = i;
        s->n_of[most] += left > 0 ? 1 : -1;
        left -= left > 0 ? 1 : -1;
    }
}

cz_status swap_stripes_make(const struct swap_options *o, size_t unit, struct swap_stripes *s)
{
    int used[SWAP_PATHS_MAX] = {0};
    *s = (struct swap_stripes){.unit = unit, .n_paths = 1 + o->n_more_dirs};
    if (s->n_paths > SWAP_PATHS_MAX)
        return err_set(CZ_INVALID, 0, "a swap file is striped over %d folders at most, not %zu",
                       SWAP_PATHS_MAX, s->n_paths);
    for (size_t i = 0; i < s->n_paths; i++)
        if (!(rate_of(o, i) > 0) || !isfinite(rate_of(o, i)))
            return err_set(CZ_INVALID, 0, "the rate of a swap file's folder is %g", rate_of(o, i));
    deal_counts(o, s);
    for (int u = 0; u < SWAP_PERIOD; u++) { /* the file that lags behind its share most */
        size_t next = 0;
        int most = -SWAP_PERIOD * SWAP_PERIOD;
        for (size_t i = 0; i < s->n_paths; i++) {
            int lag = s->n_of[i] * (u + 1) - used[i] * SWAP_PERIOD;
            if (lag > most) next = i, most = lag;
        }
        s->path_of[u] = (unsigned char)next;
        s->place_of[u] = (unsigned char)used[next]++;
    }
    return CZ_OK;
}

size_t swap_stripes_find(const struct swap_stripes *s, uint64_t off, uint64_t *file_off)
{
    uint64_t stripe = off / s->unit, period = stripe / SWAP_PERIOD;
    unsigned u = (unsigned)(stripe % SWAP_PERIOD);
    size_t path = s->path_of[u];
    *file_off = (period * (uint64_t)s->n_of[path] + s->place_of[u]) * s->unit + off % s->unit;
    return path;
}

uint64_t swap_stripes_nbytes(const struct swap_stripes *s, uint64_t nbytes, size_t path)
{
    if (s->n_paths == 1) return nbytes;
    uint64_t n = (nbytes + s->unit - 1) / s->unit, mine = n / SWAP_PERIOD * (uint64_t)s->n_of[path];
    for (unsigned u = 0; u < n % SWAP_PERIOD; u++) mine += s->path_of[u] == path;
    return mine * s->unit;
}
