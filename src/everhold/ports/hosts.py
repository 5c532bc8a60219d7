"""What hosts that work on one store know of each other: who runs, who holds which account, and hints about commits.

A host is one running process. It is identified by the name under which it claims cursors. As everywhere in the store's
port, callers pass durations and get durations, because the clocks of hosts differ.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct

from everhold.core.entries import EntryKind

# -- accounts ----------------------------------------------------------------------------------------------------------


class AccountClaim(Struct, frozen=True):
    """The right to receive for an account until its lease ends. A change that moves an offset names the fence."""

    account: str
    """See `make_account_name`."""
    owner: str
    fence: int


class AccountLease(Struct, frozen=True, kw_only=True):
    """Who holds an account."""

    account: str
    owner: str
    fence: int
    seconds_left: float
    """0 or less: the lease is over, and any host may claim the account."""


def make_account_name(platform: str, account: str, part: str = "") -> str:
    """Return the name under which an account is claimed. `part` is a shard, if each is held by itself."""
    return f"{platform}:{account}" + (f"#{part}" if part else "")


# -- hosts -------------------------------------------------------------------------------------------------------------


class HostVersion(Struct, frozen=True):
    """The versions that decide whether two hosts may work on one store."""

    program: str
    """The version of the package, such as `0.3.1`."""
    schema: int
    """The newest schema that the host knows."""


class HostRecord(Struct, frozen=True, kw_only=True):
    """What a host says of itself when it starts."""

    id: str
    """The owner of its claims. It is new with every start."""
    name: str
    """What operators call it, such as the machine's name."""
    version: HostVersion
    url: str = ""
    """Where other hosts reach its API; empty if they cannot."""


class HostStatus(Struct, frozen=True, kw_only=True):
    """A registered host, as the store knows it."""

    host: HostRecord
    seconds_since_start: float
    seconds_since_renewal: float
    is_alive: bool
    """Its registration was renewed in time."""
    is_draining: bool
    """It finishes its work and claims nothing new."""
    accounts: tuple[str, ...] = ()
    """The accounts that it holds."""
    cursors: Mapping[str, int] = {}
    """How many cursors it holds, by consumer."""


# -- hints -------------------------------------------------------------------------------------------------------------


class CommitHint(Struct, frozen=True, kw_only=True):
    """A commit was made. A hint says what may be worth reading, and nothing is decided by it."""

    session: str
    step: str
    """The name of its `Step`."""
    kinds: tuple[EntryKind, ...] = ()
    """The kinds of the entries that it appended."""
    is_work_due: bool = False
    """It made a cursor due that nobody has claimed yet."""
    is_remote: bool = False
    """Another host made it."""


class ReplyPiece(NamedTuple):
    """Some text of a reply that the model is producing. It may be lost; the committed reply is authoritative."""

    session: str
    op: int
    text: str
    reset: bool = False
    """The pieces before it are not part of the reply, because another model starts it again."""
    at: int = 0
    """The number of characters before this piece."""


class ReplyTextExchange(Protocol):
    """What shows growing replies to clients of this host. An empty session means all sessions."""

    def receive_text(self, piece: ReplyPiece) -> None:
        """Take the text of a reply that grows on another host. It may come twice, late or never."""

    def list_growing(self, session: str) -> Sequence[ReplyPiece]:
        """Return the text so far of the replies that grow on this host."""

    def list_watched(self) -> Collection[str]:
        """Return the sessions whose growing replies are shown here."""


class CommitNotifier(Protocol):
    """Passes hints between the hosts of one store. Hints may be lost, late, doubled and in another order.

    Whoever waits for a commit polls the store as well.
    """

    @property
    def reaches_other_hosts(self) -> bool:
        """Whether hints of other hosts were seen to arrive. If not, only polling finds their commits."""

    def publish(self, hint: CommitHint) -> None:
        """Pass a hint to the subscribers of this process at once, and to other hosts soon. It never waits or fails."""

    def subscribe(self, receive: Callable[[CommitHint], None]) -> Callable[[], None]:
        """Call `receive` with every hint from now on. Return a function that ends the subscription."""

    def connect_texts(self, exchange: ReplyTextExchange) -> None:
        """Exchange the text of growing replies with other hosts from now on."""

    def publish_text(self, piece: ReplyPiece) -> None:
        """Pass on text of a reply that grows on this host, to the hosts that show it. It never waits or fails."""

    def announce_watch(self) -> None:
        """Tell other hosts soon that `list_watched` has changed."""
