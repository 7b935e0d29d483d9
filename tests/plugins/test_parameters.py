"""Parameters of plug-ins: each is described, and what is outside its range is refused."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import re
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Literal

import numpy as np
import pytest
from command_line import COMMAND, run

from ddlsched.cli.installation_commands import description_of
from ddlsched.errors import InputError
from ddlsched.plugins.names import KINDS, Kind, made_by, names
from ddlsched.ranges import Checked, Range, check_arguments, check_fields, choices_of, range_of, ranged

PLUGINS = [(kind, name) for kind in KINDS for name in names(kind)]


@pytest.mark.parametrize(("kind", "name"), PLUGINS)
def test_item_24_every_plugin_says_what_it_is_and_what_each_parameter_means(kind: Kind, name: str) -> None:
    summary, parameters = description_of(kind, name)
    assert summary
    for parameter in parameters:
        assert parameter.meaning.endswith("."), parameter
        assert not parameter.meaning.startswith("As "), parameter
        assert parameter.expected != "a value", parameter


def test_item_24_the_command_prints_defaults_units_and_meaning() -> None:
    shown = run("list", "topology", "leaf-spine")
    assert shown.exit_code == 0
    assert "nic_gbps=10.0   Gbit/s > 0\n    Bandwidth of each server's network card, Gbit/s.\n" in shown.stdout
    assert "spines=2   a whole number from 1 to 1024\n    Spine switches, from 1 to 1024.\n" in shown.stdout
    told = json.loads(run("list", "allocation", "sia", "--json").stdout)
    round_s = told["parameters"][0]
    assert round_s == {
        "name": "round_s",
        "default": "60.0",
        "expected": "seconds from 0.001 to 1e9",
        "meaning": "Of a round, seconds.",
    }
    assert "It has no parameters." in run("list", "order", "fifo").stdout
    assert "lwf:kappa=1" in run("list", "bundle", "ada-srsf").stdout
    unknown = run("list", "topology", "leaf-spin")
    assert unknown.exit_code == 2
    assert "Did you mean 'leaf-spine'?" in unknown.stderr


def documented_defaults() -> list[str]:
    """What the reference says of functions and classes that may be called with less than all parameters."""
    reference = (Path(__file__).parents[2] / "docs" / "reference.md").read_text()
    documented = re.findall(r"^\.\. auto(?:class|function):: (?:ddlsched\.)?(\S+)", reference, re.M)
    return [
        f"ddlsched.{name} {each.name}={each.default}"
        for name in documented
        for each in inspect.signature(resolve_name(f"ddlsched.{name}")).parameters.values()
        if each.default is not each.empty and not callable(each.default)
    ]


def options_of(command: Any, path: str) -> list[str]:
    """What the options of a command, or of those below it, are by default."""
    if hasattr(command, "list_commands"):
        below = [(name, command.get_command(None, name)) for name in command.list_commands(None)]
        return [line for name, each in below for line in options_of(each, f"{path} {name}")]
    return [f"{path} {each.opts[0]}={each.default}" for each in command.params if each.default is not None]


def ranges_of(kind: Kind, name: str) -> dict[str, Range]:
    made, _ = made_by(kind, name)
    fields = dataclasses.fields(made) if dataclasses.is_dataclass(made) else ()
    return {field.name: allowed for field in fields if (allowed := range_of(field))}


def test_what_is_left_out_means_what_it_meant() -> None:
    """Another default or range changes what users' commands, files and scripts mean: CHANGELOG says so, too."""
    of_plugins = [
        f"{kind} {name} {each.name}={each.default}, {ranges_of(kind, name).get(each.name, each.expected)}"
        for kind, name in PLUGINS
        for each in description_of(kind, name)[1]
    ]
    of_bundles = [f"bundle {name} {description_of('bundle', name)[0]}" for name in names("bundle")]
    kept = Path(__file__).parents[1] / "golden" / "defaults.txt"
    found = [*documented_defaults(), *of_plugins, *of_bundles, *options_of(COMMAND, "ddlsched")]
    assert found == kept.read_text().splitlines()


