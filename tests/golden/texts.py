# ruff: noqa: RUF001 (some texts test characters that look like others)
"""The forty texts of the bundled checkpoint's golden values; a tuple is a pair of texts."""

from __future__ import annotations

Given = str | tuple[str, str]

TEXTS: list[Given] = [
    "",
    "   \t\n ",
    "good",
    "I love ice cream",
    "I hate ice cream",
    "A triumph of style over substance, and somehow all the better for it.",
    "The plot is thin, the jokes are thinner; but the cast, bless them, almost save it.",
    "not bad at all",
    "NOT GOOD. NOT GOOD AT ALL!!!",
    "it's one of those films you can't help liking, isn't it?",
    "naïve café façade, déjà vu, über-schön, smörgåsbord, El Niño",
    "cafe\u0301 re\u0301sume\u0301 with combining accents",
    "Łódź, Ærøskøbing, Çeşme, Đà Nẵng, straße, œuvre, İstanbul",
    "这部电影非常好看",
    "我爱 ice cream 和 電影。",
    "素晴らしい映画だった、ありがとう！",
    "정말 재미있는 영화였어요",
    "Отличный фильм, смотреть обязательно",
    "فيلم رائع جدا",
    "סרט נפלא",
    "बहुत अच्छी फ़िल्म है",
    "หนังเรื่องนี้สนุกมาก",
    "Loved it 😀👍🏽 totally 🔥🔥🔥",
    "👨‍👩‍👧‍👦 family film 🏳️‍🌈",
    "❤",
    "…—“quoted”—‘and’ «angled» – dashes · bullets • and ™ signs",
    "3.14159 + 2,718 = 5.859… (roughly 100%, or $5.86 / £4.40 / €5)",
    "https://www.example.org/films?id=42&sort=desc#top and someone@example.org",
    "for (i = 0; i < n; ++i) { total += x[i] * w[i]; }  // a dull film",
    "<br /><b>Great</b> &amp; funny",
    "C:\\films\\new\\table.txt",
    "[CLS] the [MASK] was [SEP] great [UNK] [PAD]",
    "antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis",
    "a" * 150 + " is longer than any word",
    "zero\u200bwidth soft\u00adhyphen nul\x00byte del\x7f bom\ufeff replaced\ufffd",
    "ＦＵＬＬ　ＷＩＤＴＨ ﬁne ligature ½ x² 𝒎𝒂𝒕𝒉",
    ("The acting is superb.", "I walked out after ten minutes."),
    ("", "an empty first text"),
    ("Ein Film über Zürich", "一部关于苏黎世的电影 🎬"),
    " ".join(f"Scene {i}: nothing much happens, slowly, and then it rains." for i in range(1, 61)),
]
