package jail

import (
	"context"
	"errors"
	"io"
	"iter"
	"os"
	"regexp"

	"golang.org/x/sys/unix"
)

var errTodo = errors.New("jail: being built")

type Manager struct{}

func New(ctx context.Context, cfg Config) (*Manager, error)                 { return nil, errTodo }
func (m *Manager) Sweep(ctx context.Context) (int, error)                   { return 0, errTodo }
func (m *Manager) Create(ctx context.Context, spec Spec) (*Jail, error)     { return nil, errTodo }
func (m *Manager) Get(tenant string) (*Jail, bool)                          { return nil, false }
func (m *Manager) List() []*Jail                                            { return nil }
func (m *Manager) Close(ctx context.Context) error                          { return errTodo }
func (m *Manager) RemoveWorkspace(ctx context.Context, tenant string) error { return errTodo }

type Jail struct{}

func (j *Jail) Info() Info                                                { return Info{} }
func (j *Jail) Exec(ctx context.Context, spec ExecSpec) (*Process, error) { return nil, errTodo }
func (j *Jail) Process(id string) (*Process, bool)                        { return nil, false }
func (j *Jail) Processes() []ProcessInfo                                  { return nil }
func (j *Jail) Dial(ctx context.Context, port uint16) (*os.File, error)   { return nil, errTodo }
func (j *Jail) WaitPort(ctx context.Context, port uint16) error           { return errTodo }
func (j *Jail) ReadFile(ctx context.Context, path string, max int64) ([]byte, error) {
	return nil, errTodo
}
func (j *Jail) OpenFile(ctx context.Context, path string) (*os.File, FileInfo, error) {
	return nil, FileInfo{}, errTodo
}
func (j *Jail) WriteFile(ctx context.Context, path string, r io.Reader, mode uint32, max int64) (FileInfo, error) {
	return FileInfo{}, errTodo
}
func (j *Jail) List(ctx context.Context, path string, depth int) ([]FileInfo, error) {
	return nil, errTodo
}
func (j *Jail) Stat(ctx context.Context, path string) (FileInfo, error)       { return FileInfo{}, errTodo }
func (j *Jail) Mkdir(ctx context.Context, path string, mode uint32) error     { return errTodo }
func (j *Jail) Remove(ctx context.Context, path string, recursive bool) error { return errTodo }
func (j *Jail) Freeze(ctx context.Context) error                              { return errTodo }
func (j *Jail) Thaw(ctx context.Context) error                                { return errTodo }
func (j *Jail) Destroy(ctx context.Context, cause string) error               { return errTodo }
func (j *Jail) Done() <-chan struct{}                                         { return nil }

type Process struct{}

func (p *Process) Info() ProcessInfo { return ProcessInfo{} }
func (p *Process) Events(ctx context.Context, after uint64, follow bool) iter.Seq2[Event, error] {
	return nil
}
func (p *Process) Wait(ctx context.Context) (Exit, error)               { return Exit{}, errTodo }
func (p *Process) Signal(ctx context.Context, sig unix.Signal) error    { return errTodo }
func (p *Process) Kill(ctx context.Context) error                       { return errTodo }
func (p *Process) Stdin() io.WriteCloser                                { return nil }
func (p *Process) WaitLog(ctx context.Context, re *regexp.Regexp) error { return errTodo }
