"""Kernels of a GPU at hand: their file, the constants that they give, and the estimate that takes them."""

from __future__ import annotations

import dataclasses
import json
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from command_line import refused, run
from experiment_scripts import EXPERIMENTS, scripts_of

from ddlsched.training.estimate import kernel_speeds as kernel_speeds_module
from ddlsched.training.estimate.hardware import Efficiency, operations_s
from ddlsched.training.estimate.kernel_speeds import (
    STEP_ERROR,
    Kernel,
    _product,
    _shapes,
    kernel_speeds,
    read_kernels,
    write_kernels,
)
from ddlsched.training.estimate.layers import Operation
from ddlsched.training.estimate.presets import GPUS

(from_kernels,) = scripts_of("step_times", "from_kernels")
TRUTH = Efficiency(matrix=0.6, half_flops=2e9, by_precision={"fp8": 0.5}, attention=0.9, memory=0.8)


def made_up(gpu_name: str = "h100") -> list[Kernel]:
    """Return kernels that take just what an efficiency says."""
    gpu = GPUS[gpu_name]
    bandwidth = gpu.memory_bytes_per_s * 0.8
    kernels = [Kernel("a GPU", "copy", "half", "1", 0.0, 1e9, 1e9 / bandwidth)]
    for precision, share in (("half", 0.6), ("fp8", 0.5)):
        for flops in (1e7, 1e8, 1e9, 1e10, 1e11, 1e12):
            seconds = max(5e-6, (flops + 2e9) / (share * gpu.peak(precision)))  # type: ignore[arg-type]
            kernels.append(Kernel("a GPU", "product", precision, "1x1x1", flops, 1.0, seconds))
    kernels.append(Kernel("a GPU", "attention", "half", "512x128", 1e12, 1.0, 9.0))
    for width, share in ((128, 0.9), (64, 0.72)):
        seconds = 1e12 / (share * gpu.peak("half"))
        kernels.append(Kernel("a GPU", "attention", "half", f"4096x{width}", 1e12, 1.0, seconds))
    kernels.append(Kernel("a GPU", "elementwise", "half", "norm", 0.0, 1e9, 1e9 / (gpu.memory_bytes_per_s * 0.6)))
    kernels.append(Kernel("a GPU", "elementwise", "half", "sum", 0.0, 1e9, 1e9 / (gpu.memory_bytes_per_s * 0.3)))
    return kernels


@pytest.mark.parametrize(("each_s", "counted"), [(0.003, 83), (9.0, 1), (1e-9, 1000)])
def test_kernels_run_for_some_time_and_the_first_two_are_not_counted(
    each_s: float, counted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now_s=5.0, runs=0)

    def run_once() -> None:
        clock.runs += 1
        clock.now_s += each_s

    monkeypatch.setattr(kernel_speeds_module, "time", SimpleNamespace(perf_counter=lambda: clock.now_s))
    assert kernel_speeds_module._seconds(None, "cpu", run_once) == pytest.approx(each_s, rel=1e-3)
    assert clock.runs == 2 + counted


def test_constants_of_kernels_are_found_again(tmp_path: Path) -> None:
    path = tmp_path / "kernels.csv"
    write_kernels(made_up(), path)
    found = kernel_speeds(read_kernels(path), GPUS["h100"])
    assert found.error < 0.01
    efficiency = found.given_to(Efficiency(gap_s=3e-6, by_precision={"fp8": 0.9, "other": 0.3}))
    assert (efficiency.matrix, efficiency.half_flops, efficiency.attention) == pytest.approx((0.6, 2e9, 0.9), rel=1e-2)
    assert efficiency.by_precision == pytest.approx({"fp8": 0.5, "other": 0.3}, rel=1e-2)
    assert (efficiency.narrow, efficiency.memory, efficiency.gap_s) == pytest.approx((0.8, 1.0, 3e-6))
    alone = found.alone()
    assert (alone.matrix, alone.attention, alone.memory) == pytest.approx((0.6, 0.9, 0.4), rel=1e-2)
    assert (alone.launch_s, alone.gap_s) == pytest.approx((5e-6, 0.0), rel=0.05)


@pytest.mark.long
def test_an_estimate_takes_measured_kernels(tmp_path: Path) -> None:
    path = tmp_path / "kernels.csv"
    write_kernels(made_up(), path)
    arguments = ("estimate", "llama-3-8b", "--cluster", "h100", "--data", "8", "--zero", "3", "--json")
    slow, fast = (json.loads(run(*arguments, *more).stdout) for more in (("--gpu", path), ("--efficiency", "ideal")))
    assert "as measured on a GPU" in slow["remark"]
    assert slow["compute_s"] > fast["compute_s"]


