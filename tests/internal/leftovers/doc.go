// Package leftovers takes an inventory of what sandboxd may leave on a machine:
// processes, mounts, network namespaces, veth links, cgroups, loop devices and
// temporary files. The demo and the whole-system suites compare one taken
// before with one taken after. It only reads; it never cleans up, so that a
// leak cannot hide behind it.
package leftovers
