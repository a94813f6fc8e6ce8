"""example.py OUT_FOLDER: test a small to-do page in a real browser, and show that a broken one is found."""

import os
import shutil
import socket
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
try:
    from playwright.sync_api import expect, sync_playwright
except ImportError:
    print("Playwright is missing here. Get it with: pip install playwright", file=sys.stderr)
    sys.exit(3)
from page_check import open_page

if not shutil.which("chromium"):
    print("Chromium is not in this image (the standard image has it).", file=sys.stderr)
    sys.exit(3)

GOOD = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<link rel="icon" href="data:,"><title>To do</title><h1>To do</h1>
<form><label>New task <input name="task" required></label> <button>Add</button></form><ul></ul><script>
document.querySelector("form").addEventListener("submit", event => {
  event.preventDefault();
  const item = document.createElement("li");
  item.textContent = event.target.task.value;
  document.querySelector("ul").append(item);
  event.target.reset();
});
</script></html>"""
BROKEN = GOOD.replace('document.querySelector("form")', 'document.querySelector("from")')


def test(address, folder):
    with sync_playwright() as playwright:
        for width in (390, 1280):
            with open_page(playwright, width=width) as (page, problems):
                page.goto(address + "/good.html")
                page.get_by_label("New task").fill("Buy <b>milk</b>")
                page.get_by_role("button", name="Add").click()
                expect(page.get_by_role("listitem")).to_have_text("Buy <b>milk</b>")
                page.get_by_role("button", name="Add").click()
                expect(page.get_by_role("listitem")).to_have_count(1)
                page.screenshot(path=os.path.join(folder, "todo-%d.png" % width))
                assert problems == [], problems
        with open_page(playwright) as (page, problems):
            page.goto(address + "/broken.html")
            assert problems and problems[0].startswith("exception:"), problems
    print("ok", folder)


def main(folder):
    os.makedirs(folder, exist_ok=True)
    for name, text in (("good.html", GOOD), ("broken.html", BROKEN)):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    serve = "exec '%s' -m http.server %d --bind 127.0.0.1 --directory '%s'" % (sys.executable, port, folder)
    command = [sys.executable, os.path.join(HERE, "with_server.py"), "--port", str(port), "--serve", serve, "--",
               sys.executable, os.path.abspath(__file__), "--test", "http://127.0.0.1:%d" % port, folder]
    sys.exit(subprocess.run(command).returncode)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--test"]:
        test(sys.argv[2], sys.argv[3])
    else:
        main(sys.argv[1] if len(sys.argv) > 1 else "testing-example")
