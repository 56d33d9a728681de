"""The search for the texts of control tokens finds the longest at each place, in texts of any size."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from npformer.text.control_texts import ControlTexts

FEW = st.text("ab<[^-]\\", max_size=5)


@given(st.lists(FEW), st.text("ab<[^-]\\", max_size=30))
def test_the_texts_are_those_of_a_regular_expression(texts: list[str], text: str) -> None:
    longest_first = sorted(set(texts) - {""}, key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
    control = ControlTexts(texts)
    assert list(control.spans(text)) == [found.span() for found in pattern.finditer(text)]
    assert control.replaced(text, lambda found: f"({found})") == pattern.sub(lambda found: f"({found[0]})", text)


class Counted(str):
    """A text that counts its comparisons with other texts."""

    count = 0

    def __gt__(self, other: str) -> bool:
        Counted.count += 1
        return str.__gt__(self, other)


def test_few_of_thousands_of_tokens_are_compared_at_each_character() -> None:
    """Gemma has 6,242 tokens such as <unused0>. A regular expression would try all of them at each character. For a
    long text of "<", this would take minutes, during which a server answers no other request.
    """
    control = ControlTexts(map(Counted, [f"<unused{i}>" for i in range(6242)]))
    text = "<" * 10_000 + "<unused6241>" + "<unused" * 1000
    Counted.count = 0
    assert list(control.spans(text)) == [(10_000, 10_012)]
    assert 0 < Counted.count <= 13 * 11_001
