/* Where chat templates are: transformers writes one to chat_template.jinja and further ones beside
 * it; older folders have them in tokenizer_config.json. A file wins over the config. Special tokens
 * are variables of the template under the names that the config gives them. */
#include "data/chat/chat_template_impl.h"

#include "base/hash.h"
#include "data/tokenizer/tokenizer_export.h"
#include "data/tokenizer/tokenizer_impl.h"
#include "formats/beneath.h"
#include "formats/file_io.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TEMPLATE_FILE   "chat_template.jinja"
#define TEMPLATE_FOLDER "additional_chat_templates"

enum { TEMPLATES_MAX = 64, VARS_MAX = 128, N_OWN_VARS = 4 };

static const char *const own_vars[N_OWN_VARS] = {"messages", "tools", "documents",
                                                 "add_generation_prompt"};

struct named_template {
    char name[64];
    struct jinja_template *jinja;
    struct text_buf text; /* of one that was parsed */
};

struct chat_template {
    struct json_doc *config, *map; /* tokenizer_config.json, special_tokens_map.json, or NULL */
    struct jinja_template *plain, *tools; /* tools may be the same */
    struct jinja_var vars[VARS_MAX];      /* special tokens */
    size_t n_vars;
    uint64_t hash;
    bool tells_time;
    char *dir; /* whose default templates these are; NULL: one was chosen by its name or file */
    struct text_buf plain_text, tools_text; /* the latter only if tools is another one */
    struct chat_probe *probes;              /* of plain, of tools */
};

/* While one is opened. */
struct search {
    const char *dir, *given;
    struct named_template found[TEMPLATES_MAX];
    size_t n;
    uint64_t hash; /* of all */
    bool tells_time;
};

/* ---- special tokens -----------------------------------------------------------------------------
 */

/* A token is a text, or an object with its text as "content". */
static const char *token_text(const struct json_node *node)
{
    const char *text = NULL;
    if (node && json_type(node) == JSON_OBJECT) node = json_get(node, "content");
    if (node && json_type(node) == JSON_STRING) json_as_string(node, &text);
    return text;
}

const char *chat_template_token(const struct chat_template *t, const char *name)
{
    for (size_t i = 0; i < t->n_vars; i++)
        if (strcmp(t->vars[i].name, name) == 0) return t->vars[i].text;
    return NULL;
}

static bool is_token_name(const char *name)
{
    size_t n = strlen(name);
    return n > 6 && strcmp(name + n - 6, "_token") == 0;
}

static void add_tokens(struct chat_template *t, const struct json_node *object)
{
    for (size_t i = 0; object && i < json_count(object); i++) {
        const struct json_node *member = json_child(object, i);
        const char *name = json_key(member), *text = name ? token_text(member) : NULL;
        if (!text || !is_token_name(name) || t->n_vars == VARS_MAX - N_OWN_VARS ||
            chat_template_token(t, name))
            continue;
        t->vars[t->n_vars++] = (struct jinja_var){.name = name, .text = text};
    }
}

static cz_status read_tokens(struct chat_template *t, const char *dir)
{
    TRY(json_load_object(dir, "tokenizer_config.json", &t->config));
    TRY(json_load_object(dir, "special_tokens_map.json", &t->map));
    const struct json_node *root = t->config ? json_root(t->config) : NULL;
    add_tokens(t, root);
    add_tokens(t, root ? json_get(root, "extra_special_tokens") : NULL);
    add_tokens(t, root ? json_get(root, "model_specific_special_tokens") : NULL);
    add_tokens(t, t->map ? json_root(t->map) : NULL);
    return CZ_OK;
}

/* ---- templates
 * ----------------------------------------------------------------------------------- */

static struct named_template *find(struct search *s, const char *name)
{
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->found[i].name, name) == 0) return &s->found[i];
    return NULL;
}

static void note_text(struct search *s, const char *text, size_t n)
{
    static const char time_function[] = "strftime_now";
    s->hash = hash_fixed(s->hash, &n, sizeof n);
    s->hash = hash_fixed(s->hash, text, n);
    if (memmem(text, n, time_function, sizeof time_function - 1)) s->tells_time = true;
}

