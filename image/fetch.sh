#!/bin/sh
# fetch.sh IMAGE ROOT OUT [WHEELS...]
#
# Downloads what is not an apt package of the release, each file checked against the hash that is pinned here: the
# .deb of ttyd, from the archive that ROOT's own sources name, and the wheels listed in IMAGE/wheels/WHEELS. It runs where
# the settings of apt and pip (proxy, certificates, index) of the host hold; setup.sh then needs no network.
set -eu
image=$1 root=$2 out=$3
shift 3
# Set by mmdebstrap for the new root; downloads here go by the host's.
unset APT_CONFIG

architecture=$(dpkg --print-architecture)
archive=$(find "$root/etc/apt/sources.list" "$root/etc/apt/sources.list.d" -type f 2>/dev/null | sort |
    xargs sed -E '/^[[:space:]]*#/d' | grep -oE '[a-z+]+://[^ ]+' | grep -v security | head -n 1)
mkdir -p "$out"
while read -r name path sha256; do
    [ "$name" = "$architecture" ] || continue
    echo "cubicle: fetching ttyd"
    /usr/lib/apt/apt-helper -o APT::Sandbox::User=root -o Acquire::Retries=3 \
        download-file "${archive%/}/$path" "$out/ttyd.deb" "SHA256:$sha256"
done <"$image/ttyd.pins"
[ -s "$out/ttyd.deb" ] || { echo "ttyd is not pinned for $architecture" >&2; exit 1; }

case $architecture in
arm64) machine=aarch64 ;;
amd64) machine=x86_64 ;;
*) echo "no wheels are pinned for $architecture" >&2; exit 1 ;;
esac
# The new root brings a pip as a wheel, which runs where it lies: the host needs none.
pip=$(echo "$root"/usr/share/python-wheels/pip-*.whl)/pip
for wheels in "$@"; do
    echo "cubicle: fetching wheels/$wheels"
    "${PYTHON:-python3}" "$pip" download --quiet --disable-pip-version-check --no-deps --require-hashes \
        --only-binary :all: --python-version 3.13 --implementation cp --abi cp313 --abi abi3 --abi none \
        --platform "manylinux_2_28_$machine" --platform "manylinux_2_24_$machine" \
        --platform "manylinux_2_17_$machine" --platform "manylinux2014_$machine" --platform "manylinux1_$machine" \
        --dest "$out" --requirement "$image/wheels/$wheels"
done
