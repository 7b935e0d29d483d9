"""What a comparison is asked for, checked: from flags, a YAML file or Python's arguments alike.

Whatever is wrong is reported at once, every fault with its place.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, product
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from ddlsched.cluster.cluster import Cluster
from ddlsched.comparisons.fields import (
    DOORS,
    FURTHER_DOORS,
    GIVEN_OTHERWISE,
    Bundle,
    Draws,
    Listed,
    Name,
    Options,
    Plugin,
    Seeds,
    ServerTable,
    ThroughputTable,
    Whole,
    Window,
    Workload,
)
from ddlsched.comparisons.folder import slug
from ddlsched.errors import FaultyInputError, InputError, abbreviated, did_you_mean, label
from ddlsched.io.files import read_bytes
from ddlsched.io.tables import as_yaml
from ddlsched.plugins import DEFAULT_BUNDLE, DEFAULT_CONTENTION
from ddlsched.plugins.names import resolve_bundle

Location: TypeAlias = tuple[str | int, ...]
"""Where a value stands: names of fields and places in lists, from the outermost in."""
Where: TypeAlias = Callable[[Location], str]
"""Tells the reader where that is: a file's line and field, or a flag."""


_FILE = re.compile(r"^\S*\.py:(?=\S)")


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, arbitrary_types_allowed=True)


class Policies(_Model):
    """One policy, or the product of several placements, orders, communication, allocation and path policies."""

    name: Name | None = None
    scheduler: Bundle | None = None
    placement: Annotated[list[Annotated[Any, Plugin("placement")]], Listed] = []
    order: Annotated[list[Annotated[Any, Plugin("order")]], Listed] = []
    communication: Annotated[list[Annotated[Any, Plugin("communication")]], Listed] = []
    allocation: Annotated[list[Annotated[Any, Plugin("allocation")]], Listed] = []
    admission: Annotated[list[Annotated[Any, Plugin("admission")]], Listed] = []
    path: Annotated[list[Annotated[Any, Plugin("path")]], Listed] = []

    @model_validator(mode="before")
    @classmethod
    def _of_text(cls, given: Any) -> Any:
        return {"scheduler": given} if isinstance(given, str) else given

    @model_validator(mode="after")
    def _named_once(self) -> Policies:
        if self.name is not None and len(self.expanded()) > 1:
            raise InputError(f"{len(self.expanded())} policies have one name, {self.name!r}; expected no name")
        return self

    def expanded(self) -> list[tuple[str, dict[str, Any]]]:
        """Return each policy: what tables call it, and its doors, those beyond the usual three if they are given."""
        bundle = resolve_bundle(self.scheduler or DEFAULT_BUNDLE)
        choices = {door: getattr(self, door) or [bundle[door]] for door in DOORS}
        choices |= {door: given for door in FURTHER_DOORS if (given := getattr(self, door))}
        policies = [dict(zip(choices, chosen, strict=True)) for chosen in product(*choices.values())]
        return [(self.name or self._label(doors), doors) for doors in policies]

    @property
    def is_labelled_by_doors(self) -> bool:
        """Whether tables call its policies by their doors: they have no name, nor only that of a bundle."""
        further = any(getattr(self, door) for door in FURTHER_DOORS)
        return self.name is None and (any(getattr(self, door) for door in DOORS) or not (self.scheduler or further))

    def _label(self, doors: dict[str, Any]) -> str:
        """Return what tables call a policy: what was said of it, or all doors if that was nothing."""
        if self.is_labelled_by_doors:
            named = list(map(text_of, doors.values()))
        else:
            named = [*filter(None, [self.scheduler]), *map(text_of, list(doors.values())[len(DOORS) :])]
        return " + ".join(named)


def text_of(plugin: Any) -> str:
    """Return how a plug-in is written: its text, or an instance's own form."""
    return plugin if isinstance(plugin, str) else label(plugin)


