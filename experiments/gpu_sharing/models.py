"""The models that share a GPU: the four of the 64-GPU workload, and a GPT; random data that stays on the GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

SIZES = {"paper": 1, "large": 8}
"""By name: times how large a batch is."""
VOCABULARY = 10_000


class Lstm(nn.Module):
    """Two layers of 1,500 on 35 words, as in Zaremba et al. (2014)'s large model of the Penn Treebank."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, 1500)
        self.lstm = nn.LSTM(1500, 1500, num_layers=2, batch_first=True)
        self.head = nn.Linear(1500, VOCABULARY)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return logits, a row a word."""
        return self.head(self.lstm(self.words(words))[0]).flatten(0, 1)


class Gpt(nn.Module):
    """Twelve blocks of 768 on 1,024 tokens: 95 million parameters with this vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, 768)
        block = nn.TransformerEncoderLayer(768, 12, 3072, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 12, enable_nested_tensor=False)
        self.head = nn.Linear(768, VOCABULARY)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(1024), persistent=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return logits, a row a token."""
        return self.head(self.blocks(self.words(words), mask=self.mask, is_causal=True)).flatten(0, 1)


def vision(name: str, **given: Any) -> Callable[[], nn.Module]:
    """Return what makes a model of torchvision."""

    def make() -> nn.Module:
        import torchvision

        return getattr(torchvision.models, name)(weights=None, **given)

    return make


class Model(NamedTuple):
    """How to make a model, its batch, the sides of an image or the length of a text, and whether in bfloat16."""

    make: Callable[[], nn.Module]
    batch: int
    length: int
    image: bool = True
    half: bool = False


MODELS = {
    "VGG-16": Model(vision("vgg16"), 16, 224),
    "ResNet-50": Model(vision("resnet50"), 16, 224),
    "Inception-V3": Model(vision("inception_v3", aux_logits=False, init_weights=False), 16, 299),
    "LSTM-PTB": Model(Lstm, 64, 35, image=False),
    "GPT": Model(Gpt, 2, 1024, image=False, half=True),
}
"""The first four by their names in the workload, in TF32 and with the batches of arXiv 2002.10105."""


class Training:
    """A model with its optimiser and data on the GPU."""

    def __init__(self, name: str) -> None:
        torch.manual_seed(0)
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.benchmark = True
        self.kind = MODELS[name]
        self.model = self.kind.make().cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4, momentum=0.9)
        self.batches: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    def batch(self, size: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs and labels, made when first asked for."""
        if size not in self.batches:
            count = SIZES[size] * self.kind.batch
            if self.kind.image:
                inputs = torch.randn(count, 3, self.kind.length, self.kind.length, device="cuda")
                labels = torch.randint(0, 1000, (count,), device="cuda")
            else:
                inputs = torch.randint(0, VOCABULARY, (count, self.kind.length), device="cuda")
                labels = torch.randint(0, VOCABULARY, (count * self.kind.length,), device="cuda")
            self.batches[size] = inputs, labels
        return self.batches[size]

    def step(self, size: str) -> None:
        """Train on a batch."""
        inputs, labels = self.batch(size)
        self.optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=self.kind.half):
            loss = nn.functional.cross_entropy(self.model(inputs), labels)
        loss.backward()
        self.optimizer.step()

    def free(self, size: str) -> None:
        """Give memory back to the GPU, which other processes need."""
        del self.batches[size]
        self.optimizer.zero_grad()
        torch.cuda.empty_cache()

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint holds."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        """Take a checkpoint."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
