"""Which row of its page each series belongs to: engines are told apart by any label that differs between them.

A series that lacks such a label belongs to the only row that it fits; one that fits several is of the page as a whole.
Of two engines on one page the first of the registry is read, since what stands in front of it repeats its figures.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from llmtop.engines import registry
from llmtop.engines.page_record import NO_ENGINE, RowKey
from llmtop.engines.registry.entry import ROW_GAUGES, EngineEntry, Kind
from llmtop.engines.series import MODEL, Labels, SampleSlot

_ORDER = {engine.name: place for place, engine in enumerate(registry.ENGINES)}
# the names of rows, the best first; whatever else differs comes after these
_NAMES = ("dp_rank", "engine", "rank", "worker_addr", "worker_id", "ReplicaId", "WorkerId", "pod", "instance", "server")


class Rows:
    """The rows of one server's pages; remembers which labels have told rows apart, so that names stay."""

    def __init__(self) -> None:
        self._slots: Collection[SampleSlot] = ()
        self._keys: dict[SampleSlot, tuple[RowKey, ...]] = {}
        self._telling: set[str] = set()
        self._naming: list[str] = []
        self.places: Mapping[RowKey, Labels] = {}  # equal for the data-parallel engines of one server

    def keys(self, slots: Collection[SampleSlot]) -> Mapping[SampleSlot, tuple[RowKey, ...]]:
        """The rows that each series belongs to; a series that is not there is of another engine."""
        if self._slots != slots:
            self._slots = frozenset(slots)
            self._keys = self._assign(slots)
        return self._keys

    def _assign(self, slots: Iterable[SampleSlot]) -> dict[SampleSlot, tuple[RowKey, ...]]:
        slots = list(slots)
        engine = _spoken(slots)
        if engine is None:
            return {}
        own = [slot for slot in slots if slot.engine is engine]
        self._learn(own)
        groups = _Groups(own, frozenset({*self._telling, *engine.row_labels, MODEL}), engine)
        names = groups.names(self._naming, engine)
        self.places = {key: group.place(engine) for key, group in names.items()}
        # what is of the page as a whole is of its only row, if there is one
        page: tuple[RowKey, ...] = tuple(names) if len(names) == 1 else (("", NO_ENGINE),)
        keys = {slot: page for slot in slots if slot.engine is registry.PROCESS}
        return {**keys, **{slot: groups.rows_of(slot, names) for slot in own}}

    def _learn(self, slots: list[SampleSlot]) -> None:
        """Take in the labels by which series of one gauge differ."""
        seen: dict[tuple[str, object, str | None, str], set[str]] = {}
        for slot in slots:
            if slot.source.signal in ROW_GAUGES or slot.signal.startswith("pool:"):
                model = dict(slot.labels).get(MODEL)
                for label, value in slot.labels:
                    seen.setdefault((slot.source.metric, slot.source.match, model, label), set()).add(value)
        self._telling |= {key[-1] for key, values in seen.items() if len(values) > 1 and key[-1] != MODEL}


def _spoken(slots: list[SampleSlot]) -> EngineEntry | None:
    """The engine whose page it is."""
    told: dict[str, tuple[EngineEntry, set[str]]] = {}
    for slot in slots:
        if slot.engine is not registry.PROCESS:
            told.setdefault(slot.engine.name, (slot.engine, set()))[1].add(slot.signal)
    known = [engine for engine, signals in told.values() if engine.needs <= signals]
    return min(known, key=lambda engine: _ORDER.get(engine.name.removesuffix(registry.RAY), 0), default=None)


class _Group:
    """One row in the making: its labels, whether it has gauges of its own, which labels filled which metric."""

    def __init__(self, labels: Labels, gauged: bool) -> None:
        self.labels = dict(labels)
        self.gauged = gauged
        self.filled: dict[str, Labels] = {}

    def fits(self, labels: Labels) -> bool:
        return all(self.labels.get(label, value) == value for label, value in labels)

    def place(self, engine: EngineEntry) -> Labels:
        """Its labels but for those that count the engines of one server."""
        return tuple(sorted(pair for pair in self.labels.items() if pair[0] not in engine.row_labels))


