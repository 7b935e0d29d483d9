"""What a class computes in compiled code is what it computes in Python, or it is not compiled, and says why."""

from __future__ import annotations

import ast
import importlib.util
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from numba import types

import ddlsched
from ddlsched.engine.compiled_forms import compile_method
from ddlsched.engine.native import compiler
from ddlsched.errors import PluginError
from ddlsched.policies.compiling.source import CannotCompileError
from ddlsched.policies.compiling.syntax import assigned
from ddlsched.testing import example_workload, python_form
from ddlsched.workload.dag import DataParallelIteration
from ddlsched.workload.job import Job, Workload

HEAD = """
from __future__ import annotations
import enum, functools, math
from dataclasses import dataclass, field
from typing import Any, ClassVar
import numpy as np
plugin = dataclass(frozen=True, kw_only=True)
"""
CLUSTER = ddlsched.Cluster(num_servers=4, gpus_per_server=3)
LONG = Workload(
    tuple(
        Job(
            job_id=f"b{number}",
            arrival_s=0.0,
            num_gpus=number % 5 + 1,
            iterations=3 + number % 2,
            iteration=DataParallelIteration(forward_s=1e6, backward_s=1e6 + number * 1e-9, message_bytes=1e8),
            gpu_memory_mb=3000.0,
        )
        for number in range(8)
    )
)
"""Jobs whose remaining service needs more than 53 bits."""


