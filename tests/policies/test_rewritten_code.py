"""What compiled code is written as: each construct beside what stands in its place, and what is refused, and why."""

from __future__ import annotations

import ast
import importlib.util
import itertools
import re
import sys
import textwrap
from pathlib import Path

import pytest

from ddlsched.policies.compiling.program import Program, build_program
from ddlsched.policies.compiling.source import CannotCompileError

HEAD = """
import enum, math
from dataclasses import dataclass, field
from typing import Any
import numpy as np
SCALE, PAIR, NAME, HUGE, FIGURE = 3, (1, 2.5), "srsf", 2**63, np.float64(2)

class Kind(enum.Enum):
    BIG = "big"
    SMALL = "small"

class Rank(enum.IntEnum):
    FIRST = 1

class Odd(enum.Enum):
    ONE = "one"
    def __bool__(self):
        return False

def doubled(number, times=2, *, more=0):
    return number * times + more

def strange(number, times=HUGE):
    return number

def any_number(*numbers):
    return 0

def again(number):
    return again(number)

@dataclass
class P:
    sign: int = 1
    share: float = 0.5
    name: str = "up"
    limit: Any = None
    kind: Any = Kind.BIG
    odd: Any = Odd.ONE
    table: Any = field(default_factory=lambda: np.zeros((2, 3)))
    whole: Any = field(default_factory=lambda: np.zeros(2, np.int64))
    LIMIT = 7
    @property
    def turned(self):
        return -self.sign
    def helped(self, number, by=1):
        return number + by
    def key(self, job, now_s):
"""
_number = itertools.count()


def program(body: str, folder: Path) -> Program:
    """Return the program of a key of this body."""
    name = f"rewritten_{next(_number)}_{folder.name}"
    path = folder / f"{name}.py"
    path.write_text(HEAD + textwrap.indent(body, "        "))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
        return build_program(module.P(), "key")
    finally:
        del sys.modules[name]


EXPRESSIONS = {
    "job.num_gpus + 2 * now_s": "add__(job.num_gpus, multiply__(2, now_s))",
    "job.num_gpus / 3 % 4": "remainder__(divide__(job.num_gpus, 3), 4)",
    "job.num_gpus // 5 - now_s": "subtract__(floor_divide__(job.num_gpus, 5), now_s)",
    "-job.num_gpus": "negative__(job.num_gpus)",
    "job.num_gpus < 2 <= now_s": "less__(job.num_gpus, 2) and less_equal__(2, now_s)",
    "1 < 2": "True",
    "SCALE == 3": "True",
    "1 != 1.0": "False",
    "'a' in ('a', 'b')": "True",
    "'c' not in ('a',)": "True",
    "SCALE + PAIR[0]": "add__(3, (1, 2.5)[0])",
    "NAME == 'las'": "False",
    "self.kind is Kind.BIG": "True",
    "self.kind == Kind.SMALL": "False",
    "self.kind is not Kind.BIG": "False",
    "job.num_gpus + Rank.FIRST": "add__(job.num_gpus, 1)",
    "self.sign * self.share": "multiply__(self.sign, self.share)",
    "self.LIMIT": "7",
    "self.name": "'up'",
    "self.limit is None": "True",
    "self.table[0, 1] + self.whole[job.num_gpus]": (
        "add__(float64_array__(self.table__address, (self.table__0, self.table__1))[0, 1], "
        "int64_array__(self.whole__address, (self.whole__0,))[job.num_gpus])"
    ),
    "job.a and True and job.b": "job.a and job.b",
    "job.a or False or job.b": "job.a or job.b",
    "job.a or True or job.b": "job.a or True",
    "job.a and False": "job.a and False",
    "False or job.a": "job.a",
    "not job.a": "not job.a",
    "not None": "True",
    "not self.limit": "True",
    "1 if job.a else 2": "1 if job.a else 2",
    "1 if True else job.missing": "1",
    "job.missing if False else 2": "2",
    "job.a is None": "job.a is None",
    "None is job.a": "None is job.a",
    "job is job": "same_object__(job, job)",
    "job is not job": "not same_object__(job, job)",
    "job.a is True": "job.a is True",
    "job.a is not False": "job.a is not False",
    "None is None": "True",
    "True is not True": "False",
    "job.num_gpus in (1, 2)": "equal_wholes__(job.num_gpus, 1) or equal_wholes__(job.num_gpus, 2)",
    "job.num_gpus not in (1, 2)": "not (equal_wholes__(job.num_gpus, 1) or equal_wholes__(job.num_gpus, 2))",
    "job.num_gpus in (1,)": "equal_wholes__(job.num_gpus, 1)",
    "0 in job.servers": "contains__(job.servers, 0)",
    "0 not in job.servers": "not contains__(job.servers, 0)",
    "-3": "-3",
    "-2.5": "-2.5",
    "-SCALE": "-3",
    "+job.a": "positive__(job.a)",
    "not -1": "False",
    "(x := job.a) + x": "add__((x := job.a), x)",
    "min(1, job.a, 3)": "min_of_two__(min_of_two__(1, job.a), 3)",
    "max(job.a, 2)": "max_of_two__(job.a, 2)",
    "abs(job.a)": "absolute__(job.a)",
    "int(job.a)": "truncate__(job.a)",
    "float(job.a)": "to_float__(job.a)",
    "round(job.a)": "round_to_whole__(job.a)",
    "bool(job.a)": "truth__(job.a)",
    "len(job.gpus)": "len(job.gpus)",
    "math.sqrt(job.a)": "math_sqrt__(job.a)",
    "math.floor(2.5)": "math_floor__(2.5)",
    "math.pi": "3.141592653589793",
    "math.isnan(now_s)": "math_isnan__(now_s)",
    "job.time_s(now_s, 2)": "job.time_s(now_s, 2)",
}

