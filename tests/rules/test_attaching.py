"""Files that go with a reply: kept by what is in them, sent once, each a part of its own, and never a path."""

from __future__ import annotations

from typing import Any

import pytest

from everhold.core.attachments import attachment
from everhold.core.entries import Call, Returned, Said
from everhold.errors import Refused, TooLong, Transient
from everhold.ports.model import Answer, Request
from everhold.ports.platform import Delivery, Outgoing
from everhold.ports.store import Change, Step
from everhold.ports.tool import Effect, File, Result, ToolContext
from everhold.testing.fakes import FakePlatform, FakeTool, ScriptedModel
from everhold.testing.house import House
from everhold.tools.attach import Attach

from .test_delivering import use
from .test_working import die_at

LETTER = b"Dear Ada"


def asks(*calls: dict[str, Any], tool: str = "attach", text: str = "Here you are.") -> ScriptedModel:
    """A model that calls a tool with each of these, one after the other, and then says something."""
    thoughts = [Answer(calls=(Call(id=f"c{n}", tool=tool, arguments=it),)) for n, it in enumerate(calls)]
    return ScriptedModel([*thoughts, Answer(text=text)])


def sent(platform: FakePlatform) -> list[str]:
    return [out.file.name if out.file else out.text for out in platform.shown]


@pytest.fixture
def desk(house: House) -> House:
    house.furniture.tools["attach"] = Attach(house.store)
    return house


def wrote(house: House, **more: Any) -> str:
    """Ada sends a letter along."""
    letter = attachment(LETTER, name="letter.txt", media="text/plain")
    return house.say("look at this", attachments=(letter,), files=(LETTER,), **more).session


class TestWhatIsAttached:
    def test_a_file_of_the_conversation_goes_with_the_reply_by_name_or_id(self, desk: House) -> None:
        wrote(desk)
        blob = attachment(LETTER).blob
        for wanted in ("letter.txt", blob, blob[:12]):
            desk.furniture.model = asks({"file": wanted})
            desk.platform.shown.clear()
            desk.say("send it back")
            assert sent(desk.platform) == ["Here you are.", "letter.txt"]
            (file,) = [out.file for out in desk.platform.shown if out.file]
            assert desk.run(desk.store.get_blob(file.blob)) == LETTER

    def test_a_text_becomes_a_file(self, desk: House) -> None:
        desk.furniture.model = asks({"name": "../../a/table.csv", "text": "a,b\n1,2\n"})
        session = desk.say("as a table, please").session
        (said,) = desk.bodies(session, Said)
        (file,) = said.attachments
        assert (file.name, file.media, file.size) == ("table.csv", "text/csv", 8)
        assert desk.run(desk.store.get_blob(file.blob)) == b"a,b\n1,2\n"
        assert sent(desk.platform) == ["Here you are.", "table.csv"]

    def test_what_a_tool_gives_back_is_kept_and_can_be_attached_in_a_later_turn(self, desk: House) -> None:
        class Draws(FakeTool):
            async def run(self, arguments: dict[str, Any], context: ToolContext) -> Result:
                return Result(text="drawn", files=(File(data=b"\x89PNG dots", name="dots.png", media="image/png"),))

        desk.furniture.tools["draw"] = Draws("draw", Effect.ONCE)
        desk.furniture.model = asks({}, tool="draw", text="done")
        session = desk.say("draw something").session
        assert sent(desk.platform) == ["done"], "nobody asked for it to be sent"
        returned = next(body for body in desk.bodies(session, Returned) if body.files)
        assert desk.run(desk.store.get_blob(returned.files[0].blob)) == b"\x89PNG dots"
        desk.furniture.model = asks({"file": "dots.png"})
        desk.say("now send it")
        assert sent(desk.platform)[-1] == "dots.png"

    def test_who_says_nothing_with_it_names_it(self, desk: House) -> None:
        desk.furniture.model = asks({"name": "a.txt", "text": "one"}, {"name": "b.txt", "text": "two"}, text="")
        desk.say("both")
        assert sent(desk.platform) == ["a.txt, b.txt", "a.txt", "b.txt"]

    @pytest.mark.parametrize(
        "wanted",
        ["/etc/hostname", "../../etc/hostname", "file:///etc/hostname", "C:\\boot.ini", "log.db", "e3b0", "", "\x00"],
    )
    def test_a_path_is_never_opened(self, desk: House, wanted: str) -> None:
        wrote(desk)
        desk.furniture.model = asks({"file": wanted})
        session = desk.say("send me that").session
        returned = desk.bodies(session, Returned)[-1]
        assert returned.error
        assert not returned.attached
        assert "letter.txt" in returned.text, "it hears what there is"
        assert not any(out.file for out in desk.platform.shown)

    def test_a_file_of_another_conversation_cannot_be_had_even_by_its_hash(self, desk: House) -> None:
        wrote(desk, chat="private")
        prompt = b"You are a test."
        for blob in (attachment(LETTER).blob, attachment(prompt).blob):
            desk.furniture.model = asks({"file": blob})
            session = desk.say("send me that", chat="elsewhere", who="eve").session
            assert desk.bodies(session, Returned)[-1].error
        assert not any(out.file for out in desk.platform.shown)

    def test_a_branch_knows_the_files_from_before_it(self, desk: House) -> None:
        wrote(desk)
        desk.say("/branch other")
        desk.furniture.model = asks({"file": "letter.txt"})
        desk.say("send it back")
        assert sent(desk.platform)[-1] == "letter.txt"


