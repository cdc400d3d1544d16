"""What a terminal sends is a key, the mouse, a paste, focus, or nothing: as stock Textual reads it, and never more."""

from __future__ import annotations

import string
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from textual import _parser
from textual._ansi_sequences import ANSI_SEQUENCES_KEYS
from textual._keyboard_protocol import FUNCTIONAL_KEYS
from textual._xterm_parser import XTermParser
from textual.events import AppFocus, Key, MouseEvent, Paste
from textual.message import Message
from textual.messages import TerminalSupportsSynchronizedOutput

from hypo import fuzz, strategies
from llmtop.ui.terminal.typed import CUT_S, MOST_PASTED, PASTE, PASTE_S, PASTED, Typed

MODIFIED = ("", ";1", ";2", ";3", ";5", ";8", ";129")
LETTERS = [f"\x1b[{ord(letter)}{more}u" for letter in "aAzZ1!üß漢 " for more in MODIFIED]
WITH_TEXT = [f"\x1b[{ord(letter)};{bits};{ord(letter)}u" for letter in "aZ漢" for bits in ("", "2", "5")]
NAMED = [f"\x1b[{name[:-1]}{more}{name[-1]}" for name in FUNCTIONAL_KEYS for more in MODIFIED if name != "1R"]
OTHERS = ("\x1b[0;;229u", "\x1b[97;;97:98u", "\x1b[?2026;2$y", "\x1b[I", "\x1b[O", "\x1b[Mabc", "\x1b[32;10;5M")
MOUSE = [f"\x1b[<{button};{x};5{end}" for button in (0, 2, 35, 64, 68) for x in (1, 10, 223) for end in "Mm"]
KNOWN = [text for text in ANSI_SEQUENCES_KEYS if text not in ("\x9b", "\x1b[1;2R", "\x1b[1;5R", "\x1b[1;6R")]
PLAIN = [*string.printable, *(f"\x1b{letter}" for letter in "aZq\r [O"), "ü", "漢", "\U0001f600", "\x1b"]


class Clock:
    """A clock that goes when it is told to."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def seen(messages: Iterable[Message]) -> list[tuple[Any, ...]]:
    """What matters of messages."""
    names = ("key", "character", "text", "x", "y", "button", "shift", "ctrl", "delta_x")
    return [(type(message).__name__, *(getattr(message, name, None) for name in names)) for message in messages]


def read(*pieces: bytes, wait_s: float = PASTE_S) -> list[Message]:
    """What has come after some pieces and a wait."""
    clock = Clock()
    typed = Typed(clock)
    messages = [message for piece in pieces for message in typed.feed(piece)]
    clock.now += wait_s
    return [*messages, *typed.tick()]


def keys(*pieces: bytes) -> list[str]:
    """The keys of them, and nothing else has come."""
    messages = read(*pieces)
    assert all(isinstance(message, Key) for message in messages)
    return [message.key for message in messages if isinstance(message, Key)]


def stock(text: str, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What Textual's parser makes of it."""
    clock = Clock()
    monkeypatch.setattr(_parser, "get_time", clock)
    parser = XTermParser()
    messages = list(parser.feed(text))
    clock.now += PASTE_S
    return seen([*messages, *parser.tick()])


def test_what_is_known_is_read_as_textual_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    paste = f"{PASTE}one\ntwo\x00{PASTED}x"
    for text in (*KNOWN, *NAMED, *LETTERS, *WITH_TEXT, *OTHERS, *MOUSE, *PLAIN, paste):
        data = text.encode()
        assert seen(read(data)) == stock(text, monkeypatch), repr(text)
        assert seen(read(*(data[place : place + 1] for place in range(len(data))))) == seen(read(data)), repr(text)


