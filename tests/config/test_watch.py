"""A valid edit is in force at the next message, an invalid one never. A message needs no file read."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from everhold.config import ConfigError, ConfigWatcher, Settings, load_settings
from everhold.config.file_stamp import FileMark, read_file_mark
from everhold.config.watch import POLL_SECONDS, SETTLE_SECONDS
from everhold.infra.home import Home, write_file
from tests.config.conftest import RecordingLogger


class WatcherWorld:
    """A home, a clock that moves only during sleeps, and actions at given times."""

    def __init__(
        self,
        home: Home,
        logger: RecordingLogger,
        text: str = "timezone: UTC\n",
        mark: Callable[[Path], FileMark | None] = read_file_mark,
    ) -> None:
        self.home, self.logger = home, logger
        self.now = 1000.0
        self.plan: list[tuple[float, Callable[[], object]]] = []
        self.swapped: list[Settings] = []
        self.loads = 0
        self.mark = mark
        if text:
            home.config.write_text(text)
        self.watcher = self.start(load_settings(home, environ={}, mark=mark))

    def start(self, settings: Settings) -> ConfigWatcher:
        return ConfigWatcher(
            self.home,
            settings,
            load=self.load,
            swap=self.swapped.append,
            log=self.logger,
            monotonic=lambda: self.now,
            sleep=self.sleep,
            mark=self.mark,
        )

    def load(self) -> Settings:
        self.loads += 1
        return load_settings(self.home, environ={}, mark=self.mark)

    async def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds
        due = [item for item in self.plan if item[0] <= self.now]
        self.plan = [item for item in self.plan if item[0] > self.now]
        for _, act in due:
            act()
        await asyncio.sleep(0)

    def call_later(self, seconds: float, act: Callable[[], object]) -> None:
        self.plan.append((self.now + seconds, act))

    def run(self, seconds: float) -> None:
        """Run the watcher for this virtual time."""

        async def until() -> None:
            task = asyncio.create_task(self.watcher.run())
            end = self.now + seconds
            while self.now < end and not task.done():  # noqa: ASYNC110  # the time that passes is virtual
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(until())

    def settings_for_message(self) -> Settings:
        """The settings for a message that arrives now."""
        return asyncio.run(self.watcher.get_fresh_settings())

    def write(self, text: str) -> None:
        self.home.config.write_text(text)


@pytest.fixture
def world(home: Home, logger: RecordingLogger) -> WatcherWorld:
    return WatcherWorld(home, logger)


# -- edits -------------------------------------------------------------------------------------------------------------


def test_an_edit_is_in_force_at_the_next_message(world: WatcherWorld) -> None:
    world.write("timezone: Europe/Berlin\n")
    started = world.now
    assert world.settings_for_message().timezone == "Europe/Berlin"
    assert world.now - started <= SETTLE_SECONDS * 1.01
    assert [settings.timezone for settings in world.swapped] == ["Europe/Berlin"]
    assert world.logger.event_names == ["config.loaded"]


def test_an_edit_is_in_force_without_a_message(world: WatcherWorld) -> None:
    world.write("timezone: Europe/Berlin\n")
    world.run(2 * POLL_SECONDS)
    assert [settings.timezone for settings in world.swapped] == ["Europe/Berlin"]


def test_no_file_is_read_while_nothing_changes(world: WatcherWorld) -> None:
    world.run(60)
    for _ in range(100):
        world.settings_for_message()
    assert world.loads == 0
    assert world.logger.event_names == []


def test_a_message_opens_no_file(world: WatcherWorld) -> None:
    opened: list[Any] = []
    sys.addaudithook(lambda event, arguments: opened.append(arguments) if event == "open" and watching else None)
    watching = False

    async def messages() -> None:
        nonlocal watching
        watching = True
        for _ in range(1000):
            await world.watcher.get_fresh_settings()
        watching = False

    asyncio.run(messages())
    assert opened == []


def test_secrets_and_personas_are_watched_too(world: WatcherWorld) -> None:
    (world.home.path / "SOUL.md").write_text("one")
    world.write("agents: {main: {persona: SOUL.md}}\nplatforms: {telegram: {main: {token_env: T}}}\n")
    assert world.settings_for_message().get_agent().persona == "one"
    (world.home.path / "SOUL.md").write_text("two")
    assert world.settings_for_message().get_agent().persona == "two"
    write_file(world.home.env, b"T=a\n")
    assert world.settings_for_message().problems == ()
    first = world.watcher.settings
    write_file(world.home.env, b"T=b\n")
    assert world.settings_for_message().revision != first.revision
    assert len(world.swapped) == 4


def test_an_edited_comment_makes_no_new_revision(world: WatcherWorld) -> None:
    world.write("timezone: UTC # here\n")
    world.settings_for_message()
    assert world.loads == 1
    assert world.swapped == []
    assert world.logger.event_names == []


def test_a_writer_can_reload_at_once(world: WatcherWorld) -> None:
    world.write("timezone: Europe/Berlin\n")
    world.watcher.reload()
    assert world.watcher.settings.timezone == "Europe/Berlin"
    world.settings_for_message()
    assert world.loads == 1


# -- how editors write -------------------------------------------------------------------------------------------------


def test_a_file_replaced_by_renaming_is_seen(world: WatcherWorld) -> None:
    write_file(world.home.config, b"timezone: Europe/Berlin\n")
    assert world.settings_for_message().timezone == "Europe/Berlin"
    write_file(world.home.config, b"timezone: Europe/Paris\n\n")
    assert world.settings_for_message().timezone == "Europe/Paris"


@pytest.mark.parametrize("start", [0.0, 0.1, 0.2, 0.3, 0.4, 0.5])
def test_a_file_that_is_replaced_in_steps_is_never_loaded_incomplete(world: WatcherWorld, start: float) -> None:
    config, backup = world.home.config, world.home.path / "config.yaml~"
    steps: list[Callable[[], object]] = [
        lambda: config.rename(backup),
        lambda: config.write_text(""),
        lambda: config.write_text("timezone: Eur"),
        lambda: config.write_text("timezone: Europe/Berlin\nloops: {max_h"),
        lambda: config.write_text("timezone: Europe/Berlin\nloops: {max_hops: 3}\n"),
        backup.unlink,
    ]
    for number, step in enumerate(steps):
        world.call_later(start + 0.11 * number, step)
    world.run(3)
    assert [settings.loops.max_hops for settings in world.swapped] == [3]
    assert world.logger.event_names == ["config.loaded"]


def test_constant_writes_delay_a_message_for_a_limited_time(world: WatcherWorld) -> None:
    world.write("loops: {max_hops: 1}\n")
    for number in range(100):
        world.call_later(0.15 * number, partial(world.write, f"loops: {{max_hops: {number + 1}}}\n"))
    started = world.now
    assert world.settings_for_message().loops.max_hops == 8
    assert 2 <= world.now - started < 2.5
    world.run(20)
    assert [settings.loops.max_hops for settings in world.swapped] == [100]


def test_an_edit_of_the_same_size_with_the_old_time_is_seen(world: WatcherWorld) -> None:
    before = world.home.config.stat()
    world.write("timezone: GMT\n")
    os.utime(world.home.config, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert world.home.config.stat().st_size == before.st_size
    assert world.settings_for_message().timezone == "GMT"


def test_a_file_with_an_older_time_is_seen(world: WatcherWorld) -> None:
    world.write("timezone: GMT\n")
    os.utime(world.home.config, (1, 1))
    assert world.settings_for_message().timezone == "GMT"
    world.write("timezone: CET\n")
    os.utime(world.home.config, (0, 0))
    assert world.settings_for_message().timezone == "CET"


def test_an_edit_within_one_tick_of_a_coarse_clock_is_found(home: Home, logger: RecordingLogger) -> None:
    def coarse(path: Path) -> FileMark | None:
        """Return equal marks for edits of the same size, as within one step of the file system's clock."""
        found = read_file_mark(path)
        return found and FileMark(size=found.size, mode=found.mode)

    world = WatcherWorld(home, logger, text="timezone: Europe/Berlin\n", mark=coarse)
    world.call_later(1, lambda: world.write("timezone: Europe/Lisbon\n"))
    world.run(4)
    assert world.watcher.settings.timezone == "Europe/Lisbon"
    loads = world.loads
    world.run(60)
    assert world.loads == loads


