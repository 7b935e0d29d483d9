"""From a program to compiled functions."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import Any

import numba
from numba.core import ir, types
from numba.core.analysis import compute_cfg_from_blocks
from numba.core.compiler_machinery import AnalysisPass, register_pass
from numba.core.errors import NumbaError, TypingError
from numba.core.typed_passes import NopythonTypeInference

from ddlsched.engine.native.arithmetic import CAREFUL, NAMESPACE
from ddlsched.engine.native.machine_code import PART_OPTIONS, PartCompiler
from ddlsched.policies.compiling.program import Program
from ddlsched.policies.compiling.source import CannotCompileError, short_path

_OPTIONS: dict[str, Any] = PART_OPTIONS | {"error_model": "python", "boundscheck": True, "_nrt": False}
_compiler: Any = numba.njit


_LITERAL = "is a whole number here and a float there; write it as a float"


class _Checks(AnalysisPass):
    """Refuses what numba compiles into something else than Python computes.

    A variable that is now a whole number and now a float would be a float, which cannot hold every whole number; one
    that is read before it is set would be 0; a method of numpy's or of a number's may compute in another order.
    """

    _literals_may_be_floats = False

    def __init__(self) -> None:
        AnalysisPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        _refuse_unset_variables(state.func_ir.blocks)
        for block in state.func_ir.blocks.values():
            for statement in block.body:
                self._check(statement, state.typemap, state.return_type)
        return False

    def _check(self, statement: Any, typemap: Any, returned: Any) -> None:
        if isinstance(statement, ir.Assign):
            value, target = statement.value, typemap[statement.target.name]
            if isinstance(target, types.BoundFunction) and type(target.this).__module__.startswith("numba."):
                raise TypingError(f"a method of {target.this} is not compiled", statement.loc)
            for source in [value] if isinstance(value, ir.Var) else _converted(value):
                if isinstance(source, ir.Var):
                    self._check_conversion(typemap[source.name], target, statement.loc)
        elif isinstance(statement, ir.Return):
            self._check_conversion(typemap[statement.value.name], returned, statement.loc)
        elif isinstance(statement, ir.SetAttr):
            record, value = typemap[statement.target.name], typemap[statement.value.name]
            if isinstance(record, types.Record) and _kind(value) != _kind(record.typeof(statement.attr)):
                raise TypingError("sets a field to a number of another kind", statement.loc)
        elif isinstance(statement, ir.SetItem | ir.StaticSetItem):
            array, value = typemap[statement.target.name], typemap[statement.value.name]
            if isinstance(array, types.Array) and isinstance(array.dtype, types.Integer) and _kind(value) == "float":
                raise TypingError("sets an entry to a number of another kind", statement.loc)

    def _check_conversion(self, source: Any, target: Any, loc: Any) -> None:
        if _loses(source, target):
            raise TypingError("is a whole number here and a float there; write float(...)", loc)
        if not self._literals_may_be_floats and _loses_kind(source, target):
            raise TypingError(_LITERAL, loc)


@register_pass(mutates_CFG=False, analysis_only=True)
class _StrictChecks(_Checks):
    _name = "refuse_what_differs_from_python"


@register_pass(mutates_CFG=False, analysis_only=True)
class _CarefulChecks(_Checks):
    _name = "refuse_what_differs_from_python_but_literals"
    _literals_may_be_floats = True


def _refuse_unset_variables(blocks: Any) -> None:
    """Raise if a variable may be read before it is set: some way to a read leads past no assignment."""
    dominators = compute_cfg_from_blocks(blocks).dominators()
    setting: dict[str, set[int]] = {}
    for label, block in blocks.items():
        for statement in block.find_insts(ir.Assign):
            setting.setdefault(statement.target.name, set()).add(label)
    for label, block in blocks.items():
        here: set[str] = set()
        surely = dominators[label] - {label}
        for statement in block.body:
            for name in _read_names(statement):
                if name not in here and not setting.get(name, set()) & surely and not name.startswith(_INTERNAL):
                    variable = name.split(".")[0]
                    raise TypingError(f"{variable} may be read before it is set, which is not compiled", statement.loc)
            if isinstance(statement, ir.Assign):
                here.add(statement.target.name)


def _read_names(statement: Any) -> list[str]:
    """Return the variables that a statement reads; of one that joins others, itself if one of those may be unset."""
    if isinstance(statement, ir.Del):
        return []
    reading = statement.value if isinstance(statement, ir.Assign) else statement
    if isinstance(reading, ir.Expr) and reading.op == "phi":
        return [statement.target.name] if ir.UNDEFINED in reading.incoming_values else []
    return [variable.name for variable in reading.list_vars()] if hasattr(reading, "list_vars") else []


_INTERNAL = ("$", "best__")


def _converted(value: Any) -> list[Any]:
    if isinstance(value, ir.Expr):
        if value.op == "cast":
            return [value.value]
        if value.op == "phi":
            return list(value.incoming_values)
    return []


def _kind(given: Any) -> str:
    if isinstance(given, types.Boolean):
        return "truth value"
    return "whole" if isinstance(given, types.Integer) else "float" if isinstance(given, types.Float) else str(given)


def _loses(source: Any, target: Any) -> bool:
    """Return whether a conversion may round a whole number."""
    if isinstance(source, types.IntegerLiteral):
        return not -(2**53) <= source.literal_value <= 2**53 and _is_float(target)
    return _any_part(source, target, _loses) or (isinstance(source, types.Integer) and _is_float(target))


def _loses_kind(source: Any, target: Any) -> bool:
    """Return whether a conversion makes a float of a whole number or truth value, with which Python goes on."""
    whole = isinstance(source, types.Integer | types.Boolean | types.IntegerLiteral | types.BooleanLiteral)
    return _any_part(source, target, _loses_kind) or (whole and _is_float(target))


def _is_float(kind: Any) -> bool:
    return isinstance(kind.type if isinstance(kind, types.Optional) else kind, types.Float)


def _any_part(source: Any, target: Any, loses: Callable[[Any, Any], bool]) -> bool:
    if isinstance(source, types.Optional):
        return loses(source.type, target)
    if isinstance(target, types.Optional):
        return loses(source, target.type)
    if isinstance(source, types.BaseTuple) and isinstance(target, types.BaseTuple):
        return any(map(loses, source, target))
    return False


def _pipeline(checks: type[_Checks]) -> type[Any]:
    class PolicyCompiler(PartCompiler):
        unused = frozenset()  # A user's class may have closures.

        def define_pipelines(self) -> list[Any]:
            (passes,) = super().define_pipelines()
            passes.add_pass_after(checks, NopythonTypeInference)
            passes.finalize()
            return [passes]

    return PolicyCompiler


_STRICT, _CAREFUL = _pipeline(_StrictChecks), _pipeline(_CarefulChecks)


def compiled_function(program: Program, arguments: tuple[Any, ...]) -> Any:
    """Return the program's method, compiled for arguments of given types, to be called by compiled code.

    Where a literal is a whole number that numba takes for a float, or numpy's numbers come in, the code goes on only as
    long as that makes no difference.
    """
    for careful in (True,) if program.fields.arrays else (False, True):
        function = _functions(program, careful)
        try:
            function.compile(arguments)
        except NumbaError as error:
            if careful or _LITERAL not in str(error):
                raise
        else:
            break
    return function


def _functions(program: Program, careful: bool) -> Any:
    called = NAMESPACE | CAREFUL if careful else NAMESPACE
    namespace: dict[str, Any] = {f"{name}__": function for name, function in called.items()}
    pipeline = _CAREFUL if careful else _STRICT
    for function in program.functions:
        module = ast.Module([function.node], [])
        exec(compile(module, function.file, "exec", dont_inherit=True), namespace)
        namespace[function.name] = _compiler(**_OPTIONS | {"pipeline_class": pipeline})(namespace[function.name])
    return namespace[program.functions[-1].name]


def reason_of(error: NumbaError, program: Program) -> CannotCompileError:
    """Return what numba says, in a line."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    place = None
    for function in program.functions:
        name = re.escape(function.file.rsplit("/", 1)[-1])
        if found := re.search(rf'File "[^"]*{name}", line (\d+)', text):
            place = f"{short_path(function.file)}, line {found[1]}"
    if found := re.search(r"Unknown attribute '(\w+)' of type (\S+)", text):
        return CannotCompileError(place or "?", f".{found[1]}", f"is no number of a {found[2]} in compiled code")
    said = re.findall(
        r"^(?:.*?)([^\n]* (?:is not compiled|write float\(\.\.\.\)|write it as a float|of another kind))",
        text,
        re.MULTILINE,
    )
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    why = said[-1].strip() if said else next((line for line in lines if "Failed in" not in line), "cannot be typed")
    return CannotCompileError(
        place or short_path(program.functions[-1].file), program.functions[-1].node.name, why[:120]
    )
