"""SIGTERM ends a run as Ctrl-C does, and neither comes between while namespaces are removed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from ddlsched.real.testbed.machine import sigterm_as_ctrl_c, undisturbed

ROOT = Path(__file__).parents[3]
NUMBERS = [signal.SIGINT, signal.SIGTERM]


def run_with_signals(number: signal.Signals) -> tuple[int, list[str]]:
    """Return the exit code and the lines of a run that is sent a signal at work, and again while it removes."""
    program = f"""
    import os, signal, sys, time
    from pathlib import Path
    from ddlsched.cli.app import ReportingGroup
    from ddlsched.cluster.cluster import Cluster
    from ddlsched.real.testbed import namespaces as registry
    from ddlsched.real.testbed.machine import sigterm_as_ctrl_c
    import tempfile, typer

    def remove(names):
        for number in ({signal.SIGINT:d}, {signal.SIGTERM:d}):
            os.kill(os.getpid(), number)
        time.sleep(0.05)
        print("removed", len(names))
        return list(names)

    registry.build, registry.remove = lambda plan: None, remove
    registry.refuse_unable, registry.existing = lambda: None, lambda names: []
    app = typer.Typer(cls=ReportingGroup)

    @app.callback()
    def group(): pass

    @app.command()
    def run():
        held = registry.Registry(Path(tempfile.mkdtemp()))
        with sigterm_as_ctrl_c(), held, held.used(Cluster(num_servers=2)):
            os.kill(os.getpid(), {number:d})
            time.sleep(30)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    app(["run"])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, [*done.stdout.splitlines(), *done.stderr.splitlines()]


@pytest.mark.long
@pytest.mark.parametrize("number", NUMBERS)
def test_a_run_that_gets_a_signal_removes_all_whatever_comes_meanwhile(number: signal.Signals) -> None:
    assert run_with_signals(number) == (130, ["removed 3", "ddlsched: error: interrupted"])


def test_sigterm_is_ctrl_c_only_meanwhile() -> None:
    with pytest.raises(KeyboardInterrupt), sigterm_as_ctrl_c():
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize("own", [signal.SIG_IGN, lambda *_: None])
def test_a_process_that_has_its_own_use_for_sigterm_keeps_it(own: object) -> None:
    before = signal.signal(signal.SIGTERM, own)  # type: ignore[arg-type]
    try:
        with sigterm_as_ctrl_c():
            assert signal.getsignal(signal.SIGTERM) is own
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_another_thread_changes_no_handler() -> None:
    found: list[object] = []

    def look() -> None:
        with sigterm_as_ctrl_c(), undisturbed():
            found.extend(map(signal.getsignal, NUMBERS))

    before = list(map(signal.getsignal, NUMBERS))
    thread = threading.Thread(target=look)
    thread.start()
    thread.join(60)
    assert found == before