def test_file_times_in_the_future_do_not_matter(world: WatcherWorld) -> None:
    future = 4_000_000_000
    world.write("timezone: GMT\n")
    os.utime(world.home.config, (future, future))
    assert world.settings_for_message().timezone == "GMT"
    world.write("timezone: CET\n")
    assert world.settings_for_message().timezone == "CET"


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_an_invalid_edit_keeps_the_last_valid_revision_and_is_logged_once(world: WatcherWorld) -> None:
    good = world.watcher.settings.revision
    world.write("timezone: Mars\n")
    world.run(30)
    for _ in range(10):
        assert world.settings_for_message().revision == good
    os.utime(world.home.config)
    world.run(30)
    assert world.logger.event_names == ["config.refused"]
    assert world.loads <= 3
    assert world.logger.lines[0][1]["in_force"] == good
    assert "timezone: is not a time zone" in world.logger.lines[0][1]["problems"][0]
    assert isinstance(world.watcher.refused, ConfigError)


def test_another_mistake_and_its_correction_are_logged(world: WatcherWorld) -> None:
    world.write("timezone: Mars\n")
    world.settings_for_message()
    world.write("timezone: Venus: x\n")
    world.settings_for_message()
    world.write("timezone: UTC\n")
    world.settings_for_message()
    assert world.logger.event_names == ["config.refused", "config.refused", "config.loaded"]
    assert world.logger.lines[-1][1]["changed"] is False
    assert world.watcher.refused is None
    assert world.swapped == []


