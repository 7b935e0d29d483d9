"""The conda recipe asks for what setup.cfg asks for."""

from __future__ import annotations

import configparser
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CONDA_NAMES = {"matplotlib": "matplotlib-base", "ortools": "ortools-python", "xxhash": "python-xxhash"}
"""Of packages that conda-forge calls otherwise than PyPI."""


@pytest.fixture(scope="module")
def recipe() -> dict[str, Any]:
    jinja2 = pytest.importorskip("jinja2")
    text = (ROOT / "conda.recipe" / "meta.yaml").read_text(encoding="utf-8")
    # What conda-build itself defines; any other name that the recipe does not set is an error.
    rendered = jinja2.Environment(undefined=jinja2.StrictUndefined).from_string(text).render(PYTHON="python")
    return yaml.safe_load(rendered)


@pytest.fixture(scope="module")
def setup() -> configparser.ConfigParser:
    parsed = configparser.ConfigParser()
    parsed.read(ROOT / "setup.cfg", encoding="utf-8")
    return parsed


def lines(text: str) -> list[str]:
    return text.strip().splitlines()


def as_conda(requirement: str) -> str:
    """Return ``numpy>=1.26`` as ``numpy >=1.26``, under conda-forge's name."""
    name, bound = re.fullmatch(r"([\w-]+)(>=[\d.]+(?:,<[\d.]+)?)", requirement).groups()  # type: ignore[union-attr]
    return f"{CONDA_NAMES.get(name, name)} {bound}"


def test_the_recipe_is_of_this_version(recipe: dict[str, Any], setup: configparser.ConfigParser) -> None:
    metadata = setup["metadata"]
    assert recipe["package"] == {"name": metadata["name"], "version": metadata["version"]}
    assert recipe["about"]["summary"] == metadata["description"]
    assert recipe["about"]["license"] == metadata["license"]
    assert (ROOT / recipe["about"]["license_file"]).is_file()
    assert (ROOT / "conda.recipe" / recipe["source"]["path"]).resolve() == ROOT


def test_the_recipe_requires_what_setup_cfg_requires(recipe: dict[str, Any], setup: configparser.ConfigParser) -> None:
    options = setup["options"]
    wanted = [f"python {options['python_requires']}", *map(as_conda, lines(options["install_requires"]))]
    assert sorted(recipe["requirements"]["run"]) == sorted(wanted)


def test_the_recipe_builds_with_what_pyproject_names(recipe: dict[str, Any], setup: configparser.ConfigParser) -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    lowest_python = setup["options"]["python_requires"].removeprefix(">=")
    assert recipe["requirements"]["host"] == [f"python {lowest_python}.*", "pip", *map(as_conda, build)]
    assert recipe["build"]["noarch"] == "python"


def test_the_recipe_tests_each_package_and_command(recipe: dict[str, Any], setup: configparser.ConfigParser) -> None:
    scripts = lines(setup["options.entry_points"]["console_scripts"])
    assert recipe["build"]["entry_points"] == scripts
    packages = [pattern.removesuffix("*") for pattern in lines(setup["options.packages.find"]["include"])]
    assert recipe["test"]["imports"] == packages
    assert {f"{script.split(' = ')[0]} --version" for script in scripts} < set(recipe["test"]["commands"])
