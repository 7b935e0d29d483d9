"""From a program to compiled functions."""

from __future__ import annotations

import ast
import re
from typing import Any

import numba
from numba.core import ir, types
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import AnalysisPass, register_pass
from numba.core.errors import NumbaError, TypingError
from numba.core.typed_passes import NopythonTypeInference

from ddlsched.policies.compiling.arithmetic import NAMESPACE
from ddlsched.policies.compiling.program import Program
from ddlsched.policies.compiling.source import CannotCompileError, short_path

__all__ = ["compiled_function", "reason_of"]

_OPTIONS: dict[str, Any] = {"error_model": "python", "boundscheck": True, "_nrt": False, "no_cpython_wrapper": True}
_compiler: Any = numba.njit


@register_pass(mutates_CFG=False, analysis_only=True)
class _RefuseSilentConversions(AnalysisPass):  # type: ignore[misc]
    """A variable that is now a whole number and now a float would be a float, which cannot hold every whole number."""

    _name = "refuse_silent_conversions"

    def __init__(self) -> None:
        AnalysisPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        typemap = state.typemap
        for block in state.func_ir.blocks.values():
            for statement in block.body:
                if isinstance(statement, ir.Assign):
                    value = statement.value
                    sources = [value] if isinstance(value, ir.Var) else _converted(value)
                    target = typemap[statement.target.name]
                    if any(_loses(typemap[source.name], target) for source in sources if isinstance(source, ir.Var)):
                        raise TypingError("is a whole number here and a float there; write float(...)", statement.loc)
                elif isinstance(statement, ir.SetAttr):
                    record, value = typemap[statement.target.name], typemap[statement.value.name]
                    if isinstance(record, types.Record) and _kind(value) != _kind(record.typeof(statement.attr)):
                        raise TypingError("sets a field to a number of another kind", statement.loc)
        return False


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
    if isinstance(source, types.IntegerLiteral):
        return not -(2**53) <= source.literal_value <= 2**53 and isinstance(target, types.Float)
    return isinstance(source, types.Integer) and isinstance(target, types.Float)


class _PolicyCompiler(CompilerBase):  # type: ignore[misc]
    def define_pipelines(self) -> list[Any]:
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.add_pass_after(_RefuseSilentConversions, NopythonTypeInference)
        passes.finalize()
        return [passes]


def compiled_function(program: Program) -> Any:
    """Return the program's method, to be called by compiled code; numba compiles it when its types are known."""
    namespace: dict[str, Any] = dict(NAMESPACE)
    for function in program.functions:
        module = ast.Module([function.node], [])
        exec(compile(module, function.file, "exec", dont_inherit=True), namespace)
        namespace[function.name] = _compiler(**_OPTIONS, pipeline_class=_PolicyCompiler)(namespace[function.name])
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
    said = re.findall(r"^(?:.*?)([^\n]* (?:is not compiled|write float\(\.\.\.\)|of another kind))", text, re.MULTILINE)
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    why = said[-1].strip() if said else next((line for line in lines if "Failed in" not in line), "cannot be typed")
    return CannotCompileError(
        place or short_path(program.functions[-1].file), program.functions[-1].node.name, why[:120]
    )
