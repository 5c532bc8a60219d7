"""Several hosts on one PostgreSQL store, killed one after another between HTTP callers and Telegram users.

Each caller sends every request to any of the hosts, as a proxy would. The users write to a bot that one host at a time
receives for. At the end, what callers and users received is compared with the log.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import httpx2
from msgspec import Struct

from everhold.core.entries import Heard
from everhold.engine.outbox.delivery import MAX_BLIND_RESENDS
from everhold.engine.outbox.platform import DRAFT_PART
from everhold.platforms.telegram.formatting import format_markdown
from everhold.testing.kill import http_trial, verdict
from everhold.testing.kill.gateway import EVERHOLD, KillableGateway
from everhold.testing.kill.world import TOKEN_PATTERN
from everhold.testing.model_server import ModelServer
from everhold.testing.platforms.telegram import TelegramServer
from everhold.testing.postgres_server import run_postgres_server

BOT_TOKEN: Final = "110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw-canary"
USERS: Final = (1001, 1002, 1003)
LEASE_SECONDS: Final = 4.0
"""Short, so that what a killed host did goes on soon."""
IDLE_SECONDS: Final = 300.0
MAX_UNANSWERED: Final = 40
DRAIN_SHARE: Final = 0.2
"""How many of the hosts are stopped with SIGTERM instead."""


class KillableHosts:
    """Hosts of one store, behind a proxy that passes each request to any of them."""

    def __init__(
        self,
        directory: Path,
        *,
        count: int,
        store_url: str,
        model: str,
        telegram: str,
        program: Sequence[str] = EVERHOLD,
    ) -> None:
        account = {
            "token_env": "BOT",
            "base_url": telegram,
            "poll_seconds": 1,
            "access": {"direct": [f"telegram:{user}" for user in USERS]},
        }
        lines = [
            http_trial.make_config(model),
            f"store: {{url: '{store_url}', poll_seconds: 0.2, lease_seconds: {LEASE_SECONDS}}}",
            f"platforms: {json.dumps({'telegram': {'main': account}})}",
        ]
        secrets = f"{http_trial.ENV_FILE_TEXT}BOT={BOT_TOKEN}\n"
        self.hosts = [
            KillableGateway(directory / f"host{number}", "\n".join(lines) + "\n", secrets=secrets, program=program)
            for number in range(count)
        ]

    @property
    def running(self) -> list[KillableGateway]:
        return [host for host in self.hosts if host.process is not None]

    async def close(self) -> None:
        for host in self.hosts:
            await host.close()

    def read_errors(self) -> str:
        return "".join(host.errors.read_text("utf-8", "replace") for host in self.hosts if host.errors.exists())


class HostCaller(http_trial.GatewayCaller):
    """A caller whose requests go to any host that runs."""

    def __init__(
        self, pool: KillableHosts, name: str, rng: random.Random, *, trigger: http_trial.CallerTrigger
    ) -> None:
        style = http_trial.REQUEST_STYLES[len(name) % len(http_trial.REQUEST_STYLES)]
        super().__init__(pool.hosts[0], name, rng, on_heard=trigger, first_style=style)
        self.pool = pool

    async def run(self) -> None:
        async with contextlib.AsyncExitStack() as opened:
            clients = {
                host.port: await opened.enter_async_context(host.open_client(seconds=5.0)) for host in self.pool.hosts
            }
            while not self.stop:
                number = len(self.requests) + 1
                request = http_trial.CallerRequest(
                    id=f"k{number}", text=f"{self.name}.m{number}", style=self.rng.choice(http_trial.REQUEST_STYLES)
                )
                self.requests.append(request)
                while not request.is_finished:
                    await self._try_somewhere(clients, request)

    async def _try_somewhere(self, clients: dict[int, httpx2.AsyncClient], request: http_trial.CallerRequest) -> None:
        running = self.pool.running
        if running:
            await self._try_request(clients[self.rng.choice(running).port], request)
        else:
            await asyncio.sleep(0.05)


class TelegramUsers:
    """People who write to the bot, each their own numbered messages. They wait when many have no answer, because a
    gateway refuses more than a limit, however slow the machine is."""

    def __init__(self, server: TelegramServer, seed: int) -> None:
        self.server = server
        self.rng = random.Random(f"telegram/{seed}")
        self.written: dict[int, list[str]] = {user: [] for user in USERS}
        self.stop = False

    async def run(self) -> None:
        while not self.stop:
            user = self.rng.choice(USERS)
            if len(self.written[user]) - len(self.server.list_bot_texts(user)) > MAX_UNANSWERED:
                await asyncio.sleep(0.5)
                continue
            text = f"user-{user}.m{len(self.written[user]) + 1}"
            self.written[user].append(text)
            await self.server.write_message(text, user=user)
            await asyncio.sleep(self.rng.choice((0.05, 0.3, 1.0)))


class HostKillResult(Struct, kw_only=True):
    """The failures of a trial, and its counts."""

    hosts: int
    kills: int
    drains: int
    failovers: int
    disturbances: int
    """How often something else was broken."""
    sent: int
    acknowledged: int
    answered: int
    lost: int
    doubled: int
    reordered: int
    in_doubt: int
    """Replies that may be shown twice, because their answer was lost. Telegram recognises no repeat."""
    failures: list[str]

    def __str__(self) -> str:
        told = (
            f"{self.hosts} hosts, {self.kills} kills, {self.drains} drains, {self.failovers} failovers, "
            f"{self.disturbances} disturbances: "
            f"{self.sent} messages sent, "
            f"{self.acknowledged} acknowledged, {self.answered} answered; {self.lost} lost, {self.doubled} doubled, "
            f"{self.reordered} reordered, {self.in_doubt} replies in doubt"
        )
        return "\n".join([told, *(f"  FAILED {text}" for text in self.failures)])


class HostTrial:
    """One store, its hosts, and what kills them."""

    def __init__(
        self, directory: Path, *, store_url: str, hosts: int, seed: int, program: Sequence[str] = EVERHOLD
    ) -> None:
        """`program` is what the hosts run at first."""
        self.directory = directory
        self.program = program
        self.store_url = store_url
        self.count = hosts
        self.seed = seed
        self.rng = random.Random(f"hosts/{seed}")
        self.kills = self.drains = self.failovers = self.disturbances = 0

    async def run(self, *, kills: int) -> HostKillResult:
        async with ModelServer(key=http_trial.MODEL_API_KEY) as model, TelegramServer() as telegram:
            telegram.add_bot(BOT_TOKEN)
            script = http_trial.FaultyModelScript(self.seed)
            script.calm = True
            model.default = script
            pool = KillableHosts(
                self.directory,
                count=self.count,
                store_url=self.store_url,
                model=model.openai,
                telegram=telegram.url,
                program=self.program,
            )
            try:
                return await self._run_in(pool, telegram, kills)
            finally:
                await pool.close()

    async def _run_in(self, pool: KillableHosts, telegram: TelegramServer, kills: int) -> HostKillResult:
        trigger = http_trial.CallerTrigger()
        callers = [
            HostCaller(pool, f"http-{n}", random.Random(f"{self.seed}/{n}"), trigger=trigger)
            for n in range(http_trial.CALLER_COUNT)
        ]
        users = TelegramUsers(telegram, self.seed)
        for host in pool.hosts:
            await host.start()
        talking = [asyncio.create_task(caller.run()) for caller in callers]
        talking.append(asyncio.create_task(users.run()))
        try:
            await self._break_things(pool, trigger, kills)
            users.stop = True
            for caller in callers:
                caller.stop = True
            _, stuck = await asyncio.wait(talking, timeout=http_trial.PATIENCE_SECONDS)
            failures = [f"{len(stuck)} callers have no outcome"] if stuck else []
            left = await _wait_until_idle(pool.running[0], telegram)
            failures += [left] if left else []
        finally:
            for task in talking:
                task.cancel()
            await asyncio.gather(*talking, return_exceptions=True)
        for host in pool.running:
            if code := await host.kill(signal.SIGTERM):
                failures.append(f"a host ended with {code} after SIGTERM")
        contents = await verdict.read_store(self.directory, url=self.store_url)
        return self._compare(pool, contents, callers, users, telegram, failures)

    async def _break_things(self, pool: KillableHosts, trigger: http_trial.CallerTrigger, kills: int) -> None:
        """Kill and drain hosts."""
        while self.kills < kills:
            if moment := self.rng.choice(("", "kept", "words")):
                await trigger.wait_for(moment, seconds=http_trial.MAX_TRIGGER_SECONDS)
            else:
                await asyncio.sleep(0.02 + self.rng.random() * self.rng.choice((0.2, 0.8, 1.6)))
            host = self.rng.choice(pool.running)
            if self.rng.random() < DRAIN_SHARE:
                self.drains += 1
                await host.kill(signal.SIGTERM)
            else:
                self.kills += 1
                await host.kill()
            await host.start()

    def _compare(
        self,
        pool: KillableHosts,
        contents: verdict.StoreContents,
        callers: Sequence[HostCaller],
        users: TelegramUsers,
        telegram: TelegramServer,
        failures: list[str],
    ) -> HostKillResult:
        failures += [*contents.problems, *verdict.check_answered(contents)]
        failures += http_trial.check_callers(callers, contents)
        failures += _check_users(users, telegram, contents)
        failures += check_shown_once([text for user in USERS for text in telegram.list_bot_texts(user)], contents)
        requests = [request for caller in callers for request in caller.requests]
        heard = _list_heard(contents)
        counts = Counter(token for _, token in heard)
        written = [text for texts in users.written.values() for text in texts]
        promised = [it.text for it in requests if it.acknowledged or it.replies] + written
        return HostKillResult(
            hosts=self.count,
            kills=self.kills,
            drains=self.drains,
            failovers=self.failovers,
            disturbances=self.disturbances,
            sent=len(requests) + len(written),
            acknowledged=len(promised),
            answered=sum(bool(it.replies) for it in requests)
            + sum(_is_shown(telegram, user, text) for user, texts in users.written.items() for text in texts),
            lost=sum(text not in counts for text in promised),
            doubled=sum(count - 1 for count in counts.values()),
            reordered=_count_reordered([token for _, token in heard]),
            in_doubt=len(_list_in_doubt(contents)),
            failures=failures + [line for line in pool.read_errors().splitlines() if "Traceback" in line],
        )


def _list_heard(contents: verdict.StoreContents) -> list[tuple[int, str]]:
    """Return the position and the name of each message in the log, in order."""
    return sorted(
        (entry.pos, TOKEN_PATTERN.findall(entry.body.text)[0])
        for log in contents.logs
        for entry in log.entries
        if isinstance(entry.body, Heard) and TOKEN_PATTERN.findall(entry.body.text)
    )


def _count_reordered(tokens: list[str]) -> int:
    """Count the messages that come before an earlier one of the same writer."""
    last: Counter[str] = Counter()
    found = 0
    for token in tokens:
        writer, _, number = token.partition(".m")
        found += int(number) < last[writer]
        last[writer] = max(last[writer], int(number))
    return found


def _is_shown(telegram: TelegramServer, user: int, text: str) -> bool:
    return any(text in TOKEN_PATTERN.findall(said) for said in telegram.list_bot_texts(user))


def _check_users(users: TelegramUsers, telegram: TelegramServer, contents: verdict.StoreContents) -> Iterator[str]:
    heard = [token for _, token in _list_heard(contents)]
    for user, texts in users.written.items():
        if (found := [token for token in heard if token.startswith(f"user-{user}.")]) != texts:
            yield f"user {user} wrote {len(texts)} messages, the log has others or another order: {found}"
        if silent := [text for text in texts if not _is_shown(telegram, user, text)]:
            yield f"{len(silent)} messages got no answer in the chat: {silent[:10]}"


def check_shown_once(shown_texts: Sequence[str], contents: verdict.StoreContents) -> Iterator[str]:
    """Each text is shown as often as the log contains it. Only what is recorded as in doubt may be shown more often.

    Texts are compared with their entries, because some are repeated on purpose: each outage has the same notice.
    """
    in_doubt = set(_list_in_doubt(contents))
    expected: Counter[str] = Counter()
    allowed: Counter[str] = Counter()
    for log in contents.logs:
        for key, markdown, _ in log.list_expected_parts("telegram"):
            text, _ = format_markdown(markdown)
            expected[text] += 1
            allowed[text] += MAX_BLIND_RESENDS if key in in_doubt else 1
    drafts = 0
    for text, count in Counter(shown_texts).items():
        if not expected[text] and text.endswith(" …"):
            drafts += count
        elif count > allowed[text]:
            yield f"{text[:60]!r} was shown {count} times, the log has it {expected[text]} times, not in doubt"
    doubtful_drafts = sum(it.part == DRAFT_PART and it.in_doubt for it in contents.receipts.values())
    if drafts > doubtful_drafts:
        yield f"{drafts} parts of replies are still shown, and only {doubtful_drafts} are recorded as in doubt"


def _list_in_doubt(contents: verdict.StoreContents) -> list[str]:
    """Return the keys of replies that may be shown twice."""
    receipts = (it.key for it in contents.receipts.values() if it.in_doubt)
    return [*receipts, *(it.key for it in contents.dead_letters if it.in_doubt)]


async def _wait_until_idle(host: KillableGateway, telegram: TelegramServer) -> str:
    """Wait until no work is left. Return what is left if that takes too long."""
    until = time.monotonic() + IDLE_SECONDS
    async with host.open_client(seconds=IDLE_SECONDS) as client:
        while True:
            status = (await client.get("/api/status")).json()
            unheard = sum(len(bot.updates) for bot in telegram.bots.values())
            if not status["pending"] and not status["waiting"] and not unheard:
                return ""
            if time.monotonic() > until:
                return f"work remains: {status['pending']} messages, {unheard} updates, {status['waiting']}"
            await asyncio.sleep(0.1)


async def run_host_kills(directory: Path, *, store_url: str, hosts: int, kills: int, seed: int) -> HostKillResult:
    return await HostTrial(directory, store_url=store_url, hosts=hosts, seed=seed).run(kills=kills)


@contextlib.contextmanager
def own_locks() -> Iterator[None]:
    """Use account locks of its own, because one gateway per machine may use a token, and all trials use the same."""
    with tempfile.TemporaryDirectory(prefix="everhold-locks-") as path:
        os.environ["EVERHOLD_LOCKS"] = path
        yield


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m everhold.testing.kill.hosts_trial", description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--hosts", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with (
        run_postgres_server() as server,
        server.lend_store_database() as url,
        tempfile.TemporaryDirectory(prefix="everhold-hosts-") as directory,
        own_locks(),
    ):
        found = asyncio.run(
            run_host_kills(Path(directory), store_url=url, hosts=given.hosts, kills=given.kills, seed=given.seed)
        )
    sys.stdout.write(f"{found}\n")
    sys.exit(1 if found.failures else 0)


if __name__ == "__main__":
    main()
