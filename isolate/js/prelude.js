// What a run finds besides the language: the entry points that the host calls,
// bindings, fetch, console, timers and a few web interfaces. It is evaluated
// once, before the image is taken. `host` must never become reachable by the
// code of a run: it stays in this closure.
(function (host) {
  'use strict';

  const OP = { done: 1, fail: 2, log: 3, call: 4, timer: 5, clearTimer: 6, decode: 7, encode: 8, random: 9, cancel: 10 };

  // Code may change every global; what the closure needs is taken before.
  const {
    Array, ArrayBuffer, Boolean, DataView, Date, DOMException, Error, Float32Array, Float64Array, Function, JSON, Map, Math, Number,
    Object, Promise, Proxy, RangeError, Reflect, RegExp, Set, String, Symbol, TypeError, URLSearchParams, Uint8Array, WeakSet, isNaN, performance,
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

  // ---- Entry points of the host ----

  const pending = new Map(); // call id → { resolve, reject, bytes }
  const timers = new Map(); // timer id → { callback, args, every }
  let lastId = 0;

  // start runs the default export of a module once that is evaluated.
  function start(evaluated, job) {
    job = parse(job);
    const env = makeEnv(job);
    if (job.fetch) grantFetch();
    then(evaluated, (module) => run(module, parse(job.input), env), fail);
  }

  async function run(module, input, env) {
    let result;
    try {
      const main = module.default;
      if (main instanceof NativePromise) {
        result = await main;
      } else if (typeof main === 'function') {
        result = await main(input, env);
      } else if (main !== null && typeof main === 'object' && typeof main.fetch === 'function') {
        result = await serve(main, input, env);
      } else {
        host(OP.fail, stringify({ kind: 'no_export', exports: keys(module) }));
        return;
      }
      result = toJSON(result);
    } catch (e) {
      fail(e);
      return;
    }
    host(OP.done, result);
  }

  // serve answers a Worker-style module: the input describes the request.
  async function serve(main, input, env) {
    const given = input !== null && typeof input === 'object' ? input : {};
    const request = new Request(given.url === undefined ? 'http://localhost/' : given.url, given);
    const waiting = [];
    const response = await main.fetch(request, env, { waitUntil(p) { push(waiting, promiseResolve(p)); }, passThroughOnException() {} });
    if (!(response instanceof Response)) throw new TypeError('fetch must return a Response');
    const body = await response.text();
    for (let i = 0; i < waiting.length; i++) await waiting[i];
    return { status: response.status, headers: arrayFrom(response.headers), body };
  }

  // settle is called with the answer of a host call; bytes is an Uint8Array or
  // undefined.
  function settle(id, ok, text, bytes) {
    const call = mapGet(pending, id);
    if (call === undefined) return;
    mapDelete(pending, id);
    if (!ok) {
      call.reject(hostError(parse(text), call));
      return;
    }
    let value;
    try {
      value = text === '' ? undefined : parse(text);
      if (call.convert) value = call.convert(value, bytes);
    } catch (e) {
      call.reject(e);
      return;
    }
    call.resolve(value);
  }

  // fire is called when a timer is due.
  function fire(id) {
    const timer = mapGet(timers, id);
    if (timer === undefined) return;
    if (timer.every >= 0) host(OP.timer, id, timer.every);
    else mapDelete(timers, id);
    apply(timer.callback, globalThis, timer.args);
  }

  // describe tells about a value that was thrown or rejected.
  function describe(e) {
    const out = {};
    try {
      if (e !== null && typeof e === 'object' && ('message' in e || 'stack' in e)) {
        out.name = toText(e.name === undefined ? 'Error' : e.name);
        out.message = toText(e.message === undefined ? '' : e.message);
        if (typeof e.stack === 'string') out.stack = e.stack;
        if (e.cause !== undefined) out.cause = inspect(e.cause);
        if (weakHas(hostErrors, e)) out.kind = 'binding';
      } else {
        out.name = 'thrown';
        out.message = inspect(e);
      }
    } catch {
      out.name = 'thrown';
      out.message = 'a value that cannot be shown';
    }
    return stringify(out);
  }

  function fail(e) {
    host(OP.fail, describe(e));
  }

  // ---- Host calls ----

  const hostErrors = new WeakSet();
  const weakHas = uncurry(WeakSet.prototype.has), weakAdd = uncurry(WeakSet.prototype.add);

  function hostError(info, call) {
    const e = new Error(info.message);
    define(e, 'name', info.name || 'BindingError');
    define(e, 'binding', call.binding);
    define(e, 'method', call.method);
    // The stack of the place that called, not of this one.
    if (call.stack) define(e, 'stack', call.stack);
    weakAdd(hostErrors, e);
    return e;
  }

  function hostCall(binding, method, args, convert, stack) {
    return new NativePromise((resolve, reject) => {
      const id = ++lastId;
      mapSet(pending, id, { resolve, reject, binding, method, convert, stack });
      host(OP.call, id, binding, method, args);
    });
  }

  function makeEnv(job) {
    // No iteration: the code's top level has run, and may have changed how.
    const env = create(null);
    const names = keys(job.env);
    for (let i = 0; i < names.length; i++) env[names[i]] = job.env[names[i]];
    for (let i = 0; i < job.bindings.length; i++) {
      const b = job.bindings[i];
      env[b.name] = b.name === 'LOG' ? makeLog() : makeBinding(b);
    }
    return freeze(env);
  }

  function makeBinding({ name, methods }) {
    const target = create(null);
    for (let i = 0; i < methods.length; i++) {
      const method = methods[i];
      target[method] = freeze((...args) => {
        const stack = new Error().stack;
        let json;
        try {
          json = toJSON(args, `${name}.${method} argument `);
        } catch (e) {
          return NativePromise.reject(e);
        }
        return hostCall(name, method, json, undefined, stack);
      });
    }
    freeze(target);
    return new Proxy(target, {
      get(target, key) {
        if (typeof key === 'symbol' || key in target) return target[key];
        if (key === 'then' || key === 'toJSON' || key === 'constructor') return undefined;
        throw new TypeError(`env.${name} has no method ${key}; it has ${join(methods, ', ')}`);
      },
    });
  }

  function makeLog() {
    const log = create(null);
    const levels = ['debug', 'info', 'warn', 'error'];
    for (let i = 0; i < levels.length; i++) {
      const level = levels[i];
      log[level] = freeze((message, data) => {
        host(OP.log, level, typeof message === 'string' ? message : inspect(message), data === undefined ? '' : toJSON(data, 'LOG data'));
        return promiseResolve();
      });
    }
    log.log = log.info;
    return freeze(log);
  }

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

  // ---- console ----

  function inspect(value, depth = 4, above = []) {
    switch (typeof value) {
      case 'string': return above.length ? stringify(value) : value;
      case 'bigint': return value + 'n';
      case 'symbol': return toText(value);
      case 'function': return `[${/^class\b/.test(Function.prototype.toString.call(value)) ? 'class' : 'Function'}${value.name ? ': ' + value.name : ''}]`;
      case 'object': break;
      default: return Object.is(value, -0) ? '-0' : toText(value);
    }
    if (value === null) return 'null';
    if (value instanceof Error) return (value.stack ? `${value.name}: ${value.message}\n${cleanStack(value.stack)}` : `${value.name}: ${value.message}`);
    if (value instanceof Date) return isNaN(value) ? 'Invalid Date' : value.toISOString();
    if (value instanceof RegExp) return toText(value);
    if (value instanceof NativePromise) return 'Promise {}';
    if (includes(above, value)) return '[Circular]';
    const proto = getPrototypeOf(value);
    const kind = proto === null || proto === objectProto || proto === Array.prototype ? '' : (proto.constructor && proto.constructor.name || '') + ' ';
    if (depth < 0) return isArray(value) ? '[…]' : `${kind}{…}`;
    above = [...above, value];
    const most = 100;
    const parts = [];
    const add = (s) => parts.length < most ? (push(parts, s), true) : (parts.length === most && push(parts, '…'), false);
    if (isArray(value) || isView(value) && !(value instanceof DataView)) {
      for (let i = 0; i < value.length; i++) if (!add(inspect(value[i], depth - 1, above))) break;
      return `${isArray(value) ? '' : kind}[${parts.length ? ' ' + join(parts, ', ') + ' ' : ''}]`;
    }
    if (value instanceof Map) {
      for (const [k, v] of value) if (!add(`${inspect(k, depth - 1, above)} => ${inspect(v, depth - 1, above)}`)) break;
    } else if (value instanceof Set) {
      for (const v of value) if (!add(inspect(v, depth - 1, above))) break;
    } else {
      for (const key of keys(value)) if (!add(`${/^[A-Za-z_$][\w$]*$/.test(key) ? key : stringify(key)}: ${inspect(value[key], depth - 1, above)}`)) break;
    }
    return `${kind}{${parts.length ? ' ' + join(parts, ', ') + ' ' : ''}}`;
  }

  function cleanStack(stack) {
    return stack.split('\n').filter((line) => line && !line.includes('(isolate:')).join('\n');
  }

  function format(args) {
    const out = [];
    let i = 0;
    if (typeof args[0] === 'string' && args[0].includes('%') && args.length > 1) {
      i = 1;
      push(out, args[0].replace(/%([sdifjoOc%])/g, (m, c) => {
        if (c === '%') return '%';
        if (i >= args.length) return m;
        const v = args[i++];
        switch (c) {
          case 's': return typeof v === 'string' ? v : inspect(v, 1);
          case 'd': case 'i': return toText(c === 'i' ? Math.trunc(Number(v)) : Number(v));
          case 'f': return toText(Number(v));
          case 'j': return stringify(v);
          case 'c': return '';
          default: return inspect(v);
        }
      }));
    }
    for (; i < args.length; i++) push(out, inspect(args[i]));
    return join(out, ' ');
  }

  const counts = new Map(), starts = new Map();
  let indent = '';
  function print(level, args) {
    let text;
    try {
      text = format(args);
    } catch (e) {
      text = `[a value that cannot be shown: ${e}]`;
    }
    host(OP.log, level, indent + text, '');
  }
  const consoleObject = {
    log: (...a) => print('info', a),
    info: (...a) => print('info', a),
    debug: (...a) => print('debug', a),
    warn: (...a) => print('warn', a),
    error: (...a) => print('error', a),
    trace: (...a) => print('debug', [...a, '\n' + cleanStack(new Error().stack)]),
    dir: (v) => print('info', [v]),
    table: (v) => print('info', [v]),
    assert: (ok, ...a) => { if (!ok) print('error', ['Assertion failed', ...a]); },
    count: (label = 'default') => { mapSet(counts, label, (mapGet(counts, label) || 0) + 1); print('info', [`${label}: ${mapGet(counts, label)}`]); },
    countReset: (label = 'default') => { mapDelete(counts, label); },
    group: (...a) => { if (a.length) print('info', a); indent += '  '; },
    groupCollapsed: (...a) => { if (a.length) print('info', a); indent += '  '; },
    groupEnd: () => { indent = indent.slice(2); },
    time: (label = 'default') => { mapSet(starts, label, performance.now()); },
    timeLog: (label = 'default', ...a) => { print('info', [`${label}: ${(performance.now() - mapGet(starts, label)).toFixed(1)} ms`, ...a]); },
    timeEnd: (label = 'default') => { consoleObject.timeLog(label); mapDelete(starts, label); },
  };
  define(globalThis, 'console', consoleObject);

  // ---- Timers ----

  function addTimer(callback, ms, every, args) {
    if (typeof callback !== 'function') throw new TypeError('the callback of a timer must be a function');
    ms = Number(ms);
    if (!(ms >= 0)) ms = 0;
    const id = ++lastId;
    mapSet(timers, id, { callback, args, every: every ? (ms < 1 ? 1 : ms) : -1 });
    host(OP.timer, id, ms);
    return id;
  }
  function clearTimer(id) {
    if (typeof id === 'number' && mapDelete(timers, id)) host(OP.clearTimer, id);
  }
  define(globalThis, 'setTimeout', function setTimeout(callback, ms, ...args) { return addTimer(callback, ms, false, args); });
  define(globalThis, 'setInterval', function setInterval(callback, ms, ...args) { return addTimer(callback, ms, true, args); });
  define(globalThis, 'clearTimeout', function clearTimeout(id) { clearTimer(id); });
  define(globalThis, 'clearInterval', function clearInterval(id) { clearTimer(id); });

  // ---- Encoding and randomness ----

  const encode = (s) => host(OP.encode, s);
  const decode = (b, fatal) => {
    const s = host(OP.decode, b, fatal ? 1 : 0);
    if (s === undefined) throw new TypeError('the bytes are not UTF-8');
    return s;
  };
  function bytesOf(v) {
    if (v instanceof Uint8Array) return v;
    if (isView(v)) return new Uint8Array(v.buffer, v.byteOffset, v.byteLength);
    if (v instanceof ArrayBuffer) return new Uint8Array(v);
    throw new TypeError('bytes are an ArrayBuffer or a view of one');
  }

  class TextEncoder {
    get encoding() { return 'utf-8'; }
    encode(s = '') { return encode(toText(s)); }
    encodeInto(s, into) {
      const bytes = encode(toText(s));
      let n = bytes.length > into.length ? into.length : bytes.length;
      while (n < bytes.length && n > 0 && (bytes[n] & 0xc0) === 0x80) n--;
      into.set(bytes.subarray(0, n));
      return { read: decode(bytes.subarray(0, n)).length, written: n };
    }
  }
  class TextDecoder {
    #fatal; #keepBOM; #rest;
    constructor(label = 'utf-8', options = {}) {
      if (!includes(['utf-8', 'utf8', 'unicode-1-1-utf-8'], toLower(trim(toText(label))))) throw new RangeError(`the encoding ${label} is not supported; utf-8 is`);
      this.#fatal = !!options.fatal;
      this.#keepBOM = !!options.ignoreBOM;
    }
    get encoding() { return 'utf-8'; }
    get fatal() { return this.#fatal; }
    get ignoreBOM() { return this.#keepBOM; }
    decode(v, options = {}) {
      let bytes = v === undefined ? new Uint8Array() : bytesOf(v);
      if (this.#rest) {
        const all = new Uint8Array(this.#rest.length + bytes.length);
        all.set(this.#rest);
        all.set(bytes, this.#rest.length);
        bytes = all;
        this.#rest = undefined;
      }
      if (options.stream) {
        // A character whose end has not come yet waits for the next call.
        let i = bytes.length - 1;
        const least = bytes.length - 3;
        while (i >= 0 && i >= least && (bytes[i] & 0xc0) === 0x80) i--;
        if (i >= 0 && bytes[i] >= 0xc0) {
          const need = bytes[i] >= 0xf0 ? 4 : bytes[i] >= 0xe0 ? 3 : 2;
          if (bytes.length - i < need) {
            this.#rest = bytes.slice(i);
            bytes = bytes.subarray(0, i);
          }
        }
      }
      const s = decode(bytes, this.#fatal);
      return !this.#keepBOM && s.charCodeAt(0) === 0xfeff ? s.slice(1) : s;
    }
  }
  define(globalThis, 'TextEncoder', TextEncoder);
  define(globalThis, 'TextDecoder', TextDecoder);

  define(globalThis, 'crypto', freeze({
    getRandomValues(view) {
      if (!isView(view) || view instanceof DataView || view instanceof Float32Array || view instanceof Float64Array) throw new TypeError('getRandomValues wants an array of integers');
      if (view.byteLength > 65536) throw new RangeError('getRandomValues gives at most 65536 bytes at once');
      bytesOf(view).set(host(OP.random, view.byteLength));
      return view;
    },
    randomUUID() {
      const b = host(OP.random, 16);
      b[6] = b[6] & 0x0f | 0x40;
      b[8] = b[8] & 0x3f | 0x80;
      const h = b.toHex();
      return `${h.slice(0, 8)}-${h.slice(8, 12)}-${h.slice(12, 16)}-${h.slice(16, 20)}-${h.slice(20)}`;
    },
  }));

  // ---- Abort ----

  class AbortSignal {
    #listeners = []; aborted = false; reason = undefined; onabort = null;
    static abort(reason) { const c = new AbortController(); c.abort(reason); return c.signal; }
    static timeout(ms) { const c = new AbortController(); addTimer(() => c.abort(new DOMException('the time is over', 'TimeoutError')), ms, false, []); return c.signal; }
    static any(signals) { const c = new AbortController(); for (const s of signals) { if (s.aborted) c.abort(s.reason); else s.addEventListener('abort', () => c.abort(s.reason)); } return c.signal; }
    throwIfAborted() { if (this.aborted) throw this.reason; }
    addEventListener(type, f) { if (type === 'abort') push(this.#listeners, f); }
    removeEventListener(type, f) { this.#listeners = this.#listeners.filter((g) => g !== f); }
    static {
      signalAbort = (s, reason) => {
        if (s.aborted) return;
        s.aborted = true;
        s.reason = reason === undefined ? new DOMException('the operation was aborted', 'AbortError') : reason;
        const event = { type: 'abort', target: s };
        for (const f of [s.onabort, ...s.#listeners]) if (f) typeof f === 'function' ? f.call(s, event) : f.handleEvent(event);
      };
    }
  }
  var signalAbort;
  class AbortController {
    signal = new AbortSignal();
    abort(reason) { signalAbort(this.signal, reason); }
  }
  define(globalThis, 'AbortSignal', AbortSignal);
  define(globalThis, 'AbortController', AbortController);

  // ---- fetch ----

  class Headers {
    #map = new Map(); // lower-case name → [values]
    constructor(init) {
      if (init === undefined || init === null) return;
      if (init instanceof Headers || isArray(init) || typeof init[Symbol.iterator] === 'function') for (const [k, v] of init) this.append(k, v);
      else for (const k of keys(init)) this.append(k, init[k]);
    }
    append(name, value) {
      name = headerName(name);
      const have = mapGet(this.#map, name);
      if (have) push(have, headerValue(value)); else mapSet(this.#map, name, [headerValue(value)]);
    }
    set(name, value) { mapSet(this.#map, headerName(name), [headerValue(value)]); }
    get(name) { const v = mapGet(this.#map, headerName(name)); return v ? join(v, ', ') : null; }
    getSetCookie() { return slice(mapGet(this.#map, 'set-cookie') || []); }
    has(name) { return mapGet(this.#map, headerName(name)) !== undefined; }
    delete(name) { mapDelete(this.#map, headerName(name)); }
    forEach(f, self) { for (const [k, v] of this) apply(f, self, [v, k, this]); }
    *entries() { for (const k of arrayFrom(this.#map.keys()).sort()) { if (k === 'set-cookie') for (const v of mapGet(this.#map, k)) yield [k, v]; else yield [k, this.get(k)]; } }
    *keys() { for (const [k] of this.entries()) yield k; }
    *values() { for (const [, v] of this.entries()) yield v; }
    [Symbol.iterator]() { return this.entries(); }
  }
  function headerName(n) {
    n = toLower(toText(n));
    if (!testRegExp(/^[!#$%&'*+\-.^_`|~0-9a-z]+$/, n)) throw new TypeError(`${stringify(n)} is not a header name`);
    return n;
  }
  function headerValue(v) {
    v = trim(toText(v));
    if (testRegExp(/[\0\r\n]/, v)) throw new TypeError('a header value has no line break');
    return v;
  }

  // bodyOf gives [bytes or null, content type] of a body as people write it.
  function bodyOf(body) {
    if (body === undefined || body === null) return [null, null];
    if (typeof body === 'string') return [encode(body), 'text/plain;charset=UTF-8'];
    if (isView(body) || body instanceof ArrayBuffer) return [bytesOf(body).slice(), null];
    if (body instanceof URLSearchParams) return [encode(toText(body)), 'application/x-www-form-urlencoded;charset=UTF-8'];
    throw new TypeError('a body is a string, an ArrayBuffer, a view of one or URLSearchParams; use JSON.stringify for an object');
  }

  class Body {
    #bytes = null; bodyUsed = false;
    constructor(bytes) { this.#bytes = bytes; }
    static {
      bodyBytes = (b) => b.#bytes;
    }
    #take() {
      if (this.bodyUsed) throw new TypeError('the body was read already');
      this.bodyUsed = this.#bytes !== null;
      return this.#bytes || new Uint8Array();
    }
    async bytes() { return this.#take().slice(); }
    async arrayBuffer() { return this.#take().slice().buffer; }
    async text() { const s = decode(this.#take()); return s.charCodeAt(0) === 0xfeff ? s.slice(1) : s; }
    async json() { return parse(await this.text()); }
  }
  var bodyBytes;

  class Request extends Body {
    constructor(input, init = {}) {
      const from = input instanceof Request ? input : undefined;
      const [bytes, type] = 'body' in init ? bodyOf(init.body) : [from ? bodyBytes(from) : null, null];
      super(bytes);
      this.url = from ? from.url : toText(input); // also of a URL object
      this.method = toText(init.method || (from ? from.method : 'GET'));
      if (testRegExp(/^(get|head|post|put|delete|options)$/i, this.method)) this.method = this.method.toUpperCase();
      this.headers = new Headers(init.headers || (from ? from.headers : undefined));
      if (type !== null && !this.headers.has('content-type')) this.headers.set('content-type', type);
      this.signal = init.signal || (from ? from.signal : null);
      if (bytes !== null && includes(['GET', 'HEAD'], this.method)) throw new TypeError(`a ${this.method} request has no body`);
    }
    clone() { return new Request(this); }
  }

  class Response extends Body {
    constructor(body, init = {}) {
      const [bytes, type] = bodyOf(body);
      super(bytes);
      this.status = init.status === undefined ? 200 : Number(init.status);
      if (!(this.status >= 200 && this.status <= 599)) throw new RangeError('a status is a number from 200 to 599');
      this.statusText = toText(init.statusText === undefined ? '' : init.statusText);
      this.headers = new Headers(init.headers);
      if (type !== null && !this.headers.has('content-type')) this.headers.set('content-type', type);
      this.url = ''; this.redirected = false; this.type = 'default';
    }
    get ok() { return this.status >= 200 && this.status < 300; }
    clone() { const r = new Response(bodyBytes(this), this); r.url = this.url; return r; }
    static json(value, init = {}) {
      const headers = new Headers(init.headers);
      if (!headers.has('content-type')) headers.set('content-type', 'application/json');
      return new Response(stringify(value), { ...init, headers });
    }
    static error() { const r = new Response(); r.status = 0; r.type = 'error'; return r; }
    static redirect(url, status = 302) { return new Response(null, { status, headers: { location: toText(url) } }); }
  }
  for (const c of [Headers, Request, Response]) define(globalThis, c.name, c);

  function grantFetch() {
    define(globalThis, 'fetch', function fetch(input, init) {
      const stack = new Error().stack;
      return new NativePromise((resolve, reject) => {
        const request = new Request(input, init);
        const signal = request.signal;
        if (signal) signal.throwIfAborted();
        const bytes = bodyBytes(request);
        const wire = { url: request.url, method: request.method, headers: arrayFrom(request.headers) };
        if (bytes !== null) wire.body = bytes.toBase64();
        const call = hostCall('fetch', 'fetch', stringify([wire]), toResponse, stack);
        if (signal) {
          const id = lastId;
          signal.addEventListener('abort', () => {
            if (mapDelete(pending, id)) host(OP.cancel, id);
            reject(signal.reason);
          });
        }
        then(call, resolve, reject);
      });
    });
  }

  function toResponse(wire, bytes) {
    const status = wire.status;
    const r = new Response(bytes === undefined || bytes.length === 0 ? null : bytes, { status: status >= 200 && status <= 599 ? status : 200, statusText: wire.statusText, headers: wire.headers || [] });
    r.status = status;
    r.url = wire.url;
    r.type = 'basic';
    return r;
  }

  define(globalThis, 'fetch', function fetch() {
    return NativePromise.reject(new TypeError('fetch is not granted to this run: the caller has to ask for the host in "outbound", and the tenant\'s policy has to allow it'));
  });

  return [start, settle, fire, describe];
});
