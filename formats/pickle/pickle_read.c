/* The pickle machine: opcodes move values between a stack, marks on it, and a memo. Nothing here
 * knows what a class means (pickle_call.c does), and nothing runs one. */
#include "base/host/cgroup.h"
#include "base/utf8.h"
#include "formats/pickle/pickle_impl.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HOST_ASKED_NBYTES ((size_t)64 << 20) /* less is not worth reading /proc for */

/* Opcodes of protocols 2 to 5, as numbered by Python's pickletools. torch.save writes protocol 2.
 * The text opcodes of protocol 0 are missing: do_opcode() names them in its refusal. */
enum opcode {
    OP_MARK = '(',
    OP_STOP = '.',
    OP_POP = '0',
    OP_POP_MARK = '1',
    OP_DUP = '2',
    OP_BINBYTES = 'B',
    OP_SHORT_BINBYTES = 'C',
    OP_BINFLOAT = 'G',
    OP_BININT = 'J',
    OP_BININT1 = 'K',
    OP_BININT2 = 'M',
    OP_NONE = 'N',
    OP_BINPERSID = 'Q',
    OP_REDUCE = 'R',
    OP_BINSTRING = 'T',
    OP_SHORT_BINSTRING = 'U',
    OP_BINUNICODE = 'X',
    OP_EMPTY_LIST = ']',
    OP_APPEND = 'a',
    OP_BUILD = 'b',
    OP_GLOBAL = 'c',
    OP_APPENDS = 'e',
    OP_BINGET = 'h',
    OP_LONG_BINGET = 'j',
    OP_BINPUT = 'q',
    OP_LONG_BINPUT = 'r',
    OP_SETITEM = 's',
    OP_TUPLE = 't',
    OP_SETITEMS = 'u',
    OP_EMPTY_DICT = '}',
    OP_EMPTY_TUPLE = ')',
    OP_PROTO = 0x80,
    OP_NEWOBJ = 0x81,
    OP_EXT1 = 0x82,
    OP_EXT4 = 0x84,
    OP_TUPLE1 = 0x85,
    OP_TUPLE2 = 0x86,
    OP_TUPLE3 = 0x87,
    OP_NEWTRUE = 0x88,
    OP_NEWFALSE = 0x89,
    OP_LONG1 = 0x8a,
    OP_LONG4 = 0x8b,
    OP_SHORT_BINUNICODE = 0x8c,
    OP_BINUNICODE8 = 0x8d,
    OP_BINBYTES8 = 0x8e,
    OP_EMPTY_SET = 0x8f,
    OP_ADDITEMS = 0x90,
    OP_FROZENSET = 0x91,
    OP_NEWOBJ_EX = 0x92,
    OP_STACK_GLOBAL = 0x93,
    OP_MEMOIZE = 0x94,
    OP_FRAME = 0x95,
    OP_BYTEARRAY8 = 0x96,
    OP_NEXT_BUFFER = 0x97,
    OP_READONLY_BUFFER = 0x98
};

/* ---- input ----------------------------------------------------------------------------------- */

/* All input passes through here, so this is the only check of the input's end. */
static cz_status take(struct pickle_parser *p, uint64_t nbytes, const unsigned char **out)
{
    size_t left = p->nbytes - p->off;
    *out = p->bytes + p->off;
    if (nbytes > left)
        return pickle_fail(p, CZ_CORRUPT, "opcode 0x%02x needs %llu bytes, %zu are left",
                           p->bytes[p->op_off], (unsigned long long)nbytes, left);
    p->off += (size_t)nbytes;
    return CZ_OK;
}

/* A little-endian number of 1, 2, 4 or 8 bytes. */
static cz_status take_number(struct pickle_parser *p, size_t nbytes, uint64_t *out)
{
    const unsigned char *bytes;
    *out = 0;
    TRY(take(p, nbytes, &bytes));
    for (size_t i = nbytes; i-- > 0;) *out = *out << 8 | bytes[i];
    return CZ_OK;
}

