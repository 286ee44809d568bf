"""Templates that src/text/jinja must render as Jinja does: a table, and a generator of random ones."""

import random

MESSAGES = [
    {"role": "system", "content": " Be brief.\n"},
    {"role": "user", "content": "Straße ΑΣ ﬁne 'q' \"d\" <b>&"},
    {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"x": [1, 2.5, None]}}}]},
    {"role": "tool", "content": "a\tb\\c\u00e9\u2028"},
    {"role": "assistant", "content": [{"type": "text", "text": "well"}, {"type": "image"}]},
]
INPUTS = {
    "messages": MESSAGES, "s": "Hello, World", "u": "Žluťoučký kůň ßtraße", "e": "", "i": 7, "n": -3, "z": 0, "f": 2.5,
    "g": 1e16, "t": True, "no": None, "l": [3, 1, 2], "w": ["b", "A", "c", "a"], "d": {"b": 1, "a": [1, 2], "items": "x"},
    "nested": {"x": {"y": [{"z": "deep"}]}}, "lines": "one\n\ntwo\r\nthree\n", "people": [
        {"name": "Bo", "age": 3, "city": {"n": "X"}}, {"name": "al", "age": 3, "city": {"n": "Y"}}, {"name": "Cy", "age": 1}],
}  # fmt: skip

