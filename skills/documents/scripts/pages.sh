#!/bin/bash
# pages.sh FILE OUT_FOLDER: one PNG per page of an office document or PDF, to look at.
set -euo pipefail
[ $# -eq 2 ] || { echo "pages.sh FILE OUT_FOLDER" >&2; exit 2; }
mkdir -p "$2"
case "$1" in
*.pdf | *.PDF) pdf=$1 ;;
*)
    command -v soffice >/dev/null || { echo "LibreOffice is not in this image (the full image has it)." >&2; exit 3; }
    profile=$(mktemp -d)
    trap 'rm -rf "$profile"' EXIT
    timeout 180 soffice --headless --norestore "-env:UserInstallation=file://$profile" \
        --convert-to pdf --outdir "$2" "$1" >/dev/null
    name=$(basename "$1")
    pdf=$2/${name%.*}.pdf
    ;;
esac
pdftoppm -r 60 -png "$pdf" "$2/page"
ls "$2"/page*.png
