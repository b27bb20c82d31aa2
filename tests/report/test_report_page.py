"""The page in a real browser: it opens, hovers, links, resists hostile text, and fits every screen."""

from __future__ import annotations

import json
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest
from report_runs import OBSERVATIONS, group_run, make_episode, make_step, write_credit, write_run, write_training

from mempo_agents.files import to_record, write_trajectories
from mempo_agents.report import write_report
from mempo_agents.report.live import make_server
from mempo_agents.report.page import script_json
from mempo_env.types import StopReason

pytest.importorskip("plotly", reason="the report's figures need plotly")
pytest.importorskip("jinja2", reason="the report's page needs jinja2")

WIDE, PHONE = (1400, 900), (390, 844)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver", reason="the browser tests need selenium")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("no Chromium with chromedriver: the page was not tried in a browser")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (
        "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        f"--user-data-dir={tmp_path_factory.mktemp('profile')}",
    ):  # fmt: skip
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=driver)
    session = webdriver.Chrome(options=options, service=service)
    session.set_page_load_timeout(60)
    yield session
    session.quit()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with every section filled."""
    folder = tmp_path_factory.mktemp("runs")
    rows = group_run()
    full = [replace(t, policy="mempo_full", context="full") for t in rows[:3]]
    guess = replace(rows[3], task_id="world/test/k2/000002")
    invalid = replace(guess, steps=(make_step(None, text="I do not know."), *guess.steps[1:]))
    failed = make_episode(
        "world/test/k2/000003", 0, ["m"], [], right=False, policy="react", protocol="react", stop=StopReason.FAILED
    )
    write_credit(write_run(folder / "eval", [*rows, *full, invalid, failed]), rows)
    for seed, values in enumerate(([0.1, 0.4, 0.5], [0.3, 0.6, 0.9])):
        write_training(folder / f"mempo-seed{seed}", estimator="mempo", seed=seed, values=values)
    write_training(folder / "grpo-seed0", estimator="grpo", seed=0, values=[0.1, 0.2, 0.3])
    out = folder / "report.html"
    write_report([folder], out)
    return out


def show(browser: Any, path: Path, place: str = "", size: tuple[int, int] = WIDE, dark: bool = False) -> None:
    width, height = size
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500},
    )
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    browser.get_log("browser")
    browser.get("about:blank")
    browser.get(path.as_uri() + place)


def wait(browser: Any, script: str, *arguments: Any, seconds: float = 30) -> Any:
    """The value of `script` as soon as it is true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := browser.execute_script(f"return {script}", *arguments):
            return value
        time.sleep(0.05)
    raise AssertionError(f"never true: {script}; log: {browser.get_log('browser')}")


def go(browser: Any, section: str) -> None:
    browser.execute_script("document.getElementById(arguments[0]).scrollIntoView()", section)


def ready(browser: Any) -> None:
    wait(browser, "view.record && view.record.steps.length > 0")


def errors(browser: Any) -> list[str]:
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


def text_of(browser: Any, selector: str) -> str:
    return browser.execute_script("return document.querySelector(arguments[0]).innerText", selector)


def too_wide(browser: Any) -> bool:
    return browser.execute_script("const e = document.documentElement; return e.scrollWidth > e.clientWidth")


SECTIONS = ("context", "scores", "step", "group", "grade", "credit", "life", "ablations", "training", "failures")


@pytest.mark.parametrize(("size", "dark"), [(WIDE, False), (PHONE, True)], ids=["wide", "phone"])
def test_opens_without_an_error_and_fits(browser: Any, page: Path, size: tuple[int, int], dark: bool) -> None:
    show(browser, page, size=size, dark=dark)
    ready(browser)
    for section in SECTIONS:
        go(browser, section)
        drawn = (
            "[...document.querySelectorAll(`#${arguments[0]} .plot`)].every((p) => !p.offsetParent"
            " || p.querySelector('.main-svg') || p.getBoundingClientRect().top > innerHeight + 300)"
        )
        wait(browser, drawn, section)
    assert errors(browser) == []
    assert browser.execute_script("return document.getElementById('trouble').hidden")
    # Nothing is wider than the screen, whatever scrolls inside its own box.
    assert not too_wide(browser)
    overflowing = browser.execute_script(
        "return [...document.querySelectorAll('main > *, header > *, figure, .plot, .text')]"
        ".filter((e) => e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.outerHTML.slice(0, 90))"
    )
    assert overflowing == []


