/* Code that the PTX interpreter runs: modules as nvcc emitted them, and functions decoded from
 * them.
 *
 * A register of the PTX program is a slot: one value for each of a warp's 32 lanes, side by side
 * (predicates: one bit per lane in 32 bits). Slots are byte offsets into the warp's registers, or,
 * negated, into the function's constants. Source: NVIDIA, "PTX ISA" 9.0. */
#ifndef CZ_TESTS_PTX_CODE_H
#define CZ_TESTS_PTX_CODE_H

#include <map>
#include <memory>
#include <stddef.h>
#include <stdint.h>
#include <string>
#include <vector>

struct ptx_warp;
struct ptx_op;
typedef void (*ptx_run)(struct ptx_warp &w, const struct ptx_op &o);

#define PTX_NO_SLOT       INT32_MAX
#define PTX_DYNAMIC_ALIGN 1024 /* of dynamic shared memory's offset */

/* A decoded instruction. What the fields mean is a matter of run(); s[0] is what is written. */
struct ptx_op {
    ptx_run run;
    int32_t s[5];
    int32_t guard; /* slot of a predicate, or PTX_NO_SLOT */
    bool guard_not;
    uint8_t space, nbytes; /* memory: ptx_space, bytes of one element */
    uint8_t form;
    uint16_t n_more;
    uint32_t more;     /* further slots: function.more[more..] */
    int64_t imm;       /* address offset, branch target, … */
    int32_t line, loc; /* in the PTX text; in function.locs */
};

enum ptx_space { PTX_GENERIC = 0, PTX_GLOBAL, PTX_SHARED, PTX_LOCAL, PTX_PARAM, PTX_CONST };

struct ptx_loc {
    int file, line;               /* where the instruction comes from */
    int caller_file, caller_line; /* what it was inlined into; 0: nothing */
};

struct ptx_param {
    std::string name;
    size_t nbytes, align, offset;
};

/* Values that the hardware gives: %tid.x and so on. */
enum ptx_special {
    PTX_TID_X = 0,
    PTX_TID_Y,
    PTX_TID_Z,
    PTX_NTID_X,
    PTX_NTID_Y,
    PTX_NTID_Z,
    PTX_CTAID_X,
    PTX_CTAID_Y,
    PTX_CTAID_Z,
    PTX_NCTAID_X,
    PTX_NCTAID_Y,
    PTX_NCTAID_Z,
    PTX_LANEID,
    PTX_WARPID,
    PTX_LANEMASK_EQ,
    PTX_LANEMASK_LT,
    PTX_LANEMASK_LE,
    PTX_LANEMASK_GT,
    PTX_LANEMASK_GE,
    PTX_SMID,
    PTX_DYNAMIC_SMEM_SIZE,
    PTX_N_SPECIAL
};

struct ptx_module;

struct ptx_function {
    std::string name;
    const struct ptx_module *module;
    std::vector<ptx_param> params;
    size_t params_nbytes = 0;
    size_t static_shared = 0, dynamic_at = 0; /* dynamic shared memory follows the static */
    size_t local_nbytes = 0;
    int max_threads = 0;      /* .maxntid; 0: not said */
    std::vector<ptx_op> code; /* the last is an exit */
    std::vector<int32_t> more;
    std::vector<ptx_loc> locs;
    std::vector<uint64_t> constants; /* storage of negated slots */
    int32_t special[PTX_N_SPECIAL];  /* slots, PTX_NO_SLOT: not used */
    size_t registers_nbytes;         /* of a warp */
    size_t n_virtual;                /* registers that the text names */
    bool shares_generic = false;     /* generic addresses may be of shared memory */
    int shared_grain, global_grain;  /* the smallest access, in bytes: 1, 2, 4, 8 or 16 */
};

/* A variable outside of functions. */
struct ptx_variable {
    enum ptx_space space;
    size_t nbytes, align;
    bool is_dynamic; /* extern .shared x[] */
    char *at;        /* .global, .const: its bytes */
};

struct ptx_entry {
    const char *at; /* behind the name */
    int line;
    std::unique_ptr<ptx_function> decoded;
};

struct ptx_module {
    std::string path, text;
    std::map<std::string, ptx_entry> entries;
    std::map<std::string, ptx_variable> variables;
    std::map<int, std::string> files;
    std::vector<std::unique_ptr<uint64_t[]>> storage; /* of variables */
};

/* What cannot continue: a sentence. */
struct ptx_stop {
    std::string sentence;
};
[[noreturn]] void ptx_stop_with(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Index a module's text (ptx_text.cc). path is for sentences. Throws ptx_stop. */
std::unique_ptr<ptx_module> ptx_module_read(const std::string &path, std::string text);
/* The function of that name, decoded when first asked for; NULL: there is none. Throws ptx_stop:
 * an instruction that is not known, with its line. */
const ptx_function *ptx_module_function(ptx_module *m, const std::string &name);

/* Decoding a body (ptx_decode.cc); slots get their places (ptx_registers.cc). */
std::unique_ptr<ptx_function> ptx_decode(ptx_module *m, const std::string &name,
                                         const ptx_entry &e);

/* "file:line in file:line" of an instruction, the second what it was inlined into; and the same
 * behind its line of PTX. */
std::string ptx_source(const ptx_function *f, const ptx_op &o);
std::string ptx_where(const ptx_function *f, const ptx_op &o);

#endif
