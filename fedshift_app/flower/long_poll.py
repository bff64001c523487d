"""Lets the SuperLink answer a question for messages when there are some, and not at once that there are none.

A SuperNode asks for messages, and a ServerApp for replies, and both wait before they ask again: longer waits mean later
messages, shorter ones more work for the SuperLink, a third of whose requests such questions were. Here the SuperLink
keeps a question that it would answer with nothing until something was sent to the one who asks, and asks Flower again.
So a message is there at once, and an idle node asks every few seconds. The protocol is Flower's: plain SuperNodes are
answered likewise.

A message is pushed before its parts. Who asked is woken after the last part, when no further one comes for a moment.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]

from fedshift_app.flower.versions import unread
from fedshift_core.env import LONG_POLL

log = logging.getLogger("fedshift")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Scope]]
Send = Callable[[Scope], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

ASK_AS_NODE, ASK_AS_SERVER = "/v1/fleet/pull-messages", "/v1/runtime/pull-messages"
SENT_TO_NODES = ("/v1/runtime/push-messages", "/v1/runtime/push-object")
SENT_TO_SERVER = ("/v1/fleet/push-messages", "/v1/fleet/push-object")
#: Seconds that a question is kept. A node's connection is then still open, and Flower's client waits for 30. The
#: ServerApp looks at its own timeouts in between.
NODE_SECONDS, SERVER_SECONDS = 5.0, 1.0
QUIET, LATEST = 0.015, 0.1  # seconds after the last part, and after the first, at which those who ask are woken
EVERYONE = 0  # in the place of a node's id
MOST_BODY = 10_000_000  # bytes of a question or a list of messages that is read; a longer one goes through as it is
OK = 200


@dataclass
class Mail:
    """Wakes those who wait for messages.

    Attributes:
        addressed: To whom messages are on their way.
    """

    addressed: set[int] = field(default_factory=set)
    _waiting: dict[asyncio.Future[None], int] = field(default_factory=dict)
    _first: float | None = None
    _timer: asyncio.TimerHandle | None = None

    def sent(self) -> None:
        """Note that a part was pushed."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._first = now if self._first is None else self._first
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(min(now + QUIET, self._first + LATEST), self._deliver)

    def _deliver(self) -> None:
        self._first = self._timer = None
        for waiting, who in list(self._waiting.items()):
            if not waiting.done() and (who in self.addressed or EVERYONE in self.addressed):
                waiting.set_result(None)
        self.addressed.clear()

    def waiting(self, who: int) -> "asyncio.Future[None]":
        """Return what is done as soon as there may be something for ``who``; let go of it by :meth:`leave`."""
        future = asyncio.get_running_loop().create_future()
        self._waiting[future] = who
        return future

    def leave(self, waiting: "asyncio.Future[None]") -> None:
        """Wait no more."""
        self._waiting.pop(waiting, None)
        waiting.cancel()

    def close(self) -> None:
        """Wake all."""
        for waiting in list(self._waiting):
            if not waiting.done():
                waiting.set_result(None)


