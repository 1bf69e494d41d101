// ---- Request, Response, fetch ----

const requestOptions = {
  mode: ['cors', ['cors', 'no-cors', 'same-origin']],
  credentials: ['same-origin', ['omit', 'same-origin', 'include']],
  cache: ['default', ['default', 'no-store', 'reload', 'no-cache', 'force-cache', 'only-if-cached']],
  redirect: ['follow', ['follow', 'error', 'manual']],
  referrerPolicy: ['', ['', 'no-referrer', 'no-referrer-when-downgrade', 'same-origin', 'origin', 'strict-origin', 'origin-when-cross-origin', 'strict-origin-when-cross-origin', 'unsafe-url']],
};

function methodOf(v) {
  const method = byteString(v);
  if (!isToken(method) || testRegExp(/^(connect|trace|track)$/i, method) !== null) throw new TypeError(`${stringify(method)} is not a method that a request may have`);
  return testRegExp(/^(get|head|post|put|delete|options)$/i, method) !== null ? method.toUpperCase() : method;
}

class Request extends Body {
  #url; #method = 'GET'; #headers; #signal; #options = {};
  constructor(input, init = undefined) {
    need(arguments, 1, 'Request');
    super();
    const from = isObject(input) && #url in input ? input : null;
    init = dictionary(init, 'the options of a Request');
    if (from !== null) {
      this.#url = from.#url;
      this.#method = from.#method;
      this.#options = { ...from.#options };
    } else {
      const parts = parseURL(input);
      if (parts === null) throw new TypeError(`Invalid URL: ${stringify(usv(input).slice(0, 200))}`);
      if (parts[3] !== '' || parts[4] !== '') throw new TypeError('the address of a request has no user name or password');
      this.#url = parts;
    }
    if (init.window !== undefined && init.window !== null) throw new TypeError('window must be null');
    for (const name of keys(requestOptions)) {
      if (init[name] === undefined) continue;
      const v = string(init[name]);
      if (!requestOptions[name][1].includes(v)) throw new TypeError(`${name} cannot be ${stringify(v)}`);
      this.#options[name] = v;
    }
    if (init.integrity !== undefined) this.#options.integrity = string(init.integrity);
    if (init.keepalive !== undefined) this.#options.keepalive = !!init.keepalive;
    if (init.referrer !== undefined) this.#options.referrer = referrerOf(usv(init.referrer));
    if (init.method !== undefined) this.#method = methodOf(init.method);
    const signal = init.signal === undefined ? from === null ? null : from.#signal : init.signal;
    if (signal !== null && !(signal instanceof AbortSignal)) throw new TypeError('signal must be an AbortSignal');
    this.#signal = signal === null ? null : AbortSignal.any([signal]);
    this.#headers = new Headers(init.headers === undefined ? from === null ? undefined : from.#headers : init.headers);
    this.#takeBody(init, from);
  }
  #takeBody(init, from) {
    const given = init.body !== undefined && init.body !== null;
    const old = from === null ? null : bodyOf(from);
    if ((given || old !== null) && (this.#method === 'GET' || this.#method === 'HEAD')) throw new TypeError(`a ${this.#method} request has no body`);
    if (!given) {
      if (old === null) return;
      if (isBusy(old)) throw new TypeError('the body of the request was read already');
      setBody(this, old.stream === null ? bytesBody(old.bytes) : { bytes: null, stream: old.stream.pipeThrough(new TransformStream()), used: false });
      old.used = true;
      return;
    }
    const { body, type } = extract(init.body);
    if (body.stream !== null && init.duplex !== 'half') throw new TypeError('a request whose body is a stream needs duplex: "half"');
    if (type !== null && !this.#headers.has('content-type')) this.#headers.append('content-type', type);
    setBody(this, body);
  }
  get method() { return this.#method; }
  get url() { return this.#url[0]; }
  get headers() { return this.#headers; }
  get destination() { this.#url; return ''; }
  get referrer() { return this.#options.referrer ?? 'about:client'; }
  get referrerPolicy() { return this.#options.referrerPolicy ?? ''; }
  get mode() { return this.#options.mode ?? 'cors'; }
  get credentials() { return this.#options.credentials ?? 'same-origin'; }
  get cache() { return this.#options.cache ?? 'default'; }
  get redirect() { return this.#options.redirect ?? 'follow'; }
  get integrity() { return this.#options.integrity ?? ''; }
  get keepalive() { return this.#options.keepalive ?? false; }
  get isReloadNavigation() { this.#url; return false; }
  get isHistoryNavigation() { this.#url; return false; }
  get duplex() { this.#url; return 'half'; }
  get signal() { return this.#signal ??= newSignal(); }
  clone() {
    const body = bodyOf(this);
    if (isBusy(body)) throw new TypeError('the body of the request was read already');
    const r = new Request(this.#url[0], { method: this.#method, headers: this.#headers, signal: this.#signal, ...this.#options });
    setBody(r, cloneBody(body));
    return r;
  }
}

function referrerOf(v) {
  if (v === '') return '';
  if (parseURL(v) === null) throw new TypeError(`the referrer ${stringify(v)} is no URL`);
  return 'about:client'; // what is of another origin: there is no own one
}

let received;
const nullBody = [101, 103, 204, 205, 304];

class Response extends Body {
  #type = 'default'; #status = 200; #statusText = ''; #headers; #url = ''; #redirected = false;
  constructor(body = null, init = undefined) {
    super();
    init = dictionary(init, 'the options of a Response');
    if (init.status !== undefined) {
      const n = +init.status;
      if (!(n >= 200 && n < 600)) throw new RangeError('a status is a number from 200 to 599');
      this.#status = Math.trunc(n);
    }
    if (init.statusText !== undefined) {
      this.#statusText = byteString(init.statusText);
      if (testRegExp(/[^\t\x20-\x7e\x80-\xff]/, this.#statusText) !== null) throw new TypeError('the status text has a character that it cannot have');
    }
    this.#headers = new Headers(init.headers);
    if (body === null || body === undefined) return;
    if (nullBody.includes(this.#status)) throw new TypeError(`a response of status ${this.#status} has no body`);
    const e = extract(body);
    if (e.type !== null && !this.#headers.has('content-type')) this.#headers.append('content-type', e.type);
    setBody(this, e.body);
  }
  static {
    // received makes a response of what came over the wire.
    received = (wire, bytes) => {
      const r = new Response(null, { headers: wire.headers || [] });
      r.#status = wire.status;
      r.#statusText = wire.statusText;
      r.#url = wire.url;
      r.#redirected = !!wire.redirected;
      r.#type = 'basic';
      if (!nullBody.includes(wire.status)) setBody(r, bytesBody(bytes === undefined ? new Uint8Array() : bytes));
      guardHeaders(r.#headers);
      return r;
    };
  }
  static error() {
    const r = new Response();
    r.#type = 'error';
    r.#status = 0;
    guardHeaders(r.#headers);
    return r;
  }
  static redirect(url, status = 302) {
    need(arguments, 1, 'Response.redirect');
    const parts = parseURL(url);
    if (parts === null) throw new TypeError(`Invalid URL: ${stringify(usv(url).slice(0, 200))}`);
    if (![301, 302, 303, 307, 308].includes(+status)) throw new RangeError(`${status} is no status of a redirect`);
    const r = new Response(null, { headers: { location: parts[0] } });
    r.#status = +status;
    guardHeaders(r.#headers);
    return r;
  }
  static json(data, init = undefined) {
    need(arguments, 1, 'Response.json');
    const text = stringify(data);
    if (text === undefined) throw new TypeError('the data has no JSON');
    const r = new Response(text, init);
    const given = dictionary(init, 'the options of a Response').headers;
    if (given === undefined || !new Headers(given).has('content-type')) r.#headers.set('content-type', 'application/json');
    return r;
  }
  get type() { return this.#type; }
  get url() { return this.#url; }
  get redirected() { return this.#redirected; }
  get status() { return this.#status; }
  get ok() { return this.#status >= 200 && this.#status < 300; }
  get statusText() { return this.#statusText; }
  get headers() { return this.#headers; }
  clone() {
    const body = bodyOf(this);
    if (isBusy(body)) throw new TypeError('the body of the response was read already');
    const r = new Response(null, { statusText: this.#statusText, headers: this.#headers });
    setBody(r, cloneBody(body));
    [r.#type, r.#status, r.#url, r.#redirected] = [this.#type, this.#status, this.#url, this.#redirected];
    if (r.#type !== 'default') guardHeaders(r.#headers);
    return r;
  }
}
for (const c of [Request, Response]) mixIn(c);
expose(Request, Response);

function grantFetch() {
  define(globalThis, 'fetch', function fetch(input, init) {
    const stack = new Error().stack;
    return watched(send(input, init, stack), 'fetch(…)');
  });
}

async function send(input, init, stack) {
  const request = new Request(input, init);
  const signal = request.signal;
  signal.throwIfAborted();
  const body = bodyOf(request);
  const wire = { url: request.url, method: request.method, headers: sortHeaders(headerList(request.headers)) };
  if (request.redirect !== 'follow') wire.redirect = request.redirect;
  if (body !== null) wire.body = (await consume(body)).toBase64();
  signal.throwIfAborted();
  return new NativePromise((resolve, reject) => {
    const call = hostCall('fetch', 'fetch', stringify([wire]), received, stack);
    const id = lastId;
    onAbort(signal, () => {
      if (mapDelete(pending, id)) host(OP.cancel, id);
      reject(signal.reason);
    });
    then(call, resolve, reject);
  });
}

define(globalThis, 'fetch', function fetch() {
  return promiseReject(new TypeError('fetch is not granted to this run: the caller has to ask for the host in "outbound", and the tenant\'s policy has to allow it'));
});
