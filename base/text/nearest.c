/* The nearest of several names by edit distance (Damerau and Levenshtein's, without edits inside a
 * swapped pair). One function for all kinds of names, so that what is close in one place is close
 * in every other. */
#include "base/text/nearest.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define NAME_MAX_COMPARED 63
#define PART_MIN          4 /* shorter ones are part of too many names */
#define PART_DISTANCE     2

static char folded(char c)
{
    if (c >= 'A' && c <= 'Z') return (char)(c - 'A' + 'a');
    return c == '_' ? '-' : c;
}

static size_t min(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Row i of the table is the distance of a's first i letters to each beginning of b; a swap looks
 * two rows back. */
static size_t edit_distance(const char *a, const char *b)
{
    const size_t n_a = strlen(a), n_b = strlen(b);
    size_t rows[3][NAME_MAX_COMPARED + 1];
    if (n_a > NAME_MAX_COMPARED || n_b > NAME_MAX_COMPARED) return SIZE_MAX;
    for (size_t j = 0; j <= n_b; j++) rows[0][j] = j;
    for (size_t i = 1; i <= n_a; i++) {
        size_t *row = rows[i % 3];
        const size_t *above = rows[(i + 2) % 3], *above2 = rows[(i + 1) % 3];
        row[0] = i;
        for (size_t j = 1; j <= n_b; j++) {
            const char c = folded(a[i - 1]), d = folded(b[j - 1]);
            row[j] = min(min(above[j], row[j - 1]) + 1, above[j - 1] + (c == d ? 0 : 2));
            if (i > 1 && j > 1 && c == folded(b[j - 2]) && d == folded(a[i - 2]))
                row[j] = min(row[j], above2[j - 2] + 1);
        }
    }
    return rows[n_a % 3][n_b];
}

/* Whether the first n letters are the same. */
static bool equal(const char *a, const char *b, size_t n)
{
    size_t i = 0;
    while (i < n && a[i] && folded(a[i]) == folded(b[i])) i++;
    return i == n;
}

static size_t distance_of(const char *wanted, const char *name)
{
    const size_t n = strlen(wanted), n_name = strlen(name), edits = edit_distance(wanted, name);
    const bool is_part = n >= PART_MIN && n <= n_name &&
                         (equal(wanted, name, n) || equal(wanted, name + n_name - n, n));
    return is_part ? min(edits, PART_DISTANCE) : edits;
}

struct nearest nearest_begin(const char *wanted)
{
    const size_t n = strlen(wanted), most = min(n / 3 + 1, n == 0 ? 0 : n - 1);
    return (struct nearest){.wanted = wanted, .distance = most + 1};
}

void nearest_consider(struct nearest *search, const char *name)
{
    if (!name) return;
    const size_t distance = distance_of(search->wanted, name);
    if (distance >= search->distance) return;
    search->distance = distance;
    search->best = name;
}
