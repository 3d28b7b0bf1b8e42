/* Claims: the PTX interpreter computes what the PTX ISA says, lanes that part meet again, and what
 * it watches for is found when it is planted: races, missing waits, accesses that are not allowed,
 * barriers and collectives that cannot complete. */
#include "tests/gpu_sim/sim_test.h"

#include "tests/support/cuda_sim/ptx/ptx_test.h"

#include <math.h>

#define MODULE      ".version 8.0\n.target sm_90\n.address_size 64\n"
#define ENTRY(name) ".visible .entry " name "(.param .u64 out, .param .u64 in)\n{\n"
/* %r1: thread, %r2: block, %rd1: out, %rd2: in, %rd3 and %rd4: 4 bytes a thread of both */
#define REGISTERS                                                                                  \
    ".reg .pred %p<16>; .reg .b16 %h<16>; .reg .b32 %r<64>; .reg .f32 %f<64>; .reg .b64 %d<32>;\n" \
    ".reg .b64 %rd<16>;\n"                                                                         \
    "mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x;\n"                                                \
    "ld.param.u64 %rd1, [out]; ld.param.u64 %rd2, [in];\n"                                         \
    "mul.wide.u32 %rd3, %r1, 4; add.s64 %rd4, %rd2, %rd3; add.s64 %rd3, %rd1, %rd3;\n"

struct run {
    unsigned blocks, threads;
    size_t shared_nbytes;
};

/* Run `body` with two pointers; returns what a wait for it returns. */
static cudaError_t run_text(const char *text, struct run how, void *out, const void *in)
{
    const struct ptx_argument arguments[] = {{&out, sizeof out}, {&in, sizeof in}};
    const dim3 grid = {how.blocks, 1, 1}, block = {how.threads, 1, 1};
    cudaError_t error =
        ptx_launch_text(text, "kernel", grid, block, how.shared_nbytes, NULL, arguments, 2);
    return error != cudaSuccess ? error : cudaDeviceSynchronize();
}

#define TEXT(body) (MODULE ENTRY("kernel") REGISTERS body "\nret;\n}\n")
/* The same with 256 bytes of static shared memory, sh; %r3: 4 bytes of it per thread. */
#define SHARED_TEXT(body)                                                                          \
    TEXT(".shared .align 16 .b8 sh[256];\n"                                                        \
         "mov.u32 %r3, sh; shl.b32 %r4, %r1, 2; add.s32 %r3, %r3, %r4;\n" body)

static uint32_t *fresh_words(size_t n)
{
    uint32_t *p = device_alloc(n * sizeof *p);
    ck_cuda(cudaMemset(p, 0, n * sizeof *p));
    return p;
}

/* ---- arithmetic ---- */

/* out[0] = op of the inputs' words. */
#define ck_computes(body, want, ...)                                                               \
    do {                                                                                           \
        const uint32_t ck_in_[] = {__VA_ARGS__};                                                   \
        uint32_t ck_got_;                                                                          \
        uint32_t *ck_out_ = fresh_words(1);                                                        \
        const void *ck_at_ = device_copy_of(ck_in_, sizeof ck_in_);                                \
        ck_cuda(run_text(TEXT("ld.global.u32 %r10, [%rd2]; ld.global.f32 %f10, [%rd2];\n"          \
                              "ld.global.u32 %r11, [%rd2+4]; ld.global.f32 %f11, [%rd2+4];\n"      \
                              "ld.global.u32 %r12, [%rd2+8]; ld.global.f32 %f12, [%rd2+8];\n" body \
                              "\nst.global.u32 [%rd1], %r20;"),                                    \
                         (struct run){1, 1, 0}, ck_out_, ck_at_));                                 \
        from_device(&ck_got_, ck_out_, 4);                                                         \
        ck_assert_msg(ck_got_ == (want), "%s: %08x, want %08x", body, ck_got_, (uint32_t)(want));  \
    } while (0)

static uint32_t bits(float x)
{
    uint32_t b;
    memcpy(&b, &x, sizeof b);
    return b;
}

#define NAN_BITS 0x7fffffffu

