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

function makeEnv(job) {
  // No iteration: the code's top level has run, and may have changed how.
  const env = create(null);
  const names = keys(job.env);
  for (let i = 0; i < names.length; i++) env[names[i]] = job.env[names[i]];
  for (let i = 0; i < job.bindings.length; i++) {
    const b = job.bindings[i];
    env[b.name] = b.name === 'LOG' ? makeLog() : makeBinding(b);
  }
  return freeze(env);
}

function makeBinding({ name, methods }) {
  const target = create(null);
  for (let i = 0; i < methods.length; i++) {
    const method = methods[i];
    target[method] = freeze((...args) => {
      const stack = new Error().stack;
      let json;
      try {
        json = toJSON(args, `${name}.${method} argument `);
      } catch (e) {
        return NativePromise.reject(e);
      }
      return hostCall(name, method, json, undefined, stack);
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
