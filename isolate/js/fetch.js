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
