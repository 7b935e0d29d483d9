"""A wheel and an sdist hold everything, and work from any working directory."""

from __future__ import annotations

import configparser
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import tiers
import yaml

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build an sdist from a copy of the tree, and a wheel from the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    copy = tmp_path_factory.mktemp("source")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in listed.decode().rstrip("\0").split("\0"):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((ROOT / name).read_bytes())
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(copy)]
    subprocess.run(build, capture_output=True, check=True, cwd=folder)
    return folder


@pytest.mark.slow
def test_wheel_holds_all_packages_and_nothing_else(distributions: Path) -> None:
    (wheel,) = distributions.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    packages = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert packages == {"ddlsched", "algorithms", "topologies"}
    for package in packages:
        assert f"{package}/py.typed" in names
        sources = {str(path.relative_to(ROOT)) for path in (ROOT / package).rglob("*.py")}
        assert sources <= set(names)
    page = {f"ddlsched/comparisons/report/page/report.{suffix}" for suffix in ("html", "css", "js")}
    assert page <= set(names)


@pytest.mark.slow
def test_sdist_has_licence_and_readme(distributions: Path) -> None:
    (sdist,) = distributions.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {"LICENSE", "README.md", "setup.cfg", "pyproject.toml"} <= names


@pytest.mark.slow
def test_installed_wheel_runs_from_any_folder(distributions: Path, tmp_path: Path) -> None:
    (wheel,) = distributions.glob("*.whl")
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(site), str(wheel)]
    subprocess.run(pip, check=True, capture_output=True)
    program = (
        "import ddlsched, algorithms, topologies, importlib.metadata\n"
        "result = ddlsched.simulate(ddlsched.microsoft_160(seed=1, scale=0.001), scheduler='ada-srsf')\n"
        "print(ddlsched.__file__, algorithms.__file__, topologies.__file__, result.summary()['events'] > 1000)"
    )
    # As plain Python: that the wheel works must not wait for a compilation.
    environment = os.environ | {"PYTHONPATH": str(site), "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    *files, ran = done.stdout.split()
    assert all(Path(file).is_relative_to(site) for file in files)
    assert ran == "True"


@pytest.mark.slow
def test_a_package_index_takes_the_distributions(distributions: Path) -> None:
    pytest.importorskip("twine")
    files = [str(path) for path in distributions.iterdir()]
    done = subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("PASSED") == len(files) == 2


def test_the_citation_names_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    assert citation["version"] == setup["metadata"]["version"]
    assert citation["license"] == setup["metadata"]["license"]
    assert citation["title"].startswith("ddlsched")


def test_the_workflow_runs_commands_that_are_there() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "checks.yml").read_text(encoding="utf-8"))
    commands = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    own = [command for command in commands if not command.startswith("python ")]
    assert own == [".ci/run", "docs/build"]
    assert all(os.access(ROOT / command, os.X_OK) for command in own)


def test_what_must_pass_is_what_runs_by_default_and_long_tests() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    chosen = re.search('-m "(.*)"', setup["tool:pytest"]["addopts"])
    assert chosen is not None
    assert chosen[1].replace("not long and ", "") == tiers.MUST_PASS


def test_item_21_scripts_install_from_the_package_registry_and_no_other_index() -> None:
    scripts = [path for path in ROOT.glob("tests/**/run") if path.is_file()]
    installing = [path for path in scripts if "pip install" in path.read_text(encoding="utf-8")]
    assert len(installing) >= 3
    for path in installing:
        assert "index-url" not in path.read_text(encoding="utf-8"), path
