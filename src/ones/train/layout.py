"""The workers of a job in rank order, and how the global batch is divided among them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from msgspec.structs import replace

from ones.train.sampler import BatchPartition, split_samples
from ones.wire.messages import Member


@dataclass(frozen=True, slots=True)
class GroupLayout:
    """The members of a group, by plan and incarnation (times that the group was re-formed)."""

    plan: int
    incarnation: int
    members: tuple[Member, ...]  # by rank

    @property
    def generation(self) -> tuple[int, int]:
        return self.plan, self.incarnation

    @property
    def name(self) -> str:
        return f"{self.plan}.{self.incarnation}"

    @property
    def workers(self) -> tuple[str, ...]:
        return tuple(member.worker for member in self.members)

    @property
    def nodes(self) -> int:
        return len({node_of(worker) for worker in self.workers})

    @property
    def batch(self) -> int:
        return sum(member.batch for member in self.members)

    def __contains__(self, worker: object) -> bool:
        return worker in self.workers

    def partition(self, worker: str, limit: int | None, minimum: int) -> BatchPartition:
        return BatchPartition(
            shares=tuple(member.batch for member in self.members),
            micro_steps=tuple(member.micro_steps for member in self.members),
            rank=self.workers.index(worker),
            limit=limit,
            minimum=minimum,
        )

    def after_loss(self, survivors: Collection[str], incarnation: int) -> GroupLayout:
        """The same global batch on fewer workers, in micro-batches no larger than before.

        >>> two = GroupLayout(4, 0, (Member(worker="a", batch=6), Member(worker="b", batch=4)))
        >>> two.after_loss(["b"], 1).members
        (Member(worker='b', batch=10, micro_steps=3),)
        """
        left = [member for member in self.members if member.worker in survivors]
        shares = split_samples(self.batch, [member.batch for member in left])
        members = []
        for member, share in zip(left, shares, strict=True):
            micro_batch = -(-member.batch // member.micro_steps)
            members.append(replace(member, batch=share, micro_steps=-(-share // micro_batch)))
        return GroupLayout(self.plan, incarnation, tuple(members))


def node_of(worker: str) -> str:
    return worker.rpartition("/")[0]
