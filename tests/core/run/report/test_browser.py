"""The report as a browser shows it: Debian's Chromium, driven by Playwright."""

import json
import re
import shutil
import subprocess
import sys

import pytest
from waiting import wait_until

from plugrl.core.run.report.contents import RunContents
from plugrl.core.run.report.page import report_file, report_page

pytestmark = pytest.mark.browser

HOSTILE = [
    "</script><script>document.title='HIT'</script>",
    "<img src=x onerror=\"document.title='HIT'\">",
    "<svg onload=\"document.title='HIT'\">",
    "<a href=\"javascript:document.title='HIT'\">click</a>",
    "<iframe srcdoc=\"<script>parent.document.title='HIT'</script>\"></iframe>",
    "<style>body{display:none}</style><base href=//evil.example>",
    "javascript:document.title='HIT'",
    "\u202eesrever\u202c \u2066hidden\u2069",
    "<tool_call><img src=x onerror=\"document.title='HIT'\"></tool_call>",
    "{{constructor.constructor('document.title=1')()}}",
]


@pytest.fixture(scope="session")
def browser():
    sync = pytest.importorskip("playwright.sync_api", reason="needs: pip install playwright")
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("needs a chromium, such as apt-get install chromium")
    with sync.sync_playwright() as playwright:
        # Root, as in containers, has no sandbox of Chromium's own.
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def show(browser):
    """Open a page and give it; at the end it has reported no error and asked for no address."""
    opened, faults, asked = [], [], []

    def open_page(path, *, width=1400, scheme="light"):
        page = browser.new_page(
            viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
        )
        opened.append(page)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda message: faults.append(message.text))
        page.on("request", lambda request: asked.append(request.url))
        page.on("dialog", lambda dialog: faults.append(dialog.message))
        page.goto(path.resolve().as_uri())
        page.wait_for_selector("html[data-ready]")
        return page

    yield open_page
    for page in opened:
        page.close()
    assert faults == []
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []


def sample(step, n, **more):
    tokens = {
        "count": 3, "text": ["4", "2", "."], "mask": [1, 1, 0], "logprob": [-0.1, -4.0, 0.0],
        "advantage": [0.5, 0.5, 0.0],
    }  # fmt: skip
    record = {
        "step": step, "problem": f"g{n % 2}", "attempt": n, "prompt": f"What is {n % 2}?",
        "answer": "42.", "reward": n / 4, "failure": "", "tokens": tokens,
    }  # fmt: skip
    return record | more


