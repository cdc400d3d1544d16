"""One meaning per class name across the package."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_class_name_has_one_meaning() -> None:
    files = [path for room in ("tui/llmtop", "widgets/llmtop_widgets") for path in (ROOT / room).rglob("*.py")]
    nodes = [node for path in files for node in ast.walk(ast.parse(path.read_text("utf-8")))]
    names = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    assert {name for name, times in names.items() if times > 1} == set()
