"""Calls in a function that is rewritten: of its class's methods, of views, of other functions, of built-in ones.

The ``rewriter`` is the :class:`~ddlsched.policies.compiling.rewriting.Rewriter` of the function around the call.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import math
import types
from typing import Any

from ddlsched.policies.compiling.loops import rewritten_loop
from ddlsched.policies.compiling.syntax import AS_THEY_ARE, call_of, constant_of

__all__ = ["rewritten_call"]

_BUILTINS = {"abs": "absolute", "int": "truncate", "float": "to_float", "round": "round_to_whole", "bool": "truth"}
_LOOPS = ("any", "all", "sum", "min", "max", "len")
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
