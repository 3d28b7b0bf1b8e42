/* What a tagger found: entities from the classes of words, and how many of them are right, as
 * seqeval's classification_report defines both (mode None, zero_division 0).
 *
 * A class is a tag and a type: "B-LOC" is B and LOC. Tags are B, I, E, S and O, and of other
 * schemes L (E), U (S), and M (I) and W (S) where B has the same type. A name without one of these
 * letters and "-" is a type ("ADV", "LABEL_1"), with the tag I; there seqeval cuts off the first
 * letter. An entity begins at B or S, at I or E after O, E or S, and where the type changes; it
 * ends before one that begins, before O, after E and S, and where the type changes. So IOB1, IOB2,
 * IOE, IOBES, BILOU and BMEWO are all understood. It is right if type, first and last word are.
 * Precision = right / found, recall = right / there, F1 = 2·p·r / (p + r); a quotient by zero is 0.
 * Pure functions. */
#ifndef CZ_ENGINE_REPORT_ENTITY_REPORT_H
#define CZ_ENGINE_REPORT_ENTITY_REPORT_H

#include "engine/report/class_report.h"

CZ_EXTERN_C_BEGIN

struct entity_scheme; /* opaque: what the names of classes mean */

/* Of the n names, UTF-8. *out is released by entity_scheme_destroy(). Errors: CZ_NOMEM. */
cz_status entity_scheme_create(const char *const *names, size_t n, struct entity_scheme **out);
void entity_scheme_destroy(struct entity_scheme *s); /* accepts NULL */

/* The types of entities, in the order of their bytes; names are owned by the scheme. A tag that
 * only ends entities ("O") has a type, too, which no entity has. */
size_t entity_scheme_n_types(const struct entity_scheme *s);
const char *entity_scheme_type(const struct entity_scheme *s, size_t type);

/* Words first … last of type `type`. */
struct entity {
    size_t type, first, last;
};

/* The entities of one sentence, in order, into found (n); returns their number. A class of -1
 * counts as "O". */
size_t entity_find(const struct entity_scheme *s, const int32_t *classes, size_t n,
                   struct entity *found);

/* Of each type how many entities are there, were found, and are right, as doubles (so that
 * engine_gather_metrics() can add them over ranks). */
struct entity_counts {
    double there, found, right;
};

/* counts (n_types) += those of one sentence of n words. Errors: CZ_NOMEM. */
cz_status entity_count(const struct entity_scheme *s, const int32_t *labels,
                       const int32_t *predicted, size_t n, struct entity_counts *counts);

struct entity_summary {
    struct class_figures micro, macro, weighted; /* over types that occur; support: entities */
};

/* per_type (n_types) may be NULL. */
struct entity_summary entity_report_compute(const struct entity_counts *counts, size_t n_types,
                                            struct class_figures *per_type);

/* seqeval's report with `digits` decimal places (2 … 6). Types that neither are there nor were
 * found have no row. Errors: CZ_INVALID (digits), CZ_IO (stream). */
cz_status entity_report_print(FILE *stream, const struct entity_scheme *s,
                              const struct entity_counts *counts, int digits);

/* A metric by name: "f1", "precision", "recall" (of all entities together), "macro_f1",
 * "weighted_f1", "macro_precision", "macro_recall". NAN when the name is none of these. */
double entity_report_metric(const struct entity_summary *s, const char *name);

CZ_EXTERN_C_END
#endif
