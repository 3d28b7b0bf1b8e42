/* Models of one family from a config.json in a string. */
#ifndef CZ_TESTS_FAMILY_BUILD_H
#define CZ_TESTS_FAMILY_BUILD_H

#include "model/model_impl.h"
#include "tests/support/check_main.h"

#include <string.h>

/* As cz_model_from_hf() builds it, without files. The caller's on CZ_OK. */
static inline cz_status family_build(const struct model_family *family, const char *text,
                                     enum cz_task task, struct cz_model **out)
{
    struct json_doc *doc;
    ck_ok(json_parse(text, strlen(text), "config.json", JSON_STRICT, &doc));
    cz_status st = family->build(json_root(doc), "tiny", task, out);
    if (st == CZ_OK)
        (*out)->config = doc;
    else
        json_free(doc);
    return st;
}

#endif
