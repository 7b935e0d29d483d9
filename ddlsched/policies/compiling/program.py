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
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from ddlsched.policies.compiling.fields import Fields
from ddlsched.policies.compiling.rewriting import Rewriter
from ddlsched.policies.compiling.source import CannotCompileError, function_node
from ddlsched.policies.compiling.syntax import where_is

__all__ = ["Constant", "Function", "Program", "build_program"]

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
        builder.sources,
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
        self.changes_itself = False
        self.constants: list[Constant] = []
        self.clock: str | None = None  # the parameter that is the simulated time
        self._names: dict[Any, str] = {}
        self.under_way: list[Any] = []

    @property
    def sources(self) -> tuple[types.FunctionType, ...]:
        """The functions that were rewritten."""
        return tuple(self._names)

    def add(self, function: Any) -> str:
        """Rewrite a function, unless that is done, and return its name in the program."""
        if function in self._names:
            return self._names[function]
        node = function_node(function)
        if function in self.under_way:
            raise CannotCompileError(where_is(function.__code__.co_filename, node), node.name, "calls itself")
        self.under_way.append(function)
        rewriter = Rewriter(self, function, node)
        name = self.keep(node.name, rewriter.rewrite(), function.__code__.co_filename)
        self.under_way.pop()
        self._names[function] = name
        return name

    def keep(self, name: str, node: ast.FunctionDef, file: str) -> str:
        """Add a rewritten function under a name of its own."""
        if len(self.functions) >= MOST_FUNCTIONS:
            raise CannotCompileError(where_is(file, node), name, f"calls more than {MOST_FUNCTIONS} functions")
        unique = f"{name}_{len(self.functions)}__"  # as no variable is called
        node.name = unique
        self.functions.append(Function(unique, ast.fix_missing_locations(node), file))
        return unique
