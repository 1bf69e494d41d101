# One run.

class _Finder:
    """Imports the user's own files, before the standard library."""

    base = ['']

    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        tail = fullname.rpartition('.')[2]
        for base in cls.base if path is None else path:
            name = f'{base}{tail}' if path is None else f'{base}/{tail}'
            if name + '/__init__.py' in _sources:
                return cls._spec(fullname, name + '/__init__.py', [name])
            if name + '.py' in _sources:
                return cls._spec(fullname, name + '.py', None)
            if any(s.startswith(name + '/') for s in _sources):
                spec = importlib.machinery.ModuleSpec(fullname, None, is_package=True)
                spec.submodule_search_locations = [name]
                return spec
        return None

    @classmethod
    def _spec(cls, fullname, file, locations):
        spec = importlib.machinery.ModuleSpec(fullname, _Loader(file), origin=file, is_package=locations is not None)
        if locations is not None:
            spec.submodule_search_locations = locations
        spec.has_location = True
        return spec


class _Loader(importlib.abc.InspectLoader):
    def __init__(self, file):
        self.file = file

    def create_module(self, spec):
        return None

    def get_source(self, fullname):
        return _sources[self.file]

    def get_code(self, fullname):
        return compile(_sources[self.file], self.file, 'exec', dont_inherit=True)

    def exec_module(self, module):
        exec(self.get_code(None), module.__dict__)


sys.meta_path.insert(0, _Finder)


class _Loop(asyncio.base_events.BaseEventLoop):
    """An event loop of timers and tasks: there is nothing else to wait for."""

    def __init__(self):
        super().__init__()
        self._selector = self

    def select(self, timeout):
        if timeout is None:
            raise RuntimeError('the code waits for what nothing will settle')
        if timeout > 0:
            time.sleep(timeout)
        return ()

    def _process_events(self, events): pass
    def _write_to_self(self): pass


class _Policy(asyncio.DefaultEventLoopPolicy):
    _loop_factory = _Loop


asyncio.set_event_loop_policy(_Policy())

_fence = re.compile(r'\s*```[A-Za-z0-9]*[ \t]*\r?\n')
_main_with_parameters = re.compile(r'^(?:async[ \t]+)?def[ \t]+main[ \t]*\(\s*[\w*]', re.M)
_guard = re.compile(r'^if[ \t]+__name__[ \t]*==', re.M)


def _entry(text):
    """Takes a Markdown fence off. Line numbers stay."""
    if m := _fence.match(text):
        body = text.rstrip()
        if body.endswith('```'):
            return '\n' * m[0].count('\n') + body[m.end():-3]
    return text


_open = io.open


def _open_own(file, mode='r', buffering=-1, encoding=None, errors=None, newline=None, closefd=True, opener=None):
    """open, which also reads the run's own modules."""
    if isinstance(file, (str, os.PathLike)) and not set(mode) & set('wax+'):
        name = os.fspath(file)
        if isinstance(name, str):
            name = os.path.normpath(name).lstrip('/')
            if name in _sources:
                raw = io.BytesIO(_sources[name].encode())
                return raw if 'b' in mode else io.TextIOWrapper(raw, encoding or 'utf-8', errors, newline)
    return _open(file, mode, buffering, encoding, errors, newline, closefd, opener)


_open_own.__name__ = _open_own.__qualname__ = 'open'


class _Exit:
    def __call__(self, code=None):
        raise SystemExit(code)


builtins.exit = builtins.quit = _Exit()
builtins.fetch, builtins.BindingError = fetch, BindingError
builtins.open = io.open = _open_own


def _arguments(f, given):
    """Gives as many arguments as a function takes."""
    try:
        parameters = inspect.signature(f).parameters.values()
    except (TypeError, ValueError):
        return given
    if any(p.kind == p.VAR_POSITIONAL for p in parameters):
        return given
    n = sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
    return given[:n]


def _run(job):
    global _granted
    _sources.update(job['modules'])
    name = job['main']
    _sources[name] = text = _entry(_sources[name])
    env = _environment(job)
    _granted = ', '.join(['env.' + b['name'] for b in job['bindings']] + ['fetch'] * job['fetch']) or 'nothing but print'
    if '/' in name:
        _Finder.base = [name.rpartition('/')[0] + '/', '']
    code = compile(text, name, 'exec', dont_inherit=True)
    _send(b'S')
    data = job['input']
    sys.stdin = io.StringIO(data if isinstance(data, str) else '' if data is None else _encode(data))
    sys.argv = [name]
    # With a main that takes something, the module is a function's; else it is a
    # script.
    function = _main_with_parameters.search(text)
    module = types.ModuleType('main' if function else '__main__')
    module.__file__, module.__builtins__ = name, builtins
    sys.modules[module.__name__] = module
    space = module.__dict__
    if not function:
        sys.modules['__main__'] = module
        space['env'] = env
    exec(code, space)
    main = space.get('main')
    if not callable(main) or not function and _guard.search(text):
        return 'null'
    value = main(*_arguments(main, (data, env)))
    if inspect.iscoroutine(value):
        value = asyncio.run(value)
    try:
        return _to_json(value, 'result')
    except _NotJSON as e:
        # Where the value came from is more of use than where it was refused.
        e.add_note(f'main is in {name}')
        raise


def dispatch():
    job = json.loads(_receive())
    random.seed()
    logging._startTime = time.time()
    try:
        try:
            op, last = b'D', _run(job)
        except SystemExit as e:
            if e.code not in (None, 0):
                raise
            op, last = b'D', 'null'
    except BaseException as e:
        try:
            op, last = b'F', json.dumps(_describe(e))
        except BaseException as e2:
            op, last = b'F', json.dumps({'kind': 'thrown', 'message': f'{type(e).__name__}, which cannot be shown ({type(e2).__name__})'})
    _flush()
    _send(op, last)


sys.stdout.reconfigure(line_buffering=True)
sys.stderr.reconfigure(line_buffering=True)
linecache.checkcache()
gc.collect()
gc.freeze()
_write(0, ('{"Dispatch": %d, "Tuple": %d}' % (id(dispatch), id(()))).encode())
time.time()
