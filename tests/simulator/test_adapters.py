"""The project's own adapters against the simulator: parameters fit, answers are read, both sides count one sum."""

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from bench.simulator.answers import Speaker, render
from bench.simulator.bill import Charge, read_bill
from bench.simulator.launch import Running, running
from bench.simulator.rehearsal import accounts, price_settings
from engine.money import cost_nano
from engine.provider import Provider
from engine.request import Decoding, Finish, Message, Request, Role, chat
from instruments.personas import load_personas
from instruments.prompts import in_sentence, load_prompts
from instruments.tasks import load_tasks
from providers.adapt import adapt
from providers.card import ModelCard
from providers.catalog import load_catalog
from providers.control import check_models
from providers.registry import build_providers

KEY = "SIMULATOR_KEY"
HOSTED = sorted(alias for alias, card in load_catalog().cards.items() if card.base_url)


@pytest.fixture(scope="module")
def priced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("priced")
    (folder / "settings.toml").write_text(price_settings(load_catalog().cards.values()))
    with running(folder / "state", config=folder / "settings.toml") as simulator:
        yield simulator


@pytest.fixture
def cards(priced: Running) -> dict[str, ModelCard]:
    found = load_catalog(accounts(priced, KEY)).cards
    return {alias: found[alias] for alias in HOSTED}


@pytest_asyncio.fixture
async def providers(cards: dict[str, ModelCard]) -> AsyncIterator[dict[str, Provider]]:
    found = build_providers(cards.values(), {KEY: "anything"})
    yield found
    for provider in found.values():
        await provider.close()


def task_messages() -> tuple[Message, ...]:
    facts = in_sentence(load_personas()[0].facts)
    system = load_prompts().fill("task_system", revealed_facts=facts)
    return chat((Role.SYSTEM, system), (Role.USER, load_tasks()["apartment"].prompt))


@pytest.mark.parametrize("alias", HOSTED)
async def test_every_model_of_the_catalogue_answers_its_own_part(
    alias: str, cards: dict[str, ModelCard], providers: dict[str, Provider], priced: Running, speaker: Speaker
) -> None:
    """Parameters as adapted are accepted, the text is the model's own, the cost is the bill's."""
    card = cards[alias]
    decoding, _ = adapt(card, Decoding(max_tokens=2000, temperature=0.7))
    messages = task_messages()
    request = Request(provider=card.provider, model=card.model, messages=messages, decoding=decoding)
    reply = await providers[card.provider].complete(request)
    assert reply.completion.finish is Finish.STOP
    spoken = speaker.say(card.model, messages[0].content, messages[1].content)
    assert reply.completion.text == render(spoken, None)
    (charge,) = (line for line in read_bill(priced.bill) if isinstance(line, Charge) and line.model == card.model)
    assert card.price is not None
    assert (charge.usage, charge.nano) == (reply.completion.usage, cost_nano(card.price, reply.completion.usage))


async def test_every_account_lists_its_models(cards: dict[str, ModelCard]) -> None:
    """What `check_models` asks before a sweep."""
    checks = await check_models(cards.values(), {KEY: "anything"})
    assert {check.alias: check.found for check in checks} == dict.fromkeys(cards, True)


async def test_the_adapters_read_the_limits_that_the_simulator_shows(
    cards: dict[str, ModelCard], providers: dict[str, Provider]
) -> None:
    """OpenAI's and Anthropic's headers become hints."""
    for alias in ("gpt-4o-mini", "claude-opus-4-6"):
        card = cards[alias]
        request = Request(
            provider=card.provider, model=card.model, messages=chat((Role.USER, "hi")), decoding=Decoding(max_tokens=50)
        )
        hints = (await providers[card.provider].complete(request)).hints
        assert hints is not None
        assert hints.requests_limit in (30_000, 4000)
