# What a run may use: env, and fetch.

class _Variables(dict):
    """What os.environ holds: a call's own."""

    def __getitem__(self, name):
        _impure('its top level reads the environment')
        return dict.__getitem__(self, name)

    def __setitem__(self, name, value):
        _impure('its top level changes the environment')
        dict.__setitem__(self, name, value)

    def __delitem__(self, name):
        _impure('its top level changes the environment')
        dict.__delitem__(self, name)

    def __iter__(self):
        _impure('its top level reads the environment')
        return dict.__iter__(self)

    def __len__(self):
        _impure('its top level reads the environment')
        return dict.__len__(self)


os.environ._data = os.environb._data = _Variables(os.environ._data)


def _near(name, names):
    """Asks for the name that was probably meant."""
    lower = {str(n).lower(): n for n in names}
    close = difflib.get_close_matches(str(name).lower(), lower, 1)
    return f". Did you mean: '{lower[close[0]]}'?" if close else ''


class _Env:
    """The strings and bindings of this run."""

    __slots__ = ('_values',)

    def __init__(self, values):
        object.__setattr__(self, '_values', values)

    def __getattr__(self, name):
        try:
            return self._values[name]
        except KeyError:
            pass
        raise AttributeError(f'env has no {name!r}; it has {", ".join(self._values) or "nothing"}{_near(name, self._values)}', name=name)

    def __getitem__(self, name):
        try:
            return self._values[name]
        except KeyError:
            pass
        raise KeyError(f'env has no {name!r}; it has {", ".join(self._values) or "nothing"}{_near(name, self._values)}')

    def __setattr__(self, name, value):
        raise AttributeError('env cannot be changed')

    def get(self, name, default=None):
        return self._values.get(name, default)

    def __contains__(self, name):
        return name in self._values

    def __iter__(self):
        return iter(self._values)

    def keys(self):
        return self._values.keys()

    def __dir__(self):
        return list(self._values)

    def __repr__(self):
        return f'<env: {", ".join(self._values)}>'


class _Binding:
    """A binding, whose methods are answered by the host."""

    __slots__ = ('_name', '_methods')

    def __init__(self, name, methods):
        self._name, self._methods = name, methods

    def __getattr__(self, method):
        if method not in self._methods:
            raise AttributeError(f'env.{self._name} has no {method!r}; it has {", ".join(self._methods)}{_near(method, self._methods)}', name=method)
        binding = self._name

        def call(*args, **options):
            if options:
                args += (options,)
            name = f'{binding}.{method} argument '
            return _call(binding, method, _to_json(args, name))

        call.__name__ = call.__qualname__ = method
        return call

    def __dir__(self):
        return list(self._methods)

    def __repr__(self):
        return f'<env.{self._name}: {", ".join(self._methods)}>'


class _Log:
    """Log lines with data."""

    __slots__ = ()

    def _log(self, level, message, data):
        _flush()
        _send(b'L', level, '' if data is None else _to_json(data, 'LOG data'), message if isinstance(message, str) else repr(message))

    def debug(self, message, data=None): self._log('debug', message, data)
    def info(self, message, data=None): self._log('info', message, data)
    def warn(self, message, data=None): self._log('warn', message, data)
    def error(self, message, data=None): self._log('error', message, data)

    log, warning = info, warn


class Response:
    """What fetch gives."""

    def __init__(self, wire):
        self.status = self.status_code = wire['status']
        self.reason, self.url = wire.get('statusText', ''), wire.get('url', '')
        self.headers = email.message.Message()
        for name, value in wire.get('headers') or ():
            self.headers.add_header(name, value)
        self.content = base64.b64decode(wire.get('body') or '')

    ok = property(lambda self: 200 <= self.status < 300)

    @property
    def text(self):
        return self.content.decode(self.headers.get_content_charset('utf-8'), 'replace')

    def json(self):
        return json.loads(self.content)

    def raise_for_status(self):
        if self.status >= 400:
            raise RuntimeError(f'{self.url} answers {self.status} {self.reason}')

    def __repr__(self):
        return f'<Response {self.status} {self.url}>'


_fetch_granted = False


def fetch(url, method=None, headers=None, body=None, params=None, json=None, redirect='follow'):
    """Makes a request through the egress proxy, as the policy allows.

    redirect is 'follow', 'manual' (the redirect is the answer) or 'error'.
    """
    _impure('its top level makes a host call')
    if not _fetch_granted:
        raise PermissionError('fetch is not granted to this run: the caller has to ask for the host in "outbound", and the tenant\'s policy has to allow it')
    pairs = list(headers.items() if hasattr(headers, 'items') else headers or ())
    pairs = [[str(k), str(v)] for k, v in pairs]
    if params:
        url += ('&' if '?' in url else '?') + urllib.parse.urlencode(params, doseq=True)

    def default_type(kind):
        if not any(k.lower() == 'content-type' for k, _ in pairs):
            pairs.append(['content-type', kind])

    if json is not None:
        body = _to_json(json, 'fetch json')
        default_type('application/json')
    elif isinstance(body, dict):
        body = urllib.parse.urlencode(body, doseq=True)
        default_type('application/x-www-form-urlencoded')
    elif isinstance(body, str):
        default_type('text/plain;charset=UTF-8')
    wire = {'url': str(url), 'method': (method or ('GET' if body is None else 'POST')).upper(), 'headers': pairs}
    if redirect != 'follow':
        wire['redirect'] = str(redirect)
    if body is not None:
        wire['body'] = base64.b64encode(body.encode() if isinstance(body, str) else bytes(body)).decode()
    return Response(_call('fetch', 'fetch', _encode([wire])))


def _environment(job):
    global _fetch_granted
    values = dict(job['env'])
    if values:
        os.environ.update(values)
    for b in job['bindings']:
        values[b['name']] = _Log() if b['name'] == 'LOG' else _Binding(b['name'], b['methods'])
    _fetch_granted = job['fetch']
    if _fetch_granted:
        values['fetch'] = fetch
    return _Env(values)
