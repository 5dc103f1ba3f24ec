"""Very short stories, poems and letters."""

from __future__ import annotations

from tamis.train.chats.draw import Draw
from tamis.train.chats.names import person

_HEROES = "fox cat dog owl bear mouse rabbit bird frog lion wolf horse duck dragon robot king queen girl boy farmer sailor cook".split()
_PLACES = "in a deep forest|in a small village|in a big city|in an old house|in a green valley|on a high mountain|by a quiet lake|on a warm island".split(
    "|"
)
_ADJECTIVES = "little clever brave old young kind quiet happy curious lonely hungry sleepy".split()
_FINDS = "a golden key|a lost letter|a red balloon|a small boat|an old map|a shiny stone|a warm blanket|a broken clock|a bag of apples|a silver sieve".split(
    "|"
)


def story(draw: Draw) -> tuple[str, str]:
    """A story of four or five sentences about a hero that the user may name."""
    hero, adjective, place, find = draw.one(_HEROES), draw.one(_ADJECTIVES), draw.one(_PLACES), draw.one(_FINDS)
    name, friend = person(draw), draw.one([h for h in _HEROES if h != hero])
    about = draw.chance(0.7)
    question = draw.say(
        "[Tell me|Write|Tell] [a|a short|a little] story"
        if not about
        else "[Tell me|Write|Tell|Can you tell me] [a|a short|a little] story about a {h}",
        h=hero,
    )
    question += "?" if question.startswith("Can") else "."
    article = "an" if adjective[0] in "aeiou" else "a"
    friend_article = "an" if friend[0] in "aeiou" else "a"
    text = draw.say(
        "[Once upon a time|Once|One day, long ago,] there was {r} {a} {h} [called|named] {n}. "
        "{n} lived {p}. [One day|One morning|One evening] {n} found {f}. "
        '["Whose is this?" asked {n}.|{n} did not know what to do with it.|{n} was very surprised.] '
        "[{n} asked {s} {o}, and together they found the owner|Then {s} {o} came by and they became friends"
        "|{n} gave it to {s} {o}, who was very happy|{n} took it home and showed it to {s} {o}]. "
        "[They lived happily ever after.|That night {n} slept well.|From that day on they were friends.|And that is the end of the story.]",
        r=article,
        a=adjective,
        h=hero,
        n=name,
        p=place,
        f=find,
        s=friend_article,
        o=friend,
    )
    return question, text


_TOPICS = "the sea|the moon|the rain|winter|summer|the night|a tree|a bird|the sun|the wind".split("|")


def poem(draw: Draw) -> tuple[str, str]:
    """Four short lines."""
    topic = draw.one(_TOPICS)
    text = draw.say(
        "[I think of|I dream of|I sing of|I look at] {t}\n[when the day is done|in the morning light|and I am glad|as the hours go by],\n"
        "[It is quiet and deep|It is gentle and bright|It is old and wise|It is near and far]\n"
        "[under the stars|like a song|like a friend|and so am I].",
        t=topic,
    )
    return draw.say("[Write|Tell me|Make] [a|a short] poem about {t}[.| please.]", t=topic), text


def letter(draw: Draw) -> tuple[str, str]:
    """A note to someone."""
    name = person(draw)
    purpose, body = draw.one(
        (
            ("to thank {n}", "Thank you very much for your help. It was kind of you."),
            (
                "to invite {n} to [dinner|a party|lunch]",
                "I would like to invite you. Please tell me whether you can come.",
            ),
            ("to say sorry to {n}", "I am sorry for what I did. I hope that we are still friends."),
            ("to wish {n} a happy birthday", "Happy birthday! I wish you a wonderful year."),
        )
    )
    return draw.say(f"Write a [short |]note {purpose}.", n=name), f"Dear {name},\n\n{body}\n\nBest wishes"
