"""A plug-in's method and all that it calls, rewritten so that compiled code computes exactly what Python would.

Every operation that could differ (whole numbers that overflow, comparisons of whole numbers with floats, divisions)
becomes a call of a function of :mod:`ddlsched.engine.native.arithmetic`; generators in ``any``, ``all``, ``sum``,
``min``, ``max`` and ``len`` become loops; text fields of the plug-in become constants; loops hear Ctrl-C.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from ddlsched.policies.compiling.rewriting import Rewriter
from ddlsched.policies.compiling.source import CannotCompileError, Fields, function_node
from ddlsched.policies.compiling.syntax import where_is

MOST_FUNCTIONS = 100


Constant: TypeAlias = tuple[str, Callable[[], Any], Any]


@dataclasses.dataclass(frozen=True)
class Function:
    """A rewritten function: its name in the program, its syntax tree, and the file that errors name."""

    name: str
    node: ast.FunctionDef
    file: str


@dataclasses.dataclass(frozen=True)
class Program:
    """A method with all that it calls, the called ones first.

    Attributes
    ----------
    functions
        The last is the method.
    reads
        Names of the attributes that the code may read of what it is given; ``now_s`` if an order's key uses the time.
    fields
        The plug-in's fields.
    changes_itself
        Whether the code sets fields of the plug-in or entries of arrays.
    constants
        What the code took from modules, classes and closures: its name, how to look it up, and what it was.
    sources
        The functions as Python has them, in no order.
    digest
        A hash of all that the code is.
    """

    functions: tuple[Function, ...]
    reads: frozenset[str]
    fields: Fields
    changes_itself: bool
    constants: tuple[Constant, ...]
    sources: tuple[types.FunctionType, ...]
    digest: str

    @property
    def first_line(self) -> str:
        """The file and the line where the method begins."""
        last = self.functions[-1]
        return where_is(last.file, last.node)


def build_program(plugin: Any, method: str) -> Program:
    """Return the program of a plug-in's method.

    Raises
    ------
    CannotCompileError
        With the file, the line, the construct and why it cannot be compiled.
    """
    if inspect.getattr_static(type(plugin), "__getattribute__") is not vars(object)["__getattribute__"]:
        raise CannotCompileError(type(plugin).__name__, "__getattribute__", "may answer anything")
    fields = Fields.of(plugin)
    builder = ProgramBuilder(plugin, fields)
    function = inspect.getattr_static(type(plugin), method, None)
    if method in fields.names:
        raise CannotCompileError(type(plugin).__name__, method, "is a field, no method")
    if method == "key" and isinstance(function, types.FunctionType):
        builder.clock = list(inspect.signature(function).parameters)[-1]
    builder.add(function)
    return Program(
        tuple(builder.functions),
        frozenset(builder.reads),
        fields,
        builder.changes_itself,
        tuple(builder.constants),
        tuple(builder.names),
        _digest(builder.functions, fields),
    )


def _digest(functions: Sequence[Function], fields: Fields) -> str:
    text = "\n".join(ast.unparse(function.node) for function in functions)
    return hashlib.sha256(f"{text}\n{fields.dtype.descr}".encode()).hexdigest()


class ProgramBuilder:
    """Collects the functions of a program."""

    def __init__(self, plugin: Any, fields: Fields) -> None:
        self.plugin, self.fields = plugin, fields
        self.functions: list[Function] = []
        self.reads: set[str] = set()
        self.asked_of_each: list[Any] = []
        self.changes_itself = False
        self.constants: list[Constant] = []
        self.clock: str | None = None  # the parameter that is the simulated time
        self.names: dict[Any, str] = {}
        """Of the functions that were rewritten, in the program."""
        self.under_way: list[Any] = []

    def add(self, function: Any) -> str:
        """Rewrite a function, unless that is done, and return its name in the program."""
        if function in self.names:
            return self.names[function]
        node = function_node(function)
        if function in self.under_way:
            raise CannotCompileError(where_is(function.__code__.co_filename, node), node.name, "calls itself")
        self.under_way.append(function)
        rewriter = Rewriter(self, function, node)
        name = self.keep(node.name, rewriter.rewrite(), function.__code__.co_filename)
        self.under_way.pop()
        self.names[function] = name
        return name

    def keep(self, name: str, node: ast.FunctionDef, file: str) -> str:
        """Add a rewritten function under a name of its own."""
        if len(self.functions) >= MOST_FUNCTIONS:
            raise CannotCompileError(where_is(file, node), name, f"calls more than {MOST_FUNCTIONS} functions")
        unique = f"{name}_{len(self.functions)}__"  # as no variable is called
        node.name = unique
        self.functions.append(Function(unique, ast.fix_missing_locations(node), file))
        return unique


_MOST = 256


def program_of(plugin: Any, method: str) -> Program:
    """Return the program of a plug-in's method, as :func:`~ddlsched.policies.compiling.program.build_program` would.

    Raises
    ------
    CannotCompileError
        With the file, the line, the construct and why it cannot be compiled.
    """
    for known in _known.get((type(plugin), method), []):
        if known.is_unchanged() and _same_form(known.program.fields, fields := Fields.of(plugin)):
            return dataclasses.replace(known.program, fields=fields)
    program = build_program(plugin, method)
    if sum(map(len, _known.values())) >= _MOST:
        _known.clear()
    others = [known for known in _known.get((type(plugin), method), []) if known.is_unchanged()]
    _known[type(plugin), method] = [*others, _Known(program, type(plugin))]
    return program


class _Known:
    """A program and all that it was made of."""

    def __init__(self, program: Program, plugin_class: type) -> None:
        self.program, self._class, self._bases = program, plugin_class, plugin_class.__mro__
        kinds = [
            kind for kind in (*plugin_class.__mro__, *inspect.getmro(type(plugin_class))) if kind not in (object, type)
        ]
        self._attributes = [(vars(kind), dict(vars(kind))) for kind in kinds]
        self._functions = [(function, _parts(function)) for function in program.sources]
        files = {function.__code__.co_filename for function in program.sources}
        self._files = [(file, _stamp(file)) for file in files]

    def is_unchanged(self) -> bool:
        """Return whether the class, the functions, the files and the constants are what they were."""
        return (
            self._class.__mro__ == self._bases
            and all(_same_values(was, now) for now, was in self._attributes)
            and all(_same_values(parts, _parts(function)) for function, parts in self._functions)
            and all(_is_still(look_up, value) for _, look_up, value in self.program.constants)
            and all(_stamp(file) == stamp for file, stamp in self._files)
        )


def _is_still(look_up: Callable[[], Any], value: Any) -> bool:
    try:
        return look_up() is value
    except (NameError, ValueError):  # it is deleted; its cell is empty
        return False


def _parts(function: types.FunctionType) -> dict[str, Any]:
    """Return what makes a function, beside what it looks up."""
    own = {name: getattr(function, name) for name in ("__code__", "__defaults__", "__closure__")}
    keywords = {f"{name}=": value for name, value in (function.__kwdefaults__ or {}).items()}
    return own | keywords | {f".{name}": value for name, value in vars(function).items()}


def _stamp(file: str) -> tuple[int, int] | None:
    try:
        stat = Path(file).stat()
    except (OSError, ValueError):
        return None
    return stat.st_mtime_ns, stat.st_size


def _same_values(was: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    return len(was) == len(now) and all(name in now and now[name] is value for name, value in was.items())


def _same_form(was: Fields, now: Fields) -> bool:
    """Return whether fields make the same program: numbers and arrays of the same types, the same constants."""
    same = (_is_same_constant(value, now.others.get(name)) for name, value in was.others.items())
    return _form(was) == _form(now) and all(same)


def _form(fields: Fields) -> tuple[Any, ...]:
    numbers = {name: type(value) for name, value in fields.numbers.items()}
    arrays = {name: (array.dtype, array.ndim) for name, array in fields.arrays.items()}
    return fields.changeable, numbers, arrays, fields.others.keys()


def _is_same_constant(value: Any, other: Any) -> bool:
    return value is other or (type(value) is type(other) is str and value == other)


_known: dict[tuple[type, str], list[_Known]] = {}
