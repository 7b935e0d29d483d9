"""An agent that hands out workers, none of which is asked for here."""

from __future__ import annotations

import threading

import pytest

from ddlsched.real.channel import parse_address
from ddlsched.real.testbed import crews


def test_an_agent_serves_until_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    for part, name in ((crews, "prepare"), (crews.signal, "signal")):  # of a whole process; no PyTorch
        monkeypatch.setattr(part, name, lambda *_: None)
    agent = crews.WorkerAgent(parse_address("127.0.0.1:0", any_port=True), b"a token for tests only")
    serving = threading.Thread(target=agent.serve, daemon=True)
    serving.start()
    agent.close()
    serving.join(10)
    assert not serving.is_alive()
