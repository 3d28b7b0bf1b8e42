/* PTX text: words, declarations, and the index of a module. See ptx_text.h. */
#include "ptx_text.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void ptx_stop_with(const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    throw ptx_stop{text};
}

/* ---- words ---- */

void ptx_reader::skip_space()
{
    for (;;) {
        if (*at == '\n') {
            line++;
            at++;
        } else if (*at == ' ' || *at == '\t' || *at == '\r') {
            at++;
        } else if (at[0] == '/' && at[1] == '/') {
            while (*at && *at != '\n') at++;
        } else if (at[0] == '/' && at[1] == '*') {
            while (*at && !(at[0] == '*' && at[1] == '/')) line += *at++ == '\n';
            if (*at) at += 2;
        } else {
            return;
        }
    }
}

bool ptx_reader::at_end()
{
    skip_space();
    return !*at;
}

char ptx_reader::peek()
{
    skip_space();
    return *at;
}

bool ptx_reader::accept(char c)
{
    if (peek() != c) return false;
    at++;
    return true;
}

void ptx_reader::expect(char c)
{
    if (accept(c)) return;
    char what[32];
    snprintf(what, sizeof what, "'%c' is missing", c);
    refuse(what);
}

std::string ptx_reader::word()
{
    skip_space();
    const char *start = at;
    while (isalnum((unsigned char)*at) || strchr("_$%.", *at) || (at[0] == ':' && at[1] == ':') ||
           (at[0] == ':' && at > start && at[-1] == ':')) {
        if (!*at) break;
        at++;
    }
    return std::string(start, at);
}

std::string ptx_reader::quoted()
{
    expect('"');
    const char *start = at;
    while (*at && *at != '"') at++;
    std::string text(start, at);
    expect('"');
    return text;
}

void ptx_reader::skip_to(char c)
{
    while (*at && *at != c) line += *at++ == '\n';
    if (*at) at++;
}

void ptx_reader::skip_braces()
{
    for (int depth = 1; *at && depth > 0; at++) {
        if (*at == '\n') line++;
        if (*at == '{') depth++;
        if (*at == '}') depth--;
    }
}

int64_t ptx_reader::integer()
{
    skip_space();
    bool negative = accept('-');
    char *end;
    uint64_t n = strtoull(at, &end, 0);
    if (end == at) refuse("a number is missing");
    at = end;
    if (*at == 'U') at++;
    return negative ? (int64_t)(0 - n) : (int64_t)n;
}

void ptx_reader::refuse(const char *what)
{
    int n = 0;
    while (at[n] && at[n] != '\n' && n < 60) n++;
    ptx_stop_with("line %d: %s at \"%.*s\"", line, what, n, at);
}

/* ---- declarations ---- */

size_t ptx_type_nbytes(const std::string &type)
{
    static const struct {
        const char *name;
        size_t nbytes;
    } types[] = {{"b8", 1},  {"u8", 1},    {"s8", 1},     {"b16", 2},  {"u16", 2},
                 {"s16", 2}, {"f16", 2},   {"bf16", 2},   {"b32", 4},  {"u32", 4},
                 {"s32", 4}, {"f32", 4},   {"b64", 8},    {"u64", 8},  {"s64", 8},
                 {"f64", 8}, {"f16x2", 4}, {"bf16x2", 4}, {"b128", 16}};
    for (const auto &t : types)
        if (type == t.name) return t.nbytes;
    return 0;
}

ptx_declaration ptx_declaration_read(ptx_reader &r)
{
    ptx_declaration d = {"", "", 0, 0};
    size_t size = 0;
    for (;;) {
        std::string w = r.word();
        if (w.empty()) r.refuse("a name is missing");
        if (w == ".align") {
            d.align = (size_t)r.integer();
        } else if (w[0] != '.') {
            d.name = w;
            break;
        } else if (size_t nbytes = ptx_type_nbytes(w.substr(1))) {
            d.type = w.substr(1);
            size = nbytes;
        }
    }
    if (d.align == 0) d.align = size;
    d.nbytes = size;
    while (r.accept('[')) {
        d.nbytes *= r.peek() == ']' ? 0 : (size_t)r.integer();
        r.expect(']');
    }
    return d;
}

/* ---- modules ---- */

