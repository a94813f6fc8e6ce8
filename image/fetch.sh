#!/bin/sh
# fetch.sh IMAGE ARCHITECTURE MIRROR OUT WHEELS...
#
# Downloads what is not an apt package of the release, each file checked against the hash that is pinned here: the
# .deb of ttyd from a Debian archive at MIRROR, and the wheels named in IMAGE/wheels/*.txt. It runs where the host's own
# settings of apt and pip (proxy, certificates, index) hold; setup.sh then needs no network.
set -eu
image=$1 architecture=$2 mirror=$3 out=$4
shift 4

mkdir -p "$out"
while read -r name path sha256; do
    [ "$name" = "$architecture" ] || continue
    echo "cubicle: fetching $path"
    /usr/lib/apt/apt-helper -o APT::Sandbox::User=root -o Acquire::Retries=3 \
        download-file "${mirror%/}/$path" "$out/ttyd.deb" "SHA256:$sha256"
done <"$image/ttyd.pins"
[ -s "$out/ttyd.deb" ] || { echo "ttyd is not pinned for $architecture" >&2; exit 1; }

case $architecture in
arm64) machine=aarch64 ;;
amd64) machine=x86_64 ;;
*) echo "no wheels are pinned for $architecture" >&2; exit 1 ;;
esac
for wheels in "$@"; do
    echo "cubicle: fetching $wheels"
    "${PYTHON:-python3}" -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes \
        --only-binary :all: --python-version 3.13 --implementation cp --abi cp313 --abi abi3 --abi none \
        --platform "manylinux_2_28_$machine" --platform "manylinux_2_24_$machine" \
        --platform "manylinux_2_17_$machine" --platform "manylinux2014_$machine" --platform "manylinux1_$machine" \
        --dest "$out" --requirement "$image/wheels/$wheels"
done
