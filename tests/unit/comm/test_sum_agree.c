/* Claim: every row of the sum table gives the bits of row 0 (no tolerance: the canonical reduction
 * is defined to the bit), writes nothing outside, and does not care how work is cut. */
#include "base/cpu.h"
#include "comm/sum/sum_impl.h"
#include "tests/support/check_main.h"

#include <string.h>

#define NUMEL_MAX 5000
#define GUARD     64
#define N_RANKS   5

static const enum cz_dtype floats[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
static const size_t numels[] = {0, 1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 128, 2100, 5000};

/* Sources and results, with space for start offsets and guards. */
static unsigned char in[N_RANKS][NUMEL_MAX * 4 + 256], own_in[NUMEL_MAX * 4 + 256];
static unsigned char got[2][NUMEL_MAX * 4 + 256], want[2][NUMEL_MAX * 4 + 256];

static uint32_t next_random(void)
{
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

/* Plain numbers, and in one of four places any bits: NaN of all payloads, infinity, denormals. */
static void fill(void *p, enum cz_dtype dtype, size_t numel)
{
    static const uint32_t special[] = {0x7f800000, 0xff800000, 0x7fc00001, 0x7fa00003, 0xffc12345,
                                       0x00000001, 0x807fffff, 0x80000000, 0x33000000, 0x477fefff,
                                       0x477ff000, 0x3f808000, 0x3f818000, 0x7f7fffff, 0xff7f8000};
    for (size_t i = 0; i < numel; i++) {
        float x = ((float)next_random() * 0x1p-30f - 1) * 8;
        uint32_t bits = f32_bits(x), die = next_random();
        if (die % 8 == 0) bits = special[next_random() % CZ_ARRAY_LEN(special)];
        if (dtype == DTYPE_BF16) bits >>= 16;
        if (dtype == DTYPE_F16) bits = f32_to_f16(f32_from_bits(bits));
        if (die % 8 == 1) bits = next_random() * 2 + (die >> 8 & 1);
        memcpy((char *)p + i * dtype_size(dtype), &bits, dtype_size(dtype));
    }
}

static void fill_all(enum cz_dtype dtype, enum cz_dtype own_dtype)
{
    for (int r = 0; r < N_RANKS; r++) fill(in[r], dtype, sizeof in[r] / dtype_size(dtype));
    fill(own_in, own_dtype, sizeof own_in / dtype_size(own_dtype));
}

static void check(const char *what, const char *row, enum cz_dtype from, enum cz_dtype to,
                  size_t numel, size_t offset)
{
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < sizeof got[k]; i++)
            if (got[k][i] != want[k][i])
                ck_abort_msg("%s %s, %s to %s, %zu elements from %zu: byte %zu is %02x, not %02x",
                             row, what, dtype_name(from), dtype_name(to), numel, offset, i,
                             got[k][i], want[k][i]);
}

static void reset(void)
{
    for (size_t i = 0; i < sizeof got[0]; i++)
        got[0][i] = got[1][i] = want[0][i] = want[1][i] = in[0][sizeof in[0] - 1 - i];
}

static void compare_conversions(const struct sum_row *row, enum cz_dtype from, enum cz_dtype to)
{
    fill_all(from, from);
    for (size_t k = 0; k < CZ_ARRAY_LEN(numels); k++)
        for (size_t offset = 0; offset < 16; offset += 1 + offset / 4) {
            size_t numel = numels[k], s = offset * dtype_size(from);
            size_t d = GUARD + (15 - offset) * dtype_size(to);
            reset();
            row->convert(got[0] + d, to, in[1] + s, from, numel);
            sum_scalar.convert(want[0] + d, to, in[1] + s, from, numel);
            row->add(got[1] + d, to, in[1] + s, from, numel);
            sum_scalar.add(want[1] + d, to, in[1] + s, from, numel);
            check("converts or adds", row->name, from, to, numel, offset);
        }
}

static void compare_sums(const struct sum_row *row, enum cz_dtype wire, int n_ranks)
{
    const void *wires[N_RANKS];
    fill_all(wire, wire);
    for (size_t k = 0; k < CZ_ARRAY_LEN(numels); k++)
        for (size_t offset = 0; offset < 16; offset += 1 + offset / 4) {
            size_t size = dtype_size(wire), numel = numels[k], d = GUARD + offset * size;
            for (int r = 0; r < n_ranks; r++) wires[r] = in[r] + (offset + (size_t)r) * size;
            const struct sum_sources s = {.wire = wires,
                                          .dtype = wire,
                                          .n_ranks = n_ranks,
                                          .own_rank = (int)(k % (size_t)n_ranks),
                                          .scale = 1.0f / (float)n_ranks};
            reset();
            row->sum(&s, own_in, 3, numel, got[0] + d);
            sum_scalar.sum(&s, own_in, 3, numel, want[0] + d);
            check("sums", row->name, wire, wire, numel, offset);
        }
}

START_TEST(rows_equal_row_0_to_the_bit)
{
    size_t n_rows;
    const struct sum_row *const *rows = sum_rows(&n_rows);
    for (size_t i = 1; i < n_rows; i++) {
        if (rows[i]->features & ~cpu_features_hardware()) continue;
        for (int k = 0; k < 9; k++) compare_conversions(rows[i], floats[k / 3], floats[k % 3]);
        for (int k = 0; k < 3; k++)
            for (int n_ranks = 1; n_ranks <= N_RANKS; n_ranks++)
                compare_sums(rows[i], floats[k], n_ranks);
    }
}
END_TEST

/* The whole reduction: blocks, threads and the fused ways through it, against its parts. */
START_TEST(cutting_does_not_show)
{
    enum { NUMEL = 140003 };
    float *x = malloc(NUMEL * 4), *own = malloc(NUMEL * 4), *shared = malloc(NUMEL * 4);
    float *dst = malloc(NUMEL * 4), *sums = malloc(NUMEL * 4), *end = malloc(NUMEL * 4);
    for (int k = 0; k < 27 * 4; k += 1 + k % 2) {
        enum cz_dtype wire = floats[k % 3], own_dtype = floats[k / 3 % 3], to = floats[k / 9 % 3];
        bool accumulate = k / 27 % 2, shares = k / 54;
        fill(x, wire, NUMEL);
        fill(own, own_dtype, NUMEL);
        fill(dst, to, NUMEL);
        memcpy(end, dst, NUMEL * 4);
        const void *wires[] = {x, NULL};
        const struct sum_sources s = {wires, own, own_dtype, wire, 2, 1, 0.5f};
        const struct sum_target t = {shares ? shared : NULL, dst, to, accumulate};
        const struct sum_way way = {sum_row_pick(cpu_features()), k % 2};
        sum_ranks(&way, &s, &t, NUMEL);
        sum_scalar.convert(shares ? sums : shared, wire, own, own_dtype, NUMEL);
        const struct sum_sources all = {wires, NULL, wire, wire, 2, 1, 0.5f};
        sum_scalar.sum(&all, shares ? sums : shared, 0, NUMEL, sums);
        (accumulate ? sum_scalar.add : sum_scalar.convert)(end, to, sums, wire, NUMEL);
        ck_assert_msg(memcmp(dst, end, NUMEL * dtype_size(to)) == 0, "case %d: dst", k);
        ck_assert_msg(!shares || memcmp(shared, sums, NUMEL * dtype_size(wire)) == 0,
                      "case %d: shared", k);
        memset(x, 0, NUMEL * 4); /* own part as it would be sent */
        sum_send(&way, x, wire, own, own_dtype, NUMEL);
        sum_scalar.convert(sums, wire, own, own_dtype, NUMEL);
        ck_assert_msg(memcmp(x, sums, NUMEL * dtype_size(wire)) == 0, "case %d: sent", k);
    }
    free(x), free(own), free(shared), free(dst), free(sums), free(end);
}
END_TEST

START_TEST(the_fastest_row_allowed_is_taken)
{
    ck_assert_str_eq(sum_row_pick(0)->name, "scalar");
    ck_assert_str_eq(sum_row_pick(CPU_AVX2)->name, "avx2");
    ck_assert_str_eq(sum_row_pick(CPU_AVX2 | CPU_AVX512 | CPU_AMX)->name, "avx512");
}
END_TEST

TEST_MAIN("comm/sum", rows_equal_row_0_to_the_bit, cutting_does_not_show,
          the_fastest_row_allowed_is_taken)
