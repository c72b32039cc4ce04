"""The explorer in a real browser: a person types, selects, uses the keys and reads the answer.

It needs Playwright (`pip install playwright`) and an installed Chromium (`apt-get install chromium`).
"""

import shutil
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn
from tests.inference.runs import make

from mm_ldlm.extras.explorer.server import application
from mm_ldlm.inference.api import MMLDLM

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SENTENCE = "w1 w2 w3 w4"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (apt-get install chromium)"),
]


@pytest.fixture(scope="module")
def model() -> MMLDLM:
    return make()


@pytest.fixture(scope="module")
def address(model: MMLDLM) -> Iterator[str]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(application({"one": model}), log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join()


@pytest.fixture
def page() -> Iterator[Any]:
    """A page of a browser without network but the loopback, whose errors fail the test."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="Playwright is not installed (pip install playwright)"
    )
    errors: list[str] = []
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
        )
        made = browser.new_page()
        made.set_default_timeout(120_000)
        made.on("pageerror", lambda error: errors.append(str(error)))
        made.on(
            "request",
            lambda request: (
                request.url.startswith(("http://127.0.0.1", "file:", "data:")) or errors.append(request.url)
            ),
        )
        yield made
        browser.close()
    assert not errors


def test_a_sentence_is_typed_written_played_and_changed(page: Any, address: str, model: MMLDLM) -> None:
    expected, between = model.invert([SENTENCE], search=True), model.interpolate([SENTENCE], ["w5 w6"], steps=11)
    page.goto(address)
    page.wait_for_selector("#write .answer")  # of the example
    page.fill("#write [name=text]", SENTENCE)
    page.press("#write [name=text]", "Enter")
    page.wait_for_selector("#write .out[aria-busy=false]")
    assert page.inner_text("#write .answer") == expected.texts[0]
    player, last = page.locator("#write .player").first, len(expected.texts[0].split())
    state = player.locator("output")
    player.focus()
    page.keyboard.press("Home")
    assert f"0 of {last} words" in state.inner_text()
    page.keyboard.press("ArrowRight")
    assert state.inner_text().startswith("step 1 of")
    page.keyboard.press(" ")
    page.wait_for_function(
        f"document.querySelector('#write .player output').textContent.includes('{last} of {last} words')"
    )
    player.locator(".words button").first.click()
    page.wait_for_selector("text=Masked again")
    page.click("#tab-between")
    page.fill("#between [name=text]", SENTENCE)
    page.fill("#between [name=toward]", "w5 w6")
    page.click("#between .go")
    page.wait_for_selector("#between .out[aria-busy=false]")
    page.locator(".slide").press("End")
    assert page.inner_text("#between .answer") == between.texts[-1]
    page.fill("#between [name=toward]", " ")
    page.click("#between .go")
    assert "expected a text" in page.inner_text("#between .problem")
    page.route("**/ask/*", lambda route: route.abort())
    page.click("#between .go")
    page.wait_for_selector("#between .problem:has-text('mm-ldlm explore')")
