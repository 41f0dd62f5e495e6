"""The networks are the published ones, and the scripts train them as the paper's workload says."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

from ones.workload.kinds import paper_numbers

Neighbour = Callable[[str], ModuleType]
PAPER = Path(__file__).resolve().parents[2] / "examples" / "paper"
KINDS = sorted(paper_numbers().kinds)


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("module", "name", "classes", "published"),
    [
        # torchvision's documentation, `num_params` of each model's weights
        ("alexnet", "alexnet", 1000, 61_100_840),
        ("resnet", "resnet18", 1000, 11_689_512),
        ("resnet", "resnet50", 1000, 25_557_032),
        ("vgg", "vgg16", 1000, 138_357_544),
        ("inception", "InceptionV3", 1000, 27_161_264),
        # the forms for CIFAR-10 that papers on it report
        ("resnet", "resnet18_small", 10, 11_173_962),
        ("vgg", "vgg16_small", 10, 14_728_266),
        ("googlenet", "googlenet_small", 10, 6_166_250),
    ],
)
def test_a_network_has_as_many_parameters_as_published(
    neighbour: Neighbour, module: str, name: str, classes: int, published: int
) -> None:
    with torch.device("meta"):
        model = getattr(neighbour(f"models.{module}"), name)(classes)
    assert parameters(model) == published


def test_bert_base_has_as_many_parameters_as_published(neighbour: Neighbour) -> None:
    bert = neighbour("models.bert")
    with torch.device("meta"):
        model = bert.BertClassifier(bert.BertConfig(), 2)
    assert parameters(model) == 109_483_778  # BertForSequenceClassification, bert-base-uncased


def defaults(script: Path) -> dict[str, float]:
    """What a script of the workload gives to `options`."""
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "options":
            return {str(word.arg): ast.literal_eval(word.value) for word in node.keywords}
    raise AssertionError(f"{script} has no options")


def test_every_kind_of_the_workload_has_its_script() -> None:
    scripts = {path.stem for path in PAPER.glob("*_*.py")}
    assert scripts == {kind.replace("-", "_") for kind in KINDS}


@pytest.mark.parametrize("name", KINDS)
def test_a_script_trains_as_the_simulator_believes(name: str) -> None:
    kind = paper_numbers().kinds[name]
    found = defaults(PAPER / f"{name.replace('-', '_')}.py")
    assert found["batch_size"] == kind.base_batch
    assert found["target"] == kind.target_accuracy
    assert (found["samples"], found["classes"]) == (kind.sizes[0], kind.classes[0])


@pytest.mark.parametrize(
    ("kind", "module", "name"),
    [
        ("alexnet-imagenet", "alexnet", "alexnet"),
        ("resnet50-imagenet", "resnet", "resnet50"),
        ("vgg16-imagenet", "vgg", "vgg16"),
        ("inceptionv3-imagenet", "inception", "InceptionV3"),
    ],
)
def test_the_simulator_knows_the_size_of_the_network(
    neighbour: Neighbour, kind: str, module: str, name: str
) -> None:
    classes = paper_numbers().kinds[kind].classes
    with torch.device("meta"):
        model = getattr(neighbour(f"models.{module}"), name)(sum(classes) // len(classes))
    assert parameters(model) == pytest.approx(paper_numbers().kinds[kind].parameters, rel=1e-4)


def test_the_auxiliary_classifier_is_there_only_while_training(neighbour: Neighbour) -> None:
    with torch.device("meta"):
        model = neighbour("models.inception").InceptionV3(7)
        images = torch.zeros(2, 3, 299, 299)
    scores, auxiliary = model(images)
    assert scores.shape == auxiliary.shape == (2, 7)
    model.eval()
    assert model(images).shape == (2, 7)
