/* Which keys a query sees, and which queries see a key: contiguous ranges. */
#include "ops/attention/attention_impl.h"

/* First position of row b in [begin, end) whose document is `number` or a later one; else end. */
static int64_t lower_bound(const int32_t *documents, int64_t begin, int64_t end, int64_t number)
{
    while (begin < end) {
        int64_t middle = begin + (end - begin) / 2;
        if (documents[middle] < number)
            begin = middle + 1;
        else
            end = middle;
    }
    return begin;
}

static struct attention_span document_at(const struct attention_args *a, int64_t b, int64_t t)
{
    if (!a->documents) return (struct attention_span){0, INT64_MAX};
    const int32_t *documents = a->documents + b * a->Tk;
    const int64_t number = documents[t];
    return (struct attention_span){lower_bound(documents, 0, t, number),
                                   lower_bound(documents, t + 1, a->Tk, number + 1)};
}

static struct attention_span clamp(struct attention_span s, struct attention_span document,
                                   int64_t T)
{
    if (s.begin < document.begin) s.begin = document.begin;
    if (s.end > document.end) s.end = document.end;
    if (s.begin < 0) s.begin = 0;
    if (s.end > T) s.end = T;
    if (s.end < s.begin) s.end = s.begin;
    return s;
}

void attention_keys_of(const struct attention_args *a, int64_t b, int64_t t0, int64_t n,
                       struct attention_span *keys)
{
    struct attention_span document = {0, 0};
    for (int64_t i = 0; i < n; i++) {
        const int64_t t = t0 + i, at = t + a->Tk - a->Tq;
        struct attention_span s = {0, a->Tk};
        if (t >= document.end) document = document_at(a, b, t);
        if (a->window) s = (struct attention_span){at - a->window + 1, at + a->window};
        if (a->causal && s.end > at + 1) s.end = at + 1;
        keys[i] = clamp(s, document, a->Tk);
    }
}

void attention_queries_of(const struct attention_args *a, int64_t b, int64_t t0, int64_t n,
                          struct attention_span *queries)
{
    struct attention_span document = {0, 0};
    for (int64_t i = 0; i < n; i++) {
        const int64_t t = t0 + i, at = t + a->Tq - a->Tk;
        struct attention_span s = {0, a->Tq};
        if (t >= document.end) document = document_at(a, b, t);
        if (a->window) s = (struct attention_span){at - a->window + 1, at + a->window};
        if (a->causal && s.begin < at) s.begin = at;
        queries[i] = clamp(s, document, a->Tq);
    }
}
