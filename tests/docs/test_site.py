"""The documentation site: complete navigation, links of the site, and a strict build."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SETTINGS = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")

needs_mkdocs = pytest.mark.skipif(
    find_spec("mkdocs") is None, reason="mkdocs is not installed: pip install 'ones[docs]'"
)


@needs_mkdocs
def test_every_page_is_in_the_navigation_once_and_exists() -> None:
    from docs.site_hooks import ROOT_PAGES

    _, _, navigation = SETTINGS.partition("\nnav:\n")
    named = re.findall(r"^ +- (?:[^:]+: )?(\S+\.md)$", navigation, re.MULTILINE)
    pages = [str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")]
    assert sorted(named) == sorted([*pages, *ROOT_PAGES])


def test_the_site_loads_nothing_from_other_hosts() -> None:
    assert "font: false" in SETTINGS
    assert "//" not in SETTINGS
    for file in (*DOCS.rglob("*.css"), *DOCS.rglob("*.js")):
        assert "//" not in file.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", sorted((DOCS / "api").glob("*.md")), ids=lambda page: page.stem)
def test_the_api_pages_name_what_exists(page: Path) -> None:
    names = re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert names
    for name in names:
        module, _, member = name.rpartition(".")
        if find_spec(module) is not None and not hasattr(import_module(module), member):
            import_module(name)  # a module, not a member


@needs_mkdocs
@pytest.mark.parametrize(
    ("page", "source", "link", "expected"),
    [
        ("index.md", "README.md", "[a](docs/faq.md#b)", "[a](faq.md#b)"),
        ("index.md", "README.md", "![a](docs/images/demo.png)", "![a](images/demo.png)"),
        ("guides/ray.md", "docs/guides/ray.md", "[a](../faq.md)", "[a](../faq.md)"),
        ("faq.md", "docs/faq.md", "[a](../CHANGELOG.md)", "[a](changelog.md)"),
        ("faq.md", "docs/faq.md", "[a](../src/ones/errors.py)", "a (`src/ones/errors.py`)"),
        ("faq.md", "docs/faq.md", "[`tools/x`](../tools/x)", "`tools/x`"),
        ("faq.md", "docs/faq.md", "[a](https://example.org)", "[a](https://example.org)"),
        ("faq.md", "docs/faq.md", "[a](#b)", "[a](#b)"),
    ],
)
def test_links_of_the_repository_become_links_of_the_site(
    page: str, source: str, link: str, expected: str
) -> None:
    from docs.site_hooks import site_links

    assert site_links(link, page, source) == expected


@needs_mkdocs
@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "ones.join" in (tmp_path / "site" / "search" / "search_index.js").read_text("utf-8")
    home = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert 'src="javascripts/iframe-worker.js"' in home
    loaded = re.findall(r'<(?:script|link|img)\b[^>]*?(?:src|href)="?(https?://[^"> ]+)', home)
    assert loaded == []
