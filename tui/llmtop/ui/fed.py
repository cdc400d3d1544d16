"""The app without a machine of its own: a recording or a web server gives it all that it shows."""

from __future__ import annotations

from llmtop.machine.sample import MachineSample
from llmtop.ui.app import LlmtopApp
from llmtop.warmup.recorded import StartupView


class NoMachine:
    """In the place of a machine: its readings come with the snapshots."""

    def start(self) -> None:
        """Nothing to start."""

    def sample(self) -> MachineSample:
        """Nothing is known of now."""
        return MachineSample(0.0)

    def ready(self) -> bool:
        """There is nothing to wait for."""
        return True

    def stop(self) -> None:
        """Nothing to stop."""


class FedApp(LlmtopApp):
    """Shows start-ups as others have watched them."""

    _opened_for = -1.0  # when the start-up began whose page has opened by itself

    @property
    def startup(self) -> StartupView | None:
        """What was last told of a start-up."""
        raise NotImplementedError

    def startup_begins(self) -> bool:
        """Whether one is told of that is new; not one that was left and is seen again, as in a recording."""
        if self.startup is None or not self.startup.active:
            return False
        began = next((phase.began for phase in self.startup.report.startup.phases if phase.began is not None), 0.0)
        begins = began > self._opened_for
        self._opened_for = max(began, self._opened_for)
        return begins
