"""Chats made by a program: what the bundled checkpoint learns to talk from. Every chat follows from its seed."""

from tamis.train.chats.dialogue import SKILLS, conversation
from tamis.train.chats.draw import Draw
from tamis.train.chats.render import Chat, Turn, render, render_prompt

__all__ = ["SKILLS", "Chat", "Draw", "Turn", "conversation", "render", "render_prompt"]
