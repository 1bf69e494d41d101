// Tries what a jail must refuse, and prints "name result" lines. It is compiled
// inside the jail, by the jail's own compiler.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void say(const char *name, long ret) {
	printf("%s %s\n", name, ret >= 0 ? "ok" : strerrorname_np(errno));
	fflush(stdout);
}

#define TRY(name, call) do { errno = 0; say(name, (long)(call)); } while (0)

static void killed_by(const char *name, long nr, long a, long b) {
	fflush(stdout);
	pid_t pid = fork();
	if (pid == 0) {
		syscall(nr, a, b, 0, 0, 0, 0);
		_exit(0);
	}
	int status;
	waitpid(pid, &status, 0);
	printf("%s %s\n", name, WIFSIGNALED(status) ? "killed" : "lived");
}

int main(void) {
	struct clone_args ca = {.flags = CLONE_NEWUSER, .exit_signal = SIGCHLD};
	char buf[64];

	TRY("mount", syscall(SYS_mount, "none", "/tmp", "tmpfs", 0, 0));
	TRY("umount2", syscall(SYS_umount2, "/proc/sys", 0));
	TRY("pivot_root", syscall(SYS_pivot_root, ".", "."));
	TRY("chroot", syscall(SYS_chroot, "/tmp"));
	TRY("open_tree", syscall(428, AT_FDCWD, "/", 0));
	TRY("move_mount", syscall(429, AT_FDCWD, "/", AT_FDCWD, "/tmp", 0));
	TRY("fsopen", syscall(430, "tmpfs", 0));
	TRY("mount_setattr", syscall(442, AT_FDCWD, "/", 0, 0, 0));
	TRY("unshare-user", syscall(SYS_unshare, CLONE_NEWUSER));
	TRY("unshare-all", syscall(SYS_unshare, 0x7e020000));
	TRY("unshare-time", syscall(SYS_unshare, 0x80));
	TRY("setns", syscall(SYS_setns, 0, 0));
	TRY("clone-newuser", syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0));
	TRY("clone-newnet-high", syscall(SYS_clone, 0x100000000L | CLONE_NEWNET | SIGCHLD, 0, 0, 0, 0));
	TRY("clone3", syscall(SYS_clone3, &ca, sizeof ca));
	TRY("ptrace", syscall(SYS_ptrace, PTRACE_TRACEME, 0, 0, 0));
	TRY("ptrace-init", syscall(SYS_ptrace, PTRACE_ATTACH, 1, 0, 0));
	TRY("process_vm_readv", syscall(SYS_process_vm_readv, 1, 0, 0, 0, 0, 0));
	TRY("kcmp", syscall(SYS_kcmp, 1, 1, 0, 0, 0));
	TRY("pidfd_getfd", syscall(438, 0, 0, 0));
	TRY("kill-init", kill(1, SIGKILL));
	TRY("kill-init-probe", kill(1, 0));
	TRY("bpf", syscall(SYS_bpf, 0, 0, 0));
	TRY("perf_event_open", syscall(SYS_perf_event_open, 0, 0, 0, 0, 0));
	TRY("userfaultfd", syscall(SYS_userfaultfd, 0));
	TRY("fanotify_init", syscall(SYS_fanotify_init, 0, 0));
	TRY("open_by_handle_at", syscall(SYS_open_by_handle_at, 0, 0, 0));
	TRY("name_to_handle_at", syscall(SYS_name_to_handle_at, AT_FDCWD, "/", 0, 0, 0));
	TRY("syslog", syscall(SYS_syslog, 3, buf, 10));
	TRY("iopl", syscall(SYS_iopl, 3));
	TRY("sethostname", sethostname("x", 1));
	TRY("settimeofday", syscall(SYS_settimeofday, 0, 0));
	TRY("swapon", syscall(SYS_swapon, "/tmp/x", 0));
	TRY("quotactl", syscall(SYS_quotactl, 0, 0, 0, 0));
	TRY("acct", syscall(SYS_acct, "/tmp/x"));
	TRY("add_key", syscall(SYS_add_key, "user", "a", "b", 1, -2));
	TRY("keyctl", syscall(SYS_keyctl, 0, -3, 0, 0, 0));
	TRY("io_uring_setup", syscall(425, 1, 0));
	TRY("io_uring_enter", syscall(426, 0, 0, 0, 0, 0, 0));
	TRY("memfd_secret", syscall(447, 0));
	TRY("unknown-999", syscall(999));
	TRY("statmount", syscall(457, 0, 0, 0, 0));
	TRY("mknod-char", mknod("/tmp/c", S_IFCHR | 0666, 0x103));
	TRY("mknod-block", mknod("/workspace/b", S_IFBLK | 0666, 0x800));
	TRY("mkfifo", mkfifo("/tmp/fifo-probe", 0600));
	TRY("setuid-0", syscall(SYS_setresuid, 0, 0, 0));
	TRY("setgroups", syscall(SYS_setgroups, 0, 0));
	TRY("personality", syscall(SYS_personality, 0x0400000));
	TRY("personality-get", syscall(SYS_personality, 0xffffffff));
	TRY("prctl-set-mm", prctl(PR_SET_MM, 1, 0, 0, 0));
	TRY("seccomp-listener", syscall(SYS_seccomp, 1, 8, 0));
	TRY("socket-unix", socket(AF_UNIX, SOCK_STREAM, 0));
	TRY("socket-tcp", socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
	TRY("socket-udp", socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0));
	TRY("socket-raw", socket(AF_INET, SOCK_RAW, 1));
	TRY("socket-mptcp", socket(AF_INET, SOCK_STREAM, 262));
	TRY("socket-sctp", socket(AF_INET, SOCK_STREAM, 132));
	TRY("socket-packet", socket(AF_PACKET, SOCK_RAW, 0));
	TRY("socket-packet-high", syscall(SYS_socket, 0x100000011L, SOCK_RAW, 0));
	TRY("socket-alg", socket(38, SOCK_SEQPACKET, 0));
	TRY("socket-vsock", socket(40, SOCK_STREAM, 0));
	TRY("socket-rxrpc", socket(33, SOCK_DGRAM, 2));
	TRY("socket-route", socket(AF_NETLINK, SOCK_RAW, 0));
	TRY("socket-xfrm", socket(AF_NETLINK, SOCK_RAW, 6));
	TRY("socket-netfilter", socket(AF_NETLINK, SOCK_RAW, 12));
	TRY("tiocsti", ioctl(0, TIOCSTI, "x"));
	TRY("tiocsti-high", syscall(SYS_ioctl, 0, 0x100005412L, "x"));
	TRY("tioclinux", ioctl(0, TIOCLINUX, "\x02"));
	TRY("fionread", ioctl(0, FIONREAD, buf));
	TRY("write-usr", open("/usr/bin/evil", O_CREAT | O_WRONLY, 0755));
	TRY("chmod-usr", chmod("/usr/bin/env", 0777));
	TRY("write-etc", open("/etc/passwd", O_WRONLY));
	TRY("write-root", mkdir("/evil", 0755));
	TRY("read-shadow", open("/etc/shadow", O_RDONLY));
	TRY("proc-1-root", open("/proc/1/root", O_RDONLY));
	TRY("proc-1-exe", open("/proc/1/exe", O_RDONLY));
	TRY("proc-1-environ", open("/proc/1/environ", O_RDONLY));
	TRY("proc-kcore", (open("/proc/kcore", O_RDONLY) < 0 || read(3, buf, 1) == 0) ? -1 : 0);
	TRY("core_pattern", open("/proc/sys/kernel/core_pattern", O_WRONLY));
	TRY("ip_forward", open("/proc/sys/net/ipv4/ip_forward", O_WRONLY));
	TRY("max_user_namespaces", open("/proc/sys/user/max_user_namespaces", O_WRONLY));
	TRY("sys", open("/sys", O_RDONLY));
	TRY("dev-mem", open("/dev/mem", O_RDONLY));
	TRY("dev-kmsg", open("/dev/kmsg", O_RDONLY));
	TRY("dev-fuse", open("/dev/fuse", O_RDWR));
	TRY("dev-null", open("/dev/null", O_RDWR | O_TRUNC));
	TRY("dev-tty", open("/dev/tty", O_RDWR));
	TRY("hard-link-usr", link("/usr/bin/env", "/workspace/env"));
	killed_by("reboot", SYS_reboot, 0, 0);
	killed_by("init_module", SYS_init_module, 0, 0);
	killed_by("kexec_load", SYS_kexec_load, 0, 0);
	killed_by("x32-getpid", 0x40000000 | SYS_getpid, 0, 0);
	return 0;
}
