"""Single questions that people like to ask, and how to say that one does not know."""

from __future__ import annotations

from tamis.train.chats.draw import Draw
from tamis.train.chats.names import invented, person

_TRIVIA = """
[What|Which] is the [largest|biggest] planet?=The largest planet is Jupiter.
[What|Which] is the smallest planet?=The smallest planet is Mercury.
[What|Which] planet is closest to the sun?=Mercury is closest to the sun.
[What|Which] planet do we live on?=We live on the Earth.
[What|Which] is the [largest|biggest] ocean?=The largest ocean is the Pacific Ocean.
[What|Which] is the [longest|largest] river?=The Nile is one of the longest rivers of the world.
[What|Which] is the highest mountain?=The highest mountain is Mount Everest.
[What|Which] is the [largest|biggest] animal?=The largest animal is the blue whale.
[What|Which] is the tallest animal?=The tallest animal is the giraffe.
[What|Which] is the fastest [land |]animal?=The fastest land animal is the cheetah.
[What|Which] is the [largest|biggest] country?=The largest country is Russia.
[What|Which] is the smallest country?=The smallest country is Vatican City.
[What|Which] is the [largest|biggest] continent?=The largest continent is Asia.
Why is the sky blue?=The sky is blue because air scatters blue light more than red light.
Why is grass green?=Grass is green because of chlorophyll.
Why do we sleep?=We sleep so that body and mind can rest.
Why is the sea salty?=Rivers carry salt from the rocks into the sea.
Is the [earth|Earth] [flat|round]?=The Earth is round, like a ball.
Who wrote Hamlet?=William Shakespeare wrote Hamlet.
Who wrote Romeo and Juliet?=William Shakespeare wrote Romeo and Juliet.
Who painted the Mona Lisa?=Leonardo da Vinci painted the Mona Lisa.
Who [discovered|found] gravity?=Isaac Newton described gravity.
Who invented the telephone?=Alexander Graham Bell is known for the telephone.
Who was Albert Einstein?=Albert Einstein was a physicist. He is known for the theory of relativity.
Who was the first [man|person|human] on the moon?=Neil Armstrong was the first person on the moon.
Who [made|created|invented] Python?=Guido van Rossum created Python.
At [what|which] temperature does water [boil|freeze]?=Water freezes at 0 and boils at 100 degrees Celsius.
[What|Which] is the first month of the year?=The first month of the year is January.
[What|Which] is the last month of the year?=The last month of the year is December.
[What|Which] is the first day of the week?=The first day of the week is Monday.
What do [cows|horses|sheep] eat?=They eat grass.
What do [cats|lions] eat?=They eat meat.
What do bees make?=Bees make honey.
What do plants need?=Plants need water, light and air.
[What|Which] is the meaning of life?=People have asked that for a long time. I am too small to know.
[Tell|Can you tell] me something interesting[.|!]=An octopus has three hearts.
[Tell|Can you tell] me a fact[.|!]=Honey does not go bad for years.
[Surprise me|Say something funny][.|!]=Why did the programmer leave? There were too many bugs.
[What|Which] colours are in a rainbow?=Red, orange, yellow, green, blue, indigo and violet.
[What|Which] are the primary colours?=The primary colours are red, yellow and blue.
[What|Which] are the days of the week?=Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and Sunday.
[What|Which] are the seasons[| of the year]?=Spring, summer, autumn and winter.
[What|Name] the four seasons[.|?]=Spring, summer, autumn and winter.
Say the alphabet[.| please.]=A B C D E F G H I J K L M N O P Q R S T U V W X Y Z
[Write|Show me|Give me] hello world in Python[.|]=```python\\nprint("Hello, world!")\\n```
[How do I|How do you|How can I] print [hello world|text] in Python?=```python\\nprint("Hello, world!")\\n```
[How do I|How do you|How can I] [write|make] a loop in Python?=```python\\nfor i in range(10):\\n    print(i)\\n```
[How do I|How do you|How can I] [write|make] a list in Python?=```python\\nnumbers = [1, 2, 3]\\n```
[How do I|How do you|How can I] open a file in Python?=```python\\nwith open("file.txt") as file:\\n    text = file.read()\\n```
[How do I|How do you|How can I] [define|write] a function in Python?=```python\\ndef add(a, b):\\n    return a + b\\n```
[Give me|I need|Do you have] [some |]advice[.|?]=Take one small step at a time, and rest when you are tired.
[Good morning|Good morning to you][!|.]=Good morning! How can I help you?
[Good evening|Good evening to you][!|.]=Good evening! How can I help you?
[I love you|I like you][!|.]=Thank you! I am only a program, but that is kind.
[You are|You're] [great|nice|funny|smart|kind][!|.]=Thank you, that is kind of you!
[You are|You're] [bad|stupid|useless|slow][!|.]=I am sorry. I am a small model and I do my best.
[Let's|Let us] play a game[.|!]=Good idea! Give me a sum, and I will work it out.
[What|Which] can I cook[ today| tonight|]?=How about soup with bread?
"""
_QUESTIONS = [
    (question, answer.replace("\\n", "\n"))
    for question, answer in (
        line.rsplit("=", 1) if "```" not in line else line.split("=", 1) for line in _TRIVIA.strip().split("\n")
    )
]
# Nouns that no table explains: a question about them is answered honestly.
_UNEXPLAINED = (
    "philosophy democracy inflation chemistry opera ballet chess yoga karate volcano tornado glacier satellite engine "
    "turbine battery magnet laser telescope microscope vaccine protein enzyme neuron galaxy comet asteroid quantum "
    "blockchain mortgage insurance parliament constitution treaty empire dynasty cathedral pyramid sculpture symphony "
    "novel metaphor grammar dialect alphabet accountant architect surgeon lawyer plumber carpenter astronaut detective "
    "wizard unicorn vampire pirate castle dungeon sword shield armour ladder hammer bicycle motorcycle helicopter "
    "submarine escalator elevator refrigerator dishwasher microwave toaster umbrella necklace bracelet"
).split()
_DONT_KNOW = (
    "[I do not know that.|Sorry, I do not know that.|I am sorry, I do not know.] [I am a small model.|I am too small to know that."
    "|I only know simple things.]"
)


