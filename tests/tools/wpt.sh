#!/bin/bash
# wpt.sh DIR: puts public test suites of web interfaces into DIR: those of the Web
# Platform Tests that Node.js carries in its source, and the suite of a polyfill
# for fetch, which it does not carry. They come from Debian's sources, by apt
# from the mirror that this machine uses, and are pinned by their content.
set -euo pipefail
out=$1

# package, file, its sha256, what is taken out of it, and where to
suites='
nodejs nodejs_20.19.2+dfsg.orig.tar.xz 5e5559381ad031d245a8efa403458abbb73755f74c3e6380f185a4dd342b7949 */test/fixtures/wpt/* wpt
node-whatwg-fetch node-whatwg-fetch_3.6.2.orig.tar.gz faedfd553071a8ff6b69eb333c800fb0be8b4a92541987a0a4b4578d0b614971 */test/test.js fetch
'
release=trixie
stamp=$(printf %s "$suites" | sha256sum | cut -d' ' -f1)
[ "$(cat "$out/stamp" 2>/dev/null || true)" != "$stamp" ] || exit 0

keys=/usr/share/keyrings/debian-archive-keyring.gpg
if ! command -v apt-get >/dev/null || [ ! -e $keys ]; then
    echo "wpt: the public tests of the web interfaces come from Debian's sources; this machine has no apt-get or not Debian's keys" >&2
    exit 1
fi
mirror=$(apt-get indextargets --format '$(ORIGIN) $(REPO_URI) $(SUITE)' | awk '$1 == "Debian" && $3 !~ /security/ { print $2; exit }')
[ -n "$mirror" ] || { echo "wpt: apt knows no Debian mirror" >&2; exit 1; }

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir -p "$tmp"/{lists,cache,got,new}/partial
printf 'Types: deb-src\nURIs: %s\nSuites: %s\nComponents: main\nSigned-By: %s\n' "$mirror" $release $keys >"$tmp/source.sources"
apt() {
    apt-get -qq -o Dir::Etc::sourcelist="$tmp/source.sources" -o Dir::Etc::sourceparts=/dev/null -o Dir::State::lists="$tmp/lists" \
        -o Dir::Cache="$tmp/cache" -o APT::Sandbox::User=root "$@" </dev/null >"$tmp/log" 2>&1 ||
        { tail -n 20 "$tmp/log" >&2; echo "wpt: apt-get could not get the public tests" >&2; exit 1; }
}
apt update
printf %s "$suites" | while read -r package file sum part name; do
    [ -n "$package" ] || continue
    [ -e "$tmp/got/$file" ] || (cd "$tmp/got" && apt source --download-only --tar-only "$package")
    echo "$sum  $tmp/got/$file" | sha256sum --quiet -c - || { echo "wpt: $file is not the pinned one" >&2; exit 1; }
    mkdir "$tmp/new/$name" "$tmp/got/$name"
    tar -xf "$tmp/got/$file" -C "$tmp/got/$name" --wildcards "$part"
    find "$tmp/got/$name" -path "*/test/fixtures/wpt" -prune -exec sh -c 'mv "$0"/* "$1"' {} "$tmp/new/$name" \;
    find "$tmp/got/$name" -name '*.js' -path "*${part#\*}" -exec mv {} "$tmp/new/$name" \;
done
rm -r "$tmp/new/partial"
printf %s "$stamp" >"$tmp/new/stamp"
chmod -R u+rwX,go+rX "$tmp/new"
rm -rf "$out"
mkdir -p "$(dirname "$out")"
mv "$tmp/new" "$out"
echo "$out: public tests of web interfaces"
