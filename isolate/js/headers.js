// ---- Headers ----

let headerList, guardHeaders;

class Headers {
  #list = []; // [name, value], the names in lower case
  #immutable = false;
  #sorted = null; // #list as it is iterated
  constructor(init = undefined) {
    if (init === undefined) return;
    if (!isObject(init)) throw new TypeError('headers are an object, or a list of pairs');
    if (#list in init && init[iterator] === headersIterator) {
      this.#list = slice(init.#list);
      return;
    }
    for (const [name, value] of pairsOf(init, byteString, byteString)) this.append(name, value);
  }
  static {
    headerList = (h) => h.#list;
    guardHeaders = (h) => { h.#immutable = true; };
    iterable(Headers, (h) => h.#sorted ??= sortHeaders(h.#list));
  }
  #change(list) {
    this.#list = list;
    this.#sorted = null;
  }
  #check(name, value = '') {
    if (!isToken(name)) throw new TypeError(`${stringify(name)} is not a header name`);
    if (testRegExp(/[\0\r\n]/, value) !== null) throw new TypeError(`${stringify(value)} is not a header value`);
    if (this.#immutable) throw new TypeError('these headers cannot be changed');
    return toLower(name);
  }
  append(name, value) {
    need(arguments, 2, 'append');
    name = byteString(name);
    value = headerValue(value);
    name = this.#check(name, value);
    push(this.#list, [name, value]);
    this.#sorted = null;
  }
  set(name, value) {
    need(arguments, 2, 'set');
    name = byteString(name);
    value = headerValue(value);
    name = this.#check(name, value);
    const i = this.#list.findIndex(([k]) => k === name);
    if (i < 0) push(this.#list, [name, value]);
    else this.#list = this.#list.filter(([k], j) => j <= i || k !== name).map((pair, j) => j === i ? [name, value] : pair);
    this.#sorted = null;
  }
  get(name) {
    need(arguments, 1, 'get');
    name = headerName(name);
    const all = this.#list.filter(([k]) => k === name);
    return all.length === 0 ? null : all.map(([, v]) => v).join(', ');
  }
  getSetCookie() { return this.#list.filter(([k]) => k === 'set-cookie').map(([, v]) => v); }
  has(name) {
    need(arguments, 1, 'has');
    name = headerName(name);
    return this.#list.some(([k]) => k === name);
  }
  delete(name) {
    need(arguments, 1, 'delete');
    name = this.#check(byteString(name));
    this.#change(this.#list.filter(([k]) => k !== name));
  }
}
const headersIterator = Headers.prototype[iterator];
expose(Headers);

const isToken = (s) => testRegExp(/^[!#$%&'*+\-.^_`|~0-9A-Za-z]+$/, s) !== null;

function headerName(v) {
  const s = byteString(v);
  if (!isToken(s)) throw new TypeError(`${stringify(s)} is not a header name`);
  return toLower(s);
}

const headerValue = (v) => byteString(v).replace(/^[\t\n\r ]+|[\t\n\r ]+$/g, '');

function sortHeaders(list) {
  const names = [...new Set(list.map(([k]) => k))].sort();
  const out = [];
  for (const name of names) {
    const values = list.filter(([k]) => k === name).map(([, v]) => v);
    if (name === 'set-cookie') for (const v of values) push(out, [name, v]);
    else push(out, [name, values.join(', ')]);
  }
  return out;
}
