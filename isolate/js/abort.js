// ---- Abort ----

class AbortSignal {
  #listeners = []; aborted = false; reason = undefined; onabort = null;
  static abort(reason) { const c = new AbortController(); c.abort(reason); return c.signal; }
  static timeout(ms) { const c = new AbortController(); addTimer(() => c.abort(new DOMException('the time is over', 'TimeoutError')), ms, false, []); return c.signal; }
  static any(signals) { const c = new AbortController(); for (const s of signals) { if (s.aborted) c.abort(s.reason); else s.addEventListener('abort', () => c.abort(s.reason)); } return c.signal; }
  throwIfAborted() { if (this.aborted) throw this.reason; }
  addEventListener(type, f) { if (type === 'abort') push(this.#listeners, f); }
  removeEventListener(type, f) { this.#listeners = this.#listeners.filter((g) => g !== f); }
  static {
    signalAbort = (s, reason) => {
      if (s.aborted) return;
      s.aborted = true;
      s.reason = reason === undefined ? new DOMException('the operation was aborted', 'AbortError') : reason;
      const event = { type: 'abort', target: s };
      for (const f of [s.onabort, ...s.#listeners]) if (f) typeof f === 'function' ? f.call(s, event) : f.handleEvent(event);
    };
  }
}
var signalAbort;
class AbortController {
  signal = new AbortSignal();
  abort(reason) { signalAbort(this.signal, reason); }
}
define(globalThis, 'AbortSignal', AbortSignal);
define(globalThis, 'AbortController', AbortController);
