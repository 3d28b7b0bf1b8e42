/* Sizes: products and sums that are checked for overflow, and sizes as people write and read
 * them. */
#include "base/size.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Every size that depends on a file or a config goes through here or size_add(): a product that
 * wraps would allocate too little. */
cz_status size_mul(size_t a, size_t b, size_t *out)
{
    size_t product;
    if (__builtin_mul_overflow(a, b, &product))
        return err_set(CZ_INVALID, 0, "size overflow: %zu x %zu", a, b);
    *out = product;
    return CZ_OK;
}

cz_status size_add(size_t a, size_t b, size_t *out)
{
    size_t sum;
    if (__builtin_add_overflow(a, b, &sum))
        return err_set(CZ_INVALID, 0, "size overflow: %zu + %zu", a, b);
    *out = sum;
    return CZ_OK;
}

const char *size_human(size_t nbytes, char *buf, size_t buf_nbytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double value = (double)nbytes;
    size_t unit_idx = 0;
    /* What would be printed as 1024.00 belongs to the next unit. */
    while (value >= (unit_idx == 0 ? 1024.0 : 1023.995) && unit_idx + 1 < CZ_ARRAY_LEN(units)) {
        value /= 1024.0;
        unit_idx++;
    }
    snprintf(buf, buf_nbytes, unit_idx == 0 ? "%.0f %s" : "%.2f %s", value, units[unit_idx]);
    return buf;
}

const char *size_written(size_t nbytes, char *buf, size_t buf_nbytes)
{
    const size_t gb = 1000000000, gib = (size_t)1 << 30;
    if (nbytes == 0 || (nbytes % gb != 0 && nbytes % gib != 0))
        return size_human(nbytes, buf, buf_nbytes);
    bool is_gb = nbytes % gb == 0;
    snprintf(buf, buf_nbytes, "%zu %s", nbytes / (is_gb ? gb : gib), is_gb ? "GB" : "GiB");
    return buf;
}

/* "", "B", "GB", "G" and the like are powers of 1000, "GiB" of 1024. */
static bool unit_factor(const char *unit, double *factor)
{
    static const char prefixes[] = "kmgtp";
    *factor = 1;
    if (!*unit || strcasecmp(unit, "b") == 0) return true;
    for (size_t i = 0; prefixes[i]; i++) {
        bool is_binary = strcasecmp(unit + 1, "ib") == 0;
        *factor *= is_binary ? 1024 : 1000;
        if ((unit[0] | 0x20) != prefixes[i]) continue;
        return is_binary || !unit[1] || strcasecmp(unit + 1, "b") == 0;
    }
    return false;
}

/* 9e18 is below SIZE_MAX, so the conversion is defined. */
cz_status size_parse(const char *text, size_t *nbytes)
{
    char *end = NULL;
    double factor = 0, number = 0;
    bool begins = (*text >= '0' && *text <= '9') || *text == '.';
    if (begins) number = strtod(text, &end);
    if (begins && end > text)
        while (*end == ' ') end++;
    if (!begins || end == text || !unit_factor(end, &factor))
        return err_set(CZ_INVALID, 0, "\"%s\" is not a size: write 24GB, 64GiB or 1.5TB", text);
    if (!(number * factor >= 1) || !(number * factor < 9e18))
        return err_set(CZ_INVALID, 0, "\"%s\" is not a possible size of memory", text);
    *nbytes = (size_t)(number * factor);
    return CZ_OK;
}

cz_status size_parse_machine(const char *text, size_t *nbytes)
{
    size_t n;
    TRY(size_parse(text, &n));
    if (n >= (size_t)1 << 20) {
        *nbytes = n;
        return CZ_OK;
    }
    if (text[strspn(text, "0123456789.")] == '\0')
        return err_set(CZ_INVALID, 0, "\"%s\" is %zu byte%s; did you mean %sGB?", text, n,
                       n == 1 ? "" : "s", text);
    return err_set(CZ_INVALID, 0, "\"%s\" is less than 1 MiB; did you mean GB?", text);
}

/* Rounded first, because 999.96 has another length than it seems. */
const char *size_number(double value, int digits, char *buf, size_t buf_nbytes)
{
    char text[64];
    if (!isfinite(value) || fabs(value) < 1e-12 || fabs(value) >= 1e18) {
        snprintf(buf, buf_nbytes, "%.0f", isfinite(value) && fabs(value) < 1 ? 0.0 : value);
        return buf;
    }
    snprintf(text, sizeof text, "%.*e", digits - 1, value);
    const double rounded = strtod(text, NULL);
    const int places = digits - 1 - (int)floor(log10(fabs(rounded)) + 1e-9);
    snprintf(text, sizeof text, "%.*f", places > 0 ? places : 0, rounded);
    if (places > 0) { /* no zeros at its end */
        size_t n = strlen(text);
        while (text[n - 1] == '0') n--;
        text[text[n - 1] == '.' ? n - 1 : n] = '\0';
    }
    size_t whole = strcspn(text, "."), at = 0;
    for (size_t i = 0; text[i] && at + 2 < buf_nbytes; i++) {
        const bool is_digit = text[i] >= '0' && text[i] <= '9';
        if (is_digit && i > 0 && i < whole && (whole - i) % 3 == 0 && text[i - 1] != '-')
            buf[at++] = ',';
        buf[at++] = text[i];
    }
    buf[at] = '\0';
    return buf;
}

const char *size_decimal(double nbytes, char *buf, size_t buf_nbytes)
{
    static const char *const units[] = {"bytes", "kB", "MB", "GB", "TB", "PB"};
    size_t unit = 0;
    char number[48];
    while (nbytes >= 999.5 && unit + 1 < sizeof units / sizeof *units) {
        nbytes /= 1000;
        unit++;
    }
    snprintf(buf, buf_nbytes, "%s %s", size_number(nbytes, nbytes < 100 ? 2 : 3, number, 48),
             units[unit]);
    return buf;
}
