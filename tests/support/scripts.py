# ruff: noqa: RUF001 (some lines test characters that look like others)
"""Two hundred lines in many scripts for tokenizers: words, marks, emoji, unusual spaces, controls, empty lines."""

from __future__ import annotations

WORDS = [
    "The film was good, and the cream was better than that.",
    "It's one of those films you can't help liking, isn't it?",
    "NOT GOOD. NOT GOOD AT ALL!!!",
    "naïve café façade, déjà vu, über-schön, smörgåsbord, El Niño",
    "Łódź, Ærøskøbing, Çeşme, Đà Nẵng, straße, œuvre, İstanbul, ıslak",
    "cafe\u0301 re\u0301sume\u0301 n\u0303 a\u0308\u0323 q\u0307\u0323",
    "Η ταινία ήταν πολύ καλή· ΌΜΩΣ μεγάλη; ᾳ ᾷ Ἀθῆναι ς Σ",
    "Отличный фильм, смотреть обязательно! Ёлка, ђак, їжак, и\u0306",
    "فيلم رائع جدا، شاهدته مرتين. مُحَمَّد ﷺ لا ﻻ ١٢٣ کتاب‌خانه",
    "סרט נפלא שראיתי אתמול. שָׁלוֹם עֲלֵיכֶם 'ציטוט״",
    "बहुत अच्छी फ़िल्म है। क्षत्रिय ज्ञान १२३ र्‍क",
    "หนังเรื่องนี้สนุกมาก น้ำใจ ๑๒๓ กำ",
    "这部电影非常好看。我爱冰激凌，也爱北京！“引号”《书》",
    "素晴らしい映画だった、ありがとう！ｶﾀｶﾅ ガギグ が ㌔ ㍻",
    "정말 재미있는 영화였어요 한글 한 ㄱㄴㄷ",
    "தமிழ் திரைப்படம் மிகவும் நன்றாக இருந்தது",
    "বাংলা চলচ্চিত্র খুব ভালো ছিল ৎ ড়",
    "ქართული ფილმი; Հայերեն ֆիլմ և ﬓ; አማርኛ ፊልም",
    "Loved it 😀👍🏽 totally 🔥🔥🔥 ❤ ❤️ ☺️",
    "👨‍👩‍👧‍👦 family film 🏳️‍🌈 👩🏾‍🚀 🇩🇪🇫🇷 1️⃣ 🧑🏻‍🤝‍🧑🏿",
    "…—“quoted”—‘and’ «angled» – dashes · bullets • and ™ signs № ℃ ½ ²",
    "3.14159 + 2,718 = 5.859… (roughly 100%, or $5.86 / £4.40 / €5) 10,000, 7,",
    "https://www.example.org/films?id=42&sort=desc#top and someone@example.org",
    "for (i = 0; i < n; ++i) { total += x[i] * w[i]; }  // ``quoted'' ''twice``",
    "ＦＵＬＬ　ＷＩＤＴＨ ﬁne ﬀ ligature 𝒎𝒂𝒕𝒉 𝔘 ① Ⅳ ㈠ ＜mask＞",
]
SPECIAL = [
    "<s> the <mask> was </s> good <unk> <pad>",
    "[CLS] the [MASK] was [SEP] good [UNK] [PAD]",
    "good <mask>, <mask>.<mask> <mask>",
    "<s>NOTUSED </s>NOTUSED <unk>NOTUSED<mask>",
    "GOODNEW NEW new  NEWER (new) NEW",
    "<|endoftext|> the end <|endoftext|>",
]
EMPTY = ["", " ", "   ", "\t", "\n", "\r\n", "\u3000", "\u00a0", "\u200b", "\u2028", "\x00", "▁", "▁▁", "Ġ", " ▁ "]
ODD = [
    " begins with a space",
    "   begins with three",
    "ends with a space ",
    "ends with three   ",
    "two  spaces,   three,    four",
    "tab\tand\ttabs\t\there",
    "new\nline\n\nand\r\nreturn\r",
    "no\u00a0break\u202fnarrow\u2009thin\u2003em\u3000ideographic\u1680ogham",
    "zero\u200bwidth\u200cnon\u200djoiner\u2060word\ufeffbom soft\u00adhyphen",
    "nul\x00byte bell\x07 escape\x1b del\x7f c1\x85\x9f control",
    "right\u200fto\u202eleft\u202c marks\u2066\u2069",
    "replaced\ufffd private\ue000 unassigned\u0378 last\U0010fffd noncharacter\ufffe",
    "line\u2028separator\u2029paragraph\x0bvertical\x0cfeed",
    "\u0301 begins with an accent, a\u0301\u0301\u0301\u0301 many",
    "▁a ▁ b▁c lower one eighth block ▁▁",
    "Ġa Ċ Ġ ĠĠ letters of bytes ÿ Ā",
    "##a ##ing pieces @@ </w> a</w>",
    "a" * 150 + " is longer than any word",
    "ab" * 80,
    "😀" * 40,
    "的" * 60,
    " ".join("a" * 30),
    "'s 't 're 've 'm 'll 'd 'S n't",
    "x\u0338 ≠ ≠ ﷽ ẞ ß SS ǅ ǆ K Å",
]


def _lines() -> list[str]:
    mixed = [f"{a[: len(a) // 2]}{b[len(b) // 3 :]}" for a, b in zip(WORDS, WORDS[7:] + WORDS[:7], strict=True)]
    joined = [a.replace(" ", "") + b[:40] for a, b in zip(WORDS, [*ODD, *ODD], strict=False)]
    spaced = [f"  {a.upper()}\t {a.lower()} " for a in WORDS]
    cut = [a[3:9] + "\u3000" + a[9:20] for a in WORDS]
    swapped = [a.swapcase().replace(",", " ,") for a in WORDS]
    ends = [b + a for a, b in zip(WORDS, EMPTY, strict=False)]
    return list(dict.fromkeys([*EMPTY, *SPECIAL, *ODD, *WORDS, *mixed, *joined, *spaced, *cut, *ends, *swapped]))[:200]


LINES = _lines()
