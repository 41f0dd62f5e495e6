"""CoLA, MRPC and SST-2: from GLUE's files where they are, else random tokens of the same shape."""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import torch
from common import Sets, refuse
from models.bert import BertClassifier, BertConfig
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

#: a sentence, or two, and the label
Row = tuple[list[str], int]


def cola(args: argparse.Namespace) -> Sets:
    """`train.tsv` and `dev.tsv` without a header: source, label, mark, sentence."""
    return _sets(args, "CoLA", label=1, sentences=(3,), header=False)


def mrpc(args: argparse.Namespace) -> Sets:
    """`train.tsv` and `dev.tsv`: quality, two identities, two sentences."""
    return _sets(args, "MRPC", label=0, sentences=(3, 4), header=True)


def sst2(args: argparse.Namespace) -> Sets:
    """`train.tsv` and `dev.tsv`: sentence, label."""
    return _sets(args, "SST-2", label=1, sentences=(0,), header=True)


def classifier(args: argparse.Namespace) -> BertClassifier:
    """BERT with the weights in the folder `--pretrained`; else untrained, of BERT's base size."""
    if args.pretrained is None:
        return BertClassifier(BertConfig(), args.classes)
    for name in ("config.json", "model.safetensors"):
        if not (args.pretrained / name).is_file():
            refuse(f"--pretrained {args.pretrained}: no file {name}")
    return BertClassifier.load(args.pretrained, args.classes)


def encode(rows: list[Row], pretrained: Path, length: int) -> Dataset[tuple[Tensor, Tensor]]:
    """Tokens and segments of each row, cut or padded to the same length."""
    from tokenizers import BertWordPieceTokenizer

    words = BertWordPieceTokenizer(str(pretrained / "vocab.txt"), lowercase=True)
    words.enable_truncation(length)
    words.enable_padding(length=length)
    texts = [tuple(sentences) if len(sentences) > 1 else sentences[0] for sentences, _ in rows]
    encoded = words.encode_batch(texts)
    tokens = torch.tensor([[row.ids, row.type_ids] for row in encoded])
    return TensorDataset(tokens, torch.tensor([label for _, label in rows]))


def _sets(
    args: argparse.Namespace, task: str, *, label: int, sentences: tuple[int, ...], header: bool
) -> Sets:
    if args.data is None:
        return Sets(
            _random_tokens(args.samples, args, 0),
            _random_tokens(max(2, args.samples // 10), args, 1),
        )
    if args.pretrained is None or not (args.pretrained / "vocab.txt").is_file():
        refuse("--data needs --pretrained FOLDER with vocab.txt, which maps words to tokens")
    folder = args.data / task if (args.data / task).is_dir() else args.data
    training = read_tsv(folder / "train.tsv", label, sentences, header=header)[: args.samples]
    validation = read_tsv(folder / "dev.tsv", label, sentences, header=header)
    return Sets(
        encode(training, args.pretrained, args.length),
        encode(validation, args.pretrained, args.length),
    )


def read_tsv(file: Path, label: int, sentences: tuple[int, ...], *, header: bool) -> list[Row]:
    """Reads rows; columns count from 0. Quotation marks have no meaning in GLUE's files."""
    if not file.is_file():
        refuse(f"{file}: no such file; --data takes a folder of GLUE's tsv files")
    rows: list[Row] = []
    with file.open(encoding="utf-8-sig", newline="") as lines:
        for number, row in enumerate(csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE), 1):
            if header and number == 1:
                continue
            try:
                rows.append(([row[column] for column in sentences], int(row[label])))
            except (IndexError, ValueError):
                refuse(f"{file}:{number}: not a label and {len(sentences)} sentences")
    return rows


def _random_tokens(
    count: int, args: argparse.Namespace, seed: int
) -> Dataset[tuple[Tensor, Tensor]]:
    """Real words (1000 and up in BERT's vocabulary), the second half of them in segment 1."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1000, 30522, (count, args.length), generator=generator)
    segments = (torch.arange(args.length) >= args.length // 2).long().expand(count, -1)
    labels = torch.randint(0, args.classes, (count,), generator=generator)
    return TensorDataset(torch.stack([tokens, segments], dim=1), labels)