START_TEST(integers_are_the_isas)
{
    sim_with(NULL, NULL);
    ck_computes("mul.hi.s32 %r20, %r10, %r11;", (uint32_t)-1, (uint32_t)-5, 7, 0);
    ck_computes("mul.hi.u32 %r20, %r10, %r11;", 6u, (uint32_t)-5, 7, 0);
    ck_computes("div.s32 %r20, %r10, %r11;", (uint32_t)-3, (uint32_t)-7, 2, 0);
    ck_computes("rem.s32 %r20, %r10, %r11;", (uint32_t)-1, (uint32_t)-7, 2, 0);
    ck_computes("shl.b32 %r20, %r10, %r11;", 0u, 5, 32, 0);
    ck_computes("shr.s32 %r20, %r10, %r11;", 0xffffffffu, 0x80000000u, 99, 0);
    ck_computes("shr.u32 %r20, %r10, %r11;", 0u, 0x80000000u, 99, 0);
    ck_computes("bfe.s32 %r20, %r10, 4, 4;", 0xfffffff9u, 0x90, 0, 0);
    ck_computes("bfi.b32 %r20, %r10, %r11, 8, 4;", 0xfffffaffu, 0xa, 0xffffffffu, 0);
    ck_computes("prmt.b32 %r20, %r10, %r11, 0x5410;", 0xbbaa2211u, 0x44332211u, 0xddccbbaau, 0);
    ck_computes("lop3.b32 %r20, %r10, %r11, %r12, 0x96;", 0xf0u ^ 0xccu ^ 0xaau, 0xf0, 0xcc, 0xaa);
    ck_computes("brev.b32 %r20, %r10;", 0x80000001u, 0x80000001u, 0, 0);
    ck_computes("bfind.u32 %r20, %r10;", 0xffffffffu, 0, 0, 0);
    ck_computes("mad.lo.s32 %r20, %r10, %r11, %r12;", 47u, 5, 8, 7);
    ck_computes("add.cc.u32 %r21, %r10, %r10; addc.u32 %r20, %r11, 0;", 8u, 0x80000000u, 7, 0);
    ck_computes("sub.cc.u32 %r21, %r10, %r11; subc.u32 %r20, %r12, 0;", 4u, 1, 2, 5);
    ck_computes("mad.lo.cc.u32 %r21, %r10, %r11, %r10; madc.hi.u32 %r20, %r10, %r11, 5;", 9u,
                0xffffffffu, 4, 0);
    ck_computes("mad.lo.cc.s32 %r21, %r10, %r11, %r12; madc.hi.s32 %r20, %r10, %r11, 0;", 0u,
                (uint32_t)-1, 1, 1);
    ck_computes("cvt.s32.s8 %r20, %r10;", 0xffffff80u, 0x1280, 0, 0);
    ck_computes("cvt.sat.u8.s32 %r20, %r10;", 255u, 300, 0, 0);
}
END_TEST

START_TEST(floats_round_as_asked)
{
    sim_with(NULL, NULL);
    const uint32_t one = bits(1), tiny = bits(0x1p-30f), minus = bits(-0x1p-30f);
    ck_computes("add.rn.f32 %f20, %f10, %f11; mov.b32 %r20, %f20;", one, one, tiny, 0);
    ck_computes("add.rp.f32 %f20, %f10, %f11; mov.b32 %r20, %f20;", one + 1, one, tiny, 0);
    ck_computes("add.rz.f32 %f20, %f10, %f11; mov.b32 %r20, %f20;", one - 1, one, minus, 0);
    ck_computes("fma.rm.f32 %f20, %f10, %f10, %f11; mov.b32 %r20, %f20;", one - 1, one, minus, 0);
    ck_computes("add.rn.f32 %f20, %f10, %f11; mov.b32 %r20, %f20;", NAN_BITS, bits(INFINITY),
                bits(-INFINITY), 0);
    ck_computes("mul.ftz.f32 %f20, %f10, %f11; mov.b32 %r20, %f20;", 0x80000000u, 0x80000001u,
                bits(3), 0);
    ck_computes("min.f32 %f20, %f10, %f11; mov.b32 %r20, %f20;", bits(2), NAN_BITS, bits(2), 0);
    ck_computes("max.f32 %f20, %f10, %f11; mov.b32 %r20, %f20;", 0u, 0x80000000u, 0, 0);
    ck_computes("copysign.f32 %f20, %f10, %f11; mov.b32 %r20, %f20;", bits(-3), bits(-1), bits(3),
                0);
    ck_computes("ex2.approx.ftz.f32 %f20, %f10; mov.b32 %r20, %f20;", bits(exp2f(0.3f)), bits(0.3f),
                0, 0);
    ck_computes("ex2.approx.ftz.f32 %f20, %f10; mov.b32 %r20, %f20;", 0u, bits(-127), 0, 0);
    ck_computes("rcp.approx.ftz.f32 %f20, %f10; mov.b32 %r20, %f20;", bits(0.25f), bits(4), 0, 0);
    ck_computes("setp.nan.f32 %p1, %f10, %f11; selp.u32 %r20, 1, 0, %p1;", 1u, NAN_BITS, one, 0);
    ck_computes("setp.neu.f32 %p1, %f10, %f11; selp.u32 %r20, 1, 0, %p1;", 1u, NAN_BITS, one, 0);
    ck_computes("setp.ne.f32 %p1, %f10, %f11; selp.u32 %r20, 1, 0, %p1;", 0u, NAN_BITS, one, 0);
}
END_TEST

