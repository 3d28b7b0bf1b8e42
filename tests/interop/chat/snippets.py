"""Small templates that try each construct of the engine, right and wrong, and random expressions."""

VALUES = {
    "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Straße"}],
    "s": "Hello, Wörld! ", "t": "a b\tc\n", "empty": "", "wide": "ßﬁŉ Σίσυφος ΣΊΣΥΦΟΣ ǆ İ 漢 😀",
    "i": 7, "j": -3, "z": 0, "f": 2.5, "g": -1e20, "h": 1e-7, "yes": True, "no": False, "nil": None,
    "l": [3, 1, 2], "names": ["b", "A", "c", "a"], "mixed": [1, "a", None, 2.5, True, [1], {"k": "v"}], "none": [],
    "d": {"b": 1, "A": 2, "c": [1, 2], "items": "mine", "x y": "sp", "é": None}, "e": {},
    "people": [{"n": "Ann", "a": 3, "at": {"x": 1}}, {"n": "Bob", "a": 1}, {"n": "ann", "a": None, "at": {"x": 2}}],
    "text": "one\ntwo\r\nthree\n\nfour", "html": "<a href='x'>&\"", "quote": "it's", "both": "it's \"q\" \\ \x07 \x7f \u00ad \u200b é",
}

EXPRESSIONS = """
s | i | f | g | h | yes | nil | l | mixed | d | e | both | quote | html | wide | [both, quote, html, wide] | none | (1,) | (1, 2) | ()
missing | missing.a | d.missing | d.missing.a | d['A'] | d.A | d.items | d['items'] | d.get('A') | d.get('q') | d.get('q', 5) | d.get([1]) | d.keys() | d.keys()|list
d.items() | d.items()|list | d.values()|list|length | d|items|list | s|items|list | nil|items|list | missing|items|list | l[0] | l[-1] | l[9] | l['a'] | l[1.0] | l[true] | s[0] | s[-2] | s[99] | wide[4]
l[1:] | l[:-1] | l[::-1] | l[::2] | l[5:1] | l[-100:100] | s[1:4] | wide[2:8] | wide[::-1] | wide[::2] | wide[-3:] | s[4:1:-1] | l[none:2] | l['a':] | l[::0] | d[1:] | nil[1:] | missing[1:] | i[1:] | l[0:0] | ''[::-1] | l[2::-1] | l[-1:-3:-1] | (1,2,3)[1:]
i + 1 | i - j | i * j | i / 2 | i // 2 | j // 2 | i % 3 | j % 3 | i % -3 | j % -2 | 2 ** 10 | 2 ** -1 | 2 ** 0.5 | i / 0 | i // 0 | i % 0 | f / 0 | f // 2 | -f // 2 | f % 2 | -f % 2 | 1e308 * 10 | -1e308 * 10 | 1e308 * 10 - 1e308 * 10 | 0.1 + 0.2 | 1e16 | 123456789.0 * 10 | 1_000 | 5.0 | 1e5 | .5
s + 'x' | s + 1 | 'x' * 3 | 3 * 'x' | 'x' * -1 | 'x' * 2.0 | l + [4] | l + (4,) | l * 2 | (1,) + (2,) | d + d | nil + 1 | missing + 1 | yes + 1 | yes * 3 | -yes | +f | -s | -missing | - l
s ~ i ~ nil ~ missing ~ f ~ l | 'a' ~ 'b' | '' ~ yes | 1 ~ 2 + 3 | 'a' ~ 1 * 2
1 < 2 | 1 < 2 < 3 | 1 < 3 < 2 | 'a' < 'b' | 'a' < 1 | nil < 1 | l < [3, 2] | (1, 2) <= (1, 2) | [1] == (1,) | 1 == 1.0 | 1 == true | 'a' == 'a' | nil == none | missing == missing | missing == nil | d == d | [1, [2]] == [1, [2]] | {'a': 1} == {'a': 1.0} | 'a' != 'b' | l != l | 'é' > 'z' | 1 >= 1.0 | true > false | d < d
'a' in s | 'H' in s | '' in s | 1 in s | 1 in l | 1.0 in l | 'b' in d | 'q' in d | [1] in d | [1] in mixed | 1 in missing | missing in s | missing in l | 1 in nil | 1 in 5 | 'a' not in s | 1 not in l | true in l | 'k' in d.items() | ('b', 1) in d.items()
yes and i | no and i | nil or 'x' | '' or 0 | missing or 'y' | not yes | not not i | not missing | yes and no or 'z' | l and d | [] or {} | 0.0 or 'f'
'a' if yes else 'b' | 'a' if no else 'b' | 'a' if no | ('a' if no) is defined | 'a' if yes if no else 'c' | 1 if missing else 2
s is defined | missing is defined | missing is undefined | d.q is defined | nil is defined | nil is none | missing is none | s is string | i is string | html|safe is string | yes is boolean | i is boolean | yes is true | i is true | 1 is true | no is false | z is false | i is integer | yes is integer | f is integer | f is float | i is number | yes is number | s is number | d is mapping | l is mapping | missing is mapping | l is sequence | s is sequence | d is sequence | i is sequence | nil is sequence | missing is sequence | d.items() is sequence | l is iterable | s is iterable | d is iterable | i is iterable | nil is iterable | missing is iterable | d.items() is iterable | (l|map('string')) is iterable | (l|map('string')) is sequence | range(3) is sequence
i is equalto 7 | i is equalto(7) | i == 7 is true | i is eq 7 | i is ne 7 | i is lt 8 | i is gt 8 | i is ge 7 | i is le 6 | i is in l | 3 is in l | 3 is not in(l) | 'a' is in 'abc' | i is odd | i is even | i is divisibleby 7 | i is divisibleby(2) | s is lower | 'abc' is lower | 'ABC' is upper | 'A1' is upper | '12' is upper | s is callable | d.get is callable | range is callable | i is not none | not i is none | i is not defined | i is sameas 7 | s is nosuch
s|upper | s|lower | wide|upper | wide|lower | wide|capitalize | wide|title | 'hello wORLD-foo (bar) {x} [y] <z> ß'|title | 'hello wORLD-foo it\\'s'.title() | wide.title() | wide.capitalize() | wide.upper() | wide.lower() | 'ΑΣ ΑΣΑ Σ'|lower | i|upper | nil|upper | missing|upper | l|lower
s|trim | s|trim('H') | '--a--'|trim('-') | 'xxaxx'|trim(chars='x') | nil|trim | i|trim | missing|trim | s|trim(5) | '\\u00a0 a \\u3000\\x1c'|trim
s|length | l|length | d|length | missing|length | nil|length | i|length | wide|length | l|count | (l|map('string'))|length
l|join | l|join(', ') | names|join('-') | mixed|join('|') | s|join('.') | d|join(',') | missing|join(',') | nil|join | i|join | people|join(', ', attribute='n') | people|join(',', 'n') | l|join(1) | l|join(d=':')
s|replace('l', 'L') | s|replace('l', 'L', 1) | s|replace('', '-') | s|replace('', '-', 2) | 'aaa'|replace('aa', 'b') | i|replace(7, 8) | s|replace('l') | s.replace('l', '') | s.replace('l', 'x', 1) | s.replace('', '.') | s.replace(1, 2) | wide|replace('', '|')
l|first | l|last | s|first | s|last | none|first | none|last | ''|first | missing|first | missing|last | nil|first | d|first | d|last | (l|map('string'))|last | (l|map('string'))|first
l|sort | l|sort(reverse=true) | names|sort | names|sort(case_sensitive=true) | mixed|sort | people|sort(attribute='a') | people|map(attribute='n')|sort|join | people|sort(attribute='n')|map(attribute='n')|join(',') | d|sort | s|sort|join | names|unique|join | names|unique(true)|join | mixed|unique|list | people|map(attribute='n')|unique|list | l|reverse|list | s|reverse | l|min | l|max | none|min | names|max | names|min | l|sum | people|sum('a') | none|sum | names|sum | (l|sum(start=10))
l|list | s|list | d|list | missing|list | nil|list | wide|list | (l|map('string'))|list | i|list
l|map('string')|list | names|map('upper')|join | people|map(attribute='n')|list | people|map(attribute='at.x')|list | people|map(attribute='zz')|list | people|map(attribute='zz', default='?')|list | l|map('nosuch')|list | l|map|list | names|map('replace', 'a', 'X')|list | missing|map('upper')|list | names|map('default', 'x')|list
l|select('odd')|list | l|reject('odd')|list | mixed|select|list | mixed|select('string')|list | mixed|reject('none')|list | people|selectattr('a')|map(attribute='n')|list | people|selectattr('n', 'equalto', 'Bob')|list | people|rejectattr('a', 'none')|map(attribute='n')|list | people|selectattr('at.x', 'defined')|list|length | people|selectattr('n', 'in', ['Bob'])|list|length | l|select('gt', 1)|list | l|select('nosuch')|list | messages|selectattr('role', '==', 'user')|list
d|dictsort | d|dictsort(true) | d|dictsort(by='value') | d|dictsort(reverse=true) | e|dictsort | missing|dictsort | nil|dictsort | l|dictsort | {'b': 1, 'a': 2, 'C': 0}|dictsort | {'b': 1, 'a': 2}|dictsort(false, 'value') | {'a': 1}|dictsort(by='x')
missing|default('x') | missing|default | nil|default('x') | nil|default('x', true) | ''|default('x', true) | ''|d('x') | missing|d(default_value='q') | z|default(5, boolean=true) | s|default('x', 1, 2) | missing.a|default('x')
'12'|int | ' 12 '|int | '1_0'|int | '0x1f'|int | '1f'|int(base=16) | '1.9'|int | 'x'|int | 'x'|int(3) | 'x'|int(default='no') | f|int | -2.7|int | yes|int | nil|int | l|int | missing|int | '1e3'|int | 'inf'|int | 'nan'|int(7) | '12'|float | 'x'|float | 'x'|float(1.5) | i|float | nil|float | ' 1e3 '|float | 'inf'|float | 'nan'|float | j|abs | g|abs | s|abs
mixed|tojson | d|tojson | d|tojson(indent=2) | mixed|tojson(indent=4) | e|tojson(indent=2) | none|tojson(indent=2) | d|tojson(ensure_ascii=true) | both|tojson | both|tojson(true) | wide|tojson | wide|tojson(ensure_ascii=True) | d|tojson(sort_keys=true) | d|tojson(separators=(',', ':')) | d|tojson(indent='--') | missing|tojson | nil|tojson | f|tojson | 1e308 * 10|tojson | (1e308 * 10)|tojson | (1, 2)|tojson | {1: 2, none: 3, true: 4, 1.5: 6}|tojson | d.items()|tojson | range(3)|list|tojson | h|tojson | (l|map('string'))|tojson | d|tojson(indent=0) | d|tojson(indent=-1) | [[]]|tojson(indent=1) | html|tojson | s|tojson|tojson
html|safe | html|e | html|escape | html|safe + '<' | '<' + html|safe | (html|safe)|e | html|safe ~ '<' | [html|safe]|join('<') | (html|safe)|upper | (html|safe).strip('<') + '&' | html|safe|string + '<' | (html|safe)|length | (html|safe) == html | (html|safe)|replace('a', '<') | (html|safe)|trim + '<' | [html|safe] | (html|safe)[0] + '<' | (html|safe) * 2 + '<' | ((html|safe) + i)
text|indent | text|indent(2) | text|indent(2, true) | text|indent(2, blank=true) | text|indent('> ') | text|indent(width=1, first=true) | i|indent
s.strip() | s.lstrip() | s.rstrip() | s.strip('H !') | s.strip(none) | s.rstrip('! ') | s.lstrip('He') | s.strip(5) | s.strip(missing) | ' \\n a \\t'.strip()
s.split() | s.split(' ') | s.split('l') | s.split('l', 1) | s.split(none, 1) | s.split('') | s.split(1) | t.split() | 'a,b,c'.split(',')[-1] | 'a,b,c'.rsplit(',', 1) | 'a,b'.rsplit(',') | ''.split() | ''.split(',') | text.splitlines() | text.splitlines(true) | ' a  b '.split(none, 1) | 'a b c'.split(maxsplit=1) | 'a,b'.split(sep=',')
s.startswith('H') | s.startswith(('x', 'H')) | s.endswith(' ') | s.endswith('') | s.startswith(1) | s.startswith() | s.startswith(['H']) | s.find('l') | s.find('q') | wide.find('漢') | s.rfind('l') | s.index('l') | s.index('q') | s.count('l') | s.count('') | ','.join(names) | ','.join(l) | ','.join('abc') | ''.join([]) | s.removeprefix('He') | s.removesuffix('! ') | s.removeprefix('x') | '12'.isdigit() | ''.isdigit() | 'a1'.isdigit() | ' '.isspace() | 'ab'.isalpha() | 'é1'.isalpha()
s.format(1) | '%s' % 1 | s.encode() | s.nosuch | s.nosuch() | s.upper | s.title | i.real | i.bit_length() | l.append(1) | l.pop() | d.update({}) | d.pop('b') | d.clear | l.index(1) | l.index(9) | l.count(1) | l.copy() | d.copy() | (1, 2).index(2) | nil.x | nil.x.y | nil() | s() | missing() | d.missing() | range.x
range(5)|list | range(2, 5)|list | range(5, 0, -2)|list | range(0)|list | range(1, 2, 0) | range('a') | range(1000000) | range() | range(3)|length | range(4)[-1] | range(2.0)
dict(a=1, b=2) | dict({'a': 1}, b=2) | dict() | namespace(a=1).a | namespace(a=1).b | namespace({'a': 2}).a | namespace(_a=1) | namespace(a=1)['a'] | namespace() is mapping | namespace(a=[1]).a[0]
{'a': 1, 'b': [1, 2]} | {} | {'a': 1, 'a': 2} | {1: 'x', 1.0: 'y', true: 'z'} | {[1]: 2} | {(1, 2): 3}[(1, 2)] | [1, 'a', none, true, 1.5] | [] | [[], {}, ()] | [1, 2,] | {'a': 1,} | (1, 2,) | (1) | ((1,), (2,))
'a' 'b' | "a" 'b' "c" | 'a\\n' | 'a\\tb' | '\\x41\\u00e9\\U0001F600' | '\\101' | '\\q' | '\\\\' | "\\'" | 'it\\'s' | '\\a\\b\\f\\v\\0'|tojson | 'a
b'
d.b.c | d.c.0 | d.c.1 | d.c.5 | people[0].at.x | people[0]['at']['x'] | people.0.n | messages[0].role | messages[-1]['content'] | messages[0]['get'] is callable | messages[0].get('role')
i|string + 'x' | f|string | nil|string | l|string | yes|string | missing|string | s|string
strftime_now('%Y-%m-%d') | strftime_now('%d %b %Y %H:%M:%S') | strftime_now('') | strftime_now(1) | strftime_now('%%') | raise_exception('no') | raise_exception(missing) | raise_exception() | loop | loop.index | varargs | true | True | TRUE | none | None | False
1 + | + | (1 | [1 | {1 | 'a | 1 2 | a b | | (1, | s| | s|5 | s is | s is 5 | a. | a.( | a[ | a[] | f(a=1, 2) | f(a=1, a=2) | f(*l) | f(**d) | dict(*[d]) | dict(**d) | dict(*[d], **{'z': 1}) | dict(z=1, **{'z': 2}) | dict(**l) | dict(*1) | dict(*[d], *[d]) | dict(**d, z=1) | dict(*[d], z=1) | dict(*[d], 1) | s.split(*['l', 1]) | l \| sort(**{'reverse': true}) | s.replace(*['l', 'm']) | a if | ~ | 1 ~ | not | in l | a = 1 | 0x10 | 0b11 | 00 | 01 | 1__0 | 1_ | 5.a | 1.5.2 | ! | a ! b | $ | a && b | a ? b
"""