@pytest.fixture
def load(tmp_path: Path) -> Any:
    """Return what makes the module of a text in a file."""

    def make(code: str, name: str = "attack") -> Any:
        path = tmp_path / f"{name}.py"
        path.write_text(HEAD + textwrap.dedent(code))
        spec = importlib.util.spec_from_file_location(f"{name}_{tmp_path.name}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module

    return make


def key(body: str, before: str = "", fields: str = "") -> str:
    """Return the code of an order with a key."""
    lines = ["@plugin", "class P:", textwrap.indent(textwrap.dedent(fields), "    "), "    def key(self, job, now_s):"]
    return "\n".join([textwrap.dedent(before), *lines, textwrap.indent(textwrap.dedent(body), "        ")])


def outcome(workload: Workload, **plugins: Any) -> Any:
    try:
        return ddlsched.simulate(workload, CLUSTER, **plugins).finished.state.jobs.finish_ns.tolist()
    except PluginError as error:
        return str(error)


def assert_same_in_python(policy: Any, door: str = "order") -> None:
    for workload in (example_workload(1), LONG):
        assert outcome(workload, **{door: policy}) == outcome(workload, **{door: python_form(policy)})


REFUSED = {
    "a variable that only some iteration sets": (
        key("for i in range(job.num_gpus - 2):\n    last = i\nreturn last"),
        "last may be read before it is set",
    ),
    "a variable that only one branch sets": (
        key("if job.num_gpus > 3:\n    last = 1\nif job.num_gpus > 2:\n    return last\nreturn 2"),
        "last may be read before it is set",
    ),
    "a loop's variable after it": (
        key("for i in range(job.num_gpus - 3):\n    pass\nreturn i"),
        "i may be read before it is set",
    ),
    "tuples of whole numbers and of floats": (
        key("if job.num_gpus > 2:\n    return job.remaining_service_ns, 1\nreturn 0.5, 2"),
        "is a whole number here and a float there",
    ),
    "is of numbers": (key("x = job.service_ns\ny = job.service_ns\nreturn x is y"), "is of int64 and int64"),
    "a misspelt attribute": (key("return job.num_gpu"), "num_gpu: is no number of a job"),
    "in of whole numbers among floats": (key("return job.num_gpus in (job.service_ns + 1.0, 2.0)"), "in of int64"),
    "range of a float": (key("return sum(i for i in range(now_s))"), "range of float64"),
    "a variable set in a generator": (
        key("z = any((y := i) > 1 for i in range(3))\nreturn y"),
        "sets a variable within",
    ),
    "another self": (key("self = job\nreturn self.num_gpus", fields="num_gpus: int = 7"), "sets self"),
    "a number of numpy's": (key("return job.num_gpus * self.a", fields="a: Any = np.float32(0.1)"), "is a float32"),
    "a constant of numpy's": (key("return job.num_gpus * A", "A = np.int32(3)"), "is neither a number"),
    "the sum of an array": (
        key("return self.a.sum()", fields="a: Any = field(default_factory=lambda: np.full(9, 0.1), compare=False)"),
        "a method of",
    ),
    "a member of an enumeration as a number": (
        key("return self.mode", "class Mode(enum.Enum):\n    A = 0", "mode: Any = Mode.A"),
        "does more with a member",
    ),
    "a function in a field": (
        key(
            "return self.rule(job)",
            "def two(job, x=1):\n    return job.num_gpus\ndef one(job, x=1):\n    return -job.num_gpus",
            "rule: Any = one\nnum_gpus: int = 7",
        ),
        "calls what is no method",
    ),
    "a variable that a function sets": (
        key("return SIGN", "SIGN = 1\ndef flip():\n    global SIGN\n    SIGN = -SIGN"),
        "is set by a function",
    ),
    "a key with a parameter more": (
        "@plugin\nclass P:\n    def key(self, job, now_s, more=1):\n        return now_s",
        "Signature mismatch",
    ),
    "attributes that may be anything": (
        key("return self.a", fields="a: int = 1\ndef __getattribute__(self, name):\n    return 7"),
        "may answer anything",
    ),
    "a decorated helper": (
        key("return f(job.num_gpus)", "@functools.cache\ndef f(n):\n    return -n"),
        "cannot be compiled",
    ),
    "an option of a search": (key("return min((gpu for gpu in job.gpus), key=abs)"), "this option is not compiled"),
    "a loop with an else": (
        key("n = 0\nwhile n < job.num_gpus:\n    n += 1\nelse:\n    n = -n\nreturn n"),
        "has an else",
    ),
    "a helper that calls itself": (
        key("return f(job.num_gpus)", "def f(n):\n    return 1 if n <= 1 else n * f(n - 1)"),
        "calls itself",
    ),
    "a chain of comparisons": (key("return 1 < job.num_gpus + 1 < 5"), "with a calculation in the middle"),
    "a statement": (key("with self.lock:\n    return 1"), "With statements are not compiled"),
    "an entry that grows": (key("job.gpus[0] += 1\nreturn 1"), "changes an entry in place; write it out"),
    "a list of variables": (key("[a, b] = job.num_gpus, 2\nreturn a"), "cannot be assigned to"),
    "a literal of 65 bits": (key(f"return {2**64}"), "is no number of 64 bits"),
    "a function that is not called": (key("f = abs\nreturn f(1)"), "nor a function that is called"),
    "a function of a module": (key("return math.sqrt"), "is neither a number nor a text"),
    "a name of nothing": (key("return unheard_of"), "is not defined"),
    "a method as a number": (key("return self.key"), "is no field of numbers, texts or arrays"),
    "a product of matrices": (key("return job.num_gpus @ 2"), "this operator is not compiled"),
    "a calculation in a tuple": (key("return job.num_gpus + 1 in (1, 2)"), "looks for a calculation in a tuple"),
    "a slice": (key("return job.gpus[1:]"), "slices are not compiled"),
    "a dictionary": (key("return {1: 2}[job.num_gpus]"), "Dict is not compiled"),
    "a list of arguments": (key("return max(*job.gpus)"), "passes on a list of arguments"),
    "one of two functions": (key("return (abs if now_s else int)(2)"), "calls what is known only when it runs"),
    "a function of C": (key("return math.gamma(2.0)"), "calls a function that is not compiled"),
    "a field that is called": (key("return self.num_gpus(2)", fields="num_gpus: int = 7"), "calls what is no method"),
    "a named argument of a view's method": (key("return job.time(gpus=1)"), "names the arguments of a view's method"),
    "a default of lists": (key("return f(1)", "def f(n, of=[1]):\n    return n"), "the default of of is no constant"),
    "an argument too few": (key("return f()", "def f(n):\n    return n"), "missing a required argument: 'n'"),
    "a function of Python's": (key("return hash(job.num_gpus)"), "calls hash, which cannot be compiled"),
    "a search by a key": (key("return max(1, 2, key=abs)"), "calls max, which cannot be compiled"),
    "any number of arguments": (key("return f(1)", "def f(*n):\n    return 1"), "takes any number of arguments"),
    "a name of compiled code": (key("total__ = 1\nreturn total__"), "total__ is a name of compiled code"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", REFUSED)
def test_what_numba_computes_in_another_way_is_refused(name, load):
    code, why = REFUSED[name]
    policy = load(code).P()
    with pytest.raises(CannotCompileError, match=why):
        compile_method(policy, "key")


@pytest.mark.parametrize("most", [2**53, -(2**53)])
def test_a_literal_may_become_a_float_that_holds_it(most: int) -> None:
    beyond = most + (1 if most > 0 else -1)
    for literal, loses in ((most, False), (beyond, True), (3 * most, True)):
        assert compiler._loses(types.literal(literal), types.float64) is loses
        assert not compiler._loses(types.literal(literal), types.int64)


ARRAYS = """
a: Any = field(default_factory=lambda: np.arange(9) * 0.3, compare=False)
b: Any = field(default_factory=lambda: np.arange(12).reshape(3, 4) - 5, compare=False)
"""

SAME = {
    "arrays": key(
        "t = 0.5 + self.b[job.num_gpus % 3, -1] - self.b[2][job.num_gpus % 4]\n"
        "for x in self.a:\n    t = t + x * job.num_gpus\nreturn t * len(self.b)",
        fields=ARRAYS,
    ),
    "a division of numpy's numbers": key("return self.b[0, 0] / (job.num_gpus - 3)", fields=ARRAYS),
    "a product of numpy's numbers": key("return self.b[0, 0] * job.remaining_service_ns / 7", fields=ARRAYS),
    "a comparison of numpy's numbers": key("return 2 if self.a[6] < job.num_gpus else 1", fields=ARRAYS),
    "variables that are called as compiled functions are": key(
        "remainder = job.num_gpus % 3\nadd = remainder + rate(job)\nrate_0 = add\nreturn rate_0",
        "def rate(job):\n    return job.num_gpus * 2",
    ),
    "a default that has a global's name": key(
        "limit = job.num_gpus\nreturn min((i for i in range(job.num_gpus) if i > 100), default=limit)", "limit = 5"
    ),
    "the least and the most": key(
        "return min(i * 1.5 for i in range(job.num_gpus)), max((i for i in range(job.num_gpus) if i > 2), default=-1)"
    ),
    "generators in generators": key(
        "j = 5\nodd = sum(sum(j for j in range(i) if j % 2) for i in range(job.num_gpus) if i in (2, 3))\n"
        "return j + odd"
    ),
    "sums that begin with a number": key(
        "x = sum((i for i in job.gpus), start=2)\nreturn x + sum((1 for _ in job.gpus), 3)"
    ),
    "len within a generator": key("return sum(1 for i in range(job.num_gpus) if len(job.gpus) < i)"),
    "a member of an enumeration": key(
        "return job.num_gpus if self.mode is Mode.A and self.mode and self.mode != 0 else -job.num_gpus",
        "class Mode(enum.Enum):\n    A = 0\n    B = 1",
        "mode: Any = Mode.A",
    ),
    "a literal that becomes a float": key(
        "total = 0\nfor gpu in job.gpus:\n    total += gpu * 0.5\nreturn total + job.remaining_service_ns"
    ),
    "a literal or a float": key("x = 3 if job.num_gpus > 2 else 0.5\nreturn x * job.remaining_service_ns"),
    "floor of whole numbers": key("return math.floor(job.remaining_service_ns), math.ceil(job.service_ns)"),
    "is of views": key("other = job\nreturn -job.num_gpus if other is job else job.num_gpus"),
    "negative division": key("return -job.remaining_service_ns // 7, -job.remaining_service_ns % 7"),
    "an item behind the last": key("return job.gpus[len(job.gpus)]"),
    "minus 0": key("return 0 / -job.service_ns if job.num_gpus > 2 else 0.0"),
    "more than 64 bits": key("return job.remaining_service_ns * job.remaining_service_ns"),
    "no start yet": key("return job.start_s + 1.0"),
    "an error of one job": key("return sum(i for i in range(0, 5, job.num_gpus - 3))"),
    "no number": key("return NAN", "NAN = float('nan')"),
    "infinities": key("return (math.inf if job.num_gpus > 2 else -math.inf), True"),
}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning")
@pytest.mark.parametrize("name", SAME)
def test_the_same_numbers_or_error_as_in_python(name, load):
    module = load(SAME[name])
    module.P.compiled = True  # or the run says why not
    assert_same_in_python(module.P())


@pytest.mark.long
def test_links_of_the_network_have_no_transfers(load):
    code = """
    @plugin
    class P:
        def transfer_key(self, transfer, network):
            return network.links[0].num_transfers
    """
    assert_same_in_python(load(code).P(), "communication")


@pytest.mark.long
def test_a_class_constant_that_changes_in_the_run_is_an_error(load):
    code = """
    class P:
        count = 1
        def place(self, job, cluster):
            P.count += 1
            free = cluster.eligible_gpus(job)
            return free[: job.num_gpus] if len(free) >= job.num_gpus else None
    @plugin
    class Q:
        def key(self, job, now_s):
            return P.count * job.num_gpus
    """
    module = load(code)
    with pytest.raises(PluginError, match=r"count was changed during the run.*compiled = False"):
        ddlsched.simulate(example_workload(1), CLUSTER, placement=module.P(), order=module.Q())


@pytest.mark.long
def test_one_object_for_placement_and_order_is_asked_in_python(load, capsys):
    code = """
    class P:
        def __init__(self):
            self.count = 1
        def place(self, job, cluster):
            self.count += 1
            free = cluster.eligible_gpus(job)
            return free[: job.num_gpus] if len(free) >= job.num_gpus else None
        def key(self, job, now_s):
            return self.count * job.num_gpus
    """
    policy = load(code).P()
    ddlsched.simulate(example_workload(1), CLUSTER, placement=policy, order=policy)
    assert "is asked through two doors" in capsys.readouterr().err


@pytest.mark.long
def test_what_begin_answers_may_have_its_key_as_a_field(load):
    code = """
    class Begun:
        def __init__(self):
            self.key = lambda job, now_s: -job.num_gpus
        def key(self, job, now_s):
            return job.num_gpus
    @plugin
    class P:
        def begin(self, cluster, rng):
            return Begun()
    @plugin
    class Plain:
        def key(self, job, now_s):
            return -job.num_gpus
    """
    module = load(code)
    assert outcome(LONG, order=module.P()) == outcome(LONG, order=module.Plain())


def test_a_transfer_key_that_counts_is_asked_in_python(load):
    code = """
    class Counts:
        def __init__(self):
            self.count = 0
        def transfer_key(self, transfer, network):
            self.count += 1
            return self.count * 7 % 5
    """
    with pytest.raises(CannotCompileError, match=r"who is (asked )?first"):
        compile_method(load(code).Counts(), "transfer_key")


@pytest.mark.long
def test_what_a_field_is_and_where_a_server_is_looked_for_is_compiled(load):
    code = key(
        """
        sign = 1 if self.most is None else -1
        return sign * job.num_gpus if 0 in job.servers else 7 * sign
        """,
        fields="most: Any = None\ncompiled: ClassVar[bool] = True",
    )
    module = load(code)
    assert_same_in_python(module.P())
    assert_same_in_python(module.P(most=1))


@pytest.mark.long
def test_two_instances_of_a_class_have_their_own_parameters(load):
    module = load(key("return self.sign * job.num_gpus", fields="sign: Any = 1"))
    runs = [outcome(example_workload(1), order=module.P(sign=sign)) for sign in (1, -1, 1.0, 1)]
    assert runs[0] == runs[2] == runs[3] != runs[1]


def test_a_file_that_was_edited_after_it_was_imported_is_asked_in_python(load, tmp_path):
    module = load(key("return job.num_gpus"))
    (tmp_path / "attack.py").write_text(HEAD + key("return -job.num_gpus"))
    with pytest.raises(CannotCompileError, match="has changed since"):
        compile_method(module.P(), "key")


def test_variables_of_a_generator_are_its_own() -> None:
    assert assigned(ast.parse("a = [b for b in c]\nd = sum(e for e in f)")) == {"a", "d"}
