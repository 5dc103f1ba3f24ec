"""OpenAI's API: request objects checked field by field, answers as OpenAI's JSON, streams as server-sent events."""

from __future__ import annotations
