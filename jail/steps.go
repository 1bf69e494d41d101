package jail

import (
	"errors"

	"sandboxd/jail/sys"
)

// A step is a part of the start sequence, by the name that errors have.
type step struct {
	name string
	do   func() error
}

// do does one step after the other until one fails; after is called after each
// of them, also the one that failed.
func (m *Manager) do(steps []step, after func()) error {
	for _, s := range steps {
		err := m.fault(s.name)
		if err == nil {
			err = s.do()
		}
		if after != nil {
			after()
		}
		if err != nil {
			return named(s.name, err)
		}
	}
	return nil
}

// fault lets a test of this package make a step fail; nobody else can set
// m.faults.
func (m *Manager) fault(name string) error {
	if f := m.faults.Load(); f != nil {
		return (*f)(name)
	}
	return nil
}

// named makes a *StartError of what a step returned, except where the error says
// itself what is wrong.
func named(step string, err error) error {
	var start *StartError
	var lacks *UnsupportedError
	var spec *SpecError
	var check *SelfCheckError
	var root *RootError
	if errors.As(err, &start) || errors.As(err, &lacks) || errors.As(err, &spec) || errors.As(err, &check) || errors.As(err, &root) || errors.Is(err, ErrGone) {
		return err
	}
	e := &StartError{Step: step, Text: err.Error()}
	var child *sys.StepError
	if errors.As(err, &child) {
		e.Step, e.Errno, e.Text = child.Step, child.Errno, ""
		return e
	}
	errors.As(err, &e.Errno)
	return e
}
