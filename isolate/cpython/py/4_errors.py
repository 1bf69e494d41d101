# What the person or the model reads who must mend the code.

_sources = {}  # the user's files by name
_granted = 'nothing but print'


def _own(exc):
    """Makes a TracebackException whose frames are the user's."""
    t = traceback.TracebackException(type(exc), exc, exc.__traceback__, compact=True)
    todo, seen = [t], set()
    while todo:
        x = todo.pop()
        if x is None or id(x) in seen:
            continue
        seen.add(id(x))
        if x.stack is not None:
            x.stack[:] = [f for f in x.stack if f.filename in _sources]
        todo += [x.__cause__, x.__context__] + list(x.exceptions or ())
    return t


def _show_sources():
    for name, text in _sources.items():
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)


def _describe(exc):
    """Tells of an exception that the code did not catch."""
    _show_sources()
    own = _own(exc)
    out = {'kind': 'thrown', 'stack': ''.join(own.format()), 'file': '', 'line': 0, 'column': 0}
    out['message'] = ''.join(own.format_exception_only()).strip()
    if own.stack:
        f = own.stack[-1]
        out['file'], out['line'], out['column'] = f.filename, f.lineno or 0, f.colno + 1 if f.colno is not None else 0
    elif at := getattr(exc, '_at', None):
        out['file'], out['line'] = at
    if isinstance(exc, SyntaxError) and exc.filename in _sources:
        out['kind'] = 'syntax'
        out['file'], out['line'], out['column'] = exc.filename, exc.lineno or 0, exc.offset or 0
        out['message'] = f'{type(exc).__name__}: {exc.msg}'
    elif isinstance(exc, BindingError):
        out['kind'], out['message'] = 'binding', str(exc)
    elif isinstance(exc, SystemExit):
        out['message'] = exc.code if isinstance(exc.code, str) else f'the code ended with exit status {exc.code}'
    out['hint'] = _hint(exc, out['message'])
    return out


_process = 'an isolate has no processes: run this step in a jail ("needs": ["process"])'
_no_socket = 'an isolate has no sockets: use fetch(url) where it is granted'
_packages = {'requests', 'httpx', 'aiohttp', 'urllib3'}


def _hint(exc, message):
    if isinstance(exc, ModuleNotFoundError):
        names = ', '.join(sorted(_sources)[:10])
        if exc.name in _packages:
            return f'there is no {exc.name}: use fetch(url, method=…, headers=…, json=…), which gives .status, .text, .json() and .headers'
        return (f'the modules of this run are {names}; an isolate has the standard library and no packages: '
                'pass the source among the modules, or run this step in a jail ("needs": ["packages"])')
    if isinstance(exc, NameError):
        if exc.name == 'env':
            return 'env is the second parameter of main(input, env)'
        if exc.name in ('await_', 'console'):
            return 'this is Python: print(…) writes a line'
        return ''
    if isinstance(exc, SyntaxError):
        return 'the code is Python 3.12'
    if isinstance(exc, BindingError):
        return ''
    if isinstance(exc, FileNotFoundError) or isinstance(exc, PermissionError) and exc.filename is not None:
        return 'an isolate has no files but its own modules and /tmp: use input and env, or run this step in a jail ("needs": ["filesystem"])'
    if 'start new thread' in message:
        return 'an isolate has one thread: do it one after the other'
    if isinstance(exc, MemoryError):
        return 'more memory was wanted at once than there can be, or source is nested too deeply'
    if isinstance(exc, (OSError, AttributeError)):
        for f in traceback.extract_tb(exc.__traceback__):
            if f.filename.endswith(('/socket.py', '/selector_events.py')):
                return _no_socket
            if f.filename.endswith('/subprocess.py'):
                return _process
        if isinstance(exc, AttributeError) and exc.name in ('fork', 'posix_spawn', 'system', 'popen', 'execv', 'waitpid', 'kill'):
            return _process
    if "can't be used in 'await' expression" in message:
        return 'calls of bindings and fetch give their answer at once in Python: leave await out'
    if isinstance(exc, RecursionError):
        return 'use a loop, or a list as a stack'
    if isinstance(exc, (TypeError, AttributeError)) and 'NoneType' in message:
        return f'what is granted to this run is {_granted}'
    return ''
