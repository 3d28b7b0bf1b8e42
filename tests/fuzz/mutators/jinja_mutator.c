/* Mutations for fuzz_jinja.c and the templates of fuzz_chat.c: words of the language in places
 * where they may stand, blocks around a part, a part many times. Random bytes mostly end in a
 * refusal by the lexer. Every third time bytes. */
#include "tests/fuzz/mutators/pickle_mutator.h"

size_t LLVMFuzzerMutate(unsigned char *data, size_t nbytes, size_t nbytes_max);
size_t LLVMFuzzerCustomMutator(unsigned char *data, size_t nbytes, size_t nbytes_max,
                               unsigned seed);

/* Behind a value. */
static const char *const tails[] = {"|tojson",
                                    "|trim",
                                    "|length",
                                    "|list",
                                    "|sort",
                                    "|first",
                                    "|last",
                                    "|string",
                                    "|int",
                                    "|float",
                                    "|upper",
                                    "|title",
                                    "|escape",
                                    "|safe",
                                    "|abs",
                                    "|items",
                                    "|dictsort",
                                    "|unique",
                                    "|reverse",
                                    "|join(',')",
                                    "|default('x')",
                                    "|replace('a','bb')",
                                    "|map('upper')",
                                    "|map(attribute='role')",
                                    "|map('map','trim')",
                                    "|selectattr('role')",
                                    "|rejectattr('role')",
                                    "|select('string')",
                                    "|reject('odd')",
                                    "|batch(2)",
                                    "|indent(3)",
                                    "|truncate(2)",
                                    "|round(1)",
                                    "|sum",
                                    "|min",
                                    "|max",
                                    "|wordcount",
                                    "|tojson(indent=4)",
                                    ".strip('ab')",
                                    ".rstrip()",
                                    ".split('a')",
                                    ".rsplit('a',1)",
                                    ".splitlines()",
                                    ".startswith(('a','b'))",
                                    ".find('a')",
                                    ".rfind('a')",
                                    ".count('a')",
                                    ".index(1)",
                                    ".replace('a','aa')",
                                    ".upper()",
                                    ".title()",
                                    ".join(['a','b'])",
                                    ".format(1)",
                                    ".items()",
                                    ".keys()",
                                    ".values()",
                                    ".get('role')",
                                    ".append(1)",
                                    ".pop()",
                                    ".update(a=1)",
                                    ".copy()",
                                    "[0]",
                                    "[-1]",
                                    "[1:]",
                                    "[::-1]",
                                    "['role']",
                                    "*3",
                                    "+[1]",
                                    "~'a'",
                                    "%2",
                                    "//2",
                                    "**2",
                                    " is defined",
                                    " is string",
                                    " is mapping",
                                    " is iterable",
                                    " is not none",
                                    " in messages",
                                    " if true",
                                    " if false else 1",
                                    " and 1",
                                    " or 0",
                                    "==1",
                                    "<2"};
/* Around a part. */
static const char *const around[][2] = {
    {"{% for i in range(9) %}", "{% endfor %}"},
    {"{% for k, v in {'a':1}.items() recursive %}", "{{ loop({}) }}{% endfor %}"},
    {"{% for m in messages if m.role %}", "{% else %}x{% endfor %}"},
    {"{% if messages %}", "{% elif i %}{% else %}{% endif %}"},
    {"{% macro f(a, b=1) %}", "{% endmacro %}{{ f(*[1], **{'b': 2}) }}"},
    {"{% call f(1) %}", "{% endcall %}"},
    {"{% set x %}", "{% endset %}{{ x }}"},
    {"{% set n = namespace(t='') %}{% set n.t = n.t ~ '", "' %}{{ n.t }}"},
    {"{% filter upper %}", "{% endfilter %}"},
    {"{% generation %}", "{% endgeneration %}"},
    {"{{ ", " }}"},
    {"{{- '", "' -}}"},
    {"{%- raw %}", "{% endraw -%}"},
    {"(", ")"},
    {"[", "]"},
    {"{'a':", "}"},
    {"not ", ""},
    {"-", ""}};
