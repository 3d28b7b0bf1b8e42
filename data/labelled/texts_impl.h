/* Reading labelled texts: from bytes of a file to rows, from rows to examples and classes.
 *
 * texts.c         examples in memory, the names of columns
 * texts_open.c    opening, what kind a file is
 * texts_json.c    JSON lists and lines
 * texts_table.c   .csv, .tsv, plain lines
 * texts_words.c   examples of words with a class each: CoNLL, lists in JSON, raw text split
 * texts_sets.c    labels that are values, or sets of classes
 * texts_labels.c  the classes
 * texts_split.c   a share for evaluation
 *
 * A file is read once, through a buffer: memory held is the texts and what describes them. */
#ifndef CZ_DATA_LABELLED_TEXTS_IMPL_H
#define CZ_DATA_LABELLED_TEXTS_IMPL_H

#include "base/hash.h"
#include "base/status.h"
#include "base/text/unread.h"
#include "data/source/json_stream.h"
#include "data/source/paths.h"
#include "data/source/text_source.h"
#include <czero/data.h>

/* ---- classes --------------------------------------------------------------------------------- */

enum label_kind {
    LABEL_NONE = 0,
    LABEL_INT,
    LABEL_STRING,
    LABEL_BOOL,
    LABEL_FLOAT, /* a number that is no integer */
    LABEL_CELL,  /* of a table: an integer or a string, as the others are */
    LABEL_SET,   /* a list of labels: r->lists[1] */
    LABEL_N_KINDS
};

struct label_entry {
    char *name; /* terminated */
    enum label_kind kind;
    bool is_integer; /* its name is an integer as one writes it */
    int64_t value;
    const char *path; /* where it was first seen */
    uint64_t line;
    int32_t cls;
};

/* Every label that was seen, once per kind and name. */
struct label_table {
    const struct cz_texts_options *o;
    struct label_entry *entries;
    size_t n, cap;
    uint32_t *slots; /* (n_slots) 1 + entry, open addressing; 0: empty */
    size_t n_slots;
    struct hash_index known;        /* into o->labels */
    size_t first_of[LABEL_N_KINDS]; /* 1 + entry; 0: none of this kind */
    bool has_sets;                  /* one class will do */
    bool known_is_numbered;         /* integers in the data are places in the list of them */
};

/* Errors: CZ_INVALID (known names: fewer than two, or one twice). */
cz_status label_table_init(struct label_table *l, const struct cz_texts_options *o);
void label_table_free(struct label_table *l); /* accepts a zeroed one */

/* The entry of a label. Errors: CZ_INVALID (unknown; a mix of kinds; a NUL inside), CZ_NOMEM. */
cz_status label_table_intern(struct label_table *l, const struct text_source *at,
                             enum label_kind kind, const char *name, size_t nbytes,
                             size_t *entry_idx);

/* Number the classes: sets every entry's cls, and *names (n_classes; names and list are one block
 * to free()). Errors: CZ_INVALID (fewer than two classes, a mix), CZ_NOMEM. */
cz_status label_table_finish(struct label_table *l, char ***names, size_t *n_classes);

/* Pointers and texts in one block. */
cz_status label_names_copy(const char *const *src, size_t n, char ***names);

/* PREFIX0, PREFIX1, …: classes that have no names. CZ_NOMEM. */
cz_status label_names_numbered(const char *prefix, size_t n, char ***names);

/* ---- reading --------------------------------------------------------------------------------- */

struct text_example;

struct text_row {
    struct text_buf text, pair, label;
    bool has_pair;
    enum label_kind label_kind;
};

/* The items of a list. */
struct text_list {
    struct text_buf bytes;
    size_t *ends; /* (cap) of each item, in `bytes` */
    enum json_type *types;
    size_t n, cap;
};

/* A column or member of options.keep. */
struct kept_value {
    struct text_buf text;
    size_t column; /* of a table */
    bool is_there; /* in this row … */
    bool was_met;  /* … and in any */
};

#define TEXT_PLACES_NBYTES 512
#define TEXT_PLACES_MAX    5

struct texts_reader {
    struct cz_texts *t;
    const struct cz_texts_options *o;
    struct data_paths paths;
    struct text_source in;
    struct text_row row;
    struct label_table labels;
    struct text_buf clean, value, key, names; /* scratch */
    size_t *field_ends;                       /* (fields_cap) of a table's record, in `value` */
    size_t n_fields, fields_cap;
    uint64_t row_line;         /* on which that record begins */
    struct text_list lists[2]; /* of words, of their labels */
    struct kept_value *kept;   /* (o->n_keep) of the row */
    struct unread unread;      /* members and columns that nothing uses */
    size_t n_columns;          /* of CoNLL's lines; 0: none yet */
    size_t n_words;            /* of t->words that belong to examples */
    bool lacks_class;          /* a word of CoNLL's open sentence */
    size_t n_hot;              /* classes of sets of zeros and ones; 0: sets of names */
    bool has_sets, has_singles;
    /* Rows without a label, where one is needed. */
    struct {
        uint64_t n;
        char places[TEXT_PLACES_NBYTES]; /* of the first ones, with ", " between them */
        struct err first;
    } unlabelled;
};

/* A member or column that has no role and is not kept. One that says which row it is, or where it
 * came from, is harmless; a program that does not learn from rows has no use for others. */
