/* The tokens that end a text: what a folder says of them, and what training adds. */
#include "formats/file_io.h"
#include "formats/json/json_copy.h"
#include "model/model_impl.h"

#include <stdlib.h>
#include <string.h>

void model_ends_add(struct model_ends *ends, int64_t id)
{
    for (size_t i = 0; i < ends->n; i++)
        if (ends->ids[i] == id) return;
    if (id >= 0 && ends->n < MODEL_ENDS_MAX) ends->ids[ends->n++] = id;
}

/* The ids of a number or a list of them; null: none. */
static cz_status take_ends(const struct json_node *node, struct model_ends *out)
{
    const bool is_list = node && json_type(node) == JSON_ARRAY;
    const size_t n = is_list ? json_count(node) : node && json_type(node) != JSON_NULL;
    for (size_t i = 0; i < n; i++) {
        int64_t id;
        TRY(json_as_int(is_list ? json_child(node, i) : node, &id));
        model_ends_add(out, id);
    }
    return CZ_OK;
}

cz_status model_read_ends(const char *dir, const char *name, struct model_ends *out)
{
    struct json_doc *doc = NULL;
    cz_status st = json_load_object(dir, name, &doc);
    if (doc) st = take_ends(json_get(json_root(doc), "eos_token_id"), out);
    json_free(doc);
    return st;
}

/* The ends that an export has without model_add_end(). A member that is no id is left out. */
static void known_ends(const struct cz_model *m, struct model_ends *out)
{
    const struct json_doc *doc = m->generation ? m->generation : m->config;
    *out = (struct model_ends){0};
    if (doc && take_ends(json_get(json_root(doc), "eos_token_id"), out) != CZ_OK) err_clear();
}

bool model_ends_at(const struct cz_model *m, int64_t id)
{
    struct model_ends known;
    known_ends(m, &known);
    for (size_t i = 0; i < m->new_ends.n; i++) model_ends_add(&known, m->new_ends.ids[i]);
    for (size_t i = 0; i < known.n; i++)
        if (known.ids[i] == id) return true;
    return false;
}

void model_add_end(struct cz_model *m, int64_t id)
{
    if (!model_ends_at(m, id)) model_ends_add(&m->new_ends, id);
}

/* New ends first, as transformers' Trainer lists them. */
static void put_ends(struct json_writer *w, const struct cz_model *m)
{
    struct model_ends all = m->new_ends, known;
    known_ends(m, &known);
    for (size_t i = 0; i < known.n; i++)
        if (m->vocab_size <= 0 || known.ids[i] < m->vocab_size) model_ends_add(&all, known.ids[i]);
    json_write_key(w, "eos_token_id");
    json_begin_array(w);
    for (size_t i = 0; i < all.n; i++) json_write_int(w, all.ids[i]);
    json_end_array(w);
}

/* What transformers would take from config.json: with this file it reads nothing else. */
static cz_status put_from_config(struct json_writer *w, const struct cz_model *m)
{
    static const char *const keys[] = {"bos_token_id", "pad_token_id"};
    for (size_t i = 0; m->config && i < CZ_ARRAY_LEN(keys); i++) {
        const struct json_node *node = json_get(json_root(m->config), keys[i]);
        if (!node || json_type(node) == JSON_NULL) continue;
        json_write_key(w, keys[i]);
        TRY(json_write_node(w, node, NULL));
    }
    return CZ_OK;
}

/* The members of the file that was read, with the ends replaced. */
static cz_status put_members(struct json_writer *w, const struct cz_model *m)
{
    const struct json_node *read = m->generation ? json_root(m->generation) : NULL;
    if (m->new_ends.n > 0) put_ends(w, m);
    if (!read) TRY(put_from_config(w, m));
    for (size_t i = 0; read && i < json_count(read); i++) {
        const struct json_node *member = json_child(read, i);
        if (json_is_trace(member)) continue;
        if (m->new_ends.n > 0 && strcmp(json_key(member), "eos_token_id") == 0) continue;
        json_write_key(w, json_key(member));
        TRY(json_write_node(w, member, json_is_trace));
    }
    return CZ_OK;
}

cz_status generation_write(const struct cz_model *m, const struct out_folder *in)
{
    struct json_writer w;
    char *text = NULL;
    size_t nbytes;
    if (!m->generation && m->new_ends.n == 0) return CZ_OK;
    json_writer_init(&w, 2);
    json_begin_object(&w);
    cz_status st = put_members(&w, m);
    json_end_object(&w);
    json_write_text(&w, "\n");
    if (st != CZ_OK) {
        json_writer_free(&w);
        return st;
    }
    TRY(json_writer_take(&w, &text, &nbytes));
    st = file_save_in(in, "generation_config.json", text, nbytes);
    free(text);
    return st;
}
