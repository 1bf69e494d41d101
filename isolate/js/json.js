// ---- JSON with a word about what it cannot hold ----
//
// Binary data crosses as {"$bytes": "base64"}; an object of the code's own that
// looks like that, or like this, is put into {"$object": …}.

const toBase64 = uncurry(Uint8Array.prototype.toBase64), fromBase64 = Uint8Array.fromBase64.bind(Uint8Array);
const hasText = uncurry(String.prototype.includes);

function toJSON(value, name = 'result') {
  const json = stringify(checked(value, '', name, []));
  return json === undefined ? 'null' : json;
}

// fromJSON reads what the host gave.
function fromJSON(text) {
  const value = parse(text);
  return hasText(text, '$bytes') || hasText(text, '$object') || hasText(text, '\\u0024') ? revived(value) : value;
}

function revived(value) {
  if (value === null || typeof value !== 'object') return value;
  if (isArray(value)) {
    for (let i = 0; i < value.length; i++) value[i] = revived(value[i]);
    return value;
  }
  let names = keys(value);
  if (names.length === 1) {
    const inner = value[names[0]];
    if (names[0] === '$bytes' && typeof inner === 'string') return bytesFrom(inner);
    if (names[0] === '$object' && inner !== null && typeof inner === 'object' && !isArray(inner)) {
      value = inner;
      names = keys(value);
    }
  }
  for (let i = 0; i < names.length; i++) value[names[i]] = revived(value[names[i]]);
  return value;
}

function bytesFrom(text) {
  try {
    return fromBase64(text);
  } catch {
    throw new TypeError('what came from outside has "$bytes" that are not base64');
  }
}

// bytesJSON writes bytes, or refuses numbers that are not bytes.
function bytesJSON(value, path, name) {
  let bytes = value;
  if (value instanceof ArrayBuffer) bytes = new Uint8Array(value);
  else if (!(value instanceof Uint8Array)) {
    if (!(value instanceof DataView || value instanceof Uint8ClampedArray)) refuse(name, path, `is a ${value.constructor.name}`, 'use Array.from(…) for its numbers or new Uint8Array(….buffer) for its bytes');
    bytes = new Uint8Array(value.buffer, value.byteOffset, value.byteLength);
  }
  return { $bytes: toBase64(bytes) };
}

// opaque are what stringify would make {} of.
const opaque = create(null);
for (const c of ['Request', 'Response', 'Blob', 'File']) opaque[c] = 'await its text(), json() or bytes()';
for (const c of ['Headers', 'FormData', 'URLSearchParams', 'Map']) opaque[c] = 'use Object.fromEntries(…)';
for (const c of ['Set']) opaque[c] = 'use Array.from(…)';
for (const c of ['RegExp', 'Symbol']) opaque[c] = 'use String(…)';
for (const c of ['ReadableStream', 'WeakMap', 'WeakSet', 'WeakRef', 'AbortSignal', 'AbortController', 'Proxy']) opaque[c] = 'return what is in it';

function refuseOpaque(value, path, name) {
  const proto = getPrototypeOf(value);
  if (proto === null || proto === objectProto || typeof proto.constructor !== 'function') return;
  const kind = toText(proto.constructor.name);
  if (opaque[kind] !== undefined && proto.constructor === globalThis[kind]) refuse(name, path, 'is a ' + kind, opaque[kind]);
}

function checked(value, path, name, above) {
  switch (typeof value) {
    case 'function': refuse(name, path, 'is a function');
    case 'symbol': refuse(name, path, 'is a symbol');
    case 'bigint': refuse(name, path, 'is a BigInt', 'use Number(…) or a string');
    case 'number':
      if (value - value !== 0) refuse(name, path, 'is ' + value, 'JSON has no such number: use null or a string');
      return value;
    case 'object': break;
    default: return value;
  }
  if (value === null) return value;
  if (value instanceof NativePromise) refuse(name, path, 'is a promise', 'await it');
  if (typeof value.toJSON === 'function') return checked(value.toJSON(''), path, name, above);
  if (includes(above, value)) refuse(name, path, 'is one of the objects that hold it (a cycle)');
  if (value instanceof Map || value instanceof Set) refuse(name, path, 'is a ' + (value instanceof Map ? 'Map' : 'Set'), value instanceof Map ? opaque.Map : opaque.Set);
  if (isView(value) || value instanceof ArrayBuffer) return bytesJSON(value, path, name);
  if (value instanceof Error) return { name: toText(value.name), message: toText(value.message) };
  if (value instanceof Number || value instanceof String || value instanceof Boolean) return value.valueOf();
  if (above.length > 500) refuse(name, path, 'is nested too deeply');
  push(above, value);
  let out;
  if (isArray(value)) {
    out = [];
    for (let i = 0; i < value.length; i++) push(out, checked(value[i], `${path}[${i}]`, name, above));
  } else {
    refuseOpaque(value, path, name);
    out = create(null);
    const names = keys(value);
    let only;
    for (let i = 0; i < names.length; i++) {
      const key = names[i];
      out[key] = checked(value[key], testRegExp(/^[A-Za-z_$][\w$]*$/, key) ? `${path}.${key}` : `${path}[${stringify(key)}]`, name, above);
      if (out[key] !== undefined) only = only === undefined ? key : null;
    }
    if (only === '$bytes' || only === '$object') out = { $object: out };
  }
  above.length--;
  return out;
}

function refuse(name, path, what, hint) {
  throw new TypeError(`${name}${path} ${what}: only JSON values can leave the isolate${hint ? '; ' + hint : ''}`);
}
