/* Products of a warpgroup: see sim_warpgroup.h. */
#include "sim_warpgroup.h"

#include "sim_settings.h"
#include "sim_tensor.h"

#include <deque>
#include <vector>

#define GROUP_THREADS 128
#define MAX_N         256
#define WINDOW        ((uintptr_t)1 << 18) /* what a descriptor's 14 bits of address reach */
#define POISON        0x7fa5a5a5u          /* a signalling NaN: arithmetic makes another of it */

namespace {

/* The registers of one D, from its first product under way to the last one's wait. */
struct accumulators {
    float *d[GROUP_THREADS];
    int n, n_under_way;
    std::vector<float> values; /* (64, n) */
};

struct product {
    int n, group, n_threads; /* that have begun it */
    bool is_bf16, has_registers, a_by_columns, b_by_columns, adds, is_first, is_done;
    uint64_t a, b;
    struct accumulators *sums;
    const uint32_t *registers[GROUP_THREADS];
    uint32_t registers_then[GROUP_THREADS][4];
    const char *file;
    int line;
};

struct thread_state {
    size_t n_begun; /* products of the block */
    int group;      /* the open one */
    bool is_fenced;
    std::vector<uint32_t> unfenced; /* pieces of shared memory that its cp.async wrote */
};

struct warpgroup {
    std::deque<struct product> products; /* under way */
    size_t n_retired;
    int n_waiting, n_left; /* threads in a wait, and its number */
};

struct warpgroup groups[SIM_MAX_THREADS / GROUP_THREADS];
struct thread_state threads[SIM_MAX_THREADS];
uint16_t writer[WINDOW / 16]; /* thread + 1 that wrote 16 bytes and has not fenced */
uint64_t coin_state;

bool coin()
{
    coin_state = coin_state * 6364136223846793005u + 1442695040888963407u;
    return coin_state >> 63;
}

struct warpgroup *own_group()
{
    return &groups[sim_now.linear / GROUP_THREADS];
}

/* ---- registers
 * -----------------------------------------------------------------------------------
 */

/* Row and column of register i of a thread's D. */
int row_of(int thread, int i)
{
    return thread / 32 * 16 + thread % 32 / 4 + (i / 2 % 2) * 8;
}

int column_of(int thread, int i)
{
    return i / 4 * 8 + thread % 4 * 2 + i % 2;
}

void take_registers(struct accumulators *s, int thread, float *d)
{
    s->d[thread] = d;
    for (int i = 0; i < s->n / 2; i++)
        s->values[(size_t)(row_of(thread, i) * s->n + column_of(thread, i))] = d[i];
    const uint32_t poison = POISON;
    for (int i = 0; i < s->n / 2; i++) memcpy(&d[i], &poison, sizeof poison);
}

void give_registers(const struct accumulators *s, const struct product *p)
{
    for (int t = 0; t < GROUP_THREADS; t++)
        for (int i = 0; i < s->n / 2; i++) {
            uint32_t now;
            memcpy(&now, &s->d[t][i], sizeof now);
            if (now != POISON)
                sim_exec_fail(p->file, p->line,
                              "wgmma: thread %d wrote register %d of D before the wait", t, i);
            s->d[t][i] = s->values[(size_t)(row_of(t, i) * s->n + column_of(t, i))];
        }
}

/* ---- operands
 * ------------------------------------------------------------------------------------
 */

float (*convert_of(bool is_bf16))(uint16_t)
{
    return is_bf16 ? sim_float_of_bf16 : sim_float_of_f16;
}

/* Element (i, k) of a matrix in shared memory, i along m or n. */
struct reader {
    const struct product *p;
    uintptr_t start, leading, stride;
    bool by_columns;
    float (*convert)(uint16_t);

