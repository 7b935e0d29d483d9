"""Every contention model that has a name has a form that is asked in Python."""

from __future__ import annotations

import pytest

from ddlsched.plugins.names import names, resolve
from ddlsched.testing import python_form


@pytest.mark.parametrize("name", names("contention"))
def test_the_python_form_of_a_contention_model_is_equal_but_not_compiled(name: str) -> None:
    model = resolve("contention", name)
    plain = python_form(model)
    assert type(plain).__mro__[1] is type(model)
    assert plain.compiled is False
    assert repr(plain) == repr(model)


class Plain:
    """An order with memory that is no dataclass."""

    def begin(self, cluster: object, rng: object) -> Plain:
        return Plain()

    def key(self, job: object, now_s: float) -> int:
        return 0


def test_a_policy_that_is_no_dataclass_has_a_python_form_too() -> None:
    policy = Plain()
    plain = python_form(policy)
    assert (plain.compiled, plain.begin(None, None).compiled) == (False, False)
    assert type(policy) is Plain
    assert not hasattr(policy, "compiled")
