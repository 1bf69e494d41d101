// What the other parts share. Code may change every global and prototype; what
// the closure needs to reach the host is taken before, here.
const OP = {
  done: 1, fail: 2, log: 3, call: 4, timer: 5, clearTimer: 6, decode: 7, encode: 8, random: 9, cancel: 10, ready: 11,
  url: 32, setURL: 33, encoding: 34, digest: 35, hmac: 36, incomplete: 37,
};

const {
  Array, ArrayBuffer, BigInt, Boolean, DataView, Date, DOMException, Error, Float16Array, Float32Array, Float64Array, Function, JSON, Map, Math,
  Number, Object, Promise, Proxy, RangeError, Reflect, RegExp, Set, SharedArrayBuffer, String, Symbol, TypeError, Uint8Array, Uint8ClampedArray, WeakMap, WeakSet, isNaN,
} = globalThis;
const { stringify, parse } = JSON;
const { isArray, from: arrayFrom } = Array;
const { defineProperty, freeze, keys, getPrototypeOf, create, getOwnPropertyDescriptor, prototype: objectProto } = Object;
const { apply, ownKeys } = Reflect;
const toText = String;
const isView = ArrayBuffer.isView;
const NativePromise = Promise;
const promiseResolve = Promise.resolve.bind(Promise);
const mapGet = uncurry(Map.prototype.get), mapSet = uncurry(Map.prototype.set), mapDelete = uncurry(Map.prototype.delete);
const push = uncurry(Array.prototype.push), join = uncurry(Array.prototype.join), includes = uncurry(Array.prototype.includes);
const slice = uncurry(Array.prototype.slice), toLower = uncurry(String.prototype.toLowerCase), trim = uncurry(String.prototype.trim);
const split = uncurry(String.prototype.split), charCode = uncurry(String.prototype.charCodeAt), sliceText = uncurry(String.prototype.slice);
const hasOwn = uncurry(Object.prototype.hasOwnProperty);
const then = uncurry(Promise.prototype.then);
const testRegExp = uncurry(RegExp.prototype.exec);
const setBytes = uncurry(Uint8Array.prototype.set), sliceBytes = uncurry(Uint8Array.prototype.slice), subBytes = uncurry(Uint8Array.prototype.subarray);

function uncurry(f) {
  return (self, ...args) => apply(f, self, args);
}

function define(object, name, value) {
  defineProperty(object, name, { value, writable: true, enumerable: false, configurable: true });
}

// Frames hand out the functions in them, ours too: nobody gets to see frames.
defineProperty(Error, 'prepareStackTrace', { get() {}, set() {}, enumerable: false, configurable: false });

// ---- Web IDL ----

// expose makes a class a global whose members are as Web IDL wants them.
function expose(...classes) {
  for (const c of classes) {
    for (const [object, but] of [[c.prototype, ['constructor']], [c, ['length', 'name', 'prototype']]]) {
      for (const key of ownKeys(object)) {
        if (typeof key === 'string' && !but.includes(key)) defineProperty(object, key, { enumerable: true });
      }
    }
    defineProperty(c.prototype, Symbol.toStringTag, { value: c.name, configurable: true });
    define(globalThis, c.name, c);
  }
}

// string and usv are the conversions to a DOMString and a USVString: a symbol is
// refused.
const string = (v) => `${v}`;
const isWellFormed = uncurry(String.prototype.isWellFormed), toWellFormed = uncurry(String.prototype.toWellFormed);
const usv = (v) => { const s = `${v}`; return isWellFormed(s) ? s : toWellFormed(s); };

function byteString(v) {
  const s = `${v}`;
  for (let i = 0; i < s.length; i++) if (charCode(s, i) > 0xff) throw new TypeError(`${stringify(s)} has a character that is no byte`);
  return s;
}

function need(args, n, what) {
  if (args.length < n) throw new TypeError(`${what} needs ${n} argument${n > 1 ? 's' : ''}, but has ${args.length}`);
}

const isObject = (v) => v !== null && typeof v === 'object' || typeof v === 'function';

// dictionary takes an argument that is an object with options.
function dictionary(v, what) {
  if (v === undefined || v === null) return {};
  if (!isObject(v)) throw new TypeError(`${what} must be an object`);
  return v;
}