    float at(int i, int k) const
    {
        const uintptr_t ui = (uintptr_t)i, uk = (uintptr_t)k;
        const uintptr_t off = by_columns
                                  ? ui / 64 * leading + uk / 8 * stride + uk % 8 * 128 + ui % 64 * 2
                                  : ui / 8 * stride + ui % 8 * 128 + uk * 2;
        uintptr_t at = start + off;
        at ^= (at >> 7 & 7) << 4;
        const char *host = (const char *)sim_exec_shared_at(at, 2);
        if (!host)
            sim_exec_fail(p->file, p->line,
                          "wgmma: element (%d,%d) of an operand is at 0x%zx, "
                          "beyond dynamic shared memory",
                          i, k, (size_t)at);
        if (writer[at % WINDOW / 16])
            sim_exec_fail(p->file, p->line,
                          "wgmma: element (%d,%d) of an operand was copied by thread %d, which has "
                          "not called fence.proxy.async since",
                          i, k, writer[at % WINDOW / 16] - 1);
        uint16_t bits;
        memcpy(&bits, host, sizeof bits);
        return convert(bits);
    }
};

struct reader reader_of(const struct product *p, uint64_t descriptor, bool by_columns)
{
    if (descriptor >> 62 != 1 || (descriptor >> 46 & 0xffff) != 0 || (descriptor >> 30 & 3) != 0 ||
        (descriptor >> 14 & 3) != 0)
        sim_exec_fail(p->file, p->line,
                      "wgmma: descriptor 0x%016llx is not one of a 128-byte swizzle without base "
                      "offset",
                      (unsigned long long)descriptor);
    return {p,
            (uintptr_t)(descriptor & 0x3fff) << 4,
            (uintptr_t)(descriptor >> 16 & 0x3fff) << 4,
            (uintptr_t)(descriptor >> 32 & 0x3fff) << 4,
            by_columns,
            convert_of(p->is_bf16)};
}

void read_a(const struct product *p, float a[64][16])
{
    if (!p->has_registers) {
        const struct reader r = reader_of(p, p->a, p->a_by_columns);
        for (int i = 0; i < 64; i++)
            for (int k = 0; k < 16; k++) a[i][k] = r.at(i, k);
        return;
    }
    for (int t = 0; t < GROUP_THREADS; t++) {
        if (memcmp(p->registers[t], p->registers_then[t], sizeof p->registers_then[t]) != 0)
            sim_exec_fail(p->file, p->line, "wgmma: thread %d wrote A before the wait", t);
        for (int r = 0; r < 4; r++) {
            const int row = t / 32 * 16 + t % 32 / 4 + r % 2 * 8, k = t % 4 * 2 + r / 2 * 8;
            a[row][k] = convert_of(p->is_bf16)((uint16_t)p->registers[t][r]);
            a[row][k + 1] = convert_of(p->is_bf16)((uint16_t)(p->registers[t][r] >> 16));
        }
    }
}

/* ---- running
 * -------------------------------------------------------------------------------------
 */

void run(struct product *p)
{
    static float a[64][16], b[16][MAX_N];
    const struct reader r = reader_of(p, p->b, p->b_by_columns);
    read_a(p, a);
    for (int k = 0; k < 16; k++)
        for (int j = 0; j < p->n; j++) b[k][j] = r.at(j, k);
    float *d = p->sums->values.data();
    if (!p->adds) memset(d, 0, sizeof *d * p->sums->values.size());
    for (int i = 0; i < 64; i++)
        for (int k = 0; k < 16; k++)
            for (int j = 0; j < p->n; j++) d[i * p->n + j] += a[i][k] * b[k][j];
    p->is_done = true;
}

void retire(struct warpgroup *w)
{
    struct product *p = &w->products.front();
    if (!p->is_done) run(p);
    if (--p->sums->n_under_way == 0) {
        give_registers(p->sums, p);
        delete p->sums;
    }
    w->products.pop_front();
    w->n_retired++;
}

/* All threads of the warpgroup wait. */
void finish_groups(void *arg)
{
    struct warpgroup *w = (struct warpgroup *)arg;
    const int group = threads[sim_now.linear].group;
    for (const struct product &p : w->products)
        if (p.n_threads < GROUP_THREADS)
            sim_exec_fail(p.file, p.line, "wgmma: %d of %d threads began this product", p.n_threads,
                          GROUP_THREADS);
    w->n_waiting = 0;
    while (!w->products.empty() && w->products.front().group < group - w->n_left) retire(w);
}

/* D, by the first product on it that a thread begins. */
struct accumulators *sums_of(struct warpgroup *w, int thread, const float *d)
{
    for (struct product &p : w->products)
        if (p.sums->d[thread] == d) return p.sums;
    return nullptr;
}

/* A product that no thread has begun yet. */
void add_product(struct warpgroup *w, const float *d, const struct product &like, int thread)
{
    struct accumulators *under_way = sums_of(w, thread, d);
    w->products.push_back(like);
    struct product *p = &w->products.back();
    p->sums = under_way;
    p->is_first = !p->sums;
    if (p->is_first) {
        p->sums = new accumulators();
        p->sums->n = p->n;
        p->sums->values.resize((size_t)(64 * p->n));
    }
    p->sums->n_under_way++;
}

bool is_same(const struct product *p, const struct product *q)
{
    return p->n == q->n && p->is_bf16 == q->is_bf16 && p->has_registers == q->has_registers &&
           p->a_by_columns == q->a_by_columns && p->b_by_columns == q->b_by_columns &&
           p->adds == q->adds && p->a == q->a && p->b == q->b && p->group == q->group &&
           p->line == q->line;
}

} // namespace

