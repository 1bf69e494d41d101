// ---- Event, CustomEvent, EventTarget ----

let dispatch;

class Event {
  #type; #bubbles; #cancelable; #composed; #time;
  #target = null; #phase = 0; #dispatching = false;
  #stop = false; #stopNow = false; #canceled = false; #passive = false; #trusted = false;
  constructor(type, init = undefined) {
    need(arguments, 1, 'Event');
    this.#type = string(type);
    init = dictionary(init, 'what an Event begins with');
    this.#bubbles = !!init.bubbles;
    this.#cancelable = !!init.cancelable;
    this.#composed = !!init.composed;
    this.#time = now();
    defineProperty(this, 'isTrusted', isTrusted);
  }
  static {
    // dispatch has the listeners of a target called.
    dispatch = (event, target, listeners, trusted) => {
      const type = event.#type;
      if (event.#dispatching) throw new DOMException('the event is being dispatched', 'InvalidStateError');
      event.#dispatching = true;
      event.#trusted = trusted;
      event.#target = target;
      event.#phase = 2;
      const list = slice(listeners);
      for (let pass = 0; pass < 2 && !event.#stop; pass++) {
        for (let i = 0; i < list.length && !event.#stopNow; i++) {
          const l = list[i];
          // What was removed meanwhile is not called, nor what was added.
          if (l.removed || l.type !== type || l.capture !== (pass === 0)) continue;
          if (l.once) removeListener(listeners, l);
          event.#passive = l.passive;
          try {
            invoke(l.callback, target, event);
          } catch (e) {
            report(e);
          }
          event.#passive = false;
        }
      }
      event.#phase = 0;
      event.#dispatching = event.#stop = event.#stopNow = false;
      return !event.#canceled;
    };
    isTrusted = { get() { return this.#trusted; }, enumerable: true, configurable: false };
  }
  get type() { return this.#type; }
  get target() { return this.#target; }
  get srcElement() { return this.#target; }
  get currentTarget() { return this.#dispatching ? this.#target : null; }
  get eventPhase() { return this.#phase; }
  get bubbles() { return this.#bubbles; }
  get cancelable() { return this.#cancelable; }
  get composed() { return this.#composed; }
  get timeStamp() { return this.#time; }
  get defaultPrevented() { return this.#canceled; }
  get returnValue() { return !this.#canceled; }
  set returnValue(v) { if (!v) this.preventDefault(); }
  get cancelBubble() { return this.#stop; }
  set cancelBubble(v) { if (v) this.#stop = true; }
  composedPath() { return this.#dispatching ? [this.#target] : []; }
  preventDefault() { if (this.#cancelable && !this.#passive) this.#canceled = true; }
  stopPropagation() { this.#stop = true; }
  stopImmediatePropagation() { this.#stop = this.#stopNow = true; }
  initEvent(type, bubbles = false, cancelable = false) {
    need(arguments, 1, 'initEvent');
    if (this.#dispatching) return;
    this.#type = string(type);
    this.#bubbles = !!bubbles;
    this.#cancelable = !!cancelable;
    this.#canceled = this.#stop = this.#stopNow = false;
    this.#target = null;
  }
}
var isTrusted;
for (const [i, name] of ['NONE', 'CAPTURING_PHASE', 'AT_TARGET', 'BUBBLING_PHASE'].entries()) {
  for (const o of [Event, Event.prototype]) defineProperty(o, name, { value: i, enumerable: true });
}

class CustomEvent extends Event {
  #detail;
  constructor(type, init = undefined) {
    need(arguments, 1, 'CustomEvent');
    super(type, init);
    this.#detail = init === undefined || init === null || init.detail === undefined ? null : init.detail;
  }
  get detail() { return this.#detail; }
  initCustomEvent(type, bubbles = false, cancelable = false, detail = null) {
    need(arguments, 1, 'initCustomEvent');
    this.initEvent(type, bubbles, cancelable);
    this.#detail = detail;
  }
}

function invoke(callback, target, event) {
  if (typeof callback === 'function') return apply(callback, target, [event]);
  const handle = callback.handleEvent;
  if (typeof handle !== 'function') throw new TypeError('the listener has no handleEvent');
  apply(handle, callback, [event]);
}

function removeListener(listeners, l) {
  l.removed = true;
  for (let i = 0; i < listeners.length; i++) {
    if (listeners[i] !== l) continue;
    for (; i + 1 < listeners.length; i++) listeners[i] = listeners[i + 1];
    listeners.length--;
    return;
  }
}

// report tells of an exception that nobody can catch.
function report(e) {
  print('error', ['Uncaught', e]);
}

let fireEvent, setHandler, getHandler;

class EventTarget {
  #listeners = []; // { type, callback, capture, once, passive, removed }
  static {
    fireEvent = (target, event) => dispatch(event, target, target.#listeners, true);
    // What is assigned to on… is one listener, whose place is that of the first.
    setHandler = (target, type, v) => {
      const have = target.#listeners.find((l) => l.type === type && l.handler);
      v = isObject(v) ? v : null;
      if (have !== undefined && v === null) removeListener(target.#listeners, have);
      else if (have !== undefined) have.value = v;
      else if (v !== null) {
        const l = { type, callback: (e) => { if (typeof l.value === 'function') apply(l.value, target, [e]); }, value: v, handler: true, capture: false, once: false, passive: false, removed: false };
        push(target.#listeners, l);
      }
    };
    getHandler = (target, type) => {
      const have = target.#listeners.find((l) => l.type === type && l.handler);
      return have === undefined ? null : have.value;
    };
  }
  addEventListener(type, callback, options = undefined) {
    need(arguments, 2, 'addEventListener');
    const self = this === undefined || this === null ? globalThis : this;
    type = string(type);
    const all = self.#listeners;
    const o = isObject(options) ? options : { capture: options };
    const capture = !!o.capture, once = !!o.once, passive = !!o.passive, signal = o.signal;
    if (signal !== undefined && !(signal instanceof AbortSignal)) throw new TypeError('signal must be an AbortSignal');
    if (callback === null || callback === undefined) return;
    if (!isObject(callback)) throw new TypeError('a listener is a function or an object');
    if (signal !== undefined && signal.aborted) return;
    if (all.some((l) => l.type === type && l.callback === callback && l.capture === capture)) return;
    const l = { type, callback, capture, once, passive, removed: false };
    push(all, l);
    if (signal !== undefined) onAbort(signal, () => removeListener(all, l));
  }
  removeEventListener(type, callback, options = undefined) {
    need(arguments, 2, 'removeEventListener');
    type = string(type);
    const capture = !!(isObject(options) ? options.capture : options);
    if (callback !== null && callback !== undefined && !isObject(callback)) throw new TypeError('a listener is a function or an object');
    const l = this.#listeners.find((l) => l.type === type && l.callback === callback && l.capture === capture);
    if (l !== undefined) removeListener(this.#listeners, l);
  }
  dispatchEvent(event) {
    need(arguments, 1, 'dispatchEvent');
    if (!(event instanceof Event)) throw new TypeError('the argument of dispatchEvent must be an Event');
    return dispatch(event, this, this.#listeners, false);
  }
}
expose(Event, CustomEvent, EventTarget);
