#!/bin/sh
# Builds the pages into src/cubicle/http_api/static, with the Node and the packages of the project's set-up.
set -eu
cd "$(dirname "$0")"
../scripts/environment dev
../scripts/web
PATH=$PWD/../.venv/bin:$PATH
npm run build
