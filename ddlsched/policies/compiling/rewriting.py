"""Rewrites one function so that compiled code computes what Python would."""

from __future__ import annotations

import ast
import builtins
import copy
import inspect
import types
from pathlib import Path
from typing import Any

from ddlsched.policies.compiling import syntax
from ddlsched.policies.compiling.source import CannotCompileError, is_set_when_running

_OPERATORS: dict[type[ast.operator] | type[ast.cmpop] | type[ast.unaryop], str] = {
    ast.Add: "add",
    ast.Sub: "subtract",
    ast.Mult: "multiply",
    ast.Div: "divide",
    ast.FloorDiv: "floor_divide",
    ast.Mod: "remainder",
    ast.Lt: "less",
    ast.LtE: "less_equal",
    ast.Gt: "greater",
    ast.GtE: "greater_equal",
    ast.Eq: "equal",
    ast.NotEq: "not_equal",
    ast.USub: "negative",
    ast.UAdd: "positive",
}
_PASSED_ON = (ast.Return, ast.Expr, ast.Pass, ast.Break, ast.Continue)
"""Statements that only what is in them is rewritten of."""


class Rewriter(ast.NodeTransformer):
    """Rewrites one function."""

    def __init__(self, builder: Any, function: Any, node: ast.FunctionDef) -> None:
        self.builder, self._function, self._node = builder, function, node
        self.file = function.__code__.co_filename
        arguments = node.args
        if arguments.vararg or arguments.kwarg:
            raise self.refused(node, "takes any number of arguments")
        self._parameters = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        own = syntax.assigned(node)
        self.locals = {*self._parameters, *own}
        owner = inspect.getattr_static(type(builder.plugin), node.name, None)
        is_method = function in (owner, getattr(owner, "fget", None))
        self._self = self._parameters[0] if is_method and self._parameters else None
        if self._self in own:
            raise self.refused(node, f"sets {self._self}")
        for name in self.locals:
            if name.endswith("__"):
                raise self.refused(node, f"{name} is a name of compiled code")

    def refused(self, node: ast.AST, why: str) -> CannotCompileError:
        text = ast.unparse(node).split("\n")[0]
        return CannotCompileError(syntax.where_is(self.file, node), text[:60], why)

    def rewrite(self) -> ast.FunctionDef:
        """Return the rewritten function."""
        body = [statement for statement in self._node.body if not syntax.is_text(statement)]
        rewritten = self._block(body)
        parts = [part for statement in rewritten for part in ast.walk(statement)]
        if any(map(syntax.is_member, parts)):
            raise self.refused(self._node, "does more with a member of an enumeration than to compare it")
        if any(isinstance(part, ast.Name) and part.id == syntax.TICKS for part in parts):
            rewritten.insert(0, syntax.parse_statement(f"{syntax.TICKS} = 0", self._node))
        return syntax.function_definition(self._node, self._parameters, rewritten)

    def _block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        result: list[ast.stmt] = []
        for statement in statements:
            if syntax.is_text(statement):
                continue
            kind = type(statement).__name__
            if not (isinstance(statement, _PASSED_ON) or hasattr(self, f"visit_{kind}")):
                raise self.refused(statement, f"{kind} statements are not compiled")
            new = self.visit(statement)
            result += new if isinstance(new, list) else [new]
            if isinstance(result[-1], ast.Return | ast.Raise | ast.Break | ast.Continue):
                break  # what follows is never reached, and may read what the rest does not
        return result or [ast.Pass()]

    # --- statements

    def visit_If(self, node: ast.If) -> ast.stmt | list[ast.stmt]:
        test = self.visit(node.test)
        if isinstance(test, ast.Constant):
            return self._block(node.body if test.value else node.orelse)
        orelse = self._block(node.orelse) if node.orelse else []
        return ast.copy_location(ast.If(test, self._block(node.body), orelse), node)

    def visit_While(self, node: ast.While) -> ast.stmt:
        if node.orelse:
            raise self.refused(node, "has an else")
        body = [self.tick(node), *self._block(node.body)]
        return ast.copy_location(ast.While(self.visit(node.test), body, []), node)

    def visit_For(self, node: ast.For) -> ast.stmt:
        if node.orelse:
            raise self.refused(node, "has an else")
        body = [self.tick(node), *self._block(node.body)]
        return ast.copy_location(ast.For(self.target(node.target), self.visit(node.iter), body, []), node)

    def tick(self, node: ast.AST) -> ast.stmt:
        place = f"{Path(self.file).name}, line {getattr(node, 'lineno', '?')}, {self._node.name}"
        return syntax.parse_statement(f"{syntax.TICKS} = hear_signals__({syntax.TICKS}, {place!r})", node)

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        targets = [self.target(target) for target in node.targets]
        return ast.copy_location(ast.Assign(targets, self.visit(node.value)), node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        if node.value is None:
            return ast.copy_location(ast.Pass(), node)
        return ast.copy_location(ast.Assign([self.target(node.target)], self.visit(node.value)), node)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:
        if not isinstance(node.target, ast.Name | ast.Attribute):
            raise self.refused(node, "changes an entry in place; write it out")
        load = copy.copy(node.target)
        load.ctx = ast.Load()
        value = self.visit(ast.copy_location(ast.BinOp(load, node.op, node.value), node))
        return ast.copy_location(ast.Assign([self.target(node.target)], value), node)

    def visit_Raise(self, node: ast.Raise) -> ast.stmt:
        return syntax.parse_statement("raise ValueError", node)

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        failed = syntax.parse_statement("raise AssertionError", node)
        test = ast.copy_location(ast.UnaryOp(ast.Not(), self.visit(node.test)), node)
        return ast.copy_location(ast.If(test, [failed], []), node)

    def target(self, target: ast.expr) -> ast.expr:
        if isinstance(target, ast.Name):
            return target
        if isinstance(target, ast.Tuple):
            return ast.copy_location(ast.Tuple([self.target(t) for t in target.elts], ast.Store()), target)
        if isinstance(target, ast.Attribute) and self.is_self(target.value):
            self.builder.fields.refuse_change(target.attr, lambda why: self.refused(target, why))
            self.builder.changes_itself = True
            return target
        if isinstance(target, ast.Subscript):
            self.builder.changes_itself = True
            index = self.visit(target.slice)
            return ast.copy_location(ast.Subscript(self.visit(target.value), index, ast.Store()), target)
        raise self.refused(target, "cannot be assigned to")

    # --- expressions

    def is_self(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id == self._self

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        constant = syntax.constant_of(node.value, node)
        if constant is None:
            raise self.refused(node, "is no number of 64 bits, truth value, text or None")
        return constant

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self.locals:
            if node.id == self.builder.clock and len(self.builder.under_way) == 1:
                self.builder.reads.add("now_s")
            return node
        constant = syntax.constant_of(self.global_value(node), node)
        if constant is None:
            raise self.refused(node, "is neither a number nor a text nor a function that is called")
        return constant

    def global_value(self, node: ast.Name) -> Any:
        try:
            value = self._look_up(node.id)
        except NameError:
            raise self.refused(node, "is not defined") from None
        if is_set_when_running(self._function, node.id):
            raise self.refused(node, "is set by a function, and so no constant")
        self.builder.constants.append((node.id, lambda: self._look_up(node.id), value))
        return value

    def _look_up(self, name: str) -> Any:
        free = self._function.__code__.co_freevars
        if name in free:
            return self._function.__closure__[free.index(name)].cell_contents
        for names in (self._function.__globals__, vars(builtins)):
            if name in names:
                return names[name]
        raise NameError(name)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if self.is_self(node.value):
            return self._own(node)
        if isinstance(node.value, ast.Name) and node.value.id not in self.locals:
            owner = self.global_value(node.value)
            if isinstance(owner, types.ModuleType | type):
                value = getattr(owner, node.attr, None)
                self.builder.constants.append((node.attr, lambda: getattr(owner, node.attr, None), value))
                constant = syntax.constant_of(value, node)
                if constant is None or (isinstance(constant, ast.Constant) and constant.value is None):
                    raise self.refused(node, "is neither a number nor a text")
                return constant
        self.builder.reads.add(node.attr)
        return ast.copy_location(ast.Attribute(self.visit(node.value), node.attr, ast.Load()), node)

    def _own(self, node: ast.Attribute) -> ast.expr:
        """Return what stands for an attribute of the plug-in itself."""
        fields, plugin = self.builder.fields, self.builder.plugin
        static = inspect.getattr_static(type(plugin), node.attr, None)
        if isinstance(static, property) and static.fget is not None:
            return syntax.call_of(self.builder.add(static.fget), node, node.value)
        if node.attr in fields.numbers:
            return node
        if node.attr in fields.arrays:
            text = fields.array_expression(str(self._self), node.attr)
            array: ast.expr = ast.copy_location(ast.parse(text, mode="eval").body, node)
            return array
        if node.attr in fields.others:
            constant = syntax.constant_of(fields.others[node.attr], node)
            if constant is None:
                raise self.refused(node, f"is a {type(fields.others[node.attr]).__name__}")
            return constant
        self.builder.constants.append(
            (node.attr, lambda: inspect.getattr_static(type(plugin), node.attr, None), static)
        )
        constant = syntax.constant_of(static, node)
        if constant is None or static is None:
            raise self.refused(node, "is no field of numbers, texts or arrays")
        return constant

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        name = _OPERATORS.get(type(node.op))
        if name is None:
            raise self.refused(node, "this operator is not compiled")
        return syntax.call_of(name, node, self.visit(node.left), self.visit(node.right))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        operand = self.visit(node.operand)
        if isinstance(node.op, ast.Not):
            if isinstance(operand, ast.Constant):
                return ast.copy_location(ast.Constant(not operand.value), node)
            return ast.copy_location(ast.UnaryOp(node.op, operand), node)
        if isinstance(operand, ast.Constant) and isinstance(node.op, ast.USub) and syntax.is_number(operand.value):
            return self.visit_Constant(ast.copy_location(ast.Constant(-operand.value), node))  # type: ignore[operator]
        name = _OPERATORS.get(type(node.op))
        if name is None:
            raise self.refused(node, "this operator is not compiled")
        return syntax.call_of(name, node, operand)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        deciding = isinstance(node.op, ast.Or)
        values: list[ast.expr] = []
        for value in node.values:
            new = self.visit(value)
            if isinstance(new, ast.Constant) and bool(new.value) != deciding and value is not node.values[-1]:
                continue
            values.append(new)
            if isinstance(new, ast.Constant) and bool(new.value) == deciding:
                break
        return values[0] if len(values) == 1 else ast.copy_location(ast.BoolOp(node.op, values), node)

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        test = self.visit(node.test)
        if isinstance(test, ast.Constant):
            chosen: ast.expr = self.visit(node.body if test.value else node.orelse)
            return chosen
        return ast.copy_location(ast.IfExp(test, self.visit(node.body), self.visit(node.orelse)), node)

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        parts: list[ast.expr] = []
        left = self.visit(node.left)
        for op, right_node in zip(node.ops, node.comparators, strict=True):
            right = self.visit(right_node)
            if right_node is not node.comparators[-1] and not isinstance(right, ast.Name | ast.Constant):
                raise self.refused(node, "is a chain of comparisons with a calculation in the middle")
            parts.append(self._comparison(node, op, left, right))
            left = right
        if len(parts) == 1:
            return parts[0]
        return ast.copy_location(ast.BoolOp(ast.And(), parts), node)

    def _comparison(self, node: ast.Compare, op: ast.cmpop, left: ast.expr, right: ast.expr) -> ast.expr:
        views = not any(isinstance(part, ast.Attribute | ast.Constant) for part in (left, right))
        if views and isinstance(op, ast.Is | ast.IsNot | ast.Eq | ast.NotEq):  # perhaps of two transfers
            self.builder.reads.add("which one")
        if isinstance(op, ast.Is | ast.IsNot):
            return self._identity(node, op, left, right)
        known = syntax.is_known(left) and syntax.is_known(right)
        members = any(map(syntax.is_member, (*ast.walk(left), *ast.walk(right))))
        if known and (not members or isinstance(op, ast.Eq | ast.NotEq)):
            return self._worked_out(node, op, left, right)
        if isinstance(op, ast.In | ast.NotIn):
            found = self._found(node, left, right)
            return found if isinstance(op, ast.In) else ast.copy_location(ast.UnaryOp(ast.Not(), found), node)
        return syntax.call_of(_OPERATORS[type(op)], node, left, right)

    def _worked_out(self, node: ast.Compare, op: ast.cmpop, left: ast.expr, right: ast.expr) -> ast.expr:
        comparison = ast.fix_missing_locations(ast.Expression(ast.Compare(left, [op], [right])))
        try:
            value = eval(compile(comparison, "", "eval"), {"__builtins__": {}})
        except TypeError as error:
            raise self.refused(node, str(error)) from None
        return ast.copy_location(ast.Constant(value), node)

    def _identity(self, node: ast.Compare, op: ast.cmpop, left: ast.expr, right: ast.expr) -> ast.expr:
        """Return ``is``: of None, truth values and members of enumerations; of views; not of numbers and texts."""
        constants = [part.value for part in (left, right) if isinstance(part, ast.Constant)]
        unique = [value is None or isinstance(value, bool) for value in constants]
        if len(constants) == 2 and (any(unique) or all(map(syntax.is_member, (left, right)))):
            same = constants[0] is constants[1] if any(unique) else constants[0] == constants[1]
            return ast.copy_location(ast.Constant(same == isinstance(op, ast.Is)), node)
        if constants and all(unique):
            return ast.copy_location(ast.Compare(left, [op], [right]), node)
        same_object = syntax.call_of("same_object", node, left, right)
        return same_object if isinstance(op, ast.Is) else ast.copy_location(ast.UnaryOp(ast.Not(), same_object), node)

    def _found(self, node: ast.Compare, left: ast.expr, right: ast.expr) -> ast.expr:
        if not isinstance(right, ast.Tuple):
            return syntax.call_of("contains", node, right, left)
        if not all(isinstance(n, ast.Name | ast.Constant | ast.Attribute | ast.Load) for n in ast.walk(left)):
            raise self.refused(node, "looks for a calculation in a tuple")
        compared = [syntax.call_of("equal_wholes", node, left, part) for part in right.elts]
        return ast.copy_location(ast.BoolOp(ast.Or(), compared), node) if len(compared) > 1 else compared[0]

    def visit_Tuple(self, node: ast.Tuple) -> ast.expr:
        return ast.copy_location(ast.Tuple([self.visit(part) for part in node.elts], ast.Load()), node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        if isinstance(node.slice, ast.Slice):
            raise self.refused(node, "slices are not compiled")
        return ast.copy_location(ast.Subscript(self.visit(node.value), self.visit(node.slice), ast.Load()), node)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> ast.expr:
        return ast.copy_location(ast.NamedExpr(node.target, self.visit(node.value)), node)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        return syntax.rewritten_call(self, node)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Pass on statements without parts of their own; refuse what was not thought of."""
        if isinstance(node, ast.Return | ast.Expr):
            value = None if node.value is None else self.visit(node.value)
            return ast.copy_location(type(node)(value), node)  # type: ignore[arg-type]
        if isinstance(node, ast.Pass | ast.Break | ast.Continue):
            return node
        raise self.refused(node, f"{type(node).__name__} is not compiled")
