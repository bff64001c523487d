"""A question for messages is answered when there are some, and nobody waits for what will not come."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvicorn
from flwr.proto.fleet_pb2 import PullMessagesRequest, PullMessagesResponse
from flwr.proto.message_pb2 import Message, Metadata
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesResponse, PushAppMessagesRequest
from flwr.superlink import extensions

from fedshift_app.flower import long_poll
from fedshift_app.flower.long_poll import ASK_AS_NODE, ASK_AS_SERVER, SENT_TO_NODES, SENT_TO_SERVER, LongPoll
from fedshift_core.env import LONG_POLL

Parts = list[dict[str, Any]]
NODE, OTHER = 7, 8


class Flower:
    """What is behind: it has messages for some, gives each away once, and notes what it is asked."""

    def __init__(self) -> None:
        self.inbox: dict[int, int] = {}
        self.asked: list[tuple[str, bytes]] = []
        self.status = 200

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer."""
        body, more = b"", True
        while more:
            part = await receive()
            body, more = body + part["body"], part["more_body"]
        self.asked.append((scope["path"], body))
        assert "read" not in scope["state"]  # each time as if it were the first
        scope["state"]["read"] = True
        answer = b""
        if scope["path"] in {ASK_AS_NODE, ASK_AS_SERVER}:
            who = PullMessagesRequest.FromString(body).node.node_id if scope["path"] == ASK_AS_NODE else 0
            messages = [Message()] * self.inbox.pop(who, 0)
            kind = PullMessagesResponse if scope["path"] == ASK_AS_NODE else PullAppMessagesResponse
            answer = kind(messages_list=messages).SerializeToString()
        await send({"type": "http.response.start", "status": self.status, "headers": [(b"a", b"b")]})
        await send({"type": "http.response.body", "body": answer})


async def call(app: LongPoll, path: str, body: bytes = b"", gone: "asyncio.Event | None" = None) -> Parts:
    """Send a request in two parts; return the parts of the answer."""
    given = [
        {"type": "http.request", "body": body[:1], "more_body": True},
        {"type": "http.request", "body": body[1:], "more_body": False},
    ]
    answer: Parts = []

    async def receive() -> dict[str, Any]:
        if given:
            return given.pop(0)
        await (gone or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    async def send(part: Any) -> None:
        answer.append(part)

    await app({"type": "http", "path": path, "state": {}}, receive, send)
    return answer


def ask(app: LongPoll, node: int = NODE, **more: Any) -> Awaitable[Parts]:
    body = PullMessagesRequest(node=Node(node_id=node)).SerializeToString()
    return call(app, ASK_AS_NODE, body, **more)


def pushed(*nodes: int) -> bytes:
    messages = [Message(metadata=Metadata(dst_node_id=node)) for node in nodes]
    return PushAppMessagesRequest(messages_list=messages).SerializeToString()


def number(answer: Parts) -> int:
    start, body = answer
    assert (start["status"], start["headers"]) == (200, [(b"a", b"b")])
    return len(PullMessagesResponse.FromString(body["body"]).messages_list)


def run(test: Callable[[Flower, LongPoll], Awaitable[None]]) -> None:
    async def limited() -> None:
        flower = Flower()
        await asyncio.wait_for(test(flower, LongPoll(flower)), 20)

    asyncio.run(limited())


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_poll, "NODE_SECONDS", 10.0)
    monkeypatch.setattr(long_poll, "SERVER_SECONDS", 10.0)
    monkeypatch.setattr(long_poll, "_closing", [])


def test_what_is_there_is_answered_at_once() -> None:
    async def test(flower: Flower, app: LongPoll) -> None:
        flower.inbox[NODE] = 1
        assert number(await ask(app)) == 1
        assert len(flower.asked) == 1

    run(test)


def test_a_question_is_kept_until_a_message_and_its_parts_were_pushed() -> None:
    async def test(flower: Flower, app: LongPoll) -> None:
        question, other = (asyncio.ensure_future(ask(app, node)) for node in (NODE, OTHER))
        await asyncio.sleep(0.05)
        assert not question.done()
        flower.inbox[NODE] = 1
        await call(app, SENT_TO_NODES[0], pushed(NODE))
        await call(app, SENT_TO_NODES[1], b"part")
        assert number(await question) == 1
        assert [path for path, _ in flower.asked].count(ASK_AS_NODE) == 3  # the other node's was not asked again
        assert not other.done()
        assert (SENT_TO_NODES[0], pushed(NODE)) in flower.asked  # whole, though it was read on its way
        other.cancel()

    run(test)


def test_it_is_answered_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_poll, "NODE_SECONDS", 0.1)

    async def test(flower: Flower, app: LongPoll) -> None:
        assert number(await ask(app)) == 0
        assert len(flower.asked) == 1

    run(test)


def test_a_server_app_is_woken_by_replies() -> None:
    async def test(flower: Flower, app: LongPoll) -> None:
        question = asyncio.ensure_future(call(app, ASK_AS_SERVER, b""))
        await asyncio.sleep(0.05)
        flower.inbox[0] = 2
        await call(app, SENT_TO_SERVER[0], b"reply")
        await call(app, SENT_TO_SERVER[1], b"part")
        assert len(PullAppMessagesResponse.FromString((await question)[1]["body"]).messages_list) == 2

    run(test)


