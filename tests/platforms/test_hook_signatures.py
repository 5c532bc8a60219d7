"""A webhook is accepted only with the signature of its sender. The vectors are those that the services publish."""

from __future__ import annotations

import pytest

from everhold.infra.secret import SecretString
from everhold.platforms.hook_signatures import SCHEMES, TOLERANCE_SECONDS, find_objection, find_scheme, sign_delivery

SLACK_BODY = (
    b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&"
    b"channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&response_url="
    b"https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id="
    b"398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
)
SECRET = SecretString("0123456789abcdef0123456789abcdef")
BODY = b'{"id": "evt_1"}'


@pytest.mark.parametrize(
    "name, secret, now, headers, body",
    [
        (
            "github",
            "It's a Secret to Everybody",
            0,
            {"x-hub-signature-256": "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"},
            b"Hello, World!",
        ),
        (
            "slack",
            "8f742231b10e8888abcd99yyyzzz85a5",
            1531420618,
            {
                "x-slack-signature": "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
                "x-slack-request-timestamp": "1531420618",
            },
            SLACK_BODY,
        ),
        (
            "standard",
            "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            1614265330,
            {
                "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
                "webhook-timestamp": "1614265330",
                "webhook-signature": "v1,AAAA v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
            },
            b'{"test": 2432232314}',
        ),
    ],
)
def test_the_published_signatures_are_right(
    name: str, secret: str, now: float, headers: dict[str, str], body: bytes
) -> None:
    scheme = find_scheme(name, None)
    assert find_objection(scheme, SecretString(secret), headers, body, now=now) == ""
    assert find_objection(scheme, SecretString(secret), headers, body + b" ", now=now) != ""
    assert find_objection(scheme, SecretString(secret + "x"), headers, body, now=now) != ""


@pytest.mark.parametrize("name", SCHEMES)
def test_a_changed_body_secret_time_or_signature_proves_nobody(name: str) -> None:
    scheme, now = find_scheme(name, None), 1_700_000_000.0
    headers = sign_delivery(scheme, SECRET, BODY, now=now, id="msg_1")
    assert find_objection(scheme, SECRET, headers, BODY, now=now) == ""
    assert find_objection(scheme, SecretString("another"), headers, BODY, now=now) != ""
    assert find_objection(scheme, SECRET, {}, BODY, now=now) != ""
    for header, value in headers.items():
        for other in ("", value[:-1], value + "1", "t=,v1=", "é", "0" * 10_000):
            assert find_objection(scheme, SECRET, {**headers, header: other}, BODY, now=now) != "", (header, other)
    if scheme.signed:
        assert find_objection(scheme, SECRET, headers, BODY + b"x", now=now) != ""
    for late in (TOLERANCE_SECONDS + 1, -TOLERANCE_SECONDS - 1):
        assert (find_objection(scheme, SECRET, headers, BODY, now=now + late) != "") is ("{time}" in scheme.signed)


def test_one_of_two_signatures_is_enough_and_a_header_can_be_named() -> None:
    stripe, now = find_scheme("stripe", None), 1_700_000_000.0
    value = sign_delivery(stripe, SECRET, BODY, now=now)["stripe-signature"]
    time, _, signature = value.partition(",")
    both = {"stripe-signature": f"{time},v1=00,{signature},v0=1"}
    assert find_objection(stripe, SECRET, both, BODY, now=now) == ""
    own = find_scheme("hmac", "X-Sum")
    assert find_objection(own, SECRET, sign_delivery(own, SECRET, BODY, now=now), BODY, now=now) == ""
    assert list(sign_delivery(own, SECRET, BODY, now=now)) == ["x-sum"]
    bearer = find_scheme("secret", "Authorization")
    assert find_objection(bearer, SECRET, {"authorization": f"Bearer {SECRET.reveal()}"}, b"", now=now) == ""
