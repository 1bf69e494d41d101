package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "testrun:", err)
		stop()
		os.Exit(1)
	}
}

var errUsage = errors.New("usage: testrun run|check|summary …, see doc.go")

// errFailed is returned when everything worked but tests failed.
var errFailed = errors.New("there were failures")

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errUsage
	}
	fs := flag.NewFlagSet(args[0], flag.ContinueOnError)
	out := fs.String("out", "", "folder of the results")
	switch args[0] {
	case "summary":
		if err := fs.Parse(args[1:]); err != nil {
			return err
		}
		if *out == "" || fs.NArg() == 0 {
			return errUsage
		}
		return summarise(os.Stdout, *out, fs.Args())
	case "run", "check":
		s := stage{}
		fs.StringVar(&s.result.Stage, "stage", "", "name of the stage")
		fs.StringVar(&s.result.Name, "name", "", "name of this part of the stage")
		fs.StringVar(&s.result.Where, "where", "", "where it runs, for the summary")
		fs.DurationVar(&s.timeout, "timeout", 30*time.Minute, "time for the command")
		if err := fs.Parse(args[1:]); err != nil {
			return err
		}
		if *out == "" || s.result.Stage == "" || fs.NArg() == 0 {
			return errUsage
		}
		s.argv, s.dir, s.events = fs.Args(), *out, args[0] == "run"
		return s.execute(ctx)
	}
	return errUsage
}