def test_a_push_that_is_refused_wakes_nobody() -> None:
    async def test(flower: Flower, app: LongPoll) -> None:
        question = asyncio.ensure_future(ask(app))
        await asyncio.sleep(0.05)
        flower.status = 401
        await call(app, SENT_TO_NODES[0], pushed(NODE))
        await asyncio.sleep(0.2)
        assert not question.done()
        question.cancel()

    run(test)


@pytest.mark.parametrize("status", [401, 500])
def test_an_error_is_answered_at_once(status: int) -> None:
    async def test(flower: Flower, app: LongPoll) -> None:
        flower.status = status
        answer = await ask(app)
        assert answer[0]["status"] == status

    run(test)


def test_who_has_gone_is_given_no_messages() -> None:
    """Flower gives a message away once: to a node that is not there any more it would be lost."""

    async def test(flower: Flower, app: LongPoll) -> None:
        gone = asyncio.Event()
        question = asyncio.ensure_future(ask(app, gone=gone))
        await asyncio.sleep(0.05)
        gone.set()
        assert await question == []
        flower.inbox[NODE] = 1
        await call(app, SENT_TO_NODES[0], pushed(NODE))
        await asyncio.sleep(0.2)
        assert flower.inbox == {NODE: 1}
        assert number(await ask(app)) == 1

    run(test)


def test_messages_that_come_while_flower_is_asked_are_not_overlooked() -> None:
    async def test(flower: Flower, app: LongPoll) -> None:
        late = Flower()

        async def slow(scope: Any, receive: Any, send: Any) -> None:
            if scope["path"] == ASK_AS_NODE and not late.asked:
                late.asked.append(("", b""))
                await flower(scope, receive, send)  # there is nothing yet
                flower.inbox[NODE] = 1
                await call(app, SENT_TO_NODES[0], pushed(NODE))
                await asyncio.sleep(0.2)  # and it is only now answered
            else:
                await flower(scope, receive, send)

        app._app = slow
        assert number(await ask(app)) == 1

    run(test)


@pytest.mark.parametrize("body", [b"\xff\xff", b"", b"x" * 50])
def test_what_is_no_question_gets_flowers_answer(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(flower: Flower, app: LongPoll) -> None:
        async def refused(_scope: Any, _receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 400, "headers": []})
            await send({"type": "http.response.body", "body": b"no"})

        app._app = refused
        assert (await call(app, ASK_AS_NODE, body))[1]["body"] == b"no"
        monkeypatch.setattr(long_poll, "MOST_BODY", 3)
        assert (await call(app, ASK_AS_NODE, body))[1]["body"] == b"no"
        await call(app, SENT_TO_NODES[0], body)

    run(test)


def test_a_long_question_goes_through_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_poll, "MOST_BODY", 0)

    async def test(flower: Flower, app: LongPoll) -> None:
        flower.inbox[NODE] = 1
        assert number(await ask(app)) == 1
        assert flower.asked == [(ASK_AS_NODE, PullMessagesRequest(node=Node(node_id=NODE)).SerializeToString())]

    run(test)


def test_a_long_list_of_messages_goes_through_whole_and_wakes_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_poll, "MOST_BODY", 0)

    async def test(flower: Flower, app: LongPoll) -> None:
        flower.inbox[NODE] = 0
        body = pushed(OTHER)
        await call(app, SENT_TO_NODES[0], body)
        assert flower.asked == [(SENT_TO_NODES[0], body)]
        assert long_poll.EVERYONE in app._nodes.addressed

    run(test)


def test_other_requests_pass() -> None:
    async def test(flower: Flower, app: LongPoll) -> None:
        await call(app, "/v1/control/list-runs", b"abc")
        assert flower.asked == [("/v1/control/list-runs", b"abc")]

    run(test)


def test_the_end_of_the_superlink_waits_for_no_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extensions, "get_middleware", extensions.get_middleware)
    monkeypatch.setattr(uvicorn.Server, "handle_exit", uvicorn.Server.handle_exit)
    monkeypatch.setenv(LONG_POLL, "")
    long_poll.install()
    assert extensions.get_middleware()[-1].cls is LongPoll
    server = uvicorn.Server(uvicorn.Config(lambda: None))

    async def test(flower: Flower, app: LongPoll) -> None:
        question = asyncio.ensure_future(ask(app))
        await asyncio.sleep(0.05)
        server.handle_exit(signal.SIGTERM, None)
        assert server.should_exit
        assert number(await question) == 0
        assert number(await ask(app)) == 0  # and no further one is kept

    run(test)


def test_another_flower_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = extensions.get_middleware
    monkeypatch.delenv(LONG_POLL, raising=False)
    monkeypatch.setattr("flwr.supercore.version.package_version", "1.43.0")
    long_poll.install()
    assert extensions.get_middleware is plain
