"""Which kernels ``calibrate-gpu`` runs, and what it counts of them, with a stand-in for PyTorch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command_line import refused, run
from kept_numbers import answered

from ddlsched.training.estimate import kernel_speeds as speeds
from ddlsched.training.estimate.hardware import Gpu
from ddlsched.training.estimate.kernel_speeds import Kernel, kernel_speeds, measured_kernels, read_kernels


class Tensor:
    """A shape and a type; what is done with it says so."""

    def __init__(self, *shape: int, of: str | None = None) -> None:
        self.shape, self.of = shape, of or "float"

    def __str__(self) -> str:
        return f"{'x'.join(map(str, self.shape))} {self.of}"

    def to(self, of: str) -> Tensor:
        return Tensor(*self.shape, of=of)

    def t(self) -> Tensor:
        return Tensor(*reversed(self.shape), of=f"{self.of} by columns")

    def detach(self) -> str:
        return f"{self} alone"

    def copy_(self, other: Tensor) -> str:
        return f"{other} into {self}"

    def __matmul__(self, other: Tensor) -> str:
        return f"({self}) @ ({other})"

    def __radd__(self, other: str) -> str:
        return f"{other} + {self}"


def made(size: Any, *, device: str, dtype: str | None = None, requires_grad: bool = False) -> Tensor:
    assert device in ("cpu", "cuda")
    shape = size if isinstance(size, tuple) else (size,)
    return Tensor(*shape, of=(dtype or "float") + " trained" * requires_grad)


def stand_in(capability: tuple[int, int] = (9, 0), available: bool = True) -> Any:
    def attended(*parts: Tensor, is_causal: bool) -> str:
        return f"attention of {len(parts)}{' before' if is_causal else ''}"

    def scaled(one: Tensor, other: Tensor, *, scale_a: Tensor, scale_b: Tensor, out_dtype: str) -> str:
        return f"({one}) @ ({other}) to {out_dtype} by {scale_a.shape} {scale_b.shape}"

    def grad(of: str, parts: Any, gradient: Tensor) -> str:
        held = ", ".join(map(str, parts if isinstance(parts, tuple | list) else [parts]))
        return f"{of}, back to {held} from {gradient}"

    functional = SimpleNamespace(
        scaled_dot_product_attention=attended,
        rms_norm=lambda numbers, size, weight: f"norm over {size}",
        gelu=lambda numbers: "gelu",
    )
    return SimpleNamespace(
        randn=made, ones=made, ones_like=lambda one: Tensor(*one.shape, of="ones"), empty_like=lambda one: one,
        bfloat16="half", float8_e4m3fn="eighth", _scaled_mm=scaled, nn=SimpleNamespace(functional=functional),
        autograd=SimpleNamespace(grad=grad),
        backends=SimpleNamespace(cuda=SimpleNamespace(matmul=SimpleNamespace(allow_tf32=False))),
        cuda=SimpleNamespace(
            is_available=lambda: available, get_device_name=lambda: "a GPU", get_device_capability=lambda: capability
        ),
    )  # fmt: skip


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[tuple[Kernel, str]]]:
    """What is measured on a device, and what each kernel ran."""

    def kernels(device: str, *, shapes: int, largest: int, **told: Any) -> list[tuple[Kernel, str]]:
        torch, ran = stand_in(**told), list[str]()

        def seconds(given: Any, on: str, once: Callable[[], object]) -> float:
            assert (given, on) == (torch, device)
            ran.append(str(once()))
            return float(len(ran))

        monkeypatch.setattr(speeds, "_torch", lambda on: torch)
        monkeypatch.setattr(speeds, "_seconds", seconds)
        found = list(measured_kernels(device, shapes=shapes, largest=largest))
        assert [one.seconds for one in found] == list(range(1, len(found) + 1))
        assert torch.backends.cuda.matmul.allow_tf32 is True
        return list(zip(found, ran, strict=True))

    return kernels


def test_each_kernel_counts_its_operations_and_bytes(measured: Callable[..., list[tuple[Kernel, str]]]) -> None:
    """One product of 256 x 256 x 256 in both precisions, attention of 4 x 256 tokens, three kernels, a copy."""
    found = measured("cpu", shapes=1, largest=256)
    assert [tuple(kernel)[:6] for kernel, _ in found] == [
        ("CPU", "product", "half", "256x256x256", 2.0 * 256**3, 3 * 2.0 * 256**2),
        ("CPU", "product", "single", "256x256x256", 2.0 * 256**3, (2 * 4 + 2) * 256.0**2),
        # Forward 4 operations a pair and number, backward 2.5 times as many; 12 tensors are read or written.
        ("CPU", "attention", "half", "256x128", 14.0 * 4 * 2048 * 256**2, 24.0 * 4 * 2048 * 256),
        ("CPU", "attention", "half", "256x64", 14.0 * 4 * 2048 * 256**2, 24.0 * 4 * 2048 * 256),
        ("CPU", "elementwise", "half", "norm", 0.0, 10.0 * 256 * 2048),
        ("CPU", "elementwise", "half", "activation", 0.0, 10.0 * 256 * 2048),
        ("CPU", "elementwise", "half", "sum", 0.0, 6.0 * 256 * 2048),
        ("CPU", "copy", "half", "65536", 0.0, 4.0 * 65536),
    ]
    trained = "256x2048 half trained"
    assert [ran for _, ran in found] == [
        "(256x256 half) @ (256x256 half)",
        "(256x256 float) @ (256x256 float)",
        *(
            f"attention of 3 before, back to {', '.join([f'{size} half trained'] * 3)} from {size} half"
            for size in ("4x16x256x128", "4x32x256x64")
        ),
        f"norm over (2048,), back to {trained}, 2048 half trained from 256x2048 ones",
        f"gelu, back to {trained} from 256x2048 ones",
        f"{trained} alone + 256x2048 ones",
        "65536 half into 65536 half",
    ]


@pytest.mark.parametrize(
    ("largest", "attended"),
    [
        (128, {128: 4}),
        (512, {512: 4}),
        (600, {512: 4}),
        (2048, {512: 16, 1024: 8, 2048: 4}),
        (16384, {512: 32, 1024: 16, 2048: 8, 4096: 4, 8192: 2, 16384: 1}),
        (1 << 17, {512: 32, 1024: 16, 2048: 8, 4096: 4, 8192: 2, 16384: 1}),
    ],
)
def test_attention_grows_while_its_tokens_stay(
    measured: Callable[..., list[tuple[Kernel, str]]], largest: int, attended: dict[int, int]
) -> None:
    found = [one for one, _ in measured("cpu", shapes=1, largest=largest)]
    sizes = {one.size: one.flops for one in found if one.kernel == "attention"}
    assert sizes == {
        f"{tokens}x{width}": 14.0 * batch * 2048 * tokens**2
        for width in (128, 64)
        for tokens, batch in attended.items()
    }
    assert [one.traffic_bytes for one in found[-2:]] == [6.0 * min(largest, 16384) * 2048, 4.0 * largest**2]


@pytest.mark.parametrize(
    ("device", "capability", "other"),
    [("cuda", (8, 9), "fp8"), ("cuda", (9, 0), "fp8"), ("cuda", (8, 8), "single"), ("cpu", (9, 0), "single")],
)
def test_a_device_with_8_bits_multiplies_in_them(
    measured: Callable[..., list[tuple[Kernel, str]]], device: str, capability: tuple[int, int], other: str
) -> None:
    found = measured(device, shapes=1, largest=128, capability=capability)
    name = "a GPU" if device == "cuda" else "CPU"
    assert [(one.gpu, one.precision) for one, _ in found[:2]] == [(name, "half"), (name, other)]
    kernel, ran = found[1]
    each = {"fp8": 1, "single": 4}[other]
    assert kernel.traffic_bytes == (2 * each + 2) * 128**2
    if other == "fp8":
        assert ran == "(128x128 eighth) @ (128x128 eighth by columns) to half by () ()"


def test_a_product_has_its_own_three_sides(measured: Callable[..., list[tuple[Kernel, str]]]) -> None:
    sizes = speeds._shapes(9, 256)
    assert len(set(sizes)) == 9
    found = [(one, ran) for one, ran in measured("cuda", shapes=9, largest=256) if one.kernel == "product"]
    for (m, k, n), (half, in_half), (eight, in_eight) in zip(sizes, found[::2], found[1::2], strict=True):
        assert half.size == eight.size == f"{m}x{k}x{n}"
        assert half.flops == eight.flops == 2.0 * m * k * n
        assert (half.traffic_bytes, eight.traffic_bytes) == (2.0 * (m * k + k * n + m * n), m * k + k * n + 2.0 * m * n)
        assert in_half == f"({m}x{k} half) @ ({k}x{n} half)"
        assert in_eight.startswith(f"({m}x{k} eighth) @ ({k}x{n} eighth by columns)")


def test_sizes_of_products_are_drawn_from_all_once() -> None:
    assert len(speeds._shapes(1000, 256)) == len(set(speeds._shapes(1000, 256))) == 27
    assert speeds._shapes(5, 4096) == speeds._shapes(9, 4096)[:5]
    assert [len(speeds._shapes(200, side)) for side in (100, 128, 191, 192)] == [1, 1, 1, 8]
    assert speeds._shapes(3, 100) == [(128, 128, 128)]
    sides = {side for shape in speeds._shapes(10**5, 16384) for side in shape}
    assert sides == {128 << power for power in range(8)} | {192 << power for power in range(7)}


def test_a_gpu_has_done_its_work_before_its_time_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch takes 1 us, a kernel 3 ms, which only waiting for it shows."""
    clock = SimpleNamespace(now_s=7.0, asked_s=0.0, waits=0, runs=0)

    def once() -> None:
        clock.now_s, clock.asked_s, clock.runs = clock.now_s + 1e-6, clock.asked_s + 3e-3, clock.runs + 1

    def synchronize() -> None:
        clock.now_s, clock.asked_s, clock.waits = clock.now_s + clock.asked_s, 0.0, clock.waits + 1

    monkeypatch.setattr(speeds, "time", SimpleNamespace(perf_counter=lambda: clock.now_s))
    torch: Any = SimpleNamespace(cuda=SimpleNamespace(synchronize=synchronize))
    assert speeds._seconds(torch, "cuda", once) == pytest.approx(3.001e-3)
    assert (clock.waits, clock.runs) == (2, 2 + 83)
    speeds._seconds(torch, "cpu", once)
    assert clock.waits == 2


