package main

// int80 makes a system call of the 32-bit ABI.
func int80(nr uint32) uint32
