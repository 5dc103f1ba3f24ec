"""Text in, text out: chat template, tokenizer, stop strings and merged streams over an engine of token ids."""
