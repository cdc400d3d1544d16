"""The panels of the dashboard by their keys, and one of them on the whole screen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llmtop.ui.panels import events, glossary, machine, server
from llmtop.ui.panels.glossary import Term, explained
from llmtop.ui.panels.view import View, heading
from llmtop_widgets.text import Line, beside

Draw = Callable[[View, int, int], list[Line]]
FACTS_CELLS, FACTS_ROWS = 76, 14
LEAST_BESIDE = 120  # cells from which the words stand beside the figures
LEAST_CHART, LEAST_BELOW = 8, 5  # rows; the second below many figures
GAP = 3


@dataclass(frozen=True, slots=True)
class Panel:
    """A part of the dashboard: its figures, their past where there is room, and what its words mean."""

    key: str
    name: str
    least: int  # rows
    facts: Draw
    chart: Draw | None
    terms: tuple[Term, ...]
    details: Callable[[View, int], list[Line]] | None = None  # what stands below the figures on the whole screen

    def lines(self, view: View, cells: int, rows: int) -> list[Line]:
        """The panel in at most `rows` rows."""
        facts = self.facts(view, cells, rows)
        return (facts + (self.chart(view, cells, rows - len(facts)) if self.chart else []))[:rows]

    def whole(self, view: View, cells: int, rows: int) -> list[Line]:
        """The panel on the whole screen: its figures, what they mean, and a long chart."""
        if self.chart is None:
            lines = self.facts(view, cells, rows)
            return [*lines, (), *self._words(cells)][:rows]
        if cells >= LEAST_BESIDE:
            right = cells - FACTS_CELLS - GAP
            facts = self._figures(view, FACTS_CELLS)
            top = beside([(facts, FACTS_CELLS), (self._words(right), right)], GAP)
            return [*top, (), *self.chart(view, cells, rows - len(top) - 1)][:rows]
        facts, words = self._figures(view, cells), self._words(cells)
        least = LEAST_BELOW if len(facts) > LEAST_CHART else LEAST_CHART
        room = max(least, rows - len(facts) - 2 - len(words))
        words = self._words(cells, rows - len(facts) - 2 - room)
        return [*facts, (), *self.chart(view, cells, room), (), *words][:rows]

    def _figures(self, view: View, cells: int) -> list[Line]:
        details = self.details(view, cells) if self.details else []
        return [*self.facts(view, cells, FACTS_ROWS), *([(), *details] if details else [])]

    def _words(self, cells: int, rows: int = 999) -> list[Line]:
        """As many terms as there is room for, each whole."""
        number = len(self.terms)
        while number and len(explained(self.terms[:number], cells)) >= rows:
            number -= 1
        more = "? explains the rest" if number < len(self.terms) else ""
        return [heading("What it means", cells, more), *explained(self.terms[:number], cells)]


KV = Panel("1", "KV cache", 6, server.kv_facts, server.kv_chart, glossary.KV)
MEMORY = Panel("2", "Memory", 6, machine.memory_facts, machine.memory_chart, glossary.MEMORY, machine.held_lines)
QUEUE = Panel("3", "Queue", 4, server.queue_facts, server.queue_chart, glossary.QUEUE)
THROUGHPUT = Panel("4", "Throughput", 4, server.throughput_facts, server.throughput_chart, glossary.THROUGHPUT)
LATENCY = Panel("5", "Latency", 6, server.latency_facts, server.latency_chart, glossary.LATENCY)
GPU = Panel("6", "GPU", 4, machine.gpu_facts, machine.gpu_chart, glossary.GPU, machine.power_lines)
EVENTS = Panel("7", "Events", 7, events.events_facts, None, glossary.EVENTS)
SO_FAR = Panel("8", "So far", 7, events.engines_facts, None, glossary.SO_FAR)
PANELS = (KV, MEMORY, QUEUE, THROUGHPUT, LATENCY, GPU, EVENTS, SO_FAR)
BY_KEY = {panel.key: panel for panel in PANELS}