class _Groups:
    def __init__(self, slots: list[SampleSlot], telling: frozenset[str], engine: EngineEntry) -> None:
        self._telling = telling
        self._always = frozenset(engine.row_labels)
        self._groups: list[_Group] = []
        self._fitting: dict[Labels, list[_Group]] = {}
        gauged = {self._of(slot) for slot in slots if slot.source.signal in ROW_GAUGES}
        others = {self._of(slot) for slot in slots if slot.source.kind not in (Kind.LORA, Kind.PAGE)} - gauged
        for labels in sorted(gauged, key=_most_first):
            self._add(labels, True)
        for labels in sorted(others, key=_most_first):
            self._add(labels, False)
        self._fitting = {labels: self._fit(labels) for labels in gauged | others}
        for slot in slots:  # a series with fewer labels repeats what one with more has said
            for group in self._fitting.get(self._of(slot), ()):
                held = group.filled.get(slot.source.metric, ())
                group.filled[slot.source.metric] = max(held, self._of(slot), key=len)

    def _of(self, slot: SampleSlot) -> Labels:
        return tuple(pair for pair in slot.labels if pair[0] in self._telling)

    def _fit(self, labels: Labels) -> list[_Group]:
        return [group for group in self._groups if group.fits(labels)]

    def _add(self, labels: Labels, gauged: bool) -> None:
        fitting = self._fit(labels)
        if len(fitting) == 1 and (labels or not gauged or len(self._groups) == 1):
            fitting[0].labels |= dict(labels)
        elif not fitting:
            self._groups.append(_Group(labels, gauged))

    def names(self, naming: list[str], engine: EngineEntry) -> dict[RowKey, _Group]:
        """The rows by their keys: as few labels in a name as tell all of them apart."""
        rows = [group for group in self._groups if self._is_row(group)] or self._groups
        known = {label for group in rows for label in group.labels if label != MODEL}
        order = (*engine.row_labels, *_NAMES)
        for label in sorted(known, key=lambda name: (order.index(name) if name in order else len(order), name)):
            if label not in naming and _apart(rows, [*naming, label]) > _apart(rows, naming):
                naming.append(label)
        result: dict[RowKey, _Group] = {}
        for group in rows:
            told = [group.labels[label] for label in naming if label in group.labels]
            name = "/".join(told) or next((group.labels[x] for x in engine.row_labels if x in group.labels), "0")
            result.setdefault((group.labels.get(MODEL, ""), name), group)
        return result

    def _is_row(self, group: _Group) -> bool:
        """Whether it is an engine: it has an engine's gauges, or a name of its own, or nobody has gauges."""
        return group.gauged or bool(self._always & group.labels.keys()) or not any(g.gauged for g in self._groups)

    def rows_of(self, slot: SampleSlot, names: Mapping[RowKey, _Group]) -> tuple[RowKey, ...]:
        """The rows of a series: one, all that it fits when it only describes, else the page's own."""
        if slot.source.kind in (Kind.LORA, Kind.PAGE):
            return (("", NO_ENGINE),)
        labels = self._of(slot)
        fitting = self._fitting[labels]
        keys = tuple(key for key, group in names.items() if group in fitting)
        if slot.source.kind in (Kind.CONFIG, Kind.SLEEP):
            return keys
        if len(keys) != 1:
            return ((dict(labels).get(MODEL, ""), NO_ENGINE),)
        return keys if len(names[keys[0]].filled[slot.source.metric]) <= len(labels) else ()


def _most_first(labels: Labels) -> tuple[int, Labels]:
    return -len(labels), labels


def _apart(rows: list[_Group], naming: list[str]) -> int:
    return len({(row.labels.get(MODEL, ""), *(row.labels.get(label, "") for label in naming)) for row in rows})
