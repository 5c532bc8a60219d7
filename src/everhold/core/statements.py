"""Reads what a short text states about its author or about somebody it names, if it may change: where they live and
work, what something of theirs is, and what they do or do not do. A later statement on the same topic replaces an
earlier one.

Only the wording counts, in eleven languages. What no wording shows is left to the review.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Final

from msgspec import Struct

MAX_CLAUSES: Final = 12
"""Clauses of a text that are read. A long text seldom is about what its author does and has."""
MAX_CLAUSE_CHARS: Final = 120
MAX_CLAUSE_WORDS: Final = 9
MAX_VALUE_WORDS: Final = 6
STEM_CHARS: Final = 5
SELF: Final = "i"
"""The author, or the person whom a fact is about."""

_CLAUSE: Final = re.compile(r"[^,;:.!?\u3001\u3002\uff0c\uff01\uff1f\u060c\u061f\u0964\n]++")
_QUESTION: Final = re.compile(r"[?\uff1f\u061f]")
_TOKEN: Final = re.compile(r"[\w'\u0900-\u0903\u093a-\u094f\u064b-\u0652]+")
_DENSE: Final = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")

# `who` is somebody else, and the text is about its author without it. The value ends with the clause.
_NAME: Final = r"(?P<who>[^\W\d_]{2,20})"
_NOW: Final = (
    r"(?:(?:just|now|recently|finally|currently|jetzt|nun|inzwischen|gerade|ahora|ya|actualmente|maintenant|désormais"
    r"|agora|ora|adesso|теперь|сейчас"
    r"|уже) ){0,2}"
)
_HOMES: Final = (
    rf"(?:the )?(?:i|we|{_NAME})(?:'m|'ve| am| is| are| have| has)? {_NOW}"
    r"(?P<neg>no longer |don't |do not |doesn't |not )?(?:live|lives|living|relocated|moved) "
    r"(?:now |back |over )?(?:in|to|at) (?P<value>.+)",
    rf"(?:lives|living|relocated|moved) {_NOW}(?:in|to) (?P<value>.+)",  # a fact may leave out whom it is about
    rf"(?:ich|wir|{_NAME}) (?:wohne|wohnt|wohnen|lebe|lebt|leben) {_NOW}(?P<neg>nicht mehr )?(?:in|bei) (?P<value>.+)",
    rf"(?:ich|wir|{_NAME}) (?:bin|ist|sind) {_NOW}(?:nach|in) (?P<value>.+?) (?:um)?gezogen",
    rf"(?:yo )?(?P<neg>ya no )?{_NOW}(?:vivo|vivimos) {_NOW}en (?P<value>.+)",
    rf"{_NAME} (?P<neg>ya no )?{_NOW}vive {_NOW}en (?P<value>.+)",
    r"(?:me|nos) (?:he |hemos )?(?:mudé|mudado|mudamos) a (?P<value>.+)",
    rf"(?:j'habite|je vis|nous habitons|{_NAME} habite) {_NOW}(?:à|en|au|aux|dans) (?P<value>.+)",
    rf"(?P<neg>je n'habite plus|je ne vis plus) {_NOW}(?:à|en|au|aux|dans) (?P<value>.+)",
    r"(?:j'ai déménagé|nous avons déménagé|je me suis installée?) (?:à|en|au|aux|dans) "
    r"(?P<value>.+)",
    rf"(?:eu )?(?P<neg>já não |não )?{_NOW}(?:moro|moramos|vivo) {_NOW}(?:em|no|na|nos|nas) (?P<value>.+)",
    rf"{_NAME} (?P<neg>já não |não )?{_NOW}mora {_NOW}(?:em|no|na|nos|nas) (?P<value>.+)",
    r"(?:eu )?(?:me mudei|mudei-me|nós mudamos|mudei) (?:para|pra) (?:o |a )?(?P<value>.+)",
    rf"(?:io )?(?P<neg>non )?{_NOW}(?:abito|vivo|abitiamo) {_NOW}(?:più )?(?:a|in|ad) (?P<value>.+)",
    r"(?:io )?mi sono trasferit[oa] (?:a|in|ad) (?P<value>.+)",
    rf"(?:я|мы) {_NOW}(?P<neg>больше не )?"
    rf"(?:живу|живём|живем) {_NOW}"
    r"(?:в|во|на) (?P<value>.+)",
    rf"(?:я|мы) {_NOW}переехал[аи]? "
    r"(?:в|во|на) (?P<value>.+)",
    r"(?:मैं|हम) (?:अब )?(?P<value>.+?) में "
    r"(?P<neg>नहीं )?रहत.*",
    r"(?:मैं|हम) (?:अब )?(?P<value>.+?) "
    r"(?:रहने लग|चला गया|चली गई"
    r"|शिफ्ट).*",
    r"(?:أنا )?(?P<neg>لم أعد |لا )?"
    r"(?:أعيش|أسكن|اسكن|اعيش) "
    r"(?:الآن )?في (?P<value>.+)",
    r"(?:لقد )?انتقلت (?:للعيش )?"
    r"(?:إلى|الى) (?P<value>.+)",
    r"我(?:现在|已经)?(?P<neg>不)?住在(?P<value>.+?)(?:了)?",
    r"我(?:已经|刚)?搬(?:家)?[到去]了?(?P<value>.+?)(?:了)?",
    r"(?:私|僕|俺)?(?:は|今は|今)?(?P<value>.+?)に(?:住んで|引っ越"
    r"|引越).*",
    r"(?:저는|나는|난|전)? ?(?:지금 |이제 )?(?P<value>.+?)에(?:서)? "
    r"(?:살아|살고|삽니다|산다).*",
    r"(?:저는|나는|난|전)? ?(?:지금 |이제 )?(?P<value>.+?)(?:으로|로) "
    r"이사.*",
)
_JOBS: Final = (
    rf"(?:the )?(?:i|{_NAME})(?:'m| am| is)? {_NOW}(?P<neg>no longer |don't |do not |doesn't |not )?"
    rf"(?:work|works|working) {_NOW}(?:at|for) (?P<value>.+)",
    rf"(?:i|{_NAME})(?:'ve| have| has)? {_NOW}started (?:working|work|a job|a new job|my new job) (?:at|for|with) "
    r"(?P<value>.+)",
    rf"works {_NOW}(?:at|for) (?P<value>.+)",
    rf"(?:ich|{_NAME}) (?:arbeite|arbeitet) {_NOW}(?P<neg>nicht mehr )?(?:bei|für) (?P<value>.+)",
    rf"(?:yo )?(?P<neg>ya no )?{_NOW}trabajo {_NOW}(?:en|para) (?P<value>.+)",
    rf"je travaille {_NOW}(?P<neg>plus )?(?:chez|pour|à) (?P<value>.+)",
    rf"(?:eu )?(?P<neg>já não |não )?{_NOW}trabalho {_NOW}(?:no|na|em|para) (?P<value>.+)",
    rf"(?:io )?(?P<neg>non )?{_NOW}lavoro {_NOW}(?:più )?(?:per|da|presso|alla) (?P<value>.+)",
    rf"я {_NOW}(?P<neg>больше не )?"
    rf"работаю {_NOW}(?:в|на) (?P<value>.+)",
    r"मैं (?:अब )?(?P<value>.+?) में (?:काम|नौकरी)"
    r" (?P<neg>नहीं )?कर.*",
    r"(?:أنا )?أعمل (?:الآن )?(?:في|لدى)"
    r" (?P<value>.+)",
    r"我(?:现在)?(?P<neg>不)?在(?P<value>.+?)(?:工作|上班)(?:了)?",
    r"(?:私|僕|俺)?(?:は|今は|今)?(?P<value>.+?)で働いて.*",
    r"(?:저는|나는|난|전)? ?(?:지금 |이제 )?(?P<value>.+?)에서 "
    r"(?:일해|일하|일한|근무).*",
)
_POSSESSIONS: Final = (  # my WHAT is VALUE
    r"my (?P<new>new |current )?(?P<what>[\w' -]{2,40}?) (?:is|are|'s|was changed to|has changed to|changed to"
    r"|was moved to|moved to|has moved to) (?P<value>.+)",
    r"(?:the|our) (?P<what>[\w' -]{2,40}?) (?P<new>is now|are now|was moved to|has moved to|moved to|was changed to"
    r"|has changed to|changed to|was rescheduled to|was postponed to) (?P<value>.+)",
    r"(?:the|our) (?P<what>[\w' -]{2,40}?) is (?P<value>(?:on|at|in|by) .+|[\d$€£].*)",
    r"meine?n? (?P<new>neuer |neue |neues )?(?P<what>[\w' -]{2,40}?) (?:ist|lautet|sind|heißt) (?P<value>.+)",
    r"mi (?P<new>nuevo |nueva )?(?P<what>[\w' -]{2,40}?) (?:ahora )?(?:es|está) (?P<value>.+)",
    r"(?:mon|ma|mes) (?P<new>nouveau |nouvelle |nouvel )?(?P<what>[\w' -]{2,40}?) est (?P<value>.+)",
    r"(?:o meu|a minha|meu|minha) (?P<new>novo |nova )?(?P<what>[\w' -]{2,40}?) (?:agora )?(?:é|está) (?P<value>.+)",
    r"(?:il mio|la mia|mio|mia) (?P<new>nuovo |nuova )?(?P<what>[\w' -]{2,40}?) (?:ora )?è (?P<value>.+)",
    r"(?:мой|моя|моё|мое) "
    r"(?P<new>новый |новая |новое )?"
    r"(?P<what>[\w' -]{2,40}?) (?:теперь )?(?:\u2014|\u2013|-|это) (?P<value>.+)",
    r"मेर[ाीे] (?P<new>नया |नई )?"
    r"(?P<what>[\w' \u0900-\u0903\u093a-\u094f-]{2,40}?) (?:अब )?(?P<value>\S+) है",
    r"我的(?P<new>新)?(?P<what>[\u3400-\u9fff]{1,6}?)(?:现在)?(?:是|改成了|叫)"
    r"(?P<value>.+)",
    r"(?:私|僕)の(?P<new>新しい)?(?P<what>[\u3040-\u30ff\u3400-\u9fff]{1,8}?)は(?P<value>.+?)"
    r"(?:です|だ)",
    r"(?:제|내) (?P<new>새 |새로운 )?(?P<what>[\uac00-\ud7af ]{1,10}?)(?:은|는|이|\uac00)"
    r" (?P<value>.+)",
)
_SINGLE: Final = frozenset(
    """name nickname age birthday address phone number email mail password employer job boss doctor dentist landlord
    deadline weight height size plan budget rent salary appointment favourite favorite
    adresse telefonnummer nummer geburtstag alter arbeitgeber chef chefin arzt ärztin termin miete lieblings
    dirección teléfono número correo cumpleaños edad jefe jefa médico médica favorito favorita
    téléphone numéro anniversaire âge patron patronne médecin préféré préférée
    endereço telefone aniversário idade chefe indirizzo telefono numero compleanno età capo medico preferito
    preferita адрес телефон номер
    имя возраст любимый
    любимая नाम पता उम्र
    पसंदीदा 名字 地址 电话 号码 生日 名前
    住所 電話番号 誕生日 이름 주소 전화번호
    생일""".split()
)
"""What somebody has one of. Of anything else there may be several, or the sentence says something else about it."""
_NOT_NAMES: Final = frozenset(
    """he she it they you who people everyone nobody which that this er sie es ihr man wer das die der él ella usted
    quien que il elle on qui ils elles ele ela você quem lui lei chi он она они
    ты вы кто""".split()
)
_SELF: Final = frozenset("user i we ich wir".split())
_NEGATIONS: Final = frozenset(
    """not no never don't doesn't didn't isn't aren't wasn't can't won't dont doesnt isnt nicht kein keine keinen keiner
    nie nunca jamás não nem ne n' pas plus jamais non не никогда нет
    नहीं मत لا لم لن ليس لست
    stopped quit aufgehört hate dislike hasse""".split()
)
_FILLERS: Final = frozenset(
    """i we i'm im am is are was be been do does did a an the any more anymore longer now still again really very just
    currently these days at all used to ve have has had of my user's 's love like really eating drinking ich wir bin
    ist sind mehr jetzt nun noch wieder sehr gern gerne der die das den dem ein eine einen es mich mir yo soy estoy es
    ya más ahora el la los las un una me muy je j' suis est du de la le les un une des maintenant encore eu sou
    estou agora mais o os as um uma io sono ora più il lo gli mi я больше
    теперь уже сейчас очень
    मैं हूँ हूं है अब أنا أعد
    الآن""".split()
)
_FIRST_PERSON: Final = frozenset(
    """i i'm im we my ich wir mein meine yo soy estoy mi je j' j'ai mon ma eu sou meu minha io sono я мы
    мой моя मैं हम أنا""".split()
)
_TRAILING: Final = frozenset(
    """now anymore any more again these days today yesterday recently jetzt nun mehr inzwischen ahora más maintenant
    désormais agora mais ora adesso теперь сейчас""".split()
)
_LEADING: Final = frozenset("the a an my now jetzt nun ahora maintenant agora ora теперь called on at in by".split())
_OPENERS: Final = frozenset(
    """well so oh ok okay hey hi yes no actually btw and but also because since then remember that und aber also
    übrigens y pero e mas et mais \u0430 \u0438 но please note""".split()
)


class TopicStatement(Struct, frozen=True):
    """What a clause states. `topic` names whose and what; statements on different topics are not compared."""

    topic: str
    value: str = ""
    negated: bool = False
    weak: bool = False
    """There may be several such values, so it replaces none."""


def replaces(newer: TopicStatement, older: TopicStatement) -> bool:
    """Whether the later one of two statements on the same topic makes the earlier one outdated."""
    if newer.topic != older.topic:
        return False
    if newer.negated != older.negated:
        return newer.value == older.value
    return not newer.negated and newer.value != older.value and not newer.weak


def read_statements(text: str, *, subjects: Iterable[str] = ()) -> tuple[TopicStatement, ...]:
    """Return what a text states. `subjects` are names by which it may call its author."""
    own = {name.casefold() for name in subjects} | _SELF
    found: dict[str, TopicStatement] = {}
    for clause in _list_clauses(text):
        one = _read_clause(clause, own)
        if one is not None:
            found[one.topic] = one
    return tuple(found.values())


def find_replacement(older: Sequence[TopicStatement], newer: Sequence[TopicStatement]) -> bool:
    """Whether what was stated later makes something of what was stated earlier outdated."""
    return any(replaces(new, old) for old in older for new in newer)


def _list_clauses(text: str) -> list[str]:
    clauses = []
    for match in _CLAUSE.finditer(text.replace("\u2019", "'")):
        words = match.group().split()
        while words and words[0].casefold() in _OPENERS and len(words) > 2:
            del words[0]
        clause = " ".join(words)
        if 3 <= len(clause) <= MAX_CLAUSE_CHARS and not _QUESTION.match(text, match.end()):
            clauses.append(clause)
        if len(clauses) == MAX_CLAUSES:
            break
    return clauses


def _read_clause(clause: str, own: set[str]) -> TopicStatement | None:
    for kind, patterns in _compile_patterns():
        for pattern in patterns:
            match = pattern.fullmatch(clause)
            if match is None:
                continue
            groups = match.groupdict()
            value = _simplify_value(groups["value"])
            if not value:
                return None
            if kind == "has":
                return _build_possession(groups, value, clause)
            who = _name_subject(groups.get("who") or "", own)
            if who and (kind != "home" or _may_be_place(clause, groups["value"])):
                return TopicStatement(f"{who}|{kind}", value, bool(groups.get("neg")))
    return _read_polarity(clause)


def _name_subject(name: str, own: set[str]) -> str:
    """Return whom a clause is about; empty if that is unknown."""
    word = name.casefold()
    if not word or word in own:
        return SELF
    return word if name[0].isupper() and word not in _NOT_NAMES else ""


def _may_be_place(clause: str, value: str) -> bool:
    """Whether somebody moved house: a place has a capital letter where there are any. One may also move to a tool."""
    if not re.match(r"\S+(?:'ve| have| has)? (?:\w+ )?moved ", clause, re.IGNORECASE):
        return True
    return any(word[0].isupper() for word in value.split())


def _build_possession(groups: dict[str, str | None], value: str, clause: str) -> TopicStatement | None:
    what = [word.casefold() for word in _TOKEN.findall(groups["what"] or "")]
    if not what or len(what) > 5:
        return None
    words = {word.casefold() for word in _TOKEN.findall(clause)}
    single = any(map(_is_single, what)) or value[0].isdigit() or bool(groups.get("new") or words & _TRAILING)
    return TopicStatement(f"{SELF}|has|{' '.join(what)}", value, bool(words & _NEGATIONS), weak=not single)


def _is_single(word: str) -> bool:
    return word in _SINGLE or word.startswith("lieblings")


def _simplify_value(value: str) -> str:
    words = [word.casefold() for word in _TOKEN.findall(value)]
    while words and words[0] in _LEADING:
        del words[0]
    while words and words[-1] in _TRAILING:
        del words[-1]
    return " ".join(words[:MAX_VALUE_WORDS])


def _read_polarity(clause: str) -> TopicStatement | None:
    """Read a short clause in the first person as something that its author does or does not."""
    if _DENSE.search(clause):
        return None
    words = [word.casefold() for word in _TOKEN.findall(clause)]
    if not 2 <= len(words) <= MAX_CLAUSE_WORDS or _FIRST_PERSON.isdisjoint(words):
        return None
    kept = sorted({word[:STEM_CHARS] for word in words if word not in _NEGATIONS and word not in _FILLERS})
    if not kept:
        return None
    return TopicStatement(f"{SELF}|does|{' '.join(kept)}", "", not _NEGATIONS.isdisjoint(words))


@cache
def _compile_patterns() -> tuple[tuple[str, tuple[re.Pattern[str], ...]], ...]:
    kinds = (("home", _HOMES), ("work", _JOBS), ("has", _POSSESSIONS))
    return tuple((kind, tuple(re.compile(one, re.IGNORECASE) for one in patterns)) for kind, patterns in kinds)
