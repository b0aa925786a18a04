"""Fields: the path of pydantic's complaints, in data of unions, dictionaries, lists and models in one another."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from penstock import fields
from penstock.fields import first_message


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Cat(Strict):
    kind: Literal["cat"]
    lives: int
    cat: tuple[int, ...] = ()


class Bird(Strict):
    kind: Literal["bird"]
    wings: tuple[int, str] = (2, "a")


class Dog(Strict):
    kind: Literal["dog", "hound"]
    bark: Literal["cat"] | None = None
    friend: Annotated[Cat | Bird, Field(discriminator="kind")] | None = None


Pet = Annotated[Cat | Dog | Bird, Field(discriminator="kind")]


class House(Strict):
    pet: Pet
    guest: Cat | Dog | None = Field(default=None, discriminator="kind")
    pets: tuple[Pet, ...] = ()
    named: dict[str, Pet] = {}
    rooms: int | Literal["many"] = 1
    door: bool | tuple[float, ...] = False
    plain: Cat | Bird | None = None
    inner: Bird | None = None


CAT = {"kind": "cat", "lives": 9}


@pytest.mark.parametrize(
    ("content", "path", "section"),
    [
        ({"pet": {"kind": "cat", "lives": "x"}}, "pet.lives", Cat),
        ({"pet": {"kind": "cat"}}, "pet.lives", Cat),
        ({"pet": {**CAT, "cat": ["x"]}}, "pet.cat.0", None),
        ({"pet": {**CAT, "dog": 1}}, "pet.dog", Cat),
        ({"pet": {"kind": "hound", "cat": 1}}, "pet.cat", Dog),
        ({"pet": {"kind": "dog", "friend": {"kind": "cat"}}}, "pet.friend.lives", Cat),
        ({"pet": {"kind": "dog", "friend": {"kind": "bird", "bird": 1}}}, "pet.friend.bird", Bird),
        ({"pet": CAT, "guest": {"kind": "dog", "dog": 1}}, "guest.dog", Dog),
        ({"pet": CAT, "pets": [CAT, {"kind": "cat"}]}, "pets.1.lives", Cat),
        ({"pet": CAT, "named": {"cat": {"kind": "cat"}}}, "named.cat.lives", Cat),
        ({"pet": CAT, "rooms": "few"}, "rooms", House),
        ({"pet": CAT, "door": ["x"]}, "door", House),
        ({"pet": CAT, "plain": {"kind": "cat", "lives": "x"}}, "plain.lives", Cat),
        ({"pet": CAT, "inner": {"kind": "bird", "wings": [1, 2]}}, "inner.wings.1", None),
        ({"pet": CAT, "inner": {"kind": "bird", "tail": 2}}, "inner.tail", Bird),
        ({"pet": CAT, "cellar": 1}, "cellar", House),
        ({"pet": 3}, "pet", House),
        ({"pet": {"kind": "cow"}}, "pet.kind", None),
    ],
)
def test_a_complaint_is_placed_by_keys_of_the_data_alone(
    content: Any, path: str, section: type[BaseModel] | None
) -> None:
    with pytest.raises(ValidationError) as caught:
        House.model_validate(content)
    found = fields.where(caught.value.errors()[0], House)
    assert (str(found), found.section) == (path, section)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"pet": {"kind": "cow"}}, "pet.kind: 'cow': must be one of 'cat', 'dog', 'hound', 'bird'"),
        ({"pet": {}}, "pet.kind: Field required"),
        ({"pet": {"kind": "cat"}}, "pet.lives: Field required"),
        (
            {"pet": CAT, "rooms": "few"},
            "rooms: 'few': Input should be a valid integer, unable to parse string as an integer; or Input should be "
            "'many'",
        ),
    ],
)
def test_the_first_message_has_the_path_the_value_and_every_branch_s_rule(content: Any, said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        House.model_validate(content)
    assert first_message(caught.value, House) == said


def test_without_the_model_the_path_is_pydantic_s() -> None:
    with pytest.raises(ValidationError) as caught:
        House.model_validate({"pet": {"kind": "cat"}})
    assert first_message(caught.value) == "pet.cat.lives: Field required"


def test_an_error_of_another_kind_says_what_it_says() -> None:
    assert first_message(ValueError("as it is"), House) == "as it is"


def test_sections_are_the_fields_that_are_models() -> None:
    assert fields.sections(House) == {"inner": Bird}
