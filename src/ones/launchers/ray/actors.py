"""All calls to Ray: connection, nodes, agents as actors, licences. Each call may block."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ones.launchers.ray.node_agent import RayNodeAgent, granted_slots, node_root
from ones.launchers.ray.settings import RayOptions

NAMESPACE = "ones"
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9.-]+")


@dataclass(frozen=True, slots=True)
class RayNode:
    id: str
    name: str  # unique: the host's name and the start of the id
    host: str
    resources: Mapping[str, float]


def connect(options: RayOptions) -> None:
    os.environ.update(options.environment())
    import ray

    ray.init(
        address=options.address,
        namespace=NAMESPACE,
        log_to_driver=False,
        logging_level=logging.ERROR,
        configure_logging=False,
    )


def alive_nodes() -> dict[str, RayNode]:
    """The living nodes of the cluster, by name."""
    import ray

    found = {}
    for node in ray.nodes():  # type: ignore[no-untyped-call]
        if node["Alive"]:
            host = _NOT_IN_NAMES.sub("-", node.get("NodeName") or node["NodeManagerAddress"])
            name = f"{host}-{node['NodeID'][:6]}"
            found[name] = RayNode(
                node["NodeID"], name, node["NodeManagerAddress"], node["Resources"]
            )
    return found


def free_slots_on(node: RayNode, options: RayOptions) -> int:
    """The number of free slots of this node, up to the setting `per_node`."""
    from ray._private.state import available_resources_per_node

    free = available_resources_per_node()  # type: ignore[no-untyped-call]
    count = int(free.get(node.id, {}).get(options.slot_resource, 0))
    return count if options.per_node is None else min(count, options.per_node)


class NodeAgents:
    """The node agents of one service, and their licences."""

    def __init__(self, options: RayOptions) -> None:
        self._options = options

    def find(self, node: str) -> Any | None:  # noqa: ANN401
        import ray

        try:
            return ray.get_actor(_agent_name(self._options, node), namespace=NAMESPACE)
        except ValueError:
            return None

    def make(self, node: RayNode, count: int) -> Any:  # noqa: ANN401
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        resource = self._options.slot_resource
        is_gpu = resource == "GPU"
        claim: dict[str, Any] = {"num_gpus": count} if is_gpu else {"resources": {resource: count}}
        return (
            ray.remote(NodeAgentActor)
            .options(
                name=_agent_name(self._options, node.name),
                namespace=NAMESPACE,
                lifetime="detached",
                get_if_exists=True,
                num_cpus=0,
                max_restarts=-1,
                max_concurrency=8,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
                **claim,
            )
            .remote(self._options, node.name, node.host, None if is_gpu else count)
        )

    def kill(self, actor: Any) -> None:  # noqa: ANN401
        import ray

        ray.kill(actor, no_restart=True)

    # licences: keys in the table of the head

    def license(self, node: str) -> None:
        from ray.experimental.internal_kv import _internal_kv_put

        _internal_kv_put(
            _agent_name(self._options, node), b"1", overwrite=True, namespace=NAMESPACE
        )

    def revoke(self, node: str) -> None:
        from ray.experimental.internal_kv import _internal_kv_del

        _internal_kv_del(_agent_name(self._options, node), namespace=NAMESPACE)


class NodeAgentActor(RayNodeAgent):
    """The agent of a node, as Ray creates it there.

    `count`: number of CPU slots; None: the slots are the GPUs that Ray gave to the actor.
    """

    def __init__(self, options: RayOptions, node: str, host: str, count: int | None) -> None:
        import ray

        gpus = [str(id) for id in ray.get_gpu_ids()] if count is None else None
        licence = _agent_name(options, node)
        super().__init__(
            node_root(options.node_dir, options.instance, node),
            granted_slots(node, host, count or 0, gpus),
            options.lease_seconds,
            lambda timeout: _has_licence(licence, timeout),
        )


def _agent_name(options: RayOptions, node: str) -> str:
    """The name of a node's agent, and of its licence."""
    return f"{options.instance}/{node}"


def _has_licence(name: str, timeout: float) -> bool:
    from ray.experimental.internal_kv import internal_kv_get_gcs_client

    client = internal_kv_get_gcs_client()  # type: ignore[no-untyped-call]
    key, namespace = name.encode(), NAMESPACE.encode()
    return client.internal_kv_get(key, namespace, timeout=timeout) is not None
