"""The run of COMET's author: a slice of Transformer-1T, model-parallel over 128 GPUs and data-parallel over 8."""

from __future__ import annotations

from dataclasses import dataclass

from ddlsched.training.estimate.collectives import Span, collective_s
from ddlsched.training.estimate.hardware import Gpu, operations_s
from ddlsched.training.estimate.layers import matrix_product
from ddlsched.training.estimate.step_estimate import LayerTimes, layerwise_step

GIB = 2.0**30
"""A "GB/s" of that run is 2^30 bytes a second."""
PASSES = 10

GPU = Gpu(
    name="the author's",
    peak_flops_per_s={"half": 7.68e15},
    memory_bytes=0.0,
    memory_bytes_per_s=115_200e9,
    link_bytes_per_s=150 * GIB,
)
V100 = Gpu(
    name="V100",
    peak_flops_per_s={"half": 125e12},
    memory_bytes=32e9,
    memory_bytes_per_s=900e9,
    link_bytes_per_s=150 * GIB,
)

MODEL_GROUP = (Span(16, 6 * 25 * GIB), Span(8, 12.5 * GIB))
"""128 GPUs on tiers of [16, 64] are 16 x 8; the data-parallel group gets the remaining 8 of the outer tier."""
DATA_GROUP = (Span(8, 12.5 * GIB),)


@dataclass(frozen=True, kw_only=True)
class Collectives:
    """Times of the slice's four collectives, seconds; by default those of the closed form."""

    activations_s: float = float(collective_s("all-reduce", 6_442_450_944, MODEL_GROUP))
    shards_s: float = float(collective_s("all-gather", 50_331_648, MODEL_GROUP))
    small_weights_s: float = float(collective_s("all-reduce", 9_437_184, DATA_GROUP))
    large_weights_s: float = float(collective_s("all-reduce", 37_748_736, DATA_GROUP))


MEASURED = Collectives(activations_s=75_018.305e-6, shards_s=37_911.0e-6)
"""With the two that the author's network simulator measured."""


def gemm_s(gpu: Gpu, m: int, k: int, n: int) -> float:
    """Return the roofline's time of a matrix product, seconds."""
    (operation,) = matrix_product("", m, k, n).forward
    return float(operations_s(operation, gpu))


def block(number: int, times: Collectives) -> list[LayerTimes]:
    """Return the nine layers of a block, as the author's workload file lists them."""
    model, small, large = times.activations_s, times.small_weights_s, times.large_weights_s
    rows = [
        ("Q", (131_072, 24_576, 192), 0.0, model, small),
        ("K", (131_072, 24_576, 192), 0.0, 0.0, small),
        ("V", (131_072, 24_576, 192), 0.0, 0.0, small),
        ("QK", (16_384, 192, 1_024), 0.0, 0.0, 0.0),
        ("Softmax", (16_384, 1_024, 192), 0.0, 0.0, 0.0),
        ("Concat", (131_072, 192, 24_576), model, times.shards_s, small),
        ("FF1", (131_072, 24_576, 768), 0.0, 0.0, large),
        ("FF2", (131_072, 768, 24_576), model, model, large),
        ("LayerNorm", (262_144, 24_576, 24_576), 0.0, 0.0, 0.0),
    ]
    return [_layer(f"{name} {number}", sizes, *collectives) for name, sizes, *collectives in rows]


def _layer(name: str, sizes: tuple[int, int, int], forward: float, inputs: float, weights: float) -> LayerTimes:
    seconds = gemm_s(GPU, *sizes)
    return LayerTimes(
        name=name,
        forward_s=seconds,
        input_gradient_s=seconds,
        weight_gradient_s=seconds,
        forward_collective_s=forward,
        input_gradient_collective_s=inputs,
        weight_gradient_collective_s=weights,
    )


def run_s(times: Collectives | None = None) -> float:
    """Return the seconds of one pass over two blocks, before whose backward each but for its last layer runs again."""
    times = times or Collectives()
    blocks = [block(number, times) for number in (1, 2)]
    again = [layerwise_step(layers[:-1]) for layers in blocks]
    again_s = sum(part.forward_s + part.exposed_forward_s for part in again)
    return float(layerwise_step([layer for layers in blocks for layer in layers]).step_s + again_s)
