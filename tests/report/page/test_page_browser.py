"""The page in a real browser: no errors, charts that move, numbers as in the folder, phone, dark and print."""

import json
import os
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hsfl.files import read_json
from hsfl.network.clock import Why
from hsfl.report.page.page import write_page
from hsfl.report.watch import make_server
from hsfl.runs.run_folder.folder import RunFolder
from tests.report.fabricated import a_timeline, record, records, timed, write_run
from tests.report.page.test_page_sweep import write_sweep

pytestmark = pytest.mark.slow

READY = "body[data-ready=yes]"
GANTT = "#gantt figure > svg"
# of the intervals that a selector finds, how many lie within their picture from end to end
HOLDS = """(selector) => [...document.querySelectorAll(selector)].filter((shape) => {
  const box = shape.getBBox(), [picture] = shape.ownerSVGElement.querySelectorAll("clipPath rect"), all = picture.getBBox();
  return box.y >= all.y - 1e-6 && box.y + box.height <= all.y + all.height + 1e-6;
}).length"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: make test-slow does it"
    )
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no chromium here: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Any]:
    """Opens a file or an address; anything the browser complains about fails the test."""
    complaints: list[str] = []
    tabs = []

    def opened(place: Path | str, **options: Any) -> Any:
        tab = browser.new_page(**options)
        tabs.append(tab)
        tab.on("console", lambda message: complaints.append(message.text) if message.type != "log" else None)
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        asked = []
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(place.resolve().as_uri() if isinstance(place, Path) else place)
        tab.wait_for_selector(READY)
        if isinstance(place, Path):
            assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
        return tab

    yield opened
    for tab in tabs:
        tab.close()
    assert complaints == []


@pytest.fixture(scope="module")
def dropping(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose rounds differ and in which clients are dropped."""
    out = tmp_path_factory.mktemp("dropping")
    rounds = [
        timed(a_timeline("hsfl", 4, tau_s=9.0, seed=seed), round=seed + 1, test_accuracy=0.1 * seed, train_loss=1.0)
        for seed in range(5)
    ]
    ends_s = np.cumsum([one.round_s for one in rounds])
    rounds = [replace(one, sim_time_s=float(end_s)) for one, end_s in zip(rounds, ends_s)]
    assert any(one.dropped for one in rounds)
    return write_run(out, "hsfl", 0, rounds, "finished", "fleet.num_clients=4", "train.tau_s=9").path


def view(tab: Any) -> tuple[float, float]:
    """The seconds that the Gantt chart shows."""
    chart = tab.locator(GANTT)
    return float(chart.get_attribute("data-from")), float(chart.get_attribute("data-to"))


def bars(tab: Any) -> list[list[str]]:
    return tab.evaluate(
        f"[...document.querySelectorAll('{GANTT} .bar')].map(b => [b.dataset.client, b.dataset.phase, b.dataset.seconds])"
    )


def test_numbers_on_the_page_are_those_in_the_folder(finished, open_page, tmp_path):
    tab = open_page(write_page([finished], tmp_path / "page.html"))
    summary, clients = read_json(finished / "summary.json"), RunFolder(finished).clients()
    assert clients is not None

    def said(key: str) -> str:
        return tab.locator(f"[data-key={key}]").inner_text().split("\n")[0]

    assert tab.title() == "HSFL: cnn on digits"
    assert said("best_accuracy") == f"{100 * summary['best_accuracy']:.2f} %"
    assert said("last_accuracy") == f"{100 * summary['test_accuracy']:.2f} %"
    assert said("num_rounds") == str(summary["rounds"])
    assert said("drops") == str(summary["drops"])
    for link, count in summary["bytes"].items():
        assert tab.locator(f"[data-bytes={link}]").inner_text() == f"{count:,}"
    for k, num_samples in enumerate(clients.num_samples):
        assert tab.locator(f"[data-samples='{k}']").inner_text() == str(num_samples)
    last = RunFolder(finished).rounds()[-1]
    for client, phase, seconds in bars(tab):
        times = last.phases[phase]
        assert float(seconds) == pytest.approx(times["end_s"][int(client)] - times["start_s"][int(client)], rel=1e-3)