class LongPoll:
    """An ASGI middleware around Flower's APIs."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._nodes, self._server = Mail(), Mail()
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        _closing.append(self.close)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Keep a question, note what was sent, or pass a request on."""
        path = scope["path"] if scope["type"] == "http" else ""
        if path == ASK_AS_NODE:
            await self._keep(scope, receive, send, self._nodes, NODE_SECONDS)
        elif path == ASK_AS_SERVER:
            await self._keep(scope, receive, send, self._server, SERVER_SECONDS)
        elif path in SENT_TO_NODES:
            await self._note(scope, receive, send, self._nodes)
        elif path in SENT_TO_SERVER:
            self._server.addressed.add(EVERYONE)
            await self._note(scope, receive, send, self._server)
        else:
            await self._app(scope, receive, send)

    def close(self) -> None:
        """Keep no question any more: the SuperLink ends."""
        self._closed = True
        if self._loop is not None and not self._loop.is_closed():
            for mail in (self._nodes, self._server):
                self._loop.call_soon_threadsafe(mail.close)

    async def _keep(self, scope: Scope, receive: Receive, send: Send, mail: Mail, seconds: float) -> None:
        """Answer a question for messages when there are some, or after so many seconds."""
        body, rest = await _body(receive)
        if rest:
            await self._app(scope, _again(body, receive, rest=rest), send)
            return
        who = _asks(scope["path"], body)
        self._loop = loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        gone = asyncio.ensure_future(_gone(receive))
        try:
            while True:
                waiting = mail.waiting(who)  # before the question: what comes in between counts
                try:
                    answer = await self._answer(scope, body, gone)
                    left = end - loop.time()
                    if left <= 0 or self._closed or not _is_empty(scope["path"], answer):
                        break
                    await asyncio.wait({waiting, gone}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                    if gone.done():  # nobody would get the messages, which Flower gives away once
                        return
                    if not waiting.done():
                        break
                finally:
                    mail.leave(waiting)
        finally:
            gone.cancel()
        for part in answer:
            await send(part)

    async def _answer(self, scope: Scope, body: bytes, gone: "asyncio.Future[None]") -> list[Scope]:
        """Return Flower's answer to a question."""
        answer: list[Scope] = []

        async def keep(part: Scope) -> None:
            answer.append(part)

        async def ended() -> Scope:
            await asyncio.shield(gone)
            return {"type": "http.disconnect"}

        own = {**scope, "state": dict(scope.get("state", {}))}  # Flower notes in it what it has read
        await self._app(own, _again(body, ended, rest=False), keep)
        return answer

    async def _note(self, scope: Scope, receive: Receive, send: Send, mail: Mail) -> None:
        """Pass a push on, and note it if it was accepted."""
        status = 0

        async def noted(part: Scope) -> None:
            nonlocal status
            if part["type"] == "http.response.start":
                status = part["status"]
            await send(part)

        if scope["path"] == SENT_TO_NODES[0]:
            body, rest = await _body(receive)
            mail.addressed |= {EVERYONE} if rest else _addressees(body)
            receive = _again(body, receive, rest=rest)
        await self._app(scope, receive, noted)
        if status == OK:
            mail.sent()


_closing: list[Callable[[], None]] = []


def install() -> None:
    """Let this process's SuperLink, which is not yet made, keep questions; tell its ServerApps so."""
    import uvicorn
    from flwr.supercore.version import package_version
    from flwr.superlink import extensions
    from starlette.middleware import Middleware

    if problem := unread(package_version):
        log.info("questions for messages are answered at once: %s", problem, extra={"event": "plain"})
        return
    extend = extensions.get_middleware
    extensions.get_middleware = lambda: (*extend(), Middleware(LongPoll))
    server: Any = uvicorn.Server
    end = server.handle_exit

    def ended(*given: Any) -> None:
        for close in _closing:  # else the server would wait for the end of each question
            close()
        end(*given)

    server.handle_exit = ended
    os.environ[LONG_POLL] = "1"


async def _body(receive: Receive) -> tuple[bytes, bool]:
    """Return a request's body, or its beginning and that more of it follows."""
    parts, size, more = [], 0, True
    while more and size <= MOST_BODY:
        message = await receive()
        if message["type"] != "http.request":
            break
        parts.append(message.get("body", b""))
        size, more = size + len(parts[-1]), message.get("more_body", False)
    return b"".join(parts), more


def _again(body: bytes, then: Receive, *, rest: bool) -> Receive:
    """Return what gives a body that was read, and then what follows; ``rest``: more of the body does."""
    given = False

    async def receive() -> Scope:
        nonlocal given
        if given:
            return await then()
        given = True
        return {"type": "http.request", "body": body, "more_body": rest}

    return receive


async def _gone(receive: Receive) -> None:
    """Return when the other end has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _asks(path: str, body: bytes) -> int:
    """Return the id of the node that asks; ``EVERYONE`` for a ServerApp, and for what is no question."""
    from flwr.proto.fleet_pb2 import PullMessagesRequest

    if path != ASK_AS_NODE:
        return EVERYONE
    question = _read(PullMessagesRequest, body)
    return EVERYONE if question is None else int(question.node.node_id)


def _addressees(body: bytes) -> set[int]:
    """Return the ids of the nodes that messages are for."""
    from flwr.proto.runtime_pb2 import PushAppMessagesRequest

    pushed = _read(PushAppMessagesRequest, body)
    return set() if pushed is None else {int(message.metadata.dst_node_id) for message in pushed.messages_list}


def _is_empty(path: str, answer: list[Scope]) -> bool:
    """Tell whether an answer is that there are no messages."""
    from flwr.proto.fleet_pb2 import PullMessagesResponse
    from flwr.proto.runtime_pb2 import PullAppMessagesResponse

    if not any(part["type"] == "http.response.start" and part["status"] == OK for part in answer):
        return False
    body = b"".join(part.get("body", b"") for part in answer if part["type"] == "http.response.body")
    messages = _read(PullMessagesResponse if path == ASK_AS_NODE else PullAppMessagesResponse, body)
    return messages is not None and not messages.messages_list


def _read(kind: type[Message], body: bytes) -> Any:
    """Return a message of the protocol; None if it is none."""
    made = kind()
    try:
        made.ParseFromString(body)
    except DecodeError:
        return None
    return made
