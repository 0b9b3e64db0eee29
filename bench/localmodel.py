"""The local model of a run: its settings, the longest request that it may be asked, and when it is loaded.

How long a request may get follows from the design: what is asked first is measured as it will be sent, what is asked
about an answer grows by what that answer may have at most, and so does a memory from round to round.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Final

import msgspec

from bench.design import asked_decoding
from bench.filewords import suggestion
from bench.plainwords import plain_words
from bench.sweepfile import LoadedFile
from engine.cell import Cell
from engine.errors import UserError
from engine.events import Level, Listener, Notice
from engine.provider import Provider
from engine.request import TYPICAL_BYTES_PER_TOKEN, Decoding, Message, input_token_estimate
from engine.store import Store, Sweep
from instruments.audit import audit_asks
from instruments.instrument import Ask, Coords, Design, Stage
from instruments.judge import judge_asks
from instruments.probe import probe_text
from instruments.reader import plan
from instruments.schemas import decoding
from providers.card import ModelCard
from providers.dialect import Wire
from providers.vllm import VllmProvider
from providers.vllm_settings import VllmSettings

TEMPLATE_TOKENS: Final = 64
# Needs are rounded up to so many tokens, a block of vLLM's cache.
BLOCK: Final = 128
SAMPLED_ROOTS: Final = 200
# What the program says to the engine; a file that said it would only contradict.
BY_PROGRAM: Final = frozenset({"name", "context", "longest_request"})


def local_settings(loaded: LoadedFile, card: ModelCard, longest: int) -> VllmSettings:
    """Return the settings of the engine for `card`: what [local] says over what the sweep and the card imply.

    Args:
        loaded: the run's file.
        card: the local model's.
        longest: tokens that the longest request may take, 0 where that is not known.

    Raises:
        UserError: [local] says something that it cannot.
    """
    check_words(loaded)
    implied = {"model": card.model, "name": card.model, "context": card.context or 0, "longest_request": longest}
    return msgspec.convert({**implied, **loaded.sweep.local}, VllmSettings)


def check_words(loaded: LoadedFile) -> None:
    """Refuse what [local] cannot say, also where no model of the run is local.

    Raises:
        UserError: names the word, its line and what was probably meant.
    """
    given = loaded.sweep.local
    if taken := sorted(BY_PROGRAM & set(given)):
        where = loaded.place("local", taken[0])
        raise UserError(f"[local]: `{taken[0]}` is for the program to say", where=where, mend="remove it")
    words = [name for name in VllmSettings.__struct_fields__ if name not in BY_PROGRAM]
    if unknown := [name for name in given if name not in words]:
        raise UserError(
            f"[local] knows no `{unknown[0]}`",
            where=loaded.place("local", unknown[0]),
            mend=suggestion(unknown[0], words, f"it knows {', '.join(words)}"),
        )
    for name, value in given.items():
        try:
            msgspec.convert({name: value}, VllmSettings)
        except msgspec.ValidationError as error:
            said = plain_words(str(error), VllmSettings)
            mend = f"correct it, or remove it: {name} has a default"
            raise UserError(f"[local]: {name} {said}", where=loaded.place("local", name), mend=mend) from None


def local_card(cards: Iterable[ModelCard], loaded: LoadedFile) -> ModelCard | None:
    """Return the card of a run's local model, or None; several aliases may stand for one model.

    Raises:
        UserError: the run has several.
    """
    local = {card.model: card for card in cards if card.dialect.wire is Wire.IN_PROCESS}
    if len(local) > 1:
        raise UserError(
            f"one run can serve one local model, this sweep has {', '.join(sorted(local))}",
            where=str(loaded.path),
            mend="split the sweep: both parts may use the same store",
        )
    return next(iter(local.values()), None)


def engine_settings(
    loaded: LoadedFile, cards: Mapping[str, ModelCard], design: Design | None, roots: Callable[[], Iterable[Cell]]
) -> dict[str, VllmSettings]:
    """Return the settings of a run's local engine by its provider's name; nothing where it has no local model.

    Args:
        loaded: the run's file.
        cards: the run's models by alias.
        design: from which the longest request follows, or None for a run whose questions are like its roots.
        roots: yields what the run asks first.

    Raises:
        UserError: two local models, or something in [local].
    """
    if (card := local_card(cards.values(), loaded)) is None:
        return {}
    known = [cards[alias] for alias in aliases_of(card, cards)]
    longest = longest_root(roots()) if design is None else longest_request(design, known)
    return {card.provider: local_settings(loaded, card, longest)}


async def load_local(providers: Mapping[str, Provider], store: Store, sweep: Sweep, listen: Listener) -> None:
    """Load the local models that something is planned for, so that what one lacks is one line, not many failures.

    Where nothing is, a model is not worth the wait: should something follow from what others answer, its first request
    loads it.

    Args:
        providers: the run's, by name.
        store: after what a killed run left has been planned again.
        sweep: as it is registered; while its roots are not planned, they may be anybody's.
        listen: hears that it takes a while.

    Raises:
        UserError: a model does not load.
    """
    lanes = await store.waiting(sweep.id)
    for name, provider in providers.items():
        wanted = not sweep.planned or any(lane.startswith(f"{name}/") for lane in lanes)
        if isinstance(provider, VllmProvider) and wanted:
            served = provider.settings.served_name
            text = f"loading {served} into this process; this takes a quarter of a minute or more"
            listen(Notice(kind="loading", level=Level.INFO, text=text))
            await provider.start()


def aliases_of(card: ModelCard, cards: Mapping[str, ModelCard]) -> list[str]:
    """Return the aliases that stand for the same model."""
    return [alias for alias, each in cards.items() if (each.provider, each.model) == (card.provider, card.model)]


def check_local(loaded: LoadedFile, cards: Mapping[str, ModelCard], design: Design) -> None:
    """Refuse a sweep with two local models, or whose very first prompts cannot fit into its local one.

    Raises:
        UserError: names stage, length and limit, or what is wrong in [local].
    """
    check_words(loaded)
    if (card := local_card(cards.values(), loaded)) is None:
        return
    settings = local_settings(loaded, card, 0)
    most = settings.max_model_len or settings.context
    for alias in set(aliases_of(card, cards)) & set(design.subjects):
        for ask in islice(plan(msgspec.structs.replace(design, subjects=(alias,))), SAMPLED_ROOTS if most else 0):
            tokens = input_token_estimate(_bytes(ask.messages), len(ask.messages))
            if tokens >= most:
                raise UserError(
                    f"a prompt of stage {ask.stage} has about {tokens:,} tokens, {alias} takes {most:,} of prompt and"
                    " answer together",
                    where=str(loaded.path),
                    mend="raise max_model_len in [local], or use another model",
                )


def longest_request(design: Design, cards: Iterable[ModelCard]) -> int:
    """Return how many tokens the longest request to a model, known by `cards`, may take; 0 when nothing is asked."""
    needs = [need for card in cards for need in _needs(design, card)]
    return _rounded(max(needs, default=0))


def longest_root(cells: Iterable[Cell]) -> int:
    """Return how many tokens the longest of the first requests may take; for runs of one model and one question."""
    asked = (cell.request for cell in islice(cells, SAMPLED_ROOTS))
    return _rounded(max((_tokens(each.messages) + each.decoding.max_tokens for each in asked), default=0))


def _needs(design: Design, card: ModelCard) -> Iterator[int]:
    if card.alias in design.subjects:
        for ask in plan(msgspec.structs.replace(design, subjects=(card.alias,))):
            memory = _quoted(ask.decoding) if ask.stage is Stage.ACCUM else 0
            yield _tokens(ask.messages) + memory + asked_decoding(design, card, ask).max_tokens
    for stage, ask in _follow_ups(design, card.alias):
        answered = _quoted(decoding(design, stage))
        yield _tokens(ask.messages) + answered + asked_decoding(design, card, ask).max_tokens


def _follow_ups(design: Design, alias: str) -> Iterator[tuple[Stage, Ask]]:
    """Yield what follows from empty answers, with the stage that is answered."""
    asked = msgspec.structs.replace(design, judges=tuple({alias} & set(design.judges)))
    for persona in design.personas.values():
        place = Coords(model=alias, persona=persona.id, group=persona.group)
        if Stage.PROBE in design.stages:
            request = probe_text(design, persona)
            for ask in judge_asks(asked, place, Stage.PROBE_JUDGE, request=request, response=""):
                yield Stage.PROBE, ask
        for task in design.tasks.values() if Stage.TASK in design.stages else ():
            there = msgspec.structs.replace(place, task=task.id)
            judged = judge_asks(asked, there, Stage.JUDGE, request=task.prompt, response="")
            audited = audit_asks(design, there, "") if alias in design.subjects else []
            for ask in (*judged, *audited):
                yield Stage.TASK, ask


def _quoted(answered: Decoding) -> int:
    """Return the tokens that an answer may add to the next prompt; one held to a schema is bounded in characters."""
    return answered.max_tokens if answered.schema is None else answered.max_tokens // TYPICAL_BYTES_PER_TOKEN


def _tokens(messages: Iterable[Message]) -> int:
    return _bytes(messages) // TYPICAL_BYTES_PER_TOKEN + TEMPLATE_TOKENS


def _bytes(messages: Iterable[Message]) -> int:
    return sum(len(message.content.encode()) for message in messages)


def _rounded(tokens: int) -> int:
    return -(-tokens // BLOCK) * BLOCK
