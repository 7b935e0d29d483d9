"""``ddlsched doctor``: what works here."""

from __future__ import annotations

import json
import platform

import pytest
from command_line import run

from ddlsched.cli import installation_commands


def test_everything_that_a_run_needs_works_here() -> None:
    done = run("doctor")
    assert done.exit_code == 0
    assert platform.python_version() in done.stdout
    assert done.stdout.startswith("Works here\n")


def test_what_is_missing_says_for_what_and_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/tc" if name == "tc" else None)
    checks = {found["what"]: found for found in map(json.loads, run("doctor", "--json").stdout.splitlines())}
    assert checks["tc"]["works"]
    assert checks["chromium"] == {
        "what": "chromium",
        "purpose": "tests/browser",
        "works": False,
        "found": "not found",
        "get": "tests/browser/run installs it",
    }
    assert "sinfo" in run("doctor").stdout.partition("Missing")[2]


def test_a_package_that_every_run_needs_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = installation_commands.version

    def without_numba(name: str) -> str:
        if name == "numba":
            raise installation_commands.PackageNotFoundError(name)
        return found(name)

    monkeypatch.setattr(installation_commands, "version", without_numba)
    done = run("doctor")
    assert done.exit_code == 1
    assert "not installed; for every run: pip install -e ." in done.stdout


def test_a_cache_that_cannot_be_written_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddlsched.engine.native.kept_files.cache_folder", lambda: None)
    done = run("doctor")
    assert done.exit_code == 1
    assert "compiles anew; for every run: set NUMBA_CACHE_DIR" in done.stdout
