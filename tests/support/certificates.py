"""One TLS context for a process: reading the certificates takes longer than many a test does."""

import functools
import ssl

import pytest

_context = functools.cache(ssl.create_default_context)


@pytest.fixture(scope="module", autouse=True)
def one_tls_context():
    """Clients of HTTP share a TLS context; they make one each, also for servers without TLS."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", _context)
        yield
