/* A kernel's body: declarations, labels, operands; each instruction goes to its family. */
#include "ptx_decode.h"

#include "ptx_run.h"
#include "ptx_text.h"

#include <algorithm>
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <unordered_map>

void ptx_refuse(const ptx_instruction &i, const char *why)
{
    ptx_stop_with("line %d: %s: %s", i.line, i.opcode.c_str(), why);
}

bool ptx_instruction::has(const char *part) const
{
    return std::find(parts.begin(), parts.end(), part) != parts.end();
}

const ptx_operand &ptx_instruction::operand(size_t i) const
{
    if (i >= operands.size()) ptx_refuse(*this, "operands are missing");
    return operands[i];
}

/* ---- slots ---- */

int32_t ptx_builder::constant(int size, uint64_t bits)
{
    if (size == PTX_PREDICATE) bits = bits ? PTX_ALL_LANES : 0;
    auto known = known_constants.find({size, bits});
    if (known != known_constants.end()) return known->second;
    const size_t at = f->constants.size() * 8;
    f->constants.resize(f->constants.size() + (size_t)(size == PTX_PREDICATE ? 8 : 4 * size));
    char *p = (char *)f->constants.data() + at;
    if (size == PTX_PREDICATE) memcpy(p, &bits, 4);
    for (int l = 0; l < PTX_WARP; l++) memcpy(p + l * size, &bits, (size_t)size);
    return known_constants[{size, bits}] = ~(int32_t)at;
}

int ptx_builder::mention(int where, const ptx_operand &x, int size, bool is_write)
{
    int reg = x.reg;
    if (is_write && x.kind == ptx_operand::NAME && x.name == "_" && size != PTX_ANY_SIZE) {
        reg = (int)sizes.size(); /* one that is never read */
        sizes.push_back(size);
    } else if (x.kind != ptx_operand::REGISTER) {
        ptx_refuse(*current, "a register is missing");
    }
    const int has = sizes[(size_t)reg];
    if (size != PTX_ANY_SIZE && has != size)
        ptx_refuse(*current, "a register has not the size of the type");
    mentions.push_back({(uint32_t)f->code.size(), where, reg, is_write});
    return has;
}

int ptx_builder::write(int where, const ptx_operand &x, int size)
{
    op.s[where] = 0;
    return mention(where, x, size, true);
}

int ptx_builder::read(int where, const ptx_operand &x, int size)
{
    op.s[where] = 0;
    if (x.kind == ptx_operand::REGISTER) return mention(where, x, size, false);
    if (x.kind != ptx_operand::NUMBER && x.kind != ptx_operand::NAME)
        ptx_refuse(*current, "a register or a number is missing");
    if (size == PTX_ANY_SIZE) size = 8;
    op.s[where] = constant(size, x.bits);
    return size;
}

int ptx_builder::write_more(const ptx_operand &x, int size)
{
    f->more.push_back(0);
    return mention(6 + op.n_more++, x, size, true);
}

int ptx_builder::read_more(const ptx_operand &x, int size)
{
    f->more.push_back(0);
    const int where = 6 + op.n_more++;
    if (x.kind == ptx_operand::REGISTER) return mention(where, x, size, false);
    if (x.kind != ptx_operand::NUMBER) ptx_refuse(*current, "a register or a number is missing");
    f->more.back() = constant(size, x.bits);
    return size;
}

void ptx_builder::address(int where, const ptx_operand &x)
{
    if (x.kind != ptx_operand::MEMORY) ptx_refuse(*current, "[an address] is missing");
    op.imm = (int64_t)x.bits;
    op.s[where] = PTX_NO_SLOT;
    if (x.reg < 0) return;
    op.s[where] = 0;
    mentions.push_back({(uint32_t)f->code.size(), where, x.reg, false});
    if (sizes[(size_t)x.reg] == 8) op.form |= 1;
    if (sizes[(size_t)x.reg] < 4) ptx_refuse(*current, "an address has 32 or 64 bits");
}

/* ---- the body ---- */

