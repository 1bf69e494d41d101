package isolate

import (
	"encoding/json"
	"errors"
	"reflect"
	"testing"
	"time"
)

// fill gives every field that v holds a value of its own.
func fill(v reflect.Value, n *int) {
	*n++
	switch v.Interface().(type) {
	case time.Time:
		v.Set(reflect.ValueOf(time.Date(2026, 1, 1, 0, 0, *n, *n, time.UTC)))
		return
	case json.RawMessage:
		v.SetBytes([]byte(`{"a":"\u0001<&>"}`))
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); !f.IsExported() || f.Tag.Get("json") == "-" {
				continue // does not travel
			}
			fill(v.Field(i), n)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range 2 {
			key, e := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			fill(key, n)
			fill(e, n)
			v.SetMapIndex(key, e)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			fill(v.Index(i), n)
		}
	case reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i), n)
		}
	case reflect.String:
		v.SetString("text " + string(rune('0'+*n)) + "\xff\x00é")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(int64(-*n))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(*n))
	case reflect.Float64:
		v.SetFloat(float64(*n) / 3)
	default:
		panic("a field of kind " + v.Kind().String())
	}
}

// TestCodec: nothing is lost on the way, of whatever fields the messages have.
func TestCodec(t *testing.T) {
	t.Run("job", roundTrip[jobMessage])
	t.Run("result", roundTrip[Result])
	t.Run("code", roundTrip[codeMessage])
	t.Run("event", roundTrip[Event])
}

func roundTrip[T any](t *testing.T) {
	sent := new(T)
	n := 0
	fill(reflect.ValueOf(sent).Elem(), &n)
	for _, v := range []*T{sent, new(T)} {
		b, err := (&frame{kind: frameRun, run: 7}).encodeWith(v)
		if err != nil {
			t.Fatal(err)
		}
		f, err := decodeFrame(b, string(rune(frameRun)))
		if err != nil || f.run != 7 {
			t.Fatalf("%+v, %v", f, err)
		}
		got, err := decode[T](f.data)
		if err != nil || !reflect.DeepEqual(got, v) {
			t.Errorf("%+v came back as %+v, %v", v, got, err)
		}
	}
}

// FuzzDecode reads what a worker that was taken over may send.
func FuzzDecode(f *testing.F) {
	for _, v := range []any{Result{Status: StatusOK, Value: json.RawMessage("1")}, Result{Error: &Error{Line: 3}}, Event{Level: "info"}} {
		b, err := (&frame{}).encodeWith(v)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b[len((&frame{}).encode(nil)):])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := decode[Result](b); err != nil && !errors.Is(err, errFrame) {
			t.Error(err)
		}
		if _, err := decode[Event](b); err != nil && !errors.Is(err, errFrame) {
			t.Error(err)
		}
	})
}

// BenchmarkJob is a job there, with both ends' work.
func BenchmarkJob(b *testing.B) {
	r := js(trivial)
	r.Bindings = []Binding{{"DB", []string{"query"}}, {"KV", []string{"get", "put", "delete", "list"}}, {"LOG", []string{"debug", "info", "warn", "error"}}}
	job := &jobMessage{Request: r}
	b.ReportAllocs()
	for b.Loop() {
		text, err := (&frame{kind: frameRun}).encodeWith(job)
		if err != nil {
			b.Fatal(err)
		}
		f, err := decodeFrame(text, string(rune(frameRun)))
		if err != nil {
			b.Fatal(err)
		}
		if _, err := decode[jobMessage](f.data); err != nil {
			b.Fatal(err)
		}
	}
}

// TestValidJSON: an answer of ours is text for whoever reads it.
func TestValidJSON(t *testing.T) {
	for text, want := range map[string]bool{`"é\ud800"`: true, "{}": true, "\"\xff\"": false, "\"\xed\xa0\x80\"": false, "": false, "{": false} {
		if got := validJSON([]byte(text)); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}
