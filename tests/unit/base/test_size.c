/* Claims: products and sums that do not fit are refused and leave the result alone; rounding up
 * goes to the next multiple; sizes are shown with two digits in the largest unit that leaves a
 * number below 1024. */
#include "base/size.h"
#include "tests/support/check_main.h"

#define ck_says(text) ck_assert_msg(strstr(cz_last_error(), text), "\"%s\"", cz_last_error())

#include <string.h>

START_TEST(products_are_checked)
{
    size_t out = 7;
    ck_ok(size_mul(6, 7, &out));
    ck_assert_uint_eq(out, 42);
    ck_ok(size_mul(SIZE_MAX, 1, &out));
    ck_assert_uint_eq(out, SIZE_MAX);
    ck_ok(size_mul(SIZE_MAX, 0, &out));
    ck_assert_uint_eq(out, 0);
    ck_ok(size_mul((size_t)1 << 32, ((size_t)1 << 32) - 1, &out));
    ck_assert_uint_eq(out, ((size_t)1 << 32) * (((size_t)1 << 32) - 1));
    out = 7;
    ck_fails(size_mul((size_t)1 << 32, (size_t)1 << 32, &out), CZ_INVALID);
    ck_assert_uint_eq(out, 7);
    ck_assert_str_eq(cz_last_error(), "size overflow: 4294967296 x 4294967296");
}
END_TEST

START_TEST(sums_are_checked)
{
    size_t out = 7;
    ck_ok(size_add(SIZE_MAX - 1, 1, &out));
    ck_assert_uint_eq(out, SIZE_MAX);
    out = 7;
    ck_fails(size_add(SIZE_MAX, 1, &out), CZ_INVALID);
    ck_assert_uint_eq(out, 7);
    ck_assert_str_eq(cz_last_error(), "size overflow: 18446744073709551615 + 1");
}
END_TEST

START_TEST(rounding_up_reaches_the_next_multiple)
{
    ck_assert_uint_eq(size_round_up(0, 256), 0);
    ck_assert_uint_eq(size_round_up(1, 256), 256);
    ck_assert_uint_eq(size_round_up(256, 256), 256);
    ck_assert_uint_eq(size_round_up(257, 256), 512);
    ck_assert_uint_eq(size_round_up(10, 3), 12);
}
END_TEST

START_TEST(sizes_are_shown_in_the_largest_fitting_unit)
{
    static const struct {
        size_t nbytes;
        const char *text;
    } cases[] = {{0, "0 B"},
                 {1, "1 B"},
                 {1023, "1023 B"},
                 {1024, "1.00 KiB"},
                 {1536, "1.50 KiB"},
                 {1048570, "1023.99 KiB"},
                 {1048575, "1.00 MiB"}, /* 1023.999 KiB would be printed as 1024.00 */
                 {(size_t)3 << 19, "1.50 MiB"},
                 {((size_t)1 << 30) - 1, "1.00 GiB"},
                 {(size_t)3 << 29, "1.50 GiB"},
                 {(size_t)5 << 40, "5.00 TiB"},
                 {SIZE_MAX, "16384.00 PiB"}};
    char buf[24];
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        ck_assert_ptr_eq(size_human(cases[i].nbytes, buf, sizeof buf), buf);
        ck_assert_str_eq(buf, cases[i].text);
    }
}
END_TEST

START_TEST(a_size_is_shown_as_it_was_written)
{
    static const struct {
        size_t nbytes;
        const char *text;
    } cases[] = {{0, "0 B"},
                 {1, "1 B"},
                 {1000000000, "1 GB"},
                 {24000000000, "24 GB"},
                 {(size_t)1 << 30, "1 GiB"},
                 {(size_t)80 << 30, "80 GiB"},
                 {(size_t)1000000000 << 30, "1073741824 GB"}, /* whole in both */
                 {999999999, "953.67 MiB"},
                 {1500000000, "1.40 GiB"},
                 {((size_t)1 << 30) - 1, "1.00 GiB"}};
    char buf[24];
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        ck_assert_ptr_eq(size_written(cases[i].nbytes, buf, sizeof buf), buf);
        ck_assert_str_eq(buf, cases[i].text);
    }
}
END_TEST

