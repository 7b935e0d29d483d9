"""Training steps under plain PyTorch on the one GPU at hand, written as the published tables are.

    python experiments/step_times/measure.py --out mpt.csv                 # MPT models, kernels launched one by one
    python experiments/step_times/measure.py --out llama.csv --compiled    # Llama 3.2 under torch.compile, two rows not

Each row is the median of the steps of two seconds, behind five that do not count. Weights and gradients are in half
precision; AdamW, fused, keeps weights of its own and its two moments in single. Attention is what PyTorch chooses.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ddlsched.training.estimate.models import Transformer
from ddlsched.training.estimate.presets import MODELS

MEASURED_S, WARM_STEPS = 2.0, 5


class Setting(NamedTuple):
    """A model's sizes, and how it is trained."""

    name: str
    layers: int
    hidden: int
    heads: int
    sequence: int
    micro_batch: int
    recompute: str = "none"
    compiled: bool = True


MPT = [
    Setting("mpt-760m", 24, 1536, 12, 512, 32),
    Setting("mpt-760m", 24, 1536, 12, 2048, 8),
    Setting("mpt-760m", 24, 1536, 12, 8192, 2),
    Setting("mpt-760m", 24, 1536, 12, 32768, 1, "full"),
    Setting("mpt-1b", 24, 2048, 16, 2048, 1),
    Setting("mpt-1b", 24, 2048, 16, 2048, 6),
    Setting("mpt-1b", 24, 2048, 16, 8192, 2, "full"),
    Setting("mpt-3b", 32, 2560, 20, 2048, 4, "full"),
    Setting("mpt-3b", 32, 2560, 20, 16384, 1, "full"),
    Setting("mpt-7b, 8 layers", 8, 4096, 32, 2048, 4),
    Setting("mpt-7b, 8 layers", 8, 4096, 32, 8192, 1),
]
LLAMA = [
    Setting("llama-3.2-1b", 16, 2048, 32, 2048, 1),
    Setting("llama-3.2-1b", 16, 2048, 32, 2048, 4),
    Setting("llama-3.2-1b", 16, 2048, 32, 8192, 1),
    Setting("llama-3.2-1b", 16, 2048, 32, 8192, 2, "full"),
    Setting("llama-3.2-1b", 16, 2048, 32, 32768, 1, "full"),
    Setting("llama-3.2-3b", 28, 3072, 24, 2048, 4, "full"),
    Setting("llama-3.2-3b", 28, 3072, 24, 8192, 1, "full"),
    Setting("llama-3.2-1b", 16, 2048, 32, 2048, 4, "none", False),
    Setting("llama-3.2-1b", 16, 2048, 32, 8192, 1, "none", False),
]
MPT_VOCABULARY = 50368


class Block(nn.Module):
    """A layer of MPT's (LayerNorm, GELU, no biases), or of Llama's (RMSNorm, rotary positions, SwiGLU)."""

    def __init__(self, hidden: int, heads: int, key_value_heads: int, inner: int, gated: bool) -> None:
        super().__init__()
        self.width, self.gated = hidden // heads, gated
        self.parts = [hidden, key_value_heads * self.width, key_value_heads * self.width]
        self.norms = nn.ModuleList(nn.RMSNorm(hidden) if gated else nn.LayerNorm(hidden, bias=False) for _ in range(2))
        self.into = nn.Linear(hidden, sum(self.parts), bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)
        self.up = nn.Linear(hidden, (1 + gated) * inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor, turns: Tensor | None) -> Tensor:
        """Return the layer's output."""
        batch, tokens, hidden = x.shape
        q, k, v = (
            part.view(batch, tokens, -1, self.width).transpose(1, 2)
            for part in self.into(self.norms[0](x)).split(self.parts, dim=-1)
        )
        if turns is not None:
            q, k = (rotated(part, turns) for part in (q, k))
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.gated)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, tokens, hidden))
        inner = self.up(self.norms[1](x))
        if self.gated:
            gate, inner = inner.chunk(2, dim=-1)
            return x + self.down(nn.functional.silu(gate) * inner)
        return x + self.down(nn.functional.gelu(inner, approximate="none"))


class Recomputed(nn.Module):
    """A layer of which backward computes everything again."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.block = Block(*sizes)

    def forward(self, x: Tensor, turns: Tensor | None) -> Tensor:
        """Return the layer's output."""
        output: Tensor = checkpoint(self.block, x, turns, use_reentrant=False)
        return output


def rotated(x: Tensor, turns: Tensor) -> Tensor:
    """Return queries or keys turned by their positions, in single precision."""
    one, other = x.float().chunk(2, dim=-1)
    cosine, sine = turns[0], turns[1]
    return torch.cat((one * cosine - other * sine, other * cosine + one * sine), dim=-1).type_as(x)


