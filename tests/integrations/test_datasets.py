"""Hugging Face `datasets` as the data of a job: map-style, and streaming from local files."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ones
from ones.train.stream_loader import StreamLoader
from tests.train.test_streams import epoch

datasets: Any = pytest.importorskip("datasets")

FILES, SAMPLES = 3, 50


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Lines of JSON, in files of unequal length."""
    paths = [tmp_path / f"{n}.jsonl" for n in range(FILES)]
    for i in range(SAMPLES):
        with paths[min(FILES - 1, i // 10)].open("a") as file:
            file.write(json.dumps({"x": float(i), "number": i}) + "\n")
    return [str(path) for path in paths]


def stream(files: list[str]) -> Any:  # noqa: ANN401
    return datasets.IterableDataset.from_generator(lines, gen_kwargs={"paths": files})


def lines(paths: list[str]) -> Iterator[Any]:
    for path in paths:
        yield from map(json.loads, Path(path).read_text().splitlines())


def numbers(seen: list[list[Any]]) -> list[int]:
    return [sample["number"] for sample in itertools.chain(*seen)]


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_stream_is_seen_exactly_once(files: list[str], shuffled: bool) -> None:
    made = stream(files)
    assert made.num_shards == FILES
    if shuffled:
        made = made.shuffle(seed=1, buffer_size=8)
    changes = [((4,), 3, False), ((3, 5), 3, True), ((2, 2, 2, 2), 2, False)]
    for number in range(2):
        seen, _ = epoch(lambda: made, changes, restarts=True, number=number)
        assert sorted(numbers(seen)) == list(range(SAMPLES))
        assert numbers(seen) != list(range(SAMPLES))  # files take turns


def train(dataset: Any, epochs: int) -> list[list[int]]:  # noqa: ANN401
    net = nn.Linear(1, 1)
    job = ones.join(net, torch.optim.SGD(net.parameters(), lr=1e-4), dataset, batch_size=8)
    seen: list[list[int]] = []
    for _ in job.epochs(epochs):
        seen.append([])
        for batch in job.batches():
            seen[-1] += batch["number"].tolist()
            job.step(net(batch["x"].float().unsqueeze(1)).square().mean())
    return seen


def test_a_job_trains_on_a_stream_of_files(files: list[str]) -> None:
    made = datasets.load_dataset("json", data_files=files, split="train", streaming=True)
    first, second = train(made.shuffle(seed=3, buffer_size=16), 2)
    assert sorted(first) == sorted(second) == list(range(SAMPLES))
    assert first != second  # the epoch is part of the seed


def test_a_job_trains_on_a_table(files: list[str], tmp_path: Path) -> None:
    made = datasets.load_dataset(
        "json", data_files=files, split="train", cache_dir=str(tmp_path / "cache")
    )
    first, second = train(made.with_format("torch"), 2)
    assert sorted(first) == sorted(second) == list(range(SAMPLES))
    assert first != second


def test_a_stream_has_a_shard_for_each_file(files: list[str]) -> None:
    net = nn.Linear(1, 1)
    job = ones.join(net, torch.optim.SGD(net.parameters(), lr=0.1), stream(files), batch_size=8)
    loader = job._run.entry.loader
    assert isinstance(loader, StreamLoader)
    assert loader._source.num_shards == FILES
    with pytest.raises(TypeError, match="length is not known"):
        len(job.loader())
