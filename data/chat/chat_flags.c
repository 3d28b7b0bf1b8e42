/* Flags of rows and messages that exclude text from training. A flag only excludes: --loss-on and
 * the template decide which messages are answers. A flag that could be obeyed only in part is
 * refused: a fractional weight, parts of a text, ambiguous names. */
#include "data/chat/chat_row_impl.h"

#include <stdio.h>
#include <stdlib.h>

static const char *const flags[] = {"weight",     "loss",        "train",
                                    "training",   "trainable",   "loss_mask",
                                    "train_mask", "loss_weight", "loss_scale"};
static const char *const lists[] = {"loss_masks", "train_masks", "weights"};
static const char *const details[] = {"train_detail", "training_detail", "train_details"};
static const char *const masks[] = {"mask", "masked", "masks"};

bool row_is_flag(const char *name)
{
    return ROW_IS_AMONG(name, flags) || ROW_IS_AMONG(name, lists) || ROW_IS_AMONG(name, details) ||
           ROW_IS_AMONG(name, masks);
}

/* Flags that have a meaning czero cannot follow; `place` stands in front. */
static cz_status check_name(const struct row_reader *r, const char *place, const char *name)
{
    if (ROW_IS_AMONG(name, details))
        return ROW_FAIL(r,
                        "%s\"%s\" trains parts of a text, which czero does not: leave it out, or "
                        "use \"train\" for the whole turn",
                        place, name);
    if (ROW_IS_AMONG(name, masks))
        return ROW_FAIL(r,
                        "%s\"%s\" does not say whether it trains or hides: name it loss_mask, "
                        "where 1 is trained and 0 is not",
                        place, name);
    return CZ_OK;
}

/* 0 and false, or 1 and true. */
static cz_status read_flag(const struct row_reader *r, const char *place, const char *name,
                           const struct json_node *value, bool *on)
{
    const enum json_type type = json_type(value);
    double number = -1;
    size_t n;
    if (type == JSON_BOOL) return json_as_bool(value, on);
    if ((type == JSON_INT || type == JSON_FLOAT) && json_as_double(value, &number) != CZ_OK)
        err_clear();
    *on = number == 1;
    if (number == 0 || number == 1) return CZ_OK;
    if (type == JSON_INT || type == JSON_FLOAT) {
        const char *digits = json_text(value, &n);
        return ROW_FAIL(r, "%s\"%s\" is %.*s: write 0 or 1, or true or false", place, name,
                        (int)(n < 40 ? n : 40), digits);
    }
    return ROW_FAIL(r, "%s\"%s\" is %s: write 0 or 1, or true or false", place, name,
                    json_type_name(type));
}

static cz_status refuse_wish(const struct row_reader *r, const char *place, const char *name)
{
    return ROW_FAIL(r,
                    "%s\"%s\" asks to train a message that is not the assistant's: leave it out, "
                    "or train everything by --loss-on all",
                    place, name);
}

static void exclude(struct chat_row *row, size_t i)
{
    row->n_excluded += !(row->turns[i] & CHAT_EXCLUDED);
    row->turns[i] |= CHAT_EXCLUDED;
}

static cz_status reserve_turn(struct row_reader *r)
{
    struct chat_row *row = r->row;
    if (row->n_messages < r->turns_cap) return CZ_OK;
    const size_t cap = 2 * r->turns_cap + 16;
    uint8_t *turns = realloc(row->turns, cap);
    if (!turns) return err_set(CZ_NOMEM, 0, "no memory for the messages of a row");
    memset(turns + r->turns_cap, 0, cap - r->turns_cap);
    row->turns = turns;
    r->turns_cap = cap;
    return CZ_OK;
}

cz_status row_obey_flag(struct row_reader *r, const struct json_node *flag, bool is_answer)
{
    const char *name = json_key(flag);
    char place[64];
    bool on;
    snprintf(place, sizeof place, "%s %zu: ", r->noun, r->row->n_messages - r->first + 1);
    if (ROW_IS_AMONG(name, details) && row_is_empty(flag)) return CZ_OK;
    TRY(check_name(r, place, name));
    TRY(read_flag(r, place, name, flag, &on));
    if (on) return is_answer || r->reading->trains_all ? CZ_OK : refuse_wish(r, place, name);
    TRY(reserve_turn(r));
    exclude(r->row, r->row->n_messages);
    return CZ_OK;
}

cz_status row_add_turn(struct row_reader *r, bool is_answer)
{
    TRY(reserve_turn(r));
    if (is_answer) r->row->turns[r->row->n_messages] |= CHAT_ANSWER;
    r->row->n_messages++;
    return CZ_OK;
}

/* A list with an entry for each message, or for each answer. */
static cz_status obey_list(struct row_reader *r, const struct json_node *flag, size_t n_made)
{
    struct chat_row *row = r->row;
    const char *name = json_key(flag);
    const size_t n = json_count(flag), n_own = row->n_messages - n_made;
    size_t n_answers = 0, k = 0;
    for (size_t i = n_made; i < row->n_messages; i++) n_answers += row->turns[i] & CHAT_ANSWER;
    if (row->form != CHAT_MESSAGES)
        return ROW_FAIL(r, "\"%s\" is a list, but the row has no messages: write 0 or 1", name);
    if (n != n_own && n != n_answers)
        return ROW_FAIL(r,
                        "\"%s\" has %zu entries, and the row has %zu messages, %zu of them the "
                        "assistant's: write an entry for each message or each answer",
                        name, n, n_own, n_answers);
    for (size_t i = n_made; i < row->n_messages; i++) {
        const bool is_answer = row->turns[i] & CHAT_ANSWER;
        char place[64];
        bool on;
        if (n != n_own && !is_answer) continue;
        snprintf(place, sizeof place, "entry %zu of ", k + 1);
        TRY(read_flag(r, place, name, json_child(flag, k++), &on));
        if (!on) exclude(row, i);
        if (on && !is_answer && !r->reading->trains_all) return refuse_wish(r, place, name);
    }
    return CZ_OK;
}

cz_status row_obey_own_flags(struct row_reader *r, size_t n_made)
{
    for (size_t i = 0; i < json_count(r->root); i++) {
        const struct json_node *flag = json_child(r->root, i);
        const char *name = json_key(flag);
        bool on;
        if (json_type(flag) == JSON_NULL || !row_is_flag(name)) continue;
        if (ROW_IS_AMONG(name, details) && row_is_empty(flag)) continue;
        TRY(check_name(r, "", name));
        if (json_type(flag) == JSON_ARRAY) {
            TRY(obey_list(r, flag, n_made));
            continue;
        }
        TRY(read_flag(r, "", name, flag, &on));
        if (!on) r->row->is_excluded = true;
    }
    return CZ_OK;
}