STATEMENTS = {
    "texts are left out": (
        """
'says'
return job.num_gpus
""",
        """
def key_0__(self, job, now_s):
    return job.num_gpus
""",
    ),
    "comparison with a name in the middle": (
        """
x = job.num_gpus
return 1 < x < 3
""",
        """
def key_0__(self, job, now_s):
    x = job.num_gpus
    return less__(1, x) and less__(x, 3)
""",
    ),
    "set": (
        """
self.sign += 2
self.whole[0] = job.num_gpus
return self.sign
""",
        """
def key_0__(self, job, now_s):
    self.sign = add__(self.sign, 2)
    int64_array__(self.whole__address, (self.whole__0,))[0] = job.num_gpus
    return self.sign
""",
    ),
    "property and method": (
        """
return self.turned + self.helped(job.num_gpus) + self.helped(by=2, number=1)
""",
        """
def turned_0__(self):
    return negative__(self.sign)
def helped_1__(self, number, by):
    return add__(number, by)
def key_2__(self, job, now_s):
    return add__(add__(turned_0__(self), helped_1__(self, job.num_gpus, 1)), helped_1__(self, 1, 2))
""",
    ),
    "functions": (
        """
return doubled(job.num_gpus), doubled(1, 3, more=4), doubled(2)
""",
        """
def doubled_0__(number, times, more):
    return add__(multiply__(number, times), more)
def key_1__(self, job, now_s):
    return (doubled_0__(job.num_gpus, 2, 0), doubled_0__(1, 3, 4), doubled_0__(2, 2, 0))
""",
    ),
    "if known": (
        """
if self.name == 'up':
    return 1
else:
    return job.missing
""",
        """
def key_0__(self, job, now_s):
    return 1
""",
    ),
    "if else": (
        """
if now_s > 1:
    x = 1
elif now_s > 0:
    x = 2
else:
    x = 3
return x
""",
        """
def key_0__(self, job, now_s):
    if greater__(now_s, 1):
        x = 1
    elif greater__(now_s, 0):
        x = 2
    else:
        x = 3
    return x
""",
    ),
    "after return": (
        """
return 1
return job.missing
""",
        """
def key_0__(self, job, now_s):
    return 1
""",
    ),
    "while": (
        """
x: int = 3
y: int
while x > 0:
    x -= 1
    if x == 2:
        continue
    break
return x
""",
        """
def key_0__(self, job, now_s):
    ticks__ = 0
    x = 3
    pass
    while greater__(x, 0):
        ticks__ = hear_signals__(ticks__, 'f.py, line 3, key')
        x = subtract__(x, 1)
        if equal__(x, 2):
            continue
        break
    return x
""",
    ),
    "for": (
        """
total = 0
for place, gpu in enumerate(job.gpus):
    total += gpu
    pass
return total
""",
        """
def key_0__(self, job, now_s):
    ticks__ = 0
    total = 0
    for place, gpu in enumerate(job.gpus):
        ticks__ = hear_signals__(ticks__, 'f.py, line 2, key')
        total = add__(total, gpu)
        pass
    return total
""",
    ),
    "raise": (
        """
if now_s < 0:
    raise RuntimeError('no')
assert now_s > 1, 'why'
return 1
""",
        """
def key_0__(self, job, now_s):
    if less__(now_s, 0):
        raise ValueError
    if not greater__(now_s, 1):
        raise AssertionError
    return 1
""",
    ),
    "tuple": (
        """
(a, b), c = (1, 2), 3
return (a, b, c)[0]
""",
        """
def key_0__(self, job, now_s):
    (a, b), c = ((1, 2), 3)
    return (a, b, c)[0]
""",
    ),
    "any": (
        """
return any(gpu > 1 for gpu in job.gpus if gpu if gpu < 9)
""",
        """
def any_of_0__(items__):
    ticks__ = 0
    pass
    for gpu in items__:
        ticks__ = hear_signals__(ticks__, 'f.py, line 1, key')
        if gpu:
            if less__(gpu, 9):
                value__ = greater__(gpu, 1)
                if value__:
                    return True
    return False
def key_1__(self, job, now_s):
    return any_of_0__(job.gpus)
""",
    ),
    "all": (
        """
return all([gpu > now_s for gpu in job.gpus])
""",
        """
def all_of_0__(items__, now_s):
    ticks__ = 0
    pass
    for gpu in items__:
        ticks__ = hear_signals__(ticks__, 'f.py, line 1, key')
        value__ = greater__(gpu, now_s)
        if not value__:
            return False
    return True
def key_1__(self, job, now_s):
    return all_of_0__(job.gpus, now_s)
""",
    ),
    "sum": (
        """
limit = 3
return sum(gpu * limit for gpu in job.gpus), sum((1 for gpu in job.gpus), 5), sum((1 for g in job.gpus), start=now_s)
""",
        """
def sum_of_0__(items__, total__, limit):
    ticks__ = 0
    pass
    for gpu in items__:
        ticks__ = hear_signals__(ticks__, 'f.py, line 2, key')
        value__ = multiply__(gpu, limit)
        total__ = sum_step__(total__, value__)
    return total__
def sum_of_1__(items__, total__):
    ticks__ = 0
    pass
    for gpu in items__:
        ticks__ = hear_signals__(ticks__, 'f.py, line 2, key')
        value__ = 1
        total__ = sum_step__(total__, value__)
    return total__
def sum_of_2__(items__, total__):
    ticks__ = 0
    pass
    for g in items__:
        ticks__ = hear_signals__(ticks__, 'f.py, line 2, key')
        value__ = 1
        total__ = sum_step__(total__, value__)
    return total__
def key_3__(self, job, now_s):
    limit = 3
    return (sum_of_0__(job.gpus, 0, limit), sum_of_1__(job.gpus, 5), sum_of_2__(job.gpus, now_s))
""",
    ),
    "len": (
        """
return len([1 for gpu in job.gpus for server in gpu.servers if server])
""",
        """
def len_of_0__(items__):
    ticks__ = 0
    total__ = 0
    for gpu in items__:
        ticks__ = hear_signals__(ticks__, 'f.py, line 1, key')
        for server in gpu.servers:
            ticks__ = hear_signals__(ticks__, 'f.py, line 1, key')
            if server:
                value__ = 1
                total__ = add__(total__, 1)
    return total__
def key_1__(self, job, now_s):
    return len_of_0__(job.gpus)
""",
    ),
    "min": (
        """
return min(gpu for gpu in job.gpus), max((gpu for gpu in job.gpus), default=7)
""",
        """
def min_of_0__(items__):
    ticks__ = 0
    first__ = True
    for gpu in items__:
        ticks__ = hear_signals__(ticks__, 'f.py, line 1, key')
        value__ = gpu
        if first__:
            best__ = value__
            first__ = False
        elif less__(value__, best__):
            best__ = value__
    if first__:
        raise ValueError
    return best__
def max_of_1__(items__, default__):
    ticks__ = 0
    first__ = True
    for gpu in items__:
        ticks__ = hear_signals__(ticks__, 'f.py, line 1, key')
        value__ = gpu
        if first__:
            best__ = value__
            first__ = False
        elif greater__(value__, best__):
            best__ = value__
    if first__:
        return default__
    return best__
def key_2__(self, job, now_s):
    return (min_of_0__(job.gpus), max_of_1__(job.gpus, 7))
""",
    ),
    "range": (
        """
for i in range(1, job.a):
    pass
for a, b in zip(job.gpus, job.servers):
    pass
return 1
""",
        """
def key_0__(self, job, now_s):
    ticks__ = 0
    for i in range(whole_index__(1), whole_index__(job.a)):
        ticks__ = hear_signals__(ticks__, 'f.py, line 1, key')
        pass
    for a, b in zip(job.gpus, job.servers):
        ticks__ = hear_signals__(ticks__, 'f.py, line 3, key')
        pass
    return 1
""",
    ),
    "met by": (
        """
return any(x.a for x in now_s.met_by(job)), len(now_s.met_by(job))
""",
        """
def any_of_0__(items__):
    ticks__ = 0
    pass
    for x in items__:
        ticks__ = hear_signals__(ticks__, 'f.py, line 1, key')
        value__ = x.a
        if value__:
            return True
    return False
def key_1__(self, job, now_s):
    return (any_of_0__(now_s.met_by(job)), len(now_s.met_by(job)))
""",
    ),
    "compare names": (
        """
x = job
y = job
return x == y, x != y, x < y
""",
        """
def key_0__(self, job, now_s):
    x = job
    y = job
    return (equal__(x, y), not_equal__(x, y), less__(x, y))
""",
    ),
    "several in a line": (
        """
return max(sum(gpu for gpu in server) for server in job.servers)
""",
        """
def sum_of_0__(items__, total__):
    ticks__ = 0
    pass
    for gpu in items__:
        ticks__ = hear_signals__(ticks__, 'f.py, line 1, key')
        value__ = gpu
        total__ = sum_step__(total__, value__)
    return total__
def max_of_1__(items__):
    ticks__ = 0
    first__ = True
    for server in items__:
        ticks__ = hear_signals__(ticks__, 'f.py, line 1, key')
        value__ = sum_of_0__(server, 0)
        if first__:
            best__ = value__
            first__ = False
        elif greater__(value__, best__):
            best__ = value__
    if first__:
        raise ValueError
    return best__
def key_2__(self, job, now_s):
    return max_of_1__(job.servers)
""",
    ),
}