def test_a_device_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for available in (True, False):
        torch = stand_in(available=available)
        monkeypatch.setitem(sys.modules, "torch", torch)
        monkeypatch.setattr(speeds, "need", lambda *what, extra: None)
        assert speeds._torch("cpu") is torch
        said = answered(speeds._torch, "cuda")
        expected = "calibrate-gpu: PyTorch finds no GPU; expected one, or --device cpu --largest 512 to try it"
        assert said == (str(torch) if available else expected)


@pytest.mark.parametrize(
    ("given", "refused_with"),
    [
        (("--device", "cup"), "--device cup: expected cuda or cpu"),
        (("--shapes", "0"), "--shapes 0: expected a whole number from 1"),
        (("--largest", "127"), "--largest 127: expected a whole number from 128"),
        (("--shapes", "1", "--largest", "128", "--device", "cpu"), ""),
        ((), ""),
    ],
)
def test_the_command_writes_all_that_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: tuple[str, ...], refused_with: str
) -> None:
    asked, out = list[Any](), tmp_path / "kernels.csv"
    rows = [Kernel("a GPU", "product", "half", f"{n}x1x1", 2.0, 3.0, 0.5 * n) for n in (1, 2, 3)]

    def measured(device: str, **sizes: int) -> Any:
        asked.append((device, sizes))
        return iter(rows)

    monkeypatch.setattr(speeds, "measured_kernels", measured)
    done = run("calibrate-gpu", "--out", out, *given)
    if refused_with:
        refused(done, refused_with)
        assert not asked
        return
    assert (done.exit_code, done.stderr) == (0, f"ddlsched: wrote 3 kernels of a GPU to {out}\n")
    assert asked == [("cpu", {"shapes": 1, "largest": 128}) if given else ("cuda", {"shapes": 200, "largest": 16384})]
    assert read_kernels(out) == rows


