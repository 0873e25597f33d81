"""Validates files that cudakit writes for other programs, by their published schemas."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from paths import TESTS

SCHEMAS = TESTS / "data" / "schemas"
MISSING = "the `test` extra has it: what is written is not held against the published schema here"


def expect_valid(log: dict[str, Any], document: str | os.PathLike[str]) -> None:
    """Fail unless `log` is SARIF 2.1.0 and the file `document` is JUnit XML."""
    jsonschema = pytest.importorskip("jsonschema", reason=MISSING)
    schema = json.loads((SCHEMAS / "sarif-schema-2.1.0.json").read_text())
    jsonschema.Draft4Validator(schema, format_checker=jsonschema.FormatChecker()).validate(log)
    etree = pytest.importorskip("lxml.etree", reason=MISSING)
    for name in ("junit-10.xsd", "junit-ant.xsd"):
        etree.XMLSchema(etree.parse(SCHEMAS / name)).assertValid(etree.parse(os.fspath(document)))