/* Parse one that may be asked for: a later one of the same name does not count. */
static cz_status add_template(struct search *s, const char *name, const char *text, size_t n,
                              const char *shown)
{
    if (find(s, name) || s->n == TEMPLATES_MAX || strlen(name) >= sizeof s->found->name)
        return CZ_OK;
    const char *wanted = s->given ? s->given : "default";
    bool is_wanted = strcmp(name, wanted) == 0 || (!s->given && strcmp(name, "tool_use") == 0);
    struct named_template *named = &s->found[s->n];
    note_text(s, text, n);
    snprintf(named->name, sizeof named->name, "%s", name);
    named->jinja = NULL;
    s->n++;
    if (!is_wanted) return CZ_OK;
    TRY(text_buf_put(&named->text, text, n));
    return jinja_parse(text, n, shown, &named->jinja);
}

static cz_status add_file(struct search *s, const char *name, const char *file)
{
    char shown[512];
    char *text = NULL;
    size_t n;
    snprintf(shown, sizeof shown, "%s/%s", s->dir, file);
    TRY(beneath_load(s->dir, file, JINJA_TEMPLATE_NBYTES_MAX, &text, &n));
    cz_status st = add_template(s, name, text, n, shown);
    free(text);
    return st;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* additional_chat_templates/NAME.jinja, in the order of their names. */
static cz_status add_folder(struct search *s)
{
    char names[TEMPLATES_MAX][64], file[128];
    size_t n_names = 0;
    int fd;
    if (!beneath_is_folder(s->dir, TEMPLATE_FOLDER)) return CZ_OK;
    TRY(beneath_open_folder(s->dir, TEMPLATE_FOLDER, &fd));
    DIR *dir = fdopendir(fd);
    if (!dir) {
        const int error = errno;
        close(fd);
        return err_set(CZ_IO, error, "%s/" TEMPLATE_FOLDER ": cannot be listed", s->dir);
    }
    for (struct dirent *e; n_names < TEMPLATES_MAX && (errno = 0, e = readdir(dir));) {
        size_t n = strlen(e->d_name);
        if (n < 7 || n - 6 >= sizeof names[0] || strcmp(e->d_name + n - 6, ".jinja") != 0) continue;
        memcpy(names[n_names], e->d_name, n - 6);
        names[n_names++][n - 6] = '\0';
    }
    const int error = errno;
    closedir(dir);
    if (error) return err_set(CZ_IO, error, "%s/" TEMPLATE_FOLDER ": cannot be listed", s->dir);
    qsort(names, n_names, sizeof names[0], compare_names);
    for (size_t i = 0; i < n_names; i++) {
        snprintf(file, sizeof file, TEMPLATE_FOLDER "/%s.jinja", names[i]);
        TRY(add_file(s, names[i], file));
    }
    return CZ_OK;
}

static cz_status add_config(struct search *s, const struct json_doc *config)
{
    char shown[512];
    const struct json_node *node = config ? json_get(json_root(config), "chat_template") : NULL;
    const char *text, *name;
    if (!node || json_type(node) == JSON_NULL) return CZ_OK;
    snprintf(shown, sizeof shown, "%s/tokenizer_config.json: chat_template", s->dir);
    if (json_type(node) == JSON_STRING) {
        TRY(json_as_string(node, &text));
        return add_template(s, "default", text, strlen(text), shown);
    }
    for (size_t i = 0; i < json_count(node); i++) {
        TRY(json_need_string(json_child(node, i), "name", &name));
        TRY(json_need_string(json_child(node, i), "template", &text));
        TRY(add_template(s, name, text, strlen(text), shown));
    }
    return CZ_OK;
}

/* A file of the user's. */
static cz_status open_file(struct chat_template *t, struct search *s, const char *path)
{
    char *text;
    size_t n;
    TRY(file_load_named(path, JINJA_TEMPLATE_NBYTES_MAX, &text, &n));
    note_text(s, text, n);
    cz_status st = text_buf_put(&t->plain_text, text, n);
    if (st == CZ_OK) st = jinja_parse(text, n, path, &t->plain);
    free(text);
    return st;
}

bool chat_template_is_in(const char *dir)
{
    struct json_doc *config = NULL;
    if (beneath_is_there(dir, TEMPLATE_FILE)) return true;
    if (json_load_object(dir, "tokenizer_config.json", &config) != CZ_OK) err_clear();
    const struct json_node *node = config ? json_get(json_root(config), "chat_template") : NULL;
    const bool is_there = node && json_type(node) != JSON_NULL;
    json_free(config);
    return is_there;
}

/* ---- exports ------------------------------------------------------------------------------------
 */

static cz_status save_template(const struct out_folder *in, const char *name,
                               const struct text_buf *text)
{
    return file_save_in(in, name, text->n > 0 ? text->s : "", text->n);
}

cz_status chat_template_export(const struct chat_template *t, const struct cz_tokenizer *tokenizer,
                               const struct out_folder *to)
{
    const bool is_own =
        !t || (t->dir && tokenizer && tokenizer->dir && strcmp(t->dir, tokenizer->dir) == 0);
    struct out_folder below = {.path = NULL};
    if (tokenizer) TRY(tokenizer_export(tokenizer, to, is_own));
    if (is_own) return CZ_OK;
    TRY(save_template(to, TEMPLATE_FILE, &t->plain_text));
    if (t->tools == t->plain) return CZ_OK;
    TRY(out_folder_below(to, TEMPLATE_FOLDER, true, &below));
    cz_status st = save_template(&below, "tool_use.jinja", &t->tools_text);
    out_folder_close(&below);
    return st;
}

static cz_status fail_missing(const struct search *s)
{
    char names[512] = "";
    for (size_t i = 0; i < s->n; i++)
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", i ? ", " : "",
                 s->found[i].name);
    if (s->given)
        return err_set(CZ_NOTFOUND, 0, "--chat-template %s: is no file, and no template of %s%s%s",
                       s->given, s->dir ? s->dir : "this tokenizer", names[0] ? "; it has " : "",
                       names);
    if (names[0])
        return err_set(CZ_NOTFOUND, 0,
                       "%s: has several chat templates and none is \"default\": choose by "
                       "--chat-template NAME (%s)",
                       s->dir, names);
    return err_set(CZ_NOTFOUND, 0,
                   "%s has no chat template (" TEMPLATE_FILE
                   ", or chat_template in tokenizer_config.json): give one by --chat-template FILE",
                   s->dir ? s->dir : "the tokenizer \"bytes\"");
}