def split_expressions():
    """Cut at " | " with spaces around, which no filter above has."""
    for line in EXPRESSIONS.strip("\n").split("\n"):
        yield from line.split(" | ")


STATEMENTS = [
    "a{% if yes %}b{% endif %}c", "{% if no %}b{% elif i %}c{% else %}d{% endif %}", "{% if missing %}b{% else %}d{% endif %}", "{% if i == 7 and s %}x{% endif %}",
    "{% for x in l %}{{ x }},{% endfor %}", "{% for x in none %}{{ x }}{% else %}empty{% endfor %}", "{% for x in s %}{{ x }}.{% endfor %}", "{% for k in d %}{{ k }} {% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k, v in d|dictsort %}{{ k }}{% endfor %}", "{% for k, v in d|items %}{{ k }}{% endfor %}",
    "{% for a, b in l %}{% endfor %}", "{% for a, b in [(1, 2), (3, 4)] %}{{ a }}{{ b }}{% endfor %}", "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for x in nil %}{% endfor %}", "{% for x in i %}{% endfor %}", "{% for x in missing %}a{% else %}b{% endfor %}", "{% for x in 1, 2 %}{{ x }}{% endfor %}",
    "{% for x in l if x > 1 %}{{ loop.index }}/{{ loop.length }}:{{ x }} {% endfor %}", "{% for x in l if x > 9 %}{{ x }}{% else %}none{% endfor %}",
    "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }} {% endfor %}",
    "{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {{ loop.nosuch }}{% endfor %}", "{% for x in l %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{% endfor %}",
    "{% for x in l %}{{ loop.cycle('a', 'b') }}{% endfor %}", "{% for x in [1, 1, 2] %}{{ loop.changed(x) }}{% endfor %}", "{% for x in l %}{% for y in l %}{{ loop.depth }}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}",
    "{% for x in l %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}", "{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in l %}{% break %}{% else %}e{% endfor %}", "{% for x in l %}{% continue %}{% else %}e{% endfor %}", "{% for x in l %}{{ x }}{% else %}e{% endfor %}", "{% break %}", "{% continue %}",
    "{% for x in l %}{% for y in l %}{% break %}{% endfor %}{{ x }}{% endfor %}", "{% for x in l recursive %}{{ x }}{% endfor %}",
    "{% set a = 1 %}{{ a }}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a, b = 1 %}", "{% set a = 1, 2 %}{{ a }}", "{% set i = i + 1 %}{{ i }}", "{% set (a, b) = l %}", "{% set a.b = 1 %}", "{% set d.b = 1 %}{{ d }}",
    "{% set a = 1 %}{% for x in l %}{% set a = a + 1 %}{{ a }}{% endfor %}{{ a }}", "{% for x in l %}{{ a }}{% set a = x %}{{ a }}{% endfor %}{{ a }}", "{% if yes %}{% set a = 1 %}{% endif %}{{ a }}",
    "{% if no %}{% set a = 1 %}{% endif %}{{ a }}", "{% if no %}{% set i = 1 %}{% endif %}{{ i }}", "{% for x in l %}{% set i = 0 %}{% endfor %}{{ i }}", "{% for i in l %}{{ i }}{% endfor %}{{ i }}",
    "{% set ns = namespace(a=0) %}{% for x in l %}{% set ns.a = ns.a + x %}{% endfor %}{{ ns.a }}", "{% set ns = namespace() %}{% set ns.b = 1 %}{{ ns.b }}{{ ns.c }}", "{% set ns = namespace() %}{% set ns._b = 1 %}",
    "{% set ns = namespace(a=1) %}{% set ns.a, b = 2, 3 %}{{ ns.a }}{{ b }}", "{% set a %}x{{ i }}{% endset %}[{{ a }}]", "{% set a | upper %}x{% endset %}{{ a }}", "{% set a | trim | length %} xyz {% endset %}{{ a + 1 }}",
    "{% set a %}{% set b = 1 %}{{ b }}{% endset %}{{ a }}{{ b }}", "{% set a = 1 %}{% set a %}{{ a }}{% set a = 2 %}{{ a }}{% endset %}{{ a }}", "{% set l = l + [9] %}{{ l }}", "{% set true = 1 %}", "{% set loop = 1 %}{{ loop }}",
    "{% macro m(a, b=2, c='x') %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, 5) }}{{ m(1, c=3) }}{{ m(b=1, a=0) }}{{ m() }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(q=2) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, a=2) }}", "{% macro m() %}{{ i }}{% endmacro %}{% set i = 5 %}{{ m() }}", "{% macro m() %}{{ x }}{% endmacro %}{% for x in l %}{{ m() }}{% endfor %}", "{% macro m() %}{{ q }}{% endmacro %}{% set q = 5 %}{{ m() }}",
    "{% macro m(n) %}{% if n > 0 %}{{ n }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(5) }}", "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}", "{{ m() }}{% macro m() %}x{% endmacro %}", "{% macro m(a, b=a) %}{{ b }}{% endmacro %}{{ m(3) }}",
    "{% macro m(a=[]) %}{{ a }}{% endmacro %}{{ m() }}{{ m([1]) }}", "{% macro m() %} x {% endmacro %}{{ m()|trim }}|{{ m() ~ 'y' }}|{{ m() + 'z' }}", "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, a=3) }}", "{% macro m(a) %}{{ varargs|length }}{% endmacro %}{{ m(1, 2, 3) }}",
    "{% macro m() %}{% set i = 1 %}{{ i }}{% endmacro %}{{ m() }}{{ i }}", "{% macro m(i) %}{{ i }}{% endmacro %}{{ m(1) }}{{ i }}", "{% for x in l %}{% macro m() %}{{ x }}{% endmacro %}{{ m() }}{% endfor %}", "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}",
    "{% macro m(a, b) %}{% for x in a %}{{ loop.index }}{{ b }}{% endfor %}{% endmacro %}{{ m(l, 'q') }}", "{% macro m() %}{{ loop is defined }}{% endmacro %}{% for x in l %}{{ m() }}{% endfor %}", "{% macro m() %}x{% endmacro %}{{ m is defined }}{{ m is callable }}", "{% macro m(a b) %}{% endmacro %}", "{% macro m(a=1, b) %}{% endmacro %}",
    "{% macro m() %}{% generation %}x{% endgeneration %}{% endmacro %}ab{{ m() }}cd", "a{% generation %}b{% endgeneration %}c{% generation %}{{ wide }}{% endgeneration %}d", "{% for x in l %}é{% generation %}{{ x }}{% endgeneration %}{% endfor %}", "{% set a %}{% generation %}x{% endgeneration %}{% endset %}[{{ a }}]",
    "{% generation %}{% set a = 1 %}{{ a }}{% endgeneration %}{{ a }}", "{% set a = 1 %}{% generation %}{% set a = 2 %}{{ a }}{% endgeneration %}{{ a }}", "{% generation %}a{% generation %}b{% endgeneration %}c{% endgeneration %}", "{% for x in l %}{% generation %}{{ loop.index }}{% endgeneration %}{% endfor %}",
    "x{%- generation -%} a {%- endgeneration -%} y", "{% generation %}{% endgeneration %}", "{% if no %}{% generation %}x{% endgeneration %}{% endif %}", "{% generation %}{{ missing.x.y }}{% endgeneration %}",
    "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a }}", "{% with a = 1 %}{% with a = a + 1, b = a %}{{ a }}{{ b }}{% endwith %}{% endwith %}", "{% with %}x{% endwith %}", "{% filter upper %}abc{{ s }}{% endfilter %}", "{% filter trim | upper %} abc {% endfilter %}",
    "{% raw %}{{ a }}{% b %}{% endraw %}", "{%- raw -%} {{ a }} {%- endraw -%} x", "a {% raw %} b {% endraw %} c", "\n  {% raw %}\n  x\n  {% endraw %}\n  y", "{%raw%}x{%endraw%}",
    "{# c #}a", "a {# c #} b", "a\n  {# c #}\n  b", "a {#- c -#} b", "a\n{#+ c +#}\nb", "{# unended", "{# a {# b #} c", "{##}", "{#-#}x",
    "a\n  {% if yes %}\n  b\n  {% endif %}\n  c", "a\n  {%- if yes -%}\n  b\n  {%- endif -%}\n  c", "a\n  {%+ if yes +%}\n  b\n  {%+ endif +%}\n  c", "a \t{% if yes %}b{% endif %}", "  {% if yes %}b{% endif %}", "x  {% if yes %}b{% endif %}  \n\n y",
    "a\n  {{ i }}\n  b", "a\n  {{- i -}}\n  b", "a {{+ i }} b", "{{ i -}}   \n\n  {{- i }}", "{{ '}}' }}", "{{ {'a': {'b': 1}}.a.b }}", "{{ {'a': {}}}}", "{{'%}'}}", "{% set a = '%}' %}{{ a }}", "{% set a = {'b': 1} %}{{ a.b }}",
    "a\n", "a\n\n", "\n", "", " ", "\r\na\rb\r\n", "{% if yes %}\r\na\r\n{% endif %}\r\n", "{{ 'a\r\nb' }}", "\n\n{% if yes %}\n\nx\n\n{% endif %}\n\n", "{% if yes %}\n{% endif %}\n{% if yes %}\n{% endif %}", "\u00a0\u3000{%- if yes %}x{% endif %}", "\n \u3000{% if yes %}x{% endif %}",
    "{% if yes %}", "{% endif %}", "{% for x in l %}", "{% if yes %}{% endfor %}", "{% else %}", "{% nosuch %}", "{% %}", "{%", "{{", "{{ }}", "{{ i", "{% if %}x{% endif %}", "{% for in l %}{% endfor %}", "{% for x l %}{% endfor %}", "{% set %}", "{% set a %}", "{% set 5 = a %}", "{% if yes %}a{% else %}b{% else %}c{% endif %}",
    "{ {", "{ % if %}", "}}", "%}", "#}", "{", "a{", "{{ i }}{", "{{ i }} }}", "{{ i }", "{% if yes }x{% endif %}", "{{ (i }}", "{{ i) }}", "{{ [i) }}", "{{ {i] }}", "{{ '{{' }}", "{{ \"a\" }}{{ 'b' }}", "$ {{ i }} %", "{{ i }}\n{{ i }}\n",
    "{% include 'x' %}", "{% extends 'x' %}", "{% import 'x' as y %}", "{% call x() %}{% endcall %}", "{% block a %}x{% endblock %}", "{% do l %}", "{% autoescape true %}{% endautoescape %}", "{% trans %}{% endtrans %}", "{{ joiner() }}", "{{ cycler(1) }}", "{{ lipsum() }}",
    "{% for m in messages %}{{ '<' + m['role'] + '>' + m['content'] + '\\n' }}{% endfor %}", "{% for m in messages[1:] %}{{ m.role }}{% endfor %}", "{% for m in messages[::-1] %}{{ loop.index }}{{ m.role }}{% endfor %}", "{% if messages[0]['role'] == 'user' %}u{% endif %}",
    "{% set x = namespace(v=[]) %}{% for i in range(3) %}{% set x.v = x.v + [i] %}{% endfor %}{{ x.v }}", "{% set m = d.items() %}{% for a in m %}{{ a }}{% endfor %}{% for a in m %}{{ a }}{% endfor %}", "{% set m = l|map('string') %}{% for a in m %}{{ a }}{% endfor %}|{% for a in m %}{{ a }}{% endfor %}",
    "{% for c in l|map('string') %}{{ c }}{{ loop.last }}{% endfor %}", "{% for a in [1, 2, 3] %}{% set b = a %}{% if loop.last %}{{ b }}{% endif %}{% endfor %}{{ b }}", "{% if (yes) %}a{% endif %}", "{% if not(no) %}a{% endif %}", "{% if yes -%} a {%- else -%} b {%- endif %}", "{%if yes%}a{%endif%}", "{{i}}{{s|trim}}",
    "{{ caller }}", "{{ _ }}", "{{ d.__class__ }}", "{{ ''.__class__.mro }}", "{{ d['__class__'] }}", "{{ namespace.x }}", "{{ s.format_map }}", "{{ range }}", "{{ d.get }}",
]

