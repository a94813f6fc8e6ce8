#!/bin/sh
# hook.sh IMAGE ROOT [WHEELS...]
#
# What mmdebstrap runs on the host when the Debian packages are in ROOT: fetch there, then set up inside.
set -eu
image=$1 root=$2
shift 2
mkdir "$root/cubicle-build"
cp -R "$image" "$root/cubicle-build/image"
sh "$image/fetch.sh" "$image" "$root" "$root/cubicle-build/artifacts" "$@"
chroot "$root" sh /cubicle-build/image/setup.sh /cubicle-build/image /cubicle-build/artifacts
rm -rf "$root/cubicle-build"
# mmdebstrap brings the host's own; a sandbox knows its loopback and nothing else.
rm -f "$root/etc/hostname" "$root/etc/hosts" "$root/etc/resolv.conf"
echo cubicle >"$root/etc/hostname"
printf '127.0.0.1 localhost cubicle\n::1 localhost ip6-localhost\n' >"$root/etc/hosts"
: >"$root/etc/resolv.conf"
chmod 0644 "$root/etc/hostname" "$root/etc/hosts" "$root/etc/resolv.conf"
