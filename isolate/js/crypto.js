// ---- crypto ----

const isInteger = (v) => isView(v) && !(v instanceof DataView || v instanceof Float16Array || v instanceof Float32Array || v instanceof Float64Array);
const cryptoToken = {};

class Crypto {
  #subtle;
  constructor(token) {
    if (token !== cryptoToken) throw new TypeError('there is one Crypto, which is called crypto');
    this.#subtle = new SubtleCrypto(token);
  }
  get subtle() { return this.#subtle; }
  getRandomValues(view) {
    this.#subtle;
    need(arguments, 1, 'getRandomValues');
    if (!isInteger(view)) throw new DOMException('getRandomValues wants an array of integers', 'TypeMismatchError');
    if (view.byteLength > 65536) throw new DOMException('getRandomValues gives at most 65536 bytes at once', 'QuotaExceededError');
    setBytes(bytesOf(view), host(OP.random, view.byteLength));
    return view;
  }
  randomUUID() {
    this.#subtle;
    const b = host(OP.random, 16);
    b[6] = b[6] & 0x0f | 0x40;
    b[8] = b[8] & 0x3f | 0x80;
    const h = b.toHex();
    return `${h.slice(0, 8)}-${h.slice(8, 12)}-${h.slice(12, 16)}-${h.slice(16, 20)}-${h.slice(20)}`;
  }
}

let keyData;
class CryptoKey {
  #data; #algorithm; #extractable; #usages;
  constructor(token, data, algorithm, extractable, usages) {
    if (token !== cryptoToken) throw new TypeError('a CryptoKey is made by crypto.subtle');
    this.#data = data;
    this.#algorithm = algorithm;
    this.#extractable = extractable;
    this.#usages = usages;
  }
  static { keyData = (key) => key.#data; }
  get type() { this.#data; return 'secret'; }
  get extractable() { return this.#extractable; }
  get algorithm() { return this.#algorithm; }
  get usages() { return this.#usages; }
}

const hashes = { 'SHA-1': [64, 'HS1'], 'SHA-256': [64, 'HS256'], 'SHA-384': [128, 'HS384'], 'SHA-512': [128, 'HS512'] };
const keyUsages = ['encrypt', 'decrypt', 'sign', 'verify', 'deriveKey', 'deriveBits', 'wrapKey', 'unwrapKey'];

// algorithm reads what names one: its name in the usual letters.
function algorithm(v, known) {
  const name = isObject(v) ? v.name : v;
  if (name === undefined) throw new TypeError('an algorithm has a name');
  const s = string(name);
  for (const k of known) if (k.toUpperCase() === s.toUpperCase()) return k;
  throw new DOMException(`there is no algorithm ${s} here; there is ${known.join(', ')}`, 'NotSupportedError');
}
const hashOf = (v) => {
  if (!isObject(v) || v.hash === undefined) throw new TypeError('the algorithm needs a hash');
  return algorithm(v.hash, keys(hashes));
};

function usagesOf(list) {
  const all = [...list].map(string);
  for (const u of all) if (!keyUsages.includes(u)) throw new TypeError(`${u} is no use of a key`);
  for (const u of all) if (u !== 'sign' && u !== 'verify') throw new DOMException(`a HMAC key cannot ${u}`, 'SyntaxError');
  return ['sign', 'verify'].filter((u) => all.includes(u));
}

function hmacKey(data, hash, length, extractable, usages) {
  if (usages.length === 0) throw new DOMException('a key needs a use', 'SyntaxError');
  return new CryptoKey(cryptoToken, data, { name: 'HMAC', hash: { name: hash }, length }, !!extractable, usages);
}

function hmacUse(v, key, use) {
  algorithm(v, ['HMAC']);
  if (!(key instanceof CryptoKey)) throw new TypeError('the key must be a CryptoKey');
  if (!key.usages.includes(use)) throw new DOMException(`the key may not ${use}`, 'InvalidAccessError');
}

const base64url = { alphabet: 'base64url', omitPadding: true };

function importJWK(jwk, hash, extractable, usages) {
  const bad = (why) => { throw new DOMException(`the key is not what it should be: ${why}`, 'DataError'); };
  if (!isObject(jwk) || isBytes(jwk)) throw new TypeError('a jwk is an object');
  if (jwk.kty !== 'oct') bad('kty is not oct');
  if (typeof jwk.k !== 'string') bad('k is missing');
  if (jwk.alg !== undefined && jwk.alg !== hashes[hash][1]) bad('alg is of another hash');
  if (jwk.use !== undefined && jwk.use !== 'sig' && usages.length > 0) bad('use is not sig');
  if (jwk.key_ops !== undefined && usages.some((u) => !jwk.key_ops.includes(u))) bad('key_ops lacks a use');
  if (jwk.ext === false && extractable) bad('ext is false');
  try {
    return Uint8Array.fromBase64(jwk.k, base64url);
  } catch {
    return bad('k is not base64url');
  }
}

class SubtleCrypto {
  #here = true;
  constructor(token) {
    if (token !== cryptoToken) throw new TypeError('there is one SubtleCrypto, which is called crypto.subtle');
  }
  async digest(name, data) {
    this.#here;
    need(arguments, 2, 'digest');
    const hash = algorithm(name, keys(hashes));
    return host(OP.digest, hash, copyBytes(data)).buffer;
  }
  async generateKey(v, extractable, uses) {
    this.#here;
    need(arguments, 3, 'generateKey');
    algorithm(v, ['HMAC']);
    const hash = hashOf(v), usages = usagesOf(uses);
    const length = v.length === undefined ? 8 * hashes[hash][0] : +v.length;
    if (!(length > 0 && length <= 1 << 20)) throw new DOMException('a key has bits', 'OperationError');
    return hmacKey(host(OP.random, Math.ceil(length / 8)), hash, length, extractable, usages);
  }
  async importKey(format, data, v, extractable, uses) {
    this.#here;
    need(arguments, 5, 'importKey');
    format = string(format);
    algorithm(v, ['HMAC']);
    const hash = hashOf(v), usages = usagesOf(uses);
    if (format !== 'raw' && format !== 'jwk') throw new DOMException(`a HMAC key has no format ${format}`, 'NotSupportedError');
    const bytes = format === 'raw' ? copyBytes(data) : importJWK(data, hash, extractable, usages);
    const most = 8 * bytes.length;
    if (most === 0) throw new DOMException('the key is empty', 'DataError');
    const length = v.length === undefined ? most : +v.length;
    if (!(length <= most && length > most - 8)) throw new DOMException('the length is not that of the key', 'DataError');
    return hmacKey(bytes, hash, length, extractable, usages);
  }
  async exportKey(format, key) {
    this.#here;
    need(arguments, 2, 'exportKey');
    format = string(format);
    if (!(key instanceof CryptoKey)) throw new TypeError('the key must be a CryptoKey');
    if (format !== 'raw' && format !== 'jwk') throw new DOMException(`a HMAC key has no format ${format}`, 'NotSupportedError');
    if (!key.extractable) throw new DOMException('the key is not extractable', 'InvalidAccessError');
    if (format === 'raw') return copyBytes(keyData(key)).buffer;
    return { kty: 'oct', k: keyData(key).toBase64(base64url), alg: hashes[key.algorithm.hash.name][1], key_ops: [...key.usages], ext: true };
  }
  async sign(v, key, data) {
    this.#here;
    need(arguments, 3, 'sign');
    data = copyBytes(data);
    hmacUse(v, key, 'sign');
    return host(OP.hmac, key.algorithm.hash.name, keyData(key), data).buffer;
  }
  async verify(v, key, signature, data) {
    this.#here;
    need(arguments, 4, 'verify');
    signature = copyBytes(signature);
    data = copyBytes(data);
    hmacUse(v, key, 'verify');
    const want = host(OP.hmac, key.algorithm.hash.name, keyData(key), data);
    let differ = want.length ^ signature.length;
    for (let i = 0; i < want.length; i++) differ |= want[i] ^ signature[i];
    return differ === 0;
  }
}
expose(Crypto, CryptoKey, SubtleCrypto);
define(globalThis, 'crypto', new Crypto(cryptoToken));
