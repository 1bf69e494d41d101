// URL and URLSearchParams as the URL standard has them, for what code in an
// isolate does with them: build and take apart http(s) addresses. Left out:
// host names that are not ASCII, and IPv4 addresses in other notations than the
// usual one, which are kept as they are written; the egress proxy judges hosts
// by itself in any case.
(function () {
  'use strict';

  const ports = { 'http:': '80', 'https:': '443', 'ws:': '80', 'wss:': '443', 'ftp:': '21', 'file:': '' };
  const special = (scheme) => Object.hasOwn(ports, scheme);
  const utf8 = (s) => encodeURIComponent(s.isWellFormed() ? s : s.toWellFormed());

  // escape percent-encodes what is no printable ASCII or is in set.
  const escape = (s, set) => s.replace(/[^\x21-\x7e]|[\ud800-\udbff][\udc00-\udfff]/g, utf8).replace(set, (c) => '%' + c.charCodeAt(0).toString(16).toUpperCase().padStart(2, '0'));
  const inFragment = /["<>`]/g, inQuery = /["#<>]/g, inSpecialQuery = /["#<>']/g, inPath = /["#<>?`{}^]/g, inUser = /["#<>?`{}/:;=@[\\\]^|]/g;

  function define(object, name, value) {
    Object.defineProperty(object, name, { value, writable: true, enumerable: false, configurable: true });
  }

  // ---- URLSearchParams ----

  const formEncode = (s) => utf8(String(s)).replace(/%20/g, '+').replace(/[!'()~]/g, (c) => '%' + c.charCodeAt(0).toString(16).toUpperCase());
  function formDecode(s) {
    s = s.replace(/\+/g, ' ');
    if (!s.includes('%')) return s;
    return s.replace(/(%[0-9a-f]{2})+/gi, (run) => {
      try {
        return decodeURIComponent(run);
      } catch {
        return new TextDecoder().decode(Uint8Array.fromHex(run.replaceAll('%', '')));
      }
    });
  }

  class URLSearchParams {
    #list = [];
    #changed = null; // of the URL that it belongs to
    constructor(init = '') {
      if (init !== null && typeof init === 'object') {
        const pairs = typeof init[Symbol.iterator] === 'function' ? init : Object.entries(init);
        for (const pair of pairs) {
          const [k, v, more] = pair;
          if (v === undefined && pair.length < 2 || more !== undefined) throw new TypeError('a pair has a name and a value');
          this.#list.push([String(k), String(v)]);
        }
      } else {
        this.#parse(String(init).replace(/^\?/, ''));
      }
    }
    static {
      attach = (search, f) => { const p = new URLSearchParams(search); p.#changed = f; return p; };
      reparse = (p, search) => { p.#list = []; p.#parse(search.replace(/^\?/, '')); };
    }
    #parse(s) {
      for (const part of s.split('&')) {
        if (part === '') continue;
        const i = part.indexOf('=');
        this.#list.push([formDecode(i < 0 ? part : part.slice(0, i)), i < 0 ? '' : formDecode(part.slice(i + 1))]);
      }
    }
    #update() { if (this.#changed) this.#changed(this.toString()); }
    get size() { return this.#list.length; }
    append(k, v) { this.#list.push([String(k), String(v)]); this.#update(); }
    delete(k, v) { this.#list = this.#list.filter(([a, b]) => a !== String(k) || v !== undefined && b !== String(v)); this.#update(); }
    get(k) { const p = this.#list.find(([a]) => a === String(k)); return p ? p[1] : null; }
    getAll(k) { return this.#list.filter(([a]) => a === String(k)).map(([, b]) => b); }
    has(k, v) { return this.#list.some(([a, b]) => a === String(k) && (v === undefined || b === String(v))); }
    set(k, v) {
      k = String(k); v = String(v);
      const i = this.#list.findIndex(([a]) => a === k);
      if (i < 0) this.#list.push([k, v]);
      else this.#list = this.#list.filter((p, j) => j <= i || p[0] !== k).map((p, j) => j === i ? [k, v] : p);
      this.#update();
    }
    sort() { this.#list.sort(([a], [b]) => a < b ? -1 : a > b ? 1 : 0); this.#update(); }
    forEach(f, self) { for (const [k, v] of this.#list) f.call(self, v, k, this); }
    *entries() { for (const [k, v] of this.#list) yield [k, v]; }
    *keys() { for (const [k] of this.#list) yield k; }
    *values() { for (const [, v] of this.#list) yield v; }
    [Symbol.iterator]() { return this.entries(); }
    toString() { return this.#list.map(([k, v]) => formEncode(k) + '=' + formEncode(v)).join('&'); }
    get [Symbol.toStringTag]() { return 'URLSearchParams'; }
  }
  var attach, reparse;

  // ---- URL ----

  function fail(s) {
    throw new TypeError(`Invalid URL: ${JSON.stringify(String(s)).slice(0, 200)}`);
  }

  function parseHost(host, scheme) {
    if (!special(scheme)) return escape(host, /["#<>?`{}/@\\^|]/g);
    if (host.startsWith('[')) return /^\[[0-9a-f:.]+\]$/i.test(host) ? host.toLowerCase() : null;
    try {
      host = decodeURIComponent(host).toLowerCase();
    } catch {
      return null;
    }
    if (host === '' && scheme !== 'file:' || /[^\x21-\x7e]|[#%/:<>?@[\\\]^|]/.test(host)) return null;
    return host;
  }

  function parsePath(path, base, scheme) {
    const split = special(scheme) ? /[/\\]/ : /\//;
    const out = base;
    const parts = path.split(split);
    parts.forEach((part, i) => {
      const last = i === parts.length - 1;
      if (/^(\.|%2e){2}$/i.test(part)) {
        out.pop();
        if (last) out.push('');
      } else if (/^(\.|%2e)$/i.test(part)) {
        if (last) out.push('');
      } else {
        out.push(escape(part, inPath));
      }
    });
    return out;
  }

  // parse gives the parts of s, relative to base if it has no scheme.
  function parse(s, base) {
    s = String(s).replace(/^[\0-\x20]+|[\0-\x20]+$/g, '').replace(/[\t\n\r]/g, '');
    const u = { scheme: '', user: '', password: '', host: null, port: '', path: [], opaque: null, query: null, fragment: null };
    let rest = s;
    const hash = rest.indexOf('#');
    if (hash >= 0) { u.fragment = escape(rest.slice(hash + 1), inFragment); rest = rest.slice(0, hash); }
    const m = /^([a-z][a-z0-9+.-]*):/i.exec(rest);
    if (m) { u.scheme = m[1].toLowerCase() + ':'; rest = rest.slice(m[0].length); }
    else if (!base || base.opaque !== null && (rest !== '' || hash < 0)) return null;
    else u.scheme = base.scheme;
    const relative = !m || base && special(u.scheme) && base.scheme === u.scheme && !/^[/\\]/.test(rest);
    const slash = special(u.scheme) ? /^[/\\]/ : /^\//;
    const mark = rest.indexOf('?');
    if (mark >= 0) { u.query = escape(rest.slice(mark + 1), special(u.scheme) ? inSpecialQuery : inQuery); rest = rest.slice(0, mark); }
    const authority = special(u.scheme) ? (relative && base ? /^[/\\]{2}/ : u.scheme === 'file:' ? /^[/\\]{2}/ : /^[/\\]*/) : /^\/\//;
    if (relative && base && !authority.test(rest)) {
      [u.user, u.password, u.host, u.port, u.opaque] = [base.user, base.password, base.host, base.port, base.opaque];
      if (base.opaque !== null) { u.query = base.query; return u; }
      if (rest === '') { u.path = [...base.path]; if (mark < 0) u.query = base.query; }
      else if (slash.test(rest)) u.path = parsePath(rest.slice(1), [], u.scheme);
      else u.path = parsePath(rest, base.path.slice(0, -1), u.scheme);
      return u;
    }
    if (authority.test(rest)) {
      rest = rest.replace(special(u.scheme) && u.scheme !== 'file:' ? /^[/\\]*/ : authority, '');
      const end = rest.search(special(u.scheme) ? /[/\\]/ : /\//);
      let host = end < 0 ? rest : rest.slice(0, end);
      rest = end < 0 ? '' : rest.slice(end);
      const at = host.lastIndexOf('@');
      if (at >= 0) {
        const info = host.slice(0, at), colon = info.indexOf(':');
        u.user = escape(colon < 0 ? info : info.slice(0, colon), inUser);
        if (colon >= 0) u.password = escape(info.slice(colon + 1), inUser);
        host = host.slice(at + 1);
      }
      const port = /:([0-9]*)$/.exec(host);
      if (port) { host = host.slice(0, port.index); if (!setPort(u, port[1])) return null; }
      u.host = parseHost(host, u.scheme);
      if (u.host === null) return null;
      if (u.scheme === 'file:' && u.host === 'localhost') u.host = '';
    } else if (!special(u.scheme) && !rest.startsWith('/')) {
      u.opaque = escape(rest, /\0/g);
      return u;
    } else if (u.scheme === 'file:') {
      u.host = '';
    }
    if (rest !== '' || special(u.scheme)) u.path = parsePath(slash.test(rest) ? rest.slice(1) : rest, [], u.scheme);
    return u;
  }

  function setPort(u, digits) {
    if (digits === '') { u.port = ''; return true; }
    const n = Number(digits);
    if (!/^[0-9]+$/.test(digits) || n > 65535) return false;
    u.port = String(n) === ports[u.scheme] ? '' : String(n);
    return true;
  }

  class URL {
    #u; #params;
    constructor(url, base) {
      let b;
      if (base !== undefined && !(b = parse(base))) fail(base);
      const u = parse(url, b);
      if (!u) fail(url);
      this.#u = u;
    }
    static parse(url, base) { try { return new URL(url, base); } catch { return null; } }
    static canParse(url, base) { return URL.parse(url, base) !== null; }
    get href() {
      const u = this.#u;
      let s = u.scheme;
      if (u.host !== null) s += '//' + (u.user || u.password ? u.user + (u.password ? ':' + u.password : '') + '@' : '') + this.host;
      return s + this.pathname + (u.query === null ? '' : '?' + u.query) + (u.fragment === null ? '' : '#' + u.fragment);
    }
    set href(v) { const u = parse(v); if (!u) fail(v); this.#u = u; this.#sync(); }
    get origin() { return special(this.#u.scheme) && this.#u.scheme !== 'file:' ? this.#u.scheme + '//' + this.host : 'null'; }
    get protocol() { return this.#u.scheme; }
    set protocol(v) { const m = /^([a-z][a-z0-9+.-]*):?/i.exec(String(v)); if (m && special(m[1].toLowerCase() + ':') === special(this.#u.scheme)) { this.#u.scheme = m[1].toLowerCase() + ':'; setPort(this.#u, this.#u.port); } }
    get username() { return this.#u.user; }
    set username(v) { if (this.#u.host) this.#u.user = escape(String(v), inUser); }
    get password() { return this.#u.password; }
    set password(v) { if (this.#u.host) this.#u.password = escape(String(v), inUser); }
    get host() { return (this.#u.host || '') + (this.#u.port === '' ? '' : ':' + this.#u.port); }
    set host(v) { const m = /^(\[[^\]]*\]|[^:/?#\\]*)(?::([0-9]*))?/.exec(String(v)); this.hostname = m[1]; if (m[2]) this.port = m[2]; }
    get hostname() { return this.#u.host || ''; }
    set hostname(v) { if (this.#u.opaque !== null) return; const h = parseHost(String(v).replace(/[/?#\\].*$/s, ''), this.#u.scheme); if (h !== null) this.#u.host = h; }
    get port() { return this.#u.port; }
    set port(v) { if (this.#u.host) { const m = /^[0-9]*/.exec(String(v)); if (m[0] !== '' || String(v) === '') setPort(this.#u, m[0]); } }
    get pathname() { return this.#u.opaque !== null ? this.#u.opaque : this.#u.path.map((p) => '/' + p).join(''); }
    set pathname(v) { if (this.#u.opaque === null) this.#u.path = parsePath(String(v).replace(/^[/\\]/, ''), [], this.#u.scheme); }
    get search() { return this.#u.query ? '?' + this.#u.query : ''; }
    set search(v) { v = String(v).replace(/^\?/, ''); this.#u.query = v === '' ? null : escape(v, inSpecialQuery); this.#sync(); }
    get hash() { return this.#u.fragment ? '#' + this.#u.fragment : ''; }
    set hash(v) { v = String(v).replace(/^#/, ''); this.#u.fragment = v === '' ? null : escape(v, inFragment); }
    get searchParams() {
      return this.#params ??= attach(this.search, (s) => { this.#u.query = s === '' ? null : s; });
    }
    #sync() { if (this.#params) reparse(this.#params, this.search); }
    toString() { return this.href; }
    toJSON() { return this.href; }
    get [Symbol.toStringTag]() { return 'URL'; }
  }

  define(globalThis, 'URL', URL);
  define(globalThis, 'URLSearchParams', URLSearchParams);
})();