START_TEST(conversions_clamp_and_round)
{
    sim_with(NULL, NULL);
    ck_computes("cvt.rzi.s32.f32 %r20, %f10;", 0x7fffffffu, bits(3e9f), 0, 0);
    ck_computes("cvt.rzi.u32.f32 %r20, %f10;", 0u, bits(-3), 0, 0);
    ck_computes("cvt.rzi.s32.f32 %r20, %f10;", 0u, NAN_BITS, 0, 0);
    ck_computes("cvt.rni.s32.f32 %r20, %f10;", 2u, bits(2.5f), 0, 0);
    ck_computes("cvt.rmi.s32.f32 %r20, %f10;", (uint32_t)-3, bits(-2.5f), 0, 0);
    ck_computes("cvt.rn.bf16x2.f32 %r20, %f10, %f11;", 0x3f803f80u, bits(1.00390625f), bits(1), 0);
    ck_computes("cvt.rn.f16x2.f32 %r20, %f10, %f11;", 0x7c007bffu, bits(65520), bits(65519), 0);
    ck_computes("cvt.rmi.s32.f32 %r20, %f10;", (uint32_t)-1, 0x80000001u, 0, 0);
    ck_computes("cvt.rmi.ftz.s32.f32 %r20, %f10;", 0u, 0x80000001u, 0, 0);
    ck_computes("cvt.rpi.ftz.f32.f32 %f20, %f10; mov.b32 %r20, %f20;", bits(2), bits(1.5f), 0, 0);
    ck_computes("cvt.rpi.ftz.f32.f32 %f20, %f10; mov.b32 %r20, %f20;", 0u, 1, 0, 0);
    ck_computes("cvt.rn.f16.u32 %h1, %r10; cvt.u32.u16 %r20, %h1;", 0x6800u, 2049, 0, 0);
    ck_computes("cvt.rn.bf16.f32 %h1, %f10; cvt.u32.u16 %r20, %h1;", 0x7fffu, 0xff800001u, 0, 0);
    ck_computes("cvt.sat.f32.f32 %f20, %f10; mov.b32 %r20, %f20;", 0u, NAN_BITS, 0, 0);
    ck_computes("mov.b32 {%h1, %h2}, %r10; mov.b32 %r20, {%h2, %h1};", 0x56781234u, 0x12345678u, 0,
                0);
    ck_computes("mov.b64 %d1, {%r10, %r11}; mov.b64 {_, %r20}, %d1;", 7u, 5, 7, 0);
}
END_TEST

START_TEST(approximations_may_be_off_by_their_error)
{
    const char *text = TEXT("ld.global.f32 %f1, [%rd4]; ex2.approx.f32 %f2, %f1;\n"
                            "st.global.f32 [%rd3], %f2;");
    float in[256], exact[256], off[256];
    int n_off = 0;
    for (int i = 0; i < 256; i++) in[i] = (float)i / 37 - 3;
    for (int seed = 0; seed < 2; seed++) {
        sim_with(seed ? "APPROX" : NULL, "7");
        uint32_t *out = fresh_words(256);
        ck_cuda(run_text(text, (struct run){1, 256, 0}, out, device_copy_of(in, sizeof in)));
        from_device(seed ? off : exact, out, sizeof off);
    }
    for (int i = 0; i < 256; i++) {
        ck_assert_float_eq(exact[i], (float)exp2((double)in[i]));
        ck_assert(fabsf(off[i] - exact[i]) <= 0x1p-21f * exact[i]);
        n_off += off[i] != exact[i];
    }
    ck_assert_int_gt(n_off, 64);
}
END_TEST

/* ---- lanes that part ---- */

START_TEST(lanes_part_and_meet_again)
{
    /* thread t adds 1 + 2 + … + t % 7, then all shuffle: lane l takes lane l ^ 1's sum */
    const char *text = TEXT("rem.u32 %r5, %r1, 7; mov.u32 %r6, 0;\n"
                            "L1: setp.eq.u32 %p1, %r5, 0; @%p1 bra L2;\n"
                            "add.s32 %r6, %r6, %r5; sub.s32 %r5, %r5, 1; bra.uni L1;\n"
                            "L2: shfl.sync.bfly.b32 %r7|%p2, %r6, 1, 31, -1;\n"
                            "st.global.u32 [%rd3], %r7;");
    for (size_t o = 0; o < N_SIM_ORDERS; o++) {
        uint32_t got[96];
        sim_with("ORDER", sim_orders[o]);
        uint32_t *out = fresh_words(96);
        ck_cuda(run_text(text, (struct run){1, 96, 0}, out, out));
        from_device(got, out, sizeof got);
        for (uint32_t t = 0; t < 96; t++) {
            const uint32_t n = (t ^ 1) % 7;
            ck_assert_uint_eq(got[t], n * (n + 1) / 2);
        }
    }
}
END_TEST

/* ---- matrices ---- */

static float half_value(uint32_t i)
{
    return (float)(i % 5) - 2;
}

static uint16_t bf16_of(float x)
{
    return (uint16_t)(bits(x) >> 16); /* small integers are exact */
}

/* A (16,16) and B (16,8) as registers of a warp: 4 and 2 words a lane. */
static void fragments(uint32_t a[32][4], uint32_t b[32][2])
{
    for (int l = 0; l < 32; l++) {
        const int g = l / 4, t = l % 4;
        for (int r = 0; r < 4; r++) {
            const int row = g + 8 * (r % 2), col = 2 * t + 8 * (r / 2);
            a[l][r] = (uint32_t)bf16_of(half_value((uint32_t)(row * 3 + col * 7 + 1))) << 16;
            a[l][r] |= bf16_of(half_value((uint32_t)(row * 3 + col * 7)));
        }
        for (int r = 0; r < 2; r++) {
            const int row = 2 * t + 8 * r;
            b[l][r] = (uint32_t)bf16_of(half_value((uint32_t)(row * 2 + 2 + g * 3))) << 16;
            b[l][r] |= bf16_of(half_value((uint32_t)(row * 2 + g * 3)));
        }
    }
}

