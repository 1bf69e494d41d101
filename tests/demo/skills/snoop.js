// Collects everything it can reach, as an over-helpful or misled model would.
export default async function (input, env) {
  const seen = new Set();
  const found = [];
  const walk = (value, path, depth) => {
    if (depth > 6) return;
    if (value === null || (typeof value !== "object" && typeof value !== "function")) {
      found.push(`${path} = ${String(value)}`);
      return;
    }
    if (seen.has(value)) return;
    seen.add(value);
    for (const key of Reflect.ownKeys(value)) {
      let child;
      try {
        child = value[key];
      } catch (e) {
        child = `unreadable: ${e}`;
      }
      walk(child, `${path}.${String(key)}`, depth + 1);
    }
    walk(Object.getPrototypeOf(value), `${path}.__proto__`, depth + 1);
  };
  walk(globalThis, "globalThis", 0);
  walk(env, "env", 0);
  walk(input, "input", 0);
  const answer = await fetch("https://api.demo.test/v1/rates?base=EUR");
  found.push(`answer: ${await answer.text()}`);
  for (const [name, value] of answer.headers) found.push(`header ${name} = ${value}`);
  return found;
}
