#!/bin/bash
# build.sh OUT: makes OUT/vmlinuz and OUT/root.img, a small Debian of this
# machine's release with systemd and the backports kernel (Landlock ABI 6).
#
# Made again only when this folder or the release changed. The machine's own apt
# set-up tells where packages come from and stays as it is. Needs root.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
out=$(cd "$1" && pwd)

exec 9>"$out/lock"
flock 9

. /etc/os-release
key=$(cd "$here" && { echo "$VERSION_CODENAME"; find . -type f | sort | xargs sha256sum; } | sha256sum | cut -d' ' -f1)
if [ "$(cat "$out/key" 2>/dev/null)" = "$key" ]; then
    exit 0
fi
rm -f "$out/key"

started=$SECONDS
# The dot keeps go's ./... out of it.
work=$(mktemp -d "$out/.work.XXXXXX")
trap 'rm -rf --one-file-system "$work"' EXIT
trap 'exit 130' INT TERM HUP
root=$work/root
sources=$work/debian.sources
log=$out/build.log
: >"$log"

words() { sed 's/#.*//' "$here/$1" | xargs; }

fail() {
    tail -n 25 "$log" >&2
    echo "vm image: $1" >&2
    exit 1
}

# Where this machine takes Debian from, in whatever files and format it says so.
find_archive() {
    local seen main security
    seen=$(apt-get update --print-uris)
    # With its updates, for others call a suite by the release's name too.
    main=$(at "$seen" "$VERSION_CODENAME-updates")
    main=${main:-$(at "$seen" "$VERSION_CODENAME")}
    security=$(at "$seen" "$VERSION_CODENAME-security")
    if [ -z "$main" ]; then
        echo "apt is set up with no archive of $VERSION_CODENAME"
        return 1
    fi
    stanza "$main" "$VERSION_CODENAME" >"$sources"
    [ -z "$security" ] || stanza "$security" "$VERSION_CODENAME-security" >>"$sources"
    stanza "$main" "$VERSION_CODENAME-backports" >"$work/backports.sources"
}

at() { sed -n "s|^'\(.*\)/dists/$2/InRelease'.*|\1|p" <<<"$1" | head -n 1; }

stanza() {
    printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nSigned-By: %s\n\n' \
        "$1" "$2" /usr/share/keyrings/debian-archive-keyring.gpg
}

# The kernel of backports: same archive, other suite; unpacked, not installed.
fetch_kernel() {
    mkdir -p "$work/apt/lists/partial" "$work/apt/cache/archives/partial"
    local apt=(-qq
        -o Dir::Etc::sourcelist="$work/backports.sources"
        -o Dir::Etc::sourceparts=/dev/null
        -o Dir::State::Lists="$work/apt/lists"
        -o Dir::Cache="$work/apt/cache"
        -o APT::Sandbox::User=root)
    apt-get "${apt[@]}" update
    local package
    package=$(apt-cache "${apt[@]}" depends linux-image-cloud-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p')
    (cd "$work" && apt-get "${apt[@]}" download "$package" && dpkg-deb -x linux-image-*.deb kernel)
}

make_root() {
    # In a mount namespace of its own, so that no mount outlives it.
    unshare --mount mmdebstrap --mode=root --variant=minbase --format=directory \
        --aptopt='APT::Install-Recommends "false"' --aptopt='Acquire::Languages "none"' \
        --dpkgopt=force-unsafe-io \
        --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/info/*' \
        --include="$(words packages | tr ' ' ,)" "$VERSION_CODENAME" "$root" "$sources"
    # Where packages come from is this machine's affair, not the image's.
    rm -rf "$root"/etc/apt/sources.list* "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/*
}

# Only the modules in the list, decompressed, with their dependencies.
add_modules() {
    local version modules
    version=$(basename "$work"/kernel/usr/lib/modules/* 2>/dev/null || true)
    modules=$work/kernel/usr/lib/modules
    if [ ! -d "$modules/$version" ]; then
        version=$(basename "$work"/kernel/lib/modules/*)
        modules=$work/kernel/lib/modules
    fi
    mkdir -p "$work/all/lib/modules"
    mv "$modules/$version" "$work/all/lib/modules/"
    find "$work/all" -name '*.ko.xz' -print0 | xargs -0 -r -P2 -n50 unxz
    depmod -b "$work/all" "$version"
    local from=$work/all/lib/modules/$version to=$root/usr/lib/modules/$version
    mkdir -p "$to"
    local name file
    for name in $(words modules); do
        modprobe -d "$work/all" -S "$version" --show-depends "$name"
    done | awk '$1 == "insmod" { print $2 }' | sort -u | while read -r file; do
        install -D -m 0644 "$file" "$to/${file#"$from"/}"
    done
    cp "$from"/modules.{order,builtin,builtin.modinfo} "$to/"
    depmod -b "$root" "$version"
}

configure() {
    local etc=$root/etc unit
    echo vm >"$etc/hostname"
    printf '127.0.0.1 localhost vm\n::1 localhost\n' >"$etc/hosts"
    printf '%032d\n' 1 >"$etc/machine-id"
    : >"$etc/fstab"
    for unit in $(words masked); do
        ln -sf /dev/null "$etc/systemd/system/$unit"
    done
    # Generators would each start a process to find that there is nothing to do.
    mkdir -p "$etc/systemd/system-generators"
    for unit in "$root"/usr/lib/systemd/system-generators/* "$root"/lib/systemd/system-generators/*; do
        [ -e "$unit" ] && ln -sf /dev/null "$etc/systemd/system-generators/$(basename "$unit")"
    done
    install -D -m 0644 "$here/guest/journald.conf" "$etc/systemd/journald.conf.d/vm.conf"
    install -D -m 0644 "$here/guest/system.conf" "$etc/systemd/system.conf.d/vm.conf"
    install -D -m 0644 "$here/guest/sysctl.conf" "$etc/sysctl.d/vm.conf"
    install -D -m 0755 "$here/guest/vmjob" "$root/usr/local/sbin/vmjob"
    install -D -m 0644 "$here/guest/vmjob.service" "$etc/systemd/system/vmjob.service"
    mkdir -p "$etc/systemd/system/multi-user.target.wants"
    ln -sf ../vmjob.service "$etc/systemd/system/multi-user.target.wants/vmjob.service"
}

pack() {
    rm -f "$out/root.img"
    truncate -s 2G "$out/root.img"
    mke2fs -q -F -t ext4 -d "$root" -L root -m 0 -N 100000 \
        -O ^has_journal,^metadata_csum,^64bit -E lazy_itable_init=0,root_owner=0:0 "$out/root.img"
    cp "$work"/kernel/boot/vmlinuz-* "$out/vmlinuz"
}

echo "vm image: building (Debian $VERSION_CODENAME, kernel of $VERSION_CODENAME-backports)"
for step in find_archive fetch_kernel make_root add_modules configure pack; do
    # A subshell of its own, because set -e does nothing under a condition.
    (set -e; "$step") >>"$log" 2>&1 &
    wait $! || fail "$step failed; the whole log is $log"
done
echo "$key" >"$out/key"
echo "vm image: built in $((SECONDS - started)) s, $(du -ch "$out/root.img" "$out/vmlinuz" | tail -n 1 | cut -f1)"
