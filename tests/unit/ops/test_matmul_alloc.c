/* Claims: once a shape has been seen, matmul, attention and the fused head allocate nothing that
 * stays, however often they are called. What the libraries below take for a moment is small: oneDNN
 * an argument list per product, the OpenMP run-time a record whenever the number of threads
 * changes. (Below AVX-512 oneDNN's fp32 product also packs its operands on the heap.) */
#include "ops/attention/attention.h"
#include "ops/cross_entropy/cross_entropy.h"
#include "ops/matmul/matmul_impl.h"
#include "tests/support/agree.h"

#include <stdatomic.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)

int main(void)
{
    printf("skipped: a sanitizer owns malloc here\n");
    return TEST_SKIPPED;
}

#else

/* The allocator is watched by standing in front of it: these definitions serve every library of the
 * process, C++ ones too. */
extern void *__libc_malloc(size_t nbytes);
extern void *__libc_calloc(size_t n, size_t nbytes);
extern void *__libc_realloc(void *p, size_t nbytes);
extern void *__libc_memalign(size_t align, size_t nbytes);
extern void __libc_free(void *p);

static atomic_bool watching;
static atomic_long n_live, largest;

static void *note(void *p, size_t nbytes)
{
    if (atomic_load(&watching) && p) {
        atomic_fetch_add(&n_live, 1);
        if ((long)nbytes > atomic_load(&largest)) atomic_store(&largest, (long)nbytes);
    }
    return p;
}

#define STAND_IN  __attribute__((visibility("default"), used))

STAND_IN void *malloc(size_t nbytes)
{
    return note(__libc_malloc(nbytes), nbytes);
}

STAND_IN void *calloc(size_t n, size_t nbytes)
{
    return note(__libc_calloc(n, nbytes), n * nbytes);
}

STAND_IN void *realloc(void *p, size_t nbytes)
{
    if (p && atomic_load(&watching)) atomic_fetch_sub(&n_live, 1);
    return note(__libc_realloc(p, nbytes), nbytes);
}

STAND_IN void *aligned_alloc(size_t align, size_t nbytes)
{
    return note(__libc_memalign(align, nbytes), nbytes);
}

STAND_IN int posix_memalign(void **out, size_t align, size_t nbytes)
{
    *out = note(__libc_memalign(align, nbytes), nbytes);
    return *out ? 0 : 12; /* ENOMEM */
}

STAND_IN void free(void *p)
{
    if (p && atomic_load(&watching)) atomic_fetch_sub(&n_live, 1);
    __libc_free(p);
}

static void watch(void)
{
    atomic_store(&n_live, 0), atomic_store(&largest, 0);
    atomic_store(&watching, true);
}

/* What CALLS calls left behind: nothing that grows with their number, nothing large. */
#define CALLS     20
#define STAYS_MAX 8
#define BYTES_MAX 4096

static void unwatch(const char *what, bool any_size)
{
    atomic_store(&watching, false);
    ck_assert_msg(atomic_load(&n_live) <= STAYS_MAX, "%s: %ld allocations stay after %d calls",
                  what, atomic_load(&n_live), CALLS);
    ck_assert_msg(any_size || atomic_load(&largest) <= BYTES_MAX, "%s: an allocation of %ld bytes",
                  what, atomic_load(&largest));
}

/* oneDNN's products with their own packing. */
static bool packs_on_the_heap(void)
{
    return (cpu_features() & CPU_AVX2) && !(cpu_features() & CPU_AVX512);
}

static struct device *device;
static struct ops *ops;

static void setup(void)
{
    ck_ok(device_open("cpu", 0, &device));
    ck_ok(ops_create(device, &ops));
}

static void teardown(void)
{
    ops_destroy(ops);
    device_close(device);
}

START_TEST(the_watch_sees_allocations)
{
    watch();
    void *volatile p = malloc(5000), *volatile q = malloc(1);
    free(p);
    atomic_store(&watching, false);
    ck_assert_int_eq(atomic_load(&largest), 5000);
    ck_assert_int_eq(atomic_load(&n_live), 1);
    free(q);
}
END_TEST

