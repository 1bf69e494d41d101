# One run.

class _Finder:
    """Imports the user's own files, before the standard library."""

    base = ['']

    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        if fullname == 'random':
            return importlib.machinery.ModuleSpec('random', _Seeder)
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


class _Seeder(importlib.abc.Loader):
    """Gives the module random with a seed of this run's own. The one in the
    image is the same in every run, and drawing one costs too much for those
    that do not use it."""

    module = random
    used = False

    @classmethod
    def create_module(cls, spec):
        cls.used = True
        if not _preparing:
            cls.module.seed()
        return cls.module

    @staticmethod
    def exec_module(module): pass


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
_some_def = re.compile(r'^(?:async[ \t]+)?def[ \t]+(?!main\b)', re.M)
_guard = re.compile(r'^if[ \t]+__name__[ \t]*==', re.M)


def _entry(text):
    """Takes a Markdown fence off. Line numbers stay."""
    if m := _fence.match(text):
        body = text.rstrip()
        if body.endswith('```'):
            return '\n' * m[0].count('\n') + body[m.end():-3]
    return text


class _Exit:
    def __call__(self, code=None):
        raise SystemExit(code)


class _Executor(concurrent.futures.Executor):
    """An executor of work that is done at once: there is one thread."""

    def __init__(self, *args, **options):
        pass

    def submit(self, f, /, *args, **options):
        future = concurrent.futures.Future()
        future.set_running_or_notify_cancel()
        try:
            future.set_result(f(*args, **options))
        except BaseException as e:
            future.set_exception(e)
        return future


_Executor.__name__ = _Executor.__qualname__ = 'ThreadPoolExecutor'
concurrent.futures.ThreadPoolExecutor = _Executor
_thread = sys.modules['concurrent.futures.thread'] = types.ModuleType('concurrent.futures.thread')
_thread.ThreadPoolExecutor = concurrent.futures.thread = _Executor
concurrent.futures.thread = _thread

builtins.exit = builtins.quit = _Exit()
builtins.fetch, builtins.BindingError = fetch, BindingError


def _arguments(f, given):
    """Gives as many arguments as a function takes."""
    if type(f) is types.FunctionType and not hasattr(f, '__wrapped__') and not f.__code__.co_flags & inspect.CO_VARARGS:
        return given[:f.__code__.co_argcount]
    try:
        parameters = inspect.signature(f).parameters.values()
    except (TypeError, ValueError):
        return given
    if any(p.kind == p.VAR_POSITIONAL for p in parameters):
        return given
    n = sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
    return given[:n]


class _Input(io.TextIOBase):
    """Standard input: the run's input, made to text when somebody reads it."""

    def __init__(self, data):
        self._data, self._text = data, None

    def _open(self):
        _impure('its top level reads its input')
        if self._text is None:
            data = self._data
            self._text = io.StringIO(data if isinstance(data, str) else '' if data is None else
                                     data.decode('utf-8', 'replace') if isinstance(data, bytes) else _encode(data))
        return self._text

    def readable(self): return True
    def fileno(self): raise io.UnsupportedOperation('fileno')
    def read(self, size=-1): return self._open().read(size)
    def readline(self, size=-1): return self._open().readline(size)
    buffer = property(lambda self: io.BytesIO(bytes(self._data) if isinstance(self._data, bytes) else self.read().encode()))


def _load(job):
    """Takes the job's files and gives the main one's name, text and code."""
    _sources.update(job['modules'])
    name = job['main']
    _sources[name] = text = _entry(_sources[name])
    if '/' in name:
        _Finder.base = [name.rpartition('/')[0] + '/', '']
    return name, text, compile(text, name, 'exec', dont_inherit=True)


def _grant(job):
    """Gives what the call holds; its env is the result."""
    global _granted, _env_names, _bindings, _no_input
    env = _environment(job)
    _granted = ', '.join(['env.' + b['name'] for b in job['bindings']] + ['fetch'] * job['fetch']) or 'nothing but print'
    _bindings = tuple(b['name'] for b in job['bindings'])
    _env_names = (*job['env'], *_bindings)
    _no_input = job['input'] is None
    sys.stdin = _Input(job['input'])
    return env


def _module(name, function):
    sys.argv = [name]
    module = types.ModuleType('main' if function else '__main__')
    module.__file__, module.__builtins__ = name, builtins
    sys.modules[module.__name__] = module
    return module


def _run(job):
    name, text, code = _load(job)
    env = _grant(job)
    _send(b'S')
    # With a main that takes something, the module is a function's; else it is a
    # script.
    function = _main_with_parameters.search(text)
    if not function and _some_def.search(text):
        _check_entry(text, name)
    module = _module(name, function)
    space = module.__dict__
    if not function:
        sys.modules['__main__'] = module
        space['env'] = env
    exec(code, space)
    main = space.get('main')
    if not callable(main) or not function and _guard.search(text):
        return 'null'
    return _result(name, main, job['input'], env)


_deployed = None  # name and function of a module that was evaluated for no call


def _prepare(job):
    """Evaluates the module of a deployed function. Nothing of a call is there."""
    global _deployed, _preparing
    _preparing = True
    name, text, code = _load(job)
    _send(b'S')
    if not _main_with_parameters.search(text):
        _impure('it is a script, all of which is run in each call')
    sys.stdin = _Input(None)
    space = _module(name, True).__dict__
    _Seeder.used, state = False, _Seeder.module.getstate()
    exec(code, space)
    main = space.get('main')
    if not callable(main):
        _impure('it has no function main when it has been evaluated')
    if _Seeder.module.getstate() != state:
        _impure('its top level draws random numbers')
    _preparing = False
    _deployed = name, main
    job.clear()
    del code, text, state
    # Collections in calls need not look at what is there now.
    gc.collect()
    gc.freeze()
    return 'null'