def test_a_deleted_file_stays_in_force(world: WatcherWorld) -> None:
    world.write("timezone: Europe/Berlin\n")
    world.settings_for_message()
    world.home.config.unlink()
    world.run(5)
    assert world.settings_for_message().timezone == "Europe/Berlin"
    assert world.logger.event_names[-1] == "config.refused"
    assert "missing or empty" in world.logger.lines[-1][1]["problems"][0]
    world.write("timezone: Europe/Paris\n")
    assert world.settings_for_message().timezone == "Europe/Paris"


def test_a_file_that_is_removed_while_it_is_read_counts_as_missing(home: Home, logger: RecordingLogger) -> None:
    vanishing: list[Path] = []

    def mark(path: Path) -> FileMark | None:
        found = read_file_mark(path)
        if path in vanishing:
            path.unlink(missing_ok=True)
        return found

    world = WatcherWorld(home, logger, text="loops: {max_hops: 3}\n", mark=mark)
    vanishing.append(home.config)
    world.watcher.reload()
    assert world.watcher.settings.loops.max_hops == 3
    assert world.logger.event_names == ["config.refused"]


def test_an_emptied_file_stays_in_force_but_a_comment_clears_it(world: WatcherWorld) -> None:
    world.write("loops: {max_hops: 3}\n")
    world.settings_for_message()
    world.write("")
    assert world.settings_for_message().loops.max_hops == 3
    assert world.logger.event_names[-1] == "config.refused"
    world.write("# the defaults will do\n")
    assert world.settings_for_message().loops.max_hops == 8


def test_deleted_secrets_stay_in_force(world: WatcherWorld) -> None:
    write_file(world.home.env, b"T=a\n")
    world.write("platforms: {telegram: {main: {token_env: T}}}\n")
    assert world.settings_for_message().problems == ()
    world.home.env.unlink()
    assert world.settings_for_message().problems == ()
    assert world.logger.event_names[-1] == "config.refused"


