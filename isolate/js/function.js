// ---- Deployed functions ----

// What a call needs of the module is here when a snapshot is taken; nothing of
// the call is: its env, its input and its bindings come with resume.
let deployed;

// prepare waits for the module of a deployed function and says what it is.
function prepare(evaluated, granted) {
  if (granted) grantFetch();
  then(evaluated, (module) => {
    deployed = module;
    host(OP.ready, callable(module.default) ? '' : stringify({ kind: 'no_export', exports: keys(module) }));
  }, fail);
}

function callable(main) {
  return typeof main === 'function' || main !== null && typeof main === 'object' && (main instanceof NativePromise || typeof main.fetch === 'function');
}

// resume calls it.
function resume(job) {
  job = parse(job);
  run(deployed, fromJSON(job.input), makeEnv(job));
}
