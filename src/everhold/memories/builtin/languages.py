"""Function words of several languages: they carry no topic, and the first person tells that somebody speaks of
themselves. English has its own list of stop words.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from everhold.memories.builtin.tokenizing import STOP_WORDS, remove_words, split_words

_FUNCTION_WORDS: Final = {
    "de": """aber alle alles als also am an auch auf aus bei bin bis bist da damit dann das dass dein deine dem den der
    des dich die dir doch du durch ein eine einem einen einer eines er es etwas euch für gegen gibt hab habe haben hast
    hat hatte ich ihm ihn ihr im in ist ja kann kannst können machen mein meine meinem meinen meiner mich mir mit nach
    nicht noch nur ob oder ohne schon sein seine sich sie sind so über um und uns unser von vor wäre wann war
    waren warum was weißt welche welcher welches wem wen wenn wer wie wieder wir wird wo wohin zu zum zur erzähl
    erzähle sag sage mag will wissen""",
    "es": """al algo alguna ante como cómo con contra cual cuál cuales cuáles cuando cuándo de del desde donde
    dónde durante e el él ella ellos en entre era eres es esa ese eso esta está están este esto fue ha había hace han
    hasta hay he la las le les lo los mas más me mi mí mis muy nada ni no nos nuestra nuestro o para pero por porque
    qué que quién quien sabes se ser si sí sido sin sobre son soy su sus también te ti tiene tienes tengo tu tú tus un
    una unos y ya yo dime cuéntame quiero gusta""",
    "fr": """ai aie au aux avec avez avait c ce ces cela cette chez comment d dans de des du elle en es est et ête eu
    eux fait il ils j je l la le les leur lui m ma mais me mes moi mon n ne nos notre nous où ou par pas pour pourquoi
    qu quand que quel quelle quelles quels qui quoi s sa sais sans se ses si son suis sur ta te tes toi ton tu un une
    vos votre vous y était été dis parle raconte veux aime""",
    "pt": """a ao aos as com como da das de dela dele do dos e ela ele em era é essa esse esta está este eu foi há
    isso isto já lhe mais mas me meu meus mim minha minhas muito na não nas nem no nos nós o onde os ou para pela
    pelo por porque qual quais quando que quem sabe sabes se sem ser seu sobre sou sua são também te tem tenho teu
    tu tua um uma você diga conte quero gosto""",
    "it": """a ad ai al alla anche che chi ci come con cosa da dal dei del della di dove e è era gli ha hai ho i il in
    io l la le lo loro ma me mi mia mie miei mio nel nella no noi non o per perché più quale quali quando quello
    questo qui sa sai se sei si sono su sua suo ti tu tua tuo un una dimmi voglio piace""",
    "ru": """а без бы был была были было в вам вас во вот все всё вы где да для до его ее её если
    есть же за знаешь знаете и из или им их к как какая какие какое какой когда кто ли
    меня мне мной моей мои мой моя моё мы на нас не него нет ни но о об обо он
    она они от по почему при про с со так там твой тебе тебя то только ты у уже что
    чтобы это этот я расскажи скажи хочу люблю нравится""",
    "hi": """और का की के को क्या कहाँ कहां कब कौन कैसे किस किसने कौनसा क्यों था थी थे ने पर में मैं मुझे
    मुझ मेरा मेरी मेरे हम है हैं हूँ हूं हो से तुम आप यह वह जो तो भी नहीं बारे जानते जानती
    जानता पता बताओ करता करती एक""",
    "ar": """أنا انا أنت عن عني ما ماذا من متى أين اين كيف لماذا هل في على إلى الى هو هي هذا هذه
    كان كانت لي لك مع لا لم قد تعرف تعرفين أخبرني الذي التي أو و يا أي كم""",
}
_FIRST_PERSON: Final = """i me my mine myself ich mich mir mein meine meinem meinen meiner meines yo mí mi mis je j moi mon
ma mes eu mim meu minha meus minhas io mio mia miei mie я меня мне мной мой моя моё мои моей मैं मुझे मेरा
मेरी मेरे أنا انا عني لي soy tengo vivo trabajo gusta sono ho sou tenho suis ai"""
_DENSE_FIRST_PERSON: Final = ("我", "私", "僕", "俺", "저는", "제", "나는", "내", "나에", "저에")
_DENSE_QUESTION_PARTS: Final = sorted(
    """你 您 知道 了解 关于 關於 我 的 什么 什麼 事情 事 吗 嗎 呢 哪些 啥 是 谁 誰 喜欢 喜歡 想要 想 告诉 告訴 有 对 對 一下 所
    私 僕 俺 について のこと こと 何 を 知っていますか 知っている 知ってる 知って いますか ますか ですか が は 誰 好き 教えて です の いる か
    나에 저에 대해 대하여 무엇을 뭘 뭐 알고 있니 있나요 있어요 있어 있습니까 알아 알아요 나는 저는 누구 누구야 좋아해 좋아하는 내가 제가 내 제 것
    말해줘 알려줘 야 이야""".split(),
    key=len,
    reverse=True,
)

_CHANGE_WORDS: Final = """change changed changes changing different new news update updates updated geändert ändert verändert
änderung änderungen neues neu anders cambiado cambió cambios cambio nuevo nueva changé change changements changement neuf
nouveau mudou mudado mudanças mudança novo nova novidades cambiato cambiamenti nuovo изменилось изменения изменений
поменялось нового новое बदला बदल गया बदलाव नया تغير تغيّر تغيرت التغييرات جديد الجديد s"""
_DENSE_CHANGE_PARTS: Final = sorted(
    """什么 什麼 发生 發生 了 变化 變化 改变 改變 变 變 有 哪些 新 的 我 最近 何 が 変わった 変わりました 変わり 変化 は か の 私
    まし 무엇이 뭐가 바뀌었 변했 달라졌 나요 어요 니 습니까 변화 내 제 것""".split(),
    key=len,
    reverse=True,
)

FIRST_PERSON: Final = frozenset(split_words(_FIRST_PERSON))
CHANGE_WORDS: Final = frozenset(split_words(_CHANGE_WORDS))
ENGLISH_GENERIC: Final = frozenset("know remember tell like want need love hate prefer think describe myself".split())
"""What a question about oneself asks for, beside stop words."""
_SCRIPT_LANGUAGES: Final = {
    re.compile("[\u3040-\u30ff]"): "ja",
    re.compile("[\uac00-\ud7af]"): "ko",
    re.compile("[\u3400-\u9fff]"): "zh",
    re.compile("[\u0400-\u04ff]"): "ru",
    re.compile("[\u0900-\u097f]"): "hi",
    re.compile("[\u0600-\u06ff]"): "ar",
}
"""Scripts that tell the language. Japanese comes before Chinese, because it has Chinese characters, too."""
_JAPANESE_QUESTION_WORDS: Final = re.compile(
    "なぜ|どうして|どうやって|どこ|いつ|だれ|誰|何曜日|何[時回年]|何|どんな|どれくらい|どれだけ|どれ|どの|どう|いくつ|いくら|私たち|私|うち"
)
_JAPANESE_PARTICLES: Final = re.compile("(?<=[^\u3040-\u309f])(?:から|まで|のは|[はがをにでともかの])")
"""After another script than their own, because inside a word in Hiragana they are syllables."""
_DENSE_CHANGES: Final = ("变", "變", "新", "変", "바뀌", "변", "달라")
WISHES: Final = frozenset("like want need love hate prefer".split())
FUNCTION_WORDS: Final = {language: frozenset(split_words(words)) for language, words in _FUNCTION_WORDS.items()}
_ALL_FUNCTION_WORDS: Final = STOP_WORDS.union(FIRST_PERSON, *FUNCTION_WORDS.values())
MIN_FUNCTION_WORDS: Final = 2
"""So many function words show that a question without any other sign is in a language."""


def find_language(text: str) -> str:
    """Return the language of a question, of those listed here: by its script, or the one that has most of its words.
    Empty for English and for others.
    """
    if not text.isascii():
        for script, language in _SCRIPT_LANGUAGES.items():
            if script.search(text):
                return language
    words = split_words(text)
    best, most = "", sum(word in STOP_WORDS for word in words)
    least = MIN_FUNCTION_WORDS if text.isascii() else 1
    for language, known in FUNCTION_WORDS.items():
        count = sum(word in known for word in words)
        if count > most and count >= least:
            best, most = language, count
    return best


def is_inflected(language: str) -> bool:
    """Whether the words of a language have endings that English stemming does not cut."""
    return language in FUNCTION_WORDS


def select_topic(text: str, language: str) -> str:
    """Return a question without the function words of its language; all of it if nothing else is left."""
    if language == "ja":
        topic = _JAPANESE_PARTICLES.sub(" ", _JAPANESE_QUESTION_WORDS.sub(" ", text))
    elif language not in FUNCTION_WORDS:
        return text
    else:
        topic = remove_words(text, FUNCTION_WORDS[language])
    return topic if any(map(str.isalnum, topic)) else text


def select_wishes(text: str) -> str:
    """Return of a question about oneself only the words for likes and wishes; it has no other topic."""
    return " ".join(word for word in split_words(text) if word in WISHES)


def is_first_person(text: str) -> bool:
    """Whether somebody speaks of themselves, in one of the languages."""
    return not FIRST_PERSON.isdisjoint(split_words(text)) or (
        not text.isascii() and any(part in text for part in _DENSE_FIRST_PERSON)
    )


def is_about_changes(text: str) -> bool:
    """Whether a question asks what changed, and names no topic: "What has changed since then?"."""
    words = split_words(text)
    if any(word in CHANGE_WORDS and len(word) > 1 for word in words):
        return all(word in CHANGE_WORDS or word in _ALL_FUNCTION_WORDS for word in words)
    return (
        not text.isascii()
        and any(part in text for part in _DENSE_CHANGES)
        and _is_empty_without(text, _DENSE_CHANGE_PARTS)
    )


def is_about_oneself(text: str) -> bool:
    """Whether a question asks for nothing else than the person who asks: "What do you know about me?"."""
    if not is_first_person(text):
        return False
    words = split_words(text)
    plain = FUNCTION_WORDS.get(find_language(text), STOP_WORDS)
    if words and all(word in plain or (plain is STOP_WORDS and word in ENGLISH_GENERIC) for word in words):
        return True
    if text.isascii():
        return False
    return _is_empty_without(text, _DENSE_QUESTION_PARTS)


def _is_empty_without(text: str, parts: Sequence[str]) -> bool:
    for part in parts:
        text = text.replace(part, " ")
    return not any(map(str.isalnum, text))
