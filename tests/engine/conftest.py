"""Shared by the tests of the engine."""

from collections.abc import Iterator

import pytest

from ddlsched.engine import driver


@pytest.fixture(scope="module", autouse=True)
def _periods_are_looked_for_at_once() -> Iterator[None]:
    """Short runs jump too, so that whatever is compared is compared with jumps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "ROUNDS_BEFORE_JUMPS", 0)
        yield
