package api

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

func document(t *testing.T) map[string]any {
	t.Helper()
	text, err := OpenAPI("test")
	if err != nil {
		t.Fatal(err)
	}
	var doc map[string]any
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	return doc
}

func TestOpenAPIHasEveryRoute(t *testing.T) {
	doc := document(t)
	paths := doc["paths"].(map[string]any)
	seen := map[string]bool{}
	for _, r := range Routes {
		if seen[r.Name] {
			t.Errorf("two routes are named %s", r.Name)
		}
		seen[r.Name] = true
		item, ok := paths[strings.ReplaceAll(r.Pattern, "...}", "}")].(map[string]any)
		if !ok {
			t.Errorf("the path of %s is missing", r.Name)
			continue
		}
		op, ok := item[strings.ToLower(r.Method)].(map[string]any)
		if !ok || op["operationId"] != r.Name {
			t.Errorf("%s is missing", r.Name)
			continue
		}
		if _, has := op["requestBody"]; has != (r.Request != nil || r.RawRequest != "") {
			t.Errorf("%s: request body is described: %v", r.Name, has)
		}
		if r.Tenant != strings.Contains(r.Pattern, "{tenant}") {
			t.Errorf("%s: a route with a tenant in its path must be checked for it, and only such", r.Name)
		}
	}
}

// TestOpenAPIHasEveryType: each exported struct of this package that crosses
// the socket is a component.
func TestOpenAPIHasEveryType(t *testing.T) {
	schemas := document(t)["components"].(map[string]any)["schemas"].(map[string]any)
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	internal := map[string]bool{"Route": true, "Query": true}
	n := 0
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			g, ok := decl.(*ast.GenDecl)
			if !ok || g.Tok != token.TYPE {
				continue
			}
			for _, spec := range g.Specs {
				name := spec.(*ast.TypeSpec).Name.Name
				if _, isStruct := spec.(*ast.TypeSpec).Type.(*ast.StructType); !isStruct || !ast.IsExported(name) || internal[name] {
					continue
				}
				n++
				if schemas[name] == nil {
					t.Errorf("%s is missing from the document", name)
				}
			}
		}
	}
	if n < 40 {
		t.Errorf("only %d types were found", n)
	}
}

// TestOpenAPIReferencesResolve follows every $ref.
func TestOpenAPIReferencesResolve(t *testing.T) {
	doc := document(t)
	schemas := doc["components"].(map[string]any)["schemas"].(map[string]any)
	var walk func(v any)
	walk = func(v any) {
		switch x := v.(type) {
		case map[string]any:
			if ref, ok := x["$ref"].(string); ok && schemas[strings.TrimPrefix(ref, "#/components/schemas/")] == nil {
				t.Errorf("%s leads nowhere", ref)
			}
			for _, y := range x {
				walk(y)
			}
		case []any:
			for _, y := range x {
				walk(y)
			}
		}
	}
	walk(doc)
	run := schemas["RunRequest"].(map[string]any)
	if run["additionalProperties"] != false || !strings.Contains(toText(run["required"]), "language") {
		t.Errorf("RunRequest is described as %s", toText(run))
	}
	if e := toText(run["properties"].(map[string]any)["language"]); !strings.Contains(e, `"enum":["js","ts","python","wasm","shell"]`) {
		t.Errorf("language is described as %s", e)
	}
}

func toText(v any) string {
	b, _ := json.Marshal(v)
	return string(b)
}
