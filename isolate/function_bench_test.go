package isolate

import (
	"strings"
	"testing"
)

const (
	bigTableJS = `const table = new Map();
for (let i = 0; i < 20000; i++) table.set('key' + i, { id: i, name: 'name ' + i });
export default (input) => table.size;`
	bigTablePython = "import json, re, dataclasses\ntable = {f'key{i}': (i, f'name {i}') for i in range(20000)}\npattern = re.compile(r'(a|b)+c')\ndef main(input, env):\n    return len(table)\n"
)

// importsPython is a source whose compilation is most of a call.
var importsPython = "import decimal, statistics\n" + strings.Repeat("def f(x):\n    return [i * x for i in range(10) if i % 2]\n", 200) + "def main(input, env):\n    return 1\n"

func benchFunction(b *testing.B, p Pool, f *Function) {
	if s := deploy(b, p, f); !s.Snapshot {
		b.Fatalf("%+v", s)
	} else {
		b.ReportMetric(float64(s.Bytes)/1024, "KiB")
	}
	benchRuns(b, p, callOf(f, "1"))
}

// BenchmarkFunction compares a call of a deployed function with a run of the
// same code.
func BenchmarkFunction(b *testing.B) {
	for _, c := range []struct{ name, language, src string }{
		{"trivial", "js", trivial}, {"table", "js", bigTableJS},
		{"trivial", "python", "def main(input, env):\n    return input\n"}, {"table", "python", bigTablePython}, {"source", "python", importsPython},
	} {
		main := "main.js"
		if c.language == languagePython {
			main = "main.py"
		}
		b.Run(c.language+"/"+c.name+"/run", func(b *testing.B) {
			benchRuns(b, newWorkers(b, 1), &Request{Tenant: "alice", Language: c.language, Main: main, Modules: map[string]string{main: c.src}, Limits: testLimits})
		})
		b.Run(c.language+"/"+c.name+"/function", func(b *testing.B) {
			benchFunction(b, newWorkers(b, 1), function(b, "alice", c.language, main, c.src))
		})
	}
}
