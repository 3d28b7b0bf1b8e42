/* What a model of values or of sets of classes got right, as scikit-learn and SciPy define it.
 * Pure functions. */
#ifndef CZ_ENGINE_REPORT_TARGET_REPORT_H
#define CZ_ENGINE_REPORT_TARGET_REPORT_H

#include "engine/report/entity_report.h"

CZ_EXTERN_C_BEGIN

/* ---- values (regression) ------------------------------------------------------------------------
 *   mse, mae = mean of (p − t)², |p − t|      r2 = 1 − Σ(p − t)² / Σ(t − mean)²
 *   pearson = correlation of p and t          spearman = that of their ranks, ties shared
 * A correlation of constants is NAN; r2 of constant targets is 1 if all are met, else 0. */
struct value_summary {
    double mse, mae, pearson, spearman, r2;
    double n_examples;
};

/* Of n pairs: predicted (n), targets (n). Errors: CZ_NOMEM. */
cz_status value_report_compute(const double *predicted, const double *targets, size_t n,
                               struct value_summary *out);

/* A line for each. Errors: CZ_IO. */
cz_status value_report_print(FILE *stream, const struct value_summary *s, int digits);

/* "mse", "mae", "pearson", "spearman", "r2"; NAN: none of these. */
double value_report_metric(const struct value_summary *s, const char *name);

/* ---- sets of classes (multi-label) --------------------------------------------------------------
 * Of each class how many examples have it, were given it, and both (struct entity_counts). */

/* A class is given where its probability is at least `threshold` (in (0, 1)): logit ≥
 * log(threshold / (1 − threshold)). Adds an example's to counts (n); true where the whole set is
 * right. */
bool set_report_count(const float *logits, const float *targets, size_t n, double threshold,
                      struct entity_counts *counts);

/* The mean over classes of their binary cross-entropy. */
double set_report_loss(const float *logits, const float *targets, size_t n);

/* Precision, recall, F1 of each class (n; may be NULL) and averaged: of all decisions together
 * (micro), over all classes, and by their support; a quotient by zero is 0. */
struct entity_summary set_report_compute(const struct entity_counts *counts, size_t n,
                                         struct class_figures *per_class);

/* As class_report_print(). Errors: CZ_INVALID (digits), CZ_IO. */
cz_status set_report_print(FILE *stream, const struct entity_counts *counts, size_t n,
                           const char *const *names, int digits);

CZ_EXTERN_C_END
#endif
