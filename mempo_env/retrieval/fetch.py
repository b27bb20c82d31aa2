"""Pages of the open web for a policy that may ask for anything: public addresses only, bounded in size and time.

A host is resolved once, every address it has is checked, and the connection goes to the address that was checked: a
name that resolves differently a moment later (DNS rebinding) gains nothing. Each redirect goes through the same gate.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin, urlsplit, urlunsplit
from urllib.robotparser import RobotFileParser

from mempo_env.retrieval.json_client import import_httpx

USER_AGENT = "mempo-gym/0.1 (research; respects robots.txt)"
_TEXT_TYPES = ("text/html", "application/xhtml+xml", "text/plain")
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MAX_REDIRECTS = 5
_ROBOTS_BYTES = 512 << 10


class PageError(Exception):
    """The page cannot be had, and why, in words that a policy may read."""


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """max_bytes: of a page, unpacked; the rest is not read. total_seconds: for one page, redirects and robots included.

    allow_private: also loopback, private and link-local addresses; for tests and for intranets on purpose.
    """

    max_bytes: int = 2 << 20
    connect_seconds: float = 5.0
    total_seconds: float = 20.0
    allow_private: bool = False
    respect_robots: bool = True


@dataclass(frozen=True, slots=True)
class Page:
    """`url` is where the redirects ended; `truncated` says that `max_bytes` cut the body."""

    url: str
    content_type: str
    body: bytes
    truncated: bool


class PageFetcher:
    """Fetches pages from one event loop. Robots files are kept for the fetcher's lifetime."""

    def __init__(self, limits: FetchLimits) -> None:
        self.limits = limits
        self._client: Any = None
        self._robots: dict[str, RobotFileParser | None] = {}

    async def fetch(self, url: str) -> Page:
        """The page at `url`. Raises PageError for everything that goes wrong with it."""
        try:
            async with asyncio.timeout(self.limits.total_seconds):
                return await self._follow(url)
        except TimeoutError:
            raise PageError("the site did not answer in time") from None

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _follow(self, url: str) -> Page:
        url = normalise_url(url)
        for _ in range(_MAX_REDIRECTS + 1):
            if self.limits.respect_robots and not await self._allowed(url):
                raise PageError("the site's robots.txt does not allow it")
            status, headers, body, truncated = await self._get(url, self.limits.max_bytes)
            if status in _REDIRECTS:
                url = normalise_url(urljoin(url, headers.get("location", "")))
                continue
            if status != 200:
                raise PageError(f"the site answered with status {status}")
            content_type = headers.get("content-type", "text/html").partition(";")[0].strip().lower()
            if content_type not in _TEXT_TYPES:
                raise PageError(f"it is no page of text but {content_type or 'unknown'}")
            return Page(url, headers.get("content-type", "text/html"), body, truncated)
        raise PageError("too many redirects")

    async def _allowed(self, url: str) -> bool:
        """Whether robots.txt lets us (RFC 9309: no such file allows all, a server that is broken allows nothing)."""
        parts = urlsplit(url)
        origin = f"{parts.scheme}://{parts.netloc}"
        if origin not in self._robots:
            self._robots[origin] = await self._load_robots(origin)
        rules = self._robots[origin]
        return rules is None or rules.can_fetch(USER_AGENT, url)

    async def _load_robots(self, origin: str) -> RobotFileParser | None:
        url = f"{origin}/robots.txt"
        for _ in range(_MAX_REDIRECTS + 1):
            status, headers, body, _ = await self._get(url, _ROBOTS_BYTES)
            if status in _REDIRECTS:
                url = normalise_url(urljoin(url, headers.get("location", "")))
                continue
            if 400 <= status < 500:
                return None
            rules = RobotFileParser()
            rules.parse(
                body.decode("utf-8", "replace").splitlines() if status == 200 else ["User-agent: *", "Disallow: /"]
            )
            return rules
        return None

    async def _get(self, url: str, max_bytes: int) -> tuple[int, Any, bytes, bool]:
        httpx = import_httpx()
        parts = urlsplit(url)
        host = parts.hostname or ""
        port = parts.port or (443 if parts.scheme == "https" else 80)
        address = await self._checked_address(host, port)
        if self._client is None:
            # No kept connections: a pool knows them by address, and one address serves many names.
            self._client = httpx.AsyncClient(
                follow_redirects=False,
                trust_env=False,
                timeout=httpx.Timeout(self.limits.total_seconds, connect=self.limits.connect_seconds),
                limits=httpx.Limits(max_keepalive_connections=0),
            )
        shown = f"[{address}]" if ":" in address else address
        pinned = urlunsplit((parts.scheme, f"{shown}:{port}", parts.path or "/", parts.query, ""))
        headers = {"Host": parts.netloc, "User-Agent": USER_AGENT, "Accept": ", ".join(_TEXT_TYPES)}
        request = self._client.build_request("GET", pinned, headers=headers, extensions={"sni_hostname": host})
        try:
            response = await self._client.send(request, stream=True)
            try:
                body = bytearray()
                async for piece in response.aiter_bytes(16_384):
                    body += piece
                    if len(body) > max_bytes:
                        break
            finally:
                await response.aclose()
        except httpx.HTTPError as error:
            raise PageError(f"the connection failed ({type(error).__name__})") from None
        return response.status_code, response.headers, bytes(body[:max_bytes]), len(body) > max_bytes

    async def _checked_address(self, host: str, port: int) -> str:
        """The first address of `host`, after all of them were found public."""
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            raise PageError("there is no such site") from None
        addresses = [str(item[4][0]) for item in found]
        if not addresses:
            raise PageError("there is no such site")
        if not self.limits.allow_private and not all(is_public(address) for address in addresses):
            raise PageError("its address is not on the public internet")
        return addresses[0]


def is_public(address: str) -> bool:
    """Whether an IP address is one of the public internet, also behind IPv6 forms that carry an IPv4 address."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        carried = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if carried is None and ip in ipaddress.ip_network("64:ff9b::/96"):
            carried = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if carried is not None:
            return is_public(str(carried))
    return ip.is_global and not ip.is_multicast


def normalise_url(url: str) -> str:
    """`url` without fragment, checked: http or https, a host, no user and password. A bare host gets https.

    Raises PageError.
    """
    url = url.strip()
    if "://" not in url:
        url = f"https://{url}"
    try:
        parts = urlsplit(url)
        port = parts.port
        host = parts.hostname or ""
        if ":" not in host:
            host = host.encode("idna").decode("ascii")
    except (ValueError, UnicodeError):
        raise PageError("the address is not a valid one") from None
    if parts.scheme not in ("http", "https"):
        raise PageError("only http and https addresses can be opened")
    if not host or any(c in url for c in " \t\r\n\0\\"):
        raise PageError("the address is not a valid one")
    if parts.username is not None or parts.password is not None:
        raise PageError("addresses with a user name cannot be opened")
    shown = f"[{host}]" if ":" in host else host
    netloc = shown if port is None else f"{shown}:{port}"
    return urlunsplit((parts.scheme, netloc, parts.path or "/", parts.query, ""))
