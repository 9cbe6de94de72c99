"""The expressions, the faulty templates and the variables of which make_goldens.py writes what jinja2 says."""

EXPRESSIONS = r"""
1 + 2 * 3 - 4 // 3
7 / 2
-7 // 2
-7 % 3
7 % -3
7.5 // 2
-7.5 % 2
2 ** 10
2 ** -1
-2 ** 2
2 ** 3 ** 2
10 / 5
1 / 0
1 % 0
1.0
1e3
1e16
1e15
1.5e-5
0.0001
0.1 + 0.2
1_000
0x1F + 0b11 + 0o17
170141183460469231731687303715884105727
true + 1
1 == 1.0
1 == true
'1' == 1
[1, 2] == [1, 2]
[1] == (1,)
{'a': 1} == {'a': 1.0}
1 < 2 < 3
1 < 2 > 5
'a' < 'b'
'a' < 1
none < 1
[1, 2] < [1, 3]
none == none
missing == missing2
not missing
missing
missing.x
missing ~ 'x'
missing + 'x'
missing + 1
missing | length
missing is defined
missing is none
missing | default('d')
missing.x | default('d')
none | default('d')
none | default('d', true)
'' | default('d', boolean=true)
(d.nope | default({'a': [1]})).a
d.nope
d.nope.deeper
d['nope'] is defined
none.x
none['x']
none.x.y
5.x
s.x
s[0]
s[-1]
s[99]
s[99] is defined
s[::-1]
s[1:3]
s[-3:]
s[:-1]
s[::2]
s[5:1:-2]
s[100:]
s[::0]
l[0]
l[-1]
l[5]
l[1:]
l[::-1]
l[::-2]
l['x']
(1, 2, 3)[1:]
l.0
'a' 'b' "c"
'tab\tnew\nquote\'uni\u00e9\x41\101\q'
"双" ~ 1 ~ none ~ true ~ [1, 'x'] ~ {'k': none}
'ab' * 3
3 * 'ab'
[1] * 3
'ab' * -1
'a' + 1
[1] + [2]
(1,) + (2,)
[1] + (2,)
()
(1,)
(1)
[]
{}
{'a': 1, 2: 'b', none: [1.5, (1,)], true: 'x'}
{'a': 1, 'a': 2}
{[1]: 2}
['a\'b', "q\"q", 'both\'"', '\n\t\\', '\u200b', 'é', '\x7f']
[missing]
'x' if true
'x' if false
'x' if false else 'y'
('x' if false) is defined
'a' if d.a else 'b' if d.b else 'c'
1 and 0 or 'z'
0 or []
[] and 1
not 1 == 2
not not 1
1 in [1, 2]
'a' in 'cat'
'a' not in 'cat'
1 in 'cat'
'a' in d
'x' in none
'x' in missing
1 in {1: 2}
'b' is in ['a', 'b']
d is mapping
l is mapping
s is string
1 is number
true is number
1.5 is float
1 is integer
true is integer
true is boolean
none is none
1 is none
l is iterable
1 is iterable
s is sequence
d is sequence
l is sequence
1 is sequence
3 is odd
3 is even
9 is divisibleby 3
9 is divisibleby(4)
1 is true
true is true
false is false
0 is false
1 is eq 1
1 is equalto(2)
1 is ne 2
1 is lt 2
2 is ge 2
'abc' is lower
'ABC' is upper
1 is not none
not 1 is none
1 is sameas 1
range is callable
'upper' is filter
'odd' is test
s is nosuchtest
s | nosuchfilter
'x' if true else (s | nosuchfilter)
' x\n ' | trim
'xxaxx' | trim('x')
s | upper
'HELLO World' | lower
'hello wORLD foo-bar (baz) [q' | title
'hello wORLD it\'s'.title()
'hello WORLD' | capitalize
'ßﬁİ' | upper
'İIΣΑΣ' | lower
s | length
'👩‍👩‍👧é' | length
d | length
1 | length
[1, 2] | count
l | first
l | last
[] | first
[] | first is defined
'' | last
s | first
s | last
l | join
l | join(', ')
[1, none, missing, 'x'] | join('-')
'abc' | join('.')
ds | join(',', attribute='n')
d | join(',')
l | reverse | list
'abc' | reverse
l | list
'abc' | list
d | list
[3, 1, 2] | sort
[3, 1, 2] | sort(reverse=true)
['b', 'A', 'c'] | sort
['b', 'A', 'c'] | sort(case_sensitive=true)
ds | sort(attribute='n') | map(attribute='m') | list
ds | sort(attribute='n,m', reverse=true) | map(attribute='m') | list
[1, 'a'] | sort
['a', 'A', 'b', 1, 1.0] | unique | list
['a', 'A'] | unique(case_sensitive=true) | list
[1, 5, 3] | max
['b', 'A'] | min
[] | max
[1, 2.5] | sum
ds | sum(attribute='n')
[[1], [2]] | sum(start=[])
d | items | list
missing | items | list
l | items | list
d | dictsort
{'b': 1, 'A': 2} | dictsort(by='value', reverse=true)
{'b': 1, 'A': 2, 'a': 0} | dictsort(case_sensitive=true)
[1, 2, 3, 4, 5] | batch(2) | list
[1, 2, 3] | batch(2, 'x') | list
l | map('string') | list
l | map('upper') | join
ds | map(attribute='n') | list
ds | map(attribute='zz', default=0) | list
ds | map('items') | map('list') | list
['1', 'x', '0x1f'] | map('int', -1) | list
[0, 1, '', 'a'] | select | list
[0, 1, '', 'a'] | reject | list
[1, 2, 3] | select('odd') | list
[1, 2, 3] | reject('gt', 1) | list
ds | selectattr('n') | list | length
ds | selectattr('m', 'equalto', 'x') | map(attribute='n') | list
ds | rejectattr('m', 'in', ['x', 'y']) | list
ds | selectattr('q.r', 'defined') | list | length
ds | selectattr('n', 'nosuch') | list
('yes' if ds | selectattr('m', 'equalto', 'none such') else 'no')
ds | selectattr('m') | length
d | tojson
d | tojson(indent=2)
[] | tojson(indent=2)
{'é': '<&>\'"\\\n\u2028\x01\x7f', 'n': [none, true, 1.0, 1e100]} | tojson
'é👍' | tojson(ensure_ascii=true)
{'b': 1, 'a': [1, 2]} | tojson(sort_keys=true, separators=(',', ':'))
{1: 2, none: 3, true: 4, 1.5: 5} | tojson
missing | tojson
range | tojson
(1, 'a') | tojson
'a\nb\n\nc' | indent
'a\nb\n\nc' | indent(2, true, true)
'a\nb' | indent('>> ')
'a-b-c' | replace('-', '+')
'a-b-c' | replace('-', '+', 1)
'abc' | replace('', '.')
123 | replace(2, 5)
'42' | int + 1
'4.9' | int
' 12 ' | int
'x' | int
'x' | int(7)
none | int
'ff' | int(0, 16)
'3.5' | float
'x' | float(1.5)
3 | float
-5 | abs
-5.5 | abs
2.567 | round(2)
2.5 | round
3.5 | round
5 | round
2.1 | round(0, 'ceil')
2.19 | round(1, 'floor')
42 | string + '!'
[1, 'a'] | string
'<a href="x">&\'' | e
'x' | safe
'abc' | center(8) ~ '|'
'abcd' | center(7) ~ '|'
'a b  c' | wordcount
'hello big world' | truncate(9, leeway=0)
'hello big world' | truncate(9, true, '~', 0)
'hello' | truncate(9)
'%s is %d or %05.1f and %x' | format('x', 3.9, 2.25, 255)
'%(a)s' | format(a=1)
'%5s|%-5s|%r%%' % ('a', 'b', 'c')
'%s' % d
'%d' % 'x'
'%s %s' % 'x'
'{} {1}'.format('a')
'{} {} {x} {{}}'.format('a', 2, x=3)
'{1}{0}'.format('a', 'b')
s.upper()
' x '.strip()
'xyx'.strip('x')
'xyx'.lstrip('x')
'xyx'.rstrip('xy')
'  x '.lstrip() ~ '|'
'a,b,,c'.split(',')
'a,b,c'.split(',', 1)
' a  b c '.split()
' a  b c '.split(none, 1)
'a,b,c'.rsplit(',', 1)
' a b  c '.rsplit(maxsplit=1)
'abc'.split('')
'a</think>b</think>c'.split('</think>')[-1]
'a\nb\r\nc\n'.splitlines()
'abc'.startswith('ab')
'abc'.startswith(('x', 'a'))
'abc'.endswith('bc')
'abc'.startswith(1)
'a-b'.replace('-', '')
'aaa'.replace('a', 'b', 2)
'abcabc'.find('c')
'abc'.find('z')
'banana'.count('an')
'-'.join(['a', 'b'])
'-'.join([1])
'12'.isdigit()
''.isdigit()
'²٣'.isdigit()
'1½'.isdigit()
'abc'.isalpha()
'é漢'.isalpha()
'ab1'.isalpha()
''.isalpha()
'ab1½'.isalnum()
'a b'.isalnum()
'ab1'.islower()
'aB'.islower()
'12'.islower()
'aǅ'.islower()
'ª'.islower()
'AB1'.isupper()
'Aǅ'.isupper()
''.isupper()
'42'.zfill(5)
'-42'.zfill(5)
'+'.zfill(3)
''.zfill(2)
'é'.zfill(3)
'long'.zfill(2)
'1'.zfill()
'a-b-c'.partition('-')
'abc'.partition('-')
'a-b-c'.rpartition('-')
'abc'.rpartition('-')
'abc'.partition('')
'ab'.center(5) ~ '|'
'abc'.center(6) ~ '|'
'ab'.center(7, 'é')
'ab'.center(1)
'ab'.center(4, 'xy')
'ab'.ljust(4) ~ '|'
'ab'.rjust(4, '*')
d | attr('a')
d | attr('a') is defined
d | attr('items') is defined
'a' | attr('upper') is defined
'a' | attr('__class__') is defined
[1, 2, 3, 4, 5, 6, 7] | slice(3) | list
[1, 2, 3, 4, 5, 6, 7] | slice(3, 'x') | list
[1] | slice(3, 0) | list
[1] | slice(0) | list
'a b/ä&~' | urlencode
{'a b': 'c/d', 'e': 1} | urlencode
[('a', 'ä b'), (1, 2)] | urlencode
5 | urlencode
nosuch | urlencode
[1] | urlencode
'abcdef'[1:3] ~ 'häß'[1:] ~ 'häß'[:-1] ~ 'häß'[2:1] ~ 'häß'[-2:9]
'häß'[-1] ~ 'häß'[1] ~ 'häß'[3]
'hello wORLD (a-b' | title
'abc'.removeprefix('a').removesuffix('c')
'abc'.nosuch
'abc'.nosuch()
s.__class__
''.__class__.__mro__
d.keys() | list
d.values() | list
d.items() | list
d.get('a')
d.get('zz')
d.get('zz', 5)
d.get('zz') is none
d.items is defined
d.a
d['a']
d.update({'x': 1})
d.pop('a')
l.append(1)
l.index(2)
l.count(1)
{'items': 5}.items() | list
{'items': 5}['items']
{'keys': 5}['keys'] + 1
range(3) | list
range(1, 10, 3) | list
range(5, 0, -2) | list
range(0)| list
range(1, 2, 0) | list
dict(a=1, b=2)
dict({'x': 1}, y=2)
dict([('k', 'v')])
namespace(a=1).a
namespace(a=1).b is defined
strftime_now('%Y-%m-%d %H:%M:%S %j %A %B %b %d %y %%')
raise_exception('told so: ' ~ s)
undefined_function(1)
s(1)
loop
loop is defined
1 is defined and 2 is defined
'a' ~ 1 + 2
1 + 2 ~ 'a'
'a' | upper ~ 'b'
-1 | abs
(-1) | abs
- 5 + 3
+ 5
+true
-'x'
[1, 2, 3,]
{'a': 1,}
1,2
[[1, [2, {'a': (3, [])}]]]
1 if
1 +
(1
[1
{'a' 1}
foo bar
'unterminated
1 2
a.b.
a[
x | 
x is
$
"""

