"""`llmtop web`: who gets in, what a tab can do and cannot, one poller for all, and a real browser."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import aiohttp
import psutil
import pytest

from chromium import Page, chromium, find
from fakes.pages import Engine, PageServer
from llmtop.commands.web import split
from llmtop.web.gate import Gate
from program import COMMAND, environment
from web_program import WebProgram, of_server, tab, visitor

# --- the gate ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("127.0.0.1:8090", True),
        ("localhost:9999", True),
        ("LOCALHOST", True),
        ("[::1]:8090", True),
        ("evil.com:8090", False),
        ("127.0.0.1.evil.com:8090", False),
        ("localhost@evil.com", False),
        ("localhost:8090/..", False),
        ("", False),
        (None, False),
    ],
)
def test_only_its_own_names_are_answered(host: str | None, known: bool) -> None:
    assert Gate().knows_host(host) is known


@pytest.mark.parametrize(
    ("origin", "same"),
    [
        ("http://127.0.0.1:8090", True),
        ("http://127.0.0.1:8091", False),
        ("https://127.0.0.1:8090", False),
        ("http://evil.com", False),
        ("null", False),
        (None, False),
    ],
)
def test_only_its_own_pages_are_answered(origin: str | None, same: bool) -> None:
    assert Gate().same_origin(origin, "127.0.0.1:8090") is same


def test_secrets_are_long_and_new_every_time_and_not_shown() -> None:
    one, two = Gate(), Gate()
    assert len({one.token, one.session, two.token, two.session}) == 4
    assert min(len(one.token), len(one.session)) >= 43
    assert one.token not in repr(one)
    assert one.session not in repr(one)
    assert one.right_token(one.token)
    assert not one.right_token(one.session)
    assert not one.right_token(None)
    assert not one.right_session("ü")
    assert one.cookie != two.cookie


def test_flags_of_its_own_come_first() -> None:
    assert split(["--port", "1", "--allow-load", "demo", "gb10", "--port", "2"]) == (
        ["--port", "1", "--allow-load"],
        ["demo", "gb10", "--port", "2"],
    )
    assert split(["--tabs=2", "-d", "2", "spark-a"]) == (["--tabs=2"], ["-d", "2", "spark-a"])


# --- the command ------------------------------------------------------------------------------------------------------


def refused(folder: Path, *args: str) -> str:
    """What the command says when it refuses to run: one line."""
    done = subprocess.run(
        [COMMAND, "web", *args], capture_output=True, text=True, env=environment(folder), timeout=60, check=False
    )
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    (said,) = done.stderr.splitlines()
    return said


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--host", "0.0.0.0", "demo"), "--host takes the one address"),
        (("--tabs", "0", "demo"), "--tabs must be 1 to 64"),
        (("--port", "99999", "demo"), "--port must be 0 to 65535"),
        (("load", "http://a:1"), "shows servers or the demo, not load"),
        (("127.0.0.1:1", "--json"), "are for a terminal"),
    ],
)
def test_what_makes_no_sense_is_one_line(args: tuple[str, ...], words: str, tmp_path: Path) -> None:
    assert words in refused(tmp_path, *args)


def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    with PageServer([b""]) as other:
        said = refused(tmp_path, "--port", str(other.port), "127.0.0.1:1")
    assert "--port 0 takes a free port" in said


def test_without_its_package_it_says_what_to_install(tmp_path: Path) -> None:
    code = "import sys; sys.modules['textual_serve'] = None\nfrom llmtop.cli import main; main(['web', 'demo'])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(tmp_path), timeout=60, check=False
    )
    assert done.returncode == 2
    assert done.stderr == ("llmtop: llmtop web needs the package textual-serve: pip install 'llmtop-monitor[web]'\n")


# --- who gets in ------------------------------------------------------------------------------------------------------


async def test_without_the_token_there_is_nothing(tmp_path: Path) -> None:
    with WebProgram(tmp_path, *of_server("127.0.0.1:1", tmp_path)) as web:
        async with visitor(web, admitted=False) as stranger:
            for path in (
                "/",
                "/?token=",
                f"/?token={web.token[:-1]}",
                "/page.js",
                "/static/js/textual.js",
                "/x",
                "/ws",
            ):
                async with stranger.get(web.base + path) as answer:
                    assert answer.status == 403, path
                    assert answer.headers["Referrer-Policy"] == "no-referrer"
            with pytest.raises(aiohttp.WSServerHandshakeError) as error:
                async with tab(web, stranger):
                    pass
            assert error.value.status == 403
            assert not web.tabs


async def test_the_token_becomes_a_cookie_that_only_this_page_has(tmp_path: Path) -> None:
    with WebProgram(tmp_path, *of_server("127.0.0.1:1", tmp_path)) as web:
        async with visitor(web, admitted=False) as session, session.get(web.url) as answer:
            assert answer.status == 200
            (cookie,) = answer.headers.getall("Set-Cookie")
            assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(re.split("; ", cookie))
            assert web.token not in cookie
            assert answer.headers["Referrer-Policy"] == "no-referrer"
            assert answer.headers["Cache-Control"] == "no-store"
            assert web.token not in await answer.text()
            async with session.get(web.base + "/") as page:
                assert page.status == 200
                text = await page.text()
        assert "textual-terminal" in text
        assert not re.search(r"https?://(?!127\.0\.0\.1)", text)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.com"},
        {"Origin": "null"},
        {"Host": "evil.com"},
        {"Host": "evil.com", "Origin": "http://evil.com"},
    ],
    ids=str,
)
async def test_pages_of_others_cannot_use_the_cookie(headers: dict[str, str], tmp_path: Path) -> None:
    with WebProgram(tmp_path, *of_server("127.0.0.1:1", tmp_path)) as web:
        async with visitor(web) as session:
            with pytest.raises(aiohttp.WSServerHandshakeError) as error:
                async with tab(web, session, **headers):
                    pass
            assert error.value.status == 403
            async with session.get(web.base + "/", headers=headers) as answer:
                assert answer.status == 403
            assert not web.tabs


async def test_a_websocket_without_an_origin_is_no_browser(tmp_path: Path) -> None:
    with WebProgram(tmp_path, *of_server("127.0.0.1:1", tmp_path)) as web:
        async with visitor(web) as session:
            with pytest.raises(aiohttp.WSServerHandshakeError) as error:
                await session.ws_connect(web.base.replace("http", "ws") + "/ws")
            assert error.value.status == 403


async def test_there_are_only_so_many_tabs(tmp_path: Path) -> None:
    with WebProgram(tmp_path, "--tabs", "1", *of_server("127.0.0.1:1", tmp_path)) as web:
        async with visitor(web) as session:
            async with tab(web, session) as only:
                await only.shows("DOWN")
                with pytest.raises(aiohttp.WSServerHandshakeError) as error:
                    async with tab(web, session):
                        pass
                assert error.value.status == 503
                assert len(web.tabs) == 1
            async with asyncio.timeout(20):
                while web.tabs:
                    await asyncio.sleep(0.05)
            async with tab(web, session) as next_one:
                await next_one.shows("DOWN")


# --- what a tab is ----------------------------------------------------------------------------------------------------


async def test_tabs_share_one_poller_and_hold_no_secret(tmp_path: Path) -> None:
    env = {"VLLM_API_KEY": "sk-very-secret", "PYTHONUNBUFFERED": "1"}
    with PageServer([Engine().page]) as server, WebProgram(tmp_path, *of_server(server.url, tmp_path), env=env) as web:
        async with visitor(web) as session, tab(web, session) as one, tab(web, session) as two:
            await one.shows("SERVING")
            await two.shows("SERVING")
            for process in web.tabs:
                told = "\n".join([*process.cmdline(), *(f"{k}={v}" for k, v in process.environ().items())])
                assert "sk-very-secret" not in told
                assert web.token not in told
                assert not process.net_connections("inet")
            began, before = time.monotonic(), len(server.scrapes())
            async with asyncio.timeout(30):
                while len(server.scrapes()) < before + 8:
                    await asyncio.sleep(0.05)
            assert time.monotonic() - began > 8 * 0.5 * 0.8
        key = {headers.get("Authorization") for _, path, headers in server.requests if path == "/metrics"}
        assert key == {"Bearer sk-very-secret"}


async def test_a_new_tab_has_the_past(tmp_path: Path) -> None:
    with (
        PageServer([Engine().page]) as server,
        WebProgram(tmp_path, *of_server(server.url, tmp_path), "-d", "60") as web,
    ):
        async with asyncio.timeout(40):
            while not server.scrapes():
                await asyncio.sleep(0.05)
        async with visitor(web) as session, tab(web, session) as late:
            await late.shows("SERVING")
        assert len(server.scrapes()) == 1  # there was nothing new to show


async def test_a_tab_writes_no_file_and_starts_nothing(tmp_path: Path) -> None:
    with PageServer([Engine().page]) as server, WebProgram(tmp_path, *of_server(server.url, tmp_path)) as web:
        async with visitor(web) as session, tab(web, session) as one:
            await one.shows("SERVING")
            for label in ("l Load", "r Record"):
                assert label not in one.text
            await one.keys("rsl+-")
            await one.keys("g")
            await one.shows("no GPU seen")
            await one.keys("\x1b")
            await one.shows("KV cache")
            assert "polling every" not in one.text
            (process,) = web.tabs
            assert process.children() == []
        assert list(web.folder.iterdir()) == []
        written = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert written == []


async def test_a_start_up_is_watched_once_for_all_tabs(tmp_path: Path) -> None:
    with WebProgram(tmp_path, "demo", "gb10", "--warmup", "--speed", "60", "-d", "0.5") as web:
        async with visitor(web) as session:
            async with tab(web, session) as one:
                await one.shows("reading weights")  # the page opens by itself
                await one.shows("READY")
                await one.shows("s of it reading weights; the tightest moment was")
                await one.keys("\x1b")
                await one.shows("SERVING")
            async with tab(web, session) as late:
                await late.shows("SERVING")
                await late.keys("w")
                await late.shows("READY")
                await late.shows("s of it reading weights; the tightest moment was")


async def test_the_load_button_is_there_when_it_was_asked_for(tmp_path: Path) -> None:
    with (
        PageServer([Engine().page]) as server,
        WebProgram(tmp_path, "--allow-load", *of_server(server.url, tmp_path)) as web,
    ):
        async with visitor(web) as session, tab(web, session) as one:
            await one.shows("l Load")
            await one.keys("l")
            await one.shows("Load test")


async def test_a_mark_is_seen_in_every_tab(tmp_path: Path) -> None:
    with PageServer([Engine().page]) as server, WebProgram(tmp_path, *of_server(server.url, tmp_path)) as web:
        async with visitor(web) as session, tab(web, session) as one, tab(web, session) as two:
            await one.shows("SERVING")
            await two.shows("SERVING")
            await one.keys("m")
            await one.shows("mark set")
            await two.shows("│")


NONSENSE = ("nonsense", "{}", "[]", '["resize"]', '["resize", 7]', '["stdin"]', '["resize", {"width": "x"}]')


async def test_no_message_breaks_the_server(tmp_path: Path) -> None:
    with WebProgram(tmp_path, *of_server("127.0.0.1:1", tmp_path)) as web:
        async with visitor(web) as session:
            for message in NONSENSE:
                async with tab(web, session) as one:
                    await one.say(message)
                    assert await one.closed() == 1008, message
            async with tab(web, session) as one:
                for message in ('["x", 1]', '["ping", 1]', '["resize", {"width": 100000, "height": -1}]'):
                    await one.say(message)
                await one.say('["resize", {"width": 100, "height": 30}]')
                await one.shows("DOWN")


async def test_quitting_in_a_tab_ends_that_tab_alone(tmp_path: Path) -> None:
    with WebProgram(tmp_path, *of_server("127.0.0.1:1", tmp_path)) as web:
        async with visitor(web) as session, tab(web, session) as one, tab(web, session) as two:
            await one.shows("DOWN")
            await two.shows("DOWN")
            await one.keys("q")
            await one.closed()
            await two.keys("?")
            await two.shows("Keys")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
async def test_it_ends_clean(number: int, code: int, tmp_path: Path) -> None:
    with WebProgram(tmp_path, *of_server("127.0.0.1:1", tmp_path)) as web:
        async with visitor(web) as session, tab(web, session) as one:
            await one.shows("DOWN")
            processes = web.tabs
            assert await asyncio.to_thread(web.stop, number) == code
            await one.closed()
        assert psutil.wait_procs(processes, 10)[1] == []
        assert list(web.temp.iterdir()) == []


async def test_a_tab_does_not_outlive_a_killed_server(tmp_path: Path) -> None:
    with WebProgram(tmp_path, *of_server("127.0.0.1:1", tmp_path)) as web:
        async with visitor(web) as session, tab(web, session) as one:
            await one.shows("DOWN")
            processes = web.tabs
            os.kill(web.process.pid, signal.SIGKILL)
            gone, alive = await asyncio.to_thread(psutil.wait_procs, processes, 15)
        assert len(gone) == 1
        assert alive == []


# --- a real browser ---------------------------------------------------------------------------------------------------


async def test_in_a_real_browser(tmp_path: Path) -> None:
    path = find()
    if path is None:
        pytest.skip("no Chromium on this machine: the page itself is not tested")
    with PageServer([Engine().page]) as server, WebProgram(tmp_path, *of_server(server.url, tmp_path)) as web:
        async with chromium(path, tmp_path) as browser:
            stranger = await browser.page()
            assert await stranger.open(f"{web.base}/") == 403
            page = await browser.page()
            assert await page.open(web.url) == 200
            await _numbers_change(page)
            await page.press("v")
            await page.until(lambda: "users served" in page.text, "the stage")
            assert await page.evaluate("location.href") == f"{web.base}/"
            assert await page.evaluate("document.cookie") == ""
            assert await page.evaluate("document.referrer") == ""
            picture = await page.picture()
            assert picture.startswith(b"\x89PNG")
            assert len(picture) > 4000  # a blank page of this size has less
            elsewhere = [url for url in page.requests if not url.startswith((web.base, web.base.replace("http", "ws")))]
            assert elsewhere == []
            assert page.errors == []
            await page.press("q")
            await page.until(lambda: page.ended, "the end of the websocket")
            assert "Open it again" in await page.evaluate("document.body.innerText")


async def _numbers_change(page: Page) -> None:
    """The page shows figures, and later others."""
    await page.until(lambda: "SERVING" in page.text, "figures")
    figures = set()

    def another() -> bool:
        found = re.search(r"up (\S+)|(\d+ s) ago", page.text)
        figures.add((found.group(0) if found else "", re.sub(r"\D", "", page.text)))
        return len(figures) > 2

    await page.until(another, "other figures")