def outside(allowed: Range) -> list[Any]:
    """Numbers just outside a range, and what is no number."""
    if isinstance(allowed.least, int):
        beyond = [allowed.most + 1] if allowed.most < math.inf else []
        return [allowed.least - 1, *beyond, allowed.least + 0.5, True, "1"]
    beyond = [math.nextafter(allowed.most, math.inf)] if allowed.most < math.inf else [math.inf]
    least = allowed.least if allowed.above else math.nextafter(allowed.least, -math.inf)
    return [least, *beyond, math.nan, False, "1"]


def plugins_of_classes() -> list[Any]:
    """Each registered class once, with the name that it is registered by."""
    made = {made_by(kind, name)[0]: (kind, name) for kind, name in PLUGINS if kind not in ("bundle", "workload")}
    return [pytest.param(each, id=":".join(name)) for each, name in made.items() if dataclasses.is_dataclass(each)]


@pytest.mark.parametrize("plugin", plugins_of_classes())
def test_what_is_outside_a_range_is_refused_and_its_ends_are_not(plugin: Any) -> None:
    given = [each for each in dataclasses.fields(plugin) if each.init and each.default is dataclasses.MISSING]
    needed = {field.name: "a text" for field in given}
    for field in dataclasses.fields(plugin):
        allowed = range_of(field)
        for value in outside(allowed) if allowed else ():
            with pytest.raises(InputError, match=f"{field.name} is .*; expected "):
                plugin(**needed | {field.name: value})
        if allowed and not allowed.above:
            # What another rule of the same class refuses is not a matter of the range.
            try:
                plugin(**needed | {field.name: allowed.least})
            except InputError as error:
                assert allowed.said(field.name) not in str(error)  # noqa: PT017
        choices = choices_of(field) if field.type != "bool" else ()
        for choice in choices:
            plugin(**{field.name: choice})
        if choices:
            with pytest.raises(InputError, match=f"{field.name} is 'x'"):
                plugin(**{field.name: "x"})


def test_ranges_are_said_with_units() -> None:
    assert Range(0.0, 1e9).said("round_s") == "seconds from 0 to 1e9"
    assert Range(0.0, math.inf, above=True).said("gb_per_s") == "GB/s > 0"
    assert Range(0.0, math.inf, above=True).said("nic_gbps") == "Gbit/s > 0"
    assert Range(1, 4).said("most") == "a whole number from 1 to 4"
    assert Range(0.0, 1.0).holds(np.float64(0.5))
    assert Range(0, 3).holds(np.int64(3))

    @dataclasses.dataclass(frozen=True)
    class Optional:
        seed: int | None = ranged(None, 0, 9)

    @dataclasses.dataclass(frozen=True)
    class Chosen:
        by: Literal["gpus", "bytes"] = "gpus"
        nic_gbps: float = ranged(1.0, 0.0)

    for given, said in (
        ({"by": "gpu"}, "by is 'gpu'; expected one of gpus, bytes. Did you mean 'gpus'?"),
        ({"by": "foo"}, "by is 'foo'; expected one of gpus, bytes"),
        ({"nic_gbps": math.inf}, "nic_gbps is inf; expected Gbit/s from 0, finite"),
    ):
        with pytest.raises(InputError) as error:
            check_fields(Chosen(**given), "chosen")
        assert str(error.value) == f"chosen: {said}"
    check_fields(Optional(), "optional")
    check_fields(Optional(9), "optional")
    with pytest.raises(InputError, match="optional: seed is 10; expected a whole number from 0 to 9, or none"):
        check_fields(Optional(10), "optional")


def test_an_argument_outside_its_range_is_refused_and_its_ends_are_not() -> None:
    check_arguments("plot", jobs=(1, 1), share=(0.5, 0.0, 0.5))
    for given in ({"jobs": (0, 1)}, {"share": (0.6, 0.0, 0.5)}):
        with pytest.raises(InputError, match=f"plot: {next(iter(given))} is 0"):
            check_arguments("plot", **given)


def test_a_checked_class_tells_its_other_bases_of_subclasses() -> None:
    told: list[str] = []

    class Registered:
        def __init_subclass__(cls) -> None:
            told.append(cls.__name__)

    class Both(Checked, Registered, who="both"):
        pass

    assert (told, Both._who) == (["Both"], "both")
