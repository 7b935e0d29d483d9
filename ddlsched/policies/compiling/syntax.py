"""Small pieces of syntax trees that rewritten code is made of."""

from __future__ import annotations

import ast
import enum
from typing import Any

from ddlsched.policies.compiling.source import short_path

TICKS = "ticks__"
"""The variable that counts turns of loops."""

AS_THEY_ARE = ("len", "range", "enumerate", "zip")
"""What compiled code calls under Python's own name."""

_MEMBER = "\0"


def where_is(file: str, node: ast.AST) -> str:
    """Return the file and line of a part."""
    return f"{short_path(file)}, line {getattr(node, 'lineno', '?')}"


def assigned(node: ast.AST) -> set[str]:
    """Return the variables that code sets; those of a generator are its own."""
    if isinstance(node, ast.GeneratorExp | ast.ListComp):
        return set()
    own = {node.id} if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else set()
    return own.union(*map(assigned, ast.iter_child_nodes(node)))


def constant_of(value: Any, at: ast.AST) -> ast.expr | None:
    """Return a value as a constant of the code, or None if it is none; numpy's numbers compute in their own way."""
    if isinstance(value, enum.Enum) and isinstance(value, int | float | str):
        value = value.value
    elif isinstance(value, enum.Enum):
        return member_of(value, at)
    if value is None or type(value) in (bool, float, str):
        return ast.copy_location(ast.Constant(value), at)
    if type(value) is int and -(2**63) <= value < 2**63:
        return ast.copy_location(ast.Constant(int(value)), at)
    if isinstance(value, tuple):
        parts = [constant_of(part, at) for part in value]
        if all(part is not None for part in parts):
            return ast.copy_location(ast.Tuple(parts, ast.Load()), at)  # type: ignore[arg-type]
    return None


def member_of(member: enum.Enum, at: ast.AST) -> ast.expr | None:
    """Return a text that stands for a member of an enumeration: true, and equal to nothing but itself."""
    kind = type(member)
    if kind.__eq__ is not object.__eq__ or any({"__bool__", "__len__"} & vars(base).keys() for base in kind.__mro__):
        return None
    return ast.copy_location(ast.Constant(f"{_MEMBER}{kind.__module__}.{kind.__qualname__}.{member.name}"), at)


def is_member(node: ast.AST) -> bool:
    """Return whether a part stands for a member of an enumeration."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith(_MEMBER)


def load_name(name: str) -> ast.Name:
    """Return the use of a name."""
    return ast.Name(name, ast.Load())


def call_of(name: str, node: ast.AST, *arguments: ast.expr) -> ast.expr:
    """Return the call of a function of compiled code in place of a part of the source."""
    called = name if name.endswith("__") or name in AS_THEY_ARE else f"{name}__"
    call = ast.Call(ast.Name(called, ast.Load()), list(arguments), [])
    for part in (call, call.func):
        ast.copy_location(part, node)
    return call


def is_text(statement: ast.stmt) -> bool:
    """Return whether a statement is a text, such as a docstring."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def is_number(value: object) -> bool:
    """Return whether a value is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_known(node: ast.expr) -> bool:
    """Return whether an expression is a constant, or a tuple of such."""
    if isinstance(node, ast.Tuple):
        return all(is_known(part) for part in node.elts)
    return isinstance(node, ast.Constant)


def parse_statement(text: str, at: ast.AST) -> ast.stmt:
    """Return a statement at the place of another part."""
    statement = ast.parse(text).body[0]
    for node in ast.walk(statement):
        ast.copy_location(node, at)
    return statement


def function_definition(at: ast.AST, parameters: list[str], body: list[ast.stmt]) -> ast.FunctionDef:
    """Return a function of these parameters and this body."""
    arguments = ast.arguments([], [ast.arg(name) for name in parameters], None, [], [], None, [])
    definition = ast.FunctionDef("", arguments, body, [], None, None)
    if hasattr(definition, "type_params"):
        definition.type_params = []
    ast.copy_location(definition, at)
    for node in ast.walk(definition):
        if isinstance(node, ast.stmt | ast.expr | ast.arg) and not hasattr(node, "lineno"):
            ast.copy_location(node, at)
    return definition
