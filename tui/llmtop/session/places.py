"""Which machine a server runs on: memory and devices belong to a machine, and never stand beside another's server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from llmtop.contract.snapshot import Host, Node, ServerView


@dataclass(frozen=True, slots=True)
class Places:
    """Servers and the machine llmtop runs on; `asked`: that machine is wanted also where none of them runs on it."""

    views: Sequence[ServerView]
    here: Host
    asked: bool = False

    @property
    def name(self) -> str:
        """What this machine is called."""
        return self.here.name or "this machine"

    @property
    def shown(self) -> bool:
        """Whether this machine's memory and devices belong into the snapshot."""
        return self.asked or not self.views or any(view.local for view in self.views)

    @property
    def host(self) -> Host:
        """This machine; its name alone where nothing else of it is shown."""
        seen = self.here if self.shown else Host(name=self.here.name, simulated=self.here.simulated)
        return replace(seen, node=self.name)

    @property
    def servers(self) -> tuple[ServerView, ...]:
        """The servers, each with its machine."""
        return tuple(replace(view, node=self.name if view.local else self._elsewhere(view.url)) for view in self.views)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """This machine first, then those of which only the servers are known."""
        asked = self.asked and not all(view.local for view in self.views)
        here = Node(self.name, simulated=self.here.simulated, asked=asked, host=self.host)
        others = dict.fromkeys(self._elsewhere(view.url) for view in self.views if not view.local)
        return (here, *(_unknown(name) for name in others))

    def _elsewhere(self, url: str) -> str:
        """The host of a URL, with its port where it has the name of this machine all the same."""
        parts = urlsplit(url)
        host = parts.hostname or url
        return host if host != self.name else parts.netloc


def _unknown(name: str) -> Node:
    shown = f"[{name}]" if name.count(":") > 1 else name
    reason = f"memory of {shown} is not known here: run llmtop there"
    return Node(name, local=False, state="unknown", reason=reason)
