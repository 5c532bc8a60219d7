"""What was said in the month of the demo. All of it is invented."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct


class DemoTurn(Struct, frozen=True):
    """A message and its answer. `calls` are tools that the agent uses before it answers; empty `answer`: a command."""

    text: str
    answer: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()


class DemoTalk(Struct, frozen=True):
    """A conversation on one day. `day` counts back from today."""

    day: int
    person: str
    chat: str
    turns: tuple[DemoTurn, ...]
    platform: str = "http"
    agent: str = "main"
    title: str = ""
    archived: bool = False


PEOPLE: Final = {"ada": "1001", "ben": "1002", "mia": "1003", "otto": "1004"}
"""The people, with their ids on the chat platform."""
FORGETTABLE: Final = "otto"
REFUSED_WORD: Final = "panorama"
"""The platform refuses replies with this word, so they become dead letters."""
SUMMARY: Final = (
    "Ada plans the summer fair in Kiel for 120 guests on June 14. The hall at the harbour is booked. "
    "The band costs 900 euros. Still open: the cake, chairs for the terrace, and who meets the band."
)

_FAIR: Final = (
    (
        "We plan the summer fair. It is on June 14, for 120 guests.",
        "Noted: the summer fair, June 14, 120 guests. Where is it?",
    ),
    (
        "In the hall at the harbour. It is booked.",
        "Good. The hall at the harbour is booked. Shall I make a list of what is open?",
    ),
    (
        "Yes. The band costs 900 euros and wants to know who meets them.",
        "| What | State |\n|---|---|\n| Hall | booked |\n| Band | 900 euros, meet them |\n| Food | open |",
    ),
    ("We need chairs for the terrace, about 40.", "Added: 40 chairs for the terrace. The hall owns 25, so rent 15."),
    (
        "And a cake for the children.",
        "Added: a cake for the children. One cake of 30 pieces is enough for 24 children.",
    ),
    ("What do I have to do this week?", "This week: answer the band, rent 15 chairs, and order the cake."),
)

TALKS: Final = (
    DemoTalk(
        30,
        "ada",
        "office",
        (
            DemoTurn(
                "Please remember: our office is at Hafenweg 3.",
                "I keep that: your office is at Hafenweg 3.",
                (("memory", {"action": "add", "text": "The office is at Hafenweg 3."}),),
            ),
            DemoTurn("Who has the key?", "You did not tell me who has the key. Tell me, and I remember it."),
        ),
        title="The office",
    ),
    DemoTalk(27, "ada", "fair", tuple(DemoTurn(*turn) for turn in _FAIR), title="Summer fair"),
    DemoTalk(
        25,
        "ben",
        "1002",
        (
            DemoTurn(
                "When does the ferry to Oslo leave?",
                "The ferry to Oslo leaves Kiel at 14:00 every day. Be there at 12:30.",
            ),
            DemoTurn("And back?", "From Oslo it leaves at 14:00, too, and arrives the next day at 10:00."),
        ),
        platform="telegram",
    ),
    DemoTalk(
        22,
        "mia",
        "1003",
        (
            DemoTurn(
                "Write a short caption for the photo of the lighthouse.",
                "A calm panorama: the lighthouse, an hour before the storm.",
            ),
            DemoTurn(
                "A longer one, please.",
                "The old lighthouse keeps watch over a panorama of grey sea, an hour before the storm arrives.",
            ),
            DemoTurn(
                "And one for the harbour at night.", "Night panorama of the harbour: two cranes, one moon, no wind."
            ),
        ),
        platform="telegram",
    ),
    DemoTalk(
        20,
        "otto",
        "1004",
        (
            DemoTurn(
                "I am allergic to walnuts. Please remember that.",
                "I remember that you are allergic to walnuts.",
                (("memory", {"action": "add", "text": "Otto is allergic to walnuts."}),),
            ),
            DemoTurn(
                "Suggest a cake.",
                "A lemon cake without nuts: 200 g flour, 150 g sugar, 3 eggs, 2 lemons, 120 g butter.",
            ),
        ),
        platform="telegram",
    ),
    DemoTalk(
        18,
        "ada",
        "script",
        (
            DemoTurn(
                "A shell line that counts the lines of all Python files?",
                "```sh\nfind . -name '*.py' -print0 | xargs -0 cat | wc -l\n```\nIt counts empty lines, too.",
            ),
            DemoTurn("Without empty lines?", "```sh\nfind . -name '*.py' -print0 | xargs -0 cat | grep -c .\n```"),
            DemoTurn(
                "Is there a tool for that?", "Yes: `cloc .` counts code, comments and empty lines for each language."
            ),
            DemoTurn("/undo"),
        ),
        agent="coder",
        title="Count lines",
    ),
    DemoTalk(
        15,
        "ada",
        "walk",
        (
            DemoTurn("/schedule 0 8 * * 1-5 Tell me what is planned for today."),
            DemoTurn(
                "Where can we walk on Sunday, about two hours?",
                "Along the fjord from Schilksee to Strande and back: 9 km, flat, with a café in Strande.",
            ),
        ),
        title="Walks",
    ),
    DemoTalk(
        12,
        "ben",
        "contract",
        (
            DemoTurn(
                "Which clauses does a contract for a rented boat need?",
                "1. the boat and its state\n2. the time\n3. the deposit\n4. who may sail it\n5. insurance\n6. delays",
            ),
            DemoTurn(
                "Write clause 6.",
                "If the boat comes back late, the tenant pays 40 euros for each hour.",
            ),
        ),
        title="Boat contract",
    ),
    DemoTalk(
        10,
        "ada",
        "moved",
        (
            DemoTurn(
                "We moved yesterday. The new address is Lindenstraße 12.",
                "Good luck in the new rooms at Lindenstraße 12!",
            ),
        ),
        title="We moved",
    ),
    DemoTalk(
        8,
        "mia",
        "old",
        (
            DemoTurn(
                "A haiku about rain?", "Rain on the tin roof,\nthe cat counts every heartbeat,\nthen forgets them all."
            ),
        ),
        title="Haiku",
        archived=True,
    ),
    DemoTalk(
        5,
        "ada",
        "invite",
        (
            DemoTurn(
                "Write an invitation to our office for Friday at 17:00. Where is our office?",
                "You are invited on Friday at 17:00 to our office at **Hafenweg 3**. We look forward to you!",
            ),
        ),
        title="Invitation",
    ),
    DemoTalk(
        3,
        "ben",
        "1002",
        (
            DemoTurn(
                "Is the ferry on time today?",
                "I cannot see the timetable of today. The line's page shows delays: colorline.com.",
            ),
        ),
        platform="telegram",
    ),
    DemoTalk(
        0,
        "ada",
        "today",
        (
            DemoTurn(
                "Good morning. What did we plan for the summer fair?",
                "For the summer fair on June 14: answer the band, rent 15 chairs, order the cake.",
            ),
            DemoTurn(
                "Remind us of the cake every day at 9.",
                "I asked for permission to make the reminder.",
                (("schedule", {"action": "create", "when": "0 9 * * *", "text": "Order the cake."}),),
            ),
        ),
    ),
)

TOPICS: Final = (
    "the harbour",
    "the tram",
    "the library",
    "the market",
    "the swimming hall",
    "the theatre",
    "the museum",
)
SMALL_TALK: Final = (
    (
        "When does {topic} open today?",
        "Usually {topic} opens at 9:00. Look at its page before you go, because today may differ.",
    ),
    (
        "Is {topic} far from the station?",
        "From the station {topic} is about 15 minutes on foot, or two stops by bus 11.",
    ),
    (
        "What should I know about {topic}?",
        "Three things about {topic}: it is quiet in the morning, it takes cards, and dogs stay outside.",
    ),
)
