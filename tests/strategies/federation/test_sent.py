"""Which replies count: one of each node that was sent a message, and only an answer to that message."""

from typing import Any

from flwr.app import Error, Message, RecordDict

from fedshift_app.flower.internals import identify_process
from fedshift_strategies.federation.pending import Sent


def message(node_id: int, message_id: str) -> Message:
    """Return a message as Flower leaves it when it has sent it."""
    identify_process()
    made = Message(RecordDict(), node_id, "train")
    vars(made.metadata)["_message_id"] = message_id
    return made


def answer(to: Message, **forged: Any) -> Message:
    """Return a reply; what a node writes inside of it is ``forged``."""
    reply = Message(RecordDict(), reply_to=to)
    vars(reply.metadata).update({f"_{name}": value for name, value in forged.items()})
    return reply


def test_answers_to_what_was_sent_count() -> None:
    first, second = message(5, "a"), message(6, "b")
    replies = [answer(second), Message(Error(code=2, reason="no"), reply_to=first)]
    assert Sent([first, second]).answers(replies) == (replies, [])


def test_an_id_that_flower_gives_when_it_sends_is_known() -> None:
    requested = message(5, "")
    sent = Sent([requested])
    vars(requested.metadata)["_message_id"] = "a"
    replies = [answer(requested)]
    assert sent.answers(replies) == (replies, [])


def test_an_answer_of_an_earlier_round_is_a_stray_and_takes_no_place() -> None:
    before, now = message(5, "old"), message(5, "new")
    old, new = answer(before), answer(now)
    assert Sent([now]).answers([old, new]) == ([new], [old])
    assert Sent([now]).answers([old]) == ([], [old])


def test_a_node_cannot_speak_for_another_nor_twice() -> None:
    mine, other = message(5, "mine"), message(6, "other")
    as_other = answer(mine, src_node_id=6)  # it does not know the id of the other's message
    both = answer(mine)
    again = answer(mine)
    honest = answer(other)
    assert Sent([mine, other]).answers([as_other, both, again, honest]) == ([both, honest], [as_other, again])
