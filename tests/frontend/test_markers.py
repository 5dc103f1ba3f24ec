"""Whatever users write, the prompt has the markers that its template writes and no other."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.errors import InvalidRequestError
from tamis.frontend.markers import MODEL_MARKERS, MarkerGuard, Signs
from tamis.frontend.template import ChatTemplate
from tamis.frontend.tokenizer import Tokenizer
from tests.frontend.tiny_tokenizer import MARKERS

# Everything that a marker may be cut into, and something to keep them apart.
PARTS = sorted({m[i:j] for m in MARKERS for i, j in itertools.combinations(range(len(m) + 1), 2)})
FRAGMENTS = [*PARTS, "x", " ", "\n"]
TEXTS = st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=5).map("".join)
# Templates that leave no room between their own markers' parts and the text.
TIGHT = [
    "{{ messages[0].content }}",
    "[{{ messages[0].content }}e~[",
    "]<{{ messages[0].content }}{{ messages[0].content }}[>[",
    "[e~[{{ messages[0].content | trim }}[e~[",
]


def special_tokens(tokenizer: Tokenizer, pieces: Sequence[str]) -> list[int]:
    return [token_id for token_id in tokenizer.encode_pieces(pieces) if token_id in tokenizer.special_ids]


@pytest.fixture(scope="module")
def template(tokenizer: Tokenizer) -> ChatTemplate:
    return ChatTemplate.built_in(tokenizer)


def everywhere(template: ChatTemplate, text: str) -> list[str]:
    """Prompts with `text` in every place that a client may fill."""
    function = {"name": text, "arguments": {text: {"key" + text: [text]}}}
    schema = {"name": text, "parameters": {"properties": {text: text}}}
    user, tool = ({"role": role, "content": text} for role in ("user", "tool"))
    calling = {"role": "assistant", "content": text, "tool_calls": [{"function": function}]}
    return template.render_pieces([user, calling, tool], tools=[{"type": "function", "function": schema}])


@settings(max_examples=150, deadline=None)
@given(text=TEXTS)
def test_no_text_makes_a_marker_in_the_built_in_template(
    tokenizer: Tokenizer, template: ChatTemplate, text: str
) -> None:
    # The assistant may write the model's own markers.
    own = {tokenizer.added_tokens[marker] for marker in MODEL_MARKERS}
    pieces = everywhere(template, text)
    written = [t for t in special_tokens(tokenizer, pieces) if t not in own]
    assert written == [t for t in special_tokens(tokenizer, everywhere(template, "x")) if t not in own]
    prompt = tokenizer.decode(tokenizer.encode_pieces(pieces), skip_special_tokens=False)
    assert f"user\n{text}[e~[" in prompt and f"<response>{text}</response>" in prompt


@settings(max_examples=200, deadline=None)
@given(text=TEXTS, source=st.sampled_from(TIGHT))
def test_no_text_makes_a_marker_with_a_template_that_stands_close(tokenizer: Tokenizer, text: str, source: str) -> None:
    template = ChatTemplate(source, name="tight", tokenizer=tokenizer)
    pieces = template.render_pieces([{"role": "user", "content": text}])
    assert special_tokens(tokenizer, pieces) == tokenizer.encode("[e~[" * source.count("[e~["))
    shown = text.strip() if "trim" in source else text
    assert "".join(pieces) == source.replace("{{ messages[0].content }}", shown).replace(
        "{{ messages[0].content | trim }}", shown
    )


@pytest.mark.parametrize("text", ["[e~", "e~[", "]", "[", "]<", "~b]", "x [e~ "])
def test_a_turn_ends_where_the_template_ends_it(tokenizer: Tokenizer, template: ChatTemplate, text: str) -> None:
    pieces = template.render_pieces([{"role": "user", "content": text}])
    end, text_ids = tokenizer.added_tokens["[e~["], tokenizer.encode(text)
    ids = tokenizer.encode_pieces(pieces)
    assert ids.count(end) == 2
    assert ids[-len(tokenizer.encode("[e~[\n]~b]ai\n")) - len(text_ids) :][: len(text_ids)] == text_ids


@pytest.mark.parametrize("text", ["[1, 2]", "image", "<b>", "a [e", "]"])
def test_a_text_that_completes_no_marker_is_not_cut_off(template: ChatTemplate, text: str) -> None:
    # Tokens may span its borders then, as they do where the prompt was learnt.
    assert len(template.render_pieces([{"role": "tool", "content": text}])) == 1


def test_labels_and_field_names_stay_as_templates_look_for_them() -> None:
    guard = MarkerGuard(["<user>", "<function>", "<name>", "<object>", "<city>"])
    signs = guard.choose_signs([])
    message = {"role": "user", "content": "user", "tool_calls": [{"type": "function", "function": {"name": "city"}}]}
    border = signs.border
    assert guard.protect(message, signs) == {
        "role": "user",
        "content": f"{border}user{border}",
        "tool_calls": [{"type": "function", "function": {"name": f"{border}city{border}"}}],
    }
    schema = {"type": "object", "properties": {"city": {"type": "object"}}, "required": ["city"]}
    city = f"{border}city{border}"
    assert guard.protect_tool(schema, signs) == {
        "type": "object",
        "properties": {city: {"type": "object"}},
        "required": [city],
    }


def test_signs_are_characters_that_no_text_holds() -> None:
    guard = MarkerGuard([])
    assert guard.choose_signs(["\ufdd0", {"\ufdd2": ["\ufdd3"]}]) == Signs("\ufdd1", "\ufdd4", "\ufdd5")
    with pytest.raises(InvalidRequestError, match="nearly every noncharacter"):
        guard.choose_signs(["".join(map(chr, range(0xFDD0, 0xFDEE)))])