def test_every_figure_has_words_and_every_section_its_data(browser: Any, page: Path) -> None:
    show(browser, page)
    ready(browser)
    for section in SECTIONS:
        assert len(text_of(browser, f"#{section} .explanation")) > 100
        assert browser.execute_script(f"return !!document.querySelector('#{section} [data-json]')")
    for section in SECTIONS[2:7]:
        go(browser, section)
        wait(browser, "document.querySelector(`#${arguments[0]} .widget`).innerText.length > 20", section)
    silent = browser.execute_script(
        "return [...document.querySelectorAll('.plot')].filter((p) => (p.getAttribute('aria-label') || '').length < 20)"
        ".map((p) => p.parentElement.innerText)"
    )
    assert silent == []
    assert browser.execute_script("return document.querySelectorAll('section details table').length") > 8


def test_hover_gives_the_number_of_the_data(browser: Any, page: Path) -> None:
    show(browser, page)
    ready(browser)
    go(browser, "context")
    plot = "document.querySelector('[data-in=context]:not([hidden]) .plot')"
    wait(browser, f"!!({plot}.querySelector('.main-svg') && {plot}._fullData)")
    # The median point of MemPO at step 3, as the file has it: prompts of its three episodes.
    prompts = [len(t.steps[2].prompt_ids) for t in group_run()[:3]]
    point = browser.execute_script(
        f"const p = {plot}, t = p._fullData.findIndex((d) => d.name === 'MemPO' && d.mode === 'lines+markers');"
        "p.scrollIntoView({block: 'center'});"
        "const mark = p.querySelectorAll('.scatterlayer .trace')[t].querySelectorAll('.points path')[2];"
        "const box = mark.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2];"
    )
    for x in (point[0] - 40, point[0]):
        browser.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": x, "y": point[1]})
        time.sleep(0.1)
    hover = wait(browser, f"{plot}.querySelector('.hoverlayer').textContent")
    assert "step 3" in hover
    assert f"{np.median(prompts):,g} tokens" in hover


def test_a_link_opens_its_episode_and_step(browser: Any, page: Path) -> None:
    show(browser, page, "#task=world%2Ftest%2Fk2%2F000001&trajectory=mempo%2F1&step=3")
    ready(browser)
    assert "sample 1" in text_of(browser, "#stepper")
    assert text_of(browser, "#stepper [aria-current]") == "3"
    go(browser, "life")
    panel = wait(browser, "document.querySelector('#life .widget').innerText")
    assert "Objective 1 (Tomas Beck): it stood in the prompt of step 2, not in that of step 3" in panel
    assert text_of(browser, "#life del.dropped").strip()
    # Keys move; the address follows.
    body = browser.find_element("tag name", "body")
    body.send_keys("k")
    wait(browser, "view.step === 1")
    body.send_keys("j")
    wait(browser, "view.step === 2")
    body.send_keys("]")
    wait(browser, "EPISODES[view.episode].trajectory === 'mempo/2'")
    address = browser.execute_script("return location.hash")
    assert "trajectory=mempo%2F2" in address
    assert "step=1" in address
    show(browser, page, "#task=none&trajectory=mempo%2F1")
    wait(browser, "!document.getElementById('trouble').hidden")
    assert "not on this page" in text_of(browser, "#trouble")


def test_credit_is_on_the_tokens(browser: Any, page: Path) -> None:
    show(browser, page, "#task=world%2Ftest%2Fk2%2F000001&trajectory=mempo%2F1&step=2")
    ready(browser)
    go(browser, "credit")
    wait(browser, "document.querySelectorAll('#credit span[data-credit]').length > 3")
    spans = browser.execute_script(
        "return [...document.querySelectorAll('#credit span[data-credit]')]"
        ".map((s) => [s.textContent, Number(s.dataset.credit)])"
    )
    step = group_run()[1].steps[1]
    assert "".join(text for text, _ in spans) == step.sampled_text
    start, end = step.spans["memory"]
    # A_T = -0.57735 (rewards 1, 0, 0); A_M of R_M = -0.3 in the pool with mean -0.05 and deviation 0.242899: -1.02923.
    values = np.array([value for _, value in spans])
    np.testing.assert_allclose(values[start:end], -0.57735 - 1.02923, atol=1e-4)
    np.testing.assert_allclose(np.delete(values, np.s_[start:end]), -0.57735, atol=1e-4)
    go(browser, "grade")
    assert "history 0.5000" in wait(browser, "document.querySelector('#grade .strip')?.innerText")


