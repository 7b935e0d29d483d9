"""Small pieces of syntax trees that rewritten code is made of."""

from __future__ import annotations

import ast
import builtins
import enum
import inspect
import math
import types
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
    definition = parse_statement(f"def made__({', '.join(parameters)}): ...", at)
    assert isinstance(definition, ast.FunctionDef)
    definition.body = body
    return definition


_BETTER = "if first__:\n    best__ = value__\n    first__ = False\nelif {}__(value__, best__):\n    best__ = value__"
_BEST = "if first__:\n    raise ValueError\nreturn best__"
_LOOPS = {
    "any": ("pass", "if value__:\n    return True", "return False"),
    "all": ("pass", "if not value__:\n    return False", "return True"),
    "sum": ("pass", "total__ = sum_step__(total__, value__)", "return total__"),
    "len": ("total__ = 0", "total__ = add__(total__, 1)", "return total__"),
    "min": ("first__ = True", _BETTER.format("less"), _BEST),
    "max": ("first__ = True", _BETTER.format("greater"), _BEST),
}
"""What stands before, in and after the loop that a generator in a call becomes."""


def rewritten_loop(rewriter: Any, node: ast.Call, name: str, generator: ast.GeneratorExp | ast.ListComp) -> ast.expr:
    """Make a function of its own of a generator in a call, and return its call."""
    default, start = _loop_options(rewriter, node, name)
    if any(isinstance(n, ast.NamedExpr) for n in ast.walk(generator)):
        raise rewriter.refused(node, "sets a variable within")
    inner = {name for part in generator.generators for name in assigned(part.target)}
    first_items = generator.generators[0].iter  # worked out outside
    conditions = [condition for part in generator.generators for condition in part.ifs]
    used = [generator.elt, *conditions, *(part.iter for part in generator.generators if part.iter is not first_items)]
    names = {n.id for part in used for n in ast.walk(part) if isinstance(n, ast.Name)}
    free = sorted((names & rewriter.locals) - inner)
    outer_locals, rewriter.locals = rewriter.locals, {*free, *inner}
    try:
        body = _loop_body(rewriter, node, name, generator, default)
    finally:
        rewriter.locals = outer_locals
    if name in ("any", "all"):  # however many of them are alike
        rewriter.builder.asked_of_each.append(first_items)
    first = ast.copy_location(rewriter.visit(first_items), node)
    options = [start] if name == "sum" else [] if default is None else [rewriter.visit(default)]
    parameters = ["items__", *(["total__" if name == "sum" else "default__"] if options else []), *free]
    definition = function_definition(node, parameters, body)
    function = rewriter.builder.keep(f"{name}_of", definition, rewriter.file)
    for free_name in free:  # which counts a read of the last argument that stands only within the generator
        rewriter.visit_Name(load_name(free_name))
    return call_of(function, node, first, *options, *(ast.copy_location(load_name(n), node) for n in free))


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
    before, step, after = _LOOPS[name]
    value = ast.copy_location(ast.Assign([ast.Name("value__", ast.Store())], rewriter.visit(generator.elt)), node)
    body: list[ast.stmt] = [value, *ast.parse(step).body]
    for number, part in reversed(list(enumerate(generator.generators))):
        if part.is_async:
            raise rewriter.refused(node, "awaits")
        for condition in reversed(part.ifs):
            body = [ast.copy_location(ast.If(rewriter.visit(condition), body, []), node)]
        items = load_name("items__") if number == 0 else rewriter.visit(part.iter)
        loop = ast.For(rewriter.target(part.target), items, [rewriter.tick(node), *body], [])
        body = [ast.copy_location(loop, node)]
    if default is not None:
        after = after.replace("raise ValueError", "return default__")
    return [*ast.parse(f"{TICKS} = 0\n{before}").body, *body, *ast.parse(after).body]


_BUILTINS = {"abs": "absolute", "int": "truncate", "float": "to_float", "round": "round_to_whole", "bool": "truth"}
_MATH = ("sqrt", "floor", "ceil", "fabs", "log", "exp", "isnan", "isinf")


