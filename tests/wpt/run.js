// Runs one file of the public tests in an isolate: what it loads is in the input,
// which the shell's environment of their harness reads.
export default async ({ scripts, files, location }) => {
  globalThis.self = globalThis;
  globalThis.GLOBAL = { isWindow: () => false, isWorker: () => true, isShadowRealm: () => false };
  globalThis.location = { href: location, pathname: new URL(location).pathname, search: '', toString: () => location };
  globalThis.FileReader = FileReader;
  // The tests take the constructor of shared memory from here.
  globalThis.WebAssembly = { Memory: class { buffer = new SharedArrayBuffer(0); } };
  const own = globalThis.fetch;
  globalThis.fetch = (url, ...more) => {
    if (typeof url !== 'string') return own(url, ...more);
    const { href, pathname } = new URL(url, location);
    const name = pathname.slice(1);
    return name in files ? Promise.resolve(new Response(files[name])) : own(href, ...more);
  };
  const ended = new Promise((resolve) => { globalThis.__ended = resolve; });
  // As scripts of one page: they see each other's declarations, and are sloppy.
  (0, eval)(';' + scripts.join('\n;'));
  const { tests, status } = await ended;
  return { tests: tests.map(({ name, status, message }) => [name, status, message ?? '']), status: status.status, message: status.message ?? '' };
};

// As the tests read blobs; an isolate has none.
class FileReader extends EventTarget {
  readAsText(blob) { this.#read(blob.text()); }
  readAsArrayBuffer(blob) { this.#read(blob.arrayBuffer()); }
  async #read(content) {
    this.result = await content;
    for (const type of ['load', 'loadend']) {
      const event = new Event(type);
      this['on' + type]?.(event);
      this.dispatchEvent(event);
    }
  }
}