def test_every_downloaded_table_is_the_page_s(browser: Any, page: Path) -> None:
    show(browser, page)
    ready(browser)
    text = browser.execute_script("return csv(REPORT.sections.scores.tables['scores-table-0'])")
    head, first = text.splitlines()[:2]
    assert head.startswith("policy,objectives,F1,")
    assert first.split(",")[2] == str(2 / 3)
    formula = browser.execute_script("return csv({columns: [['a', 'a']], rows: [{a: '=1+1'}, {a: -2}, {a: 'x,\"y'}]})")
    assert formula == 'a\r\n\'=1+1\r\n-2\r\n"x,""y"\r\n'


HOSTILE = (
    "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'></mem> &lt;b&gt; "
    "</script><!-- \u202egnp.exe\u202c nul\x00 ]]> ${window.hacked = 3} {{ 7 * 7 }} \ud83d\ude00 \udead"
)


@pytest.fixture(scope="module")
def hostile_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    line = "A" * 1_000_000
    long = f"<information>\n{line}\n{HOSTILE}\n</information>"
    rows = [
        make_episode(
            f"t/{HOSTILE}",
            0,
            [HOSTILE, f"{HOSTILE} and more"],
            [long],
            right=True,
            policy="evil<b>policy",
            answers=((HOSTILE.replace(";", ","), "x"),),
            questions=(HOSTILE,),
            answer=HOSTILE,
            error=HOSTILE,
            metadata={"engine": HOSTILE, "tokenizer": HOSTILE},
        ),
        make_episode("t/huge", 0, ["m " + "word " * 60_000, "m"], ["r"], right=False),
        replace(make_episode("t/bad", 0, ["m"], [], right=False), steps=(make_step(None, text=HOSTILE),)),
    ]
    folder = tmp_path_factory.mktemp("hostile")
    write_run(folder / "run<script>", rows)
    out = folder / "report.html"
    write_report([folder], out)
    return out


def test_hostile_text_is_text(browser: Any, hostile_page: Path) -> None:
    show(browser, hostile_page)
    ready(browser)
    for number in (0, 1, 2):
        browser.execute_async_script("open_(arguments[0], 0).then(() => arguments[1]())", number)
        for section in SECTIONS:
            go(browser, section)
            time.sleep(0.15)
    browser.execute_async_script("open_(0, 0).then(() => arguments[0]())")
    go(browser, "step")
    wait(browser, "document.querySelector('#step .text.outside')")
    assert browser.execute_script("return window.hacked === undefined")
    assert browser.execute_script("return document.querySelectorAll('body img').length") == 0
    assert browser.execute_script("return document.scripts.length") == 6 + 1  # the page's own, and plotly's
    assert errors(browser) == []
    body = browser.execute_script("return document.body.textContent")
    for sign in (
        "<script>window.hacked = 1</script>",
        "\u27e6RLO\u27e7gnp.exe\u27e6PDF\u27e7",
        "nul\u2400",
        "{{ 7 * 7 }}",
        "\u27e6U+DEAD\u27e7",
    ):
        assert sign in body
    visible_part = browser.execute_script(
        "return [...document.querySelectorAll('header, main, footer')].map((e) => e.textContent).join('')"
    )
    assert "\u202e" not in visible_part
    assert "\x00" not in visible_part
    # The megabyte line: shown in part, the rest on demand, and inside its box.
    assert not too_wide(browser)
    browser.execute_script("document.querySelector('#step .text.outside button').click()")
    shown = browser.execute_script("return document.querySelector('#step .text.outside').textContent.length")
    assert shown > 1_000_000
    assert not too_wide(browser)


def test_the_page_asks_nothing_of_anybody(page: Path, hostile_page: Path) -> None:
    html = page.read_text(encoding="utf-8")
    assert "default-src 'none'" in html
    markup = re.sub(r"<script.*?</script>", "", html, flags=re.S)
    assert not re.search(r"<(?:script|link|img|iframe|object|embed|base|form)\b", markup)
    assert len(page.read_bytes()) < 15_000_000
    assert len(hostile_page.read_bytes()) < 15_000_000
    assert script_json("</script><!--&") == '"\\u003c/script\\u003e\\u003c!--\\u0026"'


