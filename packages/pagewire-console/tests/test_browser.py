"""The page in a real Chromium: what people see and do."""

import asyncio
import itertools
import re
import shutil
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from PIL import Image

from console_fakes import MARKUP, RunConsole, Shown, request_info
from frontend.auth.tokens import digest_of, entry_line
from tests.frontend.fakes import Output, encode, say
from tests.frontend.media.pictures import file_of
from tests.patience import PATIENCE_S, soon, until

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine"),
]
OpenPage = Callable[..., AbstractAsyncContextManager[Any]]
BACKGROUND = """scheme => {
    const color = getComputedStyle(document.documentElement).backgroundColor.match(/\\d+/g);
    const brightness = (Number(color[0]) + Number(color[1]) + Number(color[2])) / 3;
    return scheme === "light" ? brightness > 200 : brightness < 60;
}"""
"""Whether the page is as bright as a scheme is."""
POINTED = """async places => {
    const { Plots } = await import("/console/plots.js");
    const rows = Array(31).fill([1]);
    new Plots().begin({ columns: ["output_tokens_per_second"], rows, length: rows.length, interval: 1 });
    const plot = document.querySelector("#plots svg");
    return places.map((place) => {
        const { left, width } = plot.getBoundingClientRect(); // anew: a scroll bar moves the plot
        const clientX = left + 44 + (place * (width - 46)) / 30;
        plot.dispatchEvent(new PointerEvent("pointermove", { clientX }));
        return document.querySelector("#plots .keys .muted").textContent;
    });
}"""
"""What a plot of 31 samples, one a second, says of those at some places."""
SPIKE = """async () => {
    const { Plots } = await import("/console/plots.js");
    const rows = Array(200).fill([1, null]);
    rows[100] = [1000, null];
    const columns = ["output_tokens_per_second", "acceptance"];
    new Plots().begin({ columns, rows, length: rows.length, interval: 1 });
    return [0, 5].map((place) => {
        const texts = [...document.querySelectorAll("#plots svg")[place].querySelectorAll("text")];
        return [texts[0].textContent, texts[3].textContent];
    });
}"""
"""Note and top of the axis: of a plot of ones with one value of 1,000, and of one without values."""
PLACES = """() => ["#requests", "#log", "#chat", "#load"].map(
    (selector) => document.querySelector(selector).getBoundingClientRect().top)"""
STYLE = "([selector, name]) => getComputedStyle(document.querySelector(selector))[name]"
PICTURE = f"data:image/png;base64,{b64encode(file_of(Image.new('RGB', (3, 2), 'red'))).decode()}"
DROP = """uri => {
    const bytes = Uint8Array.from(atob(uri.split(",")[1]), (each) => each.charCodeAt(0));
    const dataTransfer = new DataTransfer();
    dataTransfer.items.add(new File([bytes], "a.png", { type: "image/png" }));
    document.querySelector("#ask").dispatchEvent(new DragEvent("drop", { dataTransfer, cancelable: true }));
}"""
"""Drops the file of a data URI on the form."""
SUBMIT = "document.querySelector('#ask').requestSubmit();"
RED = """selector => {
    const canvas = document.querySelector(selector);
    return [canvas.width, canvas.height, canvas.getContext("2d").getImageData(0, 0, 1, 1).data[0]];
}"""
"""Width and height of a drawn picture, and how red it is."""
HIDE = """isHidden => {
    Object.defineProperty(document, "hidden", { value: isHidden, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
}"""
WIDE, NARROW = {"width": 1600, "height": 1000}, {"width": 400, "height": 800}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Any]:
    """One Chromium for all tests; each has pages of its own."""
    from playwright.async_api import Error, async_playwright

    async with async_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        try:
            browser = await playwright.chromium.launch(
                executable_path=CHROMIUM, args=flags, timeout=1000 * PATIENCE_S
            )
        except Error as error:
            pytest.skip(f"Chromium does not start on this machine: {error.message.splitlines()[0]}")
        yield browser
        await browser.close()


@pytest.fixture
def open_page(browser: Any, run_console: RunConsole) -> OpenPage:
    """Opens the console of a frontend; it must report no error, such as a violation of its policy."""

    @asynccontextmanager
    async def open_it(script: Any = None, **flags: Any) -> AsyncIterator[Any]:
        async with run_console(script, **flags) as (service, client):
            context = await browser.new_context(viewport=WIDE)
            page = await context.new_page()
            page.set_default_timeout(1000 * PATIENCE_S)
            page.service, page.problems = service, []
            page.on("pageerror", lambda error: page.problems.append(str(error)))
            page.on(
                "console", lambda message: page.problems.append(message.text) if is_problem(message) else None
            )
            await page.goto(f"{client.base_url}/console/")
            try:
                yield page
            finally:
                await context.close()
            assert page.problems == []

    return open_it


