"""The signal that ends the threads that wake up many times a second."""

from __future__ import annotations

import threading
import time

from llmtop.machine.live import Ending


def test_a_wait_without_an_end_times_out() -> None:
    ending = Ending()
    assert not ending.wait(0.0)
    assert not ending.wait(-1.0)
    assert not ending.wait(0.01)
    assert not ending.is_set()


def test_it_ends_every_wait_at_once_and_for_good() -> None:
    ending, ended = Ending(), []
    began = time.monotonic()
    threads = [threading.Thread(target=lambda: ended.append(ending.wait(30.0))) for _ in range(3)]
    for thread in threads:
        thread.start()
    ending.set()
    ending.set()
    for thread in threads:
        thread.join(10.0)
    assert ended == [True, True, True]
    assert ending.is_set()
    assert ending.wait(30.0)
    assert time.monotonic() - began < 10.0
