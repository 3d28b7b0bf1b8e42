#include "base/status.h"
#include "checkpoint/read/checkpoint.h"
#include <czero/checkpoint.h>

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Letters as in "GB", or 0 for a number that stands alone. */
static bool unit_factor(const char *unit, double *factor)
{
    static const char *const units[] = {"KB", "MB", "GB", "TB"};
    *factor = 1;
    if (!*unit) return true;
    for (size_t i = 0; i < CZ_ARRAY_LEN(units); i++) {
        *factor *= 1000;
        if (toupper((unsigned char)unit[0]) == units[i][0] &&
            toupper((unsigned char)unit[1]) == 'B' && unit[2] == '\0')
            return true;
    }
    return false;
}

cz_status cz_parse_size(const char *text, uint64_t *nbytes)
{
    char word[64], *end;
    double factor;
    while (isspace((unsigned char)*text)) text++;
    size_t len = strlen(text);
    while (len > 0 && isspace((unsigned char)text[len - 1])) len--;
    if (len == 0 || len >= sizeof word || !(isdigit((unsigned char)*text) || *text == '.'))
        return err_set(CZ_INVALID, 0, "\"%s\" is not a size: write 5GB, 200MB or 1.5TB", text);
    memcpy(word, text, len);
    word[len] = '\0';
    double number = strtod(word, &end);
    while (isspace((unsigned char)*end)) end++;
    if (end == word || !unit_factor(end, &factor))
        return err_set(CZ_INVALID, 0, "\"%s\" is not a size: write 5GB, 200MB or 1.5TB", text);
    if (!(number * factor >= 1))
        return err_set(CZ_INVALID, 0, "\"%s\" is less than one byte", text);
    if (!(number * factor < 9e18))
        return err_set(CZ_INVALID, 0, "\"%s\" is more than any file can hold", text);
    *nbytes = (uint64_t)(number * factor);
    return CZ_OK;
}
