"""Who may be loaded, and what a person must say first."""

from __future__ import annotations

import pytest

from llmtop.load import safety
from llmtop.load.safety import Confirm, Place

OWN = frozenset({"192.168.7.5", "2001:db8::5", "8.8.4.4"})


@pytest.mark.parametrize(
    ("addresses", "place"),
    [
        (["127.0.0.1"], Place.LOOPBACK),
        (["127.9.9.9"], Place.LOOPBACK),
        (["::1"], Place.LOOPBACK),
        (["0.0.0.0"], Place.LOOPBACK),
        (["::ffff:127.0.0.1"], Place.LOOPBACK),
        (["192.168.7.5"], Place.OWN),
        (["8.8.4.4"], Place.OWN),
        (["192.168.7.6"], Place.PRIVATE),
        (["10.1.2.3"], Place.PRIVATE),
        (["172.31.0.1"], Place.PRIVATE),
        (["169.254.1.1"], Place.PRIVATE),
        (["fe80::1%eth0"], Place.PRIVATE),
        (["fd00::1"], Place.PRIVATE),
        (["100.100.1.1"], Place.PRIVATE),
        (["172.32.0.1"], Place.PUBLIC),
        (["8.8.8.8"], Place.PUBLIC),
        (["2606:4700::1"], Place.PUBLIC),
        (["127.0.0.1", "8.8.8.8"], Place.PUBLIC),
        ([], Place.PUBLIC),
    ],
)
def test_place_of_addresses(addresses: list[str], place: Place) -> None:
    assert safety.place_of(addresses, OWN) is place


@pytest.mark.parametrize(
    ("place", "key", "allowed", "confirm"),
    [
        (Place.LOOPBACK, True, False, Confirm.ONCE),
        (Place.OWN, False, False, Confirm.ONCE),
        (Place.PRIVATE, True, False, Confirm.NAME),
        (Place.PUBLIC, False, False, Confirm.REFUSED),
        (Place.PUBLIC, True, False, Confirm.REFUSED),
        (Place.PUBLIC, True, True, Confirm.NAME),
    ],
)
def test_permission(place: Place, key: bool, allowed: bool, confirm: Confirm) -> None:
    granted = safety.permission(place, "spark-a", key, allowed)
    assert granted.confirm is confirm
    assert bool(granted.reasons) == (confirm is not Confirm.ONCE)
    assert ("key" in " ".join(granted.reasons)) == (key and confirm is Confirm.REFUSED)


def test_localhost_needs_one_yes() -> None:
    assert safety.ask("http://localhost:8000", has_key=True, allow_remote=False).confirm is Confirm.ONCE


def test_busy_server_is_named_with_its_numbers() -> None:
    assert safety.busy_words(None, None) is None
    assert safety.busy_words(0, 0) is None
    assert "3 running, 2 waiting" in (safety.busy_words(3, 2) or "")


def test_the_typed_name_must_be_the_host() -> None:
    assert safety.typed_right(" Spark-A. ", "spark-a")
    assert not safety.typed_right("", "spark-a")
    assert not safety.typed_right("spark-b", "spark-a")
