#!/bin/bash
# test.sh: builds the virtual machine and the suites, installs sandboxd in the
# machine as `make install` does, and runs the suites there. Prints the events of
# `go test -json`. Needs root and what `make build` made.
#
# SUITES, RUN and SKIP choose: SUITES="vm e2e", RUN and SKIP are regular
# expressions of tests. What SKIP leaves out by itself computes for minutes where
# it is not emulated, and has nothing to do with systemd or control groups.
set -euo pipefail

cd "$(dirname "$0")/../.."
out=build/vm
suites=${SUITES:-vm e2e}
skip=${SKIP-^(TestNothingIsLeft|TestLimits)$}

[ -z "$skip" ] || echo "vm: not run there, but outside: $skip" >&2
tests/vm/image/build.sh $out >&2

share=$(mktemp -d)
vm='' dev=''
clean_up() {
    for pid in $dev $vm; do
        kill "$pid" 2>/dev/null && wait "$pid" 2>/dev/null
    done
    rm -rf "$share"
}
trap clean_up EXIT
trap 'exit 130' INT TERM HUP

export CGO_ENABLED=0
for suite in $suites; do
    go test -c -o "$share/$suite.test" "./tests/$suite"
done
go build -o "$share/test2json" cmd/test2json
make --no-print-directory -s install DESTDIR="$share/root" >&2

# The interpreters' compiled code, made here: emulated, it would take minutes.
# The first start in the machine finds it where a second start would.
# One run at a time makes it, and none while another one reads it.
warm=$out/.warm
exec 9>$out/lock
flock 9
key=$(cat build/sandboxd build/guests/* | sha256sum)
if [ "$(cat $warm/key 2>/dev/null)" != "$key" ]; then
    rm -rf $warm
    mkdir -p $warm
    mkfifo $warm/said
    # Without a home, its cache is in its state.
    env -u HOME -u XDG_CACHE_HOME build/sandboxd dev --state "$PWD/$warm/state" >$warm/said 2>&1 &
    dev=$!
    exec 8<$warm/said # open until its end: it must not write to nobody
    # It is ready before Python is, which it prepares meanwhile.
    ready='' python=''
    while [ -z "$ready" ] || [ -z "$python" ]; do
        read -r line <&8 || { echo "warm: sandboxd dev ended" >&2; exit 1; }
        echo "warm: $line" >&2
        case $line in
            ready) ready=1 ;;
            'Python is ready'*) python=1 ;;
            'Python could not'*) exit 1 ;;
        esac
    done
    kill $dev
    wait $dev
    dev=''
    exec 8<&-
    echo "$key" >$warm/key
fi
mkdir -p "$share/root/var/lib/sandboxd"
cp -a $warm/state/cache "$share/root/var/lib/sandboxd/"
exec 9>&-

cat >"$share/guest" <<EOF
set -eu
cp -a /host/root/. /
systemd-sysusers sandboxd.conf
systemd-tmpfiles --create sandboxd.conf
systemctl daemon-reload
# What an ordinary host loads when it is asked for it.
modprobe -a loop quota_v2 xfs
export SANDBOXD_TEST_SYSTEMD=1 SANDBOXD_TEST_SCALE=10
status=0
for suite in $suites; do
    cp /host/\$suite.test /host/test2json /usr/local/bin/
    # A folder of its own for each, as go test has it.
    mkdir -p /var/tmp/\$suite && cd /var/tmp/\$suite
    test2json -t -p sandboxd/tests/\$suite \$suite.test -test.v=test2json -test.timeout 25m ${RUN:+-test.run='$RUN'} ${skip:+-test.skip='$skip'} || status=1
done
exit \$status
EOF

tests/vm/run.sh -i $out -s "$share" -t "${SECONDS_LIMIT:-1700}" 'bash /host/guest' &
vm=$!
wait $vm
