"""Reads tables of test cases from Go sources: composite literals, local names and chains of calls become plain values.

Nothing is run: a call becomes a :class:`Made`, of which the reader of a project knows what it stands for.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tree_sitter_go
from tree_sitter import Language, Node, Parser

_PARSER = Parser(Language(tree_sitter_go.language()))
_SECONDS = {"Nanosecond": 1e-9, "Millisecond": 1e-3, "Second": 1.0, "Minute": 60.0, "Hour": 3600.0}
_DECLARATIONS = ("short_var_declaration", "var_spec", "const_spec")
_ARITHMETIC = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a // b if isinstance(a, int) and isinstance(b, int) else a / b,
    "<<": lambda a, b: a << b,
}


class Name(str):
    """A name that the source does not say the value of: ``corev1.ResourceCPU`` is ``ResourceCPU``."""

    __slots__ = ()


@dataclass(frozen=True)
class Made:
    """What a call returns, and the methods that were called on it, in order."""

    function: str
    args: tuple[Any, ...]
    steps: tuple[tuple[str, tuple[Any, ...]], ...] = ()

    def __hash__(self) -> int:
        return id(self)

    def all(self, method: str) -> list[tuple[Any, ...]]:
        """Return the arguments of each call of a method."""
        return [args for name, args in self.steps if name == method]

    def last(self, method: str, default: Any = None) -> Any:
        """Return the first argument of the last call of a method."""
        calls = self.all(method)
        return calls[-1][0] if calls and calls[-1] else default


def calls_of(made: Any) -> set[str]:
    """Return the names of all calls by which something is made."""
    if isinstance(made, Made):
        return {made.function, *(name for name, _ in made.steps)}.union(*map(calls_of, (made.args, made.steps)))
    values = made.values() if isinstance(made, dict) else made if isinstance(made, list | tuple) else ()
    return set[str]().union(*map(calls_of, values))


def cases_of(path: Path, function: str, **constants: int) -> list[tuple[str, dict[str, Any]]]:
    """Return the cases of a test function, by name: those of its largest literal of a map or slice.

    ``constants`` are those of other packages. What a local name stands for, ``case["_local"]`` returns.
    """
    found, scope = _scope(path, function, **constants)
    literals = [node for node in _walk(found) if node.type == "composite_literal"]
    tables = [node for node in literals if _field(node, "type").startswith(("map[string]", "[]"))]
    value = scope.value(max(tables, key=lambda node: node.end_byte - node.start_byte))
    numbered = value.items() if isinstance(value, dict) else ((f"case {n}", case) for n, case in enumerate(value))
    local = {"_local": scope.value_of}
    return [(str(case.get("name", case.get("Name", name))), case | local) for name, case in numbered]


@functools.cache
def _scope(path: Path, function: str, **constants: int) -> tuple[Node, _Scope]:
    """Return a function, and what names stand for in it."""
    root = _parsed(path)
    declared = ("function_declaration", "method_declaration")
    found = next(node for node in root.children if node.type in declared and _field(node, "name") == function)
    return found, _Scope(_declared(root, deep=False) | _declared(found, deep=True), constants)


@functools.cache
def _parsed(path: Path) -> Node:
    source = re.sub(rb"\bnew\(", b"pointer(", path.read_bytes())  # of a value, which the grammar does not know yet
    return _PARSER.parse(source).root_node


def _walk(node: Node) -> Iterator[Node]:
    yield node
    for child in node.children:
        yield from _walk(child)


def _text(node: Node) -> str:
    return (node.text or b"").decode()


def _field(node: Node, name: str) -> str:
    found = node.child_by_field_name(name)
    return _text(found) if found is not None else ""


def _declared(node: Node, *, deep: bool) -> dict[str, Node]:
    """Return what names are given, by the expression; of a name given twice the first."""
    found: dict[str, Node] = {}
    below = (
        _walk(node) if deep else (each for child in node.children if "func" not in child.type for each in _walk(child))
    )
    for each in below:
        if each.type in _DECLARATIONS:
            left = each.child_by_field_name("left") or each.child_by_field_name("name")
            right = each.child_by_field_name("right") or each.child_by_field_name("value")
            if left is not None and right is not None:
                names = left.named_children or [left]
                for name, value in zip(names, right.named_children, strict=False):
                    found.setdefault(_text(name), value)
    return found


class _Scope:
    """What names stand for within a function."""

    def __init__(self, declared: dict[str, Node], constants: dict[str, int]) -> None:
        self._declared, self._constants = declared, _SECONDS | constants
        self._known: dict[str, Any] = {"true": True, "false": False, "nil": None}

    def value(self, node: Node) -> Any:
        """Return what an expression says."""
        read = getattr(self, f"_{node.type}", None)
        return read(node) if read is not None else Name(_text(node))

    def _interpreted_string_literal(self, node: Node) -> str:
        return str(ast.literal_eval(_text(node)))

    def _raw_string_literal(self, node: Node) -> str:
        return _text(node).strip("`")

    def _int_literal(self, node: Node) -> int:
        return int(_text(node).replace("_", ""), 0)

    def _float_literal(self, node: Node) -> float:
        return float(_text(node))

    def _parenthesized_expression(self, node: Node) -> Any:
        return self.value(node.named_children[0])

    def _unary_expression(self, node: Node) -> Any:
        value = self.value(node.named_children[0])
        return -value if _field(node, "operator") == "-" else value

    def _binary_expression(self, node: Node) -> Any:
        left, right = (self.value(child) for child in node.named_children)
        try:
            return _ARITHMETIC[_field(node, "operator")](left, right)
        except (KeyError, TypeError):
            return Name(_text(node))

    def _identifier(self, node: Node) -> Any:
        return self.value_of(_text(node))

    _true = _false = _nil = _identifier

    def value_of(self, name: str) -> Any:
        """Return what a name stands for; itself if the source does not say."""
        if name not in self._known:
            self._known[name] = Name(name)  # one that refers to itself
            if name in self._declared:
                self._known[name] = self.value(self._declared[name])
        return self._known[name]

    def _selector_expression(self, node: Node) -> Any:
        name = _field(node, "field")
        operand = node.child_by_field_name("operand")
        if operand is not None and (operand.type == "call_expression" or _text(operand) in self._declared):
            value = self.value(operand)
            return value.get(name) if isinstance(value, dict) else value
        return self._constants.get(name, Name(name))

    def _call_expression(self, node: Node) -> Any:
        function, arguments = node.child_by_field_name("function"), node.child_by_field_name("arguments")
        given = arguments.named_children if arguments is not None else []
        args = tuple(self.value(child) for child in given if child.type != "comment")
        if function is not None and function.type == "func_literal":
            return self._returned(function)
        if function is None or function.type != "selector_expression":
            name = _text(function) if function is not None else ""
            return (
                args[0]
                if len(args) == 1 and name.startswith(("int", "float", "string", "pointer"))
                else Made(name, args)
            )
        method, operand = _field(function, "field"), function.child_by_field_name("operand")
        if operand is None or (operand.type == "identifier" and _text(operand) not in self._declared):
            if _text(operand) == "time" and method in ("Now", "Unix", "Date"):
                return 0.0
            return Made(method, args)
        return _called(self.value(operand), method, args)

    def _returned(self, function: Node) -> Any:
        """Return what a function returns that is called where it is written."""
        last = [node for node in _walk(function) if node.type == "return_statement"][-1]
        scope = _Scope(self._declared | _declared(function, deep=True), self._constants)
        return scope.value(last.named_children[0].named_children[0])

    def _composite_literal(self, node: Node) -> Any:
        kind, body = _field(node, "type"), node.child_by_field_name("body")
        return self._literal(body, kind) if body is not None else {}

    def _literal_value(self, node: Node) -> Any:
        return self._literal(node, "")

    def _literal(self, body: Node, kind: str) -> Any:
        children = [child for child in body.named_children if child.type != "comment"]
        if not any(child.type == "keyed_element" for child in children):
            listed = [self.value(child.named_children[0]) for child in children]
            return listed if listed or kind.startswith("[]") else {}
        pairs = {}
        for child in children:
            key, value = (part.named_children[0] for part in child.named_children if part.type != "comment")
            is_field = key.type == "identifier" and not kind.startswith("map")
            pairs[_text(key) if is_field else _hashable(self.value(key))] = self.value(value)
        return pairs


def _hashable(value: Any) -> Any:
    return tuple(sorted(value.items())) if isinstance(value, dict) else value


def _called(value: Any, method: str, args: tuple[Any, ...]) -> Any:
    """Return what a method returns: times are added, made things note it."""
    if isinstance(value, int | float) and method == "Add":
        return value + args[0]
    if isinstance(value, Made):
        return replace(value, steps=(*value.steps, (method, args)))
    return value
