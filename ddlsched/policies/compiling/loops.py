"""A generator within ``any``, ``all``, ``sum``, ``min``, ``max`` or ``len`` as a loop of its own.

The ``rewriter`` is the :class:`~ddlsched.policies.compiling.rewriting.Rewriter` of the function around it.
"""

from __future__ import annotations

import ast
from typing import Any

from ddlsched.policies.compiling.syntax import TICKS, assigned, call_of, function_definition, load_name

__all__ = ["rewritten_loop"]

_BETTER = "if first__:\n    best__ = value__\n    first__ = False\nelif {}__(value__, best__):\n    best__ = value__"


def rewritten_loop(rewriter: Any, node: ast.Call, name: str, generator: ast.GeneratorExp | ast.ListComp) -> ast.expr:
    """Make a function of its own of a generator in a call, and return its call."""
    default, start = _loop_options(rewriter, node, name)
    if any(isinstance(n, ast.NamedExpr) for n in ast.walk(generator)):
        raise rewriter.refused(node, "sets a variable within")
    inner = {name for part in generator.generators for name in assigned(part.target)}
    first_items = generator.generators[0].iter  # worked out outside
    conditions = [condition for part in generator.generators for condition in part.ifs]
    used = [
        generator.elt,
        *conditions,
        *(part.iter for part in generator.generators if part.iter is not first_items),
    ]
    names = {n.id for part in used for n in ast.walk(part) if isinstance(n, ast.Name)}
    free = sorted((names & rewriter.locals) - inner)
    outer_locals, rewriter.locals = rewriter.locals, {*free, *inner}
    try:
        body = _loop_body(rewriter, node, name, generator, default)
    finally:
        rewriter.locals = outer_locals
    first = ast.copy_location(rewriter.visit(first_items), node)
    options = [start] if name == "sum" else [] if default is None else [rewriter.visit(default)]
    parameters = ["items__", *(["total__" if name == "sum" else "default__"] if options else []), *free]
    definition = function_definition(node, parameters, body)
    function = rewriter.builder.keep(f"{name}_of", definition, rewriter.file)
    _note_free(rewriter, free)
    return call_of(function, node, first, *options, *(ast.copy_location(load_name(n), node) for n in free))


def _note_free(rewriter: Any, free: list[str]) -> None:
    """Count a read of the last argument that stands only within a generator."""
    for name in free:
        rewriter.visit_Name(load_name(name))


def _loop_options(rewriter: Any, node: ast.Call, name: str) -> tuple[ast.expr | None, ast.expr]:
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


def _loop_body(
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
