package isolate

import (
	"context"
	"testing"
	"time"
)

func TestPhases(t *testing.T) {
	e, err := loadEngine(context.Background(), guestDir, testCache)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	t.Logf("%+v", e.Stats())
	r := js(trivial)
	h := &fakeHost{}
	var get, ex, put time.Duration
	const n = 2000
	for range n {
		t0 := time.Now()
		vm, err := e.Get(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		t1 := time.Now()
		execute(context.Background(), vm, &jobMessage{Request: r}, h)
		t2 := time.Now()
		e.Put(vm)
		t3 := time.Now()
		get += t1.Sub(t0)
		ex += t2.Sub(t1)
		put += t3.Sub(t2)
	}
	t.Logf("get %v execute %v put %v", get/n, ex/n, put/n)
}