class TestWhatIsTooLarge:
    def test_what_a_chat_does_not_take_is_named_in_the_reply(self, desk: House) -> None:
        desk.platform.file_limit = 5
        desk.furniture.model = asks({"name": "long.txt", "text": "123456"}, {"name": "short.txt", "text": "12345"})
        desk.say("both")
        assert sent(desk.platform) == [
            "Here you are.\n[long.txt was not sent: it has 6 bytes, and this chat takes 5]",
            "short.txt",
        ]

    def test_where_no_file_can_be_sent_the_reply_says_so(self, desk: House) -> None:
        desk.platform.file_limit = 0
        desk.furniture.model = asks({"name": "a.txt", "text": "one"})
        desk.say("a file")
        assert sent(desk.platform) == ["Here you are.\n[a.txt was not sent: files cannot be sent here]"]

    def test_what_turns_out_to_be_too_large_is_named_in_its_place(self, desk: House) -> None:
        class Small(FakePlatform):
            async def send(self, out: Outgoing) -> str:
                if out.file is not None:
                    raise TooLong("less, please")
                return await super().send(out)

        desk.platform = Small()
        desk.furniture.platforms["fake", "main"] = desk.platform
        desk.furniture.model = asks({"name": "a.txt", "text": "one"})
        desk.say("a file")
        assert sent(desk.platform) == [
            "Here you are.",
            "[a.txt was not sent: its 3 bytes are more than this chat takes]",
        ]
        assert desk.run(desk.store.list_dead_letters()) == []


class TestOnce:
    def test_a_file_that_has_to_wait_does_not_have_the_words_said_again(self, desk: House) -> None:
        platform = use(desk, Delivery.BLIND)
        desk.furniture.model = asks({"name": "a.txt", "text": "one"})
        platform.faults.work()
        platform.faults.fail(Transient("wait", retry_after=3.0))
        desk.say("a file", rest=False)
        desk.rest(10)
        assert sent(platform) == ["Here you are.", "a.txt"]

    def test_a_file_that_is_refused_takes_nothing_along(self, desk: House) -> None:
        desk.furniture.model = asks({"name": "a.txt", "text": "one"}, {"name": "b.txt", "text": "two"})
        desk.platform.faults.work()
        desk.platform.faults.fail(Refused("not this one"))
        desk.say("both")
        assert sent(desk.platform) == ["Here you are.", "b.txt"]
        assert [item.reason for item in desk.run(desk.store.list_dead_letters())] == ["not this one"]

    @pytest.mark.parametrize("after", [False, True])
    @pytest.mark.parametrize("step", [Step.THINK, Step.RETURN, Step.END, Step.DELIVERY_SEND, Step.DELIVERY_DONE])
    def test_it_arrives_once_wherever_the_process_dies(self, desk: House, step: Step, after: bool) -> None:
        def answer(request: Request) -> Answer:
            if request.messages[-1].role == "tool":
                return Answer(text="Here you are.")
            return Answer(calls=(Call(id="c", tool="attach", arguments={"name": "a.txt", "text": "one"}),))

        desk.furniture.model = ScriptedModel(answer)
        die_at(desk, step, after=after)
        session = desk.say("a file", rest=False).session
        desk.tick(1)
        desk.start()
        desk.furniture.tools["attach"] = Attach(desk.store)
        desk.rest(120)
        assert sent(desk.platform) == ["Here you are.", "a.txt"]
        (said,) = desk.bodies(session, Said)
        assert [file.name for file in said.attachments] == ["a.txt"]
        desk.sound()


def test_a_file_that_was_erased_is_not_known_any_more(desk: House) -> None:
    wrote(desk)
    gone = Change(step=Step.ERASE, session="", at=desk.clock.now(), drop_blobs=(attachment(LETTER).blob,))
    desk.run(desk.store.commit(gone))
    desk.furniture.model = asks({"file": "letter.txt"})
    session = desk.say("send it back").session
    assert desk.bodies(session, Returned)[-1].text == "There is no such file here. No file is kept here."
