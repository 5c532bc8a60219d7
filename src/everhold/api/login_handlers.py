"""Handlers for logins: making a link, logging in and out, listing and ending logins."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from everhold.api import schemas
from everhold.api.auth import (
    TokenCredential,
    find_credential,
    find_credential_by_name,
    is_https_request,
    make_cookie_name,
)
from everhold.api.errors import ApiError, build_json_response
from everhold.api.logins import LoginRecord
from everhold.api.request import ApiCall
from everhold.config.settings import OPERATOR_TOKEN_ENV, OPERATOR_TOKEN_NAME
from everhold.core.callers import CallerRole
from everhold.errors import Conflict, NotFound

COOKIE_SECONDS: Final = 400 * 86_400
"""The longest life that browsers give a cookie. The server decides when the login ends."""
LOGIN_ROLES: Final = frozenset({CallerRole.OPERATOR, CallerRole.MEMBER})
"""The roles of people. Services and metrics send their token with each request."""


async def log_in(call: ApiCall) -> Response:
    """Make a login from a code or a token. The response sets the first half and contains the second."""
    given = call.decode_body(schemas.LoginRequest)
    if bool(given.code) == bool(given.token):
        raise ApiError(400, "invalid_request", "a login needs a code or a token", remedy="send one of them")
    settings = (await call.context.load_fresh_settings()).http
    if given.code and not given.replace:
        await _refuse_foreign_link(call, given.code)
    credential = (
        await call.context.logins.redeem_code(given.code)
        if given.code
        else find_credential(given.token, settings, local=call.context.local_person)
    )
    if credential is None:
        call.context.check_failed_login(call.head, settings)
        what = "the code is wrong, was used, or is older than ten minutes" if given.code else "the token is wrong"
        call.context.log.warning("http.denied", peer=call.head.peer, reason=f"a login failed: {what}")
        raise ApiError(401, "unauthorized", what, remedy="`everhold open` makes a new link")
    if credential.scope.role not in LOGIN_ROLES:
        raise ApiError(
            403,
            "denied",
            f"a token with role {credential.scope.role} cannot log in",
            remedy="use the token of a person",
        )
    if given.token:
        call.context.check_login(credential.scope.token)
    is_https = is_https_request(call.head, settings.trusted_proxies)
    issued = await call.context.logins.create_login(credential, browser=call.headers.get("user-agent", ""))
    cookies = [_format_cookie(issued.id, issued.cookie, is_https=is_https, seconds=COOKIE_SECONDS)]
    if call.caller.login:  # the new login replaces the one of this page
        await _end_quietly(call, call.caller.login)
        cookies.append(_format_cookie(call.caller.login, "", is_https=is_https, seconds=0))
    call.context.log.info("login.created", login=issued.id, token_name=credential.scope.token)
    caller = credential.to_caller(login=issued.id, login_at=issued.created_at)
    body = {"key": issued.key, "login": issued.id, "name": caller.sender, "role": caller.role}
    return _add_cookies(build_json_response(body), cookies)


async def _refuse_foreign_link(call: ApiCall, code: str) -> None:
    """Raise if somebody else may have made the link of a code. Whoever made it could otherwise read what the person
    writes from then on.

    Only an operator can make a link for the token of this home, so a page without a login uses such a link at once.
    """
    other, present = await call.context.logins.find_code(code), call.caller.scope.token
    if other is None or other.scope.token == (present if call.caller.login else OPERATOR_TOKEN_NAME):
        return
    page = f"this page is logged in with the token {present}" if call.caller.login else "this page is not logged in"
    raise ApiError(
        409,
        "other_login",
        f"{page}, and the link is for {other.scope.token}",
        remedy="use the link only if you made it, with `replace`",
    )


async def log_out(call: ApiCall) -> Response:
    """End the login of this request."""
    if not call.caller.login:
        raise ApiError(400, "invalid_request", "the request has no login", remedy="a token ends in `.env`")
    await _end_quietly(call, call.caller.login)
    call.context.log.info("login.ended", login=call.caller.login, by=call.caller.account)
    settings = (await call.context.load_fresh_settings()).http
    is_https = is_https_request(call.head, settings.trusted_proxies)
    gone = _format_cookie(call.caller.login, "", is_https=is_https, seconds=0)
    return _add_cookies(build_json_response({"ended": call.caller.login}), [gone])


async def create_login_code(call: ApiCall) -> Response:
    """Make the code of a login link, for a token whose rights the caller has, too."""
    given = call.decode_body(schemas.LoginCodeRequest)
    credential = await _find_minted_credential(call, given.token)
    if not call.caller.scope.covers(credential.scope):
        raise ApiError(
            403, "denied", f"the token {credential.scope.token} has rights that you lack", remedy="use another token"
        )
    if credential.scope.role not in LOGIN_ROLES:
        raise ApiError(
            403, "denied", f"a token with role {credential.scope.role} cannot log in", remedy="name a person's token"
        )
    code, until = await call.context.logins.create_code(credential)
    call.context.log.info("login.offered", token_name=credential.scope.token, by=call.caller.account)
    return build_json_response({"code": code, "until": until, "url": call.context.gateway.describe()["url"]})


async def _find_minted_credential(call: ApiCall, name: str) -> TokenCredential:
    settings = (await call.context.load_fresh_settings()).http
    wanted = name or call.caller.scope.token or OPERATOR_TOKEN_NAME
    found = find_credential_by_name(wanted, settings, local=call.context.local_person)
    if found is not None:
        return found
    if wanted == OPERATOR_TOKEN_NAME:
        raise Conflict(
            f"{OPERATOR_TOKEN_ENV} is not set", remedy="start `everhold up`, which writes it to .env, or write it there"
        )
    raise NotFound(f"there is no token {wanted!r}", remedy="name one from http.tokens")


async def list_logins(call: ApiCall) -> Response:
    """Return the valid logins: all of them for an operator, else those of the caller's own token."""
    found = await call.context.logins.list_logins()
    return build_json_response(
        {"logins": [_show_login(call, id, login) for id, login in found if _is_own(call, login)]}
    )


async def end_login(call: ApiCall) -> Response:
    """End a login."""
    id = call.path["id"]
    logins = call.context.logins
    if not any(id == other and _is_own(call, login) for other, login in await logins.list_logins()):
        raise NotFound(f"there is no login {id!r}", remedy="GET /api/logins lists the logins")
    await logins.end_login(id)
    call.context.log.info("login.ended", login=id, by=call.caller.account)
    return build_json_response({"ended": id})


def _is_own(call: ApiCall, login: LoginRecord) -> bool:
    caller = call.caller
    return (caller.operator and not caller.scope.agents) or login.token == caller.scope.token


def _show_login(call: ApiCall, id: str, login: LoginRecord) -> dict[str, Any]:
    return {
        "id": id,
        "token": login.token,
        "created_at": login.created_at,
        "used_at": login.used_at,
        "browser": login.browser,
        "current": id == call.caller.login,
    }


async def _end_quietly(call: ApiCall, id: str) -> None:
    try:
        await call.context.logins.end_login(id)
    except NotFound:
        return  # another request has ended it


def _format_cookie(login: str, value: str, *, is_https: bool, seconds: int) -> str:
    secure = "; Secure" if is_https else ""
    name = make_cookie_name(login, is_https=is_https)
    return f"{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"


def _add_cookies(response: Response, cookies: list[str]) -> Response:
    for cookie in cookies:
        response.headers.append("set-cookie", cookie)
    return response
