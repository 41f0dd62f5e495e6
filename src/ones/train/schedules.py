"""Steps the learning rate schedule of a script, at the same points as plain torch does.

A schedule per epoch is stepped when the batches of an epoch end, so that a checkpoint which the
script writes afterwards has its new position. A schedule per step is stepped once for each batch of
the script's own size, the short one at an epoch's end included. ReduceLROnPlateau is stepped at the
end of an epoch, with the value that the script has reported.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

from ones.errors import UserError
from ones.train.elastic_group import ElasticGroup
from ones.train.optimizer_set import optimizers_of
from ones.train.process_group import GroupLostError
from ones.train.replica import Replica

_LOSSES = ("val_loss", "eval_loss", "loss")  # reported values that a plateau of losses follows


class Schedule:
    def __init__(self, replica: Replica, step: str) -> None:
        self._replica, self._progress = replica, replica.progress
        self._position: int | None = None  # of the schedule, when the script got control
        self.set(replica.scheduler, step)

    def set(self, scheduler: Any, step: str) -> None:
        self._scheduler, self._step = scheduler, step
        self._is_plateau = isinstance(scheduler, ReduceLROnPlateau)

    def start(self) -> None:
        """Refuses a schedule that the job does not know: it starts anew in a joining worker."""
        optimizers = optimizers_of(self._replica.optimizer)
        is_wrapped = any(hasattr(opt.step, "_wrapped_by_lr_sched") for opt in optimizers)
        if is_wrapped and self._scheduler is None and not self._replica.script.has_schedule:
            raise UserError(
                "the optimizer has a learning rate schedule that the job does not have: pass it as"
                " scheduler= to ones.join, and remove scheduler.step()"
            )
        self.watch()

    def watch(self) -> None:
        """Call before the script's own code runs, and `check` after it."""
        self._position = getattr(self._scheduler, "last_epoch", None)

    def check(self) -> None:
        if getattr(self._scheduler, "last_epoch", None) != self._position:
            raise UserError(
                "the script calls scheduler.step() itself: remove it, the job steps the schedule"
                " that ones.join got"
            )

    def after_step(self) -> None:
        if self._scheduler is None or self._step != "step":
            return
        while self._progress.schedule_steps < self._progress.base_steps:
            self._progress.schedule_steps += 1
            self._scheduler.step()
        self.watch()

    def data_ended(self, epoch: int) -> None:
        if self._scheduler is None or self._step != "epoch" or self._is_plateau:
            return
        while self._progress.schedule_epochs <= epoch:
            self._progress.schedule_epochs += 1
            self._scheduler.step()
        self.watch()

    def epoch_ended(
        self, epoch: int, reported: Mapping[str, float], elastic: ElasticGroup | None
    ) -> bool:
        """Steps a plateau schedule. False: a worker was lost, try again after recovery."""
        if not self._is_plateau or self._progress.schedule_epochs > epoch:
            return True
        value = self._metric(reported)
        is_last = epoch + 1 == self._progress.epochs
        if elastic is not None and elastic.group is not None and not is_last:
            try:  # the main worker's value: evaluations of the workers may differ in the last digit
                value = _of_main(elastic, value)
            except GroupLostError:
                elastic.step_failed()
                return False
        self._progress.schedule_epochs = epoch + 1
        if not math.isnan(value):
            self._scheduler.step(value)
        self.watch()
        return True

    def _metric(self, reported: Mapping[str, float]) -> float:
        if self._scheduler.mode == "max":
            names: tuple[str, ...] = ("accuracy", *(n for n in reported if n not in _LOSSES))
        else:
            names = (*_LOSSES, *(n for n in reported if n != "accuracy"))
        for name in names:
            if name in reported:
                return reported[name]
        loss = self._progress.sums.mean_loss
        if loss is None or self._scheduler.mode == "max":
            return math.nan
        return loss


def _of_main(elastic: ElasticGroup, value: float) -> float:
    assert elastic.group is not None
    (bits,) = struct.unpack("<q", struct.pack("<d", value))
    main = elastic.group.all_gather(bits)[0]
    (agreed,) = struct.unpack("<d", struct.pack("<q", main))
    return float(agreed)
