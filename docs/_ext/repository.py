"""Links from pages to other files of the repository, such as `[it](../../kernels/softmax/09_registers.cu)`.

On the web and in an editor they lead to the file itself; in the built pages they lead to `files/`, with highlighted
sources, rendered Markdown, folders as lists, and other files as they are.
"""

from __future__ import annotations

import html
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.util import logging

ROOT = Path(__file__).resolve().parent.parent.parent
LANGUAGES = {".cu": "cuda", ".cuh": "cuda", ".py": "python", ".toml": "toml", ".txt": "text", ".ncu-cfg": "text"}
# Pages of their files link to the folder, whose page lists its files.
BROWSED = ("kernels", "examples")

log = logging.getLogger(__name__)


def _place(target: str, docname: str) -> tuple[Path, str] | None:
    """The file or folder of the repository that a link of a page leads to, and its anchor; None for any other link."""
    path, _, anchor = target.partition("#")
    if not path or re.match(r"[a-z]+:", target):
        return None
    found = Path(os.path.normpath(ROOT / "docs" / PurePosixPath(docname).parent / path))
    return (found, anchor) if found.is_relative_to(ROOT) and found != ROOT and found.exists() else None


def _uri(path: Path) -> str:
    """The path of a file or folder in the built pages."""
    name = path.relative_to(ROOT).as_posix()
    if path.is_dir():
        return f"files/{name}/index.html"
    if path.suffix == ".md":
        if path.is_relative_to(ROOT / "docs"):
            return f"{path.relative_to(ROOT / 'docs').with_suffix('').as_posix()}.html"
        return f"files/{name.removesuffix('.md')}.html"
    return f"files/{name}.html" if path.suffix in LANGUAGES else f"files/{name}"


def relink(app: Any, doctree: nodes.document) -> None:
    """Replaces links that Sphinx would turn into downloads or would not find."""
    docname = app.env.docname
    found: set[str] = set()
    for node in list(
        doctree.findall(lambda node: isinstance(node, addnodes.download_reference | addnodes.pending_xref))
    ):
        if node.get("reftype") != "myst":
            continue
        target = str(node["reftarget"])
        if os.path.isabs(target):  # a Markdown file outside docs/, which Sphinx treats as a page
            target = os.path.relpath(f"{target}.md", ROOT / "docs" / PurePosixPath(docname).parent)
            target += f"#{node['reftargetid']}" if node.get("reftargetid") else ""
        elif node.get("refdomain") == "doc":
            continue
        place = _place(target, docname)
        if place is None:
            continue
        path, anchor = place
        found.add(path.relative_to(ROOT).as_posix())
        uri = "../" * docname.count("/") + _uri(path) + (f"#{anchor}" if anchor else "")
        link = nodes.reference("", "", internal=True, refuri=uri)
        link += node.children
        node.replace_self(link)
    if not hasattr(app.env, "repository_files"):
        app.env.repository_files = {}
    app.env.repository_files[docname] = found


def forget(app: Any, env: Any, docname: str) -> None:
    getattr(env, "repository_files", {}).pop(docname, None)


class Files:
    """The files that pages link to, and those that these files link to."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.outdir = Path(app.outdir)
        named = set().union(*getattr(app.env, "repository_files", {}).values())
        self.todo = sorted(named)
        self.seen = set(self.todo)

    def add(self, path: Path) -> None:
        name = path.relative_to(ROOT).as_posix()
        if name not in self.seen:
            self.seen.add(name)
            self.todo.append(name)

    def pages(self) -> Iterator[tuple[str, dict[str, Any], str]]:
        while self.todo:
            name = self.todo.pop(0)
            path = ROOT / name
            if path.is_relative_to(ROOT / "docs") and path.suffix == ".md":
                continue
            page = _uri(path).removesuffix(".html")
            if path.is_dir():
                body = self.folder(path, page)
            elif path.suffix == ".md":
                body = self.markdown(path, page)
            elif path.suffix in LANGUAGES:
                text = path.read_text(encoding="utf-8")
                body = self.app.builder.highlighter.highlight_block(text, LANGUAGES[path.suffix], linenos=False)
            else:
                copy = self.outdir / _uri(path)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy)
                continue
            title = "" if path.suffix == ".md" else f"<h1>{html.escape(name)}</h1>\n{self.trail(path, page)}"
            yield page, {"title": name, "body": title + body}, "page.html"

    def trail(self, path: Path, page: str) -> str:
        """A link to the folder."""
        folder = path.parent
        if path.relative_to(ROOT).parts[0] not in BROWSED or folder == ROOT:
            return ""
        self.add(folder)
        name = html.escape(folder.relative_to(ROOT).as_posix())
        return f'<p>In <a href="{self.href(folder, page)}"><code>{name}/</code></a></p>\n'

    def href(self, path: Path, page: str) -> str:
        return os.path.relpath(_uri(path), PurePosixPath(page).parent)

    def folder(self, path: Path, page: str) -> str:
        lines = []
        for entry in sorted(path.iterdir(), key=lambda entry: (entry.is_dir(), entry.name)):
            if entry.name.startswith((".", "__pycache__")):
                continue
            self.add(entry)
            name = html.escape(f"{entry.name}/" if entry.is_dir() else entry.name)
            lines.append(f'<li><a href="{self.href(entry, page)}"><code>{name}</code></a></li>')
        return "<ul>\n" + "\n".join(lines) + "\n</ul>\n"

    def markdown(self, path: Path, page: str) -> str:
        """A Markdown file outside docs/, rendered, with its links adapted."""
        from markdown_it import MarkdownIt

        reader = MarkdownIt("commonmark").enable("table")
        reader.options["highlight"] = lambda text, language, _: self.app.builder.highlighter.highlight_block(
            text, {"cuda": "cuda", "python": "python", "console": "console"}.get(language, "text")
        )
        text = path.read_text(encoding="utf-8")

        def moved(found: re.Match[str]) -> str:
            target = html.unescape(found[2])
            if re.match(r"[a-z]+:|#", target):
                return found[0]
            name, _, anchor = target.partition("#")
            there = Path(os.path.normpath(path.parent / name))
            if not there.exists() or not there.is_relative_to(ROOT):
                log.warning("%s: no file for the link %s", path.relative_to(ROOT), target)
                return found[0]
            self.add(there)
            return f'{found[1]}="{self.href(there, page)}{f"#{anchor}" if anchor else ""}"'

        body = re.sub(r'\b(href|src)="([^"]*)"', moved, reader.render(text))
        # headings can be linked to, and wide tables scroll
        body = re.sub(r"<h(\d)>(.*?)</h\1>", lambda h: f'<h{h[1]} id="{_slug(h[2])}">{h[2]}</h{h[1]}>', body)
        return re.sub(
            r"<table>.*?</table>", r'<div class="table-wrapper docutils container">\g<0></div>', body, flags=re.S
        )


def _slug(heading: str) -> str:
    """The anchor that GitHub makes of a heading."""
    text = html.unescape(re.sub(r"<[^>]+>", "", heading)).lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def collect(app: Any) -> Iterator[tuple[str, dict[str, Any], str]]:
    if app.builder.format == "html":
        yield from Files(app).pages()


def setup(app: Any) -> dict[str, bool]:
    # before Sphinx collects downloads
    app.connect("doctree-read", relink, priority=100)
    app.connect("env-purge-doc", forget)
    app.connect("html-collect-pages", collect)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
