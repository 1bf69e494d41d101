// Runs the suite of a fetch polyfill in an isolate: the few functions of its test
// runner and of its assertions that it uses, and a base for its addresses.
export default async ({ text, base, reader }) => {
  const tests = [], path = [], setups = [];
  const skip = () => {};
  const suite = (name, f) => { path.push(name); f(); path.pop(); };
  const test = (name, f) => tests.push({ name: [...path, name].join(' / '), f });
  const sorted = (key, v) => v !== null && typeof v === 'object' && !Array.isArray(v) ? Object.fromEntries(Object.entries(v).sort()) : v;
  const show = (v) => JSON.stringify(v, sorted) ?? String(v);
  const check = (ok, say) => { if (!ok) throw new Error(say()); };
  const throws = (f, type) => {
    let thrown;
    try { f(); } catch (e) { thrown = e; }
    check(thrown !== undefined && (type === undefined || thrown instanceof type), () => `throws ${thrown}`);
  };
  const assert = Object.assign((a, say) => check(a, () => say ?? show(a)), {
    equal: (a, b) => check(a == b, () => `${show(a)} is not ${show(b)}`),
    notEqual: (a, b) => check(a != b, () => `both are ${show(a)}`),
    deepEqual: (a, b) => check(show(a) === show(b), () => `${show(a)} is not ${show(b)}`),
    instanceOf: (a, c) => check(a instanceof c, () => `${show(a)} is no ${c.name}`),
    isFalse: (a) => check(a === false, () => show(a)), isTrue: (a) => check(a === true, () => show(a)), isNull: (a) => check(a === null, () => show(a)),
    match: (a, r) => check(r.test(a), () => `${a} does not match ${r}`), ok: (a) => check(a, () => show(a)), throw: throws, throws,
  });
  const own = { Request, fetch };
  const absolute = (v) => v instanceof own.Request ? v : new URL(v, base).href;
  globalThis.Request = class extends own.Request { constructor(v, ...more) { super(absolute(v), ...more); } };
  globalThis.fetch = Object.assign((v, ...more) => own.fetch(absolute(v), ...more), { polyfill: true });
  Object.assign(globalThis, { navigator: { userAgent: '' }, suite: Object.assign(suite, { skip }), test: Object.assign(test, { skip }), setup: (f) => setups.push(f), suiteSetup: skip, assert, chai: { assert, AssertionError: class extends Error {} }, WHATWGFetch: { DOMException } });
  (0, eval)(`;${reader};globalThis.FileReader = FileReader;${text}`);
  const out = [];
  for (const { name, f } of tests) {
    let message = null;
    try {
      for (const s of setups) await s();
      await (f.length === 0 ? f() : new Promise((resolve, reject) => f((e) => e ? reject(e) : resolve())));
    } catch (e) {
      message = String(e);
    }
    out.push([name, message === null ? 0 : 1, message ?? '']);
  }
  return { tests: out, status: 0 };
};
