// ---- JSON with a word about what it cannot hold ----

function toJSON(value, name = 'result') {
  const json = stringify(checked(value, '', name, []));
  return json === undefined ? 'null' : json;
}

function checked(value, path, name, above) {
  switch (typeof value) {
    case 'function': refuse(name, path, 'is a function');
    case 'symbol': refuse(name, path, 'is a symbol');
    case 'bigint': refuse(name, path, 'is a BigInt', 'use Number(…) or a string');
    case 'object': break;
    default: return value;
  }
  if (value === null) return value;
  if (typeof value.toJSON === 'function') return checked(value.toJSON(''), path, name, above);
  if (includes(above, value)) refuse(name, path, 'is one of the objects that hold it (a cycle)');
  if (value instanceof NativePromise) refuse(name, path, 'is a promise', 'await it');
  if (value instanceof Map || value instanceof Set) refuse(name, path, 'is a ' + (value instanceof Map ? 'Map' : 'Set'), 'use Object.fromEntries(…) or Array.from(…)');
  if (isView(value) || value instanceof ArrayBuffer) refuse(name, path, 'is binary', 'use Array.from(…) or new Uint8Array(…).toBase64()');
  if (value instanceof Error) return { name: toText(value.name), message: toText(value.message) };
  if (value instanceof Number || value instanceof String || value instanceof Boolean) return value.valueOf();
  if (above.length > 500) refuse(name, path, 'is nested too deeply');
  push(above, value);
  let out;
  if (isArray(value)) {
    out = [];
    for (let i = 0; i < value.length; i++) push(out, checked(value[i], `${path}[${i}]`, name, above));
  } else {
    out = create(null);
    const names = keys(value);
    for (let i = 0; i < names.length; i++) {
      const key = names[i];
      out[key] = checked(value[key], testRegExp(/^[A-Za-z_$][\w$]*$/, key) ? `${path}.${key}` : `${path}[${stringify(key)}]`, name, above);
    }
  }
  above.length--;
  return out;
}

function refuse(name, path, what, hint) {
  throw new TypeError(`${name}${path} ${what}: only JSON values can leave the isolate${hint ? '; ' + hint : ''}`);
}