static void watched_matmul(enum cz_dtype dtype, bool trans_a, bool accumulate, int64_t pad)
{
    static float x[3][128 * 128];
    struct matmul_args a = {.m = 96,
                            .n = 80,
                            .k = 64,
                            .dtype = dtype,
                            .c_dtype = dtype,
                            .trans_a = trans_a,
                            .accumulate = accumulate,
                            .ldb = 80 + pad,
                            .a = x[0],
                            .b = x[1],
                            .bias = accumulate ? NULL : x[2],
                            .c = x[2]};
    ck_ok(ops_matmul_workspace(ops, &a, &a.workspace_nbytes));
    a.workspace = malloc(a.workspace_nbytes + 1);
    for (int i = 0; i < 2; i++) ck_ok(ops_matmul(ops, NULL, &a));
    watch();
    for (int i = 0; i < CALLS; i++) ck_ok(ops_matmul(ops, NULL, &a));
    unwatch("matmul", packs_on_the_heap());
    free(a.workspace);
}

START_TEST(matmul_keeps_nothing)
{
    setup();
    for (int dtype = DTYPE_F32; dtype <= DTYPE_F16; dtype++)
        for (int form = 0; form < 8; form++)
            watched_matmul((enum cz_dtype)dtype, form & 1, form & 2, form & 4);
    teardown();
}
END_TEST

START_TEST(attention_keeps_nothing)
{
    setup();
    enum { B = 2, T = 70, H = 4, D = 16, C = H * D };
    static float x[8][B * T * C], lse[B * H * T];
    struct attention_args a = {.B = B,
                               .Tq = T,
                               .Tk = T,
                               .H = H,
                               .G = H,
                               .D = D,
                               .scale = 0.25f,
                               .causal = true,
                               .q = x[0],
                               .k = x[1],
                               .v = x[2],
                               .q_stride = C,
                               .k_stride = C,
                               .v_stride = C,
                               .out = x[3],
                               .out_stride = C,
                               .lse = lse,
                               .dropout_p = 0.1f,
                               .dout = x[4],
                               .dq = x[5],
                               .dk = x[6],
                               .dv = x[7]};
    a.workspace_nbytes = ops_attention_workspace(ops, &a, true);
    size_t forward = ops_attention_workspace(ops, &a, false);
    if (forward > a.workspace_nbytes) a.workspace_nbytes = forward;
    a.workspace = malloc(a.workspace_nbytes);
    ck_ok(ops_attention_forward(ops, NULL, &a));
    ck_ok(ops_attention_backward(ops, NULL, &a));
    watch();
    for (int i = 0; i < CALLS; i++) {
        ck_ok(ops_attention_forward(ops, NULL, &a));
        ck_ok(ops_attention_backward(ops, NULL, &a));
    }
    unwatch("attention", false);
    free(a.workspace);
    teardown();
}
END_TEST

START_TEST(the_head_keeps_nothing)
{
    setup();
    enum { N = 12, C = 8, V = 2100 };
    static float x[N * C], w[V * C], dx[N * C], dw[V * C], loss;
    static int32_t labels[N];
    for (int dtype = DTYPE_F32; dtype <= DTYPE_F16; dtype++) {
        struct ce_head_args a = {.N = N,
                                 .C = C,
                                 .V = V,
                                 .dtype = (enum cz_dtype)dtype,
                                 .grad_dtype = (enum cz_dtype)dtype,
                                 .x = x,
                                 .w = w,
                                 .labels = labels,
                                 .loss = &loss,
                                 .dloss = 1,
                                 .dx = dx,
                                 .dw = dw};
        ck_ok(ops_ce_head_workspace(ops, &a, &a.workspace_nbytes));
        a.workspace = malloc(a.workspace_nbytes);
        for (int i = 0; i < 2; i++) ck_ok(ops_ce_head(ops, NULL, &a));
        watch();
        for (int i = 0; i < CALLS; i++) ck_ok(ops_ce_head(ops, NULL, &a));
        unwatch("ce_head", packs_on_the_heap());
        free(a.workspace);
    }
    teardown();
}
END_TEST

TEST_MAIN("ops/matmul_alloc", the_watch_sees_allocations, matmul_keeps_nothing,
          attention_keeps_nothing, the_head_keeps_nothing)

#endif
