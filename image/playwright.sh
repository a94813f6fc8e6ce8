#!/bin/sh
# playwright.sh IMAGE
#
# Runs inside the new root when it has Node. Playwright for Python carries a whole Node and the package playwright-core;
# one Node is enough, and Node programs load the same package. Playwright looks for browsers of its own under
# $PLAYWRIGHT_BROWSERS_PATH, in folders named by revision: each name leads to Debian's Chromium, so that a plain
# launch() works without a download.
set -eu
image=$1
driver=$(python3 -c 'import os, playwright; print(os.path.join(os.path.dirname(playwright.__file__), "driver"))')
modules=/usr/local/lib/node_modules
browsers=/usr/local/lib/playwright-browsers

ln -sf /usr/local/bin/node "$driver/node"
ln -sfn "$driver/package" "$modules/playwright-core"
cp -R --no-preserve=ownership "$image/playwright-for-node" "$modules/playwright"

revision=$(node -p 'require("playwright-core/package.json") && JSON.parse(require("fs").readFileSync(
    require("path").join(require.resolve("playwright-core/package.json"), "../browsers.json"))).browsers
    .find(browser => browser.name === "chromium").revision')
case $(uname -m) in
aarch64) suffix=linux-arm64 ;;
*) suffix=linux64 ;;
esac
place() {
    mkdir -p "$browsers/$1/$2"
    ln -sf /usr/bin/chromium "$browsers/$1/$2/$3"
    : >"$browsers/$1/INSTALLATION_COMPLETE"
}
place "chromium-$revision" "chrome-$suffix" chrome
place "chromium_headless_shell-$revision" "chrome-headless-shell-$suffix" chrome-headless-shell
