// ---- Entry points of the host ----

const pending = new Map(); // call id → { resolve, reject, bytes }
const timers = new Map(); // timer id → { callback, args, every }
let lastId = 0;

// start runs the default export of a module once that is evaluated.
function start(evaluated, job) {
  job = parse(job);
  const env = makeEnv(job);
  if (job.fetch) grantFetch();
  then(evaluated, (module) => run(module, fromJSON(job.input), env), fail);
}

async function run(module, input, env) {
  let result;
  try {
    const main = module.default;
    if (main instanceof NativePromise) {
      result = await main;
    } else if (typeof main === 'function') {
      result = await main(input, env);
    } else if (main !== null && typeof main === 'object' && typeof main.fetch === 'function') {
      result = await serve(main, input, env);
    } else if (keys(module).length > 0) {
      const members = main !== null && typeof main === 'object' ? keys(main) : [];
      host(OP.fail, stringify({ kind: 'no_export', exports: keys(module), default: main === null ? 'null' : typeof main, members }));
      return;
    } else {
      // A script with imports: what it did is all.
      host(OP.done, 'null', 1);
      return;
    }
  } catch (e) {
    fail(e);
    return;
  }
  try {
    result = toJSON(result);
  } catch (e) {
    fail(e, true);
    return;
  }
  host(OP.done, result);
}

// serve answers a Worker-style module: the input describes the request.
async function serve(main, input, env) {
  const given = input !== null && typeof input === 'object' ? input : {};
  const parts = parseURL(given.url === undefined ? '/' : given.url, 'http://localhost/');
  if (parts === null) throw new TypeError(`Invalid URL: ${stringify(given.url)}`);
  const request = new Request(parts[0], given);
  const waiting = [];
  const response = await main.fetch(request, env, { waitUntil(p) { push(waiting, promiseResolve(p)); }, passThroughOnException() {} });
  if (!(response instanceof Response)) throw new TypeError('fetch must return a Response');
  const bytes = await consume(bodyOf(response));
  // A body that is no text leaves as what it is.
  const text = host(OP.decode, bytes, 'utf-8', 1);
  for (let i = 0; i < waiting.length; i++) await waiting[i];
  return { status: response.status, headers: arrayFrom(response.headers), body: text === undefined ? bytes : stripBOM(text) };
}

// settle is called with the answer of a host call; bytes is an Uint8Array or
// undefined.
function settle(id, ok, text, bytes) {
  const call = mapGet(pending, id);
  if (call === undefined) return;
  mapDelete(pending, id);
  if (!ok) {
    call.reject(hostError(parse(text), call));
    return;
  }
  let value;
  try {
    if (text !== '') value = call.convert ? call.convert(parse(text), bytes) : fromJSON(text);
  } catch (e) {
    call.reject(e);
    return;
  }
  call.resolve(value);
}

// fire is called when a timer is due.
function fire(id) {
  const timer = mapGet(timers, id);
  if (timer === undefined) return;
  if (timer.every >= 0) host(OP.timer, id, timer.every);
  else mapDelete(timers, id);
  apply(timer.callback, globalThis, timer.args);
}

// What is told of a value is cut again outside, where it is not the code's memory
// that it takes.
const maxTold = 16384;
const told = (v) => { const s = toText(v); return s.length > maxTold ? sliceText(s, 0, maxTold) : s; };

// describe tells about a value that was thrown or rejected.
function describe(e, result = false) {
  const out = { result };
  try {
    if (e !== null && typeof e === 'object' && ('message' in e || 'stack' in e)) {
      out.name = told(e.name === undefined ? 'Error' : e.name);
      out.message = told(e.message === undefined ? '' : e.message);
      if (typeof e.stack === 'string') out.stack = told(e.stack);
      if (e.cause !== undefined) out.cause = told(inspect(e.cause));
      if (weakHas(hostErrors, e)) out.kind = 'binding';
    } else {
      out.name = 'thrown';
      out.message = told(inspect(e));
    }
  } catch {
    out.name = 'thrown';
    out.message = 'a value that cannot be shown';
  }
  return stringify(out);
}

function fail(e, result) {
  host(OP.fail, describe(e, result === true));
}
