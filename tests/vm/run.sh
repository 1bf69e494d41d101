#!/bin/bash
# run.sh -i IMAGEDIR -s SHARE [-t SECONDS] [-m MIB] COMMAND: boots the virtual
# machine, runs COMMAND in it as root and prints what it prints.
#
# SHARE is seen as /host inside. The disk is thrown away afterwards. Ends with
# the command's status; 124: out of time; 125: the machine died. Only a machine
# that died before the command began is started again.
#
# Emulation only (no KVM), all virtual processors on one thread: multi-threaded
# emulation was seen to crash the guest's kernel. Two of them, because with one a
# jail at its memory limit was seen to reclaim for minutes before it ended.
set -uo pipefail

image='' share='' seconds=600 memory=2048
while getopts i:s:t:m: option; do
    case $option in
    i) image=$OPTARG ;;
    s) share=$OPTARG ;;
    t) seconds=$OPTARG ;;
    m) memory=$OPTARG ;;
    *) exit 2 ;;
    esac
done
shift $((OPTIND - 1))
if [ -z "$image" ] || [ -z "$share" ] || [ $# -ne 1 ]; then
    sed -n '2,3p' "$0" >&2
    exit 2
fi

work=$(mktemp -d)
pids=()
clean_up() {
    [ ${#pids[@]} -gt 0 ] && kill -9 "${pids[@]}" 2>/dev/null
    wait 2>/dev/null
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT TERM HUP

boot() {
    rm -f "$share"/{started,status,output}
    : >"$share/output"
    printf '%s\n' "$1" >"$share/command"

    /usr/lib/qemu/virtiofsd --socket-path="$work/fs.sock" -o source="$share" \
        -o cache=auto -o sandbox=chroot >"$work/fs.log" 2>&1 &
    local fs=$!
    pids=($fs)
    for _ in $(seq 200); do
        [ -S "$work/fs.sock" ] && break
        sleep 0.02
    done

    timeout --foreground -k 5 "$seconds" qemu-system-x86_64 \
        -M q35 -accel tcg,thread=single -cpu max,-cx16,-la57 -smp 2 -m "$memory" \
        -nodefaults -no-user-config -no-reboot -nographic -monitor none -serial file:"$work/console" \
        -object memory-backend-memfd,id=mem,size="${memory}M",share=on -numa node,memdev=mem \
        -chardev socket,id=fs,path="$work/fs.sock" -device vhost-user-fs-pci,chardev=fs,tag=host,queue-size=1024 \
        -drive file="$image/root.img",if=none,id=root,format=raw,snapshot=on,cache=unsafe \
        -device nvme,serial=root,drive=root \
        -device isa-debug-exit,iobase=0x501,iosize=0x04 \
        -kernel "$image/vmlinuz" -append "console=ttyS0 root=/dev/nvme0n1 rootfstype=ext4 rw panic=-1 \
quiet loglevel=4 nokaslr tsc=reliable no_timer_check random.trust_cpu=on cryptomgr.notests audit=0 \
systemd.unified_cgroup_hierarchy=1 systemd.show_status=0" >"$work/qemu.log" 2>&1 </dev/null &
    local qemu=$!
    pids+=($qemu)
    tail -n +1 -s 0.2 -f --pid=$qemu "$share/output" &
    local tail=$!
    pids+=($tail)
    wait $qemu
    ended=$?
    wait $tail 2>/dev/null
    kill $fs 2>/dev/null
    wait $fs 2>/dev/null
    pids=()
}

for _ in 1 2 3; do
    boot "$1"
    [ -f "$share/status" ] && exit "$(cat "$share/status")"
    if [ "$ended" = 124 ]; then
        echo "vm: no end within $seconds s" >&2
        tail -n 20 "$work/console" >&2
        exit 124
    fi
    echo "vm: died (qemu ended with $ended); its last words:" >&2
    tail -n 20 "$work/console" "$work/qemu.log" >&2
    [ -f "$share/started" ] && exit 125
done
exit 125
