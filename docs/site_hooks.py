"""Hooks of mkdocs: pages from the root of the repository, and links to files that are not pages.

The markdown is written for the repository. On the site README.md is the home page, and links to
source files are shown as paths, or lead to the repository if `repo_url` is set in mkdocs.yml.
"""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import dirname, join, normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pymdownx.slugs import slugify

ROOT = Path(__file__).resolve().parents[1]
#: page of the site -> file in the root of the repository
ROOT_PAGES = {
    "index.md": "README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "releasing.md": "RELEASING.md",
    "security.md": "SECURITY.md",
    "code-of-conduct.md": "CODE_OF_CONDUCT.md",
}

_FENCE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<path>[^)\s:#]+)(?P<anchor>#[^)\s]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Anchors of headings as GitHub makes them."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = slugify(case="lower")
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for page, source in ROOT_PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    where = page.file.src_uri
    source = ROOT_PAGES.get(where, f"docs/{where}")
    parts, end = [], 0
    for fence in _FENCE.finditer(markdown):  # code is not touched
        parts += [
            site_links(markdown[end : fence.start()], where, source, config.repo_url),
            fence[0],
        ]
        end = fence.end()
    return "".join([*parts, site_links(markdown[end:], where, source, config.repo_url)])


def site_links(text: str, page: str, source: str, repository: str | None = None) -> str:
    """The text with the links of a file of the repository as links of a page of the site."""
    pages = {file: name for name, file in ROOT_PAGES.items()}

    def renew(link: re.Match[str]) -> str:
        target = normpath(join(dirname(source), link["path"]))
        on_site = pages.get(target) or target.removeprefix("docs/")
        is_page = target in pages or (
            target.startswith("docs/")
            and not target.endswith(".py")
            and not (ROOT / target).is_dir()
        )
        if is_page:
            path = relpath(on_site, dirname(page) or ".")
            return f"{link['image']}[{link['text']}]({path}{link['anchor'] or ''})"
        if repository:
            return f"[{link['text']}]({repository.rstrip('/')}/blob/main/{target})"
        shown = link["text"].strip("`")
        return f"`{target}`" if shown == target else f"{link['text']} (`{target}`)"

    return _LINK.sub(renew, text)
