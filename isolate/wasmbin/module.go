package wasmbin

import "errors"

type module struct{ info *Info }

func decode(wasm []byte) (*module, error) { return nil, errors.New("TODO") }

func (m *module) rewrite(o Options) ([]byte, *Info, error) { return nil, nil, errors.New("TODO") }
