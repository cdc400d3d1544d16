"""Which machine a server runs on: memory and devices belong to a machine, and never stand beside another's server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from llmtop.contract.snapshot import Host, Node, ServerView
from llmtop.nodes.reading import NodeReading


@dataclass(frozen=True, slots=True)
class Places:
    """Servers, this machine, and those read by ssh; `asked`: this one is wanted also where none of them runs on it."""

    views: Sequence[ServerView]
    here: Host
    asked: bool = False
    remote: Sequence[NodeReading] = ()

    @property
    def name(self) -> str:
        """What this machine is called."""
        return self.here.name or "this machine"

    @property
    def shown(self) -> bool:
        """Whether this machine's memory and devices belong into the snapshot."""
        return self.asked or any(view.local for view in self.views) or not (self.views or self.remote)

    @property
    def host(self) -> Host:
        """The first node's host; of this machine its name alone where nothing else of it is shown."""
        return self.nodes[0].host or Host()

    @property
    def servers(self) -> tuple[ServerView, ...]:
        """The servers, each with its machine."""
        return tuple(replace(view, node=self._of(view)) for view in self.views)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """This machine first, unless others are read in its place; last those of which only the servers are known."""
        first = () if self.remote and not self.shown else (self._this(),)
        read = tuple(map(_read, self.remote))
        known = {node.name for node in (*first, *read)}
        others = dict.fromkeys(name for view in self.views if (name := self._of(view)) not in known)
        return (*first, *read, *(_unknown(name) for name in others))

    def _this(self) -> Node:
        seen = self.here if self.shown else Host(name=self.here.name, simulated=self.here.simulated)
        asked = self.asked and not all(view.local for view in self.views)
        host = replace(seen, node=self.name)
        return Node(self.name, simulated=self.here.simulated, asked=asked, host=host)

    def _of(self, view: ServerView) -> str:
        if view.node is not None:
            return view.node
        return self.name if view.local else self._elsewhere(view.url)

    def _elsewhere(self, url: str) -> str:
        """The host of a URL, with its port where it has the name of this machine all the same."""
        parts = urlsplit(url)
        host = parts.hostname or url
        return host if host != self.name else parts.netloc


def _read(reading: NodeReading) -> Node:
    host = None if reading.sample is None else replace(reading.sample.host, node=reading.name)
    return Node(reading.name, local=False, state=reading.state, reason=reading.reason, age_s=reading.age_s, host=host)


def _unknown(name: str) -> Node:
    shown, host = (f"[{name}]",) * 2 if name.count(":") > 1 else (name, name.partition(":")[0])
    reason = f"memory of {shown} is not known here: llmtop ssh://{host} reads it"
    return Node(name, local=False, state="unknown", reason=reason)
