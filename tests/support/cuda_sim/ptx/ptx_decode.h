/* Between the words of an instruction and its op: operands, slots, the families of instructions.
 *
 * A family's decoder looks at the opcode's parts and at the operands, and gives the op what its
 * run() needs:
 *
 *     static void decode_neg(ptx_builder &b, const ptx_instruction &i)
 *     {
 *         b.op.run = run_neg;
 *         b.write(0, i.operands[0], 4);
 *         b.read(1, i.operands[1], 4);
 *     } */
#ifndef CZ_TESTS_PTX_DECODE_H
#define CZ_TESTS_PTX_DECODE_H

#include "ptx_code.h"

struct ptx_operand {
    enum kind { REGISTER, NUMBER, NAME, MEMORY, LIST } kind;
    int reg;       /* REGISTER; MEMORY: its base, -1: none */
    uint64_t bits; /* NUMBER; MEMORY, NAME: what is added to the register, the variable's address */
    bool negated;  /* !%p */
    ptx_space space; /* of a NAME, or of the one in MEMORY */
    std::string name;
    std::vector<ptx_operand> parts; /* LIST; a|b: the second of a REGISTER */
};

struct ptx_instruction {
    std::string opcode;
    std::vector<std::string> parts; /* "ld", "shared", "v4", "f32" */
    std::vector<ptx_operand> operands;
    int line;
    bool has(const char *part) const;
    const std::string &type() const { return parts.back(); }
    const ptx_operand &operand(size_t i) const; /* refuses when there are fewer */
};
[[noreturn]] void ptx_refuse(const ptx_instruction &i, const char *why);

/* Bytes of a lane's value in a register: 2, 4, 8; predicates are PTX_PREDICATE. */
#define PTX_PREDICATE 0
#define PTX_ANY_SIZE  -1

/* A register that an op reads or writes. where: 0..4 s[where], 5 the guard, from 6 on more[]. */
struct ptx_mention {
    uint32_t op;
    int where;
    int reg;
    bool is_write;
};

class ptx_builder {
  public:
    ptx_op op;
    ptx_function *f;
    ptx_module *module;
    const ptx_instruction *current;
    std::vector<int> sizes; /* of virtual registers */
    std::vector<ptx_mention> mentions;
    std::vector<std::pair<size_t, std::string>> branches; /* op, label */

    /* Operand i of the op is written, read: a register of that size, or (read) a constant. Returns
     * the register's size. */
    int write(int where, const ptx_operand &x, int size);
    int read(int where, const ptx_operand &x, int size);
    /* The same as the next of op.more. */
    int write_more(const ptx_operand &x, int size);
    int read_more(const ptx_operand &x, int size);
    /* [address]: s[where] or none, and imm; op.form gets bit 0: the register has 64 bits. */
    void address(int where, const ptx_operand &x);
    int32_t constant(int size, uint64_t bits);

  private:
    int mention(int where, const ptx_operand &x, int size, bool is_write);
    std::map<std::pair<int, uint64_t>, int32_t> known_constants;
};

typedef void (*ptx_family)(ptx_builder &b, const ptx_instruction &i);

/* An instruction that works on lanes one by one: run, sizes of result and sources. */
struct ptx_plain {
    ptx_run run;
    int sizes[5];
    int n; /* result and sources */
};
/* By the whole opcode; NULL: not one of these (ptx_arith.cc). */
const ptx_plain *ptx_find_plain(const std::string &opcode);
/* By its first part; NULL: not known. */
ptx_family ptx_find_control(const std::string &base);   /* ptx_control.cc */
ptx_family ptx_find_convert(const std::string &base);   /* ptx_convert.cc */
ptx_family ptx_find_compare(const std::string &base);   /* ptx_compare.cc */
ptx_family ptx_find_memory(const std::string &base);    /* ptx_memory.cc */
ptx_family ptx_find_async(const std::string &base);     /* ptx_async.cc */
ptx_family ptx_find_warp(const std::string &base);      /* ptx_warp.cc */
ptx_family ptx_find_warpgroup(const std::string &base); /* ptx_warpgroup.cc */
ptx_family ptx_find_tensor(const std::string &base);    /* ptx_tensor.cc */

void ptx_run_exit(ptx_warp &w, const ptx_op &o);
void ptx_run_branch(ptx_warp &w, const ptx_op &o);

/* Places for the registers: those that are never needed at the same time share one. specials:
 * virtual registers, by ptx_special, -1: not used (ptx_registers.cc). */
void ptx_place_registers(ptx_function *f, const std::vector<int> &sizes,
                         const std::vector<ptx_mention> &mentions,
                         const int specials[PTX_N_SPECIAL]);

#endif
