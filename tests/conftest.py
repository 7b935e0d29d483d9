"""Shared by all tests."""

from __future__ import annotations

import os

import hypothesis

# The same examples at every run, so that a failure is there for everybody; more of them with FUZZ=1.
hypothesis.settings.register_profile("default", deadline=None, derandomize=True)
hypothesis.settings.register_profile("fuzz", deadline=None, max_examples=5000)
hypothesis.settings.load_profile("fuzz" if os.environ.get("FUZZ") else "default")


def pytest_configure(config) -> None:
    """Compile the event loop once, before parallel test processes would each do it."""
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        import ddlsched

        ddlsched.simulate(ddlsched.microsoft_160(seed=1, scale=0.001))
