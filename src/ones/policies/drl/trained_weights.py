"""The file that training writes: weights, the table of kinds, and a record of the training."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from ones.policies.drl.network import SIZES, WEIGHTS, Floats

FORMAT = 1
#: names of shipped weights, by the workload that they were trained on, and their files
SHIPPED = {
    "": "weights.json",
    "calibrated": "weights_calibrated.json",
    "artifact": "weights_artifact.json",
}


@dataclass(frozen=True, slots=True)
class TrainedWeights:
    weights: Floats
    kinds: Mapping[str, Any]  # as of `KindTable.save`
    training: Mapping[str, Any] = field(default_factory=dict)  # command, seeds, learning curve

    def text(self) -> str:
        """One line per part, so that two files can be compared with diff."""
        head = {"format": FORMAT, "sizes": list(SIZES), "training": dict(self.training)}
        lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
        kinds = [f"    {json.dumps(k)}: {json.dumps(self.kinds[k])}" for k in sorted(self.kinds)]
        lines.append('  "kinds": {\n' + ",\n".join(kinds) + "\n  }")
        lines.append(f'  "weights": {json.dumps([float(f"{w:.7g}") for w in self.weights])}')
        return "{\n" + ",\n".join(lines) + "\n}\n"


def parse(text: str, name: str) -> TrainedWeights:
    """The content of such a file. Raises ValueError, with the file's name, if it is not valid."""
    try:
        values = json.loads(text)
        weights = np.array(values["weights"], np.float64)
        fits = values["format"] == FORMAT and tuple(values["sizes"]) == SIZES
        kinds, training = dict(values["kinds"]), dict(values.get("training", {}))
    except (KeyError, TypeError, ValueError) as problem:
        raise ValueError(f"{name}: not the weights of a drl policy ({problem})") from None
    if not fits or weights.shape != (WEIGHTS,) or not np.isfinite(weights).all():
        raise ValueError(f"{name}: weights of another network than this one")
    return TrainedWeights(weights, kinds, training)


@cache
def shipped(name: str = "") -> TrainedWeights:
    """Weights that come with the package, by the name of their workload; empty: `paper`."""
    return parse((files("ones.policies.drl") / SHIPPED[name]).read_text(), SHIPPED[name])


@cache
def from_file(path: str) -> TrainedWeights:
    """Reads a file of the user, once."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else "is not text"
        raise ValueError(f"{path}: cannot be read: {reason}") from None
    return parse(text, path)
