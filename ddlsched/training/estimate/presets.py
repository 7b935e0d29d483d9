"""Published GPUs and models by name, and the efficiencies that measurements were fitted with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from ddlsched.errors import UnknownNameError, did_you_mean
from ddlsched.training.estimate.hardware import Efficiency, Gpu, Tier
from ddlsched.training.estimate.models import LatentAttention, Model, StateSpace, Transformer
from ddlsched.training.estimate.small_models import INCEPTION_V3, LSTM_PTB, RESNET_50, VGG_16, Dlrm

__all__ = ["A100_NODE_TIERS", "EFFICIENCIES", "GPUS", "MODELS", "plain_name", "preset", "unmodelled"]

Item = TypeVar("Item")

_GB = 1e9
_TERA = 1e12


def _gpu(
    name: str, tera: Mapping[str, float], memory: tuple[float, float], link: float, power_w: float, price: float
) -> Gpu:
    """Return a GPU from figures in TFLOP/s, GB, GB/s, W and $/h."""
    return Gpu(
        name=name,
        peak_flops_per_s={precision: peak * _TERA for precision, peak in tera.items()},
        memory_bytes=memory[0] * _GB,
        memory_bytes_per_s=memory[1] * _GB,
        link_bytes_per_s=link * _GB,
        power_w=power_w,
        price_per_hour=price,
        host_bytes_per_s=(225 if name.startswith("gb") else 64 if name[0] in "hb" else 32) * _GB,
    )


_BLACKWELL = {"half": 2250.0, "single": 1100.0, "fp8": 4500.0, "mxfp8": 4500.0}
_GRACE = {"half": 2450.0, "single": 1200.0, "fp8": 4900.0, "mxfp8": 4900.0}

GPUS: dict[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        _gpu("v100", {"half": 125, "single": 15.7}, (32, 900), 150, 300, 4),
        _gpu("a100-40", {"half": 312, "single": 156}, (40, 1555), 300, 400, 4),
        _gpu("a100-80", {"half": 312, "single": 156}, (80, 2039), 300, 400, 5),
        _gpu("h100", {"half": 989, "single": 494, "fp8": 1979}, (80, 3350), 450, 700, 12),
        _gpu("h200", {"half": 989, "single": 494, "fp8": 1979}, (141, 4800), 450, 700, 13),
        _gpu("h100-96", {"half": 989, "single": 494, "fp8": 1979}, (96, 2400), 450, 500, 12),
        _gpu("b200", _BLACKWELL | {"nvfp4": 9000}, (180, 8000), 900, 1000, 14),
        _gpu("b300", _BLACKWELL | {"nvfp4": 13500}, (270, 7700), 900, 1100, 16),
        _gpu("gb200", _GRACE | {"nvfp4": 9800}, (186, 7900), 900, 1200, 15),
        _gpu("gb300", _GRACE | {"nvfp4": 14700}, (279, 7900), 900, 1400, 17),
        _gpu("a6000", {"half": 154.8, "single": 77.4}, (48, 768), 56.25, 300, 1),
        _gpu("tpu-v4", {"half": 275}, (32, 1228), 300, 192, 3),
    )
}
"""Vendors' figures: dense matrix products ("single" is TF32 where the GPU has it), memory, links in one direction,
power.

v100: NVIDIA V100 SXM2 data sheet, 2020. a100-40, a100-80: NVIDIA A100 SXM4 data sheet, 2021. h100: NVIDIA H100 SXM5
data sheet, 2023. h200: NVIDIA H200 SXM data sheet, 2024. b200: NVIDIA DGX B200 data sheet, 2024, an eighth of the
system. a6000: NVIDIA RTX A6000 data sheet, 2021. tpu-v4: Google Cloud, "TPU v4", and Jouppi et al., ISCA 2023 (six
ports of 50 GB/s in each direction; most power). h100-96: H100 with 96 GB of HBM2e at 500 W, as torchtitan's tables name
it. b300, gb200, gb300: NVIDIA's pages of HGX B300 and of GB200 and GB300 NVL72, 2025, an eighth and a 72nd of them.

These were typed in. The sheets themselves were not at hand: those of a100-40, h200, b200 and tpu-v4 were compared with
pages that quote them at most, and tpu-v4's ports are often quoted as half of this.

To the host: PCIe of the fourth or fifth generation, 16 lanes; of gb200 and gb300 half of a superchip's NVLink-C2C.