REFUSED = {
    "return lambda: 1": "lambda: 1: Lambda is not compiled",
    "with job:\n    pass": "with job:: With statements are not compiled",
    "return [1, 2]": "[1, 2]: List is not compiled",
    "return {}": "{}: Dict is not compiled",
    "return job.gpus[1:2]": "job.gpus[1:2]: slices are not compiled",
    "return HUGE": "HUGE: is neither a number nor a text nor a function that is called",
    "return FIGURE": "FIGURE: is neither a number nor a text nor a function that is called",
    "return unknown": "unknown: is not defined",
    "return job @ job": "job @ job: this operator is not compiled",
    "while now_s:\n    pass\nelse:\n    pass": "while now_s:: has an else",
    "for x in job.gpus:\n    pass\nelse:\n    pass": "for x in job.gpus:: has an else",
    "job.gpus[0] += 1\nreturn 1": "job.gpus[0] += 1: changes an entry in place; write it out",
    "job.a = 2\nreturn 1": "job.a: cannot be assigned to",
    "self.name = 'x'\nreturn 1": "self.name: sets a field that was no number when the run began",
    "[a, b] = 1, 2\nreturn 1": "[a, b]: cannot be assigned to",
    "return Kind": "Kind: is neither a number nor a text nor a function that is called",
    "return math.cos": "math.cos: is neither a number nor a text",
    "return math.cos(1)": "math.cos(1): calls a function that is not compiled",
    "return np.sum(1)": "np.sum(1): calls a function that is not compiled",
    "return self.missing": "self.missing: is no field of numbers, texts or arrays",
    "return self.odd": "self.odd: is a Odd",
    "return self.key": "self.key: is no field of numbers, texts or arrays",
    "return 1 < 'a'": "1 < 'a': '<' not supported between instances of 'int' and 'str'",
    "return 1 < job.a + 2 < 3": "1 < job.a + 2 < 3: is a chain of comparisons with a calculation in the middle",
    "return (job.a + job.time()) in (1, 2)": "job.a + job.time() in (1, 2): looks for a calculation in a tuple",
    "return any_number(1)": "def any_number(*numbers):: takes any number of arguments",
    "return again(1)": "again: calls itself",
    "return strange(1)": "strange(1): the default of times is no constant",
    "return doubled()": "doubled(): missing a required argument: 'number'",
    "return doubled(*job.gpus)": "doubled(*job.gpus): passes on a list of arguments",
    "return job.time_s(at=1)": "job.time_s(at=1): names the arguments of a view's method",
    "return self.sign()": "self.sign(): calls what is no method of the class",
    "return self.turned()": "self.turned(): calls what is no method of the class",
    "return print(1)": "print(1): calls print, which cannot be compiled",
    "return int(job.a, base=3)": "int(job.a, base=3): calls int, which cannot be compiled",
    "return abs(1, 2)": "abs(1, 2): calls abs, which cannot be compiled",
    "return enumerate(job.gpus, 1)": "enumerate(job.gpus, 1): calls enumerate, which cannot be compiled",
    "return min((g for g in job.gpus), key=1)": "min((g for g in job.gpus), key=1): this option is not compiled",
    "return sum((g for g in job.gpus), 1, 2)": "sum((g for g in job.gpus), 1, 2): this option is not compiled",
    "return any((h := 1) for g in job.gpus)": "any(((h := 1) for g in job.gpus)): sets a variable within",
    "return job.call()()": "job.call()(): calls what is known only when it runs",
    "f = job\nreturn f()": "f(): calls what is known only when it runs",
    "self = 1\nreturn 1": "def key(self, job, now_s):: sets self",
    "x__ = 1\nreturn 1": "def key(self, job, now_s):: x__ is a name of compiled code",
    "return b'x'": "b'x': is no number of 64 bits, truth value, text or None",
    "return Kind.BIG": "def key(self, job, now_s):: does more with a member of an enumeration than to compare it",
    "return Odd.ONE is Odd.ONE": "Odd.ONE: is neither a number nor a text",
    "return 2**70": "2 ** 70: this operator is not compiled",
    "return -9223372036854775808": "9223372036854775808: is no number of 64 bits, truth value, text or None",
    "return str(1)": "str(1): calls str, which cannot be compiled",
    "return math.floor(x=1)": "math.floor(x=1): calls a function that is not compiled",
    "global SCALE\nSCALE = 4\nreturn SCALE": "global SCALE: Global statements are not compiled",
    "return sorted(job.gpus)": "sorted(job.gpus): calls sorted, which cannot be compiled",
    "x = yield 1\nreturn x": "P.key: yields or awaits",
    "return self.helped(1, 2, 3)": "self.helped(1, 2, 3): too many positional arguments",
    "return min((g for g in job.gpus), default=job.b, start=1)": (
        "min((g for g in job.gpus), default=job.b, start=1): this option is not compiled"
    ),
    "del job\nreturn 1": "del job: Delete statements are not compiled",
    "return Kind.BIG.name": "def key(self, job, now_s):: does more with a member of an enumeration than to compare it",
    "return self.kind": "def key(self, job, now_s):: does more with a member of an enumeration than to compare it",
}


