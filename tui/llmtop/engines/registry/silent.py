"""Servers known by how they are started alone."""

from __future__ import annotations

from llmtop.engines.command_line import process
from llmtop.engines.registry.entry import EngineEntry

OMLX = EngineEntry("omlx", "oMLX", processes=(process(r"(^|/)omlx$", "serve"),))
DEMO = EngineEntry("demo", "demo", processes=(process(r"(^|/)llmtop$", "demo", needs="--serve"),), port=0)
