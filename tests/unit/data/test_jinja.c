/* Claims: templates render as Jinja 3.1 in transformers' environment renders them; what the engine
 * lacks and what is wrong is refused with the line; spans of generation blocks are those that
 * transformers reports; hostile templates end within the limits. tests/interop/chat/jinja_check.py
 * compares far more with Jinja itself. */
#include "data/jinja/jinja.h"
#include "tests/support/check_main.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char values[] =
    "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\",\"content\":"
    "\"Stra\\u00dfe\"}],\"d\":{\"b\":1,\"A\":2,\"items\":\"mine\"},\"l\":[3,1,2],\"s\":\"Hello, "
    "W\\u00f6rld! \",\"i\":7,\"f\":2.5,\"h\":1e-7,\"yes\":true,\"no\":false,\"nil\":null,"
    "\"q\":\"it's\"}";

static cz_status render(const char *text, struct jinja_text *out)
{
    struct jinja_template *t;
    struct json_doc *doc;
    struct jinja_var vars[16];
    ck_ok(json_parse(values, sizeof values - 1, "values", JSON_STRICT, &doc));
    const struct json_node *root = json_root(doc);
    for (size_t i = 0; i < json_count(root); i++)
        vars[i] =
            (struct jinja_var){.name = json_key(json_child(root, i)), .node = json_child(root, i)};
    cz_status st = jinja_parse(text, strlen(text), "t", &t);
    if (st == CZ_OK) st = jinja_render(t, vars, json_count(root), 86400, out);
    jinja_free(t);
    json_free(doc);
    return st;
}

static void check_text(const char *text, const char *expected)
{
    struct jinja_text out = {0};
    cz_status st = render(text, &out);
    ck_assert_msg(st == CZ_OK, "%s: %s", text, cz_last_error());
    ck_assert_msg(out.text.n == strlen(expected) &&
                      memcmp(out.text.s ? out.text.s : "", expected, out.text.n) == 0,
                  "%s gives \"%.*s\", not \"%s\"", text, (int)out.text.n, out.text.s, expected);
    jinja_text_free(&out);
}

static void check_refused(const char *text, cz_status status, const char *sentence)
{
    struct jinja_text out = {0};
    cz_status st = render(text, &out);
    ck_assert_msg(st == status, "%.60s: status %d, %s", text, (int)st, cz_last_error());
    ck_assert_msg(strstr(cz_last_error(), sentence), "%.60s: %s", text, cz_last_error());
    jinja_text_free(&out);
}