@pytest.mark.parametrize("source", EXPRESSIONS)
def test_what_stands_in_the_place_of_an_expression(source: str, tmp_path: Path) -> None:
    (key,) = program(f"return {source}", tmp_path).functions
    (returned,) = key.node.body
    assert isinstance(returned, ast.Return)
    assert returned.value is not None
    assert ast.unparse(returned.value) == EXPRESSIONS[source]


@pytest.mark.parametrize("name", STATEMENTS)
def test_what_stands_in_the_place_of_statements(name: str, tmp_path: Path) -> None:
    """Lines count from that of ``def key``."""
    source, expected = STATEMENTS[name]
    found = "\n".join(ast.unparse(function.node) for function in program(source.strip("\n"), tmp_path).functions)
    first = HEAD.count("\n")
    named = re.sub(r"'\w+\.py, line (\d+)", lambda place: f"'f.py, line {int(place[1]) - first}", found)
    assert named == expected.strip("\n")


@pytest.mark.parametrize("source", REFUSED)
def test_what_is_not_compiled_says_why(source: str, tmp_path: Path) -> None:
    with pytest.raises(CannotCompileError) as refused:
        program(source, tmp_path)
    assert str(refused.value).partition(": ")[2] == REFUSED[source]


@pytest.mark.parametrize(
    ("source", "reads", "changes"),
    [
        ("return job.num_gpus + now_s", {"num_gpus", "now_s"}, False),
        ("return self.helped(1)", set(), False),
        ("return sum(now_s for gpu in job.gpus)", {"gpus", "now_s"}, False),
        ("self.sign = 2\nreturn 1", set(), True),
        ("self.whole[0] = 2\nreturn 1", set(), True),
        ("return 1 if job is now_s else 2", {"which one", "now_s"}, False),
        ("return 1 if job.a is None else 2", {"a"}, False),
        ("return any(each.b for each in job.met_by(1))", {"b", "met_by"}, False),
        ("return all([each.b for each in job.met_by(1)])", {"b", "met_by"}, False),
        ("return sum(each.b for each in job.met_by(1))", {"b", "met_by", "every met_by"}, False),
        ("return len(job.met_by(1))", {"met_by", "every met_by"}, False),
    ],
)
def test_a_program_says_what_it_reads_and_whether_it_changes_itself(
    source: str, reads: set[str], changes: bool, tmp_path: Path
) -> None:
    found = program(source, tmp_path)
    assert (found.reads, found.changes_itself) == (reads, changes)


def test_a_program_looks_up_again_what_it_took(tmp_path: Path) -> None:
    found = program("return SCALE + self.LIMIT + doubled(1) + math.pi", tmp_path)
    assert [(name, look_up() is value) for name, look_up, value in found.constants] == [
        (name, True) for name in ("SCALE", "LIMIT", "doubled", "math", "pi")
    ]