SHEET = Gpu(
    name="sheet",
    peak_flops_per_s={"half": 1e14, "single": 1e13},
    memory_bytes=1e9,
    memory_bytes_per_s=1e12,
    link_bytes_per_s=1e11,
)


def kernel(what: str, size: str = "1x1x1", *, share: float = 0.5, precision: str = "half") -> Kernel:
    """One that reaches a share of the peak, or of the memory's bandwidth."""
    moves = what in ("copy", "elementwise")
    seconds = 1e9 / (share * 1e12) if moves else 1e12 / (share * SHEET.peak_flops_per_s[precision])
    return Kernel("a GPU", what, precision, size, 0.0 if moves else 1e12, 1e9 if moves else 0.0, seconds)


def products(share: float, precision: str = "half") -> list[Kernel]:
    return [
        kernel("product", share=share, precision=precision)._replace(
            flops=1e12 * n, seconds=n / (share * SHEET.peak_flops_per_s[precision]) * 1e12
        )
        for n in (1, 3, 10)
    ]


def test_shares_above_the_sheet_are_of_another_gpu() -> None:
    """Up to 1.15 of a peak is taken; attention counts twice the pairs that it computes, so that 2.3 is."""
    ends = "of the peak of sheet; expected those of the GPU of --cluster"
    for share, is_taken in ((1.14, True), (1.17, False)):
        said = answered(kernel_speeds, products(share), SHEET)
        assert (
            said.startswith("KernelSpeeds") if is_taken else said == f"a GPU: kernels (half) reach {share:.2f} {ends}"
        )
        attended = [kernel("attention", "2048x128", share=2 * share)]
        said = answered(kernel_speeds, [*products(0.5), *attended], SHEET)
        assert said.startswith("KernelSpeeds") if is_taken else said.startswith("a GPU: kernels (attention) reach 1.17")