namespace {

/* Names of a { } scope: %r<16> is a prefix with a count, others stand for themselves. */
struct scope {
    struct range {
        int first, n;
    };
    std::unordered_map<std::string, range> prefixes;
    std::unordered_map<std::string, int> names;
};

class body_decoder {
  public:
    body_decoder(ptx_module *m, ptx_function *f, ptx_reader &r) : r(r), f(f)
    {
        b.f = f;
        b.module = m;
        b.current = nullptr;
        std::fill(specials, specials + PTX_N_SPECIAL, -1);
        f->locs.push_back({0, 0, 0, 0});
    }
    void decode();

  private:
    void statement();
    void directive(const std::string &word);
    void declare_registers();
    void declare_variable(ptx_space space);
    void loc();
    void instruction(const std::string &first);
    void guard(bool *negated, int *reg);
    void parse_operands(ptx_instruction *i);
    ptx_operand operand();
    ptx_operand memory();
    ptx_operand number();
    ptx_operand named(const std::string &name);
    int find_register(const std::string &name);
    int special(const std::string &name);
    bool find_variable(const std::string &name, ptx_operand *x);
    void choose(const ptx_instruction &i);
    void resolve_branches();
    void find_grains();

    ptx_reader &r;
    ptx_function *f;
    ptx_builder b;
    std::vector<scope> scopes;
    std::unordered_map<std::string, int> labels;
    std::unordered_map<std::string, std::pair<ptx_space, uint64_t>> variables;
    int specials[PTX_N_SPECIAL];
};

size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

void body_decoder::declare_registers()
{
    std::string type = r.word().substr(1);
    int size = type == "pred" ? PTX_PREDICATE : (int)ptx_type_nbytes(type);
    if (size == 1) size = 2;
    if (size == 16) r.refuse("registers of 128 bits are not known");
    do {
        std::string name = r.word();
        if (r.accept('<')) {
            const int n = (int)r.integer();
            r.expect('>');
            scopes.back().prefixes[name] = {(int)b.sizes.size(), n};
            b.sizes.insert(b.sizes.end(), (size_t)n, size);
        } else {
            scopes.back().names[name] = (int)b.sizes.size();
            b.sizes.push_back(size);
        }
    } while (r.accept(','));
    r.expect(';');
}

void body_decoder::declare_variable(ptx_space space)
{
    ptx_declaration d = ptx_declaration_read(r);
    r.expect(';');
    size_t *used = space == PTX_SHARED ? &f->static_shared : &f->local_nbytes;
    *used = round_up(*used, d.align);
    variables[d.name] = {space, *used};
    *used += d.nbytes;
}

void body_decoder::loc()
{
    ptx_loc l = {0, 0, 0, 0};
    l.file = (int)r.integer();
    l.line = (int)r.integer();
    r.integer();
    while (r.accept(',')) {
        std::string w = r.word();
        if (w == "inlined_at") {
            l.caller_file = (int)r.integer();
            l.caller_line = (int)r.integer();
            r.integer();
        } else { /* function_name label[+offset] */
            r.word();
            if (r.accept('+')) r.integer();
        }
    }
    f->locs.push_back(l);
}

void body_decoder::directive(const std::string &word)
{
    if (word == ".reg") return declare_registers();
    if (word == ".shared") return declare_variable(PTX_SHARED);
    if (word == ".local") return declare_variable(PTX_LOCAL);
    if (word == ".loc") return loc();
    if (word == ".pragma") return r.skip_to(';');
    r.refuse("a directive that is not known");
}

int body_decoder::find_register(const std::string &name)
{
    size_t digits = name.size();
    while (digits > 0 && isdigit((unsigned char)name[digits - 1])) digits--;
    const std::string prefix = name.substr(0, digits);
    for (size_t s = scopes.size(); s-- > 0;) {
        auto whole = scopes[s].names.find(name);
        if (whole != scopes[s].names.end()) return whole->second;
        if (digits == name.size()) continue;
        auto part = scopes[s].prefixes.find(prefix);
        if (part == scopes[s].prefixes.end()) continue;
        const int i = atoi(name.c_str() + digits);
        if (i < part->second.n) return part->second.first + i;
    }
    return -1;
}

int body_decoder::special(const std::string &name)
{
    static const std::unordered_map<std::string, ptx_special> names = {
        {"%tid.x", PTX_TID_X},
        {"%tid.y", PTX_TID_Y},
        {"%tid.z", PTX_TID_Z},
        {"%ntid.x", PTX_NTID_X},
        {"%ntid.y", PTX_NTID_Y},
        {"%ntid.z", PTX_NTID_Z},
        {"%ctaid.x", PTX_CTAID_X},
        {"%ctaid.y", PTX_CTAID_Y},
        {"%ctaid.z", PTX_CTAID_Z},
        {"%nctaid.x", PTX_NCTAID_X},
        {"%nctaid.y", PTX_NCTAID_Y},
        {"%nctaid.z", PTX_NCTAID_Z},
        {"%laneid", PTX_LANEID},
        {"%warpid", PTX_WARPID},
        {"%lanemask_eq", PTX_LANEMASK_EQ},
        {"%lanemask_lt", PTX_LANEMASK_LT},
        {"%lanemask_le", PTX_LANEMASK_LE},
        {"%lanemask_gt", PTX_LANEMASK_GT},
        {"%lanemask_ge", PTX_LANEMASK_GE},
        {"%smid", PTX_SMID},
        {"%dynamic_smem_size", PTX_DYNAMIC_SMEM_SIZE}};
    auto at = names.find(name);
    if (at == names.end()) return -1;
    int *reg = &specials[at->second];
    if (*reg < 0) {
        *reg = (int)b.sizes.size();
        b.sizes.push_back(4);
    }
    return *reg;
}

/* Where a name of this function or of the module is in its space. Shared variables of the module
 * are laid out when they are first met. */
bool body_decoder::find_variable(const std::string &name, ptx_operand *x)
{
    for (const ptx_param &p : f->params) {
        if (p.name != name) continue;
        x->space = PTX_PARAM;
        x->bits = p.offset;
        return true;
    }
    auto own = variables.find(name);
    if (own == variables.end()) {
        auto at = b.module->variables.find(name);
        if (at == b.module->variables.end()) return false;
        const ptx_variable &v = at->second;
        if (v.space != PTX_SHARED) {
            variables[name] = {v.space, (uint64_t)(uintptr_t)v.at};
        } else {
            uint64_t at_offset = f->dynamic_at;
            if (!v.is_dynamic) {
                at_offset = round_up(f->static_shared, v.align);
                f->static_shared = at_offset + v.nbytes;
            }
            variables[name] = {PTX_SHARED, at_offset};
        }
        own = variables.find(name);
    }
    x->space = own->second.first;
    x->bits = own->second.second;
    return true;
}

/* ---- operands ---- */

ptx_operand body_decoder::number()
{
    ptx_operand x = {ptx_operand::NUMBER, -1, 0, false, PTX_GENERIC, "", {}};
    r.skip_space();
    if (r.at[0] == '0' && (r.at[1] == 'f' || r.at[1] == 'F' || r.at[1] == 'd' || r.at[1] == 'D')) {
        x.bits = strtoull(r.at + 2, nullptr, 16);
        r.word();
    } else {
        x.bits = (uint64_t)r.integer();
    }
    return x;
}

ptx_operand body_decoder::named(const std::string &name)
{
    ptx_operand x = {ptx_operand::REGISTER, find_register(name), 0, false, PTX_GENERIC, "", {}};
    if (x.reg < 0) x.reg = special(name);
    if (x.reg < 0 && name == "WARP_SZ") {
        x.kind = ptx_operand::NUMBER;
        x.bits = PTX_WARP;
    } else if (x.reg < 0) {
        x.kind = ptx_operand::NAME;
        x.name = name;
        if (name[0] == '%') ptx_stop_with("line %d: %s is not known", r.line, name.c_str());
        if (find_variable(name, &x) && r.accept('+')) x.bits += (uint64_t)r.integer();
    }
    return x;
}

ptx_operand body_decoder::memory()
{
    ptx_operand x = {ptx_operand::MEMORY, -1, 0, false, PTX_GENERIC, "", {}};
    if (isdigit((unsigned char)r.peek())) {
        x.bits = (uint64_t)r.integer();
    } else {
        ptx_operand base = named(r.word());
        if (base.kind == ptx_operand::NAME && base.space == PTX_GENERIC)
            ptx_stop_with("line %d: %s is not declared", r.line, base.name.c_str());
        x.reg = base.reg;
        x.bits = base.bits;
        x.space = base.space;
    }
    if (r.accept('+')) x.bits += (uint64_t)r.integer();
    while (r.accept(',')) x.parts.push_back(operand()); /* coordinates of a tensor */
    r.expect(']');
    return x;
}

ptx_operand body_decoder::operand()
{
    const char c = r.peek();
    if (c == '[') {
        r.expect('[');
        return memory();
    }
    if (c == '{') {
        ptx_operand list = {ptx_operand::LIST, -1, 0, false, PTX_GENERIC, "", {}};
        r.expect('{');
        do list.parts.push_back(operand());
        while (r.accept(','));
        r.expect('}');
        return list;
    }
    if (isdigit((unsigned char)c) || c == '-') return number();
    const bool negated = r.accept('!');
    std::string name = r.word();
    if (name.empty()) r.refuse("an operand is missing");
    ptx_operand x = named(name);
    x.negated = negated;
    if (r.accept('|')) x.parts.push_back(named(r.word()));
    return x;
}

/* ---- instructions ---- */

void body_decoder::guard(bool *negated, int *reg)
{
    *negated = r.accept('!');
    std::string name = r.word();
    *reg = find_register(name);
    if (*reg < 0 || b.sizes[(size_t)*reg] != PTX_PREDICATE) r.refuse("no predicate");
}

void body_decoder::parse_operands(ptx_instruction *i)
{
    std::string part;
    for (size_t at = 0; at <= i->opcode.size(); at++) {
        if (at < i->opcode.size() && i->opcode[at] != '.') {
            part += i->opcode[at];
            continue;
        }
        i->parts.push_back(part);
        part.clear();
    }
    if (r.accept(';')) return;
    do i->operands.push_back(operand());
    while (r.accept(','));
    r.expect(';');
}

void body_decoder::choose(const ptx_instruction &i)
{
    if (const ptx_plain *plain = ptx_find_plain(i.opcode)) {
        b.op.run = plain->run;
        if ((int)i.operands.size() != plain->n) ptx_refuse(i, "another number of operands");
        b.write(0, i.operands[0], plain->sizes[0]);
        for (int k = 1; k < plain->n; k++) b.read(k, i.operand((size_t)k), plain->sizes[k]);
        return;
    }
    static ptx_family (*const families[])(const std::string &) = {
        ptx_find_control, ptx_find_convert, ptx_find_compare, ptx_find_memory,
        ptx_find_async,   ptx_find_warp,    ptx_find_tensor,  ptx_find_warpgroup};
    for (auto find : families) {
        ptx_family family = find(i.parts[0]);
        if (family) return family(b, i);
    }
    ptx_refuse(i, "this instruction is not known to the interpreter");
}

void body_decoder::instruction(const std::string &first)
{
    ptx_instruction i;
    bool negated = false;
    int reg = -1;
    i.opcode = first;
    if (first.empty()) {
        r.expect('@');
        guard(&negated, &reg);
        i.opcode = r.word();
    }
    i.line = r.line;
    parse_operands(&i);
    b.op = {};
    b.op.line = i.line;
    b.op.loc = (int32_t)f->locs.size() - 1;
    b.op.guard = PTX_NO_SLOT;
    b.op.guard_not = negated;
    b.op.more = (uint32_t)f->more.size();
    for (int32_t &s : b.op.s) s = PTX_NO_SLOT;
    b.current = &i;
    const size_t n_mentions = b.mentions.size();
    choose(i);
    if (!b.op.run) { /* nothing to do: a prefetch */
        b.mentions.resize(n_mentions);
        return;
    }
    if (reg >= 0) {
        b.op.guard = 0;
        b.mentions.push_back({(uint32_t)f->code.size(), 5, reg, false});
    }
    f->code.push_back(b.op);
}

void body_decoder::statement()
{
    const char c = r.peek();
    if (c == '{') {
        r.expect('{');
        scopes.emplace_back();
    } else if (c == '}') {
        r.expect('}');
        scopes.pop_back();
    } else if (c == '@') {
        instruction("");
    } else if (!r.accept(';')) {
        std::string word = r.word();
        if (word.empty()) r.refuse("not understood");
        if (word[0] == '.')
            directive(word);
        else if (r.accept(':'))
            labels[word] = (int)f->code.size();
        else
            instruction(word);
    }
}

void body_decoder::resolve_branches()
{
    for (auto &branch : b.branches) {
        auto at = labels.find(branch.second);
        if (at == labels.end())
            ptx_stop_with("line %d: label %s is missing", f->code[branch.first].line,
                          branch.second.c_str());
        f->code[branch.first].imm = at->second;
    }
}

/* Cells of the watch are as large as the smallest access. Generic ones may go anywhere, but to
 * shared memory only where its address was made a generic one. */
void body_decoder::find_grains()
{
    f->shared_grain = f->global_grain = 16;
    for (const ptx_op &o : f->code) {
        if (o.nbytes == 0) continue;
        const int n = o.nbytes;
        if (o.space == PTX_SHARED || (o.space == PTX_GENERIC && f->shares_generic))
            f->shared_grain = std::min(f->shared_grain, n);
        if (o.space == PTX_GLOBAL || o.space == PTX_GENERIC)
            f->global_grain = std::min(f->global_grain, n);
    }
}

void body_decoder::decode()
{
    r.expect('{');
    scopes.emplace_back();
    while (!scopes.empty()) statement();
    ptx_op end = {};
    end.run = ptx_run_exit;
    end.guard = PTX_NO_SLOT;
    end.line = r.line;
    end.loc = (int32_t)f->locs.size() - 1;
    f->code.push_back(end);
    resolve_branches();
    find_grains();
    f->n_virtual = b.sizes.size();
    ptx_place_registers(f, b.sizes, b.mentions, specials);
}

void read_params(ptx_function *f, ptx_reader &r)
{
    if (!r.accept('(')) return;
    while (!r.accept(')')) {
        if (r.word() != ".param") r.refuse("no parameter");
        ptx_declaration d = ptx_declaration_read(r);
        f->params_nbytes = round_up(f->params_nbytes, d.align);
        f->params.push_back({d.name, d.nbytes, d.align, f->params_nbytes});
        f->params_nbytes += d.nbytes;
        r.accept(',');
    }
}

void read_limits(ptx_function *f, ptx_reader &r)
{
    while (r.peek() != '{') {
        std::string word = r.word();
        int n = 1;
        if (word.empty()) r.refuse("not understood");
        if (isdigit((unsigned char)r.peek())) {
            do n *= (int)r.integer();
            while (r.accept(','));
        }
        if (word == ".maxntid" || word == ".reqntid") f->max_threads = n;
    }
}

} // namespace

/* Dynamic shared memory begins where the static ends, which is known when the body has been read:
 * then it is read again. */
std::unique_ptr<ptx_function> ptx_decode(ptx_module *m, const std::string &name, const ptx_entry &e)
{
    for (size_t dynamic_at = 0;;) {
        auto f = std::make_unique<ptx_function>();
        f->name = name;
        f->module = m;
        f->dynamic_at = dynamic_at;
        ptx_reader r(e.at, e.line);
        read_params(f.get(), r);
        read_limits(f.get(), r);
        body_decoder(m, f.get(), r).decode();
        dynamic_at = round_up(f->static_shared, PTX_DYNAMIC_ALIGN);
        if (f->dynamic_at == dynamic_at) return f;
    }
}
