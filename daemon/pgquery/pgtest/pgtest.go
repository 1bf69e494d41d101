package pgtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// What a server is set up with.
const (
	// Port is part of the socket's name.
	Port = 5432
	// User is the system's user that the server runs as.
	User = "postgres"
	// Role is what root may connect as, to Database: peer authentication.
	Role     = "sandbox"
	Database = "shop"
	// PasswordRole must give a password.
	PasswordRole = "withpassword"
)

// A Server is a running PostgreSQL.
type Server struct {
	// Socket is the folder of its socket.
	Socket string
	// UID is that of User.
	UID uint32

	dir, bin string
	cred     *syscall.Credential
	cmd      *exec.Cmd
	log      bytes.Buffer
	ended    chan struct{}
}

// Start starts a server and runs setup, SQL, in Database as its superuser.
func Start(ctx context.Context, setup string) (_ *Server, err error) {
	s := &Server{ended: make(chan struct{})}
	if s.bin, err = programs(); err != nil {
		return nil, err
	}
	u, err := user.Lookup(User)
	if err != nil {
		return nil, fmt.Errorf("postgres: %w (Debian's package postgresql makes it)", err)
	}
	uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	s.UID, s.cred = uint32(uid), &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	if s.dir, err = os.MkdirTemp("", "sandboxd-postgres-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Stop())
		}
	}()
	s.Socket = s.dir
	if err := os.Chown(s.dir, int(uid), int(gid)); err != nil {
		return nil, err
	}
	if err := s.init(ctx); err != nil {
		return nil, err
	}
	if err := s.start(ctx); err != nil {
		return nil, err
	}
	roles := fmt.Sprintf("create role %s login; create role %s login; create database %s;", Role, PasswordRole, Database)
	for _, step := range []struct{ database, sql string }{{"postgres", roles}, {Database, setup}} {
		if err := s.psql(ctx, step.database, step.sql); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// programs is the folder of the newest PostgreSQL that is installed.
func programs() (string, error) {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err != nil || len(found) == 0 {
		return "", errors.Join(errors.New("postgres: there is no initdb below /usr/lib/postgresql; tests/tools/deps.sh installs it"), err)
	}
	slices.Sort(found)
	return filepath.Dir(found[len(found)-1]), nil
}

func (s *Server) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(s.bin, name), args...)
	cmd.Dir, cmd.Env = s.dir, []string{"PATH=/usr/bin:/bin", "LC_ALL=C.UTF-8"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.cred}
	return cmd
}

func (s *Server) init(ctx context.Context) error {
	data := filepath.Join(s.dir, "data")
	if out, err := s.command(ctx, "initdb", "-D", data, "-A", "peer", "-U", User, "-E", "UTF8", "--locale=C", "-N").CombinedOutput(); err != nil {
		return fmt.Errorf("postgres: initdb: %w: %s", err, out)
	}
	for name, text := range map[string]string{
		"pg_hba.conf":   "local all " + PasswordRole + " scram-sha-256\nlocal all all peer map=m\n",
		"pg_ident.conf": "m root " + Role + "\nm " + User + " " + User + "\n",
		"postgresql.conf": "listen_addresses = ''\nunix_socket_directories = '" + s.dir + "'\nport = " + strconv.Itoa(Port) +
			"\nfsync = off\nshared_buffers = 16MB\nmax_connections = 20\nautovacuum = off\n",
	} {
		if err := os.WriteFile(filepath.Join(data, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// start starts the server, which ends with the thread that started it.
func (s *Server) start(ctx context.Context) error {
	s.cmd = s.command(context.WithoutCancel(ctx), "postgres", "-D", filepath.Join(s.dir, "data"))
	s.cmd.Stdout, s.cmd.Stderr = &s.log, &s.log
	s.cmd.SysProcAttr.Pdeathsig = syscall.SIGQUIT
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := s.cmd.Start()
		started <- err
		if err == nil {
			_ = s.cmd.Wait()
		}
		close(s.ended)
	}()
	if err := <-started; err != nil {
		return err
	}
	for {
		if s.command(ctx, "pg_isready", "-q", "-h", s.dir).Run() == nil {
			return nil
		}
		select {
		case <-s.ended:
			return fmt.Errorf("postgres: it ended: %s", s.log.String())
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond): // it tells nobody when it is ready
		}
	}
}

// Exec runs SQL in Database as the superuser.
func (s *Server) Exec(ctx context.Context, sql string) error { return s.psql(ctx, Database, sql) }

func (s *Server) psql(ctx context.Context, database, sql string) error {
	cmd := s.command(ctx, "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-h", s.dir, "-U", User, "-d", database)
	cmd.Stdin = strings.NewReader(sql)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("postgres: psql: %w: %s", err, out)
	}
	return nil
}

// Stop ends the server and removes everything of it.
func (s *Server) Stop() error {
	if s.cmd != nil && s.cmd.Process != nil {
		_ = s.cmd.Process.Signal(syscall.SIGQUIT)
		<-s.ended
	}
	return os.RemoveAll(s.dir)
}
