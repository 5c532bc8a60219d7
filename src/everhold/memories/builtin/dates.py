"""Finds the dates that a question names: absolute ones and relative ones, in several languages. Pure functions.

A range begins with the first day that is meant and ends after the last. A month without a year stands for that month of
each of the last years.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta, tzinfo
from itertools import chain
from typing import Final

from msgspec import Struct

YEARS_BACK: Final = 10
"""How many years a month without a year may lie back."""
MAX_RANGES: Final = 12
MIN_YEAR, MAX_YEAR = 1970, 2199

_MONTHS: Final = """
1 january jan januar janner enero janvier janeiro gennaio январь января январе जनवरी يناير
2 february feb februar febrero fevrier fevereiro febbraio февраль февраля феврале फरवरी फ़रवरी فبراير
3 march marz marzo mars marco март марта марте मार्च مارس
4 april apr abril avril aprile апрель апреля апреле अप्रैल ابريل أبريل
5 may mai mayo maio maggio май мая мае मई مايو
6 june jun juni junio juin junho giugno июнь июня июне जून يونيو
7 july jul juli julio juillet julho luglio июль июля июле जुलाई يوليو
8 august aug agosto aout август августа августе अगस्त اغسطس أغسطس
9 september sep sept septiembre setiembre septembre setembro settembre сентябрь сентября сентябре सितंबर सितम्बर سبتمبر
10 october oct oktober octubre octobre outubro ottobre октябрь октября октябре अक्टूबर اكتوبر أكتوبر
11 november nov noviembre novembre novembro ноябрь ноября ноябре नवंबर नवम्बर نوفمبر
12 december dec dezember diciembre decembre dezembro dicembre декабрь декабря декабре दिसंबर दिसम्बर ديسمبر
"""
_AMBIGUOUS: Final = frozenset("may march mars mai marco mae jan jun sep dec".split())
"""Names of months that are also other words. They count next to a number or after a preposition."""
_WEEKDAYS: Final = """
0 monday montag lunes lundi segunda lunedi понедельник सोमवार الاثنين
1 tuesday dienstag martes mardi terca martedi вторник मंगलवार الثلاثاء
2 wednesday mittwoch miercoles mercredi quarta mercoledi среду среда बुधवार الاربعاء الأربعاء
3 thursday donnerstag jueves jeudi quinta giovedi четверг गुरुवार الخميس
4 friday freitag viernes vendredi sexta venerdi пятницу пятница शुक्रवार الجمعة
5 saturday samstag sonnabend sabado samedi sabato субботу суббота शनिवार السبت
6 sunday sonntag domingo dimanche domenica воскресенье रविवार الاحد الأحد
"""
_RELATIVE: Final = """
day 0: today, heute, hoy, aujourd'hui, aujourd hui, hoje, oggi, сегодня, आज, اليوم, 今天, 今日, 오늘
day -1: yesterday, last night, gestern, ayer, anoche, hier, ontem, ieri, вчера, बीता कल, أمس, امس, 昨天, 昨日, 어제
day -2: day before yesterday, vorgestern, anteayer, avant hier, avant-hier, anteontem, позавчера, परसों, \
前天, 一昨日, 그저께
week 0: this week, diese woche, dieser woche, esta semana, cette semaine, questa settimana, на этой неделе, \
इस हफ्ते, इस सप्ताह, هذا الأسبوع, 这周, 本周, 今週, 이번 주
week -1: last week, letzte woche, letzter woche, vorige woche, la semana pasada, semana pasada, la semaine derniere, \
semaine derniere, semana passada, settimana scorsa, на прошлой неделе, прошлую неделю, पिछले हफ्ते, पिछले सप्ताह, \
الأسبوع الماضي, الاسبوع الماضي, 上周, 上星期, 先週, 지난주, 지난 주
month 0: this month, diesen monat, diesem monat, este mes, ce mois, este mes, questo mese, в этом месяце, इस महीने, \
هذا الشهر, 这个月, 今月, 이번 달
month -1: last month, letzten monat, letztem monat, vorigen monat, el mes pasado, mes pasado, le mois dernier, \
mois dernier, mes passado, mese scorso, в прошлом месяце, पिछले महीने, الشهر الماضي, 上个月, 先月, 지난달, 지난 달
year 0: this year, dieses jahr, diesem jahr, este ano, cette annee, quest'anno, в этом году, इस साल, \
هذا العام, 今年, 올해
year -1: last year, letztes jahr, letztem jahr, voriges jahr, el ano pasado, ano pasado, l'annee derniere, \
annee derniere, ano passado, anno scorso, в прошлом году, पिछले साल, العام الماضي, السنة الماضية, 去年, 昨年, 작년
"""
_UNITS: Final = """
day: day days tag tage tagen dia dias jour jours giorno giorni день дня дней दिन يوم أيام ايام
week: week weeks woche wochen semana semanas semaine semaines settimana settimane неделю недели недель हफ्ते \
सप्ताह أسبوع أسابيع اسبوع اسابيع
month: month months monat monate monaten mes meses mois mese mesi месяц месяца месяцев महीने شهر أشهر شهور اشهر
year: year years jahr jahre jahren ano anos an ans annee annees anno anni год года лет साल سنة سنوات
"""
_NUMBERS: Final = """
1 a an one ein eine einem einer un una une um uma один одну एक واحد
2 two couple zwei dos deux dois duas due два две दो
3 three drei tres trois tre три तीन ثلاثة
4 four vier cuatro quatre quatro quattro четыре चार
5 five funf cinco cinq cinque пять पांच
6 six sechs seis sei шесть छह
7 seven sieben siete sept sete sette семь सात
"""


class DateRange(Struct, frozen=True):
    """A range of time that a question names, in seconds since 1970."""

    start: float
    end: float


class DatedQuestion(Struct, frozen=True):
    """A question, its dates, and its text without relative dates, because those words mean something else elsewhere."""

    ranges: tuple[DateRange, ...]
    topic: str


def _simplify(text: str) -> str:
    """Return a text in lower case without accents. Every character stays one character, so places stay the same."""
    return "".join(_simplify_character(one) for one in text)


def _simplify_character(one: str) -> str:
    if one.isascii():
        return one.lower()
    plain = unicodedata.normalize("NFD", one)[0] if "\u00c0" <= one <= "\u024f" else one
    small = plain.lower()
    return small if len(small) == 1 else one


def _read_numbered(table: str) -> dict[str, int]:
    lines = (line.split() for line in table.strip().splitlines())
    return {_simplify(word): int(number) for number, *words in lines for word in words}


def _read_relative() -> dict[str, tuple[str, int]]:
    found: dict[str, tuple[str, int]] = {}
    for line in _RELATIVE.strip().splitlines():
        head, _, phrases = line.partition(":")
        unit, offset = head.split()
        found |= {_simplify(phrase.strip()): (unit, int(offset)) for phrase in phrases.split(",")}
    return found


def _join(words: Sequence[str]) -> str:
    return "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))


_MONTH_NUMBERS: Final = _read_numbered(_MONTHS)
_WEEKDAY_NUMBERS: Final = _read_numbered(_WEEKDAYS)
_SMALL_NUMBERS: Final = _read_numbered(_NUMBERS)
_RELATIVE_PHRASES: Final = _read_relative()
_UNIT_WORDS: Final = {
    _simplify(word): line.partition(":")[0]
    for line in _UNITS.strip().splitlines()
    for word in line.partition(":")[2].split()
}
_LETTER: Final = r"(?:[^\W\d_]|[\u0900-\u0903\u093a-\u094f])"
"""A letter, or a sign that belongs to one in Devanagari."""
_BEFORE_WORD: Final = r"(?<![\w\u0900-\u0903\u093a-\u094f])"
# Any word matches, and is looked up later. This costs much less than to try the name of every month at each word.
_NAME: Final = rf"{_LETTER}++(?!\w)"
_MONTH: Final = rf"(?P<month>{_NAME})\.?"
_YEAR: Final = r"(?P<year>(?:19|20|21)\d\d)"
_DAY: Final = r"(?P<day>\d{1,2})(?:st|nd|rd|th|er|[.ºª°])?"
_PREPOSITIONS: Final = frozenset(
    "in of since during until by early late last this im seit en de do em nel di a du в".split()
)
_COUNT: Final = rf"(?P<count>\d{{1,3}}|{_NAME})"
_UNIT: Final = rf"(?P<unit>{_NAME})"
_ISO: Final = re.compile(r"\b(?P<year>\d{4})[-/.](?P<month>\d{1,2})[-/.](?P<day>\d{1,2})\b")
_NUMERIC: Final = re.compile(r"\b(?P<day>\d{1,2})[./-](?P<month>\d{1,2})[./-](?P<year>\d{4})\b")
_DENSE: Final = re.compile(
    r"(?:(?P<year>\d{4})\s*[年년]\s*)?(?P<month>\d{1,2})\s*[月월](?:\s*(?P<day>\d{1,2})\s*[日号일])?"
)
_DAY_MONTH: Final = re.compile(
    rf"\b{_DAY}\s++(?:of\s++|de\s++|di\s++)?{_MONTH}(?:,?\s++(?:de\s++|of\s++|do\s++)?{_YEAR}\b)?"
)
_MONTH_DAY: Final = re.compile(rf"{_BEFORE_WORD}{_MONTH}\s++{_DAY}\b(?!\d)(?:,?\s++{_YEAR}\b)?")
_MONTH_YEAR: Final = re.compile(rf"{_BEFORE_WORD}{_MONTH},?\s++(?:de\s++|of\s++|do\s++)?{_YEAR}\b")
_WORD: Final = re.compile(_BEFORE_WORD + _NAME)
_YEAR_ONLY: Final = re.compile(rf"(?<![\w.,/-]){_YEAR}(?![\w/-]|[.,]\d)|(?P<dense>\d{{4}})\s*[年년]")
_PHRASE: Final = re.compile(rf"(?<!\w)(?:{_join([one for one in _RELATIVE_PHRASES if ord(one[-1]) < 0x2E80])})(?!\w)")
_DENSE_PHRASE: Final = re.compile(_join([one for one in _RELATIVE_PHRASES if ord(one[-1]) >= 0x2E80]))
_AGO: Final = re.compile(rf"{_BEFORE_WORD}{_COUNT}\s++{_UNIT}\s++(?:ago|atras|fa|назад|पहले)(?!\w)")
# The count and the unit are only looked at: in "vor allem vor zwei Wochen", the second "vor" must be found, too.
_SINCE: Final = re.compile(rf"(?<!\w)(?:vor|hace|il y a|ha|قبل|منذ)\s++(?={_COUNT}\s++{_UNIT})")
_DENSE_AGO: Final = re.compile(
    r"(?P<count>\d{1,3})\s*(?P<unit>天|日|周|週間|个月|か月|ヶ月|年|일|주|개월|달|년)\s*(?:之?前|전)"
)
_DENSE_UNITS: Final = {
    "天": "day",
    "日": "day",
    "일": "day",
    "周": "week",
    "週間": "week",
    "주": "week",
    "年": "year",
    "년": "year",
}
_WEEKDAY: Final = re.compile(rf"(?<!\w)(?P<weekday>{_join(list(_WEEKDAY_NUMBERS))})(?!\w)")


def read_question(text: str, *, now: float, zone: tzinfo = UTC) -> DatedQuestion:
    """Return the dates that a question names. `now` is when it is asked."""
    try:
        today = datetime.fromtimestamp(now, zone).date()
    except (ValueError, OverflowError, OSError):
        return DatedQuestion((), text)
    plain_text = _simplify(text)
    if not _may_name_date(plain_text):
        return DatedQuestion((), text)
    days: list[tuple[date, date]] = []
    used: list[tuple[int, int]] = []
    gone: list[tuple[int, int]] = []
    for span, found, is_relative in _find_all(plain_text, text, today):
        if any(span[0] < end and start < span[1] for start, end in used):
            continue  # part of a longer date
        used.append(span)
        days += found
        if is_relative:
            gone.append(span)
    ranges = tuple(_convert_days(first, last, zone) for first, last in days[:MAX_RANGES])
    return DatedQuestion(ranges, _cut(text, gone))


def _may_name_date(plain_text: str) -> bool:
    """Whether it is worth to look: most questions name no date."""
    return (
        not plain_text.isascii()
        or any(map(str.isdigit, plain_text))
        or not _DATE_WORDS.isdisjoint(_SPLIT.findall(plain_text))
    )


_SPLIT: Final = re.compile(r"\w+")
_DATE_WORDS: Final = frozenset(
    {*_MONTH_NUMBERS, *_WEEKDAY_NUMBERS, "ago", "hace", "il", "atras", "vor", "ha", "fa"}
    | {word for phrase in _RELATIVE_PHRASES for word in _SPLIT.findall(phrase)}
)

_Found = tuple[tuple[int, int], list[tuple[date, date]], bool]


def _find_all(plain_text: str, text: str, today: date) -> Iterator[_Found]:
    """Yield the place of each date, the days it stands for, and whether it is relative. More exact dates come first."""
    for pattern in (_ISO, _NUMERIC, _DENSE, _DAY_MONTH, _MONTH_DAY, _MONTH_YEAR):
        for match in pattern.finditer(plain_text):
            if days := _read_absolute(match, today):
                yield match.span(), days, False
    yield from _find_relative(plain_text, today)
    for start, name, before in _list_month_names(plain_text):
        if name in _AMBIGUOUS and not (before in _PREPOSITIONS and text[start].isupper()):
            continue
        yield (start, start + len(name)), _list_months(_MONTH_NUMBERS[name], today), False
    for match in _YEAR_ONLY.finditer(plain_text):
        year = int(match["year"] or match["dense"])
        if MIN_YEAR <= year <= MAX_YEAR:
            yield match.span(), [(date(year, 1, 1), date(year, 12, 31))], False


def _list_month_names(plain_text: str) -> Iterator[tuple[int, str, str]]:
    """Yield the place of each name of a month, the name, and the word right before it."""
    before, end = "", 0
    for match in _WORD.finditer(plain_text):
        if match.group() in _MONTH_NUMBERS:
            yield match.start(), match.group(), before if plain_text[end : match.start()].isspace() else ""
        before, end = match.group(), match.end()


def _read_absolute(match: re.Match[str], today: date) -> list[tuple[date, date]]:
    groups = match.groupdict()
    month = int(groups["month"]) if groups["month"].isdigit() else _MONTH_NUMBERS.get(groups["month"], 0)
    if not month:
        return []
    year = int(groups["year"]) if groups.get("year") else 0
    day = int(groups["day"]) if groups.get("day") else 0
    if not 1 <= month <= 12 and 1 <= day <= 12:
        month, day = day, month
    if not 1 <= month <= 12 or (year and not MIN_YEAR <= year <= MAX_YEAR):
        return []
    years = [year] if year else list(range(today.year, today.year - YEARS_BACK, -1))
    found = [days for it in years if (days := _list_days(it, month, day))]
    return found if year else [days for days in found if days[0] <= today]


def _list_days(year: int, month: int, day: int) -> tuple[date, date] | None:
    try:
        first = date(year, month, day or 1)
    except ValueError:
        return None
    if day:
        return first, first
    return first, (first.replace(day=28) + timedelta(days=4)).replace(day=1) - timedelta(days=1)


def _list_months(month: int, today: date) -> list[tuple[date, date]]:
    years = range(today.year, today.year - YEARS_BACK, -1)
    found = (_list_days(year, month, 0) for year in years)
    return [days for days in found if days and days[0] <= today]


def _find_relative(plain_text: str, today: date) -> Iterator[_Found]:
    for pattern in (_PHRASE, _DENSE_PHRASE):
        for match in pattern.finditer(plain_text):
            unit, offset = _RELATIVE_PHRASES[match.group()]
            yield match.span(), [_shift(today, unit, offset)], True
    for match in chain(_AGO.finditer(plain_text), _SINCE.finditer(plain_text)):
        count, unit = match["count"], _UNIT_WORDS.get(match["unit"], "")
        number = int(count) if count.isdigit() else _SMALL_NUMBERS.get(count)
        if number is not None and unit:
            yield (match.start(), max(match.end(), match.end("unit"))), [_shift(today, unit, -number)], True
    for match in _DENSE_AGO.finditer(plain_text):
        yield match.span(), [_shift(today, _DENSE_UNITS.get(match["unit"], "month"), -int(match["count"]))], True
    for match in _WEEKDAY.finditer(plain_text):
        back = (today.weekday() - _WEEKDAY_NUMBERS[match["weekday"]]) % 7 or 7
        day = today - timedelta(days=back)
        yield match.span(), [(day, day)], True


def _shift(today: date, unit: str, offset: int) -> tuple[date, date]:
    """Return the day, week, month or year that lies so many of them after this one."""
    match unit:
        case "day":
            day = today + timedelta(days=max(offset, -30_000))
            return day, day
        case "week":
            first = today - timedelta(days=today.weekday()) + timedelta(weeks=max(offset, -5_000))
            return first, first + timedelta(days=6)
        case "month":
            number = today.year * 12 + today.month - 1 + offset
            return _list_days(max(number // 12, 1), number % 12 + 1, 0) or (today, today)
        case _:
            year = max(today.year + offset, 1)
            return date(year, 1, 1), date(year, 12, 31)


def _convert_days(first: date, last: date, zone: tzinfo) -> DateRange:
    start = datetime(first.year, first.month, first.day, tzinfo=zone)
    after = datetime(last.year, last.month, last.day, tzinfo=zone) + timedelta(days=1)
    return DateRange(start.timestamp(), after.timestamp())


def _cut(text: str, spans: Sequence[tuple[int, int]]) -> str:
    for start, end in sorted(spans, reverse=True):
        text = f"{text[:start]} {text[end:]}"
    return text
