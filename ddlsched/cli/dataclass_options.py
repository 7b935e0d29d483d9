"""A command's options from what declares them: each option's name, type, default and help are said once.

A parameter of a command is an argument, or where it has a keyword an option; its help is what the command's docstring
says of it. A group of options is one parameter, such as::

    def simulate(jobs: str, *, options: Annotated[Given[RunOptions], Panel()]) -> None: ...

which on the command line is an option for each field of a dataclass, or key of a ``TypedDict``
(:mod:`ddlsched.options`). Its help is what the class's docstring says of it, up to "; in Python", from where on it is
not for the command line. Values are made without pydantic, by which typer makes them and whose import takes as long as
a short run.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar, get_args, get_origin

import typer
from typer import BadParameter

from ddlsched.options import Option, declared, described, hints_of


def whole(value: Any) -> int:
    """Return a whole number from an option's text (or its default)."""
    try:
        return int(_read_plainly(value))
    except ValueError:
        raise typer.BadParameter(f"{value!r} is not a whole number.") from None


def real(value: Any) -> float:
    """Return a finite number from an option's text (or its default)."""
    try:
        number = float(_read_plainly(value))
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise typer.BadParameter(f"{value!r} is not a finite number.")
    return number


def _read_plainly(value: Any) -> str:
    return str(value).replace("_", "?")  # Python reads 1_000 as a number, nobody else does.


def is_given(context: typer.Context, name: str) -> bool:
    """Return whether the command line gives a parameter."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def make_values_plainly(parameters: Iterable[Any]) -> None:
    """Let a command's parameters make texts, paths, choices and parsed values themselves; all else is typer's."""
    for parameter in parameters:
        if hasattr(parameter, "type_descriptor"):
            parameter._runtime_param = _WithoutPydantic(parameter.type_descriptor)


class _WithoutPydantic:
    """What typer asks for the value of an option's text; plain ones are made here."""

    def __init__(self, described: Any) -> None:
        self._described = described

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return an option's value; what is not plain, or wrong, is left to typer."""
        several = param.multiple or param.nargs == -1
        if value is None:
            return () if several else None
        info = self._described.parameter_info
        make = _plain_maker(self._described.annotation, info, several=several)
        if make is not None and (not several or isinstance(value, list | tuple)):
            try:
                return [make(each) for each in value] if several else make(value)
            except (ValueError, BadParameter):
                pass  # typer's message names the option.
        from typer._coercion import build_runtime_param

        return build_runtime_param(self._described).coerce(value, param=param, ctx=ctx)


def _plain_maker(annotation: Any, info: Any, *, several: bool) -> Callable[[Any], Any] | None:
    """Return what makes a value of a text; None: only typer knows."""
    kind = get_args(annotation)[0] if several and get_origin(annotation) is list else annotation
    if info.parser is not None:
        parser: Callable[[Any], Any] = info.parser
        return parser
    if kind is str or (isinstance(kind, type) and issubclass(kind, Enum)):
        return kind
    is_unchecked = not (info.exists or info.readable or info.writable or info.resolve_path)
    return Path if kind is Path and is_unchecked and info.file_okay and info.dir_okay else None


T = TypeVar("T")
_PARSERS: dict[type, Callable[[Any], Any]] = {int: whole, float: real}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Given(Generic[T]):
    """What the command line says of a dataclass's fields.

    Attributes
    ----------
    kind
        The dataclass, or the ``TypedDict``.
    values
        By name, those that were given, and the defaults unless they are None.
    """

    kind: type[T]
    values: dict[str, Any]

    def made(self) -> T:
        """Return the dataclass with these values; it refuses what it does not accept."""
        return self.kind(**self.values)


@dataclasses.dataclass(frozen=True)
class Panel:
    """How a group of options stands in a command's help.

    Attributes
    ----------
    title
        Of the panel; by default the one that the option names, or that of all other options.
    only, without
        The fields that are options, by default all; those that are none.
    several
        Those of them that may be given several times.
    only_given
        Whether defaults are left to whom the values are passed on to, and only shown.
    metavars, shown
        What help calls a value, and a default, in place of what the fields say; that default is passed on by nobody.
    """

    title: str | None = None
    only: Collection[str] = ()
    without: Collection[str] = ()
    several: Collection[str] = ()
    only_given: bool = False
    metavars: Mapping[str, str] = dataclasses.field(default_factory=dict)
    shown: Mapping[str, str | None] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Field:
    """An option as the command line has it: ``hint`` is its type, ``about`` its default and what help says beside."""

    name: str
    hint: Any
    help: str
    about: Option


def option(default: Any, *, help_text: str = "", **about: Any) -> Any:
    """Return a dataclass's field that is an option of which more is said than its default.

    Parameters
    ----------
    default
        Of the field.
    help_text
        What help says of it, by default what the class's docstring does.
    about
        Further fields of :class:`~ddlsched.options.Option`. A value is called, by default, as its name ends, or N for a
        whole number; a command's :class:`Panel` that has a title goes before ``panel``.
    """
    return dataclasses.field(default=default, metadata={"about": Option(default, **about), "help": help_text})