void sim_wgmma(float *d, int n, bool is_bf16, const uint32_t *a_registers, uint64_t a, uint64_t b,
               bool b_by_columns, bool adds, bool a_by_columns, const char *file, int line)
{
    struct warpgroup *w = own_group();
    struct thread_state *me = &threads[sim_now.linear];
    const int thread = sim_now.linear % GROUP_THREADS;
    struct product like = {};
    like.n = n, like.is_bf16 = is_bf16, like.has_registers = a_registers != nullptr;
    like.a = a, like.b = b, like.adds = adds;
    like.a_by_columns = a_by_columns, like.b_by_columns = b_by_columns;
    like.group = me->group, like.file = file, like.line = line;
    const size_t at = me->n_begun++ - w->n_retired;
    if (at == w->products.size()) add_product(w, d, like, thread);
    struct product *p = &w->products[at];
    if (!is_same(p, &like))
        sim_exec_fail(file, line,
                      "wgmma: other threads of the warpgroup began another product at "
                      "%s:%d, or with other operands",
                      p->file, p->line);
    if (!me->is_fenced && (p->is_first || a_registers))
        sim_exec_fail(file, line, "wgmma: no wgmma.fence since the last wait");
    if (p->is_first)
        take_registers(p->sums, thread, d);
    else if (p->sums->d[thread] != d || p->sums->n != n)
        sim_exec_fail(file, line, "wgmma: D overlaps that of a product under way");
    if (a_registers) {
        p->registers[thread] = a_registers;
        memcpy(p->registers_then[thread], a_registers, sizeof p->registers_then[thread]);
    }
    if (++p->n_threads < GROUP_THREADS || sim_settings.order != SIM_ORDER_RANDOM || !coin()) return;
    for (size_t i = 0; i <= at; i++)
        if (!w->products[i].is_done) run(&w->products[i]);
}

void sim_wgmma_fence(void)
{
    threads[sim_now.linear].is_fenced = true;
}

void sim_wgmma_commit(void)
{
    threads[sim_now.linear].group++;
}

void sim_wgmma_wait(int n_newest_left, const char *file, int line)
{
    struct warpgroup *w = own_group();
    if (w->n_waiting++ > 0 && w->n_left != n_newest_left)
        sim_exec_fail(file, line, "wgmma.wait_group %d: other threads of the warpgroup wait for %d",
                      n_newest_left, w->n_left);
    w->n_left = n_newest_left;
    threads[sim_now.linear].is_fenced = false;
    sim_exec_meet(sim_now.linear / GROUP_THREADS, GROUP_THREADS, finish_groups, w,
                  "wgmma.wait_group", file, line);
}

/* ---- shared memory
 * -------------------------------------------------------------------------------
 */

void sim_fence_proxy_async(void)
{
    struct thread_state *me = &threads[sim_now.linear];
    for (uint32_t piece : me->unfenced)
        if (writer[piece] == sim_now.linear + 1) writer[piece] = 0;
    me->unfenced.clear();
}

void sim_warpgroup_copied(const void *shared, int nbytes, int thread)
{
    const uintptr_t at = (uintptr_t)shared % WINDOW;
    for (uintptr_t piece = at / 16; piece <= (at + (uintptr_t)nbytes - 1) / 16; piece++) {
        writer[piece] = (uint16_t)(thread + 1);
        threads[thread].unfenced.push_back((uint32_t)piece);
    }
}

/* ---- blocks
 * --------------------------------------------------------------------------------------
 */

void sim_warpgroup_begin_block(int n_threads)
{
    for (int t = 0; t < n_threads; t++) {
        for (uint32_t piece : threads[t].unfenced) writer[piece] = 0;
        threads[t].unfenced.clear();
        threads[t].n_begun = 0, threads[t].group = 0, threads[t].is_fenced = false;
    }
    for (struct warpgroup &w : groups) {
        for (struct product &p : w.products) /* of a kernel that was abandoned */
            if (--p.sums->n_under_way == 0) delete p.sums;
        w.products.clear();
        w.n_retired = 0, w.n_waiting = 0;
    }
    coin_state = sim_settings.order_seed;
}

const char *sim_warpgroup_end_block(void)
{
    for (const struct warpgroup &w : groups)
        if (!w.products.empty()) return "a product of a warpgroup was never waited for";
    return nullptr;
}
