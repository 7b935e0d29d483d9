"""A view has the same names in Python and in compiled code."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest

from ddlsched.engine import compiled_views
from ddlsched.engine.native.view_types import FLOW, JOB, LINK, LOADS, NETWORK, TRANSFER, ViewType
from ddlsched.network.contention import SharedLink
from ddlsched.policies.views import FlowView, JobView, LinkLoads, NetworkView, TransferView
from ddlsched.testing import network_view

NOT_COMPILED = {"job_id", "dag", "shares"}
"""What compiled code does not see."""


def names_in_python(view: object) -> set[str]:
    names = {*dir(view), *getattr(view, "__slots__", ()), *getattr(view, "__dict__", ())}
    return {name for name in names if not name.startswith("_")}


@pytest.mark.parametrize(
    ("view", "names"),
    [
        (JOB, names_in_python(JobView) - NOT_COMPILED),
        (TRANSFER, names_in_python(TransferView) - NOT_COMPILED),
        (NETWORK, names_in_python(network_view()) | names_in_python(NetworkView)),
        (LINK, {field.name for field in dataclasses.fields(SharedLink)}),
        (FLOW, names_in_python(FlowView)),
        (LOADS, names_in_python(LinkLoads)),
    ],
    ids=["job", "transfer", "network", "link", "flow", "network of a path policy"],
)
def test_names_are_the_same_in_both_worlds(view, names):
    assert compiled_views.names_of(view) == names


@pytest.mark.parametrize("view", [NETWORK, LOADS], ids=["network", "network of a path policy"])
def test_item_27_a_network_shows_all_its_links_from_the_first(view: ViewType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_views, "state_of", lambda _: SimpleNamespace(links="abc"))
    monkeypatch.setattr(compiled_views, "make_links", lambda _, first, count: [*range(first, first + count)])
    assert compiled_views._attributes["links"][view.what](None) == [0, 1, 2]