def test_what_does_not_fit_is_said(browser: Any, tmp_path: Path) -> None:
    rows = [replace(t, task_id=f"t{n}") for n in range(10) for t in group_run()]
    write_run(tmp_path / "run", rows)
    made = write_report([tmp_path / "run"], tmp_path / "few.html", trajectories=6)
    assert (made["episodes"], made["embedded"]) == (40, 6)
    show(browser, tmp_path / "few.html")
    ready(browser)
    note = text_of(browser, "#hidden-note")
    assert "6 of 40 episodes can be opened in this file" in note
    assert "--trajectories" in note
    assert "--serve" in note
    # Both policies are among them.
    kept = browser.execute_script("return EPISODES.filter((row, i) => BLOCKS[i]).map((row) => row.policy)")
    assert set(kept) == {"mempo", "react"}
    last = browser.execute_script("return EPISODES.length - 1")
    browser.execute_async_script("open_(arguments[0], 0).then(() => arguments[1]())", last)
    assert "not in this file" in text_of(browser, "#stepper")
    full = write_report([tmp_path / "run"], tmp_path / "all.html")
    assert full["embedded"] == 40
    tight = write_report([tmp_path / "run"], tmp_path / "tight.html", budget_bytes=full["bytes"] - 20_000)
    assert 0 < tight["embedded"] < 40
    assert tight["bytes"] <= full["bytes"] - 20_000


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str, Callable[[str], bytes]]]:
    rows = group_run()
    folder = write_run(tmp_path / "run", rows[:2])
    server = make_server([folder])
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{server.server_address[1]}"

    def get(path: str) -> bytes:
        with urlopen(address + path, timeout=20) as answer:
            return answer.read()

    yield folder / "trajectories.jsonl", address, get
    server.shutdown()
    server.server_close()
    thread.join()


def test_the_live_page_follows_a_growing_run(browser: Any, served: Any) -> None:
    file, address, get = served
    assert b"connect-src 'self'" in get("/")
    with pytest.raises(HTTPError, match="404"):
        get("/episode/99")
    with pytest.raises(HTTPError, match="404"):
        get("/episode/../../etc/passwd")
    with pytest.raises(HTTPError, match="403"):
        urlopen(Request(address + "/", headers={"Host": "evil.example"}), timeout=20)
    browser.get_log("browser")
    browser.get(address + "/#task=world%2Ftest%2Fk2%2F000001&trajectory=mempo%2F1&step=2")
    ready(browser)
    assert browser.execute_script("return EPISODES.length") == 2
    with file.open("a") as out:
        out.write(json.dumps(to_record(group_run()[2])) + "\n")
    wait(browser, "typeof EPISODES !== 'undefined' && EPISODES.length === 3 && view.record", seconds=40)
    # Where the reader was: the episode and the step.
    assert browser.execute_script("return [EPISODES[view.episode].trajectory, view.step]") == ["mempo/1", 1]
    assert browser.execute_async_script("open_(2, 0).then(() => arguments[0](view.record.steps.length))") == 3
    assert errors(browser) == []


def test_a_page_without_episodes_opens(browser: Any, tmp_path: Path) -> None:
    write_training(tmp_path / "t", estimator="mempo", seed=0, values=[0.1, 0.2])
    write_report([tmp_path / "t"], tmp_path / "r.html")
    show(browser, tmp_path / "r.html")
    go(browser, "training")
    wait(browser, "document.querySelector('#training .main-svg')")
    assert errors(browser) == []


def busy_seconds(browser: Any) -> float:
    metrics = browser.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return next(m["value"] for m in metrics if m["name"] == "TaskDuration")


@pytest.mark.slow
def test_two_thousand_trajectories_open_in_five_seconds(browser: Any, tmp_path: Path) -> None:
    def memories(n: int) -> list[str]:
        return [f"word{(n + s) % 40} and something to say about the mill, {n}" for s in range(8)]

    rows = (
        make_episode(f"task/{n // 2:04}", n % 2, memories(n), OBSERVATIONS * 4, right=n % 3 == 0) for n in range(2000)
    )
    write_trajectories(tmp_path / "trajectories.jsonl", rows)
    made = write_report([tmp_path / "trajectories.jsonl"], tmp_path / "r.html")
    assert made["embedded"] == 2000
    assert made["bytes"] < 15_000_000
    # Processor time of the page's thread: on a machine that does nothing else, this is what the reader waits for.
    browser.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
    before = busy_seconds(browser)
    show(browser, tmp_path / "r.html")
    ready(browser)
    assert browser.execute_script("return EPISODES.length") == 2000
    opened = busy_seconds(browser)
    assert 0 < opened - before < 5
    browser.execute_async_script("open_(1999, 3).then(() => arguments[0]())")
    assert busy_seconds(browser) - opened < 1
    browser.execute_cdp_cmd("Performance.disable", {})
    assert errors(browser) == []
