"""example.py OUT_FOLDER: collect a two-page catalogue, drawn by JavaScript, with the shared browser."""

import csv
import http.server
import os
import shutil
import subprocess
import sys
import threading

if not shutil.which("cubicle-browser"):
    print("There is no browser in this image (the standard image has it): use curl instead.", file=sys.stderr)
    sys.exit(3)
try:
    from playwright.sync_api import sync_playwright
except ImportError:
    print("Playwright is missing here. Get it with: pip install playwright", file=sys.stderr)
    sys.exit(3)

PAGE = """<!doctype html><meta charset="utf-8"><title>Shop</title><table><tbody></tbody></table><nav></nav><script>
const page = Number(new URLSearchParams(location.search).get("page") || 1);
setTimeout(() => {
  for (let i = 1; i <= 3; i++) {
    const row = document.querySelector("tbody").insertRow();
    row.insertCell().textContent = "Lamp " + (page * 10 + i);
    row.insertCell().textContent = (page * 100 + i) + ".50 €";
  }
  if (page < 2) document.querySelector("nav").innerHTML = '<a href="?page=' + (page + 1) + '">Next</a>';
  document.body.dataset.ready = "yes";
}, 200);
</script>"""


class Shop(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = PAGE.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def collect(page, address, limit=20):
    """Every row of every page: follow the link named Next until there is none."""
    page.goto(address, wait_until="domcontentloaded")
    rows = []
    for _ in range(limit):
        page.locator("body[data-ready]").wait_for(timeout=10_000)
        for row in page.locator("tbody tr").all():
            name, price = row.locator("td").all_inner_texts()
            rows.append({"name": name, "price": float(price.split()[0]), "address": page.url})
        following = page.get_by_role("link", name="Next")
        if following.count() == 0:
            return rows
        following.click()
        page.wait_for_url("**page=*")
    return rows


def main(folder):
    os.makedirs(folder, exist_ok=True)
    shop = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Shop)
    threading.Thread(target=shop.serve_forever, daemon=True).start()
    started = subprocess.run(["cubicle-browser"], check=True, stdout=subprocess.PIPE, timeout=60)
    with sync_playwright() as playwright:
        browser = playwright.chromium.connect_over_cdp(started.stdout.decode().split()[-1])
        page = browser.contexts[0].new_page()
        try:
            rows = collect(page, "http://127.0.0.1:%d/" % shop.server_port)
        finally:
            page.close()
    shop.shutdown()
    path = os.path.join(folder, "shop.csv")
    with open(path, "w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, ["name", "price", "address"])
        writer.writeheader()
        writer.writerows(rows)
    assert [row["price"] for row in rows] == [101.5, 102.5, 103.5, 201.5, 202.5, 203.5], rows
    print("ok", path)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "scraping-example")
