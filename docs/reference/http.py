"""http.md: every operation of the service, from its own OpenAPI description."""

from __future__ import annotations

from docs.reference.markdown import anchor, code, page, table
from ones.control.api.app import bare_app
from ones.control.api.description import Operation, Shape, operations_of, shapes_of

#: errors of every operation in the OpenAPI document; the page lists them once
EVERYWHERE = ("400", "401", "413", "422", "503")

ABOUT = """The interface of the commands and the web page. Send a user's token as
`Authorization: Bearer TOKEN`; only `/health` and `/metrics` need none. Bodies and answers are JSON,
times are seconds since 1970. A running service shows this page at `/docs`, and the OpenAPI document
at `/openapi.json`."""
ERRORS = """An error answer is `{"error": "one line that names the object and the value"}`.
Every operation may answer 400 (not JSON), 401 (missing or invalid token), 413 (too large), 422 (the
request is not possible) and 503 (not now: the disk is full, or the service stops). A job of another
user is 404, as is a job that does not exist."""
WORKERS = """Training processes use a smaller interface, `POST /worker/reports`, with a token of
their job: see `ones.wire.messages`."""


def http_page() -> str:
    openapi = bare_app().openapi()
    operations, shapes = operations_of(openapi), shapes_of(openapi)
    names = {shape.name for shape in shapes}
    return page(
        "# The HTTP interface",
        ABOUT,
        ERRORS,
        WORKERS,
        table(
            ["operation", ""],
            [[f"[{code(o.title)}](#{anchor(o.title)})", _first_line(o.about)] for o in operations],
        ),
        "## Operations",
        *(part for operation in operations for part in _operation(operation, names)),
        "## Objects",
        *(part for shape in shapes for part in _shape(shape, names)),
    )


def _operation(operation: Operation, names: set[str]) -> list[str]:
    parts = [f"### {operation.title}", " ".join(operation.about.split())]
    if operation.parameters:
        rows = [[code(f.name), f.kind, f.default, f.about] for f in operation.parameters]
        parts.append(table(["parameter", "what", "default", ""], rows))
    if operation.body:
        parts.append(f"Body: {_linked(operation.body, names)}.")
    answers = [
        f"{status}: {_linked(kind, names)}" + ("" if status[0] == "2" else f" ({words})")
        for status, kind, words in operation.answers
        if status not in EVERYWHERE
    ]
    parts.append(f"Answers {'; '.join(answers)}.")
    return parts


def _shape(shape: Shape, names: set[str]) -> list[str]:
    rows = [[code(f.name), _linked(f.kind, names), f.default, f.about] for f in shape.fields]
    return [
        f"### {shape.name}",
        " ".join(shape.about.split()),
        table(["field", "what", "default", ""], rows),
    ]


def _linked(words: str, names: set[str]) -> str:
    *before, last = words.split(" ")
    if last in names:
        last = f"[{last}](#{anchor(last)})"
    elif "/" in last:
        last = code(last)
    return " ".join([*before, last])


def _first_line(text: str) -> str:
    """Up to the first full stop."""
    return " ".join(text.split()).split(". ")[0].rstrip(".")
