"""`SamplingParams` refuses by name whatever the engine's process could not read."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from tamis.engine.sampling_params import BOOL_FIELDS, FLOAT_FIELDS, INT_FIELDS, OPTIONAL_FIELDS, SamplingParams
from tamis.errors import InvalidRequestError


def test_every_field_has_a_type_check() -> None:
    others = {"stop", "stop_token_ids", "barred_token_ids", "logit_bias"}
    assert {*INT_FIELDS, *FLOAT_FIELDS, *BOOL_FIELDS, *others} == set(SamplingParams.__struct_fields__)


@pytest.mark.parametrize(
    ("field", "value", "must_be"),
    [
        *[(field, "1", "an integer") for field in INT_FIELDS],
        *[(field, 1.0, "an integer") for field in INT_FIELDS],
        *[(field, True, "an integer") for field in INT_FIELDS],
        *[(field, None, "an integer") for field in INT_FIELDS if field not in OPTIONAL_FIELDS],
        *[(field, 2**70, "a 64-bit integer") for field in INT_FIELDS],
        *[(field, "1", "a number") for field in FLOAT_FIELDS],
        *[(field, True, "a number") for field in FLOAT_FIELDS],
        *[(field, None, "a number") for field in FLOAT_FIELDS],
        *[(field, math.nan, "from|over") for field in FLOAT_FIELDS],
        *[(field, 10**400, "from|over") for field in FLOAT_FIELDS],
        *[(field, 1, "true or false") for field in BOOL_FIELDS],
        ("stop", 5, "a string or a list of strings"),
        ("stop", [5], "a list of non-empty strings"),
        ("stop", "", "a list of non-empty strings"),
        ("stop", {"a"}, "a string or a list of strings"),
        ("stop", ["x"] * 17, "at most 16"),
        ("stop_token_ids", 5, "a list of token ids"),
        ("barred_token_ids", None, "a list of token ids"),
        ("logit_bias", [5], "a mapping"),
    ],
)
def test_a_wrong_value_is_refused_with_its_name(field: str, value: Any, must_be: str) -> None:
    with pytest.raises(InvalidRequestError, match=rf"^{field} is .* must be ({must_be})") as caught:
        SamplingParams(**{field: value})
    assert caught.value.param == field


@pytest.mark.parametrize(
    ("values", "says", "param"),
    [
        ({"stop_token_ids": [3, "a"]}, r"stop_token_ids\[1\] is 'a'", "stop_token_ids[1]"),
        ({"stop_token_ids": [True]}, r"stop_token_ids\[0\] is True", "stop_token_ids[0]"),
        ({"logit_bias": {"5": 1.0}}, "logit_bias has the key '5', but keys must be token ids", "logit_bias"),
        ({"logit_bias": {5: "1"}}, r"logit_bias\[5\] is '1'", "logit_bias[5]"),
        ({"logit_bias": {5: math.nan}}, r"logit_bias\[5\] is nan", "logit_bias[5]"),
    ],
)
def test_a_wrong_entry_is_refused_with_its_place(values: dict[str, Any], says: str, param: str) -> None:
    with pytest.raises(InvalidRequestError, match=says) as caught:
        SamplingParams(**values)
    assert caught.value.param == param


def test_one_stop_string_is_a_list_of_one() -> None:
    assert SamplingParams(stop="end").stop == ["end"]
    assert SamplingParams(stop=("a", "b")).stop == ["a", "b"]


def test_whatever_is_accepted_crosses_to_the_engine() -> None:
    params = SamplingParams(
        temperature=1,
        top_p=np.float64(0.5),
        logit_bias={3: np.float64(-1.5), 4: 2},
        stop=("a",),
        stop_token_ids=(7,),
        barred_token_ids=[9],
        seed=-(2**63),
        max_tokens=None,
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


def test_none_means_none_of_these() -> None:
    params = SamplingParams(stop=None, stop_token_ids=None, logit_bias=None)
    assert (params.stop, params.stop_token_ids, params.logit_bias) == ([], [], {})