class Settings(_Model):
    """What is compared.

    Attributes
    ----------
    seeds
        Of generators and policies.
    draws
        How many draws of the jobs' lengths run of a workload that the seed does not make, in place of the seeds.
    workloads
        Files and generators.
    policies
        As in :class:`Policies`.
    servers, gpus_per_server, gpu_memory_mb
        Clusters of equal servers: one for each number of servers.
    server_table
        Files of :func:`ddlsched.read_cluster`, a cluster each, in place of the three above.
    throughputs, reference_kind
        File of a matrix of throughputs of models on the kinds of GPUs of ``server_table``, and the kind on which jobs
        take the times that the workload says.
    exclusive
        Whether a GPU of any cluster has one job at a time.
    topology
        Networks, with each of which every cluster is taken.
    contention
        Models of transfers that share links.
    baseline
        What tables call the policy that the others are compared with; by default the first.
    options
        Further arguments of :func:`ddlsched.simulate`, the same for all runs.
    timeline
        Record this part of each policy's first run, (from, to) in seconds.
    """

    seeds: Seeds = list(range(1, 21))
    draws: Draws = 1
    workloads: Annotated[list[Workload], Listed, Field(min_length=1)]
    policies: Annotated[list[Policies], Listed, Field(min_length=1)]
    servers: Annotated[list[Whole], Listed, Field(min_length=1)] = [Cluster.num_servers]
    gpus_per_server: Whole = Cluster.gpus_per_server
    gpu_memory_mb: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Cluster.gpu_memory_mb
    server_table: Annotated[list[ServerTable], Listed] = []
    reference_kind: str | None = None
    throughputs: ThroughputTable | None = None
    exclusive: bool = Cluster.exclusive
    topology: Annotated[list[Annotated[Any, Plugin("topology")]], Listed, Field(min_length=1)] = [Cluster.topology]
    contention: Annotated[list[Annotated[Any, Plugin("contention")]], Listed, Field(min_length=1)] = [
        DEFAULT_CONTENTION
    ]
    baseline: str | None = None
    options: Options = Options()
    timeline: Window = None

    @model_validator(mode="after")
    def _fit_together(self) -> Settings:
        equal = sorted({"servers", "gpus_per_server", "gpu_memory_mb"} & self.model_fields_set)
        if self.server_table and equal:
            raise InputError(f"both server_table and {equal[0]} are given; expected one of them")
        if self.reference_kind is not None and self.throughputs is None:
            raise InputError("reference_kind is given; expected throughputs as well")
        if any(each.admission for each in self.policies) and getattr(self.options, "queues", None) is None:
            raise InputError("admission is given; expected queues as well, the tenants that it decides about")
        return self

    @field_validator("workloads", "servers", "server_table", "topology", "contention")
    @classmethod
    def _each_once(cls, values: list[Any]) -> list[Any]:
        _refuse_twice(map(text_of, values))
        return values

    @field_validator("policies")
    @classmethod
    def _each_policy_once(cls, policies: list[Policies]) -> list[Policies]:
        _refuse_twice(name for each in policies for name, _ in each.expanded())
        names = list(short_names(policies).values())
        for name, other in combinations(names, 2):
            if slug(name) == slug(other):
                raise InputError(f"{name!r} and {other!r} would share the file name {slug(name)!r}; expected another")
        return policies

    @field_validator("baseline")
    @classmethod
    def _known(cls, baseline: str | None, info: ValidationInfo) -> str | None:
        known = short_names(info.data.get("policies", ()))
        if baseline is None or not known or baseline in known.values():
            return baseline
        if baseline not in known:
            raise InputError(f"no policy is called that.{did_you_mean(baseline, known.values())}")
        return known[baseline]

    @property
    def named_policies(self) -> dict[str, dict[str, Any]]:
        """What tables call each policy, and its placement, order, communication and perhaps allocation and path."""
        short = short_names(self.policies)
        return {short[name]: doors for each in self.policies for name, doors in each.expanded()}

    @property
    def given_options(self) -> dict[str, Any]:
        """The further arguments that were given."""
        return {name: getattr(self.options, name) for name in sorted(self.options.model_fields_set)}


def short_names(policies: Sequence[Policies]) -> dict[str, str]:
    """Return what tables call each policy, by its whole name: without the doors that all share, and without files.

    Of ``lwf:kappa=1 + mine.py:Mine + adadual`` beside ``lwf:kappa=1 + srsf + adadual``, ``Mine``. Names that would then
    be alike stay whole, and so does the name of a policy that is alone.
    """
    doors_of = {name: {d: text_of(v) for d, v in doors.items()} for p in policies for name, doors in p.expanded()}
    said = [frozenset(doors.items()) for doors in doors_of.values()]
    shared = frozenset.intersection(*said) if said else frozenset()
    short = {name: name for name in doors_of}
    for each in policies:
        if each.is_labelled_by_doors:
            for name, _ in each.expanded():
                own = [value for door, value in doors_of[name].items() if (door, value) not in shared]
                short[name] = " + ".join(_FILE.sub("", value) for value in own) or name
    return short if len(set(short.values())) == len(short) else {name: name for name in doors_of}


