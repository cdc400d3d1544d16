"""What a terminal sends as Textual's messages: keys, mouse, pastes, focus; whatever is none of them is dropped.

Textual's own parser types what it does not know, so that a terminal's answer to a question presses keys, and some
bytes end it. Here a sequence is cut out by the grammar of ECMA-48 first, and only then looked up in Textual's tables.
"""

from __future__ import annotations

import re
import time
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator

from textual._ansi_sequences import ANSI_SEQUENCES_KEYS
from textual._keyboard_protocol import FUNCTIONAL_KEYS
from textual._xterm_parser import XTermParser
from textual.constants import ESCAPE_DELAY
from textual.events import AppBlur, AppFocus, Paste
from textual.keys import Keys
from textual.message import Message
from textual.messages import TerminalSupportsSynchronizedOutput

CUT_S = 0.5  # a sequence that is not whole by then never will be
PASTE_S = 10.0  # nor will a paste that has stood still for so long
MOST_PASTED = 2**16  # characters; of more the rest is dropped
MOST_HELD = 80  # characters; a longer sequence is no key
PASTE, PASTED = "\x1b[200~", "\x1b[201~"

_WHOLE = re.compile(
    r"(?P<key>[^\x1b])"
    r"|\x1b\[M[^\x1b]{3}"  # the mouse before there was a report in figures
    r"|(?P<sequence>\x1b(?:"
    r"\[\[[A-E]"  # the console's function keys
    r"|\[[0-9]+\$"  # rxvt's keys with shift
    r"|\[(?!M)(?!\[)[-0-?]*[ -/]*[@-~]"
    r"|O[ -~]))"
    r"|\x1b[\]PX^_](?:[^\x07\x1b])*(?:\x07|\x1b\\)"  # a string: what a terminal answers
    r"|(?P<alt>\x1b[^\[O\]PX^_\x1b])"
)
_BEGUN = re.compile(r"\x1b(?:\[(?:M[^\x1b]{0,2}|\[|[-0-?]*[ -/]*)|O|(?P<string>[\]PX^_])[^\x07\x1b]*\x1b?)?")
_MOUSE = re.compile(r"\x1b\[<[0-9]{1,2};[0-9]{1,4};[0-9]{1,4}[Mm]")
_REPORT = re.compile(r"\x1b\[\?2026;[1-9]\$y")
# code:shifted:base ; modifiers:event ; text
_KEY = re.compile(r"\x1b\[([0-9]*)(?::[0-9:]*)?(?:;([0-9]*)(?::([0-9]*))?)?(?:;([0-9:]*))?([u~A-Z])")
_RELEASED = "3"


class Typed:
    """Reads pieces of any bytes, cut anywhere."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._decode = getincrementaldecoder("utf-8")("ignore").decode
        self._tables = XTermParser()
        self._held = ""  # of a sequence that is not whole
        self._pasted: str | None = None  # of a paste that has not ended
        self._last = clock()

    def feed(self, data: bytes) -> Iterator[Message]:
        """What has come with these bytes."""
        yield from self.tick()
        self._last = self._clock()
        text, self._held = self._held + self._decode(data), ""
        place = 0
        while place < len(text):
            if self._pasted is not None:
                place = self._take_pasted(text, place)
                if self._held:
                    return
                yield from self._end_paste()
                continue
            found = _WHOLE.match(text, place)
            if found is None:
                found = _BEGUN.match(text, place)
                assert found is not None  # it begins with an escape
                if found.end() == len(text):
                    self._hold(found)
                    return
                yield from self._cut(found[0])
            elif found[0] == PASTE:
                self._pasted = ""
            else:
                yield from self._message(found)
            place = found.end()

    def tick(self) -> Iterator[Message]:
        """What it has become by waiting: the key Escape, a paste without an end."""
        waited = self._clock() - self._last
        if self._pasted is not None:
            if waited >= PASTE_S:
                yield from self._end_paste()
        elif self._held and waited >= (ESCAPE_DELAY if len(self._held) < 3 else CUT_S):
            held, self._held = self._held, ""
            yield from self._cut(held)

    def _take_pasted(self, text: str, place: int) -> int:
        """Take what belongs to the paste; the place after its end, with what may be the beginning of the end held."""
        end = text.find(PASTED, place)
        stop = end if end >= 0 else max(place, len(text) - len(PASTED) + 1)
        before = self._pasted or ""
        if len(before) < MOST_PASTED:
            self._pasted = (before + text[place:stop])[:MOST_PASTED]
        self._held = "" if end >= 0 else text[stop:]
        return stop + len(PASTED)

    def _end_paste(self) -> Iterator[Message]:
        text = (self._pasted or "") + self._held.partition("\x1b")[0]
        self._pasted, self._held = None, ""
        yield Paste(text.replace("\x00", ""))

    def _hold(self, begun: re.Match[str]) -> None:
        """Keep what is not whole; of a string only that it has begun, for it is dropped when it ends."""
        held = begun[0]
        if begun["string"]:
            held = held[:3] + ("\x1b" if len(held) > 3 and held.endswith("\x1b") else "")
        self._held = held[:MOST_HELD]

    def _cut(self, held: str) -> Iterator[Message]:
        """What was no sequence: the key Escape, or one pressed with Alt; anything longer is dropped."""
        if held == "\x1b":
            yield from self._keys(held)
        elif len(held) == 2:
            yield from self._keys(held[1], alt=True)

    def _message(self, found: re.Match[str]) -> Iterator[Message]:
        """What a whole piece means."""
        text = found[0]
        if found["key"]:
            if not "\x80" <= text <= "\x9f":
                yield from self._keys(text)
        elif found["alt"]:
            yield from self._keys(text) if text in ANSI_SEQUENCES_KEYS else self._keys(text[1], alt=True)
        elif found["sequence"] and len(text) < MOST_HELD:
            yield from self._sequence(text)

    def _sequence(self, text: str) -> Iterator[Message]:
        if text in ("\x1b[I", "\x1b[O"):
            yield AppFocus() if text == "\x1b[I" else AppBlur()
        elif _REPORT.fullmatch(text):
            yield TerminalSupportsSynchronizedOutput()
        elif _MOUSE.fullmatch(text):
            mouse = self._tables.parse_mouse_code(text)
            if mouse is not None:
                yield mouse
        elif text in ANSI_SEQUENCES_KEYS or (text := _key(text)):
            yield from self._keys(text)

    def _keys(self, text: str, alt: bool = False) -> Iterator[Message]:
        for event in self._tables._sequence_to_key_events(text, alt=alt):
            if event.key != Keys.Ignore:
                yield event


def _key(text: str) -> str:
    """The sequence of a key of the kitty protocol, without what Textual cannot read; empty if it is none."""
    found = _KEY.fullmatch(text)
    if found is None:
        return ""
    code, modifiers, event, typed, end = found.groups(default="")
    named = f"{code or 1}{end}" in FUNCTIONAL_KEYS
    if event == _RELEASED or not (named or (end == "u" and (_printable(code) or typed))):
        return ""
    if not all(_printable(part) for part in typed.split(":") if typed):
        return ""
    return f"\x1b[{code};{modifiers}{';' + typed if typed else ''}{end}" if modifiers or typed else f"\x1b[{code}{end}"


def _printable(code: str) -> bool:
    number = int(code or "0")
    return 0 < number <= 0x10FFFF and chr(number).isprintable()
