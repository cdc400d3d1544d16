"""Playing a recording: order, pace, seeking, and what charts are given of the past."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fakes import snapshots as fakes
from llmtop.contract.snapshot import Mark, Snapshot
from llmtop.recording.play import LONGEST_GAP_S, NEAR, Jump, Player
from llmtop.recording.read import Recording, open_recording
from llmtop.recording.write import Recorder

PATIENCE_S = 10.0
START = fakes.busy().time


class Screen:
    """Takes what a player sends, in order, as a screen does."""

    def __init__(self) -> None:
        self.seen: list[Snapshot | Jump] = []
        self._news = threading.Condition()

    def take(self, item: Snapshot | Jump) -> None:
        with self._news:
            self.seen.append(item)
            self._news.notify_all()

    def wait(self, holds: Callable[[list[Snapshot | Jump]], object]) -> None:
        with self._news:
            assert self._news.wait_for(lambda: holds(self.seen), PATIENCE_S), self.places

    def wait_at(self, place: int) -> None:
        """Wait until the newest snapshot is the one of this second."""
        self.wait(lambda seen: seen and _place(seen[-1]) == place)

    @property
    def places(self) -> list[int]:
        """The seconds of what was shown."""
        return [_place(item) for item in self.seen]

    @property
    def jump(self) -> Jump:
        """The newest item, which is a jump."""
        assert isinstance(self.seen[-1], Jump)
        return self.seen[-1]


def _place(item: Snapshot | Jump) -> int:
    return round((item.snapshot if isinstance(item, Jump) else item).time - START)


def recording(path: Path, seconds: list[float], marks: tuple[int, ...] = ()) -> Recording:
    recorder = Recorder(path)
    for place, second in enumerate(seconds):
        texts = (Mark("mark", "mark", START + second),) if place in marks else ()
        recorder.write(replace(fakes.busy(), time=START + second, marks=texts))
    recorder.close()
    return open_recording(path)


@pytest.fixture
def screen() -> Screen:
    return Screen()


@pytest.fixture
def play(tmp_path: Path, screen: Screen) -> Iterator[Callable[..., Player]]:
    """Starts a player on a minute with marks at 20 and 40; stops all at the end."""
    players: list[Player] = []

    def start(at: int = 0, speed: float = 0.25, seconds: list[float] | None = None, *, paused: bool = True) -> Player:
        minute = [float(second) for second in range(60)] if seconds is None else seconds
        past = recording(tmp_path / "run.jsonl", minute, (20, 40) if seconds is None else ())
        player = Player(past, screen.take, screen.take, at=at, speed=speed)
        players.append(player)
        player.start()
        screen.wait(bool)
        if paused:
            player.toggle()
        return player

    yield start
    for player in players:
        player.stop()
        assert player.error is None


def test_it_begins_with_all_that_was_before(play: Callable[..., Player], screen: Screen) -> None:
    play(at=5)
    assert screen.places == [5]
    assert screen.jump.afresh
    assert [_place(past) for past in screen.jump.past] == [0, 1, 2, 3, 4]


def test_it_plays_everything_in_order_and_stops_at_the_end(play: Callable[..., Player], screen: Screen) -> None:
    player = play(speed=100.0, paused=False)
    screen.wait_at(59)
    assert screen.places == list(range(60))
    assert not player.place.playing


def test_its_pace_is_the_recorded_one_scaled(play: Callable[..., Player], screen: Screen) -> None:
    began = time.monotonic()
    play(speed=20.0, seconds=[0.0, 1.0, 2.0, 3.0, 20.0, 21.0], paused=False)
    screen.wait_at(21)
    # 3 gaps of 1 s, one cut to 10 s, one of 1 s; a loaded machine may be late but never early
    assert time.monotonic() - began >= (4 + LONGEST_GAP_S) / 20.0 - 0.02
    assert time.monotonic() - began < 21.0 / 20.0 * 5


def test_seeking_back_gives_the_past_afresh(play: Callable[..., Player], screen: Screen) -> None:
    player = play(at=30)
    player.seek(-10)
    screen.wait_at(20)
    assert screen.jump.afresh
    assert len(screen.jump.past) == 20
    assert player.place.time == START + 20


def test_seeking_on_gives_only_what_was_skipped(play: Callable[..., Player], screen: Screen) -> None:
    player = play(at=30)
    player.seek(10)
    screen.wait_at(40)
    assert not screen.jump.afresh
    assert [_place(past) for past in screen.jump.past] == list(range(31, 40))


def test_of_a_long_past_the_near_part_comes_first(play: Callable[..., Player], screen: Screen) -> None:
    player = play(at=0, seconds=[float(second) for second in range(NEAR + 100)])
    player.seek(NEAR + 50)
    screen.wait(lambda seen: len(seen) == 3)
    near, whole = screen.seen[1:]
    assert isinstance(near, Jump)
    assert isinstance(whole, Jump)
    assert near.snapshot is whole.snapshot
    assert near.afresh
    assert whole.afresh
    assert [_place(past) for past in near.past] == list(range(50, NEAR + 50))
    assert [_place(past) for past in whole.past] == list(range(NEAR + 50))


def test_seeks_add_up_and_end_at_the_ends(play: Callable[..., Player], screen: Screen) -> None:
    player = play(at=30)
    player.seek(10)
    player.seek(10)
    screen.wait_at(50)
    player.seek(100)
    screen.wait_at(59)
    player.seek(-1000)
    screen.wait_at(0)


def test_a_seek_shorter_than_the_distance_of_two_snapshots_still_moves(
    play: Callable[..., Player], screen: Screen
) -> None:
    player = play(at=1, seconds=[0.0, 60.0, 120.0])
    player.seek(10)
    screen.wait_at(120)
    player.seek(-10)
    screen.wait_at(60)


def test_marks_before_and_after(play: Callable[..., Player], screen: Screen) -> None:
    player = play(at=30)
    assert player.seek_mark(1)
    screen.wait_at(40)
    assert not player.seek_mark(1)
    assert player.seek_mark(-1)
    screen.wait_at(20)
    assert not player.seek_mark(-1)


def test_stepping_pauses(play: Callable[..., Player], screen: Screen) -> None:
    player = play(at=10, paused=False)
    player.step()
    screen.wait_at(11)
    player.step()
    screen.wait_at(12)
    assert not player.place.playing


def test_pausing_holds_and_playing_goes_on(play: Callable[..., Player], screen: Screen) -> None:
    player = play(at=10)
    before = len(screen.seen)
    player.change_speed(1)
    assert player.place.speed == 0.5
    assert len(screen.seen) == before
    for _ in range(20):
        player.change_speed(1)
    assert player.place.speed == 100.0
    player.toggle()
    screen.wait_at(59)
    for _ in range(20):
        player.change_speed(-1)
    assert player.place.speed == 0.25


def test_playing_at_the_end_begins_anew(play: Callable[..., Player], screen: Screen) -> None:
    player = play(at=59, paused=False)
    assert not player.place.playing
    player.toggle()
    screen.wait_at(0)
    assert screen.jump.past == []


def test_a_loop_begins_anew_by_itself(play: Callable[..., Player], screen: Screen) -> None:
    player = play(at=50, speed=100.0)
    player.toggle_loop()
    player.toggle()
    screen.wait(lambda _: 0 in screen.places and screen.places[-1] > 5)
    assert screen.places[:10] == list(range(50, 60))


def test_stopping_ends_the_thread(play: Callable[..., Player]) -> None:
    player = play(speed=100.0)
    player.stop(PATIENCE_S)
    assert not player._thread.is_alive()
