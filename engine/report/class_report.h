/* What a classifier got right: figures from a confusion matrix, as scikit-learn's
 * classification_report defines them (zero_division = 0).
 *
 *   precision = hits / predicted,  recall = hits / support,  F1 = 2·p·r / (p + r),
 *   macro = mean over classes,  weighted = mean weighted by support
 * A quotient by zero is 0. Classes that occur neither as label nor as prediction are left out of
 * the macro average, as scikit-learn does. Pure functions. */
#ifndef CZ_ENGINE_REPORT_CLASS_REPORT_H
#define CZ_ENGINE_REPORT_CLASS_REPORT_H

#include "base/status.h"

#include <stdio.h>

CZ_EXTERN_C_BEGIN

struct class_figures {
    double precision, recall, f1, support;
};

/* The class with the largest of n ≥ 1 logits, the first of equals. */
size_t class_likeliest(const float *logits, size_t n);

/* −log softmax(logits)[label], in double. */
double class_loss(const float *logits, size_t n, size_t label);

struct class_summary {
    double accuracy;
    struct class_figures macro, weighted;
    double n_examples;
};

/* confusion (n,n): row = true class, column = predicted class, counts as doubles (so that
 * engine_gather_metrics() can add them over ranks). per_class (n) may be NULL. */
struct class_summary class_report_compute(const double *confusion, size_t n,
                                          struct class_figures *per_class);

/* The report in the familiar layout, with `digits` decimal places (2 … 6), then, when `matrix`, the
 * confusion matrix with the names of rows (true) and columns (predicted). Columns fit the longest
 * name (display width, so that Chinese names line up). Classes that occur neither as label nor as
 * prediction have no row; a line names them. Errors: CZ_INVALID (digits); CZ_NOMEM; CZ_IO (stream).
 */
cz_status class_report_print(FILE *stream, const double *confusion, size_t n,
                             const char *const *names, int digits, bool matrix);

/* The parts of such a table: its head, and a row under a name, right-justified in `width` columns.
 */
void class_report_print_head(FILE *stream, size_t width);
void class_report_print_row(FILE *stream, const char *name, size_t width, int digits,
                            const struct class_figures *f);

/* A metric by name: "accuracy", "macro_f1", "weighted_f1", "macro_precision", "macro_recall".
 * NAN when the name is none of these. */
double class_report_metric(const struct class_summary *s, const char *name);

CZ_EXTERN_C_END
#endif
