# The way to the host: a message is one write to descriptor 0, its answer is
# read there.
_read, _write, _flush_out = os.read, os.write, None
_loads, _dumps = json.loads, json.dumps
_scan = json.JSONDecoder().scan_once  # not a line of it is Python that code may have changed


def _receive():
    data = _read(0, 65536)
    size = 4 + int.from_bytes(data[:4], 'little')
    while len(data) < size:
        data += _read(0, size - len(data))
    return data[4:]


def _send(op, *fields):
    _write(0, op + '\0'.join(fields).encode('utf-8', 'backslashreplace'))


_preparing = False  # a function's module is evaluated, for no call


def _impure(why):
    """Ends the evaluation of a module for no call; does nothing in a call."""
    if _preparing:
        _send(b'I', why)


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
    return _from_json(answer[1:])


def _flush():
    for f in sys.stdout, sys.stderr:
        try:
            f.flush()
        except Exception:
            pass  # code put something else there


# ---- JSON with a word about what it cannot hold ----
#
# Bytes cross as {"$bytes": "base64"}; a dict of the code's own that looks like
# that, or like this, is put into {"$object": ...}.

def _from_json(text):
    """Reads what the host gave, as bytes."""
    value = _loads(text)
    return _revived(value) if b'$bytes' in text or b'$object' in text or b'\\u0024' in text else value


def _revived(value):
    if isinstance(value, list):
        return [_revived(v) for v in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        [(key, inner)] = value.items()
        if key == '$bytes' and isinstance(inner, str):
            try:
                return base64.b64decode(inner, validate=True)
            except ValueError:
                raise ValueError('what came from outside has "$bytes" that are not base64') from None
        if key == '$object' and isinstance(inner, dict):
            value = inner
    return {k: _revived(v) for k, v in value.items()}


def _marked(value):
    """Replaces bytes, and dicts that look as if they were."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {'$bytes': base64.b64encode(value).decode()}
    if isinstance(value, dict):
        out = {k: _marked(v) for k, v in value.items()}
        return {'$object': out} if len(out) == 1 and next(iter(out)) in ('$bytes', '$object') else out
    if isinstance(value, (list, tuple)):
        return [_marked(v) for v in value]
    if value is None or isinstance(value, (str, int, float)):
        return value
    return _marked(_default(value))


def _default(value):
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, enum.Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, (uuid.UUID, pathlib.PurePath)):
        return str(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {'$bytes': base64.b64encode(value).decode()}
    raise TypeError


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(',', ':'), default=_default).encode


def _to_json(value, name):
    try:
        text = _encode(value)
        return _encode(_marked(value)) if '"$bytes":' in text or '"$object":' in text else text
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
