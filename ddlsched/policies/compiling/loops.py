"""A generator within ``any``, ``all``, ``sum``, ``min``, ``max`` or ``len`` as a loop of its own.

The ``rewriter`` is the :class:`~ddlsched.policies.compiling.rewriting.Rewriter` of the function around it.
"""

from __future__ import annotations

import ast
from typing import Any

from ddlsched.policies.compiling.syntax import TICKS, load_name

__all__ = ["loop_body", "loop_options"]

_BETTER = "if first__:\n    best__ = value__\n    first__ = False\nelif {}__(value__, best__):\n    best__ = value__"


def loop_options(rewriter: Any, node: ast.Call, name: str) -> tuple[ast.expr | None, ast.expr]:
    """Return the default and the start that a call gives, rewritten."""
    keywords = {keyword.arg: keyword.value for keyword in node.keywords}
    default = keywords.pop("default", None) if name in ("min", "max") else None
    start: ast.expr = keywords.pop("start", ast.Constant(0)) if name == "sum" else ast.Constant(0)
    extra = node.args[1:]
    if name == "sum" and extra:
        start, extra = extra[0], extra[1:]
    if keywords or extra:
        raise rewriter.refused(node, "this option is not compiled")
    return default, rewriter.visit(ast.copy_location(start, node))


def loop_body(
    rewriter: Any, node: ast.Call, name: str, generator: ast.GeneratorExp | ast.ListComp, default: ast.expr | None
) -> list[ast.stmt]:
    """Return the statements of the loop."""
    steps = {
        "any": "if value__:\n    return True",
        "all": "if not value__:\n    return False",
        "sum": "total__ = sum_step__(total__, value__)",
        "len": "total__ = add__(total__, 1)",
        "min": _BETTER.format("less"),
        "max": _BETTER.format("greater"),
    }
    value = ast.copy_location(ast.Assign([ast.Name("value__", ast.Store())], rewriter.visit(generator.elt)), node)
    body: list[ast.stmt] = [value, *ast.parse(steps[name]).body]
    for number, part in reversed(list(enumerate(generator.generators))):
        if part.is_async:
            raise rewriter.refused(node, "awaits")
        for condition in reversed(part.ifs):
            body = [ast.copy_location(ast.If(rewriter.visit(condition), body, []), node)]
        items = load_name("items__") if number == 0 else rewriter.visit(part.iter)
        loop = ast.For(rewriter.target(part.target), items, [rewriter.tick(node), *body], [])
        body = [ast.copy_location(loop, node)]
    before = {"len": "total__ = 0", "min": "first__ = True", "max": "first__ = True"}.get(name, "pass")
    after = {"any": "return False", "all": "return True", "sum": "return total__", "len": "return total__"}
    if name in ("min", "max"):
        return _best(before, body, default)
    return [*ast.parse(f"{TICKS} = 0\n{before}").body, *body, *ast.parse(after[name]).body]


def _best(before: str, body: list[ast.stmt], default: ast.expr | None) -> list[ast.stmt]:
    """Return the body of a search for the least or the largest; of nothing, it is the default or an error."""
    end = ast.parse("if first__:\n    raise ValueError\nreturn best__").body
    if default is not None:
        end[0] = ast.If(load_name("first__"), [ast.Return(load_name("default__"))], [])
    start = ast.parse(f"{TICKS} = 0\n{before}").body
    return [*start, *body, *end]
