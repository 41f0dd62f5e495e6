"""BERT (Devlin et al. 2018, arXiv 1810.04805) as a classifier of sentences.

`BertClassifier.load` reads a folder as published on Hugging Face, `config.json` beside
`model.safetensors`. Modules are named as in those files, hence `LayerNorm`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class BertConfig:
    """The defaults are those of BERT base, uncased."""

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    hidden_dropout_prob: float = 0.1
    layer_norm_eps: float = 1e-12

    @classmethod
    def read(cls, file: Path) -> BertConfig:
        known = {field.name for field in fields(cls)}
        found = json.loads(file.read_text())
        return cls(**{name: value for name, value in found.items() if name in known})


class Embeddings(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.word_embeddings = nn.Embedding(config.vocab_size, width, padding_idx=0)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, width)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, width)
        self.LayerNorm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, tokens: Tensor, segments: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        total = (
            self.word_embeddings(tokens)
            + self.position_embeddings(positions)
            + self.token_type_embeddings(segments)
        )
        embedded: Tensor = self.dropout(self.LayerNorm(total))
        return embedded


class Attention(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.heads, self.drop = config.num_attention_heads, config.hidden_dropout_prob
        self.self = nn.ModuleDict(
            {part: nn.Linear(width, width) for part in ("query", "key", "value")}
        )
        self.output = Joined(width, width, config)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        count, length, width = x.shape
        query, key, value = (
            self.self[part](x).view(count, length, self.heads, -1).transpose(1, 2)
            for part in ("query", "key", "value")
        )
        seen = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=self.drop if self.training else 0.0
        )
        out: Tensor = self.output(seen.transpose(1, 2).reshape(count, length, width), x)
        return out


class Joined(nn.Module):
    """A linear layer with a residual connection and layer normalisation."""

    def __init__(self, inputs: int, outputs: int, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(inputs, outputs)
        self.LayerNorm = nn.LayerNorm(outputs, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, x: Tensor, before: Tensor) -> Tensor:
        out: Tensor = self.LayerNorm(self.dropout(self.dense(x)) + before)
        return out


class Layer(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.intermediate = nn.ModuleDict(
            {"dense": nn.Linear(config.hidden_size, config.intermediate_size)}
        )
        self.output = Joined(config.intermediate_size, config.hidden_size, config)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.attention(x, mask)
        out: Tensor = self.output(functional.gelu(self.intermediate["dense"](x)), x)
        return out


class Bert(nn.Module):
    """The encoder: takes tokens (0 is padding), returns one vector for each."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.embeddings = Embeddings(config)
        layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.encoder = nn.ModuleDict({"layer": layers})
        self.pooler = nn.ModuleDict({"dense": nn.Linear(config.hidden_size, config.hidden_size)})
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def load(self, file: Path) -> None:
        from safetensors.torch import load_file

        known = set(self.state_dict())
        weights = {}
        for title, tensor in load_file(file).items():
            # older files call the normalisation's weight and bias gamma and beta
            name = title.removeprefix("bert.")
            name = name.replace(".gamma", ".weight").replace(".beta", ".bias")
            if name in known:
                weights[name] = tensor
        self.load_state_dict(weights)

    def forward(self, tokens: Tensor, segments: Tensor) -> Tensor:
        mask = (tokens != 0)[:, None, None, :]
        x: Tensor = self.embeddings(tokens, segments)
        for layer in self.encoder["layer"].children():
            x = layer(x, mask)
        return x


class BertClassifier(nn.Module):
    """A sentence or a pair: `x[:, 0]` are its tokens, `x[:, 1]` the segments they belong to."""

    def __init__(self, config: BertConfig, classes: int) -> None:
        super().__init__()
        self.bert = Bert(config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, classes)
        nn.init.normal_(self.classifier.weight, std=0.02)
        nn.init.zeros_(self.classifier.bias)

    @classmethod
    def load(cls, folder: Path, classes: int) -> BertClassifier:
        """A pre-trained encoder with a new classifier."""
        model = cls(BertConfig.read(folder / "config.json"), classes)
        model.bert.load(folder / "model.safetensors")
        return model

    def forward(self, x: Tensor) -> Tensor:
        first = self.bert(x[:, 0], x[:, 1])[:, 0]
        pooled = torch.tanh(self.bert.pooler["dense"](first))
        scores: Tensor = self.classifier(self.dropout(pooled))
        return scores
