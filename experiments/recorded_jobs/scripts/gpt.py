"""A small GPT: four blocks of 256 channels, sequences of 64 tokens."""

from __future__ import annotations

import torch
from torch import nn
from training import train

VOCABULARY, CHANNELS, TOKENS, BATCH = 1000, 256, 64, 4


class Gpt(nn.Module):
    """Embedding, blocks, head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, CHANNELS)
        self.places = nn.Parameter(torch.zeros(TOKENS, CHANNELS))
        block = nn.TransformerEncoderLayer(CHANNELS, 4, 4 * CHANNELS, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 4, enable_nested_tensor=False)
        self.head = nn.Linear(CHANNELS, VOCABULARY)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(TOKENS), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits of the token after each."""
        return self.head(self.blocks(self.embedding(tokens) + self.places, mask=self.mask, is_causal=True))


def loss_of(model: nn.Module) -> torch.Tensor:
    """Return the loss on random tokens."""
    tokens = torch.randint(0, VOCABULARY, (BATCH, TOKENS + 1))
    return nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


torch.manual_seed(0)
train(Gpt(), loss_of)