EXPRESSIONS = """
1 + 2 * 3 - 4 / 2
7 // 2, -7 // 2, 7 % 3, -7 % 3, 7 % -3, 2 ** 10, 2 ** -1, 7.5 // 2, -7.5 % 2
2 ** 3 ** 2
-2 ** 2
1 / 3, 1e100, 1e16, 123456789012345.6, 1e-5, 0.0001, 1e22, -0.0, 5e-324
1_000, 0x1F, 0b101, 0o17, 1.5e3, 1_0.2_5
i / z
9223372036854775807 + 1
'a' ~ 1 ~ none ~ [1] ~ nope
'a' + 'b' * 3
[1] + [2] * 2, (1,) + (2,)
'a' + 1
nope
nope.x
nope + 1
nope ~ 'x'
nope is defined, nope is undefined, s is defined
1 < 2 < 3, 3 > 2 > 2, 1 == 1.0 == true
'a' < 'b', [1, 2] < [1, 3], (1,) < (1, 2)
1 < 'a'
none < 1
'x' in 'xyz', 1 in [1, 2], 'b' in d, 3 not in l
1 in 'abc'
not true and false or 'x'
s and e or no or 5
'a' if t else 'b', 'a' if z
('a' if z) is defined
s[0], s[-1], s[1:4], s[::-1], s[::2], s[-3:], s[10:2:-2], u[1:8], l[5], l[-1], l[:2]
l['x'], l[1.0], d['a'], d['zz'], d.zz is defined
d.items()|list, d['items'], d.keys()|list, d.values()|list
d.items(), d.keys(), d.values()
nested.x.y[0].z, nested['x']['y'].0.z
{'a': 1, 1: 'b', 1.0: 'c', true: 'd', none: 'e', (1, 2): 'f'}
{[1]: 2}
[1, 'two', 3.0, none, true, [4], (5,), (), {'k': 'v'}]
'it\\'s', "say \\"x\\"", ['it\\'s', "say \\"x\\"", 'both \\' and "']
['\\n\\t\\x00\\x7f\\u00e9\\u200b\\\\']
'\\x41\\u00e9\\101\\q'
'a' 'b' "c"
s.upper(), s.lower(), u.upper(), u.title(), u.lower(), u.capitalize(), s.swapcase(), 'ß'.casefold()
'ΑΣ ΑΣΑ Σ'.lower(), 'ǆ'.title(), 'ŉ'.upper()
'  x '.strip(), '  x '.lstrip(), '  x '.rstrip(), 'xxaxx'.strip('x'), 'abc'.strip('ca')
'a,b,,c'.split(','), 'a b  c '.split(), 'a,b,c'.split(',', 1), 'a,b,c'.rsplit(',', 1), ' a b c '.split(none, 1)
' a b c '.rsplit(none, 1), ''.split(), ''.split(',')
'a'.split('')
lines.splitlines(), lines.splitlines(true), lines.split('\\n')
'abcabc'.find('c'), 'abcabc'.rfind('c'), 'abc'.find('x'), 'abcabc'.index('b', 2), 'aaa'.count('a'), 'aaa'.count('')
'abc'.index('x')
'abc'.startswith('ab'), 'abc'.endswith(('x', 'c')), 'abc'.startswith('b', 1)
'a-b'.partition('-'), 'ab'.partition('-'), 'a-b-c'.rpartition('-')
'aXbX'.replace('X', '--'), 'aaa'.replace('a', 'b', 2), 'ab'.replace('', '.')
'abc'.center(8, '*'), 'abc'.ljust(5) ~ '|', 'abc'.rjust(5), '-5'.zfill(4), '5'.zfill(0)
'a\\tb'.expandtabs(4)
'abc'.isalpha(), 'ab1'.isalnum(), '12'.isdigit(), '²'.isdigit(), '½'.isnumeric(), '١'.isdecimal(), ' \\n'.isspace()
'ab'.islower(), 'AB'.isupper(), 'Ab Cd'.istitle(), ''.isalpha(), 'a b'.isidentifier(), 'é'.isascii(), ''.isprintable()
','.join(['a', 'b']), ','.join(s)
','.join([1])
'abc'.removeprefix('a'), 'abc'.removesuffix('c')
'{} {}'.format(1, 'a'), '{0:>5}|{1!r:<6}|{x}'.format('a', 'b', x=2), '{:05.1f}|{:+d}|{:x}|{:,}'.format(2.25, 3, 255, 1234567)
'{a[0]} {b.x}'.format(a=[1], b={'x': 2}), '{{}}'.format()
'{:*^9}|{:.2}|{:%}|{:e}|{:g}'.format('mid', 'long', 0.25, 12345.678, 0.0001)
'{:08,}|{:#x}|{:b}|{:^7}'.format(1234, 255, 5, 3)
'{:.3}|{:.3}|{:.1}'.format(3.0, 1234.5, 0.05)
'{}'.format()
'%s %d %r %5.2f|%-5s|%05d|%x|%%' % ('a', 3, 'b', 2.5, 'c', 42, 255)
'%(a)s' % {'a': 1}, '%s' % 'x', '%s' % [1], '%c%c' % (65, 'b'), '%e' % 12345.678, '%.3d' % 5, '%+d' % 5
'%s %s' % 'x'
'%s' % ('a', 'b')
'%d' % 'a'
s|upper, s|lower, s|title, 'hello-world (foo) bar'|title, s|capitalize, s|trim, ' x '|trim, 'xax'|trim('x')
s|replace('l', 'L'), s|replace('l', 'L', 1), 5|replace(5, 6)
l|join, l|join('-'), w|join(', '), people|join(', ', 'name'), people|join(', ', attribute='age')
s|length, l|count, d|length, nope|length
5|length
l|first, l|last, s|first, s|last, []|first, []|last, l|sort, l|sort(reverse=true), w|sort, w|sort(case_sensitive=true)
people|sort(attribute='name')|map(attribute='name')|list, people|sort(attribute='age,name')|map(attribute='name')|list
[1, 'a']|sort
[none, none]|sort, [[1], [2]]|map(attribute='x')|sort|length, nope is sequence
l|max, l|min, w|max, w|min, []|max, people|max(attribute='age')
l|sum, people|sum(attribute='age'), l|sum(start=10), [[1], [2]]|sum(start=[])
l|reverse|list, s|reverse, d|list, s|list, range(5)|list, range(1, 10, 3)|list, range(5, 0, -2)|list
range(3), range(1, 3), range(0, 9, 2), range(10)[2], range(10)[2:5]
range(100001)
w|unique|list, [1, 1.0, true, 2]|unique|list, w|unique(case_sensitive=true)|list
l|batch(2)|list, l|batch(2, 'x')|list, range(7)|slice(3)|list, range(7)|slice(3, 'x')|list
l|select('odd')|list, l|reject('gt', 1)|list, [0, 1, '', 'a']|select|list
people|selectattr('city')|map(attribute='name')|list, people|selectattr('age', 'eq', 3)|list|length
people|rejectattr('city', 'defined')|map(attribute='name')|list, people|map(attribute='city.n', default='?')|list
w|map('upper')|list, w|map('replace', 'b', 'x')|join, l|map('string')|join('+')
w|map('nosuch')|list
people|groupby('age')|list
people|groupby('name')|map(attribute='grouper')|list, people|groupby('age')|map('last')|map('length')|list
d|dictsort, {'b': 2, 'A': 1}|dictsort, {'b': 1, 'a': 2}|dictsort(by='value'), {'b': 1, 'a': 2}|dictsort(reverse=true)
d|items|list, nope|items|list
nope|default('x'), nope|d, e|default('x'), e|default('x', true), no|default('x')
'42'|int, '4.7'|int, 'x'|int, 'x'|int(5), '0x1f'|int(base=16), ' 12 '|int, true|int, 3.9|int, '1_000'|int, none|int
'2.5'|float, 'x'|float, 'x'|float(1.5), 'inf'|float, '1e3'|float, 3|float
2.5|round, 3.5|round, 2.567|round(2), 2.1|round(0, 'ceil'), 2.9|round(method='floor'), 7|round, 1234|round(-2), -2.5|round
n|abs, -2.5|abs, true|abs
d|tojson, l|tojson, s|tojson, none|tojson, 1.0|tojson, {'a': []}|tojson(indent=2), {'b': 1, 'a': {}}|tojson(sort_keys=true)
[1, {'a': 'é'}]|tojson(indent=4), 'é\\u2028\\n\\x01"'|tojson, 'é😀'|tojson(ensure_ascii=true), {1: 2, none: 3, true: 4}|tojson
[1, 2]|tojson(separators=(',', ':')), {'a': [1]}|tojson(indent='--'), [1]|tojson(indent=0), (1, 2)|tojson
{(1, 2): 3}|tojson
nope|tojson
'a\\nb\\n\\nc'|indent, 'a\\nb'|indent(2, true), 'a\\n\\nb'|indent(2, blank=true), 'a\\nb'|indent('> '), ''|indent(first=true)
'abcdefghij klm'|truncate(9, leeway=0), 'abcdefghij'|truncate(5, true, '..', 0), 'foo bar baz qux'|truncate(11), s|truncate
'a b_c d-e'|wordcount, s|center(20), '<a href="x">\\'&'|e ~ '<b>'|escape
'%s-%s'|format(1, 2), '%(a)s'|format(a=3)
'a b/c?é'|urlencode, {'a b': 'c/d'}|urlencode, [('x', 1)]|urlencode
1|filesizeformat, 13000|filesizeformat, 13000|filesizeformat(true), 4100000000|filesizeformat
s is string, i is number, f is float, i is integer, t is integer, t is boolean, d is mapping, l is sequence, l is iterable
i is odd, i is even, i is divisibleby 7, i is divisibleby(2), no is none, t is true, z is false, false is false
s is lower, 'a' is lower, 'A' is upper, 1 is sameas 1, l is sameas l, s is in 'Hello, World!', i is eq 7, i is gt 3
i is not odd, nope is not defined, range is callable, s is callable, 'upper' is filter, 'odd' is test
'1' is == '1'
'<'|safe + '<' + '"'|e, ('<'|e)|e, ('<'|e)|forceescape, 'a'|safe is escaped, ('<'|safe) * 2 + '<', 'x<' + '>'|safe
s|nosuch
s is nosuch
l.append(1)
l.append
d.update({})
s.__class__
s.__class__.__mro__
d.__class__ is defined, l.append is defined, d.pop is defined
dict(a=1, b=2), dict([('x', 1)]), dict({'a': 1}, b=3)
namespace(a=1).a, namespace(a=1), namespace({'b': 2}).b
namespace(_a=1)
cycler('a', 'b').next(), joiner()() ~ 'x'
raise_exception('boom')
dict(**{'a': 1}), [*l]
range(*[1, 4])|list
(1, 2, 3)[1:], (1,), (), [1, 2,], {'a': 1,}
(l|map('string')|list).count('3'), l.index(1), d.get('a'), d.get('q'), d.get('q', 5)
'x' * 3, 3 * 'x', [0] * 2, 'x' * -1
true + true, -true, +5, not 1
[1, 2] == [1, 2], (1, 2) == [1, 2], {'a': 1} == {'a': 1.0}, nope == nope2, 1 == '1', none == false
'ab' 'cd'|upper
-1|abs, (-1)|abs
1 if false else 2 if false else 3
[l, l]|map('join', ',')|join(';')
'{:>{w}}'.format('a', w=5), '{!r}'.format('é'), '{!a}'.format('é')
u|length, u[::-1], u|list|length, '😀a'|length, '😀a'[1]
'abc'|attr('upper'), d|attr('a') is defined, people[0]|attr('name') is defined
i.real, f.is_integer(), (5).bit_length()
's' if s is string and s|length > 3 else 'n'
messages[1:]|map(attribute='role')|join(','), messages[-1].content[0].text, messages[2].tool_calls[0].function.arguments|tojson
messages|selectattr('role', 'equalto', 'user')|list|length, messages|map(attribute='role')|unique|join
""".strip().split("\n")

