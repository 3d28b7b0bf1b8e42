/* Decides on members of rows and messages that belong to no form. A name is harmless only if it
 * gives the row's origin, identity or length, so that training without it is the same. Judgements
 * (score, quality, label) are not among them: they may be meant to choose rows. */
#include "data/chat/chat_row_impl.h"

static const char *const harmless[] = {
    /* found again by */
    "id", "_id", "idx", "index", "uid", "uuid", "guid", "hash", "row_id", "example_id", "sample_id",
    "prompt_id", "question_id", "message_id", "parent_id", "conversation_id", "conversation_hash",
    "chat_id", "dialog_id", "dialogue_id", "session_id", "thread_id", "turn_id",
    "__index_level_0__",
    /* comes from */
    "source", "sources", "origin", "dataset", "dataset_name", "data_source", "split", "url",
    "license", "author", "model", "model_name", "generator", "created", "created_at", "updated_at",
    "date", "time", "timestamp", "metadata", "meta",
    /* describes */
    "lang", "language", "category", "topic", "tags", "domain", "num_turns", "n_turns", "num_tokens",
    "n_tokens", "token_count", "length", "finish_reason", "parallel_tool_calls"};

bool row_is_empty(const struct json_node *node)
{
    const char *text = row_text_of(node);
    switch (json_type(node)) {
    case JSON_NULL: return true;
    case JSON_STRING: return !text || !*text;
    case JSON_ARRAY:
    case JSON_OBJECT: return json_count(node) == 0;
    default: return false;
    }
}

bool row_is_harmless(const char *name)
{
    return ROW_IS_AMONG(name, harmless);
}

cz_status row_note_unread(struct row_reader *r, const char *of, const char *name)
{
    TRY(text_buf_put(&r->row->unread, of, strlen(of)));
    return text_buf_put(&r->row->unread, name, strlen(name) + 1);
}

/* A member that says something. */
static const char *said(const struct row_reader *r, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct json_node *node = row_member(r->root, names[i]);
        if (node && !row_is_empty(node)) return names[i];
    }
    return NULL;
}

cz_status row_check_kind(struct row_reader *r)
{
    static const char *const pairs[] = {"chosen", "rejected", "rejected_response",
                                        "rejected_messages", "rejected_completion"};
    static const char *const seen[] = {"images", "image", "videos", "video", "audios", "audio"};
    static const char *const older[][2] = {{"functions", "tools"}, {"function_call", "tool_calls"}};
    const char *name = said(r, pairs, CZ_ARRAY_LEN(pairs));
    if (name)
        return ROW_FAIL(r,
                        "\"%s\" is of a pair of answers, as DPO and reward models take: czero "
                        "trains on one answer; write the better one as completion or messages",
                        name);
    if (row_member(r->root, "kto_tag") || row_is_type(row_member(r->root, "label"), JSON_BOOL))
        return ROW_FAIL(r,
                        "\"%s\" says whether the answer is a good one, as KTO takes: keep the good "
                        "rows, without it",
                        row_member(r->root, "kto_tag") ? "kto_tag" : "label");
    for (size_t i = 0; i < CZ_ARRAY_LEN(older); i++)
        if (said(r, older[i], 1))
            return ROW_FAIL(r, "\"%s\" is the older form of %s: write that", older[i][0],
                            older[i][1]);
    name = said(r, seen, CZ_ARRAY_LEN(seen));
    if (!name) return CZ_OK;
    r->row->is_unseen = true;
    return ROW_FAIL(r, "the row has \"%s\", which the model cannot read", name);
}
