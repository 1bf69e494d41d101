// ---- Timers ----

function addTimer(callback, ms, every, args) {
  if (typeof callback !== 'function') throw new TypeError('the callback of a timer must be a function');
  ms = Number(ms);
  if (!(ms >= 0)) ms = 0;
  const id = ++lastId;
  mapSet(timers, id, { callback, args, every: every ? (ms < 1 ? 1 : ms) : -1 });
  host(OP.timer, id, ms);
  return id;
}
function clearTimer(id) {
  if (typeof id === 'number' && mapDelete(timers, id)) host(OP.clearTimer, id);
}
define(globalThis, 'setTimeout', function setTimeout(callback, ms, ...args) { return addTimer(callback, ms, false, args); });
define(globalThis, 'setInterval', function setInterval(callback, ms, ...args) { return addTimer(callback, ms, true, args); });
define(globalThis, 'clearTimeout', function clearTimeout(id) { clearTimer(id); });
define(globalThis, 'clearInterval', function clearInterval(id) { clearTimer(id); });