def _refuse_twice(names: Iterable[str]) -> None:
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise InputError(f"{twice[0]!r} is there twice; expected each once")


def checked_settings(given: Mapping[str, Any], where: Where) -> Settings:
    """Return the settings that are asked for.

    Parameters
    ----------
    given
        Values by the names of :class:`Settings`' fields.
    where
        Says where a value came from.

    Raises
    ------
    FaultyInputError
        With all faults.
    PluginError
        A file of the user's cannot be imported, or a generator raised.
    """
    try:
        return Settings.model_validate(dict(given))
    except ValidationError as error:
        raise FaultyInputError(dict.fromkeys(_fault(fault, where) for fault in error.errors())) from None


def _fault(fault: Mapping[str, Any], where: Where) -> str:
    location, kind = fault["loc"], fault["type"]
    if kind == "missing":
        return f"{where(location)}: is missing"
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        if location[0] == "options" and location[-1] in GIVEN_OTHERWISE:
            return f"{where(location)}: is no option, but a field of its own or of a policy; expected it there"
        return f"{where(location)}: is no field.{did_you_mean(str(location[-1]), _fields_at(location[:-1]))}"
    if kind == "value_error" and not str(fault["ctx"]["error"]).startswith("expected"):
        return f"{where(location)}: {fault['ctx']['error']}"
    why = str(fault["ctx"]["error"]) if kind == "value_error" else _lower(fault["msg"])
    return f"{where(location)}: is {abbreviated(fault['input'])}; {why}"


def _lower(message: str) -> str:
    return message[:1].lower() + message[1:]


def _fields_at(location: Location) -> Collection[str]:
    """Return the names of the fields that may stand at a place."""
    match location:
        case ():
            return Settings.model_fields
        case ("policies", *_):
            return Policies.model_fields
        case ("options",):
            names = Options.model_fields
            return [*names, *(f"{name}.{part}" for name in names for part in _fields_at(("options", name)))]
    kinds = getattr(Options.model_fields.get(str(location[1])), "annotation", None)
    parts = [kinds, *getattr(kinds, "__args__", ())]
    return [field.name for part in parts if dataclasses.is_dataclass(part) for field in dataclasses.fields(part)]


_MOST_BYTES = 1 << 20
"""Of YAML, which is parsed in Python, at less than a MB a second."""


def read_yaml(path: Path) -> tuple[dict[str, Any], Where]:
    """Return what a file holds, by field, and what tells where a value stands: file, line and field.

    Raises
    ------
    InputError
        It cannot be read, is no YAML, holds no fields, or one of them twice.
    """
    with as_yaml(path, "fields such as 'seeds: 20'"):
        text = read_bytes(path, _MOST_BYTES).decode("utf-8-sig")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        values = yaml.safe_load(text)
    if not isinstance(node, yaml.MappingNode):
        raise InputError(f"{path}: holds no fields; expected workloads: and policies: at least")
    faults = [f"{path}, line {line}, field {name}: is there twice; expected once" for name, line in _twice(node, set())]
    if faults:
        raise FaultyInputError(faults)
    return values, lambda location: _place(path, node, location)


def _twice(node: yaml.Node, seen: set[int]) -> Iterator[tuple[str, int]]:
    """Yield the fields that an object has twice, of which YAML takes the last without a word."""
    if id(node) in seen:  # an alias
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for part in node.value:
            yield from _twice(part, seen)
    elif isinstance(node, yaml.MappingNode):
        names = [key.value for key, _ in node.value]
        for number, (key, value) in enumerate(node.value):
            if key.value in names[:number]:
                yield str(key.value), key.start_mark.line + 1
            yield from _twice(value, seen)


def _place(path: Path, node: yaml.Node, location: Location) -> str:
    """Return the file, line and field of a value, as near as the file has it."""
    line, field = node.start_mark.line + 1, ""
    for part in location:
        if isinstance(part, str):
            field += f".{part}" if field else part
            pairs = node.value if isinstance(node, yaml.MappingNode) else []
            found = [(key, value) for key, value in pairs if key.value == part]
            node = found[-1][1] if found else yaml.ScalarNode("", "")
            line = found[-1][0].start_mark.line + 1 if found else line
        elif isinstance(node, yaml.SequenceNode) and part < len(node.value):
            node, field = node.value[part], f"{field}[{part}]"
            line = node.start_mark.line + 1
    return f"{path}, line {line}" + (f", field {field}" if field else "")
