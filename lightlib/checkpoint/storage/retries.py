"""Retries of calls to a store: which errors are transient, and how long to wait."""

from __future__ import annotations

import contextlib
import errno
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from lightlib import report

T = TypeVar("T")

ATTEMPTS = 6
FIRST_DELAY, LONGEST_DELAY = 0.5, 20.0  # seconds; each is twice the one before, and up to half of it is random
SLOW = 20.0  # seconds after which a request is reported
PATIENCE = 300.0  # seconds after which nothing is retried, because the store's own package retries too

_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
_CODES = frozenset({
    "BadDigest", "IncompleteBody", "InternalError", "NoSuchUpload", "OperationAborted", "RequestLimitExceeded",
    "RequestTimeout", "RequestTimeoutException", "ServiceUnavailable", "SlowDown", "SlowDownRead", "SlowDownWrite",
    "Throttling", "ThrottledException", "ThrottlingException", "TooManyRequests", "TooManyRequestsException",
    "XAmzContentSHA256Mismatch",
})  # fmt: skip
_KINDS = frozenset({
    "ClientConnectionError", "ClientConnectorError", "ClientOSError", "ClientPayloadError", "ConnectTimeoutError",
    "ConnectionClosedError", "EndpointConnectionError", "FSTimeoutError", "HTTPClientError", "IncompleteRead",
    "IncompleteReadError", "ProxyConnectionError", "ReadTimeoutError", "ResponseParserError", "ResponseStreamingError",
    "ServerDisconnectedError", "ServerTimeoutError", "ServiceRequestError", "ServiceResponseError", "TransportError",
})  # fmt: skip
_NUMBERS = frozenset({
    errno.EAGAIN, errno.EBUSY, errno.ECONNABORTED, errno.ECONNREFUSED, errno.ECONNRESET, errno.EHOSTUNREACH,
    errno.ENETDOWN, errno.ENETUNREACH, errno.EPIPE, errno.ETIMEDOUT, getattr(errno, "EREMOTEIO", errno.EAGAIN),
})  # fmt: skip
_FINAL = (FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)


class StoreError(OSError):
    """A request to a store has failed; the reason is in `__cause__`."""


@contextlib.contextmanager
def noted_if_slow(what: str) -> Iterator[None]:
    """Report a slow block while it runs: a run that waits for a store must not look like one that hangs."""
    text = f"{what}: the store has taken {SLOW:.0f} s so far."
    timer = threading.Timer(SLOW, report.info, [text])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def with_retries(what: str, call: Callable[[], T]) -> T:
    """Return the result of `call`, and call it again after a time-out, throttling or a dropped connection.

    It is called at most 6 times within 5 minutes, with growing pauses. Time-outs of single requests are the store's;
    set them in fsspec's configuration: ``FSSPEC_S3_CONFIG_KWARGS='{"read_timeout": 60}'``. The last exception is
    raised, immediately if a retry cannot help (absent, forbidden). `what` names action and object in messages.
    """
    begun = time.monotonic()
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with noted_if_slow(what):
                return call()
        except Exception as error:
            if attempt == ATTEMPTS or time.monotonic() - begun > PATIENCE or not is_transient(error):
                raise
            longest = min(FIRST_DELAY * 2 ** (attempt - 1), LONGEST_DELAY)
            # Not from `random`: what the user draws must not depend on the network.
            delay = longest * (0.5 + secrets.randbelow(1000) / 2000)
            reason = error.__cause__ if isinstance(error, StoreError) else error
            report.info(f"{what}: {reason_of(reason)}; trying again in {delay:.1f} s ({attempt} of {ATTEMPTS} tries).")
        time.sleep(delay)
    raise AssertionError  # the last attempt returns or raises


def is_transient(error: BaseException) -> bool:
    """Whether the same call may succeed in a moment: time-outs, throttling, dropped connections; never 403 or 404."""
    for link in _causes(error):
        status, code = _answer(link)
        if code in _CODES:
            return True
        if status is not None:
            return status in _STATUS
        if isinstance(link, _FINAL):
            return any(_answer(cause)[1] in _CODES for cause in _causes(link))
        if isinstance(link, (ConnectionError, TimeoutError)) or _KINDS & {kind.__name__ for kind in type(link).__mro__}:
            return True
        if isinstance(link, OSError) and link.errno in _NUMBERS:
            return True
    return False


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    ids: set[int] = set()
    while error is not None and id(error) not in ids:
        ids.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _answer(error: BaseException) -> tuple[int | None, str]:
    """Return status and error code of the response behind an error, as the stores' packages keep them."""
    response: Any = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return status if isinstance(status, int) else None, str(response.get("Error", {}).get("Code", ""))
    for holder in (error, response):
        for name in ("status", "status_code", "code"):
            status = getattr(holder, name, None)
            if isinstance(status, int) and 100 <= status <= 599:
                return status, ""
    return None, ""


def reason_of(error: BaseException | None) -> str:
    """Return the text of an error in one line, or its type if it has none."""
    return " ".join(str(error).split()) or type(error).__name__