Prices, US dollars an hour and GPU, are guesses of the order of magnitude of cloud offers and nobody's data: give your
own. """

EFFICIENCIES: dict[str, Efficiency] = {
    "ideal": Efficiency(),
    "megatron": Efficiency(matrix=0.740, half_flops=1e9, memory=0.529, kernel_s=5e-6),
    "eager": Efficiency(
        matrix=0.811, memory=0.623, gap_s=44.0e-6, launch_s=93.1e-6, crowded=1.361, collective_s=268e-6, odd=2.81
    ),
}
"""How far GPUs stay below those figures.

``ideal`` is the roofline. ``megatron`` was fitted to the eight published times of Megatron-LM with fused kernels
(experiments/cluster_design/megatron.py), ``eager`` to the rows of ``training_times`` (fit.py there), whose
kernels are launched one by one. Both were fitted on A100s; on other GPUs they are an assumption.
"""

A100_NODE_TIERS = (
    Tier(size=8, bytes_per_s=228.4e9, latency_s=6.42e-6),
    Tier(size=1, bytes_per_s=6.402e9, latency_s=10e-6),
)
"""Nodes of eight A100s as measured: inside, the fit to ``allreduce_times``; between, that to ``training_times`` (the
data sheet says 300 GB/s and, of 800 Gbit/s a node, 12.5 GB/s a GPU; the latency between nodes is assumed)."""

MODELS: dict[str, Model] = {}
_LATEST = {"gated": True, "biases": False, "learned_positions": False, "tied": False, "dropout": False}


def _latest(sizes: tuple[int, int, int, int, int], **more: Any) -> Transformer:
    """Return a language model of today: fused attention, no biases, no dropout.

    Its sizes are layers, hidden, heads, heads of keys and values (0: as many), vocabulary.
    """
    num_layers, hidden, heads, groups, vocabulary = sizes
    return Transformer(
        num_layers=num_layers,
        hidden=hidden,
        heads=heads,
        key_value_heads=groups,
        vocabulary=vocabulary,
        sequence=more.pop("sequence", 4096),
        fused_attention=True,
        **(_LATEST | more),
    )


def _experts(number: int, active: int, inner: int, shared: int = 0, dense: int = 0, **more: Any) -> dict[str, Any]:
    """Return how many experts there are and a token visits, their inner size and a shared one's, and dense layers."""
    sizes = {"experts": number, "active_experts": active, "expert_inner": inner}
    return {**sizes, "shared_inner": shared, "dense_layers": dense, **more}


def _looks_back(tokens: int, share: float) -> dict[str, Any]:
    return {"window": tokens, "windowed_share": share}


_CHUNKED = _looks_back(4096, 0.75)
"""Three of four layers look within chunks of 8,192 tokens: at half of them on average."""