def test_the_round_slider_changes_the_chart(dropping, open_page, tmp_path):
    tab = open_page(write_page([dropping], tmp_path / "page.html"))
    assert "Round 5 took" in tab.locator("#round-words").inner_text()
    last = bars(tab)
    tab.locator("#round").focus()
    tab.keyboard.press("Home")
    assert "Round 1 took" in tab.locator("#round-words").inner_text()
    assert bars(tab) != last
    tab.get_by_label("Round after").click()
    assert "Round 2 took" in tab.locator("#round-words").inner_text()
    assert tab.locator("#plan caption").inner_text() == "Round 2"
    for number, one in enumerate(RunFolder(dropping).rounds()):
        tab.locator("#round").fill(str(number))
        assert tab.locator(f"{GANTT} .drop").count() == len(one.dropped)
        assert tab.locator(f"{GANTT} .tau").count() == (1 if one.dropped or one.round_s >= 9 else 0)


def test_the_gantt_chart_zooms_by_every_means(dropping, open_page, tmp_path):
    tab = open_page(write_page([dropping], tmp_path / "page.html"))
    tab.locator(GANTT).scroll_into_view_if_needed()
    whole = view(tab)
    assert whole[0] == 0
    tab.get_by_label("Zoom in").click()
    assert view(tab)[1] - view(tab)[0] == pytest.approx(whole[1] / 2)
    tab.get_by_label("Later").click()
    assert view(tab)[0] > whole[1] / 4
    tab.get_by_text("Whole round").click()
    assert view(tab) == whole
    box = tab.locator(GANTT).bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + 60
    tab.mouse.move(x, y)
    scrolled = tab.evaluate("scrollY")
    tab.mouse.wheel(0, -100)  # the chart is not chosen yet: the page scrolls
    assert view(tab) == whole
    tab.evaluate(f"window.scrollTo({{top: {scrolled}, behavior: 'instant'}})")
    tab.locator(GANTT).focus()
    box = tab.locator(GANTT).bounding_box()
    tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60)
    tab.mouse.wheel(0, -100)
    tab.wait_for_function(f"document.querySelector('{GANTT}').dataset.to < {0.95 * whole[1]}")
    tab.keyboard.press("0")
    assert view(tab) == whole
    tab.keyboard.press("+")
    tab.keyboard.press("ArrowRight")
    assert view(tab)[0] > whole[1] / 4
    tab.locator(GANTT).dblclick(position={"x": box["width"] / 2, "y": 60})
    assert view(tab) == whole
    tab.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 60)
    tab.mouse.down()
    tab.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 70, steps=4)
    tab.mouse.up()
    assert 0 < view(tab)[0] < view(tab)[1] < 0.7 * whole[1]


def test_hover_tells_client_phase_and_seconds(dropping, open_page, tmp_path):
    tab = open_page(write_page([dropping], tmp_path / "page.html"))
    bar = tab.locator(f"{GANTT} .bar.p-model_down").first
    bar.scroll_into_view_if_needed()
    bar.hover()
    said = tab.locator("#tip").inner_text()
    assert said.startswith("Client 0: model down")
    assert " s to " in said


def test_a_tap_tells_and_a_tap_elsewhere_hides(dropping, open_page, tmp_path):
    page = write_page([dropping], tmp_path / "page.html")
    tab = open_page(page, viewport={"width": 390, "height": 800}, has_touch=True, is_mobile=True)
    tip = tab.locator("#tip")
    charts = {
        f"{GANTT} .bar.p-model_down": "model down",
        "[data-chart=test_accuracy-rounds]": "round",
        "[data-chart=train_loss-rounds]": "round",  # after another chart: that one loses the focus
        "#bytes-body [data-round]": "round",
    }
    for place, words in charts.items():
        chart = tab.locator(place).first
        chart.scroll_into_view_if_needed()
        chart.tap()
        tab.wait_for_timeout(50)
        assert tip.is_visible(), place
        assert words in tip.inner_text()
    tab.locator("h2").last.tap()
    assert not tip.is_visible()


