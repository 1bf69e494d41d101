// ---- AbortController, AbortSignal ----

let signalAbort, onAbort, offAbort, newSignal;
const signalToken = {};

class AbortSignal extends EventTarget {
  #aborted = false; #reason = undefined;
  #steps = []; // what else happens when it is aborted
  #sources = null; // of a dependent signal
  #dependents = [];
  constructor(token) {
    if (token !== signalToken) throw new TypeError('an AbortSignal is made by an AbortController');
    super();
  }
  static {
    newSignal = () => new AbortSignal(signalToken);
    signalAbort = (signal, reason) => {
      if (signal.#aborted) return;
      const abort = (s, reason) => { s.#aborted = true; s.#reason = reason; };
      abort(signal, reason === undefined ? new DOMException('The operation was aborted', 'AbortError') : reason);
      const all = [signal];
      for (let i = 0; i < signal.#dependents.length; i++) {
        const d = signal.#dependents[i];
        if (d.#aborted) continue;
        abort(d, signal.#reason);
        push(all, d);
      }
      for (let i = 0; i < all.length; i++) {
        const steps = all[i].#steps;
        all[i].#steps = [];
        for (let j = 0; j < steps.length; j++) steps[j]();
        fireEvent(all[i], new Event('abort'));
      }
    };
    onAbort = (signal, step) => { if (!signal.#aborted) push(signal.#steps, step); };
    offAbort = (signal, step) => { signal.#steps = signal.#steps.filter((s) => s !== step); };
  }
  static abort(reason = undefined) {
    const s = newSignal();
    signalAbort(s, reason);
    return s;
  }
  static timeout(milliseconds) {
    need(arguments, 1, 'AbortSignal.timeout');
    const ms = +milliseconds;
    if (!(ms >= 0 && ms <= 2 ** 53 - 1)) throw new TypeError('a time in milliseconds is a number from 0');
    const s = newSignal();
    addTimer(() => signalAbort(s, new DOMException('The time is over', 'TimeoutError')), ms, false, []);
    return s;
  }
  static any(signals) {
    need(arguments, 1, 'AbortSignal.any');
    const list = [...signals];
    for (const s of list) if (!(s instanceof AbortSignal)) throw new TypeError('AbortSignal.any takes a list of AbortSignals');
    const out = newSignal();
    for (const s of list) {
      if (s.#aborted) {
        out.#aborted = true;
        out.#reason = s.#reason;
        return out;
      }
    }
    // A dependent signal hangs on those that depend on none themselves.
    out.#sources = new Set();
    for (const s of list) for (const source of s.#sources === null ? [s] : s.#sources) out.#sources.add(source);
    for (const source of out.#sources) push(source.#dependents, out);
    return out;
  }
  get aborted() { return this.#aborted; }
  get reason() { return this.#reason; }
  get onabort() { return getHandler(this, 'abort'); }
  set onabort(v) { setHandler(this, 'abort', v); }
  throwIfAborted() { if (this.#aborted) throw this.#reason; }
}

class AbortController {
  #signal = newSignal();
  get signal() { return this.#signal; }
  abort(reason = undefined) { signalAbort(this.#signal, reason); }
}
expose(AbortSignal, AbortController);