/* A length of width bytes, and as many bytes behind it. */
static cz_status take_counted(struct pickle_parser *p, size_t width, const unsigned char **out,
                              size_t *nbytes)
{
    uint64_t length;
    *nbytes = 0;
    TRY(take_number(p, width, &length));
    TRY(take(p, length, out));
    *nbytes = (size_t)length;
    return CZ_OK;
}

/* GLOBAL is the only opcode that is read whose argument ends with a newline. */
static cz_status take_line(struct pickle_parser *p, const unsigned char **out, size_t *nbytes)
{
    const unsigned char *line = p->bytes + p->off;
    const unsigned char *end = memchr(line, '\n', p->nbytes - p->off);
    *out = line;
    *nbytes = 0;
    if (!end) return pickle_fail(p, CZ_CORRUPT, "a name does not end");
    *nbytes = (size_t)(end - line);
    p->off += *nbytes + 1;
    return CZ_OK;
}

/* UTF-8 in which lone surrogates may stand, as Python writes them. */
static bool is_text(const unsigned char *s, size_t n)
{
    while (n > 0) {
        int len = utf8_length((const char *)s, n);
        if (len <= 0 && n >= 3 && s[0] == 0xED && s[1] >= 0xA0 && s[1] <= 0xBF &&
            (s[2] & 0xC0) == 0x80)
            len = 3;
        if (len <= 0) return false;
        s += len;
        n -= (size_t)len;
    }
    return true;
}

/* ---- the stack ------------------------------------------------------------------------------- */

/* Values above the last mark. An opcode may not reach below it, or a crafted file could take values
 * out of an outer container that is still being filled. */
static size_t n_open(const struct pickle_parser *p)
{
    return p->n_stack - (p->n_marks > 0 ? p->marks[p->n_marks - 1] : 0);
}

/* Checked before the first pop, so that an opcode that wants several values reports all of them. */
static cz_status need(const struct pickle_parser *p, size_t n)
{
    if (n_open(p) >= n) return CZ_OK;
    return pickle_fail(p, CZ_CORRUPT, "opcode 0x%02x needs %zu values, the stack has %zu",
                       p->bytes[p->op_off], n, n_open(p));
}

static cz_status pop(struct pickle_parser *p, struct pickle_node **out)
{
    *out = NULL;
    TRY(need(p, 1));
    *out = p->stack[--p->n_stack];
    return CZ_OK;
}

static cz_status top(struct pickle_parser *p, struct pickle_node **out)
{
    *out = NULL;
    TRY(need(p, 1));
    *out = p->stack[p->n_stack - 1];
    return CZ_OK;
}

/* Remove the last mark and all above it. *items stay in the stack's memory until the next push. */
static cz_status pop_mark(struct pickle_parser *p, struct pickle_node *const **items, size_t *n)
{
    *items = NULL;
    *n = 0;
    if (p->n_marks == 0)
        return pickle_fail(p, CZ_CORRUPT, "opcode 0x%02x finds no mark", p->bytes[p->op_off]);
    *n = n_open(p);
    p->n_stack = p->marks[--p->n_marks];
    if (*n > 0) *items = p->stack + p->n_stack; /* before the first value there is no stack */
    return CZ_OK;
}

/* A node is on the stack before its value is filled in. When that fails, the whole parse fails, and
 * the tree's pool frees the node. */
