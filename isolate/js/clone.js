// ---- structuredClone ----

const brand = (f) => { f = uncurry(f); return (v) => { try { f(v); return true; } catch { return false; } }; };
const getter = (c, name) => getOwnPropertyDescriptor(c.prototype, name).get;
const isMap = brand(getter(Map, 'size')), isSet = brand(getter(Set, 'size')), isDate = brand(Date.prototype.getTime);
const isBoxedNumber = brand(Number.prototype.valueOf), isBoxedString = brand(String.prototype.valueOf);
const isBoxedBoolean = brand(Boolean.prototype.valueOf), isBoxedBigInt = brand(BigInt.prototype.valueOf), isBoxedSymbol = brand(Symbol.prototype.valueOf);
const isBuffer = brand(getter(ArrayBuffer, 'byteLength')), isWeakMap = brand((() => { const has = uncurry(WeakMap.prototype.has); return function () { has(this, {}); }; })());
const isWeakSet = brand((() => { const has = uncurry(WeakSet.prototype.has); return function () { has(this, {}); }; })());
const isWeakRef = brand(globalThis.WeakRef.prototype.deref), isShared = brand(getter(SharedArrayBuffer, 'byteLength'));
const isRegExp = (v) => v instanceof RegExp && brand(getter(RegExp, 'source'))(v) && v !== RegExp.prototype;
const isError = Error.isError;
const viewName = uncurry(getter(getPrototypeOf(Uint8Array), Symbol.toStringTag));
const errorTypes = { Error, EvalError: globalThis.EvalError, RangeError, ReferenceError: globalThis.ReferenceError, SyntaxError: globalThis.SyntaxError, TypeError, URIError: globalThis.URIError };
const viewTypes = {};
for (const name of ['Int8Array', 'Uint8Array', 'Uint8ClampedArray', 'Int16Array', 'Uint16Array', 'Int32Array', 'Uint32Array', 'Float16Array', 'Float32Array', 'Float64Array', 'BigInt64Array', 'BigUint64Array', 'DataView']) viewTypes[name] = globalThis[name];
const interfaces = [Headers, Request, Response, ReadableStream, WritableStream, TransformStream, URL, URLSearchParams, Event, EventTarget, AbortController, FormData, TextEncoder, TextDecoder, Crypto, SubtleCrypto];

function refuseClone(what) {
  throw new DOMException(`${what} cannot be cloned`, 'DataCloneError');
}

function cloneError(v) {
  let name = v.name === undefined ? 'Error' : string(v.name);
  if (!hasOwn(errorTypes, name)) name = 'Error';
  const e = new errorTypes[name]();
  const message = getOwnPropertyDescriptor(v, 'message');
  if (message !== undefined && 'value' in message) define(e, 'message', string(message.value));
  if (typeof v.stack === 'string') define(e, 'stack', v.stack);
  return e;
}