@pytest.mark.long
def test_attention_is_that_of_long_sequences_of_its_width() -> None:
    def told(*attended: tuple[str, float]) -> tuple[float, float]:
        found = kernel_speeds(
            [*products(0.5), *(kernel("attention", size, share=share) for size, share in attended)], SHEET
        )
        return found.constants["attention"], found.constants["narrow"]

    assert told() == (1.0, 1.0)
    assert told(("2048x128", 0.4), ("2047x128", 0.1), ("4096x64", 0.2)) == pytest.approx((0.4, 0.5))
    assert told(("512x128", 0.4), ("4096x64", 0.2)) == pytest.approx((0.4, 0.5))  # no longer ones of that width
    assert told(("2048x128", 0.4), ("4096x128", 0.1)) == pytest.approx((0.2, 1.0))  # the geometric mean
    assert told(("2048x64", 0.3)) == pytest.approx((0.3, 1.0))
    assert told(("2048x128", 0.4), ("2048x64", 0.6)) == pytest.approx((0.4, 1.0))  # narrow ones are no faster


@pytest.mark.long
def test_a_gpu_alone_needs_attention_and_what_only_moves() -> None:
    moving = [kernel("elementwise", "norm", share=0.25), kernel("elementwise", "sum", share=0.5)]
    attended = [kernel("attention", "2048x128")]
    for more in ([], moving, attended):
        assert kernel_speeds([*products(0.5), *more], SHEET).others == {}
    found = kernel_speeds([*products(0.5), *moving, *attended, kernel("copy", share=0.9)], SHEET)
    assert found.others["memory"] == pytest.approx(1 / 3)  # 2 GB in 4 ms and 2 ms
    assert set(found.others) == {"memory", "launch_s"}
    assert found.error < 1e-3
    fast = kernel_speeds([*products(0.5), *attended, kernel("elementwise", share=3.0)], SHEET)
    assert fast.others["memory"] == 1.0


def test_without_half_precision_the_first_that_was_measured_stands_for_matrices() -> None:
    found = kernel_speeds(products(0.6, "single"), SHEET)
    assert found.constants["matrix"] == pytest.approx(0.6, rel=0.01)
    both = kernel_speeds([*products(0.6, "single"), *products(0.3)], SHEET).constants
    assert (both["matrix"], both["by_precision"]["single"]) == pytest.approx((0.3, 0.6), rel=0.01)
