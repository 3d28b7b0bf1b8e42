/* Rows for masked language models. */
#ifndef CZ_DATA_CORPUS_MASKING_IMPL_H
#define CZ_DATA_CORPUS_MASKING_IMPL_H

#include "base/status.h"
#include <czero/data.h>

/* Errors: CZ_INVALID. Off is fine. */
cz_status masking_check(const struct cz_masking *m, int64_t seq_len);

/* Tokens of the text in a row of seq_len. */
int64_t masking_row_ntokens(const struct cz_masking *m, int64_t seq_len);

/* src: masking_row_ntokens(); ids, labels: (seq_len), written. */
void masking_fill(const struct cz_masking *m, uint64_t seed, uint64_t sample, const int32_t *src,
                  int64_t seq_len, int32_t *ids, int32_t *labels);

#endif
