# What the person or the model reads who must mend the code.

_sources = {}  # the user's files by name
_granted = 'nothing but print'
_env_names, _bindings, _no_input = (), (), False


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
        out['column'] = 1
    if isinstance(exc, SyntaxError) and exc.filename in _sources:
        out['kind'] = 'syntax'
        out['file'], out['line'], out['column'] = exc.filename, exc.lineno or 0, exc.offset or 0
        out['message'] = f'{type(exc).__name__}: {exc.msg}'
    elif isinstance(exc, _NoEntry):
        out['kind'], out['message'] = 'syntax', str(exc)
    elif isinstance(exc, BindingError):
        out['kind'], out['message'] = 'binding', str(exc)
    elif isinstance(exc, SystemExit):
        out['message'] = exc.code if isinstance(exc.code, str) else f'the code ended with exit status {exc.code}'
    elif isinstance(exc, RecursionError) and not _was_raised(exc):
        out['kind'], out['depth'] = 'stack', _depth(exc)
    out['hint'] = _hint(exc, out['message'])
    return out


def _frames(exc):
    tb = exc.__traceback__
    while tb is not None:
        yield tb
        tb = tb.tb_next


def _depth(exc):
    return sum(1 for _ in _frames(exc))


def _was_raised(exc):
    """Tells whether a raise statement made an exception, not the interpreter."""
    last = None
    for last in _frames(exc):
        pass
    if last is None:
        return True
    return last.tb_frame.f_code.co_code[last.tb_lasti] in _raise_ops


_raise_ops = {dis.opmap['RAISE_VARARGS']}
_process = 'an isolate has no processes: run this step in a jail ("needs": ["process"])'
_no_socket = 'an isolate has no sockets: use fetch(url) where it is granted'
_no_files = 'an isolate has no files but its own modules and /tmp: use input and env, or run this step in a jail ("needs": ["filesystem"])'
_packages = {'requests', 'httpx', 'aiohttp', 'urllib3'}
_javascript = re.compile(r'^\s*(?:export\s+(?:default|const|async|function)|const\s+\w+\s*=|let\s+\w+\s*=|(?:async\s+)?function\b|import\s.*\sfrom\s+[\'"])|=>\s*[{(]', re.M)
_main_wanted = 'write def main(input, env): and return the result from it'


class _NoEntry(Exception):
    """The code defines things and does nothing."""

    def __init__(self, name, file, line):
        super().__init__(f'{file} defines {name} and does nothing')
        self.name, self._at = name, (file, line)


def _inert(node):
    """Tells whether a statement does nothing that is seen outside."""
    return isinstance(node, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Pass)) or \
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) or \
        isinstance(node, ast.Assign) and isinstance(node.value, (ast.Constant, ast.List, ast.Dict, ast.Tuple, ast.Set))


def _check_entry(text, name):
    """Refuses a script that only defines functions: none of them is called."""
    body = ast.parse(text).body
    functions = [n for n in body if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    if functions and all(map(_inert, body)) and not any(f.name == 'main' for f in functions):
        raise _NoEntry(functions[-1].name, name, functions[-1].lineno)


def _hint_name(name):
    if name == 'env':
        return 'env is the second parameter of main(input, env)'
    if name in ('await_', 'console', 'null', 'undefined', 'true', 'false'):
        return 'this is Python: print(…) writes a line, and None, True and False are the constants' if name != 'console' else 'this is Python: print(…) writes a line'
    for known in _env_names:
        if known.lower() == name.lower():
            kind = 'binding' if known in _bindings else 'string'
            return f'the {kind} is env.{known}: env is the second parameter of main(input, env)'
    return ''


def _hint_none(exc):
    """For a None where there should be something."""
    for frame in reversed(_own(exc).stack or ()):
        if _no_input and re.search(r'\binput\b', frame.line or ''):
            return 'input is None: the request came without "input"'
        break
    return f'what is granted to this run is {_granted}'


def _hint_syntax(exc):
    text = _sources.get(exc.filename, '')
    if _javascript.search(text):
        return 'this looks like JavaScript: send "language": "js"'
    if 'await' in exc.msg:
        return 'calls of bindings and fetch give their answer at once in Python: leave await out'
    if "'return' outside" in exc.msg:
        return 'return stands outside of a function: put the code into def main(input, env):'
    return 'the code is Python 3.12'


def _hint(exc, message):
    if isinstance(exc, _NoEntry):
        return f'{exc.name} is there, but nothing calls it: {_main_wanted}'
    if isinstance(exc, ModuleNotFoundError):
        names = ', '.join(sorted(_sources)[:10])
        if exc.name in _packages:
            return f'there is no {exc.name}: use fetch(url, method=…, headers=…, json=…), which gives .status, .text, .json() and .headers'
        return (f'the modules of this run are {names}; an isolate has the standard library and no packages: '
                'pass the source among the modules, or run this step in a jail ("needs": ["packages"])')
    if isinstance(exc, NameError):
        return _hint_name(exc.name or '')
    if isinstance(exc, SyntaxError):
        return _hint_syntax(exc)
    if isinstance(exc, BindingError):
        return ''
    if isinstance(exc, (AttributeError, KeyError)) and 'env has no ' in message:
        return f'what is granted to this run is {_granted}; the request asks for bindings in "bindings", and the tenant\'s policy has to grant them'
    if isinstance(exc, (FileNotFoundError, PermissionError, IsADirectoryError)) and exc.filename is not None:
        return _no_files
    if 'start new thread' in message:
        return 'an isolate has one thread: do it one after the other'
    if isinstance(exc, MemoryError):
        return 'more memory was wanted at once than there can be, or source is nested too deeply'
    if 'unknown url type' in message or 'builtin_function_or_method' in message and re.search(r'\binput\b', _last_line(exc)):
        return _no_socket if 'url' in message else 'input is the first parameter of main(input, env); in a script it is Python\'s own function, and the input is sys.stdin'
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
        return _hint_none(exc)
    return ''


def _last_line(exc):
    stack = _own(exc).stack
    return stack[-1].line or '' if stack else ''
