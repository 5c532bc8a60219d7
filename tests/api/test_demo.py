"""The month of `everhold demo`: it is sound, and needs an empty home."""

from __future__ import annotations

from pathlib import Path

import pytest

from everhold.app import GatewayApp, SystemClock, load_home_settings
from everhold.errors import Conflict
from everhold.infra.home import Home
from everhold.telemetry.logs import open_log
from everhold.testing.demo.filler import fill_home
from everhold.testing.demo.month import SUMMARY


@pytest.mark.prove
async def test_the_demo_is_sound_and_needs_an_empty_home(tmp_path: Path) -> None:
    home = Home(tmp_path / "home").create()
    await fill_home(home, environ={})
    app = GatewayApp(home, load_home_settings(home, environ={}), log=open_log(clock=SystemClock()), environ={})
    await app.start()
    try:
        report = await app.session_admin.audit_store(None)
        assert report.broken_findings == []
        sessions = await app.store.list_sessions(limit=100)
        assert len(sessions) >= 40
        (fair,) = [it for it in sessions if it.title == "Summer fair"]
        assert SUMMARY in str(await app.store.list_entries(fair.id))
        assert len({int(it.created // 86_400) for it in sessions}) >= 28, "on nearly every day of a month"
        with pytest.raises(Conflict, match="is in use"):
            await fill_home(home, environ={})
    finally:
        await app.stop(seconds=0)
