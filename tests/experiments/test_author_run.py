"""The run of COMET's author, row by row."""

from __future__ import annotations

import pytest
from experiment_scripts import scripts_of

from ddlsched.training.estimate.collectives import collective_s

(author,) = scripts_of("cluster_design", "author_run")
PASSES_S = 12.369744580


def test_v100_roofline_of_gemm_q() -> None:
    assert author.gemm_s(author.V100, 131_072, 24_576, 192) == pytest.approx(9895.605e-6, rel=1e-6)


@pytest.mark.parametrize(
    ("kind", "message_bytes", "group", "measured_us", "closed_us"),
    [
        ("all-reduce", 6_442_450_944, author.MODEL_GROUP, 75_018.3, 75_000.0),
        ("all-reduce", 201_326_592, author.MODEL_GROUP, 2_345.4, 2_343.75),
        ("all-gather", 50_331_648, author.MODEL_GROUP, 37_911.0, 37_910.15625),
        ("all-reduce", 9_437_184, author.DATA_GROUP, 1_231.55, 1_230.46875),
    ],
)
def test_collectives(kind, message_bytes, group, measured_us, closed_us) -> None:
    found_us = 1e6 * collective_s(kind, message_bytes, group)
    assert found_us == pytest.approx(closed_us, rel=1e-9)
    assert found_us == pytest.approx(measured_us, rel=1e-3)


@pytest.mark.parametrize(
    ("sizes", "nanoseconds"),
    [
        ((131_072, 24_576, 192), 161_061),
        ((131_072, 192, 24_576), 161_061),
        ((131_072, 24_576, 768), 644_245),
        ((16_384, 192, 1_024), 838),
        ((16_384, 1_024, 192), 838),
        ((262_144, 24_576, 24_576), 41_231_686),
    ],
)
def test_single_layers_to_the_nanosecond(sizes, nanoseconds) -> None:
    """The author's run counts whole nanoseconds, rounded down."""
    assert int(1e9 * author.gemm_s(author.GPU, *sizes)) == nanoseconds


def test_whole_run_with_the_two_measured_collectives() -> None:
    step_s = author.run_s(author.MEASURED)
    assert 10 * step_s == pytest.approx(PASSES_S, rel=1e-6)
    assert step_s == pytest.approx(1.23697, abs=5e-6)


def test_whole_run_with_our_own_collectives() -> None:
    assert 10 * author.run_s() == pytest.approx(PASSES_S, rel=1e-3)


def test_the_groups_are_what_the_tiers_of_1024_gpus_give() -> None:
    from ddlsched.training.estimate.collectives import split_group

    model, data = split_group([128, 8], [16, 64])
    assert [int(size) for size in model] == [span.size for span in author.MODEL_GROUP] == [16, 8]
    assert [int(size) for size in data] == [1, 8]


def test_without_recomputation_the_run_is_shorter_by_the_recomputed_forward() -> None:
    from ddlsched.training.estimate.step_estimate import layerwise_step

    layers = [*author.block(1, author.MEASURED), *author.block(2, author.MEASURED)]
    again_s = sum(layer.forward_s + layer.forward_collective_s for layer in layers[:8] + layers[9:17])
    assert author.run_s(author.MEASURED) - layerwise_step(layers).step_s == pytest.approx(again_s)