class Language(nn.Module):
    """A language model whose output layer shares the embedding's weights."""

    def __init__(self, setting: Setting, vocabulary: int, key_value_heads: int, inner: int, gated: bool) -> None:
        super().__init__()
        hidden, width = setting.hidden, setting.hidden // setting.heads
        self.embedding = nn.Embedding(vocabulary, hidden)
        kind = Recomputed if setting.recompute == "full" else Block
        self.blocks = nn.ModuleList(
            kind(hidden, setting.heads, key_value_heads, inner, gated) for _ in range(setting.layers)
        )
        self.norm = nn.RMSNorm(hidden) if gated else nn.LayerNorm(hidden, bias=False)
        angles = torch.outer(torch.arange(setting.sequence), 500_000.0 ** (-torch.arange(0, width, 2) / width))
        self.turns = torch.stack((angles.cos(), angles.sin())) if gated else None

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits."""
        x = self.embedding(tokens)
        turns = None if self.turns is None else self.turns.to(x.device)
        for block in self.blocks:
            x = block(x, turns)
        return nn.functional.linear(self.norm(x), self.embedding.weight)


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy in single precision."""
    return nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def made(setting: Setting, like: Transformer | None, device: str) -> nn.Module:
    """Return the model; a preset says what a setting does not."""
    key_value_heads = int(like.key_value_heads) if like else setting.heads
    inner = int(like.feed_forward) if like else 4 * setting.hidden
    vocabulary = int(like.vocabulary) if like else MPT_VOCABULARY
    with torch.device(device):
        model = Language(setting, vocabulary, key_value_heads, inner, like is not None).bfloat16()
    for block in model.blocks if like and setting.compiled else ():
        block.compile()
    return model


class Optimiser:
    """AdamW over copies of the weights in single precision."""

    def __init__(self, weights: list[Tensor]) -> None:
        self.weights = weights
        self.copies = [weight.detach().float() for weight in weights]
        self.adam = torch.optim.AdamW(self.copies, lr=1e-5, fused=True)

    def step(self) -> None:
        """Move the weights by their gradients, which are clipped and given up."""
        for copy, weight in zip(self.copies, self.weights, strict=True):
            assert weight.grad is not None
            copy.grad, weight.grad = weight.grad.float(), None
        nn.utils.clip_grad_norm_(self.copies, 1.0)
        self.adam.step()
        self.adam.zero_grad()
        torch._foreach_copy_(self.weights, self.copies)


def measured(setting: Setting, like: Transformer | None, device: str) -> tuple[float, float]:
    """Return the seconds of a step, and the GiB of all tensors at most."""
    on_gpu = device == "cuda"
    model = made(setting, like, device)
    vocabulary = model.embedding.weight.shape[0]
    optimiser = Optimiser([weight.requires_grad_() for weight in model.parameters()])
    loss = torch.compile(loss_of) if like and setting.compiled else loss_of
    tokens = torch.randint(vocabulary, (setting.micro_batch, setting.sequence + 1), device=device)
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    taken_s: list[float] = []
    while len(taken_s) < WARM_STEPS + 3 or sum(taken_s[WARM_STEPS:]) < MEASURED_S:
        begin_s = time.perf_counter()
        loss(model(tokens[:, :-1]), tokens[:, 1:]).backward()
        with torch.no_grad():
            optimiser.step()
        if on_gpu:
            torch.cuda.synchronize()
        taken_s.append(time.perf_counter() - begin_s)
    allocated_gib = torch.cuda.max_memory_allocated() / 2**30 if on_gpu else 0.0
    return statistics.median(taken_s[WARM_STEPS:]), allocated_gib


def mpt_row(setting: Setting, gpu: str, step_s: float, memory_gib: float) -> dict[str, object]:
    """Return a row as llm-foundry's table has it."""
    batch = setting.micro_batch
    return {
        "model": setting.name, "layers": setting.layers, "hidden": setting.hidden, "heads": setting.heads,
        "sequence": setting.sequence, "vocabulary": MPT_VOCABULARY, "gpus": 1, "gpu": gpu, "micro_batch": batch,
        "accumulation": 1, "global_batch": batch, "precision": "bf16", "sharding": "none",
        "recompute": setting.recompute, "tokens_per_s": round(batch * setting.sequence / step_s, 1),
        "memory_gib": round(memory_gib, 2),
    }  # fmt: skip


def llama_row(setting: Setting, gpu: str, step_s: float, memory_gib: float) -> dict[str, object]:
    """Return a row as torchtitan's table has it."""
    batch = setting.micro_batch
    return {
        "model": setting.name, "gpu": gpu, "gpus": 1, "precision": "bf16",
        "compiled": "yes" if setting.compiled else "no", "local_batch": batch, "global_batch": batch,
        "sequence": setting.sequence, "fsdp": 1, "tensor": 1, "pipeline": 1, "context": 1, "schedule": "",
        "recompute": setting.recompute, "tokens_per_s_per_gpu": round(batch * setting.sequence / step_s, 1),
        "memory_gib": round(memory_gib, 2),
    }  # fmt: skip


def main() -> None:
    """Measure the settings of one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.csv", help="the table to write")
    parser.add_argument("--compiled", action="store_true", help="Llama as torchtitan trains it, in place of MPT")
    parser.add_argument("--gpu", default="h100-80", help="the GPU's name in the table")
    parser.add_argument("--device", default="cuda", help="cuda, or cpu to try it out with one tiny model")
    arguments = parser.parse_args()
    measure(arguments.out, arguments.compiled, arguments.gpu, arguments.device)


def measure(out: Path, compiled: bool, gpu: str, device: str) -> None:
    """Write a row a setting as it is measured."""
    settings = LLAMA if compiled else MPT
    if device == "cpu":
        settings = [settings[0]._replace(layers=2, hidden=256, heads=8 if compiled else 4, sequence=64, micro_batch=1)]
    row_of = llama_row if compiled else mpt_row
    with out.open("w", newline="", encoding="utf-8") as file:
        writer = None
        for setting in settings:
            like = MODELS[setting.name] if compiled else None
            assert like is None or isinstance(like, Transformer)
            row = row_of(setting, gpu, *measured(setting, like, device))
            if writer is None:
                writer = csv.DictWriter(file, row, lineterminator="\n")
                writer.writeheader()
            writer.writerow(row)
            file.flush()
            print(row, flush=True)
            if device == "cuda":
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