static float product(int i, int j)
{
    float sum = 0;
    for (int k = 0; k < 16; k++) {
        const int even = k / 2 * 2; /* the odd element of a pair has one more */
        sum += half_value((uint32_t)(i * 3 + even * 7 + k % 2)) *
               half_value((uint32_t)(even * 2 + 2 * (k % 2) + j * 3));
    }
    return sum;
}

/* How many elements of D are right. */
static int mma_right(const char *text)
{
    uint32_t in[32][6], a[32][4], b[32][2];
    float d[32][4];
    int n = 0;
    fragments(a, b);
    for (int l = 0; l < 32; l++) {
        memcpy(in[l], a[l], sizeof a[l]);
        memcpy(in[l] + 4, b[l], sizeof b[l]);
    }
    uint32_t *out = fresh_words(128);
    ck_cuda(run_text(text, (struct run){1, 32, 0}, out, device_copy_of(in, sizeof in)));
    from_device(d, out, sizeof d);
    for (int l = 0; l < 32; l++)
        for (int r = 0; r < 4; r++)
            n += d[l][r] == product(l / 4 + 8 * (r / 2), 2 * (l % 4) + r % 2);
    return n;
}

#define MMA_TEXT(a)                                                                                \
    TEXT("mul.wide.u32 %rd5, %r1, 24; add.s64 %rd5, %rd5, %rd2; mul.wide.u32 %rd6, %r1, 16;\n"     \
         "add.s64 %rd6, %rd6, %rd1; mov.f32 %f1, 0f00000000;\n"                                    \
         "ld.global.v2.u32 {%r10, %r11}, [%rd5]; ld.global.v2.u32 {%r12, %r13}, [%rd5+8];\n"       \
         "ld.global.v2.u32 {%r14, %r15}, [%rd5+16];\n"                                             \
         "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f2, %f3, %f4, %f5}, " a            \
         ", {%r14, %r15}, {%f1, %f1, %f1, %f1};\n"                                                 \
         "st.global.v4.f32 [%rd6], {%f2, %f3, %f4, %f5};")

START_TEST(products_are_right_and_wrong_fragments_show)
{
    sim_with(NULL, NULL);
    ck_assert_int_eq(mma_right(MMA_TEXT("{%r10, %r11, %r12, %r13}")), 128);
    ck_assert_int_lt(mma_right(MMA_TEXT("{%r10, %r12, %r11, %r13}")), 100);
}
END_TEST

/* A (64,16) and B (8,16), both with their rows along k, of lines of 128 bytes whose chunk c is at
 * c ^ (line % 8), are copied to shared memory and multiplied by a warpgroup. */
#define WGMMA_TEXT(proxy, fence)                                                                   \
    TEXT(".shared .align 1024 .b8 sh[9216]; mov.u32 %r3, sh; mov.u32 %r4, 0;\n"                    \
         "shl.b32 %r5, %r1, 2; add.s32 %r3, %r3, %r5;\n"                                           \
         "L1: ld.global.u32 %r6, [%rd4]; st.shared.u32 [%r3], %r6;\n"                              \
         "add.s64 %rd4, %rd4, 512; add.s32 %r3, %r3, 512; add.s32 %r4, %r4, 1;\n"                  \
         "setp.lt.u32 %p1, %r4, 18; @%p1 bra L1;\n" proxy "\nbar.sync 0;\n"                        \
         "mov.u32 %r7, sh; shr.u32 %r7, %r7, 4; cvt.u64.u32 %rd5, %r7;\n"                          \
         "or.b64 %rd5, %rd5, 0x4000004000010000; add.s64 %rd6, %rd5, 512;\n"                       \
         "setp.ne.u32 %p2, %r4, %r4;\n" fence "\n"                                                 \
         "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f1, %f2, %f3, %f4}, %rd5, %rd6, "  \
         "%p2, 1, 1, 0, 0;\n"                                                                      \
         "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;\n"                     \
         "mul.wide.u32 %rd7, %r1, 16; add.s64 %rd7, %rd7, %rd1;\n"                                 \
         "st.global.v4.f32 [%rd7], {%f1, %f2, %f3, %f4};")

static void *panels(void)
{
    static uint16_t image[9216 / 2];
    memset(image, 0, sizeof image);
    for (uint32_t line = 0; line < 72; line++)
        for (uint32_t k = 0; k < 16; k++) {
            const uint32_t b = line - 64, at = line * 64 + ((k / 8) ^ (line % 8)) * 8 + k % 8;
            image[at] = bf16_of(half_value(line < 64 ? line * 3 + k * 5 : k * 2 + b * 7));
        }
    return device_copy_of(image, sizeof image);
}