START_TEST(sizes_are_read_as_people_write_them)
{
    static const struct {
        const char *text;
        size_t nbytes;
    } cases[] = {{"4096", 4096},
                 {"1B", 1},
                 {"0.1k", 100},
                 {"9.9kB", 9900},
                 {".5k", 500},
                 {"24GB", 24000000000},
                 {"24 gb", 24000000000},
                 {"64GiB", (size_t)64 << 30},
                 {"1.5TB", 1500000000000},
                 {"0.5kib", 512},
                 {"3m", 3000000}};
    static const char *const bad[] = {"",   "GB", "-1GB", "4GX", "4GBB", "/1",
                                      ":1", " ",  "nan",  "0",   "1e30", "4iB"};
    size_t nbytes;
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        ck_ok(size_parse(cases[i].text, &nbytes));
        ck_assert_uint_eq(nbytes, cases[i].nbytes);
    }
    for (size_t i = 0; i < CZ_ARRAY_LEN(bad); i++)
        ck_fails(size_parse(bad[i], &nbytes), CZ_INVALID);
}
END_TEST

START_TEST(a_forgotten_unit_is_questioned)
{
    size_t nbytes = 7;
    ck_fails(size_parse_machine("24", &nbytes), CZ_INVALID);
    ck_says("\"24\" is 24 bytes; did you mean 24GB?");
    ck_fails(size_parse_machine("1", &nbytes), CZ_INVALID);
    ck_says("\"1\" is 1 byte; did you mean 1GB?");
    ck_fails(size_parse_machine("1023KiB", &nbytes), CZ_INVALID);
    ck_says("less than 1 MiB");
    ck_fails(size_parse_machine("lots", &nbytes), CZ_INVALID);
    ck_says("not a size");
    ck_assert_uint_eq(nbytes, 7);
    ck_ok(size_parse_machine("1048576", &nbytes));
    ck_assert_uint_eq(nbytes, 1048576);
    ck_ok(size_parse_machine("24GB", &nbytes));
    ck_assert_uint_eq(nbytes, 24000000000);
}
END_TEST

static void check_number(double value, int digits, const char *want)
{
    char buf[48];
    ck_assert_str_eq(size_number(value, digits, buf, sizeof buf), want);
}

START_TEST(numbers_have_no_exponents)
{
    check_number(18523, 4, "18,520");
    check_number(999.96, 4, "1,000");
    check_number(999.94, 4, "999.9");
    check_number(1000, 4, "1,000");
    check_number(999, 4, "999");
    check_number(1234567, 9, "1,234,567");
    check_number(-12345, 5, "-12,345");
    check_number(-123, 3, "-123");
    check_number(0.0000587, 3, "0.0000587");
    check_number(0.5, 3, "0.5");
    check_number(2, 3, "2");
    check_number(12.345, 3, "12.3");
    check_number(0, 3, "0");
    check_number(1e-13, 3, "0");
    check_number(1e15, 3, "1,000,000,000,000,000");
}
END_TEST

START_TEST(disks_are_counted_in_powers_of_ten)
{
    char buf[48];
    ck_assert_str_eq(size_decimal(1234567890123.0, buf, sizeof buf), "1.2 TB");
    ck_assert_str_eq(size_decimal(999.4, buf, sizeof buf), "999 bytes");
    ck_assert_str_eq(size_decimal(999.6, buf, sizeof buf), "1 kB");
    ck_assert_str_eq(size_decimal(123e9, buf, sizeof buf), "123 GB");
    ck_assert_str_eq(size_decimal(99.4e9, buf, sizeof buf), "99 GB");
    ck_assert_str_eq(size_decimal(0, buf, sizeof buf), "0 bytes");
    ck_assert_str_eq(size_decimal(2e18, buf, sizeof buf), "2,000 PB");
}
END_TEST

TEST_MAIN("base/size", numbers_have_no_exponents, disks_are_counted_in_powers_of_ten,
          products_are_checked, sums_are_checked, rounding_up_reaches_the_next_multiple,
          sizes_are_shown_in_the_largest_fitting_unit, a_size_is_shown_as_it_was_written,
          sizes_are_read_as_people_write_them, a_forgotten_unit_is_questioned)
