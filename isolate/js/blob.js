// ---- Blob, File, FormData ----

let blobBytes, newBlob;

class Blob {
  #bytes; #type;
  constructor(parts = undefined, options = undefined) {
    const list = [];
    if (parts !== undefined) {
      const iterate = isObject(parts) ? parts[iterator] : undefined;
      if (typeof iterate !== 'function') throw new TypeError('the parts of a Blob are a list');
      for (const p of { [iterator]: () => apply(iterate, parts, []) }) push(list, isBytes(p) ? copyBytes(p) : p instanceof Blob ? p : string(p));
    }
    options = dictionary(options, 'the options of a Blob');
    const ends = options.endings === undefined ? 'transparent' : string(options.endings);
    if (ends !== 'transparent' && ends !== 'native') throw new TypeError(`endings cannot be ${ends}`);
    this.#type = options.type === undefined ? '' : blobType(string(options.type));
    this.#bytes = concatBytes(list.map((p) => typeof p === 'string' ? encodeUTF8(ends === 'native' ? p.replace(/\r\n?/g, '\n') : p) : p instanceof Blob ? p.#bytes : p));
  }
  static {
    blobBytes = (b) => b.#bytes;
    // The bytes are the new blob's own.
    newBlob = (bytes, type) => { const b = new Blob(); b.#bytes = bytes; b.#type = blobType(type); return b; };
  }
  get size() { return this.#bytes.length; }
  get type() { return this.#type; }
  slice(start = undefined, end = undefined, type = '') {
    const clamp = (v, or) => {
      if (v === undefined) return or;
      v = Math.trunc(+v) || 0;
      return v < 0 ? Math.max(this.#bytes.length + v, 0) : Math.min(v, this.#bytes.length);
    };
    const from = clamp(start, 0), to = clamp(end, this.#bytes.length);
    return newBlob(subBytes(this.#bytes, from, Math.max(from, to)), string(type));
  }
  async text() { return decodeUTF8(this.#bytes).replace(/^\ufeff/, ''); }
  async arrayBuffer() { return sliceBytes(this.#bytes).buffer; }
  async bytes() { return sliceBytes(this.#bytes); }
  stream() { return byteStream(this.#bytes); }
}

function blobType(type) {
  return /[^\x20-\x7e]/.test(type) ? '' : type.toLowerCase();
}

class File extends Blob {
  #name; #modified;
  constructor(parts, name, options = undefined) {
    need(arguments, 2, 'File');
    if (!isObject(parts) || typeof parts[iterator] !== 'function') throw new TypeError('the parts of a File are a list');
    super(parts, options);
    this.#name = usv(name);
    const at = dictionary(options, 'the options of a File').lastModified;
    this.#modified = at === undefined ? dateNow() : Math.trunc(+at) || 0;
  }
  get name() { return this.#name; }
  get lastModified() { return this.#modified; }
  get webkitRelativePath() { this.#name; return ''; }
}

const newFile = (blob, name, modified) => new File([blob], name, { type: blob.type, lastModified: modified });

let formEntries;

class FormData {
  #list = [];
  constructor(form = undefined) {
    if (form !== undefined) throw new TypeError('there are no HTML forms here');
  }
  static {
    formEntries = (f) => f.#list;
    iterable(FormData, (f) => f.#list);
  }
  #entry(args, what) {
    need(args, 2, what);
    const [name, value, file] = args;
    if (args.length > 2 && !(value instanceof Blob)) throw new TypeError('what has a file name must be a Blob');
    const v = !(value instanceof Blob) ? usv(value)
      : file !== undefined ? newFile(value, usv(file), value.lastModified)
        : value instanceof File ? value : newFile(value, 'blob');
    return [usv(name), v];
  }
  append() { push(this.#list, this.#entry(arguments, 'append')); }
  set() {
    const entry = this.#entry(arguments, 'set');
    const i = this.#list.findIndex(([k]) => k === entry[0]);
    if (i < 0) push(this.#list, entry);
    else this.#list = this.#list.filter(([k], j) => j <= i || k !== entry[0]).map((e, j) => j === i ? entry : e);
  }
  delete(name) {
    need(arguments, 1, 'delete');
    name = usv(name);
    this.#list = this.#list.filter(([k]) => k !== name);
  }
  get(name) {
    need(arguments, 1, 'get');
    name = usv(name);
    const e = this.#list.find(([k]) => k === name);
    return e === undefined ? null : e[1];
  }
  getAll(name) {
    need(arguments, 1, 'getAll');
    name = usv(name);
    return this.#list.filter(([k]) => k === name).map(([, v]) => v);
  }
  has(name) {
    need(arguments, 1, 'has');
    name = usv(name);
    return this.#list.some(([k]) => k === name);
  }
}
expose(Blob, File, FormData);

// ---- multipart/form-data ----

const quote = (s) => s.replace(/[\r\n"]/g, (c) => c === '"' ? '%22' : c === '\r' ? '%0D' : '%0A');

// encodeMultipart gives the bytes and the boundary of a form.
function encodeMultipart(form) {
  const boundary = '----formdata-' + host(OP.random, 12).toHex();
  const parts = [];
  for (const [name, value] of formEntries(form)) {
    let head = `--${boundary}\r\nContent-Disposition: form-data; name="${quote(name.replace(/\r\n?|\n/g, '\r\n'))}"`;
    if (typeof value === 'string') {
      push(parts, encodeUTF8(`${head}\r\n\r\n${value.replace(/\r\n?|\n/g, '\r\n')}\r\n`));
      continue;
    }
    head += `; filename="${quote(value.name)}"\r\nContent-Type: ${value.type || 'application/octet-stream'}\r\n\r\n`;
    push(parts, encodeUTF8(head), blobBytes(value), encodeUTF8('\r\n'));
  }
  push(parts, encodeUTF8(`--${boundary}--\r\n`));
  return { bytes: concatBytes(parts), boundary };
}

// decodeMultipart reads a form, or throws a TypeError.
function decodeMultipart(bytes, boundary) {
  const bad = (why) => { throw new TypeError(`the body is no form: ${why}`); };
  const latin1 = host(OP.decode, bytes, 'x-user-defined', 0); // one unit for each byte
  const line = `--${boundary}`;
  const form = new FormData();
  let at = latin1.startsWith(line) ? 0 : latin1.indexOf(`\r\n${line}`) + 2;
  if (at === 1) bad('there is no boundary in it');
  for (;;) {
    at += line.length;
    if (latin1.startsWith('--', at)) return form;
    const start = latin1.indexOf('\r\n', at);
    if (start < 0 || latin1.slice(at, start).trim() !== '') bad('a boundary goes on');
    // The line break of a boundary begins the headers, which may be none.
    const end = latin1.indexOf('\r\n\r\n', start);
    if (end < 0) bad('the headers of a part do not end');
    const next = latin1.indexOf(`\r\n${line}`, end + 2);
    if (next < 0) bad('a part does not end');
    addPart(form, decodeUTF8(subBytes(bytes, start, end)), subBytes(bytes, end + 4, Math.max(next, end + 4)), bad);
    at = next + 2;
  }
}

function addPart(form, head, body, bad) {
  const header = (name) => {
    const m = new RegExp(`\\r\\n${name}[ \\t]*:[ \\t]*([^\\r\\n]*)`, 'i').exec(head);
    return m === null ? null : m[1];
  };
  const disposition = header('content-disposition');
  if (disposition === null || !/^form-data[ \t]*(;|$)/i.test(disposition)) bad('a part is no form-data');
  const param = (name) => {
    const m = new RegExp(`;[ \\t]*${name}=("([^"]*)"|[^;"]*)`, 'i').exec(disposition);
    return m === null ? null : (m[2] === undefined ? m[1].trim() : m[2]).replace(/%0A|%0D|%22/gi, (c) => c === '%22' ? '"' : c.toUpperCase() === '%0D' ? '\r' : '\n');
  };
  const name = param('name'), file = param('filename');
  if (name === null) bad('a part has no name');
  if (file === null) form.append(name, decodeUTF8(body));
  else form.append(name, new File([newBlob(body, '')], file, { type: header('content-type') ?? 'text/plain' }));
}
