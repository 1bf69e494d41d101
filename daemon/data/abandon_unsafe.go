package data

import (
	"errors"
	"fmt"
	"reflect"
	"unsafe"

	"github.com/ncruces/go-sqlite3"
)

// abandon frees the memory and the files of a connection inside which SQLite
// can no longer run. Conn.Close first calls SQLite's own close, which would
// panic again; without a handle it goes straight to what we need. The field is
// not exported: TestAbandon fails if it should change.
func abandon(db *sqlite3.Conn) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("data: %v", p)
		}
	}()
	handle := reflect.ValueOf(db).Elem().FieldByName("handle")
	if !handle.IsValid() || handle.Kind() != reflect.Uint32 {
		return errors.New("data: sqlite3.Conn has no handle of the expected kind")
	}
	*(*uint32)(unsafe.Pointer(handle.UnsafeAddr())) = 0
	return db.Close()
}
