"""What is made is written down first, removed later, and nobody else's is touched; namespaces are stood in for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import InputError, TestbedError
from ddlsched.real.testbed import namespaces
from ddlsched.real.testbed.cabling import Cabling
from ddlsched.real.testbed.namespaces import Registry

SMALL = Cluster(num_servers=2)
ALL = ["ddlsched-net", "ddlsched-0", "ddlsched-1"]


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The namespaces of a machine that has none of its own, on which one is root."""
    names: list[str] = []

    def build(plan: Cabling) -> None:
        names.extend(plan.namespaces)

    def remove(gone: tuple[str, ...]) -> list[str]:
        found = [name for name in gone if name in names]
        names[:] = [name for name in names if name not in gone]
        return found

    monkeypatch.setattr(namespaces, "build", build)
    monkeypatch.setattr(namespaces, "remove", remove)
    monkeypatch.setattr(namespaces, "refuse_unable", lambda: None)
    monkeypatch.setattr(namespaces, "existing", lambda wanted: [name for name in wanted if name in names])
    return names


def test_a_runs_network_goes_with_the_run(tmp_path: Path, there: list[str]) -> None:
    with Registry(tmp_path) as held, held.used(SMALL):
        assert there == ALL
    assert there == []
    with Registry(tmp_path) as held:
        assert held.made() is None


def test_it_goes_when_the_run_fails(tmp_path: Path, there: list[str]) -> None:
    with pytest.raises(KeyboardInterrupt), Registry(tmp_path) as held, held.used(SMALL):
        raise KeyboardInterrupt
    assert there == []


def test_it_goes_when_it_was_made_in_part(tmp_path: Path, there: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def build(plan: Cabling) -> None:
        there.append(plan.namespaces[0])
        raise TestbedError("tc: no such thing")

    monkeypatch.setattr(namespaces, "build", build)
    with Registry(tmp_path) as held:
        with pytest.raises(TestbedError, match="no such thing"):
            held.make(SMALL, "up")
        assert (there, held.made()) == ([], None)


def test_what_a_killed_run_left_the_next_one_removes(tmp_path: Path, there: list[str]) -> None:
    with Registry(tmp_path) as held:
        held.make(SMALL, "run")
    there.remove("ddlsched-1")  # it was killed while it removed
    with Registry(tmp_path) as held, held.used(Cluster(num_servers=3)):
        assert there == [*ALL, "ddlsched-2"]
    assert there == []


def test_one_that_is_up_is_used_and_stays(tmp_path: Path, there: list[str]) -> None:
    with Registry(tmp_path) as held:
        held.make(SMALL, "up")
    with Registry(tmp_path) as held, held.used(SMALL):
        assert there == ALL
    assert there == ALL
    with Registry(tmp_path) as held:
        assert held.remove_dead() == []
        assert held.remove() == ALL


def test_another_one_that_is_up_is_refused(tmp_path: Path, there: list[str]) -> None:
    with Registry(tmp_path) as held:
        held.make(SMALL, "up")
        with pytest.raises(InputError, match=r"a testbed is up \(2 servers, star\); expected `ddlsched testbed down`"):
            held.make(Cluster(num_servers=3), "run")
    assert there == ALL


def test_one_that_is_up_but_lacks_a_namespace_is_refused(tmp_path: Path, there: list[str]) -> None:
    with Registry(tmp_path) as held:
        held.make(SMALL, "up")
        there.remove("ddlsched-0")
        with pytest.raises(InputError, match=r"ddlsched-0 is gone; expected `ddlsched testbed down`"), held.used(SMALL):
            pass


def test_a_namespace_of_somebody_elses_is_refused_and_stays(tmp_path: Path, there: list[str]) -> None:
    there.append("ddlsched-1")
    with Registry(tmp_path) as held, pytest.raises(InputError, match=r"namespace ddlsched-1 exists and is not the"):
        held.make(SMALL, "run")
    assert there == ["ddlsched-1"]


@pytest.mark.long
def test_two_testbeds_at_once_are_refused_until_the_first_has_ended(tmp_path: Path, there: list[str]) -> None:
    program = f"""
import sys, time
from pathlib import Path
from ddlsched.real.testbed.namespaces import Registry
held = Registry(Path({str(tmp_path)!r}))
print("held", flush=True)
sys.stdin.read()
"""
    other = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    try:
        with pytest.raises(InputError, match=rf"another testbed is in use \(process {other.pid}\)"):
            Registry(tmp_path)
    finally:
        other.kill()
        other.communicate()
    Registry(tmp_path).__exit__()


@pytest.mark.parametrize("text", ["", "[]", '{"kind": "run"}', json.dumps({"namespaces": 3})])
def test_a_file_that_is_none_of_ours_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "made.json").write_text(text)
    with Registry(tmp_path) as held, pytest.raises(InputError, match=r"made\.json: is no list of namespaces"):
        held.made()


def test_without_root_nothing_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "build", lambda _: pytest.fail("it is made"))
    monkeypatch.setattr(namespaces.os, "geteuid", lambda: 1000)
    with Registry(tmp_path) as held, pytest.raises(InputError, match=r"needs root; expected: sudo ddlsched testbed"):
        held.make(SMALL, "run")
    assert not (tmp_path / "made.json").exists()


def test_without_tc_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "build", lambda _: pytest.fail("it is made"))
    monkeypatch.setattr(namespaces.os, "geteuid", lambda: 0)
    monkeypatch.setattr(namespaces.shutil, "which", lambda tool: None if tool == "tc" else f"/sbin/{tool}")
    with Registry(tmp_path) as held, pytest.raises(InputError, match=r"^tc: not found; expected iproute2"):
        held.make(SMALL, "run")
