package isolate

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
)

// Binary data is {"$bytes": "base64"} in every JSON that crosses the isolate's
// border, in both directions: the code sees Uint8Array or bytes. An object of
// the code's own with exactly the one key $bytes or $object crosses inside
// {"$object": …}, so that it comes back as what it was.
const (
	bytesKey  = "$bytes"
	objectKey = "$object"
)

// checkBytes says where in raw, which is JSON, "$bytes" are not base64; "" if
// nowhere.
func checkBytes(raw json.RawMessage, path string) (where string, err error) {
	// An escaped dollar sign is the other way to write one.
	if !bytes.Contains(raw, []byte(bytesKey)) && !bytes.Contains(raw, []byte(`\u0024`)) {
		return "", nil
	}
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		return path, err
	}
	return badBytes(v, path)
}

func badBytes(v any, path string) (string, error) {
	switch v := v.(type) {
	case []any:
		for i, e := range v {
			if at, err := badBytes(e, fmt.Sprintf("%s[%d]", path, i)); err != nil {
				return at, err
			}
		}
	case map[string]any:
		if text, ok := v[bytesKey].(string); ok && len(v) == 1 {
			_, err := base64.StdEncoding.Strict().DecodeString(text)
			return path + "." + bytesKey, err
		}
		if inner, ok := v[objectKey].(map[string]any); ok && len(v) == 1 {
			v, path = inner, path+"."+objectKey // it is what it looks like
		}
		for k, e := range v {
			if at, err := badBytes(e, path+"."+cut(k, 64)); err != nil {
				return at, err
			}
		}
	}
	return "", nil
}