STATEMENTS = [
    "{% for m in messages %}\n  {{ m.role }}\n{% endfor %}\nend\n",
    "a {%- if t -%} b {%- endif -%} c",
    "  {%+ if t %} b {% endif +%}\n c",
    "  {# comment #}\nx {#- y -#} z",
    "{% raw %}{{ x }} {% y %}{% endraw %}\n!",
    "x\n  {%- raw -%}  a {{ \n  {%- endraw -%}\n y",
    "  {% raw %}\n a\n  {% endraw %}\n b",
    "a\r\nb\rc\n\n", "{{ 'a' }}\n", "\n\n{{ 'x' }}\n\n{% if t %}\n{% endif %}\n\n",
    "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}"
    "{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('a', 'b') }};{% endfor %}",
    "{% for x in l|select('gt', 0) %}{{ loop.nextitem }}{{ loop.length }}{{ loop.last }}{{ loop }}{% endfor %}",
    "{% for x in [1, 1, 2] %}{{ loop.changed(x) }}{% endfor %}",
    "{% for x in [] %}a{% else %}b{% endfor %}{% for x in nope %}a{% else %}c{% endfor %}",
    "{% for x in l if x > 1 %}{{ x }}{{ loop.index }}{{ loop.nextitem }}{% else %}none{% endfor %}",
    "{% for x in l if x > 9 %}{{ x }}{% else %}none{% endfor %}",
    "{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% if x == 2 %}{% break %}{% endif %}{% else %}e{% endfor %}",
    "{% for x in [1] %}{% continue %}{% else %}else after continue{% endfor %}",
    "{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }},{% endfor %}",
    "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for a, b in [(1, 2, 3)] %}{{ a }}{% endfor %}", "{% for x in 5 %}{% endfor %}",
    "{% for c in 'héy' %}{{ c }}-{% endfor %}",
    "{% for x in [[1, [2, 3]], 4] recursive %}{% if x is iterable %}[{{ loop(x) }}]{% else %}{{ x }}@{{ loop.depth }}{% endif %}{% endfor %}",
    "{% for x in l %}{{ loop(x) }}{% endfor %}",
    "{% set x = 1 %}{% for y in l %}{% set x = y %}{{ x }}{% endfor %}{{ x }}",
    "{% for y in l %}{{ x }}{% set x = y %}{{ x }}{% endfor %}{{ x is defined }}",
    "{% set ns = namespace(x=0) %}{% for y in l %}{% set ns.x = ns.x + y %}{% endfor %}{{ ns.x }}{{ ns.nope is defined }}{{ ns }}",
    "{% set d.x = 1 %}", "{% set ns = namespace() %}{% set ns._x = 1 %}",
    "{% set ns = namespace() %}{% set ns.a, b = 1, 2 %}{{ ns.a }}{{ b }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set a, b = b, a %}{{ a }}{{ b }}", "{% set a, b = [1] %}",
    "{% if z %}{% set x = 1 %}{% endif %}{{ x }}|{% if t %}{% set y = 2 %}{% else %}{% set y = 3 %}{% endif %}{{ y }}",
    "{% if z %}{% set s = 1 %}{% endif %}{{ s }}",
    "{% for q in l %}{% if q == 1 %}{% set s = 'in' %}{% endif %}{{ s }}{% endfor %}{{ s }}",
    "{% for q in l %}{% if q == 1 %}{% set v = 'in' %}{% elif q == 2 %}{% set v2 = 1 %}{% endif %}{{ v }}{{ v2 }}{% endfor %}",
    "{% if z %}a{% elif i == 7 %}b{% elif t %}c{% else %}d{% endif %}",
    "{% set x %}a{{ s }}{% endset %}{{ x }}{{ x|length }}", "{% set x | upper | replace('A', 'z') %}a{{ s }}{% endset %}{{ x }}",
    "{% filter upper %}a{{ s }}{% filter replace('O', '0') %}foo{% endfilter %}{% endfilter %}",
    "{% macro m(a, b=2, c='x') %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, c=3) }}{{ m(b=1) }}{{ m }}",
    "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{% endmacro %}{{ m(q=2) }}",
    "{% macro m(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, x=4) }}",
    "{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}in{{ s }}{% endcall %}{{ m() }}",
    "{% macro m() %}{% for x in l %}{{ caller(x, 2) }}{% endfor %}{% endmacro %}{% call(a, b=5) m() %}{{ a }}{{ b }};{% endcall %}",
    "{% set x = 1 %}{% macro m() %}{{ x }}{% endmacro %}{% set x = 2 %}{{ m() }}",
    "{% macro m() %}{{ later }}{% endmacro %}{% set later = 3 %}{{ m() }}",
    "{% for x in l %}{% macro m() %}{{ x }}{{ loop }}{% endmacro %}{{ m() }}{% endfor %}",
    "{% macro fact(n) %}{% if n <= 1 %}1{% else %}{{ n * (fact(n - 1)|int) }}{% endif %}{% endmacro %}{{ fact(5) }}",
    "{% macro m(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ m(3) }}", "{% macro m(a=b, b=1) %}{{ a }}{{ b }}{% endmacro %}{{ m() }}",
    "{% macro m(x) %}{{ x.y }}{% endmacro %}{{ m.name }}{{ m.arguments }}{{ m.catch_kwargs }}{{ m() }}",
    "{% with a = 1, b = s %}{{ a }}{{ b }}{% set c = 2 %}{% endwith %}{{ a is defined }}{{ c is defined }}",
    "{% with a = 1 %}{% with a = 2, b = a %}{{ a }}{{ b }}{% endwith %}{{ a }}{% endwith %}",
    "{% generation %}hi {{ s }}{% endgeneration %} x {% generation %}{% endgeneration %}{% for x in l %}{% generation %}é{{ x }}"
    "{% set q = 1 %}{% endgeneration %}{{ q is defined }}{% endfor %}",
    "{% print s, 1 %}{% print(2) %}", "{% block x %}a{{ s }}{% endblock %}", "{% block x %}a{% endblock x %}",
    "{% if z %}{{ s|nosuch }}{% endif %}ok", "{% if z %}{% for x in l %}{{ s|nosuch }}{% endfor %}{% endif %}ok",
    "{{ (s|nosuch) if z else 'ok' }}", "{% if t %}{{ s is nosuch }}{% endif %}",
    "{% break %}", "{% for x in l %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}", "{% for loop in l %}{% endfor %}",
    "{% for x in l %}{% set loop = 1 %}{% endfor %}", "{% set none = 1 %}", "{% set a.b.c = 1 %}", "{% set 1 = 1 %}",
    "{% if %}{% endif %}", "{% nosuch %}", "{% if t %}", "{% endif %}", "{{ }}", "{{ a b }}", "{{ 'x }}", "{% for x l %}{% endfor %}",
    "{{ [1, }}", "{{ {1} }}", "{{ (1 }}", "{{ f(a=1, 2) }}", "{{ 1..2 }}", "{{ $ }}", "{# open", "{% raw %}", "{{ l[1, 2] }}",
    "{% set x = [] %}{% set y = x.append(1) %}{{ x }}", "{{ {'a': 1}.pop('a') }}", "{% do l.append(1) %}",
    "{% set g = l|map('string') %}{{ g|join }}{{ g|join }}", "{% set g = people|map(attribute='nope.x') %}{{ 'unused' }}",
    "{{ (people|map(attribute='age'))|first }}", "{{ ([1, 'x']|map('abs'))|first }}",
    "{{ messages[0]['content'].strip() + '\\n' }}{{- '\\n' }}{%- if not x is defined %}y{% endif %}",
    "{{ 'a' if t else nope.x }}{{ d.items.x is defined }}", "{{ {'a': {'b': 1}}.a.b }}{{ }} ", "{{ {'a': {}}}}",
    "{%for x in l%}{{x}}{%endfor%}", "{%- for x in l -%}\n {{- x -}} \n{%- endfor -%}", "a{{- ' b ' -}} c",
    "{% set x = cycler('a', 'b') %}{% for q in l %}{{ x.next() }}{{ x.current }}{% endfor %}{% set j = joiner('|') %}{% for q in l %}{{ j() }}{{ q }}{% endfor %}",
    "{% for role, group in people|groupby('age') %}{{ role }}:{% for p in group %}{{ p.name }}{% endfor %};{% endfor %}",
    "{% for g in people|groupby('age') %}{{ g.grouper }}{{ g.list|length }}{% endfor %}",
    "{% for x in {'b': 1, 'a': 2}|dictsort %}{{ x }}{{ x[0] }}{% endfor %}",
    "{%- macro render(x, depth) -%}{%- if x is mapping -%}{%- for k, v in x.items() -%}{{ ' ' * depth }}{{ k }}:{{ render(v, depth + 1) }}\n"
    "{%- endfor -%}{%- elif x is iterable and x is not string -%}{%- for v in x -%}{{ render(v, depth + 1) }}{%- endfor -%}"
    "{%- else -%}{{ x }}{%- endif -%}{%- endmacro -%}{{ render(nested, 0) }}{{ render(messages, 0) }}",
]  # fmt: skip