START_TEST(warpgroups_multiply_what_a_fence_has_passed_by)
{
    const struct run group = {1, 128, 0};
    float d[128][4];
    sim_with(NULL, NULL);
    uint32_t *out = fresh_words(512);
    ck_cuda(run_text(WGMMA_TEXT("fence.proxy.async.shared::cta;", "wgmma.fence.sync.aligned;"),
                     group, out, panels()));
    from_device(d, out, sizeof d);
    for (uint32_t t = 0; t < 128; t++)
        for (uint32_t r = 0; r < 4; r++) {
            const uint32_t i = t / 32 * 16 + t % 32 / 4 + r / 2 * 8, j = t % 4 * 2 + r % 2;
            float want = 0;
            for (uint32_t k = 0; k < 16; k++)
                want += half_value(i * 3 + k * 5) * half_value(k * 2 + j * 7);
            ck_assert_float_eq(d[t][r], want);
        }
    ck_assert_int_ne(run_text(WGMMA_TEXT("", "wgmma.fence.sync.aligned;"), group, out, panels()),
                     cudaSuccess);
    ck_assert_ptr_nonnull(strstr(sim_last_message(), "fence.proxy.async"));
    /* after the barrier, by the threads that multiply: also correct; by only some of them: not */
    sim_with(NULL, NULL);
    ck_cuda(run_text(WGMMA_TEXT("", "fence.proxy.async.shared::cta; wgmma.fence.sync.aligned;"),
                     group, fresh_words(512), panels()));
    ck_assert_int_ne(run_text(WGMMA_TEXT("", "setp.lt.u32 %p3, %r1, 32;\n"
                                             "@%p3 fence.proxy.async.shared::cta;\n"
                                             "wgmma.fence.sync.aligned;"),
                              group, fresh_words(512), panels()),
                     cudaSuccess);
    ck_assert_ptr_nonnull(strstr(sim_last_message(), "fence.proxy.async"));
    sim_with(NULL, NULL);
    ck_cuda(run_text(WGMMA_TEXT("", "setp.lt.u32 %p3, %r1, 32;\n"
                                    "@%p3 fence.proxy.async.shared::cta;\n"
                                    "bar.sync 0; wgmma.fence.sync.aligned;"),
                     group, fresh_words(512), panels()));
    sim_with(NULL, NULL);
    ck_assert_int_ne(run_text(WGMMA_TEXT("fence.proxy.async.shared::cta;", ""), group,
                              fresh_words(512), panels()),
                     cudaSuccess);
    ck_assert_ptr_nonnull(strstr(sim_last_message(), "wgmma.fence"));
}
END_TEST

START_TEST(ldmatrix_gives_rows_or_columns)
{
    /* 8 rows of 8 elements; element (i, j) is 8 i + j */
    static const char *const ways[] = {
        SHARED_TEXT("ld.global.u32 %r5, [%rd4]; st.shared.u32 [%r3], %r5; bar.sync 0;\n"
                    "and.b32 %r6, %r1, 7; shl.b32 %r6, %r6, 4; mov.u32 %r7, sh;\n"
                    "add.s32 %r6, %r6, %r7;\n"
                    "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r8}, [%r6];\n"
                    "st.global.u32 [%rd3], %r8;"),
        SHARED_TEXT("ld.global.u32 %r5, [%rd4]; st.shared.u32 [%r3], %r5; bar.sync 0;\n"
                    "and.b32 %r6, %r1, 7; shl.b32 %r6, %r6, 4; mov.u32 %r7, sh;\n"
                    "add.s32 %r6, %r6, %r7;\n"
                    "ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%r8}, [%r6];\n"
                    "st.global.u32 [%rd3], %r8;")};
    uint16_t in[64];
    uint32_t got[32];
    sim_with(NULL, NULL);
    for (uint16_t i = 0; i < 64; i++) in[i] = i;
    for (int way = 0; way < 2; way++) {
        uint32_t *out = fresh_words(32);
        ck_cuda(run_text(ways[way], (struct run){1, 32, 0}, out, device_copy_of(in, sizeof in)));
        from_device(got, out, sizeof got);
        for (uint32_t l = 0; l < 32; l++) {
            const uint32_t g = l / 4, t = l % 4;
            const uint32_t low = way ? 16 * t + g : 8 * g + 2 * t;
            ck_assert_uint_eq(got[l], (low + (way ? 8 : 1)) << 16 | low);
        }
    }
}
END_TEST

START_TEST(stmatrix_puts_rows_or_columns)
{
    /* what ldmatrix would have given a lane is stored: the matrix is there again */
    static const char *const ways[] = {
        SHARED_TEXT("ld.global.u32 %r8, [%rd4]; and.b32 %r6, %r1, 7; shl.b32 %r6, %r6, 4;\n"
                    "mov.u32 %r7, sh; add.s32 %r6, %r6, %r7;\n"
                    "stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r6], {%r8};\n"
                    "bar.warp.sync -1; ld.shared.u32 %r9, [%r3]; st.global.u32 [%rd3], %r9;"),
        SHARED_TEXT("ld.global.u32 %r8, [%rd4]; and.b32 %r6, %r1, 7; shl.b32 %r6, %r6, 4;\n"
                    "mov.u32 %r7, sh; add.s32 %r6, %r6, %r7;\n"
                    "stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%r6], {%r8};\n"
                    "bar.warp.sync -1; ld.shared.u32 %r9, [%r3]; st.global.u32 [%rd3], %r9;")};
    uint32_t in[32];
    uint16_t got[64];
    sim_with(NULL, NULL);
    for (uint32_t way = 0; way < 2; way++) {
        for (uint32_t l = 0; l < 32; l++) {
            const uint32_t low = way ? 16 * (l % 4) + l / 4 : 8 * (l / 4) + 2 * (l % 4);
            in[l] = (low + (way ? 8 : 1)) << 16 | low;
        }
        uint32_t *out = fresh_words(32);
        ck_cuda(run_text(ways[way], (struct run){1, 32, 0}, out, device_copy_of(in, sizeof in)));
        from_device(got, out, sizeof got);
        for (uint32_t i = 0; i < 64; i++) ck_assert_uint_eq(got[i], i);
    }
}
END_TEST

