// ---- console ----

function inspect(value, depth = 4, above = []) {
  switch (typeof value) {
    case 'string': return above.length ? stringify(value) : value;
    case 'bigint': return value + 'n';
    case 'symbol': return toText(value);
    case 'function': return `[${/^class\b/.test(Function.prototype.toString.call(value)) ? 'class' : 'Function'}${value.name ? ': ' + value.name : ''}]`;
    case 'object': break;
    default: return Object.is(value, -0) ? '-0' : toText(value);
  }
  if (value === null) return 'null';
  if (value instanceof Error) return (value.stack ? `${value.name}: ${value.message}\n${cleanStack(value.stack)}` : `${value.name}: ${value.message}`);
  if (value instanceof Date) return isNaN(value) ? 'Invalid Date' : value.toISOString();
  if (value instanceof RegExp) return toText(value);
  if (value instanceof NativePromise) return 'Promise {}';
  if (includes(above, value)) return '[Circular]';
  const proto = getPrototypeOf(value);
  const kind = proto === null || proto === objectProto || proto === Array.prototype ? '' : (proto.constructor && proto.constructor.name || '') + ' ';
  if (depth < 0) return isArray(value) ? '[…]' : `${kind}{…}`;
  above = [...above, value];
  const most = 100;
  const parts = [];
  const add = (s) => parts.length < most ? (push(parts, s), true) : (parts.length === most && push(parts, '…'), false);
  if (isArray(value) || isView(value) && !(value instanceof DataView)) {
    for (let i = 0; i < value.length; i++) if (!add(inspect(value[i], depth - 1, above))) break;
    return `${isArray(value) ? '' : kind}[${parts.length ? ' ' + join(parts, ', ') + ' ' : ''}]`;
  }
  if (value instanceof Map) {
    for (const [k, v] of value) if (!add(`${inspect(k, depth - 1, above)} => ${inspect(v, depth - 1, above)}`)) break;
  } else if (value instanceof Set) {
    for (const v of value) if (!add(inspect(v, depth - 1, above))) break;
  } else {
    for (const key of keys(value)) if (!add(`${/^[A-Za-z_$][\w$]*$/.test(key) ? key : stringify(key)}: ${inspect(value[key], depth - 1, above)}`)) break;
  }
  return `${kind}{${parts.length ? ' ' + join(parts, ', ') + ' ' : ''}}`;
}

function cleanStack(stack) {
  return stack.split('\n').filter((line) => line && !line.includes('(isolate:')).join('\n');
}

function format(args) {
  const out = [];
  let i = 0;
  if (typeof args[0] === 'string' && args[0].includes('%') && args.length > 1) {
    i = 1;
    push(out, args[0].replace(/%([sdifjoOc%])/g, (m, c) => {
      if (c === '%') return '%';
      if (i >= args.length) return m;
      const v = args[i++];
      switch (c) {
        case 's': return typeof v === 'string' ? v : inspect(v, 1);
        case 'd': case 'i': return toText(c === 'i' ? Math.trunc(Number(v)) : Number(v));
        case 'f': return toText(Number(v));
        case 'j': return stringify(v);
        case 'c': return '';
        default: return inspect(v);
      }
    }));
  }
  for (; i < args.length; i++) push(out, inspect(args[i]));
  return join(out, ' ');
}

const counts = new Map(), starts = new Map();
let indent = '';
function print(level, args) {
  let text;
  try {
    text = format(args);
  } catch (e) {
    text = `[a value that cannot be shown: ${e}]`;
  }
  host(OP.log, level, indent + text, '');
}
const consoleObject = {
  log: (...a) => print('info', a),
  info: (...a) => print('info', a),
  debug: (...a) => print('debug', a),
  warn: (...a) => print('warn', a),
  error: (...a) => print('error', a),
  trace: (...a) => print('debug', [...a, '\n' + cleanStack(new Error().stack)]),
  dir: (v) => print('info', [v]),
  table: (v) => print('info', [v]),
  assert: (ok, ...a) => { if (!ok) print('error', ['Assertion failed', ...a]); },
  count: (label = 'default') => { mapSet(counts, label, (mapGet(counts, label) || 0) + 1); print('info', [`${label}: ${mapGet(counts, label)}`]); },
  countReset: (label = 'default') => { mapDelete(counts, label); },
  group: (...a) => { if (a.length) print('info', a); indent += '  '; },
  groupCollapsed: (...a) => { if (a.length) print('info', a); indent += '  '; },
  groupEnd: () => { indent = indent.slice(2); },
  time: (label = 'default') => { mapSet(starts, label, performance.now()); },
  timeLog: (label = 'default', ...a) => { print('info', [`${label}: ${(performance.now() - mapGet(starts, label)).toFixed(1)} ms`, ...a]); },
  timeEnd: (label = 'default') => { consoleObject.timeLog(label); mapDelete(starts, label); },
};
define(globalThis, 'console', consoleObject);
