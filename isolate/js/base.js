const OP = { done: 1, fail: 2, log: 3, call: 4, timer: 5, clearTimer: 6, decode: 7, encode: 8, random: 9, cancel: 10 };

// Code may change every global; what the closure needs is taken before.
const {
  Array, ArrayBuffer, Boolean, DataView, Date, DOMException, Error, Float32Array, Float64Array, Function, JSON, Map, Math, Number,
  Object, Promise, Proxy, RangeError, Reflect, RegExp, Set, String, Symbol, TypeError, URLSearchParams, Uint8Array, Uint8ClampedArray, WeakSet, isNaN, performance,
} = globalThis;
const { stringify, parse } = JSON;
const { isArray, from: arrayFrom } = Array;
const { defineProperty, freeze, keys, getPrototypeOf, create, prototype: objectProto } = Object;
const { apply } = Reflect;
const toText = String;
const isView = ArrayBuffer.isView;
const NativePromise = Promise;
const promiseResolve = Promise.resolve.bind(Promise);
const mapGet = uncurry(Map.prototype.get), mapSet = uncurry(Map.prototype.set), mapDelete = uncurry(Map.prototype.delete);
const push = uncurry(Array.prototype.push), join = uncurry(Array.prototype.join), includes = uncurry(Array.prototype.includes);
const slice = uncurry(Array.prototype.slice), toLower = uncurry(String.prototype.toLowerCase), trim = uncurry(String.prototype.trim);
const hasOwn = uncurry(Object.prototype.hasOwnProperty);
const then = uncurry(Promise.prototype.then);
const testRegExp = uncurry(RegExp.prototype.exec);

function uncurry(f) {
  return (self, ...args) => apply(f, self, args);
}

function define(object, name, value) {
  defineProperty(object, name, { value, writable: true, enumerable: false, configurable: true });
}

// Frames hand out the functions in them, ours too: nobody gets to see frames.
defineProperty(Error, 'prepareStackTrace', { get() {}, set() {}, enumerable: false, configurable: false });
