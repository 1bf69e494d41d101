#!/bin/bash
# deps.sh GROUP...: installs the Debian packages that a group of targets needs
# and this machine lacks. Says nothing and asks nobody when nothing is missing.
#
# Groups: build (compile sandboxd), run (what jails and the demo use), bench (what
# it is measured against), test (what
# packages' own tests start), browser (what previews are looked at with), vm (the
# virtual machine of `make vm-test`).
set -euo pipefail

# have TEST PACKAGE...: wants the packages unless the test holds.
missing=()
have() {
    local test=$1
    shift
    eval "$test" >/dev/null 2>&1 || missing+=("$@")
}
command_is_there() { have "command -v $1" "${@:2}"; }

for group in "$@"; do
    case $group in
    build)
        command_is_there gcc gcc libc6-dev
        command_is_there git git
        command_is_there pkg-config pkg-config
        have 'test -e "$(gcc -print-file-name=libc.a)" && test "$(gcc -print-file-name=libc.a)" != libc.a' libc6-dev
        have 'pkg-config --exists libseccomp && test "$(gcc -print-file-name=libseccomp.a)" != libseccomp.a' libseccomp-dev
        command_is_there node nodejs
        command_is_there npm npm
        have 'test -e /etc/ssl/certs/ca-certificates.crt' ca-certificates
        command_is_there xz xz-utils
        ;;
    run)
        command_is_there node nodejs
        command_is_there npm npm
        command_is_there ip iproute2
        command_is_there python3 python3
        command_is_there curl curl
        command_is_there pkill procps
        ;;
    bench)
        have 'test -x /usr/sbin/nginx || command -v nginx' nginx-light
        ;;
    test)
        # what jails of the end-to-end tests run
        command_is_there git git
        have '/usr/bin/python3 -m pip --version' python3-pip
        have 'ls /usr/lib/postgresql/*/bin/initdb && id postgres' postgresql
        # file systems that snapshots and disk limits are tried on
        have 'test -x /usr/sbin/mkfs.ext4' e2fsprogs
        have 'test -x /usr/sbin/mkfs.xfs' xfsprogs
        # the Debian that is imported as a template
        command_is_there mmdebstrap mmdebstrap
        ;;
    browser)
        command_is_there chromium chromium
        ;;
    bench)
        command_is_there bwrap bubblewrap
        command_is_there crun crun
        command_is_there runc runc
        ;;
    vm)
        command_is_there qemu-system-x86_64 qemu-system-x86
        have 'test -x /usr/lib/qemu/virtiofsd' qemu-system-common
        command_is_there mmdebstrap mmdebstrap
        command_is_there mke2fs e2fsprogs
        command_is_there unxz xz-utils
        command_is_there modprobe kmod
        ;;
    *)
        echo "deps: no group $group" >&2
        exit 2
        ;;
    esac
done

[ ${#missing[@]} -eq 0 ] && exit 0
mapfile -t missing < <(printf '%s\n' "${missing[@]}" | awk '!seen[$0]++')

if ! command -v apt-get >/dev/null; then
    echo "deps: this needs ${missing[*]} (Debian's names), and there is no apt-get to install them with" >&2
    exit 1
fi
if [ "$(id -u)" != 0 ]; then
    echo "deps: this needs ${missing[*]}; run as root, or: sudo apt-get install ${missing[*]}" >&2
    exit 1
fi

echo "deps: installing ${missing[*]} (this may take minutes)"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { apt-get -qq update && apt-get -qq install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1 </dev/null; then
    tail -n 30 "$log" >&2
    echo "deps: apt-get could not install ${missing[*]}" >&2
    exit 1
fi
