// ---- Streams ----

// The classes are those of a polyfill (guests.json) that was evaluated before
// and has never seen host.
const { ReadableStream, WritableStream, TransformStream } = streams;
for (const name of keys(streams)) define(globalThis, name, streams[name]);

// readAll gives the bytes of a stream of them.
async function readAll(stream) {
  const reader = stream.getReader();
  const parts = [];
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return parts.length === 1 ? parts[0] : concatBytes(parts);
    if (!(value instanceof Uint8Array)) {
      const e = new TypeError('a body is a stream of Uint8Array');
      reader.cancel(e).catch(() => {});
      throw e;
    }
    push(parts, value);
  }
}

// byteStream gives bytes as a stream; the stream has a copy of its own.
function byteStream(bytes) {
  return new ReadableStream({
    type: 'bytes',
    pull(controller) {
      if (bytes.length > 0) controller.enqueue(sliceBytes(bytes));
      controller.close();
      if (controller.byobRequest) controller.byobRequest.respond(0);
    },
  }, { highWaterMark: 0 });
}

class TextEncoderStream {
  #transform; #high = '';
  constructor() {
    this.#transform = new TransformStream({
      transform: (chunk, controller) => {
        let s = this.#high + string(chunk);
        this.#high = '';
        const last = charCode(s, s.length - 1);
        if (last >= 0xd800 && last <= 0xdbff) {
          this.#high = s.slice(-1);
          s = s.slice(0, -1);
        }
        if (s !== '') controller.enqueue(encodeUTF8(s));
      },
      flush: (controller) => {
        if (this.#high !== '') controller.enqueue(encodeUTF8(this.#high));
      },
    });
  }
  get encoding() { this.#high; return 'utf-8'; }
  get readable() { return this.#transform.readable; }
  get writable() { return this.#transform.writable; }
}

class TextDecoderStream {
  #transform; #decoder;
  constructor(label = 'utf-8', options = undefined) {
    const decoder = this.#decoder = new TextDecoder(label, options);
    this.#transform = new TransformStream({
      transform(chunk, controller) {
        if (!isBytes(chunk)) throw new TypeError('a chunk must be bytes');
        const s = decoder.decode(chunk, { stream: true });
        if (s !== '') controller.enqueue(s);
      },
      flush(controller) {
        const s = decoder.decode();
        if (s !== '') controller.enqueue(s);
      },
    });
  }
  get encoding() { return this.#decoder.encoding; }
  get fatal() { return this.#decoder.fatal; }
  get ignoreBOM() { return this.#decoder.ignoreBOM; }
  get readable() { return this.#transform.readable; }
  get writable() { return this.#transform.writable; }
}
expose(TextEncoderStream, TextDecoderStream);
