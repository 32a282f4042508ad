"""Asks the token endpoint of an identity provider for a token: RFC 6749, grant `client_credentials`."""

import base64
import http.client
import re
import ssl
import time
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote_plus, urlencode

import msgspec

from schemas import secret_files
from schemas.settings import ProjectorSettings

_SECONDS = 10.0
_LARGEST_BYTES = 1_048_576
_CODE = re.compile(r"[a-z_]{1,40}")
_OF_CLIENT = "LEADVIEW_KAFKA_OAUTH_CLIENT_ID and LEADVIEW_KAFKA_OAUTH_CLIENT_SECRET (or its file)"
_CORRECTED = {
    "invalid_scope": "LEADVIEW_KAFKA_OAUTH_SCOPE",
    "unsupported_grant_type": "LEADVIEW_KAFKA_OAUTH_TOKEN_URL, or let this client use the grant client_credentials",
    "unauthorized_client": "LEADVIEW_KAFKA_OAUTH_CLIENT_ID, or let this client use the grant client_credentials",
}


class NoToken(Exception):
    """There is no token. The message says why, and what to do; it contains no secret."""


class _Answer(msgspec.Struct):
    access_token: str
    expires_in: float = 0.0


class _Error(msgspec.Struct):
    error: str = ""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirected request would take the secret of the client elsewhere."""

    def redirect_request(self, *_arguments: Any) -> None:
        return None


def ask(settings: ProjectorSettings) -> tuple[str, float]:
    """Returns a token and when it expires, in seconds since 1970. It blocks for up to some seconds. Raises NoToken."""
    url = str(settings.kafka_oauth_token_url)
    context = ssl.create_default_context(cafile=settings.kafka_oauth_ca_file)
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), _NoRedirects())
    asked_at = time.time()
    try:
        with opener.open(_request(settings, url), timeout=_SECONDS) as response:
            answer = msgspec.json.decode(response.read(_LARGEST_BYTES), type=_Answer, strict=False)
    except urllib.error.HTTPError as error:
        with error:
            raise NoToken(_refusal(url, error)) from None
    except (OSError, http.client.HTTPException) as error:
        raise NoToken(_unreachable(url, getattr(error, "reason", error))) from None
    except msgspec.DecodeError:  # its message may contain a part of the answer
        raise NoToken(f"{url} does not answer with a token: correct LEADVIEW_KAFKA_OAUTH_TOKEN_URL") from None
    return answer.access_token, asked_at + answer.expires_in


def _request(settings: ProjectorSettings, url: str) -> urllib.request.Request:
    form = {"grant_type": "client_credentials"}
    if settings.kafka_oauth_scope:
        form["scope"] = settings.kafka_oauth_scope
    secret = secret_files.current(settings, "kafka_oauth_client_secret")
    # RFC 6749, section 2.3.1: both are encoded as in a form, before they are joined.
    client = f"{quote_plus(str(settings.kafka_oauth_client_id))}:{quote_plus(secret)}"
    headers = {
        "Authorization": f"Basic {base64.b64encode(client.encode()).decode()}",
        "Content-Type": "application/x-www-form-urlencoded",
        "Accept": "application/json",
    }
    return urllib.request.Request(url, urlencode(form).encode(), headers, method="POST")  # noqa: S310 - https, checked


def _refusal(url: str, error: urllib.error.HTTPError) -> str:
    try:
        code = msgspec.json.decode(error.read(_LARGEST_BYTES), type=_Error).error
    except (msgspec.DecodeError, OSError, http.client.HTTPException):
        code = ""
    status = f"HTTP {error.code}"
    if not _CODE.fullmatch(code):
        if error.code in (401, 403):
            return f"{url} refuses this client ({status}): correct {_OF_CLIENT}"
        return f"{url} does not answer with a token ({status}): correct LEADVIEW_KAFKA_OAUTH_TOKEN_URL, or try later"
    return f"{url} refuses a token ({status}, {code}): correct {_CORRECTED.get(code, _OF_CLIENT)}"


def _unreachable(url: str, reason: object) -> str:
    if isinstance(reason, ssl.SSLCertVerificationError):
        return (
            f"the certificate of {url} is not accepted ({reason.verify_message}): correct "
            "LEADVIEW_KAFKA_OAUTH_CA_FILE, or the host in LEADVIEW_KAFKA_OAUTH_TOKEN_URL"
        )
    why = "it does not answer" if isinstance(reason, TimeoutError) else str(reason) or type(reason).__name__
    return f"{url} cannot be reached ({why}): start it, or correct LEADVIEW_KAFKA_OAUTH_TOKEN_URL"
