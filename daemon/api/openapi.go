package api

import (
	"encoding/json"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"

	"sandboxd/policy"
)

type object = map[string]any

// OpenAPI returns the OpenAPI 3.1 document, made from Routes and the types they
// name.
func OpenAPI(version string) ([]byte, error) {
	g := &generator{schemas: object{}}
	paths := object{}
	for _, r := range Routes {
		p := strings.ReplaceAll(r.Pattern, "...}", "}")
		item, ok := paths[p].(object)
		if !ok {
			item = object{}
			paths[p] = item
		}
		item[strings.ToLower(r.Method)] = g.operation(r)
	}
	g.schema(typeOf[ErrorBody]())
	g.schema(typeOf[TerminalControl]())
	return json.MarshalIndent(object{
		"openapi": "3.1.0",
		"info": object{"title": "sandboxd", "version": version,
			"description": "HTTP over the Unix sockets api.sock and admin.sock. The caller is who the kernel says it is."},
		"paths":      paths,
		"components": object{"schemas": g.schemas},
	}, "", " ")
}

// generator collects the schemas of named types.
type generator struct{ schemas object }

var pathParam = regexp.MustCompile(`\{([a-z]+)(?:\.\.\.)?\}`)

func (g *generator) operation(r Route) object {
	op := object{"operationId": r.Name, "summary": r.Summary}
	var params []any
	for _, m := range pathParam.FindAllStringSubmatch(r.Pattern, -1) {
		schema := object{"type": "string"}
		if m[1] == "tenant" {
			schema["pattern"] = TenantPattern
		}
		params = append(params, object{"name": m[1], "in": "path", "required": true, "schema": schema})
	}
	for _, q := range r.Query {
		params = append(params, object{"name": q.Name, "in": "query", "description": q.Doc, "schema": querySchema(q.Type)})
	}
	if params != nil {
		op["parameters"] = params
	}
	if r.Request != nil {
		op["requestBody"] = object{"content": object{"application/json": object{"schema": g.schema(r.Request)}}}
	} else if r.RawRequest != "" {
		op["requestBody"] = object{"content": object{r.RawRequest: object{}}}
	}
	content := object{}
	if r.Response != nil {
		content["application/json"] = object{"schema": g.schema(r.Response)}
	}
	if r.RawResponse != "" {
		content[r.RawResponse] = object{}
	}
	if r.Stream {
		content["application/x-ndjson"] = object{"schema": g.schema(typeOf[Event]())}
	}
	status := r.Status
	if status == 0 {
		status = 200
	}
	success := object{"description": "done"}
	if len(content) > 0 {
		success["content"] = content
	}
	op["responses"] = object{
		strconv.Itoa(status): success,
		"default": object{"description": "error, status by its code",
			"content": object{"application/json": object{"schema": g.schema(typeOf[ErrorBody]())}}},
	}
	if r.Admin {
		op["description"] = "For administrators only."
	}
	return op
}

// TenantPattern is the form of a tenant's name.
const TenantPattern = `^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$`

func querySchema(kind string) object {
	switch kind {
	case "time":
		return object{"type": "string", "format": "date-time"}
	case "duration":
		return object{"type": "string"}
	default:
		return object{"type": kind}
	}
}

var (
	durationType = typeOf[policy.Duration]()
	sizeType     = typeOf[policy.Size]()
	methodsType  = typeOf[Methods]()
)

// schema describes t; named structs become components.
func (g *generator) schema(t reflect.Type) object {
	switch t {
	case rawType:
		return object{}
	case timeType:
		return object{"type": "string", "format": "date-time"}
	case durationType:
		return object{"type": "string", "description": "Go duration such as 1.5s.", "examples": []any{(1500 * time.Millisecond).String()}}
	case sizeType:
		return object{"type": []any{"integer", "string"}, "description": "Bytes, or a string such as 64MiB."}
	case methodsType:
		g.schemas[t.Name()] = object{"oneOf": []any{
			object{"type": "array", "items": object{"type": "string"}, "maxItems": maxMethods},
			object{"type": "object", "additionalProperties": g.schema(typeOf[MethodRequest]()), "maxProperties": maxMethods},
		}}
		return object{"$ref": "#/components/schemas/" + t.Name()}
	}
	if t.Kind() != reflect.Pointer && reflect.PointerTo(t).Implements(textUn) {
		return object{"type": "string"}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return g.schema(t.Elem())
	case reflect.Struct:
		return g.component(t)
	case reflect.Map:
		return object{"type": "object", "additionalProperties": g.schema(t.Elem())}
	case reflect.Slice:
		return object{"type": "array", "items": g.schema(t.Elem())}
	case reflect.String:
		return object{"type": "string"}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Float64:
		return object{"type": "number"}
	case reflect.Interface:
		return object{}
	default:
		s := object{"type": "integer"}
		if t.Kind() >= reflect.Uint && t.Kind() <= reflect.Uint64 {
			s["minimum"] = 0
		}
		return s
	}
}

func (g *generator) component(t reflect.Type) object {
	ref := object{"$ref": "#/components/schemas/" + t.Name()}
	if _, done := g.schemas[t.Name()]; done {
		return ref
	}
	s := object{"type": "object", "additionalProperties": false}
	g.schemas[t.Name()] = s
	properties := object{}
	var required []any
	for _, name := range infoOf(t).names {
		f := t.Field(infoOf(t).fields[name].index)
		b := boundsOf(f.Tag)
		p := g.schema(f.Type)
		applyBounds(p, f.Type, b)
		if d := f.Tag.Get("doc"); d != "" {
			p["description"] = d
		}
		if f.Type.Kind() == reflect.Pointer && p["$ref"] != nil {
			p = object{"anyOf": []any{object{"$ref": p["$ref"]}, object{"type": "null"}}, "description": p["description"]}
			if p["description"] == nil {
				delete(p, "description")
			}
		}
		properties[name] = p
		if b.required {
			required = append(required, name)
		}
	}
	s["properties"] = properties
	if required != nil {
		s["required"] = required
	}
	return ref
}

func applyBounds(p object, t reflect.Type, b bounds) {
	target, low, high := p, "minimum", "maximum"
	switch t.Kind() {
	case reflect.String:
		low, high = "minLength", "maxLength"
	case reflect.Slice:
		low, high = "minItems", "maxItems"
		if b.enum != nil {
			target = p["items"].(object)
		}
	case reflect.Map:
		low, high = "minProperties", "maxProperties"
	}
	if b.enum != nil {
		target["enum"] = b.enum
	}
	if b.min != nil {
		p[low] = *b.min
	}
	if b.max != nil {
		p[high] = *b.max
	}
}