def expect(locator: Any) -> Any:
    """Assertions that wait until they hold: the page follows what happens, and not at once."""
    from playwright import async_api

    async_api.expect.set_options(timeout=1000 * PATIENCE_S)
    return async_api.expect(locator)


async def until_true(page: Any, script: str, argument: Any) -> None:
    """Waits until a function of JavaScript returns true. The page's own policy forbids wait_for_function."""
    while not await page.evaluate(script, argument):
        await asyncio.sleep(0.02)


def is_problem(message: Any) -> bool:
    """True for errors but those of refused requests, which the browser reports for every 401."""
    return message.type == "error" and "status of 401" not in message.text


async def ask(page: Any, text: str) -> Any:
    """Sends a message; returns the answer's element."""
    await page.get_by_label("Message").fill(text)
    await page.keyboard.press("Enter")
    return page.locator(".message.assistant").last


async def test_an_answer_with_markup_is_text(open_page: OpenPage, shown: Shown):
    """Neither the model's text, nor its tokens, nor what tenants are called becomes markup."""
    async with open_page(say(encode(MARKUP))) as page:
        answer = await ask(page, MARKUP)
        await answer.get_by_text("tokens ·").wait_for()
        await expect(answer.locator(".text").first).to_have_text(MARKUP)
        await expect(page.locator(".message.user .text")).to_have_text(MARKUP)
        await page.get_by_label("tokens", exact=True).check()
        await expect(answer.locator(".token-view span")).to_have_count(len(MARKUP))
        await page.locator("#tenants-table").get_by_text(MARKUP[:50]).wait_for()
        await page.locator("#adapters-table").get_by_text(MARKUP[:50]).wait_for()
        await page.locator("#requests-table tbody tr").first.click()
        await page.locator("#request-detail").get_by_text(MARKUP[:50]).wait_for()
        assert await page.locator("main img, main script").count() == 0
        assert "pwned" not in await page.title()


async def test_tokens_have_probabilities(open_page: OpenPage, shown: Shown):
    async with open_page(say(encode("ab"), encode("c"))) as page:
        answer = await ask(page, "hi")
        await answer.get_by_text("3 tokens").wait_for()
        shades = page.get_by_role("img", name="Shades")
        await expect(shades).to_be_hidden()
        await page.get_by_label("tokens", exact=True).check()
        await expect(shades).to_have_text("100 %  below 1 %")
        await expect(shades.locator("i")).to_have_count(8)
        await answer.locator(".token-view").focus()
        await page.keyboard.press("End")
        detail = page.locator("#token-detail")
        await detail.get_by_text("token 3").wait_for()
        await expect(detail).to_contain_text(re.compile(r'"c" \d+(\.\d)? % instead of ".*" \d+'))
        await page.keyboard.press("ArrowLeft")
        await detail.get_by_text("token 2").wait_for()


async def test_a_picture_is_shown_and_sent(open_page: OpenPage, shown: Shown):
    async with open_page() as page:
        sent: list[Any] = []

        async def answer(route: Any) -> None:
            sent.append(route.request.post_data_json["messages"])
            await route.fulfill(content_type="text/event-stream", body="data: [DONE]\n\n")

        await page.route("**/v1/chat/completions", answer)
        await page.evaluate(DROP, PICTURE)
        await page.evaluate(DROP, PICTURE)
        waiting = page.locator("#pictures canvas")
        await expect(waiting).to_have_count(2)
        assert await page.evaluate(RED, "#pictures canvas") == [3, 2, 255]
        await page.get_by_label("Remove picture").first.click()
        await expect(waiting).to_have_count(1)
        await ask(page, "What is this?")
        assert await page.evaluate(RED, ".message.user canvas") == [3, 2, 255]
        await expect(waiting).to_have_count(0)
        await until(lambda: sent)
        (message,) = sent[0]
        part = {"type": "image_url", "image_url": {"url": PICTURE}}
        assert message["content"] == [part, {"type": "text", "text": "What is this?"}]
        await page.evaluate(f"uri => {{ ({DROP})(uri); {SUBMIT} }}", PICTURE)
        await until(lambda: len(sent) > 1)
        assert sent[1][-1]["content"] == [part], "it was still being read"


