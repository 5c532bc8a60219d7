"""Planted vulnerabilities: each is found by the test that is responsible for it."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from everhold.api import auth, logins, middleware, request
from everhold.api.auth import ApiCaller, RequestHead
from everhold.api.context import ApiContext
from everhold.api.logins import LoginRegistry
from everhold.api.route_types import ApiRoute
from everhold.ports.store import StateWrite
from everhold.testing.model_server import ModelServer
from tests.api import test_access, test_logins, test_middleware
from tests.api.conftest import MODEL_KEY, ApiGateway
from tests.api.test_access import make_gateway
from tests.api.test_logins import LoginGateway

Plant = Callable[[pytest.MonkeyPatch], None]
Check = Callable[[Any], Awaitable[None]]


class CarelessHmac:
    """Finds all digests equal."""

    digest = staticmethod(hmac.digest)

    @staticmethod
    def compare_digest(one: object, other: object) -> bool:
        return True


def compare_no_hash(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(logins, "hmac", CarelessHmac)


def compare_no_token(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(auth, "hmac", CarelessHmac)


def need_no_cookie(patch: pytest.MonkeyPatch) -> None:
    """Lets the key alone suffice."""

    def extract(head: RequestHead, *, is_https: bool) -> tuple[str, str, str]:
        id, _, key = head.get(auth.KEY_HEADER).partition(".")
        return id, "", key

    patch.setattr(middleware, "extract_login", extract)

    class KeyOnly(CarelessHmac):
        @staticmethod
        def compare_digest(one: Any, other: Any) -> bool:
            return bool(one == logins._hash("") or hmac.compare_digest(one, other))

    patch.setattr(logins, "hmac", KeyOnly)


def need_no_key(patch: pytest.MonkeyPatch) -> None:
    """Lets the cookie alone suffice."""

    def extract(head: RequestHead, *, is_https: bool) -> tuple[str, str, str]:
        name, _, value = head.get("cookie").partition("=")
        return name.removeprefix(auth.COOKIE_PREFIX), value, ""

    patch.setattr(middleware, "extract_login", extract)

    class CookieOnly(CarelessHmac):
        @staticmethod
        def compare_digest(one: Any, other: Any) -> bool:
            return bool(one == logins._hash("") or hmac.compare_digest(one, other))

    patch.setattr(logins, "hmac", CookieOnly)


def delete_nothing(patch: pytest.MonkeyPatch) -> None:
    """Leaves used codes and ended logins in the store."""
    commit = LoginRegistry._commit

    async def keep(self: LoginRegistry, write: StateWrite) -> None:
        if write.value is not None:
            await commit(self, write)

    patch.setattr(LoginRegistry, "_commit", keep)


def trust_local_hosts(patch: pytest.MonkeyPatch) -> None:

    def trust(head: RequestHead, name: str) -> ApiCaller | None:
        is_local = head.get("host").startswith("localhost")
        return auth.identify_by_connection(msgspec.structs.replace(head, is_operator_connection=is_local), name)

    patch.setattr(middleware, "identify_by_connection", trust)


def trust_loopback(patch: pytest.MonkeyPatch) -> None:
    """Plants the rule that this gateway had: whoever comes from 127.0.0.1 without a proxy's header is an operator."""

    def trust(head: RequestHead, name: str) -> ApiCaller | None:
        return auth.identify_by_connection(
            msgspec.structs.replace(head, is_operator_connection=head.peer == "127.0.0.1"), name
        )

    patch.setattr(middleware, "identify_by_connection", trust)


def believe_every_proxy(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        middleware, "find_client_address", lambda head, trusted: head.get("x-forwarded-for") or str(head.peer)
    )


def show_every_session(patch: pytest.MonkeyPatch) -> None:
    async def can_see(self: ApiContext, caller: ApiCaller, session: str) -> bool:
        return True

    patch.setattr(ApiContext, "can_see", can_see)


def believe_a_service(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ApiCaller, "resolve_sender", lambda self, person: person or self.sender)


def return_true(module: object, name: str) -> Plant:
    return lambda patch: patch.setattr(module, name, lambda *given, **more: True)


def ignore_read_only(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ApiRoute, "changes", property(lambda self: False))


async def check_local_host(gateway: ApiGateway) -> None:
    await test_middleware.test_loopback_is_no_credential_whatever_the_host(gateway, "localhost:1")


async def check_routes(gateway: ApiGateway) -> None:
    await test_middleware.test_every_route_needs_a_credential(gateway, "nothing")


async def check_wrong_token(gateway: ApiGateway) -> None:
    await test_middleware.test_every_route_needs_a_credential(gateway, "wrong")


async def check_expired_code(gateway: LoginGateway) -> None:
    await test_logins.test_a_code_works_for_ten_minutes(gateway, 3_600.0, False)


async def check_fresh_login(gateway: LoginGateway) -> None:
    await test_logins.test_a_sensitive_operation_needs_a_fresh_login(gateway, "POST /api/backups")


async def check_proxies(gateway: ApiGateway) -> None:
    place = gateway.home.path.parent / "proxied"
    await test_middleware.test_behind_a_trusted_proxy_each_client_has_its_own_rate(place, gateway.model, False)


async def check_read_only(gateway: ApiGateway) -> None:
    await test_access.test_a_read_only_token_changes_nothing(gateway, test_access.READER)


BUGS: Final[dict[str, tuple[Plant, Check]]] = {
    "the cookie alone suffices": (need_no_key, test_logins.test_a_login_needs_its_cookie_and_its_key),
    "the key alone suffices": (need_no_cookie, test_logins.test_a_login_needs_its_cookie_and_its_key),
    "hashes are not compared": (compare_no_hash, test_logins.test_a_login_needs_its_cookie_and_its_key),
    "tokens are not compared": (compare_no_token, check_wrong_token),
    "a code works twice": (delete_nothing, test_logins.test_a_code_works_once),
    "a code never expires": (return_true(logins, "is_code_alive"), check_expired_code),
    "a login survives its end": (delete_nothing, test_logins.test_a_login_that_was_ended_is_refused_at_once),
    "a login never expires": (
        return_true(logins, "is_login_alive"),
        test_logins.test_a_login_ends_thirty_days_after_its_last_use,
    ),
    "an old login is fresh": (return_true(request, "is_login_fresh"), check_fresh_login),
    "other origins are allowed": (
        return_true(middleware, "is_same_origin"),
        test_logins.test_a_page_of_another_origin_cannot_use_a_login,
    ),
    "a local Host is trusted": (trust_local_hosts, check_local_host),
    "loopback is trusted": (trust_loopback, check_routes),
    "every proxy is trusted": (believe_every_proxy, check_proxies),
    "a member reads another's session": (
        show_every_session,
        test_access.test_a_member_sees_their_sessions_from_every_platform_and_nobody_else_s,
    ),
    "a service's user becomes a person": (
        believe_a_service,
        test_access.test_a_service_s_user_is_nobody_that_the_gateway_knows,
    ),
    "read_only is ignored": (ignore_read_only, check_read_only),
}


@pytest.mark.parametrize("name", BUGS)
async def test_a_planted_vulnerability_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    plant, check = BUGS[name]
    is_scoped = check is check_read_only or getattr(check, "__module__", "") == test_access.__name__
    async with ModelServer(key=MODEL_KEY) as model:
        gateway = make_gateway(tmp_path, model) if is_scoped else LoginGateway(tmp_path, model)
        await gateway.start()
        try:
            with monkeypatch.context() as planted:
                plant(planted)
                with pytest.raises(AssertionError):
                    await check(gateway)
        finally:
            await gateway.stop()