def rewritten_call(rewriter: Any, node: ast.Call) -> ast.expr:
    """Return a call of what compiled code has in place of what is called."""
    if any(isinstance(argument, ast.Starred) for argument in node.args):
        raise rewriter.refused(node, "passes on a list of arguments")
    if isinstance(node.func, ast.Attribute):
        return _method_call(rewriter, node, node.func)
    if not isinstance(node.func, ast.Name) or node.func.id in rewriter.locals:
        raise rewriter.refused(node, "calls what is known only when it runs")
    function = rewriter.global_value(node.func)
    if isinstance(function, types.FunctionType):
        return call_of(rewriter.builder.add(function), node, *_arguments(rewriter, node, function))
    return _builtin_call(rewriter, node, function)


def _method_call(rewriter: Any, node: ast.Call, attribute: ast.Attribute) -> ast.expr:
    if rewriter.is_self(attribute.value):
        function = inspect.getattr_static(type(rewriter.builder.plugin), attribute.attr, None)
        if not isinstance(function, types.FunctionType) or attribute.attr in rewriter.builder.fields.names:
            raise rewriter.refused(node, "calls what is no method of the class")
        arguments = _arguments(rewriter, node, function, attribute.value)
        return call_of(rewriter.builder.add(function), node, *arguments)
    if isinstance(attribute.value, ast.Name) and attribute.value.id not in rewriter.locals:
        owner = rewriter.global_value(attribute.value)
        if owner is math and attribute.attr in _MATH and not node.keywords:
            return call_of(f"math_{attribute.attr}", node, *map(rewriter.visit, node.args))
        function = getattr(owner, attribute.attr, None)
        if isinstance(owner, types.ModuleType) and isinstance(function, types.FunctionType):
            rewriter.builder.constants.append((attribute.attr, lambda: getattr(owner, attribute.attr, None), function))
            return call_of(rewriter.builder.add(function), node, *_arguments(rewriter, node, function))
        raise rewriter.refused(node, "calls a function that is not compiled")
    if node.keywords:
        raise rewriter.refused(node, "names the arguments of a view's method")
    rewriter.builder.reads.add(attribute.attr)
    if attribute.attr == "met_by" and node not in rewriter.builder.asked_of_each:
        rewriter.builder.reads.add("every met_by")
    view = ast.copy_location(ast.Attribute(rewriter.visit(attribute.value), attribute.attr, ast.Load()), node)
    return ast.copy_location(ast.Call(view, [rewriter.visit(argument) for argument in node.args], []), node)


def _arguments(rewriter: Any, node: ast.Call, function: Any, *first: ast.expr) -> list[ast.expr]:
    """Return the arguments of a call in the order of the function's parameters, defaults filled in."""
    given: dict[str, Any] = {keyword.arg or "**": keyword.value for keyword in node.keywords}
    try:
        bound = inspect.signature(function).bind(*first, *node.args, **given)
    except TypeError as error:
        raise rewriter.refused(node, str(error)) from None
    result: list[ast.expr] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name in bound.arguments:
            value = bound.arguments[name]
            result.append(value if value in first else rewriter.visit(value))
            continue
        constant = constant_of(parameter.default, node)
        if constant is None:
            raise rewriter.refused(node, f"the default of {name} is no constant")
        result.append(constant)
    return result


def _builtin_call(rewriter: Any, node: ast.Call, function: Any) -> ast.expr:
    name = getattr(function, "__name__", repr(function))
    known = function is getattr(builtins, name, None)
    if known and name in _LOOPS and node.args and isinstance(node.args[0], ast.GeneratorExp | ast.ListComp):
        return rewritten_loop(rewriter, node, name, node.args[0])
    if node.keywords or not known:
        raise rewriter.refused(node, f"calls {name}, which cannot be compiled")
    arguments = [rewriter.visit(argument) for argument in node.args]
    if name in ("min", "max") and len(arguments) > 1:
        result: ast.expr = arguments[0]
        for argument in arguments[1:]:
            result = call_of(f"{name}_of_two", node, result, argument)
        return result
    if name in _BUILTINS and len(arguments) == 1:
        return call_of(_BUILTINS[name], node, *arguments)
    if name == "range":
        arguments = [call_of("whole_index", node, argument) for argument in arguments]
    if name in AS_THEY_ARE and (name != "enumerate" or len(arguments) == 1):
        return call_of(name, node, *arguments)
    raise rewriter.refused(node, f"calls {name}, which cannot be compiled")
