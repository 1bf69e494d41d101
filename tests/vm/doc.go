// Package vm holds what needs a whole machine with systemd as its first process
// and the cgroup v2 controllers: the installed units, and the limits that a
// kernel really enforces. Its tests, and those of tests/e2e, run inside a small
// Debian that test.sh builds (image/), boots under QEMU without KVM (run.sh) and
// throws away; `make vm-test` calls it. Emulation is some fifteen times slower
// than the machine it runs on, so waiting times are scaled
// (SANDBOXD_TEST_SCALE), and the tests of tests/e2e that do nothing but compute
// for long run outside alone (SKIP in test.sh).
package vm
