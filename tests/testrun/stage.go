package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// A result is what one command of a stage came to.
type result struct {
	Stage   string        `json:"stage"`
	Name    string        `json:"name,omitempty"`
	Where   string        `json:"where,omitempty"`
	Passed  int           `json:"passed"`
	Failed  []string      `json:"failed,omitempty"`
	Skipped []string      `json:"skipped,omitempty"`
	Elapsed time.Duration `json:"elapsed"`
}

type stage struct {
	result  result
	argv    []string
	dir     string
	events  bool
	timeout time.Duration
}

// execute runs the command, shows and counts its results, and writes them down
// whatever happened.
func (s *stage) execute(ctx context.Context) error {
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return err
	}
	start := time.Now()
	err := s.command(ctx)
	s.result.Elapsed = time.Since(start)
	switch {
	case !s.events && err == nil:
		s.result.Passed++
		fmt.Printf("ok    %s\n", s.label())
	case !s.events || err != nil && len(s.result.Failed) == 0:
		s.fail(fmt.Sprintf("%s: %v", s.label(), err))
	case s.result.Passed+len(s.result.Failed) == 0:
		s.fail(s.label() + ": ran no test")
	}
	b, merr := json.Marshal(s.result)
	if merr != nil {
		return merr
	}
	if werr := os.WriteFile(s.file(".json"), b, 0o644); werr != nil {
		return werr
	}
	if len(s.result.Failed) > 0 {
		return errFailed
	}
	return nil
}

func (s *stage) label() string {
	if s.result.Name == "" {
		return s.result.Stage
	}
	return s.result.Stage + "/" + s.result.Name
}

func (s *stage) file(suffix string) string {
	return filepath.Join(s.dir, strings.NewReplacer("/", "-", " ", "-").Replace(s.label())+suffix)
}

func (s *stage) fail(what string) {
	s.result.Failed = append(s.result.Failed, what)
	fmt.Printf("FAIL  %s\n", what)
}

// command runs the stage's command in a process group of its own, so that a
// time-out or an interrupt reaches everything it started.
func (s *stage) command(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, s.timeout, fmt.Errorf("took longer than %v", s.timeout))
	defer cancel()
	cmd := exec.CommandContext(ctx, s.argv[0], s.argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second // time for the command's own clean-up
	cmd.Stderr = os.Stderr
	if !s.events {
		cmd.Stdout = os.Stdout
		return s.finish(ctx, cmd, cmd.Run())
	}
	pipe, writer := io.Pipe()
	cmd.Stdout = writer
	read := make(chan error, 1)
	go func() {
		err := s.read(pipe)
		pipe.CloseWithError(err)
		read <- err
	}()
	err := s.finish(ctx, cmd, cmd.Run())
	writer.Close()
	return errors.Join(err, <-read)
}

// finish ends what is left of the command's process group and says why it ended.
func (s *stage) finish(ctx context.Context, cmd *exec.Cmd, err error) error {
	if cmd.Process != nil {
		// ESRCH, nothing left, is the usual answer.
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	return err
}

// read counts the events on r until its end. The whole text goes to a file
// beside the results.
func (s *stage) read(r io.Reader) error {
	log, err := os.Create(s.file(".log"))
	if err != nil {
		return err
	}
	defer log.Close()
	tests := newTally(&s.result, log, os.Stdout)
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			tests.line(line)
		}
		if errors.Is(err, io.EOF) {
			tests.close()
			return nil
		}
		if err != nil {
			return err
		}
	}
}
