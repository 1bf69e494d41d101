// ---- performance ----

const nativeNow = globalThis.performance.now.bind(globalThis.performance), dateNow = Date.now;
function now() { return nativeNow(); }

class Performance extends EventTarget {
  #origin; // is known with a run only: the image has no time
  now() { return nativeNow(); }
  get timeOrigin() { return this.#origin ??= dateNow() - nativeNow(); }
  toJSON() { return { timeOrigin: this.timeOrigin }; }
}
const performance = new Performance();
expose(Performance);
define(globalThis, 'performance', performance);

// As in a worker, the global object has a name.
define(globalThis, 'self', globalThis);
