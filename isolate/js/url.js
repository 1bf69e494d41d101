// ---- URL, URLSearchParams ----

// An address as the host gives it: href, origin, protocol, username, password,
// host, hostname, port, pathname, search, hash.
function parseURL(url, base) {
  const parts = base === undefined ? host(OP.url, usv(url)) : host(OP.url, usv(url), usv(base));
  return parts === undefined ? null : split(parts, '\n');
}

let setQuery, attachParams, replaceParams;

class URL {
  #parts;
  #params = null;
  constructor(url, base = undefined) {
    need(arguments, 1, 'URL');
    const parts = parseURL(url, base);
    if (parts === null) throw new TypeError(`Invalid URL: ${stringify(usv(url).slice(0, 200))}`);
    this.#parts = parts;
  }
  static {
    setQuery = (url, query) => { url.#set('search', query); };
  }
  #set(name, value) {
    const parts = host(OP.setURL, this.#parts[0], name, value);
    if (parts !== undefined) this.#parts = split(parts, '\n');
  }
  #sync() {
    if (this.#params !== null) replaceParams(this.#params, this.#parts[9]);
  }
  static parse(url, base = undefined) {
    need(arguments, 1, 'URL.parse');
    return parseURL(url, base) === null ? null : new URL(url, base);
  }
  static canParse(url, base = undefined) {
    need(arguments, 1, 'URL.canParse');
    return parseURL(url, base) !== null;
  }
  get href() { return this.#parts[0]; }
  set href(v) {
    const parts = parseURL(v);
    if (parts === null) throw new TypeError(`Invalid URL: ${stringify(usv(v).slice(0, 200))}`);
    this.#parts = parts;
    this.#sync();
  }
  get origin() { return this.#parts[1]; }
  get protocol() { return this.#parts[2]; }
  set protocol(v) { this.#set('protocol', usv(v)); }
  get username() { return this.#parts[3]; }
  set username(v) { this.#set('username', usv(v)); }
  get password() { return this.#parts[4]; }
  set password(v) { this.#set('password', usv(v)); }
  get host() { return this.#parts[5]; }
  set host(v) { this.#set('host', usv(v)); }
  get hostname() { return this.#parts[6]; }
  set hostname(v) { this.#set('hostname', usv(v)); }
  get port() { return this.#parts[7]; }
  set port(v) { this.#set('port', usv(v)); }
  get pathname() { return this.#parts[8]; }
  set pathname(v) { this.#set('pathname', usv(v)); }
  get search() { return this.#parts[9]; }
  set search(v) { this.#set('search', usv(v)); this.#sync(); }
  get searchParams() { return this.#params ??= attachParams(this, this.#parts[9]); }
  get hash() { return this.#parts[10]; }
  set hash(v) { this.#set('hash', usv(v)); }
  toString() { return this.#parts[0]; }
  toJSON() { return this.#parts[0]; }
}

class URLSearchParams {
  #list = [];
  #url = null; // that it belongs to
  constructor(init = '') {
    if (isObject(init)) this.#list = pairsOf(init, usv, usv);
    else this.#list = parseForm(usv(init).replace(/^\?/, ''));
  }
  static {
    attachParams = (url, search) => { const p = new URLSearchParams(search); p.#url = url; return p; };
    replaceParams = (p, search) => { p.#list = parseForm(search.slice(1)); };
    iterable(URLSearchParams, (p) => p.#list);
  }
  #update() {
    if (this.#url !== null) setQuery(this.#url, serializeForm(this.#list));
  }
  get size() { return this.#list.length; }
  append(name, value) {
    need(arguments, 2, 'append');
    push(this.#list, [usv(name), usv(value)]);
    this.#update();
  }
  delete(name, value = undefined) {
    need(arguments, 1, 'delete');
    name = usv(name);
    if (value !== undefined) value = usv(value);
    this.#list = this.#list.filter(([k, v]) => k !== name || value !== undefined && v !== value);
    this.#update();
  }
  get(name) {
    need(arguments, 1, 'get');
    name = usv(name);
    const pair = this.#list.find(([k]) => k === name);
    return pair === undefined ? null : pair[1];
  }
  getAll(name) {
    need(arguments, 1, 'getAll');
    name = usv(name);
    return this.#list.filter(([k]) => k === name).map(([, v]) => v);
  }
  has(name, value = undefined) {
    need(arguments, 1, 'has');
    name = usv(name);
    if (value !== undefined) value = usv(value);
    return this.#list.some(([k, v]) => k === name && (value === undefined || v === value));
  }
  set(name, value) {
    need(arguments, 2, 'set');
    name = usv(name);
    value = usv(value);
    const i = this.#list.findIndex(([k]) => k === name);
    if (i < 0) push(this.#list, [name, value]);
    else this.#list = this.#list.filter(([k], j) => j <= i || k !== name).map((pair, j) => j === i ? [name, value] : pair);
    this.#update();
  }
  sort() {
    this.#list.sort(([a], [b]) => a < b ? -1 : a > b ? 1 : 0);
    this.#update();
  }
  toString() { return serializeForm(this.#list); }
}
expose(URL, URLSearchParams);

// application/x-www-form-urlencoded

const formEncode = (s) => encodeURIComponent(s).replace(/%20|[!'()~]/g, (c) => c === '%20' ? '+' : '%' + c.charCodeAt(0).toString(16).toUpperCase());

function serializeForm(list) {
  return list.map(([k, v]) => formEncode(k) + '=' + formEncode(v)).join('&');
}

function parseForm(s) {
  const out = [];
  if (s === '') return out;
  for (const part of s.split('&')) {
    if (part === '') continue;
    const i = part.indexOf('=');
    push(out, i < 0 ? [formDecode(part), ''] : [formDecode(part.slice(0, i)), formDecode(part.slice(i + 1))]);
  }
  return out;
}

function formDecode(s) {
  s = s.replaceAll('+', ' ');
  if (!s.includes('%')) return s;
  try {
    return decodeURIComponent(s);
  } catch {
    const bytes = encodeUTF8(s);
    let n = 0;
    for (let i = 0; i < bytes.length; i++, n++) {
      const code = bytes[i] === 0x25 && i + 2 < bytes.length ? parseHex(bytes[i + 1], bytes[i + 2]) : -1;
      bytes[n] = code < 0 ? bytes[i] : code;
      if (code >= 0) i += 2;
    }
    return decodeUTF8(subBytes(bytes, 0, n));
  }
}

function parseHex(a, b) {
  const digit = (c) => c >= 48 && c <= 57 ? c - 48 : (c |= 32) >= 97 && c <= 102 ? c - 87 : -1;
  a = digit(a);
  b = digit(b);
  return a < 0 || b < 0 ? -1 : 16 * a + b;
}
