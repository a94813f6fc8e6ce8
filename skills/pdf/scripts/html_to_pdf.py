"""html_to_pdf.py IN.html OUT.pdf: print a page with Chromium, in a private profile, without header and footer."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile


def chromium():
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if shutil.which(name):
            return name
    print("Chromium is not in this image (the standard image has it).", file=sys.stderr)
    sys.exit(3)


def convert(source, target):
    if os.path.exists(target):
        os.remove(target)
    with tempfile.TemporaryDirectory() as profile:
        # The sandbox is the wall here; Chromium's own needs rights that it does not give.
        command = [chromium(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                   "--user-data-dir=" + profile, "--no-pdf-header-footer",
                   "--print-to-pdf=" + os.path.abspath(target), pathlib.Path(source).resolve().as_uri()]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120)
    if not os.path.exists(target) or os.path.getsize(target) == 0:
        sys.exit("Chromium made no PDF:\n" + done.stdout.decode(errors="replace")[-2000:])


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    convert(sys.argv[1], sys.argv[2])
    print(sys.argv[2])