SYNTAX = [
    "{% if %}", "{% if x %}", "{% endif %}", "{% for x %}{% endfor %}", "{% for x in %}{% endfor %}", "{{ 1", "{% set %}",
    "{% nosuch %}", "{# open", "{% raw %}x", "{% macro m(a=1, b) %}{% endmacro %}", "{% set none = 1 %}", "{{ }}", "{% if 1 %}{% else %}",
    "{% break %}", "{{ 1 }}}", "{% set x.y = 1 %}", "{% for a, b in [1] %}{% endfor %}", "{% for a, b in [(1, 2, 3)] %}{% endfor %}",
    "a\r\nb\rc\n", "{{ 1 }}\n\n", "\n{% if 1 %}\nx\n{% endif %}\ny", "  {% if 1 %}  x  {% endif %}  \n", "  {%+ if 1 %}\n  x{% endif %}",
    "a {{- 1 -}} b", "a {%- if 1 -%} b {%- endif -%} c", "a\n  {# c #}\n  b", "a  {#- c -#}  b", "x {% raw -%}  y  {%- endraw %} z",
    "{% raw %}\n  {% endraw %}\nz", "{% for i in 'ab' %}{{ loop.cycle('x', 'y') }}{% endfor %}", "{% for i in 5 %}{% endfor %}",
    "{% set a, b = 1, 2 %}{{ b }}{{ a }}", "{% set a, b = (1,) %}", "{% if 1 %}{% set q = 3 %}{% endif %}{{ q }}",
    "{% macro f(n) %}{{ n }}{% if n %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}", "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(b=2) }}",
    "{% macro f(a) %}{{ a is defined }}{{ a }}{% endmacro %}{{ f() }}", "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(a=1) }}{{ f(1, a=2) }}",
    "{% set x = 1 %}{% macro f() %}{{ x }}{% endmacro %}{% set x = 2 %}{{ f() }}", "{% macro f() %}{{ caller() }}{% endmacro %}{{ f() }}",
    "{% set n = namespace() %}{% set n.a = 1 %}{{ n.a }}{{ n.b }}", "{% set n = namespace(l=[]) %}{% for i in range(3) %}{% set n.l = n.l + [i] %}{% endfor %}{{ n.l }}",
    "{% for m in [{'a': 1}, {'a': 2}] if m.a > 1 %}{{ loop.index }}{{ loop.length }}{{ m.a }}{% endfor %}",
    "{% for a in [1, 2] %}{% for b in [3, 4] %}{{ loop.depth }}{{ a }}{{ b }}{% endfor %}{{ loop.depth0 }}{% endfor %}",
    "{% for x in l %}{{ loop.index }}{% if loop.index > 1 %}{% break %}{% endif %}{% else %}no{% endfor %}",
    "{{ x }}{% if x is undefined %}{% set x = 1 %}{% endif %}{{ x }}", "{% if s | nosuch %}{% endif %}", "{% if false %}{{ s | nosuch }}{% endif %}ok",
    "{% elif %}", "{% if a %}{% elif b %}{% else %}e{% endif %}", "{{ '%}' }}{% set a = '}}' %}{{ a }}", "{% set a = {'b': {'c': 1}} %}{{ a.b.c }}{{{'x': 1}.x}}",
    "{%- set x -%}  y  {%- endset -%}[{{ x }}]", "{{ [1, 2]\n | join(\n',') }}", "line\n{{ 1 + 'x' }}", "\n\n{% set a = missing.b %}",
]

VARIABLES = {"s": "Grüße!", "l": [1, 2, "x"], "d": {"a": 1, "b": [True, None], "c": {"e": "é"}},
             "ds": [{"n": 2, "m": "x", "q": {"r": 1}}, {"n": 1, "m": "y"}, {"n": 2, "m": "a"}]}