async def test_an_empty_chat_offers_questions(open_page: OpenPage, shown: Shown):
    async with open_page() as page:
        offers = page.locator(".offers button")
        await expect(offers).to_have_count(3)
        text = await offers.first.inner_text()
        await offers.first.click()
        await page.locator(".message.assistant").get_by_text("tokens ·").wait_for()
        await expect(page.locator(".message.user .text")).to_have_text(text)
        await expect(offers).to_have_count(0)
        await page.get_by_role("button", name="New").click()
        await expect(offers).to_have_count(3)


async def test_a_model_or_adapter_is_asked_for(open_page: OpenPage, shown: Shown):
    async with open_page() as page:
        await page.get_by_text("System prompt and sampling").click()
        await page.get_by_label("Model or adapter").fill("fake")
        async with page.expect_request("**/v1/chat/completions") as sent:
            answer = await ask(page, "hi")
        assert (await sent.value).post_data_json["model"] == "fake"
        await answer.get_by_text("tokens ·").wait_for()


async def test_sampling_reaches_the_engine(open_page: OpenPage, shown: Shown):
    async with open_page() as page:
        await page.get_by_text("System prompt and sampling").click()
        await page.get_by_label("System prompt").fill("Be brief.")
        for name, value in {"Temperature": "0.25", "Top k": "7", "Max tokens": "9", "Seed": "5"}.items():
            await page.get_by_label(name, exact=True).fill(value)
        answer = await ask(page, "hi")
        await answer.get_by_text("hello").first.wait_for()
        request = page.service.engine.requests.get_nowait()
        assert (request.sampling.temperature, request.sampling.top_k, request.sampling.seed) == (0.25, 7, 5)
        assert request.stopping.max_tokens == 9 and request.logprobs.top_n == 5
        await answer.get_by_text("tokens ·").wait_for()
        first = len(request.prompt_token_ids)
        answer = await ask(page, "and now?")
        await answer.get_by_text("tokens ·").wait_for()
        request = page.service.engine.requests.get_nowait()
        assert len(request.prompt_token_ids) > first + 4 * len("hello")  # the conversation so far


async def test_stop_aborts_the_request(open_page: OpenPage, shown: Shown):
    async with open_page(lambda request: [Output(encode("he"))]) as page:
        answer = await ask(page, "hi")
        await answer.get_by_text("he", exact=True).first.wait_for()
        await expect(page.get_by_role("button", name="Send")).to_be_disabled()
        await page.keyboard.press("Escape")
        await soon(page.service.engine.aborts.get())
        await answer.get_by_text("stopped").wait_for()
        await expect(page.get_by_role("button", name="Stop")).to_be_disabled()


async def test_an_error_is_shown(open_page: OpenPage, shown: Shown):
    async with open_page() as page:
        await page.get_by_text("System prompt and sampling").click()
        await page.get_by_label("Temperature").fill("-1")
        answer = await ask(page, "hi")
        await answer.get_by_text("temperature").wait_for()
        await until(lambda: bool(page.problems))  # the browser reports the 400, in its own time
        page.problems.clear()


async def test_five_hundred_requests(open_page: OpenPage, shown: Shown):
    """The table takes them, stays sorted and filtered while it is updated, and is walked by keyboard."""
    shown.requests = [request_info(number) for number in range(500)]
    async with open_page() as page:
        rows = page.locator("#requests-table tbody tr")
        await page.get_by_text("334 decode").wait_for()
        await expect(rows).to_have_count(500)
        await page.get_by_role("button", name="Age").click()
        await page.get_by_role("button", name="Age").click()
        await expect(rows.first).to_contain_text("request-499")
        await page.keyboard.press("/")
        await page.keyboard.type("bob queued")
        await page.get_by_text("83 shown").wait_for()
        await rows.first.click()
        await page.keyboard.press("ArrowDown")
        selected = page.locator("tr[aria-selected]")
        second = await rows.nth(1).locator("td").first.inner_text()
        await expect(selected).to_contain_text(second)
        await page.locator("#request-detail").get_by_text("4 sequences ahead").wait_for()
        shown.requests = shown.requests[:100]
        await page.get_by_text("16 shown").wait_for()


