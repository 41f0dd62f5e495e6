"""Requests drawn from the service's own OpenAPI description, right ones and wrong ones: nothing
breaks it, every answer is one that the description knows, and what is refused changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.control.world import World

#: one ends the service, the other never ends
LEFT_OUT = ("/api/shutdown", "/api/events")
EXAMPLES = 20
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("world"))
    world.up()
    yield world
    world.down()


def known(world: World) -> Any:  # noqa: ANN401
    """All that users can change, but for what goes on by itself."""
    cluster = world.get("/api/cluster")
    return (
        sorted((j["id"], j["priority"]) for j in world.get("/api/jobs", all=True, limit=10_000)),
        world.get("/api/users"),
        cluster["nodes"],
        [slot["aside"] for slot in cluster["slots"]],
    )


@pytest.mark.hypothesis
def test_no_request_breaks_it_and_none_that_is_refused_changes_anything(world: World) -> None:
    schema = schemathesis.openapi.from_dict(world.get("/openapi.json"))
    schema.config.update(base_url=str(world.http.base_url), headers=dict(world.http.headers))
    tried: Counter[tuple[str, int]] = Counter()
    described: Any = schema.get_all_operations()
    for found in described:
        operation = found.ok()
        if operation.path in LEFT_OUT:
            continue

        @settings(
            max_examples=EXAMPLES, phases=[Phase.generate], suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(
            case=st.one_of(
                operation.as_strategy(generation_mode=GenerationMode.POSITIVE),
                operation.as_strategy(generation_mode=GenerationMode.NEGATIVE),
            )
        )
        def ask(case: Case[Any]) -> None:
            _tame(case)
            before = known(world) if case.method not in ("GET", "HEAD") else None
            answer = case.call(headers={"Authorization": world.http.headers["Authorization"]})
            tried[f"{case.method} {case.operation.path}", answer.status_code] += 1
            case.validate_response(answer, checks=CHECKS)
            if before is not None and answer.status_code >= 400:
                assert known(world) == before

        ask()
    operations = {operation for operation, _ in tried}
    assert len(operations) >= 20, sorted(operations)
    assert {status // 100 for _, status in tried} == {2, 4}, tried
    assert world.get("/health")["ok"]
    for job in world.get("/api/jobs", limit=10_000):
        world.post(f"/api/jobs/{job['id']}/cancel")


def _tame(case: Case[Any]) -> None:
    """Accepted jobs run: the command is small, and the test does not wait for its output."""
    body: Any = case.body
    if isinstance(body, dict) and isinstance(body.get("command"), list) and body["command"]:
        body["command"][0] = "true"
    if isinstance(body, dict) and isinstance(body.get("url"), str) and body["url"]:
        body["url"] = "http://127.0.0.1:1/"
    if isinstance(body, dict) and isinstance(body.get("sweep"), dict):
        body["sweep"] = dict(list(body["sweep"].items())[:1])
    if isinstance(case.query, dict):
        case.query.pop("wait", None)