static cz_status choose(struct chat_template *t, struct search *s)
{
    struct stat info;
    if (s->dir) {
        if (beneath_is_there(s->dir, TEMPLATE_FILE)) TRY(add_file(s, "default", TEMPLATE_FILE));
        TRY(add_folder(s));
        TRY(add_config(s, t->config));
    }
    struct named_template *plain = find(s, s->given ? s->given : "default");
    struct named_template *tools = s->given ? NULL : find(s, "tool_use");
    if (plain) {
        t->plain = plain->jinja;
        t->plain_text = plain->text;
        plain->jinja = NULL;
        plain->text = (struct text_buf){0};
    } else if (s->given && stat(s->given, &info) == 0) {
        TRY(open_file(t, s, s->given));
    } else {
        return fail_missing(s);
    }
    t->tools = t->plain;
    if (tools) {
        t->tools = tools->jinja;
        t->tools_text = tools->text;
        tools->jinja = NULL;
        tools->text = (struct text_buf){0};
    }
    return CZ_OK;
}

cz_status chat_template_open(const char *dir, const char *given, struct chat_template **out)
{
    struct search *s = calloc(1, sizeof *s);
    struct chat_template *t = calloc(1, sizeof *t);
    *out = NULL;
    if (t) t->probes = calloc(2, sizeof *t->probes);
    for (int i = 0; t && t->probes && i < 2; i++) pthread_mutex_init(&t->probes[i].lock, NULL);
    cz_status st =
        s && t && t->probes ? CZ_OK : err_set(CZ_NOMEM, 0, "no memory for a chat template");
    if (st == CZ_OK) {
        s->dir = dir;
        s->given = given;
        s->hash = HASH_FIXED_BEGIN;
        if (dir) st = read_tokens(t, dir);
        if (dir && !given && !(t->dir = strdup(dir))) st = err_set(CZ_NOMEM, 0, "no memory");
    }
    if (st == CZ_OK && given) note_text(s, given, strlen(given));
    if (st == CZ_OK) st = choose(t, s);
    if (st == CZ_OK) {
        for (size_t i = 0; i < t->n_vars; i++) {
            note_text(s, t->vars[i].name, strlen(t->vars[i].name));
            note_text(s, t->vars[i].text, strlen(t->vars[i].text));
        }
        t->hash = s->hash;
        t->tells_time = s->tells_time;
    }
    for (size_t i = 0; s && i < s->n; i++) {
        jinja_free(s->found[i].jinja);
        text_buf_free(&s->found[i].text);
    }
    free(s);
    if (st != CZ_OK) {
        chat_template_close(t);
        return st;
    }
    *out = t;
    return CZ_OK;
}

