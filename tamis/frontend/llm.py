"""`LLM`: the engine in this process, synchronous, with vLLM's offline interface."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeAlias

from tamis.config import BUNDLED_MODEL, EngineConfig
from tamis.engine.core import EngineCore
from tamis.engine.messages import EngineInfo
from tamis.engine.plan import Runner
from tamis.engine.sampling_params import SamplingParams
from tamis.errors import InvalidRequestError, UnavailableError
from tamis.frontend.engine_args import build_config
from tamis.frontend.model_path import resolve_model
from tamis.frontend.outputs import CompletionOutput, RequestOutput
from tamis.frontend.progress import ProgressReport, no_progress
from tamis.frontend.sequence import Sequence as TextSequence
from tamis.frontend.sequence import TextDelta, build_sequences
from tamis.frontend.text_side import load_text_side
from tamis.frontend.tokenizer import Tokenizer

Message: TypeAlias = Mapping[str, Any]
# Text, token ids, or vLLM's {"prompt": …} and {"prompt_token_ids": …}.
Prompt: TypeAlias = str | list[int] | Mapping[str, Any]
Load: TypeAlias = Callable[[EngineConfig, Callable[[str, int], None]], tuple[Runner, EngineInfo]]


class LLM:
    """A loaded model. Not thread-safe: one caller at a time. Use it in a `with` block, or call `shutdown`.

    Args:
        model: the bundled model ("nano"), a folder or a hub id.
        progress: show loading and generation progress on stderr.
        load: what makes the runner; the package's own loader when None.
        engine_args: fields of `EngineConfig`.

    Attributes:
        config: the engine's, with `model` resolved to a folder.
        info: limits of the loaded engine.
        tokenizer, template: of the model.
        sampling_defaults: `SamplingParams` fields that the checkpoint recommends.

    Raises:
        ConfigError: an argument that is unknown or cannot be honoured.
        CheckpointError: a model that cannot be loaded.
    """

    def __init__(
        self, model: str = BUNDLED_MODEL, *, progress: bool = False, load: Load | None = None, **engine_args: Any
    ) -> None:
        config = build_config({"model": model, **engine_args})
        folder = resolve_model(config.model, weights=config.load_format != "dummy")
        text = load_text_side(config, folder)
        self.name = config.served_model_name or config.model
        # A batch of any size is this caller's own queue: there is nobody to be refused in favour of.
        self.config = config.replace(model=str(folder), max_queued_requests=sys.maxsize)
        self.tokenizer = text.tokenizer
        self.template = text.template
        self.sampling_defaults = text.sampling_defaults
        self._progress = progress
        self._ids = itertools.count()
        if load is None:
            from tamis.runner import load_engine  # torch, which is not paid for until a model is loaded

            load = load_engine
        with ProgressReport() if progress else contextlib.nullcontext(no_progress) as report:
            runner, self.info = load(self.config, report)
        self.tokenizer.check_fits(self.info.vocab_size)
        self._engine: EngineCore | None = EngineCore(self.config, runner, self.info)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> list[RequestOutput]:
        """Complete prompts, all in one batch, and return them in order.

        Args:
            prompts: one prompt or several. A list of integers is one prompt of token ids. Special tokens in text
                are parsed.
            sampling_params: for all, or one for each; the checkpoint's defaults when None.
            priority: lower runs first when the policy is "priority".
            cache_salt: prefix blocks are shared only between requests of equal salt.

        Raises:
            InvalidRequestError: a prompt or parameter that cannot be served; nothing has run then.
            TamisError: what the engine failed with; the rest is aborted.
        """
        parsed = [self._parse(prompt) for prompt in _as_prompts(prompts)]
        return self._complete(parsed, sampling_params, priority=priority, cache_salt=cache_salt)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or several, given as OpenAI messages; otherwise as `generate`.

        Args:
            messages: a list of messages, or a list of such lists.
            sampling_params: for all, or one for each.
            tools: OpenAI tool definitions, shown to the model; calls come back as text.
            chat_template_kwargs: further variables of the template, `thinking_mode` for instance.
            add_generation_prompt: open the model's turn at the end.
            continue_final_message: continue the last message instead, which is the assistant's.
            priority, cache_salt: as in `generate`.
        """
        several = bool(messages) and not isinstance(messages[0], Mapping)
        conversations: Sequence[Any] = messages if several else [messages]
        parsed: list[tuple[str | None, list[int]]] = []
        for conversation in conversations:
            pieces = self.template.render_pieces(
                conversation,
                tools=tools,
                template_kwargs=chat_template_kwargs,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
            )
            parsed.append(("".join(pieces), self.tokenizer.encode_pieces(pieces)))
        return self._complete(parsed, sampling_params, priority=priority, cache_salt=cache_salt)

    def stream(self, prompt_token_ids: list[int], sampling_params: SamplingParams) -> Generator[TextDelta]:
        """Yield the deltas of one prompt's completions as they come. Closing the iterator aborts them."""
        sequences = self._sequences(str(next(self._ids)), prompt_token_ids, sampling_params)
        with contextlib.closing(self._run(sequences)) as deltas:
            for _, delta in deltas:
                yield delta

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """`SamplingParams` with what the checkpoint's generation_config.json recommends."""
        return SamplingParams(**self.sampling_defaults)

    def shutdown(self) -> None:
        """Free the model; calling it again does nothing."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.shutdown()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def _parse(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        """Text (None for token ids) and token ids of a prompt."""
        if isinstance(prompt, Mapping):
            given = {key: value for key, value in prompt.items() if key in ("prompt", "prompt_token_ids")}
            if len(given) != 1 or len(prompt) != 1:
                raise InvalidRequestError(
                    f"A prompt has the keys {sorted(prompt)}, but must have prompt or prompt_token_ids.",
                    param="prompts",
                )
            (prompt,) = given.values()
        if isinstance(prompt, str):
            return prompt, self.tokenizer.encode(prompt, add_special_tokens=True)
        if isinstance(prompt, list) and all(type(token_id) is int for token_id in prompt):
            return None, prompt
        raise InvalidRequestError(f"A prompt is {prompt!r}, but must be text or a list of token ids.", param="prompts")

    def _complete(
        self,
        parsed: list[tuple[str | None, list[int]]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        **routing: Any,
    ) -> list[RequestOutput]:
        outputs: list[RequestOutput] = []
        sequences: list[TextSequence] = []
        owners: dict[str, RequestOutput] = {}
        for (text, ids), sampling in zip(parsed, self._samplings(sampling_params, len(parsed)), strict=True):
            request_id = str(next(self._ids))
            children = self._sequences(request_id, ids, sampling, **routing)
            completions = [CompletionOutput(child.index) for child in children]
            output = RequestOutput(request_id, text, ids, completions)
            outputs.append(output)
            sequences += children
            owners |= {child.request.request_id: output for child in children}
        done = 0
        with contextlib.ExitStack() as stack:
            report = stack.enter_context(ProgressReport()) if self._progress and sequences else no_progress
            deltas = stack.enter_context(contextlib.closing(self._run(sequences)))
            for sequence, delta in deltas:
                owners[sequence.request.request_id].add(delta)
                if delta.finish_reason is not None:
                    done += 1
                    report("generating", 100 * done // len(sequences))
        return outputs

    def _samplings(
        self, sampling_params: SamplingParams | Sequence[SamplingParams] | None, count: int
    ) -> Sequence[SamplingParams]:
        if sampling_params is None:
            return [self.get_default_sampling_params()] * count
        if isinstance(sampling_params, SamplingParams):
            return [sampling_params] * count
        if len(sampling_params) != count:
            raise InvalidRequestError(
                f"There are {len(sampling_params)} sampling_params for {count} prompts.",
                param="sampling_params",
                hint="Give one for all, or one for each.",
            )
        return sampling_params

    def _sequences(
        self, request_id: str, ids: list[int], sampling: SamplingParams, **routing: Any
    ) -> list[TextSequence]:
        return build_sequences(
            ids, sampling, request_id=request_id, tokenizer=self.tokenizer, info=self.info, **routing
        )

    def _run(self, sequences: list[TextSequence]) -> Generator[tuple[TextSequence, TextDelta]]:
        """Run sequences to their ends; leaving early aborts what still runs."""
        engine = self._engine
        if engine is None:
            raise UnavailableError("This LLM has been shut down.", hint="Make a new one.")
        waiting = iter(sequences)
        live: dict[str, TextSequence] = {}
        try:
            while True:
                # Never more than the engine's queue takes, however many prompts there are.
                for sequence in itertools.islice(waiting, self.config.max_queued_requests - len(live)):
                    engine.add_request(sequence.request)
                    live[sequence.request.request_id] = sequence
                if not live:
                    return
                for delta in engine.step():
                    current = live.get(delta.request_id)
                    if current is None:
                        continue  # ended by a stop string meanwhile
                    text_delta = current.consume(delta)
                    if current.finished:
                        del live[delta.request_id]
                        if delta.finish_reason is None:
                            engine.abort([delta.request_id])
                    yield current, text_delta
        finally:
            if live:
                engine.abort(list(live))
                _drain(engine)


def _drain(engine: EngineCore) -> None:
    """Let aborted requests leave the engine, so that the next call finds it empty."""
    while engine.has_unfinished():
        engine.step()


def _as_prompts(prompts: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    ids = [item for item in prompts if isinstance(item, int)]
    several = [item for item in prompts if not isinstance(item, int)]
    if ids and several:
        raise InvalidRequestError("prompts mixes token ids and whole prompts.", param="prompts")
    return [ids] if ids else several
