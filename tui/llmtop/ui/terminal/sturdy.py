"""The Linux driver for any terminal: nothing typed ends its reading, and it ends with its terminal."""

from __future__ import annotations

import os
import select
import signal
import termios
import time
from errno import EIO
from queue import Full
from threading import Event, Thread
from typing import NoReturn

from textual.drivers.linux_driver import LinuxDriver

from llmtop.ui.terminal.typed import Typed

LOOK_S = 0.1
CHUNK = 4096
MANY = 100  # messages after which the app is waited for: what is typed faster than it is taken stays in the terminal
LEAVE_S = 5.0  # for the app to leave a terminal that has gone
HUNG_UP = 128 + signal.SIGHUP


class SturdyDriver(LinuxDriver):
    """Keys, mouse and pastes from the terminal's bytes, by `Typed`.

    A terminal that has gone ends the program with the code of SIGHUP, whether or not there was such a signal and
    whatever the app is doing. An exception in here ends the app as one of its own does.
    """

    def start_application_mode(self) -> None:
        """Enter application mode; Textual does not where the terminal has gone, and says nothing."""
        super().start_application_mode()  # type: ignore[no-untyped-call]  # Textual leaves it untyped
        if self._gone():
            self._hang_up()

    def write(self, data: str) -> None:
        """Hand it to the writer; to one that has died with its terminal nobody could hand anything."""
        writer = self._writer_thread
        while writer is not None and writer.is_alive():
            try:
                return writer._queue.put(data, timeout=LOOK_S)
            except Full:
                continue
        return None

    def close(self) -> None:
        """Let the writer write what is left, as long as it lives."""
        writer = self._writer_thread
        if writer is None:
            return
        stopping = Thread(target=writer.stop, daemon=True)
        stopping.start()
        while stopping.is_alive() and writer.is_alive():
            stopping.join(LOOK_S)

    def _sigcont_application(self, *args: object) -> None:
        """Come back from any stop, also one that nobody announced; a hang-up brings this signal too."""
        if not self._reading():
            super()._sigcont_application(*args)
        elif self._auto_restart:
            self._loop.call_soon_threadsafe(self._begin_anew)

    def _reading(self) -> bool:
        return self._key_thread is not None and self._key_thread.is_alive()

    def _begin_anew(self) -> None:
        if self._reading() and not self._gone():
            self.suspend_application_mode()
            self.resume_application_mode()

    def _query_in_band_window_resize(self) -> None:
        """Do not ask for sizes in the input: the kernel knows them, and with them the mouse would tell every pixel."""

    def _run_input_thread(self) -> None:
        try:
            self.run_input_thread()
        except Exception as error:
            self._app.call_later(_throw, error)

    def run_input_thread(self) -> None:
        """Read what is typed until the driver or the terminal ends."""
        typed = Typed()
        while not self.exit_event.is_set():
            data = self._read()
            if data == b"":
                return self._hang_up()
            messages = list(typed.tick() if data is None else typed.feed(data))
            for message in messages:
                self.process_message(message)
            if len(messages) > MANY:
                self._wait_for_app()
        return None

    def _read(self) -> bytes | None:
        """What has been typed; None when nothing has for a moment, empty when nothing ever will."""
        if not select.select([self.fileno], [], [], LOOK_S)[0]:
            return None
        try:
            return os.read(self.fileno, CHUNK)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno == EIO:
                return b""
            raise

    def _wait_for_app(self) -> None:
        taken = Event()
        self._app.call_later(taken.set)
        while not taken.wait(LOOK_S) and not self.exit_event.is_set():
            continue

    def _gone(self) -> bool:
        try:
            termios.tcgetattr(self.fileno)
        except termios.error as error:
            return bool(error.args[0] == EIO)
        return False

    def _hang_up(self) -> None:
        """Leave; an app that is too busy to leave is left where it is."""
        Thread(target=_leave_late, name="hang-up", daemon=True).start()
        self._loop.call_soon_threadsafe(self._app.exit, None, HUNG_UP)


def _leave_late() -> NoReturn:
    time.sleep(LEAVE_S)
    os._exit(HUNG_UP)


def _throw(error: Exception) -> NoReturn:
    raise error