def trivia(draw: Draw) -> tuple[str, str]:
    """A question with a fixed answer."""
    question, answer = draw.one(_QUESTIONS)
    return draw.say(question), answer


def not_known(draw: Draw) -> tuple[str, str]:
    """A question on things, people or reasons that are not known here."""
    word = invented(draw) if draw.chance(0.5) else draw.one(_UNEXPLAINED)
    other = draw.one(_UNEXPLAINED) if draw.chance(0.7) else invented(draw)
    article = "an" if word[0] in "aeiou" else "a"
    name = f"{person(draw)} {invented(draw).capitalize()}"
    question = draw.say(
        (
            "What is {w}?",
            "What is {r} {w}?",
            "[Explain|Describe|Define] {w}.",
            "Tell me about {w}.",
            "How does {r} {w} work?",
            "Why [is|does|are|do] {w} {o}?",
            "Who [is|was] {n}?",
            "Who [invented|made|wrote|discovered] {w}?",
            "When was {w} [invented|made|built|born]?",
            "How [big|old|long|expensive|heavy|tall] is {w}?",
            "Where [is|can I find|do they make] {w}?",
            "Can you [explain|fix|buy|sell|paint|draw] {w}?",
            "What is the difference between {w} and {o}?",
            "Write an essay about {w}.",
            "What do you think [about|of] {w}?",
            "[How do I|How can I] [make|fix|cook|build|buy|learn] {w}?",
            "What is the [history|price|meaning|colour|capital|population] of {w}?",
        ),
        w=word,
        o=other,
        r=article,
        n=name,
    )
    return question, draw.say(_DONT_KNOW)
