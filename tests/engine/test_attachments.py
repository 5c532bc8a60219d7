"""Files of a reply: stored by content, sent once as separate parts, and never read from a path."""

from __future__ import annotations

from typing import Any

import pytest

from everhold.core.attachments import build_attachment
from everhold.core.entries import Returned, Said, ToolCall
from everhold.errors import Refused, TooLong, Transient
from everhold.ports.model import ModelRequest, ModelResponse
from everhold.ports.platform import DeliveryGuarantee, OutgoingMessage
from everhold.ports.store import Change, Step
from everhold.ports.tool import ToolContext, ToolEffect, ToolFile, ToolResult
from everhold.testing.fakes import FakeModel, FakePlatform, FakeTool
from everhold.testing.gateway import InProcessGateway
from everhold.tools.attach import AttachTool

from .test_delivery import use
from .test_operations import crash_at_step

LETTER = b"Dear Ada"


def asks(*calls: dict[str, Any], tool: str = "attach", text: str = "Here you are.") -> FakeModel:
    """A model that calls a tool with each of these, one after the other, and then says something."""
    thoughts = [ModelResponse(calls=(ToolCall(id=f"c{n}", tool=tool, arguments=it),)) for n, it in enumerate(calls)]
    return FakeModel([*thoughts, ModelResponse(text=text)])


def sent(platform: FakePlatform) -> list[str]:
    return [out.file.name if out.file else out.text for out in platform.shown_messages]


@pytest.fixture
def gateway(gateway: InProcessGateway) -> InProcessGateway:
    gateway.runtimes.tools["attach"] = AttachTool(gateway.store)
    return gateway


def send_letter(gateway: InProcessGateway, **more: Any) -> str:
    """Ada sends a file."""
    letter = build_attachment(LETTER, name="letter.txt", media="text/plain")
    return gateway.send_message("look at this", attachments=(letter,), files=(LETTER,), **more).session


class TestWhatIsAttached:
    def test_a_file_of_the_conversation_is_attached_by_name_or_id(self, gateway: InProcessGateway) -> None:
        send_letter(gateway)
        blob = build_attachment(LETTER).blob
        for wanted in ("letter.txt", blob, blob[:12]):
            gateway.runtimes.model = asks({"file": wanted})
            gateway.platform.shown_messages.clear()
            gateway.send_message("send it back")
            assert sent(gateway.platform) == ["Here you are.", "letter.txt"]
            (file,) = [out.file for out in gateway.platform.shown_messages if out.file]
            assert gateway.run(gateway.store.get_blob(file.blob)) == LETTER

    def test_a_text_becomes_a_file(self, gateway: InProcessGateway) -> None:
        gateway.runtimes.model = asks({"name": "../../a/table.csv", "text": "a,b\n1,2\n"})
        session = gateway.send_message("as a table, please").session
        (said,) = gateway.read_bodies(session, Said)
        (file,) = said.attachments
        assert (file.name, file.media, file.size) == ("table.csv", "text/csv", 8)
        assert gateway.run(gateway.store.get_blob(file.blob)) == b"a,b\n1,2\n"
        assert sent(gateway.platform) == ["Here you are.", "table.csv"]

    def test_a_file_from_a_tool_can_be_attached_in_a_later_turn(self, gateway: InProcessGateway) -> None:
        class Draws(FakeTool):
            async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
                return ToolResult(
                    text="drawn", files=(ToolFile(data=b"\x89PNG dots", name="dots.png", media="image/png"),)
                )

        gateway.runtimes.tools["draw"] = Draws("draw", ToolEffect.ONCE)
        gateway.runtimes.model = asks({}, tool="draw", text="done")
        session = gateway.send_message("draw something").session
        assert sent(gateway.platform) == ["done"], "the file was not attached"
        returned = next(body for body in gateway.read_bodies(session, Returned) if body.files)
        assert gateway.run(gateway.store.get_blob(returned.files[0].blob)) == b"\x89PNG dots"
        gateway.runtimes.model = asks({"file": "dots.png"})
        gateway.send_message("now send it")
        assert sent(gateway.platform)[-1] == "dots.png"

    def test_a_reply_without_text_names_its_files(self, gateway: InProcessGateway) -> None:
        gateway.runtimes.model = asks({"name": "a.txt", "text": "one"}, {"name": "b.txt", "text": "two"}, text="")
        gateway.send_message("both")
        assert sent(gateway.platform) == ["a.txt, b.txt", "a.txt", "b.txt"]

    @pytest.mark.parametrize(
        "wanted",
        ["/etc/hostname", "../../etc/hostname", "file:///etc/hostname", "C:\\boot.ini", "log.db", "e3b0", "", "\x00"],
    )
    def test_a_path_is_never_opened(self, gateway: InProcessGateway, wanted: str) -> None:
        send_letter(gateway)
        gateway.runtimes.model = asks({"file": wanted})
        session = gateway.send_message("send me that").session
        returned = gateway.read_bodies(session, Returned)[-1]
        assert returned.error
        assert not returned.attached
        assert "letter.txt" in returned.text, "the model is told which files exist"
        assert not any(out.file for out in gateway.platform.shown_messages)

    def test_a_file_of_another_conversation_cannot_be_attached_by_its_hash(self, gateway: InProcessGateway) -> None:
        send_letter(gateway, chat="private")
        prompt = b"You are a test."
        for blob in (build_attachment(LETTER).blob, build_attachment(prompt).blob):
            gateway.runtimes.model = asks({"file": blob})
            session = gateway.send_message("send me that", chat="elsewhere", who="eve").session
            assert gateway.read_bodies(session, Returned)[-1].error
        assert not any(out.file for out in gateway.platform.shown_messages)

    def test_a_branch_can_attach_files_of_its_parent(self, gateway: InProcessGateway) -> None:
        send_letter(gateway)
        gateway.send_message("/branch other")
        gateway.runtimes.model = asks({"file": "letter.txt"})
        gateway.send_message("send it back")
        assert sent(gateway.platform)[-1] == "letter.txt"


