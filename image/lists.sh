#!/bin/sh
# lists.sh packages|wheels VARIANT
#
# The packages of a variant, or the names of its files in wheels/: a variant has all of the smaller ones.
set -eu
here=$(dirname "$0")
case $2 in
slim) parts="slim" ;;
standard) parts="slim standard" ;;
full) parts="slim standard full" ;;
*) echo "there is no variant $2: slim, standard or full" >&2; exit 2 ;;
esac
for part in $parts; do
    case $1 in
    packages) grep -vE '^(#|$)' "$here/packages/$part.txt" ;;
    wheels) [ ! -e "$here/wheels/$part.txt" ] || echo "$part.txt" ;;
    esac
done
