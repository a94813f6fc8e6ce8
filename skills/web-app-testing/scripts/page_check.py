"""A browser page that remembers what went wrong: open_page(playwright) -> (page, problems)."""

import shutil
from contextlib import contextmanager


@contextmanager
def open_page(playwright, width=1280, height=800):
    """A page in a clean headless browser, and the list of its console errors, exceptions and failed requests."""
    problems = []
    # The sandbox is the wall here; Chromium's own needs rights that it does not give.
    browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
    try:
        page = browser.new_page(viewport={"width": width, "height": height})
        page.set_default_timeout(10_000)
        page.on("console", lambda m: problems.append("console: " + m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: problems.append("exception: %s" % error))
        page.on("requestfailed", lambda r: problems.append("request failed: " + r.url))
        page.on("response", lambda r: problems.append("%d: %s" % (r.status, r.url)) if r.status >= 400 else None)
        yield page, problems
    finally:
        browser.close()
