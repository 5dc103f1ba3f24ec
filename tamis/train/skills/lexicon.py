"""Closed lists of short words. They are few and used often, so that each becomes one token of a small vocabulary."""

from __future__ import annotations

ADJECTIVES = tuple(
    """
    old new red blue green white black brown grey pink small large round flat long short dark bright quiet loud warm
    cold wet dry soft hard heavy light clean plain golden silver wooden broken hidden secret empty full open closed
    fast slow young tall narrow wide sharp smooth
    """.split()
)
NOUNS = tuple(
    """
    lamp box key book door table chair window bottle clock mirror basket bridge tower garden river mountain castle
    market station school library museum hotel kitchen office engine train ship boat plane car wagon bicycle coat
    hat ring coin drum piano violin letter map stone tree flower horse dog cat bird fish lion bear fox wolf robot
    camera phone radio candle ladder hammer wheel rope
    """.split()
)
ATTRIBUTES = tuple("code price number name weight age owner password".split())
THINGS = tuple(
    """
    apple pear plum cherry lemon grape melon banana carrot onion potato tomato bread milk cheese butter sugar salt
    rice soup table chair lamp book door window clock key box hat coat shoe ring coin cup plate spoon knife fork
    bottle basket tree stone river cloud rain snow wind sun moon star dog cat horse cow bird fish lion bear fox wolf
    mouse duck
    """.split()
)
CITIES = tuple(
    """
    Paris London Berlin Rome Madrid Vienna Lisbon Athens Oslo Dublin Prague Warsaw Cairo Delhi Tokyo Seoul Lima
    Boston Chicago Toronto
    """.split()
)
FIRST_NAMES = tuple(
    """
    Anna Ben Clara David Emma Felix Grace Hugo Ida Jack Kate Leo Mia Noah Olga Paul Rosa Sam Tina Victor Zoe Adam
    Bella Carl Dora Eric Fiona George Helen Ivan Julia Kevin Laura Max Nina Oscar Peter Ruth Simon Tom
    """.split()
)
JOBS = tuple("teacher doctor baker farmer pilot nurse driver singer painter writer lawyer cook".split())
COLOURS = tuple("red blue green yellow black white brown grey orange pink purple".split())
DAYS = tuple("Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split())
EVENTS = tuple("meeting party concert lesson dinner lunch match talk walk visit".split())