@pytest.mark.long
def test_one_gpu_takes_all_from_its_kernels(tmp_path: Path) -> None:
    path = tmp_path / "kernels.csv"
    write_kernels(made_up(), path)
    arguments = ("estimate", "llama-3-8b", "--cluster", "h100", "--gpu", path, "--json")
    alone, of_program = (
        json.loads(run(*arguments, *more).stdout) for more in ((), ("--efficiency", "megatron-bridge"))
    )
    assert "6 % typical error of steps on one GPU" in alone["remark"]
    assert (alone["efficiency"], of_program["efficiency"]) == ("kernels", "megatron-bridge")
    assert "products and attention as measured" in of_program["remark"]
    assert alone["compute_s"] != of_program["compute_s"]
    write_kernels([one for one in made_up() if one.kernel == "product"], path)
    assert "products and attention as measured" in json.loads(run(*arguments).stdout)["remark"]


def test_a_width_that_was_not_measured_is_no_slower() -> None:
    wide = [one for one in made_up() if not one.size.endswith("x64")]
    assert kernel_speeds(wide, GPUS["h100"]).constants["narrow"] == 1


@pytest.mark.long
def test_steps_measured_on_real_gpus_are_met_by_their_kernels() -> None:
    steps = pd.read_csv(EXPERIMENTS / "step_times" / "expected" / "own_steps.csv")
    own = pd.DataFrame(list(from_kernels.compared()))
    pd.testing.assert_frame_equal(own.round(3), steps.round(3), atol=1.1e-3)
    assert set(own["gpu"]) == {"h100", "h200"}
    assert own["by_kernels"].abs().mean() == pytest.approx(STEP_ERROR, abs=0.005)
    assert own["by_kernels"].abs().max() < 0.25


def test_kernels_of_another_gpu_are_refused() -> None:
    with pytest.raises(Exception, match=r"reach .* of the peak of a100-80; expected those of the GPU of --cluster"):
        kernel_speeds([one for one in made_up() if one.precision == "half"], GPUS["a100-80"])


HEAD = "gpu,kernel,precision,size,flops,traffic_bytes,seconds\n"
BAD = {
    "gpu,kernel\n": "column 'precision' is missing",
    f"{HEAD}a,product,half,1,1,1,0\n": "column seconds: '0' is out of range",
    f"{HEAD}a,copy,half,1,0,1,1\n": "has no products",
    f"{HEAD}a,product,half,1,0,1,1\n": "column flops: '0' is out of range",
    f"{HEAD}a,elementwise,half,1,0,0,1\n": "column traffic_bytes: '0' is out of range",
    f"{HEAD}a,attention,half,2048,1,1,1\n": "column size: is '2048'; expected tokens x numbers of a head",
    f"{HEAD}a,attention,half,2048x128x3,1,1,1\n": "column size: is '2048x128x3'",
}


@pytest.mark.parametrize("text", BAD)
def test_a_bad_file_is_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kernels.csv"
    path.write_text(text)
    refused(run("estimate", "llama-3-8b", "--cluster", "h100", "--gpu", path), BAD[text])


def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    if find_spec("torch") is None:
        refused(run("calibrate-gpu", "--out", tmp_path / "kernels.csv"), "calibrate-gpu needs torch")
    refused(run("calibrate-gpu", "--out", tmp_path / "x.csv", "--device", "tpu"), "--device tpu: expected cuda or cpu")


@pytest.mark.torch
def test_kernels_are_measured_on_a_cpu(tmp_path: Path) -> None:
    import torch

    out = tmp_path / "kernels.csv"
    if not torch.cuda.is_available():
        refused(run("calibrate-gpu", "--out", out), "PyTorch finds no GPU")
    done = run("calibrate-gpu", "--out", out, "--device", "cpu", "--shapes", "2", "--largest", "256")
    assert done.exit_code == 0, done.stderr
    kernels = read_kernels(out)
    assert [one.kernel for one in kernels] == ["product"] * 4 + ["attention"] * 2 + ["elementwise"] * 3 + ["copy"]
    assert {one.precision for one in kernels} == {"half", "single"}
    assert all(one.seconds > 0 for one in kernels)
    assert kernel_speeds(kernels, GPUS["h100"]).constants["matrix"] > 0


def test_a_product_takes_what_its_constants_say() -> None:
    gpu = GPUS["h100"]
    speeds = kernel_speeds(made_up(), gpu).given_to(TRUTH)
    measured = dataclasses.replace(gpu, efficiency=speeds)
    expected_s = (1e11 + 2e9) / (0.6 * gpu.peak("half"))
    assert float(operations_s(Operation(1e11, 0.0), measured)) == pytest.approx(expected_s, rel=0.02)


def test_sides_of_products_are_powers_of_two_and_half_as_much_again() -> None:
    assert _shapes(1, 192) == [(192, 192, 192)]
    assert {side for shape in _shapes(64, 400) for side in shape} == {128, 192, 256, 384}


@pytest.mark.parametrize(("precision", "number"), [("half", "bfloat16"), ("single", "float32")])
def test_item_27_products_are_measured_in_their_own_precision(precision: str, number: str) -> None:
    torch = pytest.importorskip("torch")
    product: Any = _product(torch, "cpu", precision, 2, 3, 4)()
    assert (product.dtype, product.shape) == (getattr(torch, number), (2, 4))