MODELS |= {
    "deepseek-v3": _latest(
        (61, 7168, 128, 0, 129280),
        latent=LatentAttention(),
        feed_forward=18432,
        next_tokens=1,
        **_experts(256, 8, 2048, 2048, 3),
    ),
    "kimi-k2": _latest(
        (61, 7168, 64, 0, 163840), latent=LatentAttention(), feed_forward=18432, **_experts(384, 8, 2048, 2048, 1)
    ),
    "qwen3-235b-a22b": _latest((94, 4096, 64, 4, 151936), head_width=128, **_experts(128, 8, 1536)),
    "qwen3-30b-a3b": _latest((48, 2048, 32, 4, 151936), head_width=128, **_experts(128, 8, 768)),
    "gpt-oss-120b": _latest(
        (36, 2880, 64, 8, 201088), head_width=64, **_looks_back(128, 0.5), **_experts(128, 4, 2880)
    ),
    "nemotron-3-nano": _latest(
        (52, 2688, 32, 2, 131072),
        sequence=8192,
        head_width=128,
        gated=False,
        attention_layers=6,
        scan=StateSpace(num_layers=23, heads=64, head_width=64, state=128, groups=8),
        **_experts(128, 6, 1856, 3712),
    ),
    "nemotron-3-super": _latest(
        (88, 4096, 32, 2, 131072),
        sequence=8192,
        head_width=128,
        gated=False,
        attention_layers=8,
        next_tokens=1,
        scan=StateSpace(num_layers=40, heads=128, head_width=64, state=128, groups=8),
        **_experts(512, 22, 2688, 5376, expert_hidden=1024),
    ),
    "nemotron-h-56b": _latest(
        (118, 8192, 64, 8, 131072),
        sequence=8192,
        feed_forward=32768,
        gated=False,
        attention_layers=10,
        scan=StateSpace(num_layers=54, heads=256, head_width=64, state=256, groups=8),
    ),
    "gpt-oss-20b": _latest((24, 2880, 64, 8, 201088), head_width=64, **_looks_back(128, 0.5), **_experts(32, 4, 2880)),
    "deepseek-v2": _latest(
        (60, 5120, 128, 0, 102400), latent=LatentAttention(), feed_forward=12288, **_experts(160, 6, 1536, 3072, 1)
    ),
    "glm-4.5": _latest(
        (92, 5120, 96, 8, 151552), head_width=128, feed_forward=12288, next_tokens=1, **_experts(160, 8, 1536, 1536, 3)
    ),
    "glm-4.5-air": _latest(
        (46, 4096, 96, 8, 151552), head_width=128, feed_forward=10944, next_tokens=1, **_experts(128, 8, 1408, 1408, 1)
    ),
    "llama-4-scout": _latest((48, 5120, 40, 8, 202048), **_CHUNKED, **_experts(16, 1, 8192, 8192)),
    "llama-4-maverick": _latest(
        (48, 5120, 40, 8, 202048), feed_forward=16384, **_CHUNKED, **_experts(128, 1, 8192, 8192, 24)
    ),
    "minimax-m2": _latest((62, 3072, 48, 8, 200064), head_width=128, **_experts(256, 8, 1536)),
    "qwen3-coder-480b-a35b": _latest((62, 6144, 96, 8, 151936), head_width=128, **_experts(160, 8, 2560)),
    "mixtral-8x22b": _latest((56, 6144, 48, 8, 32768), **_experts(8, 2, 16384)),
    "qwen3-4b": _latest((36, 2560, 32, 8, 151936), head_width=128, feed_forward=9728, tied=True),
    "qwen3-8b": _latest((36, 4096, 32, 8, 151936), feed_forward=12288),
    "qwen3-14b": _latest((40, 5120, 40, 8, 151936), feed_forward=17408),
    "qwen3-32b": _latest((64, 5120, 64, 8, 151936), head_width=128, feed_forward=25600),
    "qwen2.5-7b": _latest((28, 3584, 28, 4, 152064), feed_forward=18944),
    "qwen2.5-72b": _latest((80, 8192, 64, 8, 152064), feed_forward=29568),
    "llama-3.2-1b": _latest((16, 2048, 32, 8, 128256), sequence=8192, feed_forward=8192, tied=True),
    "llama-3.2-3b": _latest((28, 3072, 24, 8, 128256), sequence=8192, feed_forward=8192, tied=True),
    "mistral-7b": _latest((32, 4096, 32, 8, 32000), feed_forward=14336, **_looks_back(4096, 1.0)),
    "phi-4": _latest((40, 5120, 40, 10, 100352), feed_forward=17920),
    "gemma-2-27b": _latest(
        (46, 4608, 32, 16, 256000),
        sequence=8192,
        head_width=128,
        feed_forward=36864,
        tied=True,
        **_looks_back(4096, 0.5),
    ),
    "gemma-3-27b": _latest(
        (62, 5376, 32, 16, 262208),
        sequence=8192,
        head_width=128,
        feed_forward=21504,
        tied=True,
        **_looks_back(1024, 52 / 62),
    ),
    "llama-2-7b": _latest((32, 4096, 32, 0, 32000), feed_forward=11008),
    "llama-2-13b": _latest((40, 5120, 40, 0, 32000), feed_forward=13824),
    "llama-2-70b": _latest((80, 8192, 64, 8, 32000), feed_forward=28672),
    "llama-3-8b": _latest((32, 4096, 32, 8, 128256), sequence=8192, feed_forward=14336),
    "llama-3-70b": _latest((80, 8192, 64, 8, 128256), sequence=8192, feed_forward=28672),
    "llama-3-405b": _latest((126, 16384, 128, 8, 128256), sequence=8192, feed_forward=53248),
    "mixtral-8x7b": _latest((32, 4096, 32, 8, 32000), feed_forward=14336, experts=8, active_experts=2),
    "nemotron-4-340b": _latest((96, 18432, 96, 8, 256000), feed_forward=73728, gated=False),
}
"""Models of today by their published configurations (config.json of each on Hugging Face): DeepSeek-AI 2024, Moonshot
2025, Qwen 2025, OpenAI 2025, NVIDIA 2025. Parameters come to 671 billion and a block of multi-token prediction, 1.03
trillion, 235, 30.5, 117, 31.6 and 122.6 billion. The later ones, from DeepSeek-AI 2024, Zhipu 2025, Mistral 2023 and
2024, Qwen 2024 and 2025, Meta 2024, Microsoft 2024, Google 2024 and NVIDIA 2024, agree size by size with what public
programs build from these configurations: mixtral-8x22b, mistral-7b and phi-4 with litgpt/config.py of
Lightning-AI/litgpt, gpt-oss-20b and all others with src/megatron/bridge/models of NVIDIA-NeMo/Megatron-Bridge at
v0.2.0. Only the vocabulary of nemotron-4-340b was not found there. Attention counts all pairs of tokens, also masked
ones. llama-4-scout, llama-4-maverick and minimax-m2 are as Hugging Face's transformers configures them (Meta 2025,
MiniMax 2025), qwen3-coder-480b-a35b as its card and config.json, glm-4.5-air and gemma-3-27b as Megatron-Bridge: 108,
401, 229, 480, 110 (with a block of multi-token prediction) and 27.0 billion parameters, without pictures. llama-2,
llama-3 and mixtral-8x7b: Touvron et al. 2023, Dubey et al. 2024, Jiang et al. 2024."""
_ROWS = """
name           layers hidden heads vocabulary sequence
gpt3-125m          12    768    12      50257     2048
gpt3-350m          24   1024    16      50257     2048
gpt3-760m          24   1536    16      50257     2048
gpt3-1.3b          24   2048    16      50257     2048
gpt3-2.7b          32   2560    32      50257     2048
gpt3-6.7b          32   4096    32      50257     2048
gpt3-13b           40   5120    40      50257     2048
gpt3-175b          96  12288    96      50257     2048
megatron-22b       48   6144    64      51200     2048
megatron-175b      96  12288    96      51200     2048
megatron-530b     105  20480   128      51200     2048
megatron-1t       128  25600   160      51200     2048
bert-base          12    768    12      30522      512
bert-large         24   1024    16      30522      512
transformer-1t    138  24576   128      51200     1024
"""
"""Sizes as published: Brown et al. 2020 (gpt3), Korthikanti et al. 2023 (megatron), Devlin et al. 2019 (bert). gpt3-13b
has hidden size 5120, a multiple of its 40 heads (the paper's table says 5140). transformer-1t has the width of the
slice that COMET's author ran; its depth is chosen for 1e12 parameters."""