def test_a_dropped_client_is_marked_and_held_up_by_what_it_did(open_page, tmp_path):
    phases = {
        "client_forward": {"start_s": [0.0, 0.0], "end_s": [2.0, 3.0]},
        "smashed": {"start_s": [2.0, 3.0], "end_s": [3.0, 4.0]},
        "model_down": {"start_s": [4.0, 4.0], "end_s": [9.0, 10.0]},
    }
    one = record(1, phases=phases, kept=[0], dropped=[1], straggler=1, waiting_s=[2.0, 0.0])
    folder = write_run(tmp_path, "hsfl", 0, [one], "finished", "fleet.num_clients=2", "train.tau_s=4")
    tab = open_page(write_page([folder.path], tmp_path / "page.html"))
    kept, dropped = tab.locator("#plan-body tbody tr").all_inner_texts()
    assert kept.split("\t")[0] == "0"
    assert "model down" in kept
    assert dropped.split("\t")[0] == "1, dropped at tau"
    assert "client forward" in dropped


def test_waits_are_those_of_the_folder_and_rounding_makes_no_straggler(open_page, tmp_path):
    ends_s = [1234.567, 1234.567 - 1.2341]
    phases = {"client_forward": {"start_s": [0.0, 0.0], "end_s": ends_s}}
    late = record(1, phases=phases, round_s=ends_s[0], waiting_s=[0.0, 1.2341], straggler=0)
    level = {"client_forward": {"start_s": [0.0, 0.0], "end_s": [10.0, 10.0]}}
    held = Why(1, "client", 9.0, 9.0, 1.0, 1.0)
    together = record(2, phases=level, waiting_s=[1e-14, 3e-15], straggler=1, why=held)
    folder = write_run(tmp_path, "hsfl", 0, [late, together], "finished", "fleet.num_clients=2")
    tab = open_page(write_page([folder.path], tmp_path / "page.html"))
    assert "all finish together" in tab.locator("#round-words").inner_text()
    assert "straggler" not in tab.locator("#detail").inner_text()
    assert "client 1" not in tab.locator("#round-words").inner_text()
    tab.get_by_label("Round before").click()
    assert "the straggler was client 0" in tab.locator("#round-words").inner_text()
    waits = tab.locator("#plan-body tbody tr").last.locator("td").last.inner_text()
    assert waits == "1.234 s"


def test_notes_on_sharing_and_on_a_subset_are_shown(open_page, tmp_path):
    for label in ("hsfl", "fl"):
        folder = write_run(tmp_path / "c", label, 0, records([0.5]), "finished", "network.sample_scale=10")
    (folder.path / "trace.json").write_text('{"trained_as": "hsfl", "from": "seed-0"}')
    tab = open_page(write_page([tmp_path / "c"], tmp_path / "page.html"))
    assert "FL took the training of a run of HSFL" in tab.locator("#words").inner_text()
    for place in ("#headline", "#bytes"):
        assert "10 times as much; models would not" in tab.locator(place).inner_text()


def test_nothing_is_never_less_than_nothing(dropping, open_page, tmp_path):
    tab = open_page(write_page([dropping], tmp_path / "page.html"))
    assert tab.evaluate("[percent(-1e-9, 1), percent(-0.01, 1), percent(0.5, 0)]") == ["0.0 %", "-1.0 %", "50 %"]
    assert tab.evaluate("[signedPercent(-1e-9), signedPercent(-0.01), signedPercent(0.5)]") == [
        "0.0 %",
        "−1.0 %",
        "+50.0 %",
    ]


def test_a_table_that_scrolls_shows_that_it_does(dropping, open_page, tmp_path):
    tab = open_page(write_page([dropping], tmp_path / "page.html"), viewport={"width": 390, "height": 700})
    tab.add_style_tag(content="* { color: transparent !important; border-color: transparent !important }")
    place = tab.locator("#plan-body .table")

    def edge() -> bytes:
        place.scroll_into_view_if_needed()
        box = place.bounding_box()
        clip = {"x": box["x"] + box["width"] - 8, "y": box["y"] + 15, "width": 6, "height": 12}  # beside the caption
        return tab.screenshot(clip=clip)

    assert place.evaluate("table => table.scrollWidth - table.clientWidth") > 0
    there_is_more = edge()
    place.evaluate("table => { table.scrollLeft = 1e6; }")
    assert edge() != there_is_more