void texts_note_unread(struct texts_reader *r, const char *name, size_t nbytes);

/* A row lacks its label: `why` is the error of that. The row is left out and counted. Errors: those
 * of reading. */
cz_status texts_miss_label(struct texts_reader *r, cz_status why);

/* Once all is read: one error, or with options.skip_unlabelled a warning. */
cz_status texts_report_unlabelled(struct texts_reader *r);

/* r->row becomes an example. Errors: CZ_INVALID (no label, or label_table_intern()'s), CZ_NOMEM. */
cz_status texts_take_row(struct texts_reader *r);

/* Names to look for, best first: `given` alone, or those that texts.h lists. */
enum text_role { TEXT_ROLE_TEXT = 0, TEXT_ROLE_PAIR, TEXT_ROLE_LABEL, TEXT_N_ROLES };
#define TEXT_NAMES_MAX 5
const char *texts_role_name(enum text_role role); /* "text", "second text", "label" */
size_t texts_names_of(const struct cz_texts_options *o, enum text_role role,
                      const char *names[TEXT_NAMES_MAX]);
/* The name that the options give this role; NULL: none, and the usual names are tried. */
const char *texts_given_name(const struct cz_texts_options *o, enum text_role role);
bool texts_is_given(const struct cz_texts_options *o, enum text_role role);

/* CZ_INVALID: no member or column for `role`; r->names holds those that are there, each after ", ".
 */
cz_status texts_fail_missing(struct texts_reader *r, enum text_role role, const char *what);

cz_status texts_read_json(struct texts_reader *r);
cz_status texts_read_table(struct texts_reader *r, char delimiter, bool quoted);
cz_status texts_read_plain(struct texts_reader *r);

/* r->row.label, of this JSON type, becomes a label: sets its kind. Errors: CZ_INVALID. */
cz_status texts_set_label(struct texts_reader *r, enum json_type type);

/* r->lists[1] becomes the set of `e`: texts_sets.c. Errors: CZ_INVALID, CZ_NOMEM. */
cz_status texts_take_set(struct texts_reader *r, struct text_example *e);

/* Leave out the examples of the other part of a split, once all have their classes: texts_split.c.
 * Errors: CZ_INVALID (none is left), CZ_NOMEM. */
cz_status texts_take_part(struct texts_reader *r);

/* Whether r->row.label, a cell, is a list such as ["a", "b"], of JSON or Python, which is then in
 * r->lists[1]. Errors: CZ_NOMEM. */
cz_status texts_read_cell_list(struct texts_reader *r, bool *is_list);

/* t->problem, when all labels have been read. Errors: CZ_INVALID (labels of another kind than the
 * options say). */
cz_status texts_find_problem(struct texts_reader *r);
/* The values of a regression. Errors: CZ_INVALID (no number, beyond fp32), CZ_NOMEM. */
cz_status texts_take_values(struct texts_reader *r);
/* label_table_finish(), or the names of the classes that zeros and ones stand for. */
cz_status texts_number_sets(struct texts_reader *r, char ***names, size_t *n);

/* ---- with options.words: texts_words.c ------------------------------------------------------- */

cz_status texts_read_conll(struct texts_reader *r);

/* Behind the "[" of a list of values without parts. */
cz_status texts_read_list(struct texts_reader *r, struct text_list *list);
cz_status text_list_add(struct text_list *list, const char *s, size_t n, enum json_type type);
void text_list_free(struct text_list *list); /* accepts a zeroed one */

/* r->lists, the second if has_labels, become an example. */
cz_status texts_take_lists(struct texts_reader *r, bool has_labels);

/* The words of a raw text, without labels, as those of `e`. */
cz_status texts_take_raw_words(struct texts_reader *r, struct text_example *e);

/* What both kinds of examples need: one more with r->row's texts, without a label. */
cz_status texts_take_example(struct texts_reader *r, struct text_example **e);

/* ---- examples in memory ---------------------------------------------------------------------- */

struct text_block {
    struct text_block *next;
    size_t n, cap;
    char bytes[];
};

/* A text, NUL, and with a pair that and a NUL. */
struct text_example {
    const char *text;
    uint32_t nbytes, pair_nbytes;
    int32_t label; /* while reading: the label's entry */
    bool has_pair;
    uint32_t n_words; /* from t->words[first_word] on; or labels, from t->sets[first_word] on */
    size_t first_word;
};

/* In a block; NULL: not in the row. */
struct text_kept {
    const char *s;
    size_t n;
    bool is_json;
};

struct cz_texts {
    struct text_kept *kept; /* (cap, n_keep) */
    size_t n_keep;
    struct text_block *blocks; /* the one that is being filled first */
    struct text_example *examples;
    size_t n, cap;
    struct cz_text_word *words; /* of all examples; while reading a label is its entry */
    size_t n_words, words_cap;
    bool has_words;
    enum cz_problem problem;
    int32_t *sets; /* classes of examples [first_word, first_word + n_words) */
    size_t n_sets, sets_cap;
    float *values; /* (n) NaN: no label */
    char **names;  /* (n_labels) */
    size_t n_labels;
    size_t *n_of_label; /* (n_labels) */
    uint64_t nbytes;    /* of all texts */
};

#endif