def table():
    for expression in EXPRESSIONS:
        yield "{{ " + expression + " }}"
    yield from STATEMENTS


class Grammar:
    """Random templates over INPUTS, of which most render."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def pick(self, *choices):
        return self.random.choice(choices)

    def name(self):
        return self.pick("s", "u", "e", "i", "n", "z", "f", "t", "no", "l", "w", "d", "x", "y", "nope", "people", "lines", "loop", "ns")

    def text(self, depth):
        if depth <= 0 or self.random.random() < 0.3:
            return self.pick("s", "u", "e", "lines", "'a-b c'", "' É\\n'", "'%s'", "messages[1].content", "'ſßΣ'")
        a, b = self.text(depth - 1), self.text(depth - 1)
        integer = self.pick("0", "1", "2", "-1", "5", "3")
        return self.pick(
            f"({a} + {b})", f"({a} ~ {self.expression(depth - 1)})", f"{a}.upper()", f"{a}.strip({self.pick('', b)})", f"{a}|trim", f"({a})[{integer}:]",
            f"({a})[:{integer}]", f"({a})[::{self.pick('-1', '2', '-2')}]", f"{a}|replace({b}, {self.text(0)})", f"{a}|title", f"{a}|lower", f"{a}|indent({integer})",
            f"({a})|truncate({self.pick('5', '8')}, {self.pick('true', 'false')}, '.', {self.pick('0', '2')})", f"{a}|tojson", f"{self.value(depth - 1)}|tojson(indent={integer})",
            f"{self.list(depth - 1)}|join({b})", f"{a}|center({integer})", f"{a}.center(9, '*')", f"'%s|%r'|format({a}, {self.expression(depth - 1)})",
            f"'{{}}:{{!r:>5}}'.format({a}, {b})", f"{a} * {integer}", f"{a}|capitalize", f"({a}|e ~ '')", f"{a}.title()", f"{a}.swapcase()", f"{self.expression(depth - 1)}|string",
            f"{a}|reverse", f"{a}|urlencode", f"'%5.1f' % {self.number(depth - 1)}", f"'{{:>8.3}}'.format({self.number(depth - 1)})", f"{a}.zfill({integer})")  # fmt: skip

    def number(self, depth):
        if depth <= 0 or self.random.random() < 0.3:
            return self.pick("i", "n", "z", "f", "t", "1", "2.5", "100", "0.1", "1e3", "(-7)")
        a, b = self.number(depth - 1), self.number(depth - 1)
        return self.pick(
            f"({a} + {b})", f"({a} - {b})", f"({a} * {b})", f"({a} / {b})", f"({a} // {b})", f"({a} % {b})", f"({a}) ** 2", f"({a})|abs", f"({a})|int", f"({a})|float",
            f"({a})|round({self.pick('0', '1', '2', '-1')})", f"{self.text(depth - 1)}|length", f"{self.list(depth - 1)}|sum", f"{self.text(depth - 1)}|int", f"-{a}",
            f"{self.list(depth - 1)}|length", f"{self.text(depth - 1)}.find({self.text(0)})", f"{self.text(depth - 1)}|wordcount", f"({a})|round(1, '{self.pick('ceil', 'floor')}')",
            f"{self.list(depth - 1)}|max")  # fmt: skip

    def list(self, depth):
        if depth <= 0 or self.random.random() < 0.3:
            return self.pick("l", "w", "people", "[1, 2.0, 'a']", "range(4)", "[]", "(1, 'b')", "d", "nope", "[[1, 2], [3]]", "messages")
        a = self.list(depth - 1)
        return self.pick(
            f"[{self.expression(depth - 1)}, {self.expression(depth - 1)}]", f"({a})[{self.pick('1:', ':-1', '::-1', '::2', '-2:')}]", f"{a}|list", f"{a}|sort", f"{a}|reverse|list",
            f"{a}|map('{self.pick('string', 'upper', 'length', 'int', 'first', 'tojson')}')|list", f"{a}|select('{self.pick('string', 'number', 'odd', 'mapping', 'defined')}')|list",
            f"{a}|map(attribute='{self.pick('name', 'role', 'age', '0', 'content.0')}')|list", f"{self.text(depth - 1)}.split({self.pick('', self.text(0))})", f"{self.text(depth - 1)}|list",
            f"{a}|unique|list", f"{a}|batch({self.pick('1', '2', '3')})|list", f"{a}|slice({self.pick('1', '2', '3')})|list", f"{self.text(depth - 1)}.splitlines()", f"{a} + {self.list(depth - 1)}",
            f"{a}|selectattr('{self.pick('name', 'role', 'age')}')|list", f"d|dictsort", f"{a}|groupby('{self.pick('age', 'role')}')|list", f"({a}, {self.expression(depth - 1)})",
            f"{self.text(depth - 1)}.partition({self.text(0)})", f"{a}|rejectattr('age', 'eq', 3)|list")  # fmt: skip

    def value(self, depth):
        return self.pick(self.text, self.number, self.list, lambda n: "d", lambda n: "{'k': " + self.expression(n - 1) + "}", lambda n: "nested.x")(depth)

    def test(self, depth):
        a, b = self.expression(depth - 1), self.expression(depth - 1)
        return self.pick(
            f"{a} == {b}", f"{a} != {b}", f"{a} < {b}", f"{a} >= {b}", f"{self.text(depth - 1)} in {self.text(depth - 1)}", f"{a} in {self.list(depth - 1)}", f"not {a}", f"{a} and {b}",
            f"{a} or {b}", f"{a} is {self.pick('defined', 'string', 'number', 'mapping', 'iterable', 'sequence', 'none', 'integer', 'float', 'boolean', 'true', 'callable')}",
            f"{a} is not {self.pick('defined', 'none', 'string')}", f"{self.number(depth - 1)} is {self.pick('odd', 'even', 'divisibleby 3')}", f"{self.text(depth - 1)}.startswith({self.text(0)})",
            f"{self.text(depth - 1)} is {self.pick('lower', 'upper')}", f"{self.number(0)} < {self.number(0)} <= {self.number(0)}")  # fmt: skip

    def expression(self, depth):
        if depth <= 0:
            return self.pick(self.name, lambda: self.text(0), lambda: self.number(0), lambda: self.list(0))()
        return self.pick(
            self.text, self.number, self.list, self.value, lambda n: f"({self.test(n)})", lambda n: f"({self.expression(n - 1)} if {self.test(n - 1)} else {self.expression(n - 1)})",
            lambda n: f"({self.expression(n - 1)} if {self.test(n - 1)})", lambda n: f"{self.name()}|default({self.expression(n - 1)}{self.pick('', ', true')})", lambda n: self.name(),
            lambda n: f"m({self.expression(n - 1)}{self.pick('', ', b=' + self.expression(n - 1))})")(depth)  # fmt: skip

    def space(self):
        return self.pick("", "", " ", "\n", "  \n ", "a", "é\n", "\t{}")

    def sign(self):
        return self.pick("", "", "", "-", "+")

    def tag(self, text):
        return "{%" + self.sign() + f" {text} " + self.pick("", "", "-", "+") + "%}" + self.space()

    def statement(self, depth, in_loop):
        body = lambda loop=in_loop: self.body(depth - 1, loop)  # noqa: E731
        kinds = ["text", "output", "output", "set", "set"]
        if depth > 0:
            kinds += ["if", "if", "for", "for", "block", "filter", "with", "macro", "generation", "namespace", "call", "comment", "raw"]
        if in_loop:
            kinds += ["leave", "loop"]
        kind = self.random.choice(kinds)
        e = lambda: self.expression(self.random.randint(0, 3))  # noqa: E731
        if kind == "output":
            return "{{" + self.pick("", "-") + " " + e() + " " + self.pick("", "-") + "}}"
        if kind == "set":
            return self.tag(f"set {self.pick('x', 'y', 's')} = {e()}")
        if kind == "if":
            middle = self.tag(f"elif {self.test(1)}") + body() if self.random.random() < 0.3 else ""
            other = self.tag("else") + body() if self.random.random() < 0.5 else ""
            return self.tag(f"if {self.test(2)}") + body() + middle + other + self.tag("endif")
        if kind == "for":
            test = f" if {self.test(1)}" if self.random.random() < 0.2 else ""
            other = self.tag("else") + body() if self.random.random() < 0.2 else ""
            return self.tag(f"for {self.pick('x', 'y', 'm')} in {self.list(2)}{test}") + body(True) + other + self.tag("endfor")
        if kind == "block":
            return self.tag(f"set {self.pick('x', 'y')}{self.pick('', ' | upper', ' | trim')}") + body() + self.tag("endset")
        if kind == "filter":
            return self.tag(f"filter {self.pick('upper', 'trim', 'length', 'indent(2)', 'title')}") + body() + self.tag("endfilter")
        if kind == "with":
            return self.tag(f"with {self.pick('x', 'y')} = {e()}") + body() + self.tag("endwith")
        if kind == "macro":
            return self.tag(f"macro m(a, b={self.expression(1)})") + body(False) + "{{ a }}{{ b }}" + self.tag("endmacro")
        if kind == "call":
            return self.tag("macro c(a=1)") + "<{{ caller() }}>" + body(False) + self.tag("endmacro") + self.tag("call c()") + body(False) + self.tag("endcall")
        if kind == "generation":
            return self.tag("generation") + body(False) + self.tag("endgeneration")
        if kind == "namespace":
            return self.tag(f"set ns = namespace(v={e()})") + self.tag(f"set ns.v = {e()}") + "{{ ns.v }}"
        if kind == "leave":
            return self.tag(f"if {self.test(1)}") + self.tag(self.pick("break", "continue")) + self.tag("endif")
        if kind == "loop":
            return "{{ loop." + self.pick("index", "index0", "first", "last", "length", "revindex", "previtem", "nextitem", "depth", "changed(x)", "cycle(1, 2)") + " }}"
        if kind == "comment":
            return "{#" + self.sign() + " c " + self.sign() + "#}"
        if kind == "raw":
            return self.tag("raw") + "{{ x }}" + self.space() + self.tag("endraw")
        return self.space() + self.pick("b", " {", "%}", "x\n")

    def body(self, depth, in_loop):
        return "".join(self.space() + self.statement(depth, in_loop) for _ in range(self.random.randint(1, 3)))

    def template(self):
        head = "{% macro m(a, b=1) %}[{{ a }}{{ b }}]{% endmacro %}" if self.random.random() < 0.5 else ""
        return head + self.body(self.random.randint(0, 3), False)
