/* cz_tokenizer_export() into an open folder. */
#ifndef CZ_DATA_TOKENIZER_TOKENIZER_EXPORT_H
#define CZ_DATA_TOKENIZER_TOKENIZER_EXPORT_H

#include "formats/output.h"
#include <czero/data.h>

/* with_templates: the folder's chat templates, too. Errors: as cz_tokenizer_export(). */
cz_status tokenizer_export(const struct cz_tokenizer *tok, const struct out_folder *to,
                           bool with_templates);

#endif