START_TEST(atomics_add_vectors_and_halves)
{
    /* 0.5 and 1.5 as f16 and bf16; 32 lanes each */
    const char *text =
        TEXT("mov.b32 %r5, 0x3e003800; mov.b32 %r6, 0x3fc03f00; mov.b32 %f1, 0f3F000000;\n"
             "mov.b32 {%h1, %h2}, %r5; mov.b32 {%h3, %h4}, %r6; mov.b32 %f2, 0f40000000;\n"
             "red.global.gpu.relaxed.add.v4.f32 [%rd1], {%f1, %f2, %f1, %f2};\n"
             "atom.global.gpu.relaxed.add.noftz.f16x2 %r7, [%rd1+16], %r5;\n"
             "atom.global.gpu.relaxed.add.noftz.bf16x2 %r7, [%rd1+20], %r6;\n"
             "atom.global.gpu.relaxed.add.noftz.f16 %h5, [%rd1+24], %h1;\n"
             "red.global.gpu.relaxed.add.noftz.bf16 [%rd1+26], %h4;");
    uint32_t got[7];
    sim_with(NULL, NULL);
    uint32_t *out = fresh_words(7);
    ck_cuda(run_text(text, (struct run){1, 32, 0}, out, out));
    from_device(got, out, sizeof got);
    for (int i = 0; i < 4; i++) ck_assert_uint_eq(got[i], bits(i % 2 ? 64 : 16));
    ck_assert_uint_eq(got[4], 0x52004c00); /* 48, 16 */
    ck_assert_uint_eq(got[5], 0x42404180);
    ck_assert_uint_eq(got[6], 0x42404c00);
}
END_TEST

/* ---- what is watched ---- */

/* The kernel is ended, by a sentence that has these words in it. */
static void finds(const char *text, struct run how, const char *words)
{
    sim_with(NULL, NULL);
    uint32_t *out = fresh_words(128);
    const cudaError_t error = run_text(text, how, out, fresh_words(128));
    ck_assert_msg(error != cudaSuccess, "nothing was found; looked for \"%s\"", words);
    ck_assert_msg(strstr(sim_last_message(), words), "found \"%s\", looked for \"%s\"",
                  sim_last_message(), words);
    ck_assert_ptr_nonnull(strstr(sim_last_message(), "PTX line"));
}

static void finds_nothing(const char *text, struct run how)
{
    for (size_t o = 0; o < N_SIM_ORDERS; o++) {
        sim_with("ORDER", sim_orders[o]);
        ck_cuda(run_text(text, how, fresh_words(128), fresh_words(128)));
    }
}

/* Thread t takes what its neighbour wrote, behind `barrier`. */
#define NEIGHBOUR(neighbour, barrier)                                                              \
    SHARED_TEXT("st.shared.u32 [%r3], %r1;\n" barrier "\nxor.b32 %r5, %r3, " neighbour             \
                "; ld.shared.u32 %r6, [%r5]; st.global.u32 [%rd3], %r6;")

START_TEST(races_in_shared_memory_are_found)
{
    const struct run two_warps = {1, 64, 0};
    finds(NEIGHBOUR("128", ""), two_warps, "not written");
    finds(NEIGHBOUR("128", "bar.warp.sync -1;"), two_warps, "not written");
    finds_nothing(NEIGHBOUR("128", "bar.sync 0;"), two_warps);
    finds(NEIGHBOUR("4", ""), two_warps, "race");
    finds_nothing(NEIGHBOUR("4", "bar.warp.sync -1;"), two_warps);
    /* both warps write the same word; one reads what the other then writes */
    finds(SHARED_TEXT("mov.u32 %r5, sh; setp.eq.u32 %p1, %r1, 0; setp.eq.u32 %p2, %r1, 32;\n"
                      "@%p1 st.shared.u32 [%r5], %r1;\n@%p2 st.shared.u32 [%r5], %r1;"),
          two_warps, "was written by thread 0");
    finds(SHARED_TEXT("mov.u32 %r5, sh; setp.eq.u32 %p1, %r1, 0; setp.eq.u32 %p2, %r1, 32;\n"
                      "@%p1 st.shared.u32 [%r5], %r1;\nbar.sync 0;\n"
                      "@%p1 ld.shared.u32 %r6, [%r5];\n@%p2 st.shared.u32 [%r5], %r1;"),
          two_warps, "race");
}
END_TEST