START_TEST(expressions_give_what_python_gives)
{
    static const char *const table[][2] = {
        {"{{ s }}|{{ i }}|{{ f }}|{{ h }}|{{ yes }}|{{ nil }}|{{ missing }}",
         "Hello, Wörld! |7|2.5|1e-07|True|None|"},
        {"{{ [q, 'é', 1.0, (1,), {'a': none}] }}", "[\"it's\", 'é', 1.0, (1,), {'a': None}]"},
        {"{{ s[7] }}{{ s[-2] }}{{ s[1:4] }}{{ s[::-1] }}{{ l[1:] }}{{ l[::-2] }}",
         "W!ell !dlröW ,olleH[1, 2][2, 3]"},
        {"{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ -2.5 // 2 }}",
         "3 -4 2 3.5 1024 -2.0"},
        {"{{ (1 + 2) ~ 3 * 4 }} {{ 'ab' * 2 }} {{ not no and 'x' or 'y' }}", "312 abab x"},
        {"{{ 1 < 2 < 3 }} {{ 'b' in d }} {{ 'q' not in d }} {{ [1] == [1.0] }}",
         "True True True True"},
        {"{{ d.items() | list }} {{ d['items'] }} {{ d.nosuch is defined }}",
         "[('b', 1), ('A', 2), ('items', 'mine')] mine False"},
        {"{{ d | dictsort }} {{ d | tojson }}",
         "[('A', 2), ('b', 1), ('items', 'mine')] {\"b\": 1, \"A\": 2, \"items\": \"mine\"}"},
        {"{{ {'a': 2, 'b': 1} | dictsort(by='key') }} {{ {'a': 2, 'b': 1} | dictsort(by='value') "
         "}}",
         "[('a', 2), ('b', 1)] [('b', 1), ('a', 2)]"},
        {"{{ {'a': [1, {}], 'b': []} | tojson(indent=2) }}",
         "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": []\n}"},
        {"{{ s | trim | upper }} {{ 'straße ﬁ' | upper }} {{ 'ΑΣ ΑΣΑ' | lower }}",
         "HELLO, WÖRLD! STRASSE FI ας ασα"},
        {"{{ 'hello wORLD-foo' | title }} {{ \"it's\".title() }} {{ 'aB' | capitalize }}",
         "Hello World-Foo It'S Ab"},
        {"{{ messages | map(attribute='role') | join(', ') }}", "user, assistant"},
        {"{{ messages | selectattr('role', 'equalto', 'user') | list | length }}", "1"},
        {"{{ l | sort }} {{ l | sort(reverse=true) | first }} {{ l | sum }} {{ l | max }}",
         "[1, 2, 3] 3 6 3"},
        {"{{ 'a,b,c'.split(',')[-1] }} {{ ' x y '.split() }} {{ 'aXbX'.rstrip('X') }}",
         "c ['x', 'y'] aXb"},
        {"{{ '12' | int + 1 }} {{ 'x' | int(3) }} {{ '1.5' | float }} {{ f | int }}", "13 3 1.5 2"},
        {"{{ missing | default('x') }} {{ '' | default('y', true) }} {{ nil | default('z') }}",
         "x y None"},
        {"{{ '<' + ('<' | safe) }} {{ ('<' | safe) ~ '<' }}", "&lt;< <<"},
        {"{{ range(2, 8, 3) | list }} {{ 'a' 'b' }} {{ '\\x41\\u00e9\\n' }}.", "[2, 5] ab Aé\n."},
        {"{{ strftime_now('%Y') }} {{ namespace(a=1).a }} {{ dict(a=1) }}", "1970 1 {'a': 1}"},
        {"{{ 'x' if no }}{{ 'y' if yes else 'z' }} {{ i is odd }} {{ i is not string }}",
         "y True True"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) check_text(table[i][0], table[i][1]);
}
END_TEST

/* Both ends of each range of characters with a case that are no letters, and their neighbours; as
 * Python 3.11 answers. */
START_TEST(case_is_pythons)
{
    check_text("{% for c in '"
               "\\u00a9\\u00aa\\u00ab\\u00b9\\u00ba\\u00bb\\u02af"
               "\\u02b0\\u02b8\\u02b9\\u02bf\\u02c0\\u02c1\\u02c2"
               "\\u02df\\u02e0\\u02e4\\u02e5\\u0344\\u0345\\u0346"
               "\\u037a\\u037b\\u1d2b\\u1d2c\\u1d6a\\u1d6b\\u1d77"
               "\\u1d78\\u1d79\\u1d9a\\u1d9b\\u1dbf\\u1dc0\\u2070"
               "\\u2071\\u207e\\u207f\\u2080\\u2090\\u209c\\u215f"
               "\\u2160\\u216f\\u2170\\u217f\\u2180\\u24b5\\u24b6"
               "\\u24cf\\u24d0\\u24e9\\u24ea\\u2c7b\\u2c7c\\u2c7d"
               "\\u2c7e\\ua69b\\ua69c\\ua69d\\ua69e\\ua76f\\ua770"
               "\\ua771\\ua7f7\\ua7f8\\ua7f9\\ua7fa\\uab5b\\uab5c"
               "\\uab5f\\uab60\\U00010780\\U00010781\\U00010782\\U00010783\\U00010785"
               "\\U00010787\\U000107b0\\U000107b2\\U000107ba\\U0001f12f\\U0001f130\\U0001f149"
               "\\U0001f14a\\U0001f14f\\U0001f150\\U0001f169\\U0001f16a\\U0001f16f\\U0001f170"
               "\\U0001f189\\U0001f18a"
               "' %}{{ 'l' if c is lower else 'u' if c is upper else '-' }}{% endfor %}",
               "-l--l-lll--ll--ll--l-llllllllllll--l-l-ll-uull--uull-lllulll-lll-lll-l"
               "lll--llllll-uu--uu--uu-");
    check_text("{{ '\\u0345' is upper }}{{ 'A\\u0345' is upper }}{{ 'a\\u0345' is lower }}"
               "{{ 'A\\u2160' is upper }}{{ 'a\\u2160' is lower }}{{ '\\u01c5\\u2170' is lower }}",
               "FalseFalseTrueTrueFalseFalse");
}
END_TEST

START_TEST(statements_and_scopes_are_jinjas)
{
    static const char *const table[][2] = {
        {"{% for m in messages %}{{ loop.index }}{{ m.role }}{{ ',' if not loop.last }}{% endfor "
         "%}",
         "1user,2assistant"},
        {"{% for x in l if x > 1 %}{{ loop.length }}{{ x }} {% else %}none{% endfor %}", "23 22 "},
        {"{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "32"},
        {"{% for x in l %}{% break %}{% else %}else{% endfor %}", "else"},
        {"{% set a = 1 %}{% for x in l %}{% set a = a + x %}{{ a }} {% endfor %}{{ a }}",
         "4 2 3 1"},
        {"{% set n = namespace(a=0) %}{% for x in l %}{% set n.a = n.a + x %}{% endfor %}{{ n.a }}",
         "6"},
        {"{% set a, b = 1, 2 %}{% set c %}[{{ a }}{{ b }}]{% endset %}{{ c | length }}{{ c }}",
         "4[12]"},
        {"{% macro m(a, b=a, c='x') %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }} {{ m(1, c=2) "
         "}}",
         "11x 112"},
        {"{% macro m(n) %}{{ n }}{% if n %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(3) }}",
         "3210"},
        {"{% macro m(a, b=2, c=3) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(*l) }} {{ m(1, *[5], "
         "c=6) "
         "}} {{ m(**{'a': 7, 'c': 8}) }} {{ m(*[1], **{'b': 9}) }}",
         "312 156 728 193"},
        {"{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(*'ab', x=1, **{'y': 2}) }}",
         "('a', 'b'){'x': 1, 'y': 2}"},
        {"{{ 'a-b-c'.split(*['-', 1]) }} {{ [3, 1] | sort(**{'reverse': true}) }}",
         "['a', 'b-c'] [3, 1]"},
        {"{% with a = 1 %}{{ a }}{% endwith %}{{ a }}{% filter upper %}abc{% endfilter %}", "1ABC"},
        {"{% if no %}a{% elif i == 7 %}b{% else %}c{% endif %}", "b"},
        {"{% raw %}{{ x }}{% endraw %}{# gone #}", "{{ x }}"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) check_text(table[i][0], table[i][1]);
}
END_TEST

START_TEST(white_space_goes_as_with_trim_blocks_and_lstrip_blocks)
{
    static const char *const table[][2] = {
        {"a\n  {% if yes %}\n  b\n  {% endif %}\n  c", "a\n  b\n  c"},
        {"a\n  {%- if yes -%}\n  b\n  {%- endif -%}\n  c", "abc"},
        {"a\n  {%+ if yes +%}\n  b\n  {%+ endif +%}\n  c", "a\n  \n  b\n  \n  c"},
        {"a \t{% if yes %}b{% endif %}", "a \tb"},
        {"a\n  {{- i -}}\n  b\n", "a7b"},
        {"a\n  {# x #}\n  b\r\n", "a\n  b"},
        {"{{ '}}' }}{{ {'a': {'b': 1}}.a.b }}", "}}1"},
        {"\n", ""},
        {"", ""},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) check_text(table[i][0], table[i][1]);
}
END_TEST

START_TEST(spans_of_generation_blocks_are_counted_in_bytes)
{
    struct jinja_text out = {0};
    ck_ok(render("é{% generation %}b{% endgeneration %}c{% generation %}"
                 "{% set i = 1 %}ü{{ i }}{% endgeneration %}{{ i }}",
                 &out));
    ck_assert_uint_eq(out.n_spans, 2);
    ck_assert_uint_eq(out.spans[0].begin, 2);
    ck_assert_uint_eq(out.spans[0].end, 3);
    ck_assert_uint_eq(out.spans[1].begin, 4);
    ck_assert_uint_eq(out.spans[1].end, 7);
    ck_assert_uint_eq(out.text.n, 8); /* the set inside ends with the block */
    ck_ok(render("x", &out));
    ck_assert_uint_eq(out.n_spans, 0);
    jinja_text_free(&out);
}
END_TEST

START_TEST(refusals_name_the_line)
{
    check_refused("a\n{{ s + 1 }}", CZ_INVALID, "t:2: a string and an integer have no operator +");
    check_refused("\n\n{{ missing.a }}", CZ_INVALID, "t:3: 'missing' is undefined");
    check_refused("{{ raise_exception('no ' ~ i) }}", CZ_INVALID,
                  "t:1: the template refuses the conversation: no 7");
    check_refused("{% for x in l %}\n{{ x", CZ_INVALID, "t:2: a tag does not end");
    check_refused("\n{% if yes %}a", CZ_INVALID, "t:2: the template ends before elif");
    check_refused("\n{{ 1 + }}", CZ_INVALID, "t:2: expected an expression, got the end of the tag");
    check_refused("{% macro f(a, bc, a) %}{% endmacro %}", CZ_INVALID,
                  "t:1: the macro has the parameter a twice");
    check_refused("{% macro f(a) %}{% endmacro %}{% macro g(a, b,\na=1) %}{% endmacro %}",
                  CZ_INVALID, "t:2: the macro has the parameter a twice");
    check_text(
        "{% macro f(a) %}{{ a }}{% endmacro %}{% macro g(a, f) %}{{ a }}{{ f }}{% endmacro %}"
        "{{ f(1) }}{{ g(2, 3) }}",
        "123");
    check_refused("{{ x | nosuch }}", CZ_UNSUPPORTED, "t:1: the filter nosuch is not supported");
    check_refused("{{ x is nosuch }}", CZ_UNSUPPORTED, "t:1: the test nosuch is not supported");
    check_refused("\n{% include 'x' %}", CZ_UNSUPPORTED,
                  "t:2: the statement include is not supported");
    check_refused("{{ s.center(3) }}", CZ_UNSUPPORTED, "the method center() of a string");
    check_refused("{{ '%d' % 1 }}", CZ_UNSUPPORTED, "formatting a string by %");
    check_refused("{{ d | dictsort(by='size') }}", CZ_INVALID,
                  "dictsort sorts by 'key' or 'value'");
    check_refused("{{ l.append(1) }}", CZ_INVALID, "may not change lists");
    check_refused("{% set d.b = 1 %}", CZ_INVALID, "only a namespace has members");
    check_refused("{{ 9223372036854775807 + 1 }}", CZ_INVALID, "outside of 64 bits");
    check_refused("{{ range(100001) }}", CZ_INVALID, "more than 100000 steps");
    check_refused("{{ 1 // 0 }}", CZ_INVALID, "division by zero");
    check_refused("{% break %}", CZ_INVALID, "break is outside of a loop");
    check_refused("{{ dict(*l, *l) }}", CZ_INVALID, "one * argument");
    check_refused("{{ dict(**d, *l) }}", CZ_INVALID, "one * argument");
    check_refused("{{ dict(**d, a=1) }}", CZ_INVALID, "an argument follows a ** argument");
    check_refused("{{ dict(*l, 1) }}", CZ_INVALID, "an argument without a name follows");
    check_refused("{{ dict(**l) }}", CZ_INVALID, "** takes a dict, not a list");
    check_refused("{{ dict(**{1: 2}) }}", CZ_INVALID, "names of ** arguments are strings");
    check_refused("{{ dict(b=1, **d) }}", CZ_INVALID, "an argument is given twice");
    check_refused("{{ 1 is eq(*l) }}", CZ_INVALID, "the test eq takes 1 arguments");
    check_refused("{{ 1 is eq(1, x=2) }}", CZ_INVALID, "the test eq takes 1 arguments");
    check_refused("{{ s | trim(5) }}", CZ_INVALID, "t:1: trim takes a string, not an integer");
    check_refused("\xff", CZ_INVALID, "t:1: it is not UTF-8");
}
END_TEST

/* Rendering one of these within what a template may use: a second, and 300 MB. */
static void check_ends(const char *text, const char *sentence)
{
    const clock_t begin = clock();
    if (sentence) {
        check_refused(text, CZ_INVALID, sentence);
    } else {
        struct jinja_text out = {0};
        ck_ok(render(text, &out));
        jinja_text_free(&out);
    }
    const double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
    ck_assert_msg(seconds < 10, "%.80s: %.1f s", text, seconds);
}

/* Each would take a year, a terabyte or the whole stack. */
START_TEST(hostile_templates_end)
{
    static const char *const table[][2] = {
        {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "nested"},
        {"{% set n = namespace(a=[1]) %}{% for i in range(99) %}{% set n.a = [n.a, n.a] %}"
         "{% endfor %}{{ n.a }}",
         "than"},
        {"{% set n = namespace(a=[1], b=[1]) %}{% for i in range(99) %}{% set n.a = [n.a, n.a] %}"
         "{% set n.b = [n.b, n.b] %}{% endfor %}{{ n.a == n.b }}",
         "than"},
        {"{% set n = namespace(a=[]) %}{% for i in range(9999) %}{% set n.a = [n.a] %}{% endfor %}"
         "{{ n.a | tojson }}",
         "deep"},
        {"{% set n = namespace(a='x') %}{% for i in range(99) %}{% set n.a = n.a + n.a %}"
         "{% endfor %}",
         "than"},
        {"{{ 'x' * 99999999999 }}", "than"},
        {"{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}", ""},
        {"{% for i in range(100000) %}{{ 'x' * 100000 }}{% endfor %}", "than"},
        {"{{ ('a' * 100000) | replace('', 'b' * 100000) }}", "than"},
        {"{% for i in range(100000) %}{{ ('a' * 1000000).split('b') | length }}{% endfor %}", ""},
        {"{% set n = namespace() %}{% set n.n = n %}{{ n.n.n.n | tojson }}", "not a value of JSON"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) check_ends(table[i][0], table[i][1]);
    char text[40000];
    memset(text, '(', sizeof text);
    memcpy(text, "{{ ", 3);
    text[sizeof text - 1] = '\0';
    check_refused(text, CZ_INVALID, "too many brackets");
    size_t n = 0;
    for (int i = 0; i < 3000; i++) n += (size_t)sprintf(text + n, "{%% if 1 %%}");
    check_refused(text, CZ_INVALID, "nested deeper");
    n = (size_t)sprintf(text, "{{ ");
    for (int i = 0; i < 9000; i++) n += (size_t)sprintf(text + n, "not ");
    sprintf(text + n, "1 }}");
    check_refused(text, CZ_INVALID, "nested deeper");
}
END_TEST

/* Functions that look at all of a value, or at one value for each part of another. */
START_TEST(work_is_counted)
{
    static const char steps[] = "more than 16777216 steps";
    static const char *const table[] = {
        "{{ ('a' * 4000000).strip('b' * 4000000 ~ 'a') }}",
        "{{ ('a' * 4000000) | trim('b' * 4000000 ~ 'a') }}",
        "{{ ('a' * 4000000).rstrip('b' * 4000000 ~ 'a') }}",
        "{{ ('a' * 20000000).rfind('a' * 10000000 ~ 'b') }}",
        "{{ ('a' * 20000000).rsplit('a' * 10000000 ~ 'b', 1) }}",
        "{% set s = 'a' * 10000000 %}{% set x = 'a' * 9999999 ~ 'b' %}"
        "{{ s.startswith((x,) * 1000000) }}",
        "{% set l = [0] * 1000000 %}{% for i in range(100000) %}{% set c = l.count(1) %}{% endfor "
        "%}",
        "{% set l = [0] * 1000000 %}{% for i in range(100000) %}{% set c = 1 in l %}{% endfor %}",
        "{% set l = [0] * 1000000 %}{% set m = [0] * 1000000 %}{% for i in range(100000) %}"
        "{% set c = l == m %}{% endfor %}",
        "{% set l = [0] * 1000000 %}{% set m = [0] * 1000000 %}{% for i in range(100000) %}"
        "{% set c = l < m %}{% endfor %}",
        "{% set s = ' ' * 30000000 %}{% for i in range(100000) %}{% set c = s.strip() %}{% endfor "
        "%}",
        "{% set s = 'a' * 30000000 %}{% for i in range(100000) %}{% set c = s.splitlines() %}"
        "{% endfor %}",
        "{% set s = 'a' * 30000000 %}{% for i in range(100000) %}{% set c = s.split() %}{% endfor "
        "%}",
        "{% set s = ' ' * 30000000 %}{% for i in range(100000) %}{% set c = s | int %}{% endfor %}",
        "{% set s = ' ' * 30000000 %}{% for i in range(100000) %}{% set c = s | float %}{% endfor "
        "%}",
        "{% set s = 'a' * 30000000 %}{% for i in range(100000) %}{% set c = s is lower %}{% endfor "
        "%}",
        "{% set s = 'a' * 30000000 %}{% for i in range(100000) %}{% set c = s.isalpha() %}{% "
        "endfor %}",
        "{% set s = 'a' * 30000000 %}{% for i in range(100000) %}{% set c = s | length %}{% endfor "
        "%}",
        "{% set s = 'a' * 30000000 %}{% for i in range(100000) %}{% set c = s[29999999] %}{% "
        "endfor %}",
        "{% set s = 'a' * 30000000 %}{% for i in range(100000) %}{% set c = 'b' in s %}{% endfor "
        "%}",
        "{% set s = 'a' * 30000000 %}{% for i in range(100000) %}{% set c = s.find('b') %}{% "
        "endfor %}",
        "{% set p = 'a' * 2000000 %}{% set d = {p ~ '1': 1, p ~ '2': 1, p ~ '3': 1} %}"
        "{% set k = p ~ 'x' %}{% for i in range(100000) %}{% set c = d.get(k) %}{% endfor %}",
        "{% set p = 'a' * 15000000 %}{% set q = p ~ 'a' %}{% set p = p ~ 'b' %}"
        "{% for i in range(100000) %}{% set c = p == q or p < q %}{% endfor %}",
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) check_ends(table[i], steps);

    /* 4000 names in a scope, before the one that all look for */
    static char text[80000];
    size_t n = (size_t)sprintf(text, "{%% macro m(v");
    for (int i = 0; i < 4000; i++) n += (size_t)sprintf(text + n, ",v%d", i);
    sprintf(text + n,
            ") %%}{%% for a in range(100000) %%}{%% for b in range(100) %%}{{ zz }}{{ zz }}"
            "{%% endfor %%}{%% endfor %%}{%% endmacro %%}{{ m() }}");
    check_ends(text, steps);

    check_ends("{{ ('a' * 1000000).strip('ba') ~ ('a' * 1000000).rfind('b') }}", NULL); /* few */
}
END_TEST

START_TEST(every_value_is_bounded)
{
    static const char *const texts[] = {
        "{% set s = '\\x01' * 12000000 %}{% set x = ([s] * 40) | tojson %}",
        "{% set s = '\\x01' * 20000000 %}{{ [s] * 12 }}",
        "{{ ('&' * 60000000) | escape | length }}",
        "{{ ('\\u0149' * 20000000) | upper | length }}",
        "{% set s = 'a' * 12000000 %}{% macro m() %}{{ s }}{{ s }}{{ s }}{% endmacro %}"
        "{% set t %}{{ s }}{{ s }}{{ m() }}{{ s }}{% endset %}{{ t | length }}",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        check_ends(texts[i], "than"); /* steps, or bytes */
    check_ends("{{ (range(100000) | list * 40) | sort }}", "more than 67108864 bytes of values");
    check_ends("{{ 'x' * 60000000 }}{{ 'x' * 60000000 }}", "more than 67108864 bytes of values");
    check_ends("{% set s = 'x' * 33000000 %}{{ s }}{{ s }}{{ s }}", "longer than 67108864 bytes");
    check_ends("{% set s = 'x' * 33000000 %}{{ s }}{{ s }}", NULL);
}
END_TEST

/* A filter that calls a filter, 40,000 levels; named arguments, each compared with those before it.
 */
START_TEST(parsing_and_filters_have_a_depth)
{
    enum { N = 40000 };
    static char text[N * 16];
    size_t n = (size_t)sprintf(text, "{{ 'a' | map('map'");
    for (int i = 0; i < N; i++) n += (size_t)sprintf(text + n, ",'map'");
    sprintf(text + n, ",'upper') | list }}");
    check_ends(text, "nested deeper than 1200 levels");
    n = (size_t)sprintf(text, "{{ dict(a=1");
    for (int i = 0; i < 254; i++) n += (size_t)sprintf(text + n, ",a%d=1", i);
    sprintf(text + n, ") | length }}");
    check_text(text, "255");
    sprintf(text + n, ",b=1) | length }}");
    check_refused(text, CZ_UNSUPPORTED, "more than 255 named arguments");
    n = (size_t)sprintf(text, "{%% set a = 1 %%}");
    for (int i = 0; i < 4095; i++) n += (size_t)sprintf(text + n, "{{ n%d }}", i);
    check_text(text, "");
    sprintf(text + n, "{{ one_more }}");
    check_refused(text, CZ_INVALID, "more than 4096 names");
}
END_TEST

/* Texts end where they end: nothing behind them is read as part of a number. */
START_TEST(numbers_end_with_their_text)
{
    check_text("{% set x = '1' * 20 ~ '0' %}{{ [[1, 2]] | map(attribute=x[-2:-1]) | list }}",
               "[2]");
    check_text("{{ [[1, 2]] | map(attribute='00000000000000001') | list }}", "[2]");
    check_text("{{ 0_0 }}{{ 00 }}", "00");
    check_refused("{{ 007 }}", CZ_INVALID, "an integer begins with 0");
    check_refused("{{ 0", CZ_INVALID, "a tag does not end");
}
END_TEST

START_TEST(long_texts_take_linear_time)
{
    struct jinja_text out = {0};
    ck_ok(render("{% set n = namespace(a='') %}{% for i in range(100000) %}"
                 "{% set n.a = n.a + 'abcdefgh' %}{% endfor %}{{ n.a }}",
                 &out));
    ck_assert_uint_eq(out.text.n, 800000);
    jinja_text_free(&out);
}
END_TEST

TEST_MAIN("data/jinja", case_is_pythons, expressions_give_what_python_gives,
          statements_and_scopes_are_jinjas, white_space_goes_as_with_trim_blocks_and_lstrip_blocks,
          spans_of_generation_blocks_are_counted_in_bytes, refusals_name_the_line,
          hostile_templates_end, work_is_counted, every_value_is_bounded,
          parsing_and_filters_have_a_depth, numbers_end_with_their_text,
          long_texts_take_linear_time)