SNIPPETS = ["{{ " + e.replace("\\\\", "\\") + " }}" for e in split_expressions()] + STATEMENTS

ATOMS = ["s", "t", "empty", "wide", "i", "j", "z", "f", "yes", "no", "nil", "l", "names", "mixed", "none", "d", "e", "people", "text", "html", "quote", "missing",
         "1", "2.5", "'a'", "''", "'Hi '", "[1, 'b']", "{'k': 1}", "(1, 2)", "true", "messages"]
FILTERS = ["trim", "length", "tojson", "upper", "lower", "string", "list", "first", "last", "sort", "join(',')", "default('x')", "default('x', true)", "int", "float", "capitalize", "title", "safe",
           "items|list", "dictsort", "unique|list", "reverse|list", "map('string')|list", "replace('a', 'b')", "tojson(indent=1)", "abs", "min", "max", "select|list", "reject('string')|list", "e", "sum"]
TESTS = ["defined", "none", "string", "mapping", "sequence", "iterable", "number", "integer", "true", "false", "boolean", "in l", "in d", "in s", "eq 1", "odd", "undefined"]
METHODS = [".strip()", ".split()", ".get('k')", ".items()|list", ".keys()|list", "[0]", "[-1]", "['b']", ".b", ".k.x", "[1:]", "[::-1]", ".upper()", ".startswith('H')", ".split(',')[0]", ".role", ".length", ".0"]
OPERATORS = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", ">=", "in", "not in", "and", "or"]


def random_expression(rng, depth=0):
    kind = rng.randrange(9) if depth < 3 else 0
    inner = lambda: random_expression(rng, depth + 1)
    if kind <= 1:
        return rng.choice(ATOMS)
    if kind == 2:
        return f"({inner()})|{rng.choice(FILTERS)}"
    if kind == 3:
        return f"({inner()}) is {rng.choice(['', 'not '])}{rng.choice(TESTS)}"
    if kind == 4:
        return f"({inner()}){rng.choice(METHODS)}"
    if kind in (5, 6):
        return f"{inner()} {rng.choice(OPERATORS)} {inner()}"
    if kind == 7:
        return f"({inner()} if {inner()} else {inner()})"
    return rng.choice(["not ", "-", "+"]) + inner()


def random_snippet(rng):
    kind = rng.randrange(4)
    e = random_expression(rng)
    if kind == 0:
        return f" {{%- if {e} %}}yes{{% else %}}no{{% endif %}}\n"
    if kind == 1:
        return f"{{% for x in {e} %}}{{{{ x }}}},{{{{ loop.last }}}}\n{{% endfor %}}"
    return "{{ " + e + " }}"
