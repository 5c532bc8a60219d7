"""Discord's calls over our own HTTP client: rate limits, errors, and what is not JSON."""

from __future__ import annotations

from pathlib import Path

import pytest
from discord.http import Route

from everhold.errors import Transient
from everhold.platforms.discord.adapter import DiscordPlatform
from everhold.platforms.discord.http_client import MAX_WINDOWS, RateLimitWindows, build_rate_limited
from everhold.testing.contracts.platform import PlatformHarness
from everhold.testing.platforms.discord import DiscordServer
from tests.platforms.remote_discord import TOKEN, RemoteDiscord

CHAT = RemoteDiscord.chat


async def test_an_exhausted_rate_limit_holds_back_the_next_call_and_not_the_answer(tmp_path: Path) -> None:
    async with DiscordServer(bucket=1, window=3600.0) as server:
        server.add_bot(TOKEN)
        server.add_direct_channel(CHAT)
        harness = PlatformHarness(RemoteDiscord(server, DiscordPlatform), tmp_path)
        await harness.platform.send(harness.make_outgoing("first", key="s:1:0"))
        with pytest.raises(Transient) as caught:
            await harness.platform.send(harness.make_outgoing("second", key="s:2:0"))
        assert caught.value.retry_after is not None
        assert 3000 < caught.value.retry_after <= 3600
        assert server.rate_limited_count == 0
        assert [it["content"] for it in server.list_shown_messages(CHAT)] == ["first"]
        await harness.close()


async def test_a_server_that_is_gone_leaves_no_doubt(tmp_path: Path) -> None:
    async with DiscordServer() as server:
        server.add_bot(TOKEN)
        server.add_direct_channel(CHAT)
        harness = PlatformHarness(RemoteDiscord(server, DiscordPlatform), tmp_path)
    with pytest.raises(Transient) as caught:
        await harness.platform.send(harness.make_outgoing("hello"))
    assert "cannot be reached" in caught.value.message
    await harness.close()


def test_a_limit_holds_until_it_ends_and_only_for_its_route() -> None:
    windows = RateLimitWindows()
    windows.learn("a", {"x-ratelimit-remaining": "0", "x-ratelimit-reset-after": "2.5"}, now=10.0)
    windows.learn("b", {"x-ratelimit-remaining": "1", "x-ratelimit-reset-after": "2.5"}, now=10.0)
    assert windows.compute_wait("a", now=11.0) == 1.5
    assert windows.compute_wait("a", now=13.0) == windows.compute_wait("b", now=11.0) == 0.0


@pytest.mark.parametrize("reset", ["", "soon", "inf", "nan", "-1", "86400"])
def test_a_limit_without_a_sound_end_holds_back_nothing(reset: str) -> None:
    windows = RateLimitWindows()
    windows.learn("a", {"x-ratelimit-remaining": "0", "x-ratelimit-reset-after": reset}, now=10.0)
    assert windows.compute_wait("a", now=10.0) == 0.0


def test_limits_that_have_ended_are_forgotten() -> None:
    windows = RateLimitWindows()
    for number in range(3 * MAX_WINDOWS):
        headers = {"x-ratelimit-remaining": "0", "x-ratelimit-reset-after": "1"}
        windows.learn(str(number), headers, now=float(number))
    assert len(windows._ends) <= MAX_WINDOWS
    for number in range(3 * MAX_WINDOWS):
        windows.learn(str(number), {"x-ratelimit-remaining": "0", "x-ratelimit-reset-after": "9"}, now=9_999.0)
    assert len(windows._ends) <= MAX_WINDOWS


def test_the_wait_that_discord_asks_for_is_read() -> None:
    limited = build_rate_limited(429, {"retry-after": "7", "x-ratelimit-global": "true"})
    assert (limited.wait_seconds, limited.is_global) == (7.0, True)
    assert build_rate_limited(429, {"retry-after": "nan"}).wait_seconds == 30.0
    assert build_rate_limited(502, {"retry-after": "7"}).wait_seconds is None


def test_the_routes_of_the_library_have_the_expected_base() -> None:
    assert Route("GET", "/users/@me").url.removeprefix(Route.BASE) == "/users/@me"
