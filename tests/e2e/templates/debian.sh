#!/bin/bash
# debian.sh OUT: makes OUT/debian.tar, a small Debian of this machine's release
# with what people build software with. Made again only when this file or the
# release changed. The machine's own apt set-up tells where packages come from.
# Needs root.
set -euo pipefail

packages=gcc,libc6-dev,python3,git,nodejs,npm,ca-certificates

mkdir -p "$1"
out=$(cd "$1" && pwd)
exec 9>"$out/lock"
flock 9

. /etc/os-release
key=$({ echo "$VERSION_CODENAME"; cat "$0"; } | sha256sum | cut -d' ' -f1)
if [ "$(cat "$out/key" 2>/dev/null)" = "$key" ]; then
    exit 0
fi
rm -f "$out/key"
work=$(mktemp -d "$out/.work.XXXXXX")
trap 'rm -rf --one-file-system "$work"' EXIT
trap 'exit 130' INT TERM HUP

seen=$(apt-get update --print-uris)
at() { sed -n "s|^'\(.*\)/dists/$1/InRelease'.*|\1|p" <<<"$seen" | head -n 1; }
main=$(at "$VERSION_CODENAME-updates")
main=${main:-$(at "$VERSION_CODENAME")}
if [ -z "$main" ]; then
    echo "debian: apt is set up with no archive of $VERSION_CODENAME" >&2
    exit 1
fi
printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nSigned-By: %s\n\n' \
    "$main" "$VERSION_CODENAME" /usr/share/keyrings/debian-archive-keyring.gpg >"$work/debian.sources"

# In a mount namespace of its own, so that no mount outlives it.
if ! unshare --mount mmdebstrap --mode=root --variant=minbase --format=tar \
    --aptopt='APT::Install-Recommends "false"' --aptopt='Acquire::Languages "none"' \
    --dpkgopt=force-unsafe-io \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/info/*' \
    --customize-hook='rm -rf "$1"/etc/apt/sources.list* "$1"/var/cache/apt/* "$1"/var/lib/apt/lists/*' \
    --include="$packages" "$VERSION_CODENAME" "$work/debian.tar" "$work/debian.sources" >"$work/log" 2>&1 </dev/null; then
    tail -n 25 "$work/log" >&2
    echo "debian: mmdebstrap failed" >&2
    exit 1
fi
mv "$work/debian.tar" "$out/debian.tar"
echo "$key" >"$out/key"