START_TEST(stores_of_the_same_bits_are_told_apart)
{
    const struct run warp = {1, 32, 0}, two_warps = {1, 64, 0};
    /* lanes of one instruction: one of them stores */
    const char *lanes = SHARED_TEXT("st.shared.v2.u32 [sh], {7, %r2}; bar.sync 0;\n"
                                    "ld.shared.u32 %r5, [sh]; st.global.u32 [%rd3], %r5;");
    finds_nothing(lanes, warp);
    finds(SHARED_TEXT("st.shared.v2.u32 [sh], {7, %r1};"), warp, "race");
    finds(SHARED_TEXT("and.b32 %r5, %r3, -8; st.shared.u32 [%r5], %r1;"), warp, "race");
    /* two warps, which only Triton is forgiven */
    finds(lanes, two_warps, "race");
    sim_with("ECHO", "on");
    ck_cuda(run_text(lanes, two_warps, fresh_words(64), fresh_words(64)));
    ck_assert_int_ne(run_text(SHARED_TEXT("shr.u32 %r5, %r1, 5; st.shared.u32 [sh], %r5;"),
                              two_warps, fresh_words(64), fresh_words(64)),
                     cudaSuccess);
    ck_assert_ptr_nonnull(strstr(sim_last_message(), "race"));
}
END_TEST

START_TEST(named_barriers_order_those_who_come)
{
    const struct run three_warps = {1, 96, 0};
    /* warp 0 writes and arrives, warp 1 waits for it and reads; warp 2 has no part */
    const char *good = SHARED_TEXT("setp.ge.u32 %p1, %r1, 64; @%p1 ret;\n"
                                   "setp.ge.u32 %p2, %r1, 32; @%p2 bra READ;\n"
                                   "st.shared.u32 [%r3], %r1; bar.arrive 1, 64; ret;\n"
                                   "READ: bar.sync 1, 64; ld.shared.u32 %r6, [%r3+-128];\n"
                                   "st.global.u32 [%rd3], %r6;");
    const char *late = SHARED_TEXT("setp.ge.u32 %p1, %r1, 64; @%p1 ret;\n"
                                   "setp.ge.u32 %p2, %r1, 32; @%p2 bra READ;\n"
                                   "st.shared.u32 [%r3], %r1; bar.arrive 1, 64;\n"
                                   "st.shared.u32 [%r3], %r1; ret;\n"
                                   "READ: bar.sync 1, 64; ld.shared.u32 %r6, [%r3+-128];\n"
                                   "st.global.u32 [%rd3], %r6;");
    finds_nothing(good, three_warps);
    finds(late, three_warps, "race");
}
END_TEST

/* Lane l copies 16 bytes to sh + 16 l; then all read 4 bytes. */
#define COPY(between)                                                                              \
    SHARED_TEXT("setp.lt.u32 %p1, %r1, 8; shl.b32 %r5, %r1, 4; mov.u32 %r6, sh;\n"                 \
                "add.s32 %r5, %r5, %r6; cvt.u64.u32 %rd5, %r1; shl.b64 %rd5, %rd5, 4;\n"           \
                "add.s64 %rd5, %rd5, %rd2;\n"                                                      \
                "@%p1 cp.async.cg.shared.global [%r5], [%rd5], 16, 16;\n"                          \
                "cp.async.commit_group;\n" between                                                 \
                "\nld.shared.u32 %r7, [%r3]; st.global.u32 [%rd3], %r7;")

START_TEST(copies_have_to_be_waited_for)
{
    const struct run warp = {1, 32, 0};
    finds(COPY("bar.sync 0;"), warp, "asynchronous copy");
    finds(COPY("cp.async.wait_group 1; bar.sync 0;"), warp, "asynchronous copy");
    finds(COPY("cp.async.wait_group 0;"), warp, "race");
    finds_nothing(COPY("cp.async.wait_group 0; bar.sync 0;"), warp);
    finds_nothing(COPY("cp.async.wait_all; bar.warp.sync -1;"), warp);
}
END_TEST

START_TEST(accesses_outside_are_found)
{
    const struct run one = {1, 1, 0}, dynamic = {1, 1, 64};
    finds(SHARED_TEXT("st.shared.u32 [sh+256], %r1;"), one, "256 static");
    finds(SHARED_TEXT("st.shared.u32 [sh+2], %r1;"), one, "not aligned");
    finds(TEXT("mov.u32 %r5, 64; st.shared.u32 [%r5], %r1;"), dynamic, "of shared memory");
    finds(TEXT("st.global.u32 [%rd1+512], %r1;"), one, "of a device allocation of 512 bytes");
    finds(TEXT("ld.global.u32 %r5, [%rd1+-4];"), one, "touches 4 bytes");
    finds(TEXT("ld.global.v2.u32 {%r5, %r6}, [%rd1+4];"), one, "not aligned");
    finds(TEXT(".local .align 4 .b8 mine[8]; st.local.u32 [mine+8], %r1;"), one, "local memory");
    finds(TEXT("mov.u64 %rd5, 0; ld.global.u32 %r5, [%rd5];"), one, "touches 4 bytes");
}
END_TEST

