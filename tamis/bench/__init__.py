"""Measures what the engine serves: the skills of a model through the whole road from chat to text (`eval.py`)."""
