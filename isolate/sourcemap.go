package isolate

import (
	"encoding/json"
	"errors"
	"sort"
	"strings"
)

// A sourceMap maps positions in generated code to one source. It is decoded
// when it is first asked.
type sourceMap struct {
	mappings string
	lines    [][]segment
}

// A segment maps a generated column (from 0) to a line and column (from 0).
type segment struct{ column, line, source int }

func parseSourceMap(b []byte) (*sourceMap, error) {
	var m struct {
		Mappings string `json:"mappings"`
	}
	if err := json.Unmarshal(b, &m); err != nil {
		return nil, err
	}
	return &sourceMap{mappings: m.Mappings}, nil
}

// find maps a line and column, both from 1. What no segment covers stays.
func (m *sourceMap) find(line, column int) (int, int) {
	if m.lines == nil {
		m.lines = decodeMappings(m.mappings)
	}
	if line < 1 || line > len(m.lines) {
		return line, column
	}
	segments := m.lines[line-1]
	i := sort.Search(len(segments), func(i int) bool { return segments[i].column > column-1 })
	if i == 0 {
		if len(segments) == 0 {
			return line, column
		}
		i = 1
	}
	s := segments[i-1]
	return s.line + 1, s.source + 1
}

// decodeMappings reads the "mappings" of a version 3 source map with one
// source. It stops at the first thing that is not as it should be.
func decodeMappings(text string) [][]segment {
	lines := [][]segment{}
	var source, line, column int
	for _, group := range strings.Split(text, ";") {
		var segments []segment
		generated := 0
		for _, item := range strings.Split(group, ",") {
			if item == "" {
				continue
			}
			fields, err := decodeVLQ(item)
			if err != nil || len(fields) == 0 {
				return lines
			}
			generated += fields[0]
			if len(fields) < 4 {
				continue
			}
			source += fields[1]
			line += fields[2]
			column += fields[3]
			segments = append(segments, segment{column: generated, line: line, source: column})
		}
		lines = append(lines, segments)
	}
	return lines
}

var errVLQ = errors.New("not a base 64 VLQ")

const base64Digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

func decodeVLQ(s string) ([]int, error) {
	var out []int
	value, shift := 0, 0
	for i := range len(s) {
		d := strings.IndexByte(base64Digits, s[i])
		if d < 0 || shift > 30 {
			return nil, errVLQ
		}
		value |= (d & 31) << shift
		if d&32 != 0 {
			shift += 5
			continue
		}
		if value&1 != 0 {
			out = append(out, -(value >> 1))
		} else {
			out = append(out, value>>1)
		}
		value, shift = 0, 0
	}
	if shift != 0 {
		return nil, errVLQ
	}
	return out, nil
}
