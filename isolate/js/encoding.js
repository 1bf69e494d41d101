// ---- Encoding ----

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