START_TEST(blocks_that_share_bytes_are_found)
{
    const struct run two = {2, 32, 0};
    const char *apart = TEXT("mad.lo.s32 %r5, %r2, 32, %r1; mul.wide.u32 %rd5, %r5, 4;\n"
                             "add.s64 %rd5, %rd5, %rd1; st.global.u32 [%rd5], %r5;\n"
                             "ld.global.u32 %r6, [%rd2];");
    finds_nothing(apart, two);
    finds(TEXT("st.global.u32 [%rd3], %r2;"), two, "block 0 of this launch has written");
    finds(TEXT("setp.eq.u32 %p1, %r2, 0; @%p1 st.global.u32 [%rd1], %r2;\n"
               "ld.global.u32 %r5, [%rd1];"),
          two, "block 0 of this launch has written");
    finds(TEXT("ld.global.u32 %r5, [%rd1]; setp.eq.u32 %p1, %r2, 1;\n"
               "@%p1 st.global.u32 [%rd1], %r2;"),
          two, "block 0 of this launch has read");
    finds_nothing(TEXT("atom.global.add.u32 %r5, [%rd1], 1;"), two);
    /* what comes before an atomic that releases is visible to a thread that acquires there */
    finds(TEXT("setp.eq.u32 %p1, %r1, 0; @%p1 ld.global.u32 %r5, [%rd1+4];\n"
               "@%p1 st.global.u32 [%rd1+4], %r5; @%p1 atom.global.gpu.add.u32 %r6, [%rd1], 1;"),
          two, "block 0 of this launch has written");
    finds_nothing(TEXT("setp.eq.u32 %p1, %r1, 0;\n"
                       "@%p1 atom.global.gpu.acquire.cas.b32 %r6, [%rd1], 0, 1;\n"
                       "@%p1 ld.global.u32 %r5, [%rd1+4]; @%p1 st.global.u32 [%rd1+4], %r5;\n"
                       "@%p1 atom.global.gpu.release.exch.b32 %r6, [%rd1], 0;"),
                  two);
}
END_TEST

START_TEST(who_does_not_come_is_found)
{
    const struct run two_warps = {1, 64, 0}, warp = {1, 32, 0};
    finds(TEXT("setp.ge.u32 %p1, %r1, 32; @%p1 ret; bar.sync 0;"), two_warps, "waits for ever");
    finds(TEXT("setp.ge.u32 %p1, %r1, 16; @%p1 ret; bar.sync 0;"), warp, "waits for ever");
    finds(TEXT("setp.eq.u32 %p1, %r1, 3; @%p1 ret;\n"
               "shfl.sync.idx.b32 %r5|%p2, %r1, 0, 31, -1;"),
          warp, "have left the kernel");
    finds(TEXT("setp.lt.u32 %p1, %r1, 16;\n"
               "@%p1 shfl.sync.idx.b32 %r5|%p2, %r1, 0, 31, -1;"),
          warp, "never come");
    finds(TEXT("shfl.sync.idx.b32 %r5|%p2, %r1, 0, 31, 0xffff;"), warp, "does not name");
    finds(TEXT("setp.eq.u32 %p1, %r1, 0; @%p1 trap;"), warp, "traps");
}
END_TEST

START_TEST(a_sentence_says_where)
{
    const char *text = MODULE ".file 1 \"ops/some.cu\"\n" ENTRY("kernel") REGISTERS
        ".loc 1 77 5\nsetp.eq.u32 %p1, %r1, 33;\n"
        "@%p1 st.global.u32 [%rd1+4096], %r1;\nret;\n}\n";
    finds(text, (struct run){3, 64, 0}, "block (0,0,0), thread (33,0,0) at PTX line");
    ck_assert_ptr_nonnull(strstr(sim_last_message(), "ops/some.cu:77"));
}
END_TEST

START_TEST(what_is_not_known_is_refused)
{
    sim_with(NULL, NULL);
    uint32_t *out = fresh_words(1);
    const struct run one = {1, 1, 0};
    ck_cuda_is(run_text(TEXT("frobnicate.u32 %r5, %r1;"), one, out, out),
               cudaErrorInvalidDeviceFunction);
    ck_assert_ptr_nonnull(strstr(sim_last_message(), "frobnicate"));
    ck_assert_ptr_nonnull(strstr(sim_last_message(), "line 11"));
}
END_TEST

TEST_MAIN("simulated PTX", integers_are_the_isas, floats_round_as_asked,
          conversions_clamp_and_round, approximations_may_be_off_by_their_error,
          lanes_part_and_meet_again, products_are_right_and_wrong_fragments_show,
          warpgroups_multiply_what_a_fence_has_passed_by, ldmatrix_gives_rows_or_columns,
          stmatrix_puts_rows_or_columns, atomics_add_vectors_and_halves,
          stores_of_the_same_bits_are_told_apart, races_in_shared_memory_are_found,
          named_barriers_order_those_who_come, copies_have_to_be_waited_for,
          accesses_outside_are_found, blocks_that_share_bytes_are_found, who_does_not_come_is_found,
          a_sentence_says_where, what_is_not_known_is_refused)