def _transformers() -> dict[str, Model]:
    _, *rows = (line.split() for line in _ROWS.strip().splitlines())
    names = ("num_layers", "hidden", "heads", "vocabulary", "sequence")
    said: dict[str, dict[str, Any]] = {name: dict(zip(names, map(int, sizes), strict=True)) for name, *sizes in rows}
    return {name: Transformer(**sizes) for name, sizes in said.items()}


MODELS |= _transformers()
MODELS |= {
    # The size is COMET's; how it comes about, and the widths, are chosen: those of COMET were not at hand.
    "dlrm-1.2t": Dlrm(
        tables=64,
        rows=146_500_000,
        dimension=128,
        lookups=80,
        dense_features=1024,
        bottom=(2048, 1024, 128),
        top=(4096, 4096, 4096, 1),
    ),
    "vgg-16": VGG_16,
    "resnet-50": RESNET_50,
    "inception-v3": INCEPTION_V3,
    "lstm-ptb": LSTM_PTB,
}


_ALIKE = {
    "llama-3-8b": ("llama-3.1-8b",),
    "llama-3-70b": ("llama-3.1-70b", "llama-3.3-70b"),
    "llama-3-405b": ("llama-3.1-405b",),
    "deepseek-v3": ("deepseek-r1", "deepseek-v3.1"),
    "kimi-k2": ("kimi-k2-thinking", "kimi-k2.5"),
    "glm-4.5": ("glm-4.6",),
    "minimax-m2": ("minimax-m2.5",),
}
"""Models whose configurations (config.json on Hugging Face) have the sizes of an earlier one."""
MODELS |= {name: MODELS[earlier] for earlier, names in _ALIKE.items() for name in names}

_UNMODELLED = {
    "compressed sparse attention and hyper-connections": ("deepseekv4",),
    "sparse attention with an indexer": ("deepseekv32", "glm5"),
    "gated delta nets": ("qwen3next", "qwen35", "kimilinear"),
}
"""Layers of models that are known and have no preset, and how their names begin."""


def plain_name(text: str) -> str:
    """Return letters and digits of a name, in small letters."""
    return "".join(filter(str.isalnum, text.lower()))


def unmodelled(name: str) -> str:
    """Return which layers of a model of this name, however it is spelt, are not modelled; nothing of other models."""
    plain = plain_name(name)
    return next(
        (f"{layers} are not modelled" for layers, starts in _UNMODELLED.items() if plain.startswith(starts)), ""
    )


def preset(items: Mapping[str, Item], name: str, what: str) -> Item:
    """Return the item of a name.

    Raises
    ------
    UnknownNameError
        No such name; the message has the near ones, or why a model has no preset.
    """
    if name not in items:
        reason = unmodelled(name) if what == "model" else ""
        hint = f": {reason}" if reason else f".{did_you_mean(name, items)}"
        raise UnknownNameError(f"no {what} is named {name!r}{hint}")
    return items[name]