const { iterator } = Symbol;
const arrayIterator = getPrototypeOf(getPrototypeOf([][iterator]()));

// iterable gives a class the iterators over the pairs that list gives of an
// object, which may change meanwhile.
function iterable(c, list) {
  const proto = create(arrayIterator);
  const states = new WeakMap();
  const get = uncurry(WeakMap.prototype.get), set = uncurry(WeakMap.prototype.set);
  const make = (target, kind) => {
    list(target); // refuses what is no such object
    const it = create(proto);
    set(states, it, { target, kind, i: 0 });
    return it;
  };
  defineProperty(proto, 'next', { writable: true, enumerable: true, configurable: true, value: { next() {
    const s = isObject(this) ? get(states, this) : undefined;
    if (s === undefined) throw new TypeError(`not a ${c.name} iterator`);
    const pairs = s.target === undefined ? [] : list(s.target);
    if (s.i >= pairs.length) {
      s.target = undefined;
      return { value: undefined, done: true };
    }
    const pair = pairs[s.i++];
    return { value: s.kind === 2 ? [pair[0], pair[1]] : pair[s.kind], done: false };
  } }.next });
  defineProperty(proto, Symbol.toStringTag, { value: `${c.name} Iterator`, configurable: true });
  const { entries, ...others } = {
    entries() { return make(this, 2); },
    keys() { return make(this, 0); },
    values() { return make(this, 1); },
    forEach(callback, self = undefined) {
      list(this);
      need(arguments, 1, 'forEach');
      if (typeof callback !== 'function') throw new TypeError('the callback of forEach must be a function');
      for (let i = 0, pairs; pairs = list(this), i < pairs.length; i++) apply(callback, self, [pairs[i][1], pairs[i][0], this]);
    },
  };
  define(c.prototype, 'entries', entries);
  define(c.prototype, iterator, entries);
  for (const k of keys(others)) define(c.prototype, k, others[k]);
}

// pairsOf reads what stands for a list of pairs: a sequence of them, or an
// object with names and values.
function pairsOf(init, name, value) {
  const out = [];
  const iterate = init[iterator];
  if (iterate !== undefined && iterate !== null) {
    if (typeof iterate !== 'function') throw new TypeError('the pairs cannot be iterated');
    for (const pair of { [iterator]: () => apply(iterate, init, []) }) {
      if (!isObject(pair) || typeof pair[iterator] !== 'function') throw new TypeError('a pair is a list of a name and a value');
      const both = [...pair];
      if (both.length !== 2) throw new TypeError('a pair has a name and a value');
      push(out, [name(both[0]), value(both[1])]);
    }
    return out;
  }
  const at = new Map();
  for (const key of ownKeys(init)) {
    const d = getOwnPropertyDescriptor(init, key);
    if (d === undefined || !d.enumerable) continue;
    const k = name(key), v = value(init[key]);
    if (at.has(k)) out[at.get(k)][1] = v;
    else { at.set(k, out.length); push(out, [k, v]); }
  }
  return out;
}

// ---- Bytes ----

function bytesOf(v) {
  if (v instanceof Uint8Array) return v;
  if (isView(v)) return new Uint8Array(v.buffer, v.byteOffset, v.byteLength);
  if (v instanceof ArrayBuffer) return v.detached ? new Uint8Array() : new Uint8Array(v);
  if (v instanceof SharedArrayBuffer) return new Uint8Array(v);
  throw new TypeError('bytes are an ArrayBuffer or a view of one');
}

const isBytes = (v) => isView(v) || v instanceof ArrayBuffer || v instanceof SharedArrayBuffer;
const copyBytes = (v) => sliceBytes(bytesOf(v));

function concatBytes(parts) {
  let n = 0;
  for (let i = 0; i < parts.length; i++) n += parts[i].length;
  const all = new Uint8Array(n);
  n = 0;
  for (let i = 0; i < parts.length; i++) {
    setBytes(all, parts[i], n);
    n += parts[i].length;
  }
  return all;
}

const encodeUTF8 = (s) => host(OP.encode, s);
const decodeUTF8 = (bytes) => host(OP.decode, bytes, 'utf-8', 0);