def test_curves_hover_and_toggle(open_page, tmp_path):
    for seed, accuracies in enumerate([[0.2, 0.4, 0.5], [0.4, 0.6, 0.7]]):
        write_run(tmp_path / "c", "hsfl", seed, records(accuracies))
        write_run(tmp_path / "c", "fl", seed, records([0.9 * a for a in accuracies], framework="fl"))
    tab = open_page(write_page([tmp_path / "c"], tmp_path / "page.html"))
    chart = tab.locator("[data-chart=test_accuracy-rounds]")
    assert chart.locator(".line").count() == 2
    assert chart.locator(".band").count() == 2
    chart.focus()
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("ArrowRight")
    said = tab.locator("#tip").inner_text()
    assert "round 2" in said
    assert "50.00 %" in said  # the mean of 0.4 and 0.6
    assert "45.00 %" in said
    button = tab.locator("#curve-legend button", has_text="FL").first
    button.click()
    assert chart.locator(".line").count() == 1
    assert button.get_attribute("aria-pressed") == "false"
    tab.locator("#round-controls select").select_option(label="HSFL, seed 1")
    assert "test accuracy 70.00 %" in tab.locator("#round-words").inner_text()


@pytest.mark.parametrize("width", [360, 390, 768])
def test_a_phone_does_not_scroll_sideways(dropping, open_page, tmp_path, width):
    tab = open_page(write_page([dropping], tmp_path / "page.html"), viewport={"width": width, "height": 700})
    assert tab.evaluate("document.documentElement.scrollWidth") <= width


def test_dark_screen_and_light_paper(dropping, open_page, tmp_path):
    tab = open_page(write_page([dropping], tmp_path / "page.html"), color_scheme="dark")
    background = "getComputedStyle(document.body).backgroundColor"
    assert sum(map(int, tab.evaluate(background)[4:-1].split(","))) < 150
    tab.emulate_media(media="print", color_scheme="dark")
    assert tab.evaluate(background) == "rgb(255, 255, 255)"
    assert tab.locator(GANTT).is_visible()
    tab.emulate_media(media="screen", color_scheme="light")
    assert sum(map(int, tab.evaluate(background)[4:-1].split(","))) > 700


def test_text_from_folders_is_shown_not_run(open_page, tmp_path):
    evil = "</script><img src=x onerror=alert(1)><b>bold</b>"
    folder = write_run(tmp_path, "hsfl", 0, records([0.5]), "finished", f"data.name={json.dumps('folder:' + evil)}")
    tab = open_page(write_page([folder.path], tmp_path / "page.html"))
    assert evil in tab.locator("h1").inner_text()
    assert tab.locator("img").count() == tab.locator("b").count() == 0


def test_a_page_of_another_age_and_an_empty_run(open_page, tmp_path):
    folder = write_run(tmp_path, "hsfl", 0, records([0.5]), None)
    assert "not recorded" in open_page(write_page([folder.path], tmp_path / "a.html")).locator("#clients").inner_text()
    empty = write_run(tmp_path, "fl", 0, [], None)
    assert (
        "No round has ended" in open_page(write_page([empty.path], tmp_path / "b.html")).locator("#detail").inner_text()
    )


def test_watching_a_run_needs_no_reload(open_page, tmp_path):
    folder = write_run(tmp_path, "hsfl", 0, records([0.1, 0.2]), None)
    server = make_server([folder.path])
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        tab = open_page(f"http://127.0.0.1:{server.server_port}/")
        tab.evaluate("window.stays = true")
        tab.get_by_text("following").wait_for()
        folder.append(record(3, 0.75))
        tab.get_by_text("Round 3 took").wait_for(timeout=10_000)
        assert tab.locator("[data-key=best_accuracy]").inner_text().startswith("75.00 %")
        assert tab.evaluate("window.stays") is True
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_page_that_waits_shows_the_run_when_it_comes(open_page, tmp_path):
    server = make_server([tmp_path / "hsfl" / "seed-0"])
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        tab = open_page(f"http://127.0.0.1:{server.server_port}/")
        assert "does not exist" in tab.locator("#status").inner_text()
        assert not tab.locator("#detail").is_visible()
        write_run(tmp_path, "hsfl", 0, records([0.1, 0.2]), "finished")
        tab.get_by_text("Round 2 took").wait_for(timeout=10_000)
        assert tab.title() == tab.locator("h1").inner_text() == "HSFL: resnet18 on digits"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_screens_to_look_at(dropping, open_page, tmp_path):
    """Pictures of the page, kept where HSFL_SCREENS says."""
    place = Path(os.environ.get("HSFL_SCREENS", tmp_path))
    page = write_page([dropping], tmp_path / "page.html")
    for name, width in (("desktop", 1200), ("phone", 390)):
        for scheme in ("light", "dark"):
            tab = open_page(page, viewport={"width": width, "height": 800}, color_scheme=scheme)
            tab.screenshot(path=place / f"page-{name}-{scheme}.png", full_page=True)
            assert (place / f"page-{name}-{scheme}.png").stat().st_size > 10_000


