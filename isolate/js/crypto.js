// ---- Randomness ----

define(globalThis, 'crypto', freeze({
  getRandomValues(view) {
    if (!isView(view) || view instanceof DataView || view instanceof Float32Array || view instanceof Float64Array) throw new TypeError('getRandomValues wants an array of integers');
    if (view.byteLength > 65536) throw new RangeError('getRandomValues gives at most 65536 bytes at once');
    bytesOf(view).set(host(OP.random, view.byteLength));
    return view;
  },
  randomUUID() {
    const b = host(OP.random, 16);
    b[6] = b[6] & 0x0f | 0x40;
    b[8] = b[8] & 0x3f | 0x80;
    const h = b.toHex();
    return `${h.slice(0, 8)}-${h.slice(8, 12)}-${h.slice(12, 16)}-${h.slice(16, 20)}-${h.slice(20)}`;
  },
}));
