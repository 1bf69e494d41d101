// ---- Host calls ----

const hostErrors = new WeakSet();
const weakHas = uncurry(WeakSet.prototype.has), weakAdd = uncurry(WeakSet.prototype.add);

function hostError(info, call) {
  const e = new Error(info.message);
  define(e, 'name', info.name || 'BindingError');
  define(e, 'binding', call.binding);
  define(e, 'method', call.method);
  // The stack of the place that called, not of this one.
  if (call.stack) define(e, 'stack', call.stack);
  weakAdd(hostErrors, e);
  return e;
}

function hostCall(binding, method, args, convert, stack) {
  return new NativePromise((resolve, reject) => {
    const id = ++lastId;
    mapSet(pending, id, { resolve, reject, binding, method, convert, stack });
    host(OP.call, id, binding, method, args);
  });
}

// A promise of a host call says so when something is taken of it that promises
// do not have: an await was forgotten.
const calls = new WeakMap();
const weakGet = uncurry(WeakMap.prototype.get), weakSet = uncurry(WeakMap.prototype.set);
const quiet = ['toJSON', 'nodeType', '$$typeof', 'asymmetricMatch'];
const promiseProto = new Proxy(create(Promise.prototype), {
  get(target, key, self) {
    if (key === Symbol.toPrimitive || key === Symbol.iterator || typeof key === 'string' && !(key in target) && !includes(quiet, key)) {
      const call = weakGet(calls, self);
      const what = typeof key === 'symbol' ? 'its value' : '.' + key;
      if (call !== undefined) throw new TypeError(`${call} gives a promise, and ${what} was taken of it before it was there: write (await ${call})${what === 'its value' ? '' : what}`);
    }
    return reflectGet(target, key, self);
  },
});
const reflectGet = Reflect.get, setPrototypeOf = Object.setPrototypeOf;

function watched(promise, call) {
  weakSet(calls, promise, call);
  return setPrototypeOf(promise, promiseProto);
}

const promiseReject = Promise.reject.bind(Promise);

// takeSignal takes the AbortSignal out of the arguments: the last one, or the
// member signal of the last one, as fetch has it.
function takeSignal(args) {
  const last = args[args.length - 1];
  if (last instanceof AbortSignal) {
    args.length--;
    return last;
  }
  if (last === null || typeof last !== 'object' || isArray(last) || !(last.signal instanceof AbortSignal)) return undefined;
  const rest = create(null);
  const names = keys(last);
  for (let i = 0; i < names.length; i++) if (names[i] !== 'signal') rest[names[i]] = last[names[i]];
  if (keys(rest).length > 0) args[args.length - 1] = rest;
  else args.length--;
  return last.signal;
}

// abortable is the call's promise, rejected when the signal says so; the host
// then gives the call up.
function abortable(call, id, signal) {
  return new NativePromise((resolve, reject) => {
    const abort = () => {
      if (mapDelete(pending, id)) host(OP.cancel, id);
      reject(signal.reason);
    };
    signal.addEventListener('abort', abort);
    const done = (settled) => (value) => {
      signal.removeEventListener('abort', abort);
      settled(value);
    };
    then(call, done(resolve), done(reject));
  });
}

function makeEnv(job) {
  // No iteration: the code's top level has run, and may have changed how.
  const env = create(null);
  const names = keys(job.env);
  for (let i = 0; i < names.length; i++) env[names[i]] = job.env[names[i]];
  for (let i = 0; i < job.bindings.length; i++) {
    const b = job.bindings[i];
    env[b.name] = usual(b) || makeBinding(b);
  }
  return freeze(env);
}

function makeBinding({ name, methods }) {
  const target = create(null);
  for (let i = 0; i < methods.length; i++) {
    const method = methods[i];
    target[method] = freeze((...args) => {
      const stack = new Error().stack;
      let json, signal;
      try {
        signal = takeSignal(args);
        if (signal !== undefined && signal.aborted) throw signal.reason;
        json = toJSON(args, `${name}.${method} argument `);
      } catch (e) {
        return promiseReject(e);
      }
      const call = hostCall(name, method, json, undefined, stack);
      return watched(signal === undefined ? call : abortable(call, lastId, signal), `env.${name}.${method}(…)`);
    });
  }
  freeze(target);
  return new Proxy(target, {
    get(target, key) {
      if (typeof key === 'symbol' || key in target) return target[key];
      if (key === 'then' || key === 'toJSON' || key === 'constructor') return undefined;
      throw new TypeError(`env.${name} has no method ${key}; it has ${join(methods, ', ')}`);
    },
  });
}

// What most runs hold is made once, in the image: a run's memory starts from
// that, so none sees what another did to it.
const ready = create(null);
ready.LOG = { methods: [], binding: makeLog() };
ready.DB = usualBinding('DB', ['query']);
ready.KV = usualBinding('KV', ['get', 'put', 'delete', 'list']);

function usualBinding(name, methods) {
  return { methods, binding: makeBinding({ name, methods }) };
}

function usual({ name, methods }) {
  const one = ready[name];
  if (one === undefined || name !== 'LOG' && methods.length !== one.methods.length) return undefined;
  for (let i = 0; i < one.methods.length; i++) if (methods[i] !== one.methods[i]) return undefined;
  return one.binding;
}

function makeLog() {
  const log = create(null);
  const levels = ['debug', 'info', 'warn', 'error'];
  for (let i = 0; i < levels.length; i++) {
    const level = levels[i];
    log[level] = freeze((message, data) => {
      host(OP.log, level, typeof message === 'string' ? message : inspect(message), data === undefined ? '' : toJSON(data, 'LOG data'));
      return promiseResolve();
    });
  }
  log.log = log.info;
  return freeze(log);
}