def _call_deployed(job):
    env = _grant(job)
    if _Seeder.used:
        _Seeder.module.seed()
    return _result(*_deployed, job['input'], env)


def _result(name, main, data, env):
    value = main(*_arguments(main, (data, env)))
    if inspect.iscoroutine(value):
        value = asyncio.run(value)
    try:
        return _to_json(value, 'result')
    except _NotJSON as e:
        # Where the value came from is more of use than where it was refused.
        e._at = name, getattr(getattr(main, '__code__', None), 'co_firstlineno', 0)
        raise


def dispatch():
    text = _receive()
    job = _scan(text.decode(), 0)[0]
    if b'$bytes' in text or b'$object' in text or b'\\u0024' in text:
        job['input'] = _revived(job['input'])
    todo = job.get('op')
    if todo != 'prepare':
        logging._startTime = time.time()
    try:
        try:
            op, last = b'D', _prepare(job) if todo == 'prepare' else _call_deployed(job) if todo else _run(job)
        except SystemExit as e:
            if e.code not in (None, 0):
                raise
            op, last = b'D', 'null'
    except BaseException as e:
        if _preparing:
            _send(b'X')
        try:
            op, last = b'F', _dumps(_describe(e))
        except BaseException as e2:
            op, last = b'F', _dumps({'kind': 'thrown', 'message': f'{type(e).__name__}, which cannot be shown ({type(e2).__name__})'})
    _flush()
    _send(op, last)



def _rehearse():
    """Does what a call does, so that the image holds code that has been
    specialized and caches that are filled."""
    global _read, _write
    job = json.dumps({
        'main': 'main.py', 'input': {'a': [1, 2.5, None, True, 'x']}, 'env': {}, 'fetch': False,
        'bindings': [{'name': 'LOG', 'methods': ['info']}, {'name': 'DB', 'methods': ['query']}],
        'modules': {
            'other.py': 'import re, math\ndef f(x):\n    return [math.sqrt(i) for i in range(x)]\n',
            'main.py': "import json, re, datetime, collections\nfrom other import f\n\nclass A:\n    def __init__(self, x):\n        self.x = x\n\n"
                       "def main(input, env):\n    total = 0\n    for i, x in enumerate(f(5)):\n        total += x if i % 2 else -x\n"
                       "    env.LOG.info(f'total {total:.2f}', {'a': A(1).x})\n    rows = env.DB.query('select 1', [1])\n"
                       "    try:\n        rows['none']\n    except KeyError as e:\n        text = str(e)\n"
                       "    return {'rows': rows, 'text': text.strip().split(','), 'input': input, 'total': total}\n",
        }}).encode()
    script = json.dumps({'main': 'main.py', 'input': 'x', 'env': {}, 'fetch': False, 'bindings': [], 'modules': {
        'main.py': "import sys\ntotal = sum(int(w) for w in '1 2 3'.split())\nfor line in sys.stdin:\n    print(line.strip(), total, end='')\n"}}).encode()
    kept, inbox = (_read, _write), []

    def read(fd, size):
        return inbox.pop()

    def write(fd, data):
        if data[:1] == b'C':
            inbox.append(framed(b'o{"rows": [{"id": 1, "name": "x"}]}'))
        elif data[:1] not in b'DSL':
            raise RuntimeError(data)
        return len(data)

    def framed(data):
        return len(data).to_bytes(4, 'little') + data

    for i in range(40):
        _read, _write, modules, out = read, write, set(sys.modules), sys.stdout
        inbox.append(framed(script if i % 4 == 3 else job))
        sys.stdout = io.TextIOWrapper(io.BytesIO(), 'utf-8', line_buffering=True)
        try:
            dispatch()
        finally:
            (_read, _write), sys.stdout = kept, out
        for name in set(sys.modules) - modules | {'__main__', 'main'}:
            sys.modules.pop(name, None)
        _sources.clear()


sys.stdout.reconfigure(line_buffering=True)
sys.stderr.reconfigure(line_buffering=True)
_rehearse()
del sys.modules['random']
linecache.clearcache()
gc.collect()
gc.freeze()
# Free memory, so that most runs need no more: one that grew cannot be reset.
_room = bytes(5 << 20)
_stack = array.array('b', [0]) * (4 << 20)


def _plug(top, most):
    """Takes the holes in the heap below top, for good, so that what a run makes
    stands side by side behind it: a page that is written is one to be reset."""
    holes = [None] * most
    n = 0
    for size in itertools.chain(range(8192, 1, -8), (None,)):
        while n < most:
            hole = object() if size is None else bytes(size)
            if id(hole) > top:
                break
            holes[n] = hole
            n += 1
    return holes


_holes = _plug(id(_room), 1 << 16)
del _room


def _objects():
    """Gives the addresses of all objects there are. It runs after the image was
    taken, so what it makes itself is not in there."""
    gc.unfreeze()
    todo, seen = gc.get_objects(), {}
    while todo:
        found = []
        for o in todo:
            if id(o) not in seen:
                seen[id(o)] = None
                found.append(o)
        todo = gc.get_referents(*found)
        for o in found:
            if type(o) is types.CodeType:
                todo += (o.co_consts, o.co_names, o.co_filename, o.co_name, o.co_qualname, o.co_linetable, o.co_exceptiontable)
    return array.array('I', seen).tobytes()


_frame = sys._getframe()
_write(0, json.dumps(dict(zip(('Dispatch', 'Tuple', 'Frame', 'Stack', 'StackSize'), (id(dispatch), id(()), id(_frame), *_stack.buffer_info())))).encode())
time.time()
_write(0, b'O' + _objects())
time.time()