def test_a_file_that_appears_is_read(home: Home, logger: RecordingLogger) -> None:
    world = WatcherWorld(home, logger, text="")
    world.write("timezone: Europe/Berlin\n")
    assert world.settings_for_message().timezone == "Europe/Berlin"


def test_a_missing_persona_is_loaded_when_it_appears(world: WatcherWorld) -> None:
    world.write("agents: {main: {persona: SOUL.md}}\n")
    world.settings_for_message()
    assert world.logger.event_names == ["config.refused"]
    (world.home.path / "SOUL.md").write_text("I am.")
    assert world.settings_for_message().get_agent().persona == "I am."


def test_a_removed_persona_stays_in_force(world: WatcherWorld) -> None:
    soul = world.home.path / "SOUL.md"
    soul.write_text("I am.")
    world.write("agents: {main: {persona: SOUL.md}}\n")
    world.settings_for_message()
    soul.unlink()
    assert world.settings_for_message().get_agent().persona == "I am."
    soul.write_text("I am back.")
    assert world.settings_for_message().get_agent().persona == "I am back."


def test_secrets_that_others_can_read_are_refused(world: WatcherWorld) -> None:
    write_file(world.home.env, b"T=a\n")
    world.write("platforms: {telegram: {main: {token_env: T}}}\n")
    world.settings_for_message()
    world.home.env.chmod(0o644)
    world.settings_for_message()
    assert "chmod 600" in world.logger.lines[-1][1]["problems"][0]
    world.home.env.chmod(0o600)
    world.settings_for_message()
    assert world.watcher.refused is None


def test_a_home_others_can_write_to_is_refused_until_it_is_private_again(world: WatcherWorld) -> None:
    world.home.path.chmod(0o770)
    world.write("timezone: Europe/Berlin\n")
    for _ in range(10):
        assert world.settings_for_message().timezone == "UTC"
    assert world.loads == 1
    assert "chmod 700" in world.logger.lines[-1][1]["problems"][0]
    world.home.path.chmod(0o700)
    assert world.settings_for_message().timezone == "Europe/Berlin"


# -- the last good -----------------------------------------------------------------------------------------------------


def test_a_gateway_can_start_with_the_last_valid_revision(world: WatcherWorld, sample: str) -> None:
    (world.home.path / "SOUL.md").write_text("SOUL.md")
    write_file(world.home.env, b"OPENAI_API_KEY=canary-1\n")
    world.write(sample)
    good = world.settings_for_message()
    world.write("timezone: Mars\n")
    world.settings_for_message()
    (world.home.path / "SOUL.md").unlink()
    with pytest.raises(ConfigError):
        load_settings(world.home, environ={})
    again = load_settings(world.home, environ={}, last_good=True)
    assert again.revision == good.revision
    assert again.get_agent().persona == "SOUL.md"
    assert world.home.last_good.stat().st_mode & 0o777 == 0o600
    assert "canary" not in world.home.last_good.read_text()


def test_after_such_a_start_the_invalid_file_is_logged_and_its_correction_loaded(world: WatcherWorld) -> None:
    world.write("timezone: Mars\n")
    world.watcher = world.start(load_settings(world.home, environ={}, last_good=True))
    assert world.settings_for_message().timezone == "UTC"
    assert world.logger.event_names == ["config.refused"]
    world.write("timezone: Europe/Berlin\n")
    assert world.settings_for_message().timezone == "Europe/Berlin"


def test_without_a_last_valid_revision_the_start_is_refused(home: Home) -> None:
    with pytest.raises(ConfigError, match="there is none yet"):
        load_settings(home, environ={}, last_good=True)


def test_an_edit_is_applied_although_the_last_valid_copy_cannot_be_written(world: WatcherWorld) -> None:
    world.home.last_good.unlink()
    world.home.last_good.mkdir()
    world.write("timezone: Europe/Berlin\n")
    assert world.settings_for_message().timezone == "Europe/Berlin"
    assert "config.save_failed" in world.logger.event_names
