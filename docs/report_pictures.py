"""Take the pictures of docs/report.md and of the README.

``python docs/report_pictures.py RUN``

RUN is the folder of a run of the recipe ``quickstart``. Its report is written anew and shown by
Chromium, which Playwright drives (``pip install playwright``, ``apt-get install chromium``); the
pictures go to ``docs/pictures``, with few colours, so that they are small.
"""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from plugrl.core.run.report.page import report_file

FOLDER = Path(__file__).parent / "pictures"
#: Enough for lines, shades and grey edges of letters.
COLOURS = 96
WIDTH, HEIGHT = 1100, 760
#: The smallest log-probability among the tokens that are shown.
LEAST_LIKELY = """
Math.min(0, ...[...document.querySelectorAll("#sample .t")]
  .map((token) => Number(token.title.split(" ")[1] || 0)))
"""


def take(browser: Browser, report: Path, name: str, scheme: str, part: str | None = None) -> None:
    """Write one picture of the top of the page, or of the section ``part``."""
    page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=scheme)
    page.goto(report.resolve().as_uri())
    page.wait_for_selector(".chart .uplot")
    clip = {"x": 0, "y": 0, "width": WIDTH, "height": HEIGHT}
    if part is not None:
        # An answer with an unlikely token, to a problem that comes again.
        page.fill("#filter-step-from", "210")
        page.fill("#filter-step-to", "900")
        buttons = page.query_selector_all("#records button")
        for button in buttons:
            button.click()
            if page.is_enabled("#same") and page.evaluate(LEAST_LIKELY) < -1.5:
                page.click("#same")
                break
        page.evaluate("document.activeElement.blur()")
        top = "node => node.getBoundingClientRect().top + scrollY"
        clip["y"] = page.locator(part).evaluate(top) - 8
    data = page.screenshot(clip=clip, full_page=True)
    picture = Image.open(io.BytesIO(data)).convert("RGB").quantize(COLOURS)
    FOLDER.mkdir(exist_ok=True)
    picture.save(FOLDER / name, optimize=True)
    print(FOLDER / name, (FOLDER / name).stat().st_size, "bytes")
    page.close()


def main(run: Path) -> None:
    """Take all pictures of a run."""
    chromium = shutil.which("chromium")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        report = report_file([run], Path(folder) / "report.html")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        take(browser, report, "report-light.png", "light")
        take(browser, report, "report-dark.png", "dark")
        take(browser, report, "report-samples.png", "light", "#samples")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
