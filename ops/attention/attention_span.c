/* Which keys a query sees, and which queries see a key: contiguous ranges. */
#include "ops/attention/attention_impl.h"

/* First position of a row whose document is `number` or a later one; T without any. */
static int64_t lower_bound(const int32_t *documents, int64_t T, int64_t number)
{
    int64_t begin = 0, end = T;
    while (begin < end) {
        int64_t middle = begin + (end - begin) / 2;
        if (documents[middle] < number)
            begin = middle + 1;
        else
            end = middle;
    }
    return begin;
}

/* Documents of a batch row's positions. */
struct side {
    const int32_t *documents; /* NULL: one for all */
    int64_t T;
};

static struct side keys_side(const struct attention_args *a, int64_t b)
{
    return (struct side){a->documents ? a->documents + b * a->Tk : NULL, a->Tk};
}

static struct side queries_side(const struct attention_args *a, int64_t b)
{
    if (!a->query_documents) return keys_side(a, b);
    return (struct side){a->query_documents + b * a->Tq, a->Tq};
}

/* Looks for the documents of one side's positions, in order, on the other side. */
struct walk {
    struct side own, other;
    int64_t number;              /* the last, */
    struct attention_span found; /* and where it is; end < 0: none so far */
};

static struct attention_span document_at(struct walk *w, int64_t t)
{
    const int32_t *documents = w->other.documents;
    if (!documents) return (struct attention_span){0, INT64_MAX};
    const int64_t number = w->own.documents[t];
    if (w->found.end < 0 || number != w->number)
        w->found = (struct attention_span){lower_bound(documents, w->other.T, number),
                                           lower_bound(documents, w->other.T, number + 1)};
    w->number = number;
    return w->found;
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
    struct walk w = {queries_side(a, b), keys_side(a, b), 0, {0, -1}};
    for (int64_t i = 0; i < n; i++) {
        const int64_t t = t0 + i, at = t + a->Tk - a->Tq;
        struct attention_span s = {0, a->Tk};
        if (a->window) s = (struct attention_span){at - a->window + 1, at + a->window};
        if (a->causal && s.end > at + 1) s.end = at + 1;
        keys[i] = clamp(s, document_at(&w, t), a->Tk);
    }
}

void attention_queries_of(const struct attention_args *a, int64_t b, int64_t t0, int64_t n,
                          struct attention_span *queries)
{
    struct walk w = {keys_side(a, b), queries_side(a, b), 0, {0, -1}};
    for (int64_t i = 0; i < n; i++) {
        const int64_t t = t0 + i, at = t + a->Tq - a->Tk;
        struct attention_span s = {0, a->Tq};
        if (a->window) s = (struct attention_span){at - a->window + 1, at + a->window};
        if (a->causal && s.begin < at) s.begin = at;
        queries[i] = clamp(s, document_at(&w, t), a->Tq);
    }
}