@pytest.mark.parametrize(
    "data",
    [
        *(b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc2\x9b"),  # no UTF-8, or a control character of 8 bits
        *(b"\x1b[55296u", b"\x1b[1114112u", b"\x1b[99999999999999999999u", b"\x1b[97;;55296u", b"\x1b[3u"),
        *(b"\x1b[57441;1:3u", b"\x1b[97;1:3u", b"\x1b[1;1:3A"),  # a key let go
        *(b"\x1b[113~", b"\x1b[24;80R", b"\x1b[8;0;0t", b"\x1b[48;0;0;0;0t", b"\x1b[48;999999;999999;1;1t"),
        *(b"\x1b[?1;2c", b"\x1b[>1;4000;0c", b"\x1b[?1u", b"\x1b[?2048;0$y", b"\x1b[0n"),
        *(b"\x1b]10;rgb:qq/qq/qq\x07", b"\x1b]11;rgb:qq/qq/qq\x1b\\", b"\x1bP>|quit\x1b\\", b"\x1b_q\x1b\\"),
        *(b"\x1b[<0;99999;5M", b"\x1b[<128;5;5M", b"\x1b[<0;0;5M", b"\x1b[<0;-5;10M", b"\x1b[<;;M"),
        *(b"\x1b[" + b"1" * 5000 + b"u", b"\x1b[" + b"1;" * 5000 + b"q", b"\x1b[q", b"\x1b]q" + b"q" * 100_000),
    ],
)
def test_what_is_none_of_them_is_dropped_and_the_next_key_is_read(data: bytes) -> None:
    assert read(data) == []
    assert read(*(data[place : place + 1] for place in range(len(data)))) == []
    clock = Clock()
    typed = Typed(clock)
    assert list(typed.feed(data)) == []
    clock.now += CUT_S
    assert [message.key for message in typed.feed(b"e") if isinstance(message, Key)] == ["e"]


def test_keys_that_textual_cannot_read() -> None:
    assert keys(b"\x1b[97:65;5u", b"\x1b[97;5:1u", b"\x1b[97:65:99;5:2u") == ["ctrl+a"] * 3
    assert keys(b"\x1b[97:65;2;65u") == ["A"]
    assert keys(b"\x1b[1;2R") == ["shift+f3"]


def test_escape_is_told_from_the_beginning_of_a_key_by_waiting() -> None:
    assert keys(b"\x1b") == ["escape"]
    assert keys(b"\x1b", b"[A") == ["up"]
    assert keys(b"\x1b\x1b[A") == ["escape", "up"]
    assert keys(b"\x1b[") == ["left_square_bracket"]
    assert keys(b"\x1b[1;\x1b[A\x1b[1\x03") == ["up", "ctrl+c"]
    clock = Clock()
    typed = Typed(clock)
    assert list(typed.feed(b"\x1b")) == []
    clock.now += 1.0
    assert [message.key for message in typed.feed(b"q") if isinstance(message, Key)] == ["escape", "q"]


def test_a_paste_is_bounded_and_ends() -> None:
    whole, more = PASTE.encode(), b"x" * 4096
    pasted = read(whole, *[more] * 2000, PASTED.encode() + b"e")
    assert isinstance(pasted[0], Paste)
    assert len(pasted[0].text) == MOST_PASTED
    assert [message.key for message in pasted[1:] if isinstance(message, Key)] == ["e"]
    unended = read(whole, b"abc\x1b[20")
    assert [message.text for message in unended if isinstance(message, Paste)] == ["abc"]
    assert read(whole, b"abc", wait_s=PASTE_S - 1.0) == []


PIECES = strategies.one_of(
    strategies.binary(max_size=12),
    strategies.sampled_from(
        [text.encode() for text in (*KNOWN, *NAMED, *WITH_TEXT, *OTHERS, *MOUSE, PASTE, PASTED, "\x1b]10;", "\x1b\\")]
    ),
    strategies.from_regex(rb"\A\x1b[\[OP\]][-0-?]{0,12}[ -/]{0,2}[@-~]?\Z"),
)


def test_no_bytes_at_any_cut_break_it() -> None:
    def check(pieces: list[bytes], cuts: list[int]) -> None:
        data = b"".join(pieces)
        places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
        parts = [data[begin:end] for begin, end in pairwise(places)]
        messages = read(*parts)
        assert seen(messages) == seen(read(data))
        kinds = (Key, MouseEvent, Paste, AppFocus, TerminalSupportsSynchronizedOutput)
        assert all(isinstance(message, kinds) or type(message).__name__ == "AppBlur" for message in messages)
        for message in messages:
            assert not isinstance(message, Key) or (message.key + (message.character or "")).encode()

    fuzz(check, strategies.lists(PIECES, max_size=12), strategies.lists(strategies.integers(0, 200), max_size=6))