void chat_template_close(struct chat_template *t)
{
    if (!t) return;
    if (t->tools != t->plain) jinja_free(t->tools);
    jinja_free(t->plain);
    json_free(t->config);
    json_free(t->map);
    free(t->dir);
    text_buf_free(&t->plain_text);
    text_buf_free(&t->tools_text);
    for (int i = 0; t->probes && i < 2; i++) pthread_mutex_destroy(&t->probes[i].lock);
    free(t->probes);
    free(t);
}

struct chat_probe *chat_template_probe(const struct chat_template *t, bool has_tools)
{
    return &t->probes[has_tools];
}

uint64_t chat_template_hash(const struct chat_template *t)
{
    return t->hash;
}

bool chat_template_tells_time(const struct chat_template *t)
{
    return t->tells_time;
}

bool chat_template_marks_answers(const struct chat_template *t, bool has_tools)
{
    return jinja_marks_generation(has_tools ? t->tools : t->plain);
}

bool chat_template_mentions(const struct chat_template *t, bool has_tools, const char *word)
{
    return jinja_mentions(has_tools ? t->tools : t->plain, word);
}

bool chat_template_reads(const struct chat_template *t, bool has_tools, const char *variable)
{
    return jinja_reads(has_tools ? t->tools : t->plain, variable);
}

bool chat_template_is_answer_role(const char *role)
{
    return strcmp(role, "assistant") == 0 || strcmp(role, "model") == 0;
}

bool chat_template_is_system_role(const char *role)
{
    return strcmp(role, "system") == 0 || strcmp(role, "developer") == 0;
}

bool chat_template_is_tool_role(const char *role)
{
    static const char *const names[] = {"tool", "function", "ipython", "observation"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(names); i++)
        if (strcmp(role, names[i]) == 0) return true;
    return false;
}

bool chat_template_sets(const char *variable)
{
    for (size_t i = 0; i < N_OWN_VARS; i++)
        if (strcmp(variable, own_vars[i]) == 0) return true;
    return false;
}

cz_status chat_template_render(const struct chat_template *t, const struct chat_view *chat,
                               size_t n_messages, bool adds_prompt, int64_t now,
                               struct jinja_text *out)
{
    struct jinja_var vars[VARS_MAX + CHAT_EXTRA_MAX];
    size_t n = t->n_vars;
    memcpy(vars, t->vars, n * sizeof *vars);
    for (size_t i = 0; chat->extra && i < json_count(chat->extra) && i < CHAT_EXTRA_MAX; i++) {
        const struct json_node *member = json_child(chat->extra, i);
        vars[n++] = (struct jinja_var){.name = json_key(member), .node = member};
    }
    vars[n++] = (struct jinja_var){
        .name = "messages", .node = chat->messages, .is_cut = true, .n_items = n_messages};
    vars[n++] = (struct jinja_var){.name = "tools", .node = chat->tools, .is_none = !chat->tools};
    vars[n++] = (struct jinja_var){
        .name = "documents", .node = chat->documents, .is_none = !chat->documents};
    vars[n++] = (struct jinja_var){.name = "add_generation_prompt", .truth = adds_prompt};
    return jinja_render(chat->tools ? t->tools : t->plain, vars, n, now, out);
}
