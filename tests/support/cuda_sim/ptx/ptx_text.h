/* Reading PTX text: words, numbers, statements, with line numbers. */
#ifndef CZ_TESTS_PTX_TEXT_H
#define CZ_TESTS_PTX_TEXT_H

#include "ptx_code.h"

class ptx_reader {
  public:
    const char *at;
    int line;
    ptx_reader(const char *at, int line) : at(at), line(line) {}

    void skip_space();
    bool at_end();
    char peek(); /* the next character that is no space; 0 at the end */
    bool accept(char c);
    void expect(char c);
    /* Letters, digits, and what PTX puts into names: _ $ % . : (of "L2::128B"). */
    std::string word();
    std::string quoted();
    void skip_to(char c); /* behind it */
    void skip_braces();   /* from behind '{' to behind its '}' */
    int64_t integer();    /* decimal or hexadecimal, with a sign */
    [[noreturn]] void refuse(const char *what);
};

/* "u32" → 4; 0: no type. */
size_t ptx_type_nbytes(const std::string &type);

/* .align 8 .b8 name[112], .u64 name, .u64 .ptr .global .align 4 name: of parameters and variables.
 * nbytes is 0 for name[]. */
struct ptx_declaration {
    std::string name, type;
    size_t nbytes, align;
};
ptx_declaration ptx_declaration_read(ptx_reader &r);

#endif