@pytest.mark.parametrize("width", [1200, 390])
def test_a_sweep(open_page: Any, tmp_path: Path, width: int) -> None:
    write_sweep(tmp_path, ["network.subchannel_hz", "train.lr"], [[hz, lr] for hz in (1e6, 2e6) for lr in (0.1, 0.2)])
    tab = open_page(write_page([tmp_path], tmp_path / "report.html"), viewport={"width": width, "height": 800})
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert tab.locator("#sweep figure").count() == 2
    assert tab.locator("#sweep .interval").count() == 8
    assert tab.evaluate(HOLDS, "#sweep .interval") == 8
    assert "FL lies on HSFL." in tab.locator("#sweep figure").first.inner_text()
    tab.locator("#sweep select").select_option("round_s")
    assert tab.locator("svg[data-sweep=round_s]").count() == 2
    assert "lies on" not in tab.locator("#sweep").inner_text()
    assert tab.evaluate(HOLDS, "#sweep .interval") == 8
    means, contenders, values, *_ = (table.inner_text() for table in tab.locator("#sweep table").all())
    assert "2 MHz" in means
    assert "HSFL minus the other contenders, seed by seed" in contenders
    assert "2 MHz\t0.1\t1 MHz\tHSFL\t3\t" in values
    assert "divided evenly" in tab.locator("#policies dd").inner_text()
    assert tab.locator("#sweep a").count() == 0  # the points have no pages here


def test_curves_that_coincide_and_many_intervals(open_page: Any, tmp_path: Path) -> None:
    for seed in range(3):
        for label, round_s in (("hsfl", 10.0), ("splitfed_v1", 15.0), ("fl", 20.0)):
            write_run(tmp_path, label, seed, records([0.2, 0.4 + 0.1 * seed, 0.6], round_s))
    tab = open_page(write_page([tmp_path], tmp_path / "report.html"))
    chart = tab.locator("figure", has=tab.locator("[data-chart=test_accuracy-rounds]"))
    assert "lie on HSFL." in chart.inner_text()
    assert chart.locator(".band").count() == 0
    assert tab.evaluate(HOLDS, "#curves .interval") == tab.locator("#curves .interval").count() > 3
    offsets = [line.get_attribute("stroke-dashoffset") for line in chart.locator(".line").all()]
    assert offsets == ["0", "7", "14"]
    tab.locator("#curve-legend button").first.click()
    assert chart.locator(".band").count() == 2  # two are left: bands again
    assert tab.evaluate(HOLDS, "#curves .band") == tab.locator("#curves .band").count()


def test_measured_and_modelled_seconds_are_told_apart(open_page, tmp_path):
    """Of clients' phases and of the parts in which none trains; the clocks of a deployment have names of their own."""
    took = {"client": [8.0, 5.0], "smashed": [0.5, 0.5], "model_up": [1.25, 0.5], "model_down": [0.25, 0.75]}
    rounds = [
        replace(one, measured=took, wall_s=12.5, ending_s={"swap": 0.5, "test": 2.0}, modelled_ending_s={"swap": 0.25})
        for one in records([0.25, 0.5])
    ]
    tab = open_page(write_page([write_run(tmp_path, "hsfl", 0, rounds).path], tmp_path / "page.html"))
    headline, plan = tab.locator("#headline").inner_text(), tab.locator("#plan-body").inner_text()
    assert "Modelled time" in headline
    assert "Measured time" in headline
    assert "Simulated time" not in headline
    shown = [
        row.split("\t") for row in plan.splitlines() if row.split("\t")[0] in ("upload", "swap", "test", "distribute")
    ]
    assert [[cell.strip() for cell in row] for row in shown] == [
        ["distribute", "0.75 s", "0 s"], ["upload", "1.25 s", "0 s"], ["swap", "0.5 s", "0.25 s"], ["test", "2 s", "0 s"],
    ]  # fmt: skip