static cz_status push_new(struct pickle_parser *p, enum pickle_kind kind, struct pickle_node **out)
{
    TRY(pickle_node_new(p, kind, out));
    return pickle_push(p, *out);
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Only the 4-byte form is signed; 1 and 2 bytes are unsigned, as in pickletools. */
static cz_status op_int(struct pickle_parser *p, size_t width)
{
    uint64_t number;
    struct pickle_node *node;
    TRY(take_number(p, width, &number));
    TRY(push_new(p, PICKLE_INT, &node));
    node->integer = width == 4 ? (int32_t)(uint32_t)number : (int64_t)number;
    return CZ_OK;
}

/* The only big-endian number of the format. */
static cz_status op_float(struct pickle_parser *p)
{
    const unsigned char *bytes;
    struct pickle_node *node;
    TRY(take(p, 8, &bytes));
    TRY(push_new(p, PICKLE_FLOAT, &node));
    uint64_t bits = 0;
    for (size_t i = 0; i < 8; i++) bits = bits << 8 | bytes[i];
    memcpy(&node->real, &bits, sizeof bits);
    return CZ_OK;
}

/* Two's complement of any length. Bytes that only repeat the sign are dropped, so that equal
 * numbers are equal keys. */
static cz_status op_long(struct pickle_parser *p, size_t width)
{
    const unsigned char *bytes;
    size_t n;
    struct pickle_node *node;
    TRY(take_counted(p, width, &bytes, &n));
    while (n > 1 && ((bytes[n - 1] == 0 && bytes[n - 2] < 0x80) ||
                     (bytes[n - 1] == 0xff && bytes[n - 2] >= 0x80)))
        n--;
    TRY(push_new(p, n <= 8 ? PICKLE_INT : PICKLE_LONG, &node));
    if (n > 8) {
        node->n = (uint32_t)n;
        return pickle_text(p, bytes, n, &node->text);
    }
    uint64_t number = n > 0 && bytes[n - 1] >= 0x80 ? UINT64_MAX : 0;
    for (size_t i = n; i-- > 0;) number = number << 8 | bytes[i];
    node->integer = (int64_t)number;
    return CZ_OK;
}

static cz_status push_text(struct pickle_parser *p, enum pickle_kind kind,
                           const unsigned char *bytes, size_t n)
{
    struct pickle_node *node;
    TRY(push_new(p, kind, &node));
    node->n = (uint32_t)n;
    if (n > 0 && memchr(bytes, 0, n)) node->own_marks |= PICKLE_HAS_NUL;
    return pickle_text(p, bytes, n, &node->text);
}

static cz_status op_string(struct pickle_parser *p, size_t width)
{
    const unsigned char *bytes;
    size_t n;
    TRY(take_counted(p, width, &bytes, &n));
    if (!is_text(bytes, n)) return pickle_fail(p, CZ_CORRUPT, "a string is not UTF-8");
    return push_text(p, PICKLE_STRING, bytes, n);
}

static cz_status op_bytes(struct pickle_parser *p, size_t width)
{
    const unsigned char *bytes;
    size_t n;
    TRY(take_counted(p, width, &bytes, &n));
    return push_text(p, PICKLE_BYTES, bytes, n);
}

/* Python 2's str, which may be text or bytes: text if it can be. */
static cz_status op_old_string(struct pickle_parser *p, size_t width)
{
    const unsigned char *bytes;
    size_t n;
    TRY(take_counted(p, width, &bytes, &n));
    return push_text(p, is_text(bytes, n) ? PICKLE_STRING : PICKLE_BYTES, bytes, n);
}

/* The stack shrinks after the node is made and before the items are copied: they stay where they
 * are, since nothing is pushed between. */
static cz_status op_tuple(struct pickle_parser *p, size_t n)
{
    TRY(need(p, n));
    struct pickle_node *node;
    TRY(pickle_node_new(p, PICKLE_TUPLE, &node));
    p->n_stack -= n;
    TRY(pickle_item_add(p, node, p->stack + p->n_stack, n));
    return pickle_push(p, node);
}

/* An empty one is the shared empty tuple, as EMPTY_TUPLE gives: a config has thousands of them. */
static cz_status op_tuple_marked(struct pickle_parser *p)
{
    struct pickle_node *const *items;
    size_t n;
    TRY(pop_mark(p, &items, &n));
    if (n == 0) return pickle_push(p, p->empty);
    p->n_stack += n;
    return op_tuple(p, n);
}

/* Made from a mark, because it cannot be filled later: unlike a set, it must be complete when it
 * becomes a key. */
static cz_status op_frozenset(struct pickle_parser *p)
{
    struct pickle_node *const *items, *node;
    size_t n;
    TRY(pop_mark(p, &items, &n));
    TRY(pickle_node_new(p, PICKLE_SET, &node));
    node->more = &pickle_set_names[1];
    TRY(pickle_item_add(p, node, items, n));
    return pickle_push(p, node);
}

static cz_status op_empty_set(struct pickle_parser *p)
{
    struct pickle_node *node;
    TRY(push_new(p, PICKLE_SET, &node));
    node->more = &pickle_set_names[0];
    return CZ_OK;
}

/* ---- filling containers ---------------------------------------------------------------------- */

/* Objects and classes take items too: a subclass of list or set is constructed empty by REDUCE and
 * filled after that. */
static cz_status add_items(struct pickle_parser *p, enum pickle_kind kind,
                           struct pickle_node *const *items, size_t n)
{
    struct pickle_node *to;
    TRY(top(p, &to));
    enum pickle_kind got = to->kind;
    if (got != kind && got != PICKLE_OBJECT && got != PICKLE_GLOBAL)
        return pickle_fail(p, CZ_CORRUPT, "items are added to %s", pickle_kind_phrase(got));
    return pickle_item_add(p, to, items, n);
}

static cz_status op_append(struct pickle_parser *p)
{
    struct pickle_node *item;
    TRY(need(p, 2));
    TRY(pop(p, &item));
    return add_items(p, PICKLE_LIST, &item, 1);
}

static cz_status op_add_marked(struct pickle_parser *p, enum pickle_kind kind)
{
    struct pickle_node *const *items;
    size_t n;
    TRY(pop_mark(p, &items, &n));
    return add_items(p, kind, items, n);
}

/* Objects take items, too: a dict subclass is filled after its construction. */
static cz_status set_items(struct pickle_parser *p, struct pickle_node *const *items, size_t n)
{
    struct pickle_node *to;
    TRY(top(p, &to));
    enum pickle_kind got = to->kind;
    if (got != PICKLE_DICT && got != PICKLE_OBJECT && got != PICKLE_GLOBAL)
        return pickle_fail(p, CZ_CORRUPT, "keys are set on %s", pickle_kind_phrase(got));
    if (n % 2 != 0) return pickle_fail(p, CZ_CORRUPT, "the last key has no value");
    for (size_t i = 0; i < n; i += 2) TRY(pickle_pair_add(p, to, items[i], items[i + 1]));
    return CZ_OK;
}

static cz_status op_set_items(struct pickle_parser *p)
{
    struct pickle_node *const *items;
    size_t n;
    TRY(pop_mark(p, &items, &n));
    return set_items(p, items, n);
}

/* ---- classes --------------------------------------------------------------------------------- */

/* A NUL inside a name would end it early in every comparison, so that "torch._utils\0x" would be
 * taken for "torch._utils". */
static cz_status push_global(struct pickle_parser *p, const void *module, size_t n_module,
                             const void *name, size_t n_name)
{
    if (n_module == 0 || n_name == 0 || memchr(module, 0, n_module) || memchr(name, 0, n_name) ||
        !is_text(module, n_module) || !is_text(name, n_name))
        return pickle_fail(p, CZ_CORRUPT, "the name of a class is empty or not text");
    const char *module_text, *name_text;
    struct pickle_node *node;
    TRY(pickle_text(p, module, n_module, &module_text));
    TRY(pickle_text(p, name, n_name, &name_text));
    TRY(pickle_global(p, module_text, name_text, &node));
    return pickle_push(p, node);
}

static cz_status op_global(struct pickle_parser *p)
{
    const unsigned char *module, *name;
    size_t n_module, n_name;
    TRY(take_line(p, &module, &n_module));
    TRY(take_line(p, &name, &n_name));
    return push_global(p, module, n_module, name, n_name);
}

static cz_status op_stack_global(struct pickle_parser *p)
{
    struct pickle_node *module, *name;
    TRY(need(p, 2));
    TRY(pop(p, &name));
    TRY(pop(p, &module));
    if (module->kind != PICKLE_STRING || name->kind != PICKLE_STRING)
        return pickle_fail(p, CZ_CORRUPT, "the name of a class is not a string");
    return push_global(p, module->text, module->n, name->text, name->n);
}

/* REDUCE and NEWOBJ. Nothing is called: pickle_call builds a node for the few classes it knows, and
 * an object that keeps its arguments for the others. */
static cz_status op_call(struct pickle_parser *p, bool is_new)
{
    struct pickle_node *callable, *args, *made;
    TRY(need(p, 2));
    TRY(pop(p, &args));
    TRY(pop(p, &callable));
    TRY(pickle_call(p, callable, args, is_new, &made));
    return pickle_push(p, made);
}

/* cls, args, kwargs: as protocol 2 would write it, a call of copyreg.__newobj_ex__. */
static cz_status op_newobj_ex(struct pickle_parser *p)
{
    struct pickle_node *callable, *args, *made;
    TRY(op_tuple(p, 3));
    TRY(pop(p, &args));
    TRY(pickle_global(p, "copyreg", "__newobj_ex__", &callable));
    TRY(pickle_call(p, callable, args, false, &made));
    return pickle_push(p, made);
}

/* The state goes to the object that stays on the stack, which the memo may already name. */
static cz_status op_build(struct pickle_parser *p)
{
    struct pickle_node *state, *node;
    TRY(need(p, 2));
    TRY(pop(p, &state));
    TRY(top(p, &node));
    return pickle_set_state(p, node, state);
}

static cz_status op_persistent(struct pickle_parser *p)
{
    struct pickle_node *id, *made;
    TRY(pop(p, &id));
    TRY(pickle_persistent(p, id, &made));
    return pickle_push(p, made);
}

/* ---- memo, control --------------------------------------------------------------------------- */

/* MEMOIZE has no index: it takes the number of entries so far. */
static cz_status op_put(struct pickle_parser *p, size_t width)
{
    uint64_t idx = p->n_memo; /* MEMOIZE: the next one */
    struct pickle_node *node;
    if (width > 0) TRY(take_number(p, width, &idx));
    TRY(top(p, &node));
    return pickle_memo_put(p, (uint32_t)idx, node);
}

/* The same node is pushed again, not a copy: sharing is part of the value, and a container that is
 * still being filled is filled for all of its users. */
static cz_status op_get(struct pickle_parser *p, size_t width)
{
    uint64_t idx;
    TRY(take_number(p, width, &idx));
    struct pickle_node *node = pickle_memo_get(p, (uint32_t)idx);
    if (!node)
        return pickle_fail(p, CZ_CORRUPT, "memo entry %llu was never stored",
                           (unsigned long long)idx);
    return pickle_push(p, node);
}

static cz_status op_pop(struct pickle_parser *p)
{
    struct pickle_node *node;
    if (p->n_marks > 0 && n_open(p) == 0) { /* as Python: the mark goes */
        p->n_marks--;
        return CZ_OK;
    }
    return pop(p, &node);
}

static cz_status op_pop_mark(struct pickle_parser *p)
{
    struct pickle_node *const *items;
    size_t n;
    return pop_mark(p, &items, &n);
}

static cz_status op_dup(struct pickle_parser *p)
{
    struct pickle_node *node;
    TRY(top(p, &node));
    return pickle_push(p, node);
}

/* Checked wherever it occurs, since the machine of Python does so as well. */
static cz_status op_proto(struct pickle_parser *p)
{
    uint64_t version;
    TRY(take_number(p, 1, &version));
    if (version < 2 || version > 5)
        return pickle_fail(p, CZ_UNSUPPORTED, "pickle protocol %u; 2 to 5 can be read",
                           (unsigned)version);
    return CZ_OK;
}

/* Frames only say how much to read at a time; all bytes are here, so their length is checked and
 * otherwise ignored. */
static cz_status op_frame(struct pickle_parser *p)
{
    uint64_t nbytes;
    TRY(take_number(p, 8, &nbytes));
    if (nbytes <= p->nbytes - p->off) return CZ_OK;
    return pickle_fail(p, CZ_CORRUPT, "a frame of %llu bytes, %zu are left",
                       (unsigned long long)nbytes, p->nbytes - p->off);
}

/* One case per opcode. Widths are passed as numbers, so that the short and the long form of an
 * opcode share their code. */
static cz_status do_opcode(struct pickle_parser *p, unsigned char op)
{
    struct pickle_node *node;
    switch (op) {
    case OP_PROTO: return op_proto(p);
    case OP_FRAME: return op_frame(p);
    case OP_MARK: return pickle_mark(p);
    case OP_POP: return op_pop(p);
    case OP_POP_MARK: return op_pop_mark(p);
    case OP_DUP: return op_dup(p);
    case OP_BINPUT: return op_put(p, 1);
    case OP_LONG_BINPUT: return op_put(p, 4);
    case OP_MEMOIZE: return op_put(p, 0);
    case OP_BINGET: return op_get(p, 1);
    case OP_LONG_BINGET: return op_get(p, 4);
    case OP_NONE: return pickle_push(p, p->none);
    case OP_NEWTRUE: return pickle_push(p, p->yes);
    case OP_NEWFALSE: return pickle_push(p, p->no);
    case OP_BININT1: return op_int(p, 1);
    case OP_BININT2: return op_int(p, 2);
    case OP_BININT: return op_int(p, 4);
    case OP_LONG1: return op_long(p, 1);
    case OP_LONG4: return op_long(p, 4);
    case OP_BINFLOAT: return op_float(p);
    case OP_SHORT_BINUNICODE: return op_string(p, 1);
    case OP_BINUNICODE: return op_string(p, 4);
    case OP_BINUNICODE8: return op_string(p, 8);
    case OP_SHORT_BINSTRING: return op_old_string(p, 1);
    case OP_BINSTRING: return op_old_string(p, 4);
    case OP_SHORT_BINBYTES: return op_bytes(p, 1);
    case OP_BINBYTES: return op_bytes(p, 4);
    case OP_BINBYTES8:
    case OP_BYTEARRAY8: return op_bytes(p, 8);
    case OP_EMPTY_TUPLE: return pickle_push(p, p->empty);
    case OP_TUPLE1: return op_tuple(p, 1);
    case OP_TUPLE2: return op_tuple(p, 2);
    case OP_TUPLE3: return op_tuple(p, 3);
    case OP_TUPLE: return op_tuple_marked(p);
    case OP_EMPTY_LIST: return push_new(p, PICKLE_LIST, &node);
    case OP_APPEND: return op_append(p);
    case OP_APPENDS: return op_add_marked(p, PICKLE_LIST);
    case OP_EMPTY_DICT: return push_new(p, PICKLE_DICT, &node);
    case OP_SETITEM:
        TRY(need(p, 3));
        p->n_stack -= 2;
        return set_items(p, p->stack + p->n_stack, 2);
    case OP_SETITEMS: return op_set_items(p);
    case OP_EMPTY_SET: return op_empty_set(p);
    case OP_ADDITEMS: return op_add_marked(p, PICKLE_SET);
    case OP_FROZENSET: return op_frozenset(p);
    case OP_GLOBAL: return op_global(p);
    case OP_STACK_GLOBAL: return op_stack_global(p);
    case OP_REDUCE: return op_call(p, false);
    case OP_NEWOBJ: return op_call(p, true);
    case OP_NEWOBJ_EX: return op_newobj_ex(p);
    case OP_BUILD: return op_build(p);
    case OP_BINPERSID: return op_persistent(p);
    default:
        if (op >= OP_EXT1 && op <= OP_EXT4)
            return pickle_fail(p, CZ_UNSUPPORTED,
                               "an extension code (opcode 0x%02x), which is not read", op);
        if (op == OP_NEXT_BUFFER || op == OP_READONLY_BUFFER)
            return pickle_fail(p, CZ_UNSUPPORTED,
                               "an out-of-band buffer (opcode 0x%02x), which is not read", op);
        if (op != 0 && strchr("ILFSVPiodlpg", op))
            return pickle_fail(p, CZ_UNSUPPORTED,
                               "text opcode '%c' of pickle protocol 0; 2 to 5 can be read", op);
        return pickle_fail(p, CZ_CORRUPT, "unknown opcode 0x%02x", op);
    }
}

/* ---- a whole pickle -------------------------------------------------------------------------- */

/* None, False, True and () are one node each: a config has thousands of them. So are the marks and
 * the bytes after STOP checked: a pickle that is followed by anything is not what a writer left. */
static cz_status run(struct pickle_parser *p)
{
    if (p->nbytes < 2 || p->bytes[0] != OP_PROTO)
        return pickle_fail(p, CZ_CORRUPT, "this is not a pickle of protocol 2 or later");
    TRY(pickle_node_new(p, PICKLE_NONE, &p->none));
    TRY(pickle_node_new(p, PICKLE_BOOL, &p->no));
    TRY(pickle_node_new(p, PICKLE_BOOL, &p->yes));
    TRY(pickle_node_new(p, PICKLE_TUPLE, &p->empty));
    p->yes->boolean = true;
    while (p->off < p->nbytes) {
        p->op_off = p->off;
        unsigned char op = p->bytes[p->off++];
        if (op == OP_STOP) {
            if (p->n_stack != 1 || p->n_marks != 0)
                return pickle_fail(p, CZ_CORRUPT, "STOP with %zu values and %zu marks on the stack",
                                   p->n_stack, p->n_marks);
            if (p->off != p->nbytes)
                return pickle_fail(p, CZ_CORRUPT, "%zu bytes follow the end of the pickle",
                                   p->nbytes - p->off);
            TRY(pickle_settle(p, p->stack[0]));
            p->tree->root = p->stack[0];
            return CZ_OK;
        }
        TRY(do_opcode(p, op));
    }
    p->op_off = p->nbytes;
    return pickle_fail(p, CZ_CORRUPT, "the pickle is cut off: no STOP");
}

/* Memory and work are bounded by the size of the input (a pickle of a few kilobytes can otherwise
 * double a list with every opcode), memory also by half of what the host has left. */
cz_status pickle_parse(const void *bytes, size_t nbytes, const char *label, struct pickle **out)
{
    *out = NULL;
    if (nbytes > PICKLE_NBYTES_MAX)
        return err_set(CZ_UNSUPPORTED, 0, "%s: a pickle of %zu bytes; up to 1 GiB can be read",
                       label, nbytes);
    struct pickle *tree = calloc(1, sizeof *tree);
    if (!tree) return err_set(CZ_NOMEM, 0, "%s: no memory", label);
    tree->budget = PICKLE_BYTES_FIXED + PICKLE_BYTES_PER_INPUT * nbytes;
    tree->is_host_short = tree->budget > HOST_ASKED_NBYTES && tree->budget > host_memory_left() / 2;
    if (tree->is_host_short) tree->budget = host_memory_left() / 2;
    struct pickle_parser p = {.tree = tree, .label = label, .bytes = bytes, .nbytes = nbytes};
    p.key = hash_key();
    p.work_left = PICKLE_WORK_FIXED + PICKLE_WORK_PER_INPUT * nbytes;
    cz_status st = run(&p);
    pickle_parser_free(&p);
    if (st != CZ_OK) {
        pickle_free(tree);
        return err_trace(st, __func__, __LINE__);
    }
    *out = tree;
    return CZ_OK;
}