// A Cloner copies one value; what occurs in it twice is one in the copy, too.
function makeCloner() {
  const seen = new Map();
  const keep = (v, copy) => { mapSet(seen, v, copy); return copy; };

  const buffer = (v) => {
    if (v.detached) refuseClone('a detached ArrayBuffer');
    const copy = v.resizable ? new ArrayBuffer(v.byteLength, { maxByteLength: v.maxByteLength }) : new ArrayBuffer(v.byteLength);
    setBytes(new Uint8Array(copy), new Uint8Array(v));
    return copy;
  };

  const view = (v) => {
    const name = viewName(v) ?? 'DataView';
    const of = clone(v.buffer);
    const fixed = !(v.buffer.resizable && v.byteOffset + v.byteLength === v.buffer.byteLength && tracksLength(v, name));
    if (!fixed) return new viewTypes[name](of, v.byteOffset);
    return new viewTypes[name](of, v.byteOffset, name === 'DataView' ? v.byteLength : v.length);
  };

  const object = (v) => {
    if (isArray(v)) return properties(v, keep(v, new Array(v.length)));
    const proto = getPrototypeOf(v);
    if (proto !== objectProto && proto !== null) {
      const special = exotic(v);
      if (special !== undefined) return special;
    } else if (isError(v) || isMap(v) || isSet(v) || isDate(v) || isBuffer(v)) {
      return exotic(v);
    }
    return properties(v, keep(v, {}));
  };

  const exotic = (v) => {
    if (isBoxedBoolean(v)) return keep(v, Object(Boolean.prototype.valueOf.call(v)));
    if (isBoxedNumber(v)) return keep(v, Object(Number.prototype.valueOf.call(v)));
    if (isBoxedString(v)) return keep(v, Object(String.prototype.valueOf.call(v)));
    if (isBoxedBigInt(v)) return keep(v, Object(BigInt.prototype.valueOf.call(v)));
    if (isBoxedSymbol(v)) refuseClone('a symbol');
    if (isDate(v)) return keep(v, new Date(Date.prototype.getTime.call(v)));
    if (isRegExp(v)) return keep(v, new RegExp(v.source, v.flags));
    if (isBuffer(v)) return keep(v, buffer(v));
    if (isView(v)) return keep(v, view(v));
    if (isMap(v)) return keep(v, map(v));
    if (isSet(v)) {
      const copy = keep(v, new Set());
      for (const x of [...Set.prototype.values.call(v)]) copy.add(clone(x));
      return copy;
    }
    if (isError(v)) return error(v);
    if (v instanceof DOMException) return keep(v, new DOMException(v.message, v.name));
    if (v instanceof File) return keep(v, newFile(v, v.name, v.lastModified));
    if (v instanceof Blob) return keep(v, newBlob(blobBytes(v), v.type));
    if (v instanceof CryptoKey) return keep(v, new CryptoKey(cryptoToken, keyData(v), v.algorithm, v.extractable, v.usages));
    if (v instanceof NativePromise || isWeakMap(v) || isWeakSet(v) || isWeakRef(v) || isShared(v)) refuseClone(`a ${v.constructor?.name ?? 'value of this kind'}`);
    for (const c of interfaces) if (v instanceof c) refuseClone(`a ${c.name}`);
    return undefined;
  };

  const map = (v) => {
    const copy = keep(v, new Map());
    for (const [k, x] of [...Map.prototype.entries.call(v)]) copy.set(clone(k), clone(x));
    return copy;
  };

  const error = (v) => {
    if (v instanceof DOMException) return keep(v, new DOMException(v.message, v.name));
    const copy = keep(v, cloneError(v));
    if (hasOwn(v, 'cause')) define(copy, 'cause', clone(v.cause));
    return copy;
  };

  const properties = (v, copy) => {
    for (const key of keys(v)) {
      if (hasOwn(v, key)) defineProperty(copy, key, { value: clone(v[key]), writable: true, enumerable: true, configurable: true });
    }
    return copy;
  };

  const clone = (v) => {
    switch (typeof v) {
      case 'function': refuseClone(v.name ? `the function ${v.name}` : 'a function');
      case 'symbol': refuseClone('a symbol');
      case 'object': break;
      default: return v;
    }
    if (v === null) return v;
    const have = mapGet(seen, v);
    return have !== undefined ? have : object(v);
  };
  return { clone, keep };
}

// tracksLength tells whether a view of a resizable buffer grows with it.
function tracksLength(v, name) {
  const { buffer } = v, before = v.byteLength, size = buffer.byteLength;
  if (size === buffer.maxByteLength) return false;
  const step = name === 'DataView' ? 1 : v.BYTES_PER_ELEMENT;
  if (size + step > buffer.maxByteLength) return false;
  buffer.resize(size + step);
  const grew = v.byteLength !== before;
  buffer.resize(size);
  return grew;
}

define(globalThis, 'structuredClone', function structuredClone(value, options = undefined) {
  need(arguments, 1, 'structuredClone');
  const { transfer = [] } = dictionary(options, 'the options of structuredClone');
  const moved = [...transfer];
  const { clone, keep } = makeCloner();
  for (let i = 0; i < moved.length; i++) {
    const b = moved[i];
    if (!isBuffer(b)) refuseClone('what is to be transferred is no ArrayBuffer: it');
    if (b.detached) refuseClone('a detached ArrayBuffer');
    if (moved.indexOf(b) !== i) refuseClone('an ArrayBuffer that is to be transferred twice');
  }
  // The copy is made first: if that fails, nothing has moved.
  for (const b of moved) keep(b, makeCloner().clone(b));
  const out = clone(value);
  for (let i = 0; i < moved.length; i++) moved[i].transfer();
  return out;
});
