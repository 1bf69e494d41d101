package isolate

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
)

// randomJSON makes a JSON value with bytes in it and objects that look as if
// they were bytes, as they cross the border.
func randomJSON(r *rand.Rand, depth int) any {
	n := 10
	if depth == 0 {
		n = 5
	}
	switch r.IntN(n) {
	case 0:
		return nil
	case 1:
		return r.IntN(2) == 0
	case 2:
		return float64(r.IntN(1000)) / 8
	case 3:
		return []string{"", "$bytes", "ä😀\u0000", `{"$bytes":"AA=="}`}[r.IntN(4)]
	case 4:
		b := make([]byte, r.IntN(40))
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return map[string]any{"$bytes": base64.StdEncoding.EncodeToString(b)}
	case 5:
		key := []string{"$bytes", "$object"}[r.IntN(2)]
		return map[string]any{"$object": map[string]any{key: randomJSON(r, depth-1)}}
	case 6, 7:
		list := make([]any, r.IntN(4))
		for i := range list {
			list[i] = randomJSON(r, depth-1)
		}
		return list
	}
	object := map[string]any{}
	for range 2 + r.IntN(3) {
		object[[]string{"a", "$bytes", "$object", "b c", "__proto__", "toJSON"}[r.IntN(6)]] = randomJSON(r, depth-1)
	}
	if len(object) < 2 {
		object["x"], object["y"] = 1.0, 2.0
	}
	return object
}

// canonical sorts keys, as encoding/json does.
func canonical(t *testing.T, raw []byte) string {
	t.Helper()
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestEverythingComesBack: input, argument, answer and result hold the same,
// bytes included.
func TestEverythingComesBack(t *testing.T) {
	for language, src := range map[string]string{
		"js":           `export default async (input, env) => { const back = await env.X.echo(input); return { input, back }; }`,
		languagePython: "def main(input, env):\n    return {'input': input, 'back': env.X.echo(input)}\n",
	} {
		t.Run(language, func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 2))
			req := js(src)
			if language == languagePython {
				req = python(src)
			}
			req.Bindings = []Binding{{Name: "X", Methods: []string{"echo"}}}
			host := &fakeHost{call: func(_ context.Context, c Call) (json.RawMessage, error) {
				var args []json.RawMessage
				if err := json.Unmarshal(c.Args, &args); err != nil || len(args) != 1 {
					return nil, fmt.Errorf("arguments %s", c.Args)
				}
				return args[0], nil
			}}
			for range 150 {
				raw, err := json.Marshal(randomJSON(r, 4))
				if err != nil {
					t.Fatal(err)
				}
				req.Input = raw
				res := run1(t, newPool(t), req, host)
				if res.Error != nil {
					t.Fatalf("%s: %v %s", raw, res.Error, res.Error.Stack)
				}
				if want := canonical(t, fmt.Appendf(nil, `{"input":%s,"back":%[1]s}`, raw)); canonical(t, res.Value) != want {
					t.Fatalf("got  %s\nwant %s", canonical(t, res.Value), want)
				}
			}
		})
	}
}

func TestBytesInCode(t *testing.T) {
	pool := newPool(t)
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	input, err := json.Marshal(map[string]any{"b": map[string]any{"$bytes": base64.StdEncoding.EncodeToString(all)}, "o": map[string]any{"$object": map[string]any{"$bytes": "x"}}})
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct{ language, src, want string }{
		"js types": {"js", `export default ({ b, o }) => [b instanceof Uint8Array, b.length, b[255], o.$bytes, Object.keys(o)]`, `[true,256,255,"x",["$bytes"]]`},
		"js views": {"js", `export default ({ b }) => [b.buffer.slice(1, 3), b.subarray(4, 6), new DataView(b.buffer, 7, 2), new Uint8ClampedArray([300]), { b: new Uint8Array() }]`,
			`[{"$bytes":"AQI="},{"$bytes":"BAU="},{"$bytes":"Bwg="},{"$bytes":"/w=="},{"b":{"$bytes":""}}]`},
		"js undefined":     {"js", `export default () => ({ $bytes: "x", gone: undefined })`, `{"$object":{"$bytes":"x"}}`},
		"js broken":        {"js", `Uint8Array.prototype.toBase64 = Uint8Array.fromBase64 = String.prototype.includes = () => { throw 1 }; export default ({ b }) => b.subarray(0, 2)`, `{"$bytes":"AAE="}`},
		"js response":      {"js", `export default { fetch: () => new Response(new Uint8Array([255, 0])) }`, `{"status":200,"headers":[],"body":{"$bytes":"/wA="}}`},
		"js response text": {"js", `export default { fetch: () => new Response("ä", {headers: {a: "b"}}) }`, `{"status":200,"headers":[["a","b"],["content-type","text/plain;charset=UTF-8"]],"body":"ä"}`},
		"python types":     {languagePython, "def main(input, env):\n    b, o = input['b'], input['o']\n    return [type(b).__name__, len(b), b[255], o]", `["bytes",256,255,{"$object":{"$bytes":"x"}}]`},
		"python stdin":     {languagePython, "import sys\ndef main():\n    return sys.stdin.read()[:6]", `"{\"b\":{"`},
	} {
		t.Run(name, func(t *testing.T) {
			req := js(tt.src)
			if tt.language == languagePython {
				req = python(tt.src)
			}
			req.Input = input
			if res := run1(t, pool, req, nil); res.Error != nil || canonical(t, res.Value) != canonical(t, []byte(tt.want)) {
				t.Errorf("got %s %+v, want %s", res.Value, res.Error, tt.want)
			}
		})
	}
	t.Run("an input of bytes is standard input", func(t *testing.T) {
		req := python("import sys\ndata = sys.stdin.buffer.read()\nprint(len(data), data == bytes(range(256)))")
		req.Input = json.RawMessage(`{"$bytes":"` + base64.StdEncoding.EncodeToString(all) + `"}`)
		h := &fakeHost{}
		if res := run1(t, pool, req, h); res.Error != nil || !bytes.Contains([]byte(h.text()), []byte("256 True")) {
			t.Errorf("got %+v %s", res.Error, h.text())
		}
	})
	t.Run("an answer that is no base64", func(t *testing.T) {
		for _, req := range []*Request{js(`export default (i, env) => env.X.m()`), python("def main(input, env):\n    return env.X.m()")} {
			req.Bindings = []Binding{{Name: "X", Methods: []string{"m"}}}
			res := run1(t, pool, req, &fakeHost{call: func(context.Context, Call) (json.RawMessage, error) { return json.RawMessage(`{"$bytes":"?"}`), nil }})
			if res.Error == nil || !bytes.Contains([]byte(res.Error.Message), []byte("not base64")) {
				t.Errorf("got %s %+v", res.Value, res.Error)
			}
		}
	})
	t.Run("an input that is no base64", func(t *testing.T) {
		for in, field := range map[string]string{`{"a":[{"$bytes":"?"}]}`: "input.a[0].$bytes", `{"\u0024bytes":"AA"}`: "input.$bytes"} {
			req := js(`export default () => 1`)
			req.Input = json.RawMessage(in)
			var e *RequestError
			if _, err := pool.Run(context.Background(), req, &fakeHost{}); !errors.As(err, &e) || e.Field != field {
				t.Errorf("%s: got %v", in, err)
			}
		}
	})
}