class TestWhatIsTooLarge:
    def test_a_file_beyond_the_chat_s_limit_is_named_in_the_reply(self, gateway: InProcessGateway) -> None:
        gateway.platform.file_limit = 5
        gateway.runtimes.model = asks({"name": "long.txt", "text": "123456"}, {"name": "short.txt", "text": "12345"})
        gateway.send_message("both")
        assert sent(gateway.platform) == [
            "Here you are.\n[long.txt was not sent: it has 6 bytes, and this chat takes 5]",
            "short.txt",
        ]

    def test_without_file_support_the_reply_names_the_file(self, gateway: InProcessGateway) -> None:
        gateway.platform.file_limit = 0
        gateway.runtimes.model = asks({"name": "a.txt", "text": "one"})
        gateway.send_message("a file")
        assert sent(gateway.platform) == ["Here you are.\n[a.txt was not sent: files cannot be sent here]"]

    def test_a_file_refused_as_too_large_is_named_in_its_place(self, gateway: InProcessGateway) -> None:
        class Small(FakePlatform):
            async def send(self, out: OutgoingMessage) -> str:
                if out.file is not None:
                    raise TooLong("less, please")
                return await super().send(out)

        gateway.platform = Small()
        gateway.runtimes.platforms["fake", "main"] = gateway.platform
        gateway.runtimes.model = asks({"name": "a.txt", "text": "one"})
        gateway.send_message("a file")
        assert sent(gateway.platform) == [
            "Here you are.",
            "[a.txt was not sent: its 3 bytes are more than this chat takes]",
        ]
        assert gateway.run(gateway.store.list_dead_letters()) == []


class TestOnce:
    def test_a_delayed_file_does_not_repeat_the_text(self, gateway: InProcessGateway) -> None:
        platform = use(gateway, DeliveryGuarantee.BLIND)
        gateway.runtimes.model = asks({"name": "a.txt", "text": "one"})
        platform.faults.succeed_next()
        platform.faults.fail_next(Transient("wait", retry_after=3.0))
        gateway.send_message("a file", rest=False)
        gateway.run_until_idle(10)
        assert sent(platform) == ["Here you are.", "a.txt"]

    def test_a_refused_file_does_not_affect_the_other_parts(self, gateway: InProcessGateway) -> None:
        gateway.runtimes.model = asks({"name": "a.txt", "text": "one"}, {"name": "b.txt", "text": "two"})
        gateway.platform.faults.succeed_next()
        gateway.platform.faults.fail_next(Refused("not this one"))
        gateway.send_message("both")
        assert sent(gateway.platform) == ["Here you are.", "b.txt"]
        assert [item.reason for item in gateway.run(gateway.store.list_dead_letters())] == ["not this one"]

    @pytest.mark.parametrize("after", [False, True])
    @pytest.mark.parametrize("step", [Step.THINK, Step.RETURN, Step.END, Step.DELIVERY_SEND, Step.DELIVERY_DONE])
    def test_a_file_arrives_once_after_a_crash_at_any_step(
        self, gateway: InProcessGateway, step: Step, after: bool
    ) -> None:
        def answer(request: ModelRequest) -> ModelResponse:
            if request.messages[-1].role == "tool":
                return ModelResponse(text="Here you are.")
            return ModelResponse(calls=(ToolCall(id="c", tool="attach", arguments={"name": "a.txt", "text": "one"}),))

        gateway.runtimes.model = FakeModel(answer)
        crash_at_step(gateway, step, after=after)
        session = gateway.send_message("a file", rest=False).session
        gateway.pass_time(1)
        gateway.start()
        gateway.runtimes.tools["attach"] = AttachTool(gateway.store)
        gateway.run_until_idle(120)
        assert sent(gateway.platform) == ["Here you are.", "a.txt"]
        (said,) = gateway.read_bodies(session, Said)
        assert [file.name for file in said.attachments] == ["a.txt"]
        gateway.assert_sound()


def test_an_erased_file_cannot_be_attached(gateway: InProcessGateway) -> None:
    send_letter(gateway)
    gone = Change(step=Step.ERASE, session="", at=gateway.clock.now(), drop_blobs=(build_attachment(LETTER).blob,))
    gateway.run(gateway.store.commit(gone))
    gateway.runtimes.model = asks({"file": "letter.txt"})
    session = gateway.send_message("send it back").session
    assert gateway.read_bodies(session, Returned)[-1].text == "There is no such file here. No file is stored here."
