# The way to the host: a message is one write to descriptor 0, its answer is
# read there.
_read, _write, _flush_out = os.read, os.write, None


def _receive():
    data = _read(0, 65536)
    size = 4 + int.from_bytes(data[:4], 'little')
    while len(data) < size:
        data += _read(0, size - len(data))
    return data[4:]


def _send(op, *fields):
    _write(0, op + '\0'.join(fields).encode('utf-8', 'backslashreplace'))


class BindingError(RuntimeError):
    """A host call failed."""

    def __init__(self, message, binding='', method=''):
        super().__init__(message)
        self.binding, self.method = binding, method


BindingError.__module__ = 'builtins'


def _call(binding, method, args):
    _flush()
    _send(b'C', binding, method, args)
    answer = _receive()
    if answer[:1] != b'o':
        raise BindingError(answer[1:].decode('utf-8', 'replace'), binding, method)
    return json.loads(answer[1:])


def _flush():
    for f in sys.stdout, sys.stderr:
        try:
            f.flush()
        except Exception:
            pass  # code put something else there


# ---- JSON with a word about what it cannot hold ----

def _default(value):
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, enum.Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, (uuid.UUID, pathlib.PurePath)):
        return str(value)
    raise TypeError


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(',', ':'), default=_default).encode


def _to_json(value, name):
    try:
        return _encode(value)
    except (TypeError, ValueError, RecursionError):
        pass
    raise _NotJSON(_find(value, name, [], 0) or f'{name} cannot be written as JSON')


class _NotJSON(TypeError):
    pass


_NotJSON.__name__ = _NotJSON.__qualname__ = 'TypeError'
_NotJSON.__module__ = 'builtins'


def _refuse(path, what, hint=''):
    return f'{path} {what}: only JSON values can leave the isolate' + (f'; {hint}' if hint else '')


_hints = (
    ((set, frozenset), 'use list(…) or sorted(…)'),
    ((bytes, bytearray, memoryview), 'use base64.b64encode(…).decode() or .decode()'),
    ((decimal.Decimal, fractions.Fraction), 'use float(…) or str(…)'),
    ((types.GeneratorType, map, filter, zip, range, collections.deque), 'use list(…)'),
    ((types.CoroutineType,), 'await it'),
)


def _find(value, path, above, depth):
    """Finds the first thing in value that JSON cannot hold."""
    if value is None or isinstance(value, (str, int)):
        return None
    if isinstance(value, float):
        return None if math.isfinite(value) else _refuse(path, f'is {value}', 'use None')
    if any(value is v for v in above):
        return _refuse(path, 'is one of the objects that hold it (a cycle)')
    if depth > 100:
        return _refuse(path, 'is nested too deeply')
    above = above + [value]
    if isinstance(value, dict):
        for key, v in value.items():
            if not (key is None or isinstance(key, (str, int, float))):
                return _refuse(path, f'has a key that is a {type(key).__name__}', 'use str(…) for keys')
            at = f'{path}.{key}' if isinstance(key, str) and key.isidentifier() else f'{path}[{key!r}]'
            if bad := _find(v, at, above, depth + 1):
                return bad
        return None
    if isinstance(value, (list, tuple)):
        for i, v in enumerate(value):
            if bad := _find(v, f'{path}[{i}]', above, depth + 1):
                return bad
        return None
    try:
        return _find(_default(value), path, above, depth + 1)
    except TypeError:
        pass
    for kinds, hint in _hints:
        if isinstance(value, kinds):
            return _refuse(path, f'is a {type(value).__name__}', hint)
    if callable(value):
        return _refuse(path, 'is a function' if not isinstance(value, type) else 'is a class')
    return _refuse(path, f'is a {type(value).__name__}', 'use a dict')