def like(kind: type, name: str) -> Any:
    """Return a dataclass's field with the default and the help of another dataclass's field."""
    return dataclasses.field(default=getattr(kind, name), metadata={"help": _for_help(described(kind).get(name, ""))})


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command as typer reads it, each :class:`Given` as an option for each of its fields."""
    signature = inspect.signature(command)
    hints = typing.get_type_hints(command, include_extras=True)
    groups = {name: group for name, hint in hints.items() if (group := _group(hint))}
    texts = described(command)
    parameters: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        if name in groups:
            parameters += [_parameter(field, groups[name][1]) for field in _fields(*groups[name])]
        else:
            parameters.append(_own(parameter, hints[name], _for_help(texts.get(name, ""))))

    @functools.wraps(command)
    def expanded(**values: Any) -> None:
        for name, (kind, panel) in groups.items():
            fields = {each: values.pop(each) for each in option_names(kind, panel)}
            values[name] = Given(kind=kind, values={key: each for key, each in fields.items() if each is not None})
        command(**values)

    expanded.__doc__ = (command.__doc__ or "").partition("    Parameters\n")[0]
    expanded.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    expanded.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return expanded


def option_names(kind: Any, panel: Panel) -> list[str]:
    """Return the names of the fields that are options."""
    return [field.name for field in _fields(kind, panel)]


def _fields(kind: Any, panel: Panel) -> list[_Field]:
    found = _of_dataclass(kind) if dataclasses.is_dataclass(kind) else _of_typed_dict(kind)
    return [each for each in found if (not panel.only or each.name in panel.only) and each.name not in panel.without]


def _of_dataclass(kind: Any) -> Iterator[_Field]:
    texts, hints = described(kind), typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        about = field.metadata.get("about") or Option(field.default)
        text = field.metadata.get("help") or _for_help(texts.get(field.name, ""))
        hint = type(field.default) if hints[field.name] is Any else hints[field.name]
        yield _Field(name=field.name, hint=hint, help=text, about=about)


def _of_typed_dict(kind: Any) -> Iterator[_Field]:
    texts, hints = described(kind), hints_of(kind)
    for name, about in declared(kind).items():
        if about.panel is not None:
            yield _Field(name=name, hint=hints[name], help=_for_help(texts[name]), about=about)


def _group(hint: Any) -> tuple[type, Panel] | None:
    """Return the dataclass and the panel of a parameter that stands for options, None for any other."""
    if typing.get_origin(hint) is not Annotated:
        return None
    given, *more = typing.get_args(hint)
    panels = [each for each in more if isinstance(each, Panel)]
    return (typing.get_args(given)[0], panels[0]) if panels else None


def _own(parameter: inspect.Parameter, hint: Any, text: str) -> inspect.Parameter:
    """Return what typer reads of a parameter that stands for itself."""
    plain, *said = get_args(hint) if get_origin(hint) is Annotated else (hint, Option())
    if plain is typer.Context or not isinstance(said[0], Option):
        return parameter.replace(annotation=hint)
    name, about = parameter.name, dataclasses.replace(said[0], default=parameter.default)
    if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
        field = _Field(name=name, hint=plain, help=text, about=about)
        return _parameter(field, Panel(several=(name,) if get_origin(plain) is list else ()))
    info = typer.Argument(
        metavar=about.metavar or name.upper(), help=text, show_default=about.shown or False, readable=False
    )
    return parameter.replace(annotation=Annotated[plain, info])


def _parameter(field: _Field, panel: Panel) -> inspect.Parameter:
    """Return what typer reads of an option."""
    about, plain, several = field.about, _plain(field.hint), field.name in panel.several
    is_left = several or panel.only_given or field.name in panel.shown
    default = None if is_left else _default(about.default)
    shown = panel.shown.get(
        field.name, about.shown or (_text(about.default) if default is None and plain is not bool else None)
    )
    metavar = panel.metavars.get(field.name, about.metavar or _metavar(field.name, plain))
    info = typer.Option(
        about.flag or "--" + field.name.removeprefix("as_").replace("_", "-"),
        help=field.help + (" May be given several times." if several else ""),
        metavar=None if plain is bool or issubclass(plain, Enum) else metavar,
        parser=_PARSERS.get(plain),
        show_default=True if shown is None else shown,
        rich_help_panel=panel.title or about.panel,
    )
    taken: Any = list[plain] if several else plain  # type: ignore[valid-type]
    if about.default is inspect.Parameter.empty:
        default, optional = inspect.Parameter.empty, taken
    else:
        optional = taken if default is not None else taken | None
    annotation: Any = Annotated[optional, info]
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _plain(hint: Any) -> type:
    """Return which type of a field's the command line gives: a text where it is none of the plain ones."""
    accepted = [each for each in typing.get_args(hint) or (hint,) if each is not type(None)]
    kind = accepted[0]
    return kind if kind in (bool, int, float, Path) or (isinstance(kind, type) and issubclass(kind, Enum)) else str


def _default(value: Any) -> Any:
    """Return a default as help is to show it: 2 for 2.0; what no option can say is left to the dataclass."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else value if math.isfinite(value) else None
    return value if isinstance(value, bool | int | str | Path) else None


def _text(value: Any) -> str | None:
    plain = _default(value)
    return None if plain is None else str(plain)


def _metavar(name: str, plain: type) -> str:
    """Return what help calls a value: a number's unit is the end of its name."""
    return {int: "N", str: "NAME", Path: "FILE"}.get(plain) or name.rpartition("_")[2].upper()


def _for_help(text: str) -> str:
    """Return what the command line says of an option, whose text says further what is so in Python."""
    return text.partition("; in Python")[0].replace("``", "").removesuffix(".") + "." if text else ""
