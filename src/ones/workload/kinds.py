"""The numbers of the paper's workloads, each with its source and its reliability.

`paper` is the data file paper.toml. `artifact` and `calibrated` are corrected by the data that the
paper's authors published (artifact.toml): the one with their recorded runs and their mechanism, the
other with the costs and the convergence model of `paper`.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib.resources import files
from typing import Any

from ones.errors import UnknownNameError
from ones.workload.recorded_types import RecordedType

TRUST = ("measured", "fit", "derived", "assumed")
#: names of the sets of numbers
NUMBERS = ("paper", "calibrated", "artifact")


@dataclass(frozen=True, slots=True)
class Provenance:
    """The source of a number."""

    table: str
    name: str
    value: float
    trust: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of job: a model on a data set, in all its sizes."""

    name: str
    model: str
    dataset: str
    sizes: tuple[int, ...]
    classes: tuple[int, ...]
    optimizer: str
    requests: str  # name of a mix of requested GPUs
    parameters: float
    step_seconds_fixed: float
    step_seconds_per_sample: float
    max_local_batch: float
    base_batch: float
    rescale_seconds: float
    restart_seconds: float
    accuracy_limit: float
    accuracy_start: float
    accuracy_epochs: float
    accuracy_noise: float
    reference_size: float
    target_accuracy: float
    noise_start: float
    noise_growth: float
    noise_limit: float
    reference_batch: float
    loss_limit: float
    one_gpu_seconds: float
    input_samples_per_second: float = float("inf")
    stop_epochs: float = 10  # in a row above the target; in the trace of the authors: the patience
    load_seconds: float = 0.0  # of the input pipeline, at the start of every epoch
    first_loss: float | None = None  # before training; None: the logarithm of the classes
    max_batch: float | None = None  # that the user allows
    request_gpus: float | None = None  # instead of a mix


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    gpus_per_socket: float
    pair_gb_per_second: float
    node_gb_per_second: float
    network_gb_per_second: float
    node_hop_seconds: float
    network_hop_seconds: float
    collective_seconds: float
    network_shared: float = 1  # 0: jobs on one node do not slow each other's network down


@dataclass(frozen=True, slots=True, kw_only=True)
class StepModel:
    overlap_exponent: float
    sync_seconds: float
    sync_seconds_per_doubling: float
    socket_seconds: float
    node_seconds: float
    jitter: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Convergence:
    jump_ratio: float
    jump_epochs_per_doubling: float
    jump_loss_per_doubling: float
    jump_loss_epochs: float
    unscaled_rate_exponent: float
    loss_epochs_factor: float
    noise_report_jitter: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    cold_start_seconds: float
    worker_start_seconds: float
    regroup_seconds: float
    resume_seconds: float
    migrate_seconds: float
    evaluation_share: float | None = None  # of an epoch, before training; None: no evaluation
    epochs_restart: float = 0.0  # 1: a rescale or a stop loses the position in the epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceDefaults:
    jobs: float
    gap_seconds: float


@dataclass(frozen=True, slots=True)
class Numbers:
    """The whole data file."""

    kinds: dict[str, Kind]
    figures: dict[str, Kind]  # of single figures of the paper, not of its workload
    hardware: Hardware
    step: StepModel
    convergence: Convergence
    costs: Costs
    trace: TraceDefaults
    requests: dict[str, dict[int, float]]  # name of a mix -> GPUs -> share
    sources: dict[str, str]
    provenance: tuple[Provenance, ...]
    types: tuple[RecordedType, ...] = ()

    def kind(self, name: str) -> Kind:
        if name not in self.kinds:
            raise UnknownNameError("model", name, self.kinds)
        return self.kinds[name]

    def recorded(self, kind: str, dataset_size: int) -> list[RecordedType]:
        """The recorded runs of a kind in this size."""
        return [t for t in self.types if (t.kind, t.dataset_size) == (kind, dataset_size)]


def paper_numbers() -> Numbers:
    """The numbers of the workload `paper`."""
    return numbers_of("paper")


@cache
def numbers_of(name: str) -> Numbers:
    """The numbers of this name, read once from the data files of the package."""
    if name not in NUMBERS:
        raise UnknownNameError("set of numbers", name, NUMBERS)
    if name == "paper":
        return _numbers(_read("paper.toml"))
    corrections = _read("artifact.toml")
    types = corrections.pop("types")
    if name == "calibrated":  # recorded speeds and epochs, with the costs of `paper`
        del corrections["costs"]
        for kind in corrections["kinds"].values():
            del kind["rescale_seconds"], kind["restart_seconds"]
        types = []
    runs = [RecordedType(**{**plain, "accuracy": tuple(plain["accuracy"])}) for plain in types]
    return replace(_numbers(_merged(_read("paper.toml"), corrections)), types=tuple(runs))


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads(files("ones.workload").joinpath(name).read_text())


def _merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """The tables of `base` with the entries of `over`; a number is replaced whole."""
    merged = dict(base)
    for key, value in over.items():
        old = base.get(key)
        if isinstance(value, dict) and isinstance(old, dict) and "value" not in value:
            merged[key] = _merged(old, value)
        else:
            merged[key] = value
    return merged


def _numbers(raw: dict[str, Any]) -> Numbers:
    provenance: list[Provenance] = []

    def table(cls: type[Any], title: str, plain: dict[str, Any], **more: Any) -> Any:
        known = {field.name for field in fields(cls)}
        values = dict(more)
        for key, item in plain.items():
            if isinstance(item, dict) and "value" in item:
                provenance.append(
                    Provenance(title, key, item["value"], item["trust"], item["source"])
                )
                values[key] = item["value"]
            elif key in known:
                values[key] = tuple(item) if isinstance(item, list) else item
        return cls(**values)

    return Numbers(
        hardware=table(Hardware, "hardware", raw["hardware"]),
        step=table(StepModel, "step", raw["step"]),
        convergence=table(Convergence, "convergence", raw["convergence"]),
        costs=table(Costs, "costs", raw["costs"]),
        trace=table(TraceDefaults, "trace", raw["trace"]),
        kinds={name: table(Kind, name, plain, name=name) for name, plain in raw["kinds"].items()},
        figures={
            name: table(Kind, name, plain, name=name) for name, plain in raw["figures"].items()
        },
        requests={
            mix: {int(gpus): share for gpus, share in shares.items()}
            for mix, shares in raw["trace"]["requested_gpus"].items()
        },
        sources=raw["sources"],
        provenance=tuple(provenance),
    )
