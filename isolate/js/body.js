// ---- Bodies of requests and responses ----

// A body is { bytes } until somebody asks for its stream, then { stream }. null
// is none. The bytes are nobody else's.

// extract gives a body and its type of what a constructor was given.
function extract(v) {
  if (v === null || v === undefined) return { body: null, type: null };
  if (v instanceof ReadableStream) {
    if (v.locked || v._disturbed) throw new TypeError('the stream is in use or was read already');
    return { body: { bytes: null, stream: v, used: false }, type: null };
  }
  if (isBytes(v)) return { body: bytesBody(copyBytes(v)), type: null };
  if (v instanceof Blob) return { body: bytesBody(blobBytes(v)), type: v.type || null };
  if (v instanceof URLSearchParams) return { body: bytesBody(encodeUTF8(v.toString())), type: 'application/x-www-form-urlencoded;charset=UTF-8' };
  if (v instanceof FormData) {
    const { bytes, boundary } = encodeMultipart(v);
    return { body: bytesBody(bytes), type: 'multipart/form-data; boundary=' + boundary };
  }
  return { body: bytesBody(encodeUTF8(usv(v))), type: 'text/plain;charset=UTF-8' };
}

const bytesBody = (bytes) => ({ bytes, stream: null, used: false });
const isUsed = (body) => body !== null && (body.used || body.stream !== null && body.stream._disturbed);
const isBusy = (body) => body !== null && (isUsed(body) || body.stream !== null && body.stream.locked);

function streamOf(body) {
  if (body === null) return null;
  if (body.stream === null) {
    body.stream = byteStream(body.bytes);
    // A body that was read has a stream that was.
    if (body.used) body.stream.getReader().cancel();
    body.bytes = null;
  }
  return body.stream;
}

// cloneBody gives a body with the same content.
function cloneBody(body) {
  if (body === null) return null;
  if (body.stream === null) return bytesBody(body.bytes);
  const [a, b] = body.stream.tee();
  body.stream = a;
  return { bytes: null, stream: b, used: false };
}

// consume gives the bytes and marks the body as read.
async function consume(body) {
  if (body === null) return new Uint8Array();
  if (isBusy(body)) throw new TypeError('the body was read already');
  if (body.stream !== null) return readAll(body.stream);
  body.used = true;
  return body.bytes;
}

const stripBOM = (s) => charCode(s, 0) === 0xfeff ? s.slice(1) : s;

let bodyOf, setBody;

class Body {
  #body = null;
  static {
    bodyOf = (b) => b.#body;
    setBody = (b, body) => { b.#body = body; };
  }
  get body() { return streamOf(this.#body); }
  get bodyUsed() { return isUsed(this.#body); }
  async text() { return stripBOM(decodeUTF8(await consume(this.#body))); }
  async json() { return parse(stripBOM(decodeUTF8(await consume(this.#body)))); }
  async arrayBuffer() { return sliceBytes(await consume(this.#body)).buffer; }
  async bytes() { return sliceBytes(await consume(this.#body)); }
  async blob() {
    const bytes = await consume(this.#body);
    return newBlob(bytes, this.headers.get('content-type') ?? '');
  }
  async formData() {
    const bytes = await consume(this.#body);
    const type = this.headers.get('content-type') ?? '';
    if (/^application\/x-www-form-urlencoded\s*(;|$)/i.test(type)) {
      const form = new FormData();
      for (const [k, v] of parseForm(decodeUTF8(bytes))) form.append(k, v);
      return form;
    }
    const m = /^multipart\/form-data\s*;(?:.*;)?\s*boundary=(?:"([^"]*)"|([^;\s]*))/i.exec(type);
    if (m === null) throw new TypeError(`a body of type ${stringify(type)} is no form`);
    return decodeMultipart(bytes, m[1] ?? m[2]);
  }
}

// mixIn gives a class the members of Body, which is no global.
function mixIn(c) {
  for (const key of ownKeys(Body.prototype)) {
    if (key !== 'constructor') defineProperty(c.prototype, key, { ...getOwnPropertyDescriptor(Body.prototype, key), enumerable: true });
  }
}