static const char *const numbers[] = {"0",
                                      "-1",
                                      "1",
                                      "2",
                                      "255",
                                      "65536",
                                      "4294967296",
                                      "9223372036854775807",
                                      "-9223372036854775808",
                                      "1e308",
                                      "0.1",
                                      "100000"};
#define N(x) (sizeof(x) / sizeof *(x))

/* Bytes [at, at + n_old) become n_new others; false: there is no space. */
static bool splice(unsigned char *data, size_t *nbytes, size_t nbytes_max, size_t at, size_t n_old,
                   const char *text)
{
    return mutator_splice(data, nbytes, nbytes_max, at, n_old, text, strlen(text));
}

static bool is_word(unsigned char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == '_' || c == ')' || c == ']';
}

/* Behind the word at a place, or the next one. */
static size_t word_end(const unsigned char *data, size_t nbytes, size_t at)
{
    while (at < nbytes && !is_word(data[at])) at++;
    while (at < nbytes && is_word(data[at])) at++;
    return at;
}

/* A part some thousand times: what is bounded in depth, steps and growth. */
static void repeat(unsigned char *data, size_t *nbytes, size_t nbytes_max, size_t from, size_t n,
                   uint32_t times)
{
    static unsigned char copy[64];
    if (n == 0 || n > sizeof copy) return;
    memcpy(copy, data + from, n);
    for (uint32_t i = 0; i < times; i++)
        if (!mutator_splice(data, nbytes, nbytes_max, from, 0, copy, n)) return;
}

static void change(unsigned char *data, size_t *nbytes, size_t nbytes_max, uint32_t *state)
{
    static unsigned char copy[256];
    const size_t at = mutator_random(state) % (*nbytes + 1), rest = *nbytes - at;
    const size_t n = rest ? mutator_random(state) % (rest < 40 ? rest : 40) : 0;
    const uint32_t random = mutator_random(state);
    switch (random % 8) {
    case 0:
    case 1:
    case 2:
        splice(data, nbytes, nbytes_max, word_end(data, *nbytes, at), 0,
               tails[random / 8 % N(tails)]);
        break;
    case 3:
    case 4: {
        const char *const *pair = around[random / 8 % N(around)];
        if (splice(data, nbytes, nbytes_max, at + n, 0, pair[1]))
            splice(data, nbytes, nbytes_max, at, 0, pair[0]);
        break;
    }
    case 5: { /* a number */
        size_t begin = at;
        while (begin < *nbytes && (data[begin] < '0' || data[begin] > '9')) begin++;
        size_t end = begin;
        while (end < *nbytes && data[end] >= '0' && data[end] <= '9') end++;
        splice(data, nbytes, nbytes_max, begin, end - begin, numbers[random / 8 % N(numbers)]);
        break;
    }
    case 6:
        if (n > 0 && n <= sizeof copy) {
            memcpy(copy, data + at, n);
            mutator_splice(data, nbytes, nbytes_max, mutator_random(state) % *nbytes, 0, copy, n);
        }
        break;
    default:
        if (random / 8 % 4 == 0)
            repeat(data, nbytes, nbytes_max, at, n, 1u << random / 32 % 12);
        else
            mutator_splice(data, nbytes, nbytes_max, at, n, "", 0);
    }
}

size_t LLVMFuzzerCustomMutator(unsigned char *data, size_t nbytes, size_t nbytes_max, unsigned seed)
{
    uint32_t state = seed;
    if (seed % 3 == 0) return LLVMFuzzerMutate(data, nbytes, nbytes_max);
    for (uint32_t k = mutator_random(&state) % 4 + 1; k > 0; k--)
        change(data, &nbytes, nbytes_max, &state);
    return nbytes > 0 ? nbytes : LLVMFuzzerMutate(data, nbytes, nbytes_max);
}