async def test_the_live_parts(open_page: OpenPage, shown: Shown):
    async with open_page() as page:
        await page.get_by_text("serving").first.wait_for()
        legend = page.locator("#kv-legend")
        await legend.get_by_text("8 shared").wait_for()
        await expect(legend).to_have_text("8 shared16 held16 cached24 free")
        map_of_blocks = page.get_by_role("img", name="24 of 64 blocks")
        await map_of_blocks.hover(position={"x": 3, "y": 3})
        await expect(page.locator("#kv-detail")).to_have_text("Block 0: shared; by alice/request-0")
        await page.locator("#log-table").get_by_text("the engine resumed").wait_for()
        await page.locator("#engines-table").get_by_text("Tokens/s (10 s)").wait_for()
        await page.locator("#engines-table").get_by_text("cpu").wait_for()
        await expect(page.locator("#plots figure")).to_have_count(6)
        await expect(page.locator("#plots path.line").first).to_have_attribute("d", re.compile(".+"))


async def test_a_plot_says_when_the_pointed_sample_was(open_page: OpenPage, shown: Shown):
    async with open_page() as page:
        await page.locator("#plots figure").first.wait_for()  # the page is hidden until it knows its service
        assert await page.evaluate(POINTED, [0, 30]) == ["30.0 s ago", "now"]


async def test_a_spike_does_not_flatten_a_plot(open_page: OpenPage, shown: Shown):
    async with open_page() as page:
        assert await page.evaluate(SPIKE) == [["peak 1,000", "4"], ["no values yet", "100 %"]]


async def test_a_hidden_page_follows_nothing(open_page: OpenPage, shown: Shown):
    async with open_page() as page:
        following = page.service.frontend.write_timeouts
        for _ in range(2):
            for is_hidden in (False, True):
                await page.evaluate(HIDE, is_hidden)
                await until(lambda is_hidden=is_hidden: bool(len(following)) != is_hidden)


async def test_it_connects_again(open_page: OpenPage, shown: Shown):
    async with open_page() as page:
        await page.get_by_text("request-0").wait_for()
        shown.requests = [request_info(7)]
        for connection in list(page.service.frontend._http._server._server.server_state.connections):
            connection.transport.abort()
        await page.get_by_text("request-7").wait_for()
        page.problems.clear()  # the browser reports the connection that broke


async def test_it_fits_in_both_schemes(open_page: OpenPage, shown: Shown):
    async with open_page() as page:
        await page.locator("#kv-legend").get_by_text("8 shared").wait_for()
        for size, scheme in itertools.product((WIDE, NARROW), ("light", "dark")):
            await page.set_viewport_size(size)
            await page.emulate_media(color_scheme=scheme)
            await until_true(page, "width => document.documentElement.scrollWidth === width", size["width"])
            await until_true(page, BACKGROUND, scheme)


async def test_on_a_phone_requests_and_deaths_come_first(open_page: OpenPage, shown: Shown):
    """What is cut has a shadow there, and the bar of a selected row does not cover an id."""
    async with open_page() as page:
        await page.get_by_text("request-0").wait_for()
        await page.set_viewport_size(NARROW)
        await until_true(page, "width => innerWidth === width", NARROW["width"])
        places = await page.evaluate(PLACES)
        assert places == sorted(places)
        for selector in ("nav", "#requests-table"):
            assert (await page.evaluate(STYLE, [selector, "backgroundImage"])).count("gradient") == 4
        assert await page.evaluate(STYLE, ["#requests-table td", "paddingLeft"]) == "6px"


async def test_a_token_is_asked_for(open_page: OpenPage, shown: Shown, tmp_path: Path):
    tokens = tmp_path / "tokens.yaml"
    tokens.write_text("tokens:\n" + entry_line(digest_of("alice's"), "alice", {}))
    async with open_page(auth_file=str(tokens)) as page:
        field = page.get_by_label("Token of this service")
        await field.fill("wrong")
        await field.press("Enter")
        await page.get_by_text("token", exact=False).first.wait_for()
        await field.fill("alice's")
        await field.press("Enter")
        await page.get_by_text("request-0").wait_for()
        await expect(page.locator("#tenants")).to_be_hidden()
        await expect(page.locator("#kv")).to_be_hidden()
        answer = await ask(page, "hi")
        await answer.get_by_text("hello").first.wait_for()
        assert page.service.engine.requests.get_nowait().tenant == "alice"
        assert await page.context.cookies() == []