@pytest.fixture
def run(write_run, tmp_path):
    lines = [
        {
            "step": step, "time/unix": 1e9 + step, "validation/reward": step / 200,
            "rollout/reward": step / 250, "train/loss": 1 / step, "train/kl": 0.1,
            "time/train": 0.2, "phase": 1 + step // 100,
        }
        for step in range(1, 200)
    ]  # fmt: skip
    rollouts = [sample(step, n) for step in range(1, 200, 20) for n in range(4)]
    rollouts[3] |= {"reward": None, "failure": "the agent crashed"}
    return write_run(
        tmp_path / "experiment" / "20260101-000000-abcdef",
        lines,
        {"rollouts": rollouts},
        {"state": "done", "step": 199, "headline": {"metric": "validation/reward", "mode": "max"}},
        config__yaml="seed: 0\ntrainer: {phases: [{name: warm}, {name: grpo}]}\n",
        timeline__jsonl="".join(
            json.dumps({"lane": "trainer", "name": name, "start": 1e9 + i, "end": 1e9 + i + 0.5})
            + "\n"
            for i, name in enumerate(["rollout", "train"] * 5)
        ),
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
def test_it_is_legible(show, run, width, scheme):
    page = show(report_file([run]), width=width, scheme=scheme)
    for summary in page.query_selector_all("summary"):
        summary.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    # No text is smaller than 12 pixels, and all stands out: 4.5 to 1, as WCAG AA asks.
    faults = page.evaluate(
        """() => {
          const parse = (text) => text.match(/[\\d.]+/g).map(Number);
          const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
            .map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
            .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
          const ground = (node) => {
            for (let at = node; at; at = at.parentElement) {
              const found = parse(getComputedStyle(at).backgroundColor);
              if (found.length < 4 || found[3] === 1) return found;
            }
            return [255, 255, 255];
          };
          const faults = [];
          const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
          while (walker.nextNode()) {
            const node = walker.currentNode.parentElement;
            if (!walker.currentNode.data.trim() || !node.checkVisibility()) continue;
            if (node.closest('script, .t, :disabled')) continue;
            const style = getComputedStyle(node);
            const a = light(parse(style.color)), b = light(ground(node));
            const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
            if (parseFloat(style.fontSize) < 12 || contrast < 4.5)
              faults.push([node.textContent.slice(0, 40), style.fontSize, contrast]);
          }
          return faults;
        }"""
    )
    assert faults == []
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    assert dark == (scheme == "dark")


def test_the_headline_comes_first_and_the_important_curves_are_drawn(show, run):
    page = show(report_file([run]))
    cards = [card.inner_text().split("\n") for card in page.query_selector_all(".card")]
    assert cards == [
        ["first", "0.005", "step 1"], ["last", "0.995", "step 199"], ["best", "0.995", "step 199"],
    ]  # fmt: skip
    open_charts = [c.get_attribute("data-metric") for c in page.query_selector_all(".chart")]
    assert open_charts == ["validation/reward", "rollout/reward", "train/loss", "train/kl"]
    page.wait_for_function("document.querySelectorAll('.chart .uplot').length === 4")
    # Something is drawn in the colour of the curve, and the others are folded.
    assert page.evaluate(
        """() => { const c = document.querySelector('.chart canvas');
          const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
          let blue = 0;
          for (let i = 0; i < d.length; i += 4) if (d[i + 2] > 180 && d[i] < 80) blue++;
          return blue; }"""
    ) > 300  # fmt: skip
    page.click("summary:has-text('time (1)')")
    page.wait_for_selector("[data-metric='time/train'] .uplot")
    page.select_option("#smoothing", "20")
    assert page.inner_text("#time").startswith("Time by phase")
    assert "rollout" in page.inner_text("#time")


def shown_count(page):
    return page.inner_text("#count"), len(page.query_selector_all("#records button"))


def test_filters_choose_samples(show, run):
    page = show(report_file([run]))
    assert shown_count(page) == ("40 of 40 samples", 40)
    page.fill("#filter-step-from", "21")
    page.fill("#filter-step-to", "41")
    assert shown_count(page) == ("8 of 40 samples", 8)
    page.fill("#filter-reward-from", "0.5")
    assert shown_count(page) == ("4 of 40 samples", 4)
    page.select_option("#filter-group", "g1")
    assert shown_count(page) == ("2 of 40 samples", 2)
    for name in ("step-from", "step-to", "reward-from"):
        page.fill(f"#filter-{name}", "")
    page.select_option("#filter-group", "")
    page.select_option("#filter-validity", "invalid")
    assert shown_count(page) == ("1 of 40 samples", 1)
    assert "the agent crashed" in page.inner_text("#sample")
    page.select_option("#filter-validity", "valid")
    assert shown_count(page) == ("39 of 40 samples", 39)
    page.fill("#filter-text", "no such text")
    assert shown_count(page) == ("0 of 40 samples", 0)
    assert page.inner_text("#sample") == "No sample fits the filters."


def test_tokens_are_coloured_and_the_same_problem_stands_side_by_side(show, run):
    page = show(report_file([run]))

    def colours():
        return [
            t.evaluate("node => node.style.backgroundColor")
            for t in page.query_selector_all("#sample .record .t")[:3]
        ]

    sure, unsure, outside = colours()
    assert (sure, unsure, outside) == (
        "rgba(230, 120, 20, 0.016)", "rgba(230, 120, 20, 0.6)", "",
    )  # fmt: skip
    page.select_option("#colours", "advantage")
    assert colours()[0].startswith("rgba(34, 139, 80")
    page.select_option("#colours", "mask")
    assert colours()[2].startswith("rgba(128, 128, 128")
    # Ten steps with two attempts each at this problem.
    assert page.inner_text("#same") == "the same problem side by side: 20 attempts in 10 steps"
    page.click("#same")
    assert len(page.query_selector_all(".side .record")) == 20


def test_dialogues_and_tool_calls_are_shown_as_such(show, write_run, tmp_path):
    call = '<tool_call>{"name": "add"}</tool_call><tool_response>4</tool_response>It is 4.'
    folder = write_run(
        tmp_path / "run",
        samples={
            "rollouts": [
                sample(1, 0, agent="prover", answer="I prove.", tokens=None),
                sample(1, 0, agent="verifier", answer="I doubt.", tokens=None),
                sample(2, 5, answer=call, tokens=None),
            ],
            "staged": [
                {"step": 1, "question": "q", "rewards": {"a": 1.0}, "rounds": [
                    [{"agent": "alice", "says": "Hello."}, {"agent": "bob", "says": {"c": "No"}}],
                    [{"agent": "bob", "says": "Yes.", "decides": "accept"}],
                ]}
            ],
            "dialogues": [
                {"step": 1, "prompt": "p", "category": "x", "exchanges": [
                    {"probe": "Try.", "response": "Never.", "score": 0.2, "reward": 0.2,
                     "failure": ""}]}
            ],
        },
    )  # fmt: skip
    page = show(report_file([folder]))
    assert page.inner_text("#sample .call").startswith("tool call <tool_call>")
    assert page.inner_text("#sample .outside").startswith("tool result <tool_response>4")
    page.click("#records button:has-text('prover')")
    assert [each.inner_text() for each in page.query_selector_all(".side .record > .turn")] == [
        "I prove.", "I doubt.",
    ]  # fmt: skip
    page.select_option("#filter-file", "staged")
    said = page.inner_text("#sample")
    assert [said.index(part) for part in ("alice", "Hello.", "bob", "No", "accept", "Yes.")] > [0]
    assert said.index("Hello.") < said.index("decides: accept") < said.index("Yes.")
    page.select_option("#filter-file", "dialogues")
    assert [each.inner_text() for each in page.query_selector_all("#sample .turn")] == [
        "Try.", "Never.",
    ]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_of_a_model_is_executed(show, write_run, tmp_path, text):
    record = sample(1, 0, prompt=text, answer=text, failure=text, problem=text, agent=text)
    record["tokens"] = {"count": 1, "text": [text], "mask": [1], "logprob": [-1.0]}
    record |= {text: text, "messages": [{"role": text, "content": text}]}
    folder = write_run(
        tmp_path / "run",
        [{"step": 1, "validation/" + text: 1.0, text: 2.0}],
        {"rollouts": [record, record | {"step": 2}]},
        {"state": "failed", "step": 1, "error": text},
        config__yaml=json.dumps({"a": text, text: 1}),
        plugins__lock__json=json.dumps([{"kind": text, "name": text, "used": True}]),
        environment__json=json.dumps({"command": text}),
        log__txt=f"2026-01-01 00:00:00,000 WARNING plugrl.run: {text}\n",
    )
    page = show(report_file([folder]))
    for summary in page.query_selector_all("summary"):
        summary.click()
    page.click("#same")
    for colour in ("advantage", "mask", "none", "log-probability"):
        page.select_option("#colours", colour)
    page.wait_for_timeout(100)
    assert page.title() != "HIT"
    inside = "main :is(script, img, svg, iframe, style, base, a, link, object, embed)"
    assert page.query_selector_all(inside) == []
    handlers = "[...document.querySelectorAll('*')].flatMap((n) => n.getAttributeNames())"
    assert [n for n in page.evaluate(handlers) if n.startswith("on")] == []
    # Marks that turn the direction of writing are spelled out.
    whole = page.evaluate("document.body.innerText")
    assert not set(whole) & set("\u202e\u202c\u2066\u2069")
    if "esrever" in text:
        assert "\\u202eesrever" in whole


def test_every_control_is_reached_by_tab_and_shows_the_focus(show, run):
    page = show(report_file([run]))
    focusable = page.evaluate(
        """[...document.querySelectorAll('summary, button:not(:disabled), input, select')]
          .filter((n) => n.checkVisibility()).length"""
    )
    assert focusable > 50
    seen, unseen = set(), []
    for _ in range(focusable + 20):
        page.keyboard.press("Tab")
        number, visible = page.evaluate(
            """() => { const n = document.activeElement;
              const all = [...document.querySelectorAll('summary, button, input, select')];
              const style = getComputedStyle(n);
              return [all.indexOf(n), style.outlineStyle !== 'none'
                && parseFloat(style.outlineWidth) >= 2]; }"""
        )
        if number >= 0:
            seen.add(number)
            if not visible:
                unseen.append(number)
    assert len(seen) == focusable
    assert unseen == []
    # A folded part opens, and a sample is chosen, by the keyboard.
    page.focus("summary:has-text('Configuration')")
    page.keyboard.press("Enter")
    page.wait_for_selector("td:has-text('trainer.phases[0].name')", state="visible")
    page.focus("#records button:nth-of-type(3)")
    page.keyboard.press("Enter")
    assert page.get_attribute("#records button:nth-of-type(3)", "aria-pressed") == "true"


def test_seeds_are_drawn_over_each_other(show, write_run, tmp_path):
    folders = [
        write_run(
            tmp_path / "e" / f"run-{seed}",
            [{"step": step, "train/loss": seed / step} for step in range(1, 20 + seed)],
            config__yaml=f"seed: {seed}\nlr: 0.1\n",
        )
        for seed in range(3)
    ]
    page = show(report_file(folders, tmp_path / "seeds.html"), width=400)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    assert [k.inner_text() for k in page.query_selector_all(".key > span")] == [
        f"e / run-{seed}, seed {seed}" for seed in range(3)
    ]
    assert page.inner_text("#configuration").count("seed") == 4
    page.wait_for_selector(".chart .uplot")


def test_records_of_any_form_are_shown(show, write_run, tmp_path):
    odd = [None, 5, "text", [], {}, [1], [[1]], [None], {"text": 5}, {"text": [1]}, True]
    names = (
        "prompt", "answer", "tokens", "rounds", "exchanges", "messages", "reward", "rewards",
        "failure", "problem", "agent", "attempt", "step",
    )  # fmt: skip
    records = [{"step": i, name: value} for name in names for i, value in enumerate(odd)]
    page = show(report_file([write_run(tmp_path / "run", samples={"own": records})]))
    for button in page.query_selector_all("#records button"):
        button.click()
    assert "could not be drawn" not in page.inner_text("body")
    assert shown_count(page)[0] == f"{len(records)} of {len(records)} samples"


@pytest.mark.parametrize("kind", ["empty", "damaged", "killed"])
def test_a_bad_run_folder_has_a_page(show, write_run, tmp_path, kind):
    files = {"metrics__jsonl": '{"step": 1, "a": 2}\n{"st\n'} if kind == "damaged" else {}
    state = "running" if kind == "killed" else "done"
    folder = write_run(tmp_path / "run", status={"state": state, "step": 0}, **files)
    page = show(report_file([folder]))
    note = {"damaged": "1 line of metrics.jsonl could not be read"}.get(kind, "it has no metrics")
    assert note in page.inner_text("#headline")
    assert {"killed": "killed"}.get(kind, "done") in page.inner_text("header")


LIVE = """
import sys, time
from types import SimpleNamespace
from plugrl.core.run.report import live
from plugrl.core.run.run import Run
live._FIRST = live._INTERVAL = 0.01
tree = {"experiment_name": "toy", "settings": {"runs_folder": sys.argv[1], "progress": "none"}}
composed = SimpleNamespace(input_text="", overrides=())
run = Run.create(SimpleNamespace(tree=tree), composed)
with run:
    for step in range(1, 10**6):
        run.sample("rollouts", {"step": step, "prompt": "p" * 500, "answer": str(step)})
        run.end_step(step, {"rollout/reward": step})
        time.sleep(0.002)
"""


def test_it_opens_at_any_moment_of_a_run_and_after_a_kill(show, tmp_path):
    process = subprocess.Popen([sys.executable, "-c", LIVE, str(tmp_path)])
    try:
        found = wait_until(lambda: list(tmp_path.glob("toy/*/report.html")), process)
        steps = []
        for _ in range(5):
            page = show(found[0])
            assert "running" in page.inner_text("header")
            assert re.search("Last written .* ago. Reload", page.inner_text("#written"))
            steps.append(page.evaluate(
                "JSON.parse(document.getElementById('data').textContent).runs[0].step"
            ))  # fmt: skip
        assert steps == sorted(steps)
    finally:
        process.kill()
        process.wait()
    page = show(found[0])
    assert "running when this page was written" in page.inner_text("header")
    # The page of a killed run cannot say so itself; a new one does.
    page = show(report_file([found[0].parent]))
    assert "killed" in page.inner_text("header")
    assert re.fullmatch(r"Written [-0-9]+ [:0-9]+ \S+\.", page.inner_text("#written"))


def test_a_page_tells_its_age_and_when_a_newer_one_is_overdue(show, write_run, tmp_path):
    run = write_run(tmp_path / "exp" / "id1")
    path = tmp_path / "page.html"
    path.write_text(report_page([RunContents(run).read({"state": "running", "step": 3})], 20.0))
    page = show(path)
    page.clock.install()
    page.reload()
    command = "If the process has ended without a word, plugrl report id1 says so."
    for minutes, age in ((1, "1 min "), (60, "1 h 1 min")):
        page.clock.fast_forward(60_000 * minutes)
        told = page.inner_text("#written")
        assert told.startswith(f"Last written {age}")
        assert told.endswith(command)
        assert ("a page was due every 20 s" in told) == (minutes == 60)


def test_a_hundred_thousand_steps_are_five_megabytes_and_open_in_three_seconds(
    show, write_run, tmp_path
):
    folder = write_run(tmp_path / "run", status={"state": "done", "step": 100_000})
    with open(folder / "metrics.jsonl", "w", encoding="utf-8") as file:
        for step in range(1, 100_001):
            numbers = {f"train/m{i}": (step * (i + 7)) % 997 / 997 for i in range(40)}
            file.write(json.dumps({"step": step, "time/unix": 1e9 + step, **numbers}) + "\n")
    (folder / "samples").mkdir()
    with open(folder / "samples" / "rollouts.jsonl", "w", encoding="utf-8") as file:
        for step in range(1, 100_001, 10):
            text = [f" word{i}" for i in range(200)]
            tokens = {"count": 200, "text": text, "mask": [1] * 200, "logprob": [-1.25] * 200}
            record = sample(step, step, answer="".join(text), tokens=tokens)
            file.write(json.dumps(record) + "\n")
    path = report_file([folder])
    assert path.stat().st_size < 5_000_000
    page = show(path)
    page.wait_for_selector(".chart .uplot")
    assert page.evaluate("performance.now()") < 3000
