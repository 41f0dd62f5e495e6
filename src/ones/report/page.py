"""Self-contained HTML pages, with style and pictures in one file."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

_STYLE = """
:root { color-scheme: light; --ink: #20242c; --quiet: #5b6270; --line: #dfe3e9; --soft: #f5f7fa;
  --yes: #006d4f; --no: #a33c00; --maybe: #5b6270; }
* { box-sizing: border-box; }
body { font: 16px/1.55 system-ui, "DejaVu Sans", sans-serif; color: var(--ink); background: #fff;
  max-width: 1280px; margin: 0 auto; padding: 2rem 1.25rem 5rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .5rem; }
h2 { font-size: 1.35rem; margin: 3rem 0 .6rem; padding-top: .8rem; border-top: 1px solid var(--line); }
h3 { font-size: 1.05rem; margin: 1.6rem 0 .4rem; }
p { max-width: 75ch; margin: .5rem 0; }
.quiet, figcaption { color: var(--quiet); font-size: .9rem; }
code { font: .88em ui-monospace, "DejaVu Sans Mono", monospace; background: var(--soft);
  padding: .1em .3em; border-radius: 3px; overflow-wrap: anywhere; }
pre { background: var(--soft); padding: .8rem 1rem; border-radius: 6px; overflow-x: auto; }
pre code { padding: 0; }
.wide { overflow-x: auto; margin: .8rem 0 1.2rem; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .7rem; border-bottom: 1px solid var(--line); text-align: left;
  vertical-align: top; }
th { font-weight: 600; background: var(--soft); }
td.number, th.number { text-align: right; white-space: nowrap; }
td.short { white-space: nowrap; }
tr.strong td { font-weight: 600; }
caption { text-align: left; color: var(--quiet); padding: .2rem 0 .4rem; font-size: .9rem; }
caption span { display: block; max-width: min(75ch, 90vw); }
figure { margin: 1rem 0; }
figure img { max-width: 100%; height: auto; }
dl.facts { display: grid; grid-template-columns: max-content 1fr; gap: .3rem 1rem; margin: .8rem 0;
  padding: .8rem 1rem; background: var(--soft); border-radius: 6px; font-size: .93rem; }
dl.facts dt { font-weight: 600; }
dl.facts dd { margin: 0; }
.yes { color: var(--yes); } .no { color: var(--no); } .maybe { color: var(--maybe); }
.tag { display: inline-block; font-size: .78rem; font-weight: 600; padding: .1rem .5rem;
  border: 1px solid currentColor; border-radius: 999px; margin-left: .5rem; vertical-align: middle; }
nav ol { columns: 2; font-size: .93rem; padding-left: 1.2rem; }
nav a, a { color: #0059a3; }
@media (max-width: 700px) { nav ol { columns: 1; } dl.facts { grid-template-columns: 1fr; } }
@media print { h2 { break-after: avoid; } figure, .wide { break-inside: avoid; } }
""".strip()  # noqa: E501

Cell = str | int | float | None
#: texts up to this length are not wrapped
_SHORT = 24


def page(title: str, parts: Iterable[str]) -> str:
    body = "\n".join(parts)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{_STYLE}\n</style>\n</head>\n"
        f"<body>\n<h1>{escape(title)}</h1>\n{body}\n</body>\n</html>\n"
    )


def heading(text: str, *, anchor: str = "", tag: str = "") -> str:
    name = f' id="{escape(anchor, quote=True)}"' if anchor else ""
    label = f'<span class="tag maybe">{escape(tag)}</span>' if tag else ""
    return f"<h2{name}>{escape(text)}{label}</h2>"


def paragraph(text: str, *, quiet: bool = False, kind: str = "") -> str:
    """`...` becomes code."""
    names = " ".join(name for name in ("quiet" if quiet else "", kind) if name)
    mark = f' class="{names}"' if names else ""
    return f"<p{mark}>{inline(text)}</p>"


def command(text: str) -> str:
    return f"<pre><code>{escape(text)}</code></pre>"


def contents(entries: Iterable[tuple[str, str]]) -> str:
    """A table of contents: anchor and title of each entry."""
    items = "".join(f'<li><a href="#{escape(a)}">{escape(t)}</a></li>' for a, t in entries)
    return f"<nav><ol>{items}</ol></nav>"


def table(
    heads: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    *,
    caption: str = "",
    strong: Iterable[int] = (),
) -> str:
    """A table with numbers right-aligned; `strong`: indices of rows in bold."""
    numeric = [
        any(isinstance(row[i], int | float) for row in rows)
        and all(isinstance(row[i], int | float | None) for row in rows)
        for i in range(len(heads))
    ]
    marks = [' class="number"' if right else "" for right in numeric]
    head = "".join(f"<th{m}>{inline(h)}</th>" for h, m in zip(heads, marks, strict=True))
    bold = set(strong)
    lines = []
    for number, row in enumerate(rows):
        cells = "".join(
            f"<td{m or _cell_class(c)}>{_cell_text(c)}</td>"
            for c, m in zip(row, marks, strict=True)
        )
        lines.append(f'<tr class="strong">{cells}</tr>' if number in bold else f"<tr>{cells}</tr>")
    title = f"<caption><span>{inline(caption)}</span></caption>" if caption else ""
    return (
        f'<div class="wide"><table>{title}<thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def picture(path: Path, caption: str) -> str:
    """An embedded image; the caption is also its alternative text."""
    kind = "svg+xml" if path.suffix == ".svg" else "png"
    data = b64encode(path.read_bytes()).decode("ascii")
    return (
        f'<figure><img alt="{escape(caption, quote=True)}" src="data:image/{kind};base64,{data}">'
        f"<figcaption>{inline(caption)}</figcaption></figure>"
    )


def definitions(pairs: Iterable[tuple[str, str, str]]) -> str:
    """A definition list: term, text, and a mark (`yes`, `no`, `maybe` or nothing)."""
    items = "".join(
        f"<dt>{escape(term)}</dt><dd{f' class={mark!r}' if mark else ''}>{inline(text)}</dd>"
        for term, text, mark in pairs
    )
    return f'<dl class="facts">{items}</dl>'


def inline(text: str) -> str:
    """Escapes a text; `...` becomes code."""
    parts = escape(text, quote=False).split("`")
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))


def number(value: float | None) -> str:
    """
    >>> number(1234.5), number(12.345), number(0.1234), number(None)
    ('1,234', '12.3', '0.123', '-')
    """
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}".removesuffix(".0") if abs(value) >= 10 else f"{value:.3g}"


def _cell_class(cell: Cell) -> str:
    return ' class="short"' if isinstance(cell, str) and len(cell) <= _SHORT else ""


def _cell_text(cell: Cell) -> str:
    return inline(cell) if isinstance(cell, str) else number(cell)
