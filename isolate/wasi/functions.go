package wasi

import (
	"context"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
)

// Module is the name under which guests import the functions.
const Module = "wasi_snapshot_preview1"

// A Func is one function of WASI preview 1.
type Func struct {
	Name string
	// Params has i for an i32 and l for an i64. The result is an i32, the error
	// number, unless Void.
	Params string
	Void   bool
	call   func(s *System, a []uint64) Errno
}

// Functions are all of WASI preview 1.
var Functions = []Func{
	{"args_get", "ii", false, func(s *System, a []uint64) Errno { return s.list(s.Args, a[0], a[1]) }},
	{"args_sizes_get", "ii", false, func(s *System, a []uint64) Errno { return s.listSizes(s.Args, a[0], a[1]) }},
	{"environ_get", "ii", false, func(s *System, a []uint64) Errno { return s.list(s.Env, a[0], a[1]) }},
	{"environ_sizes_get", "ii", false, func(s *System, a []uint64) Errno { return s.listSizes(s.Env, a[0], a[1]) }},
	{"clock_res_get", "ii", false, func(s *System, a []uint64) Errno { return s.clockRes(a[0], a[1]) }},
	{"clock_time_get", "ili", false, func(s *System, a []uint64) Errno { return s.clockTime(a[0], a[2]) }},
	{"fd_advise", "illi", false, (*System).touch},
	{"fd_allocate", "ill", false, (*System).fdAllocate},
	{"fd_close", "i", false, (*System).fdClose},
	{"fd_datasync", "i", false, (*System).touch},
	{"fd_fdstat_get", "ii", false, (*System).fdStat},
	{"fd_fdstat_set_flags", "ii", false, (*System).fdStatSetFlags},
	{"fd_fdstat_set_rights", "ill", false, (*System).fdStatSetRights},
	{"fd_filestat_get", "ii", false, (*System).fileStat},
	{"fd_filestat_set_size", "il", false, (*System).fdSetSize},
	{"fd_filestat_set_times", "illi", false, (*System).fdSetTimes},
	{"fd_pread", "iiili", false, func(s *System, a []uint64) Errno { return s.positioned(a, rightRead) }},
	{"fd_prestat_get", "ii", false, (*System).prestatGet},
	{"fd_prestat_dir_name", "iii", false, (*System).prestatDirName},
	{"fd_pwrite", "iiili", false, func(s *System, a []uint64) Errno { return s.positioned(a, rightWrite) }},
	{"fd_read", "iiii", false, (*System).fdRead},
	{"fd_readdir", "iiili", false, (*System).fdReaddir},
	{"fd_renumber", "ii", false, (*System).fdRenumber},
	{"fd_seek", "ilii", false, (*System).fdSeek},
	{"fd_sync", "i", false, (*System).touch},
	{"fd_tell", "ii", false, (*System).fdTell},
	{"fd_write", "iiii", false, (*System).fdWrite},
	{"path_create_directory", "iii", false, (*System).pathCreateDirectory},
	{"path_filestat_get", "iiiii", false, (*System).pathStat},
	{"path_filestat_set_times", "iiiilli", false, (*System).pathSetTimes},
	{"path_link", "iiiiiii", false, (*System).pathLink},
	{"path_open", "iiiiillii", false, (*System).pathOpen},
	{"path_readlink", "iiiiii", false, (*System).pathReadlink},
	{"path_remove_directory", "iii", false, func(s *System, a []uint64) Errno { return s.remove(a, true) }},
	{"path_rename", "iiiiii", false, (*System).pathRename},
	{"path_symlink", "iiiii", false, (*System).pathSymlink},
	{"path_unlink_file", "iii", false, func(s *System, a []uint64) Errno { return s.remove(a, false) }},
	{"poll_oneoff", "iiii", false, (*System).pollOneoff},
	{"proc_exit", "i", true, func(s *System, a []uint64) Errno { s.Host.Exit(uint32(a[0])); return Success }},
	// A signal that ends a process is its status to a shell.
	{"proc_raise", "i", false, func(s *System, a []uint64) Errno { s.Host.Exit(128 + uint32(a[0])&0x7f); return Success }},
	{"sched_yield", "", false, func(*System, []uint64) Errno { return Success }},
	{"random_get", "ii", false, func(s *System, a []uint64) Errno { return s.random(a[0], a[1]) }},
	{"sock_accept", "iii", false, nosys},
	{"sock_recv", "iiiiii", false, nosys},
	{"sock_send", "iiiii", false, nosys},
	{"sock_shutdown", "ii", false, nosys},
}

func nosys(*System, []uint64) Errno { return Nosys }

// Export adds all functions to a host module. of finds the System of the call's
// context.
func Export(b wazero.HostModuleBuilder, of func(context.Context) *System) {
	for _, f := range Functions {
		f.export(b, of)
	}
}

func (f *Func) export(b wazero.HostModuleBuilder, of func(context.Context) *System) {
	params, results := f.types()
	call, kinds, void := f.call, f.Params, f.Void
	b.NewFunctionBuilder().WithGoModuleFunction(api.GoModuleFunc(func(ctx context.Context, _ api.Module, stack []uint64) {
		for i := range len(kinds) {
			if kinds[i] == 'i' {
				stack[i] &= 1<<32 - 1 // the upper half is undefined
			}
		}
		if errno := call(of(ctx), stack); !void {
			stack[0] = errno
		}
	}), params, results).Export(f.Name)
}

func (f *Func) types() (params, results []api.ValueType) {
	for _, p := range f.Params {
		if p == 'l' {
			params = append(params, api.ValueTypeI64)
		} else {
			params = append(params, api.ValueTypeI32)
		}
	}
	if !f.Void {
		results = []api.ValueType{api.ValueTypeI32}
	}
	return params, results
}