static void store(ptx_reader &r, char *to, size_t size)
{
    if (r.peek() == '0' && (r.at[1] == 'f' || r.at[1] == 'd')) {
        uint64_t bits = strtoull(r.at + 2, nullptr, 16);
        r.word();
        memcpy(to, &bits, size);
        return;
    }
    int64_t value = r.integer();
    memcpy(to, &value, size);
}

static void read_variable(ptx_module *m, ptx_reader &r, enum ptx_space space, bool is_extern)
{
    ptx_declaration d = ptx_declaration_read(r);
    ptx_variable v = {space, d.nbytes, d.align, is_extern && d.nbytes == 0, nullptr};
    if (space == PTX_GLOBAL || space == PTX_CONST) {
        m->storage.emplace_back(new uint64_t[d.nbytes / 8 + 4]());
        uintptr_t start = (uintptr_t)m->storage.back().get();
        v.at = (char *)((start + 15) / 16 * 16);
    }
    if (r.accept('=')) {
        const size_t size = ptx_type_nbytes(d.type);
        const bool many = r.accept('{');
        for (size_t i = 0; v.at && (i + 1) * size <= d.nbytes; i++) {
            store(r, v.at + i * size, size);
            if (!many || !r.accept(',')) break;
        }
        if (many) r.expect('}');
    }
    r.expect(';');
    m->variables[d.name] = v;
}

static void read_entry(ptx_module *m, ptx_reader &r)
{
    std::string name = r.word();
    ptx_entry &e = m->entries[name];
    e.at = r.at;
    e.line = r.line;
    r.skip_to('{');
    r.skip_braces();
}

static void read_top_level(ptx_module *m, ptx_reader &r)
{
    bool is_extern = false;
    for (;;) {
        std::string w = r.word();
        if (w == ".visible" || w == ".weak" || w == ".extern" || w == ".common") {
            is_extern = w == ".extern";
        } else if (w == ".entry") {
            return read_entry(m, r);
        } else if (w == ".global") {
            return read_variable(m, r, PTX_GLOBAL, is_extern);
        } else if (w == ".const") {
            return read_variable(m, r, PTX_CONST, is_extern);
        } else if (w == ".shared") {
            return read_variable(m, r, PTX_SHARED, is_extern);
        } else if (w == ".file") {
            int number = (int)r.integer();
            m->files[number] = r.quoted();
            return;
        } else if (w == ".section") {
            r.skip_to('{');
            return r.skip_braces();
        } else if (w == ".func") { /* calls to it are refused */
            while (*r.at && *r.at != '{' && *r.at != ';') r.line += *r.at++ == '\n';
            if (r.accept('{')) return r.skip_braces();
            return r.expect(';');
        } else if (w == ".version" || w == ".target" || w == ".address_size") {
            return r.skip_to('\n'), (void)r.line++;
        } else {
            r.refuse("not understood");
        }
    }
}

std::unique_ptr<ptx_module> ptx_module_read(const std::string &path, std::string text)
{
    auto m = std::make_unique<ptx_module>();
    m->path = path;
    m->text = std::move(text);
    ptx_reader r(m->text.c_str(), 1);
    while (!r.at_end()) read_top_level(m.get(), r);
    return m;
}

const ptx_function *ptx_module_function(ptx_module *m, const std::string &name)
{
    auto at = m->entries.find(name);
    if (at == m->entries.end()) return nullptr;
    if (!at->second.decoded) at->second.decoded = ptx_decode(m, name, at->second);
    return at->second.decoded.get();
}

std::string ptx_source(const ptx_function *f, const ptx_op &o)
{
    const ptx_loc &l = f->locs[(size_t)o.loc];
    auto place = [&](int file, int line) {
        auto at = f->module->files.find(file);
        return (at == f->module->files.end() ? "?" : at->second) + ":" + std::to_string(line);
    };
    std::string text;
    if (l.line > 0) text = place(l.file, l.line);
    if (l.caller_line > 0) text += " in " + place(l.caller_file, l.caller_line);
    return text;
}

std::string ptx_where(const ptx_function *f, const ptx_op &o)
{
    const std::string source = ptx_source(f, o);
    return "PTX line " + std::to_string(o.line) + (source.empty() ? "" : ", " + source);
}
