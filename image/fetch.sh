#!/bin/sh
# fetch.sh IMAGE ROOT OUT [WHEELS...]
#
# Downloads what is not an apt package of the release: ttyd with what it needs, and the wheels listed in
# IMAGE/wheels/WHEELS, each checked against the hash that is pinned there. It runs where the settings of apt and pip (proxy,
# certificates, index) of the host hold; setup.sh then needs no network.
#
# ttyd: the file that is pinned in ttyd.pins; if the archive has it no more, or another one by that name, the one that the
# signed index of Debian testing or unstable names; if there is none either, the image is built without a terminal server.
set -eu
image=$1 root=$2 out=$3
shift 3
# Set by mmdebstrap for the new root; downloads here go by the host's.
unset APT_CONFIG

keyring=${KEYRING:-/usr/share/keyrings/debian-archive-keyring.gpg}
architecture=$(dpkg --print-architecture)
archive=$(find "$root/etc/apt/sources.list" "$root/etc/apt/sources.list.d" -type f 2>/dev/null | sort |
    xargs sed -E '/^[[:space:]]*#/d' | grep -oE '[a-z+]+:/[^ ]+' | grep -v security | head -n 1)
mkdir -p "$out"

pinned_ttyd() {
    while read -r name path sha256; do
        [ "$name" = "$architecture" ] || continue
        /usr/lib/apt/apt-helper -o APT::Sandbox::User=root -o Acquire::Retries=3 \
            download-file "${archive%/}/$path" "$out/ttyd.deb" "SHA256:$sha256" && return 0
    done <"$image/ttyd.pins"
    rm -f "$out"/ttyd.deb*
    return 1
}

# The release goes first for everything that it has: only ttyd, and what the release has too old for it, is taken from elsewhere.
indexed_ttyd() {
    state=$(mktemp -d)
    mkdir -p "$state/lists/partial" "$state/cache/archives/partial" "$state/sources"
    cp "$root"/etc/apt/sources.list.d/* "$state/sources/" 2>/dev/null || true
    for suite in testing unstable; do
        echo "deb [signed-by=$keyring] $archive $suite main" >>"$state/sources/ttyd.list"
    done
    printf 'Package: *\nPin: release a=%s\nPin-Priority: %s\n\n' testing 90 unstable 80 >"$state/preferences"
    list=$root/etc/apt/sources.list
    [ -e "$list" ] || list=/dev/null
    done=1
    (
        apt() {
            apt-get -q -y -o Debug::NoLocking=1 -o APT::Sandbox::User=root -o APT::Default-Release= -o Acquire::Retries=3 \
                -o "Dir::Etc::trusted=$keyring" -o "Dir::Etc::sourcelist=$list" -o "Dir::Etc::sourceparts=$state/sources" \
                -o "Dir::Etc::preferences=$state/preferences" -o Dir::Etc::preferencesparts=/dev/null \
                -o "Dir::State::lists=$state/lists" -o "Dir::State::status=$root/var/lib/dpkg/status" \
                -o "Dir::State::extended_states=$state/extended" -o "Dir::Cache=$state/cache" "$@"
        }
        apt update
        for suite in testing unstable; do
            apt --no-install-recommends --download-only install "ttyd/$suite" && exit 0
        done
        exit 1
    ) && mv "$state"/cache/archives/*.deb "$out/" && done=0
    rm -rf "$state"
    return $done
}

echo "cubicle: fetching ttyd"
if ! pinned_ttyd; then
    echo "cubicle: fetching ttyd by the index of Debian testing and unstable, for the pinned file is not to be had"
    indexed_ttyd || echo "cubicle: fetching of ttyd failed: this image will have no terminal server"
fi

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
        --dest "$out" --requirement "$image/wheels/$wheels" || {
        echo "The Python packages pinned in wheels/$wheels could not be downloaded: see above. The index is the one that" >&2
        echo "pip of this machine uses (pip.conf, PIP_INDEX_URL); without them there is no such image." >&2
        exit 1
    }
done
