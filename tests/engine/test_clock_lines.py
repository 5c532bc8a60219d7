"""A turn is told date, weekday, time and zone. It is recorded, so earlier turns are shown with the same bytes."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from everhold.assembly.agents import ConfiguredAgents
from everhold.config import parse_settings
from everhold.core.entries import Began, Stamp, Took, ToolCall
from everhold.core.wording import format_clock
from everhold.ports.model import ModelRequest, ModelResponse
from everhold.ports.tool import ToolEffect
from everhold.testing.fakes import FakeModel, FakeTool, echo_last_message
from everhold.testing.gateway import InProcessGateway

BERLIN = ZoneInfo("Europe/Berlin")
AT = datetime.datetime(2026, 11, 17, 16, 53, tzinfo=BERLIN).timestamp()


class TurningClock:
    """Tells the time of a fixed zone, which a test changes."""

    def __init__(self, gateway: InProcessGateway) -> None:
        self.at, self.zone = AT, "Europe/Berlin"
        gateway.runtimes.settings["describe_time"] = self.describe

    def describe(self, stamp: Stamp) -> str:
        return format_clock(self.at, ZoneInfo(self.zone), self.zone)


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[InProcessGateway]:
    gateway = InProcessGateway(tmp_path)
    with gateway.run_started():
        yield gateway


def list_clock_lines(request: ModelRequest) -> list[str]:
    return [message.text for message in request.messages if message.name == "everhold"]


def test_the_form_of_the_time_depends_on_no_locale() -> None:
    assert format_clock(AT, BERLIN, "Europe/Berlin") == "2026-11-17 Tue 16:53 Europe/Berlin"
    days = [format_clock(AT + day * 86_400, datetime.UTC, "UTC").split()[1] for day in range(7)]
    assert days == ["Tue", "Wed", "Thu", "Fri", "Sat", "Sun", "Mon"]
    switch = datetime.datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN).timestamp()
    assert format_clock(switch + 3_600, BERLIN, "x") == format_clock(switch, BERLIN, "x"), "an hour that comes twice"


def test_each_turn_is_told_the_time_and_earlier_turns_keep_theirs(gateway: InProcessGateway) -> None:
    clock = TurningClock(gateway)
    gateway.runtimes.model = model = FakeModel(echo_last_message)
    session = gateway.send_message("hello").session
    clock.at, clock.zone = AT + 7 * 3_600, "Asia/Tokyo"
    gateway.send_message("again")
    first, second = model.requests
    assert list_clock_lines(first) == ["It is now 2026-11-17 Tue 16:53 Europe/Berlin."]
    assert [message.text for message in first.messages] == [list_clock_lines(first)[0], "hello"]
    assert second.messages[: len(first.messages)] == first.messages, "the prefix is cached"
    assert list_clock_lines(second)[1:] == ["It is now 2026-11-18 Wed 07:53 Asia/Tokyo."]
    began = gateway.read_bodies(session, Began)
    assert [one.clock for one in began] == ["2026-11-17 Tue 16:53 Europe/Berlin", "2026-11-18 Wed 07:53 Asia/Tokyo"]
    gateway.crash()
    gateway.start()
    clock.zone = "UTC"
    gateway.send_message("after a restart")
    assert model.requests[2].messages[: len(second.messages)] == second.messages
    gateway.assert_sound()


def test_a_message_that_joins_a_running_turn_comes_with_its_own_time(gateway: InProcessGateway) -> None:
    clock = TurningClock(gateway)
    gateway.runtimes.settings["busy_policy"] = "steer"
    gateway.runtimes.tools = {"look": FakeTool("look", ToolEffect.PURE)}

    def answer(request: ModelRequest) -> ModelResponse:
        if len([message for message in request.messages if message.role == "user"]) < 4:
            clock.at += 60
            return ModelResponse(calls=(ToolCall(id=f"c{clock.at}", tool="look"),))
        return ModelResponse(text="done")

    gateway.runtimes.model = FakeModel(answer)
    session = gateway.send_message("begin", rest=False).session
    gateway.send_message("and this")
    (took,) = gateway.read_bodies(session, Took)
    assert took.clock > "2026-11-17 Tue 16:53 Europe/Berlin"
    assert list_clock_lines(gateway.runtimes.model.requests[-1])[1] == f"It is now {took.clock}."


def test_without_a_clock_nothing_is_shown(gateway: InProcessGateway) -> None:
    gateway.runtimes.model = model = FakeModel(echo_last_message)
    session = gateway.send_message("hello").session
    assert list_clock_lines(model.requests[0]) == []
    assert [one.clock for one in gateway.read_bodies(session, Began)] == [""]


def test_the_zone_is_that_of_the_person_who_asks() -> None:
    settings = parse_settings(
        'timezone: Europe/Berlin\npeople:\n  - {name: ada, identities: ["fake:1"], timezone: Asia/Tokyo}\n'
        '  - {name: bob, identities: ["fake:2"]}\n'
    )
    assert settings.person_zones == {"fake:1": "Asia/Tokyo"}
    clock = type("FixedClock", (), {"now": lambda self: AT})()
    agents = type("Agents", (), {"settings": settings, "clock": clock})()

    def describe(person: str) -> str:
        return ConfiguredAgents._describe_time(agents, Stamp(person=person))

    assert describe("fake:1") == "2026-11-18 Wed 00:53 Asia/Tokyo"
    assert describe("fake:2") == describe("fake:9") == "2026-11-17 Tue 16:53 Europe/Berlin"
