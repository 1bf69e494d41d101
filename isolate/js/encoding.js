// ---- TextEncoder, TextDecoder ----

class TextEncoder {
  #check() {} // refuses what is no TextEncoder
  get encoding() { this.#check(); return 'utf-8'; }
  encode(input = '') { this.#check(); return encodeUTF8(string(input)); }
  encodeInto(source, destination) {
    this.#check();
    need(arguments, 2, 'encodeInto');
    if (!(destination instanceof Uint8Array)) throw new TypeError('encodeInto writes to an Uint8Array');
    // Each unit has a byte at least.
    const bytes = encodeUTF8(string(source).slice(0, destination.length + 1));
    let n = bytes.length > destination.length ? destination.length : bytes.length;
    while (n > 0 && n < bytes.length && (bytes[n] & 0xc0) === 0x80) n--;
    const part = subBytes(bytes, 0, n);
    setBytes(destination, part);
    return { read: decodeUTF8(part).length, written: n };
  }
}

class TextDecoder {
  #encoding; #fatal; #ignoreBOM;
  #rest = null; // bytes whose character is not complete
  #begun = false; // something has come out
  constructor(label = 'utf-8', options = undefined) {
    const name = toLower(string(label).replace(/^[\t\n\f\r ]+|[\t\n\f\r ]+$/g, ''));
    options = dictionary(options, 'the options of a TextDecoder');
    this.#encoding = name === 'utf-8' || name === 'utf8' ? 'utf-8' : host(OP.encoding, name);
    if (this.#encoding === '') throw new RangeError(`there is no encoding ${stringify(label)}`);
    this.#fatal = !!options.fatal;
    this.#ignoreBOM = !!options.ignoreBOM;
  }
  get encoding() { return this.#encoding; }
  get fatal() { return this.#fatal; }
  get ignoreBOM() { return this.#ignoreBOM; }
  decode(input = undefined, options = undefined) {
    let bytes = input === undefined ? new Uint8Array() : bytesOf(input);
    const stream = !!dictionary(options, 'the options of decode').stream;
    if (bytes.buffer instanceof SharedArrayBuffer) bytes = copyBytes(bytes);
    if (this.#rest !== null) bytes = concatBytes([this.#rest, bytes]);
    this.#rest = null;
    if (stream) {
      const n = incomplete(this.#encoding, bytes);
      if (n > 0) this.#rest = sliceBytes(bytes, bytes.length - n);
      bytes = subBytes(bytes, 0, bytes.length - n);
      if (this.#encoding === 'iso-2022-jp') this.#rest = concatBytes([lastEscape(bytes), this.#rest ?? []]);
    }
    const begun = this.#begun;
    this.#begun = stream && (begun || bytes.length > 0);
    const s = host(OP.decode, bytes, this.#encoding, this.#fatal ? 1 : 0);
    if (s === undefined) {
      this.#begun = false;
      this.#rest = null;
      throw new TypeError(`the bytes are not ${this.#encoding}`);
    }
    return !begun && !this.#ignoreBOM && charCode(s, 0) === 0xfeff && (this.#encoding === 'utf-8' || this.#encoding.startsWith('utf-16')) ? s.slice(1) : s;
  }
}
expose(TextEncoder, TextDecoder);

// incomplete is how many bytes at the end wait for the next ones.
function incomplete(encoding, bytes) {
  const n = bytes.length;
  switch (encoding) {
    case 'utf-8':
      for (let back = 1; back <= 3 && back <= n; back++) {
        const lead = bytes[n - back];
        if ((lead & 0xc0) === 0x80) continue;
        if (lead < 0xc2 || lead > 0xf4 || (lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2) <= back) return 0;
        if (back > 1) {
          const next = bytes[n - back + 1];
          if (lead === 0xe0 && next < 0xa0 || lead === 0xed && next > 0x9f || lead === 0xf0 && next < 0x90 || lead === 0xf4 && next > 0x8f) return 0;
        }
        return back;
      }
      return 0;
    case 'utf-16le': case 'utf-16be': {
      const odd = n % 2, high = encoding === 'utf-16le' ? n - odd - 1 : n - odd - 2;
      return high >= 0 && (bytes[high] & 0xfc) === 0xd8 ? odd + 2 : odd;
    }
    case 'big5': case 'euc-jp': case 'euc-kr': case 'gb18030': case 'gbk': case 'iso-2022-jp': case 'shift_jis':
      return host(OP.incomplete, bytes, encoding);
  }
  return 0;
}

// lastEscape is the sequence that says how the next bytes of ISO-2022-JP are
// read.
function lastEscape(bytes) {
  for (let i = bytes.length - 3; i >= 0; i--) if (bytes[i] === 0x1b) return sliceBytes(bytes, i, i + 3);
  return [];
}
