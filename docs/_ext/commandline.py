"""```{command-line}: the `--help` of every command."""

from __future__ import annotations

import argparse
import os
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive


class CommandLine(Directive):
    """One section per command, with its `--help`."""

    def run(self) -> list[nodes.Node]:
        os.environ["COLUMNS"] = "100"  # argparse folds its help at this width
        from cudakit.__main__ import build_parser

        parser = build_parser()
        commands = next(action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))
        sections: list[nodes.Node] = [nodes.literal_block("", parser.format_help(), language="text")]
        for name, command in commands.items():
            section = nodes.section(ids=[f"cudakit-{name}"], names=[f"cudakit-{name}"])
            section += nodes.title("", "", nodes.literal("", f"cudakit {name}"))
            section += nodes.literal_block("", command.format_help(), language="text")
            self.state.document.note_explicit_target(section)
            sections.append(section)
        return sections


def setup(app: Any) -> dict[str, bool]:
    app.add_directive("command-line", CommandLine)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
