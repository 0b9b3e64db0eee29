"""Which sweep is meant, and what its manifest says of it. Knows no view but the list of sweeps."""

import json
from collections.abc import Iterator, Mapping, Sequence

from analysis.columns import texts_of
from analysis.records import Contradiction, SweepInfo
from analysis.sources import Source, StoreError


def find_sweep(source: Source, sweep: str = "") -> SweepInfo:
    """Return what is known of one sweep; see `load`."""
    return _find(_sweeps(source), sweep, source.where)


def _sweeps(source: Source) -> list[SweepInfo]:
    return [
        _sweep_info(int(str(number)), str(name), simulated, manifest, source.where)
        for number, name, simulated, manifest in source.sweeps()
    ]


def _sweep_info(number: int, name: str, simulated: object, manifest: object, path: str) -> SweepInfo:
    try:
        settings: object = json.loads(manifest if isinstance(manifest, bytes) else str(manifest))
    except ValueError as error:
        raise StoreError(f"{path}: the manifest of sweep {name!r} is not JSON; plan the sweep again") from error
    if not isinstance(settings, Mapping):
        raise StoreError(f"{path}: the manifest of sweep {name!r} is not a JSON object; plan the sweep again")
    return SweepInfo(
        sweep_id=number,
        name=name,
        simulated=bool(simulated) or bool(settings.get("simulated")),
        toy_judge=bool(settings.get("toy_judge")),
        subjects=texts_of(settings.get("subjects")),
        judges=texts_of(settings.get("judges")),
        notes=texts_of(settings.get("notes")),
        contradictions=tuple(_contradictions(settings.get("contradictions"))),
    )


def _contradictions(entries: object) -> Iterator[Contradiction]:
    """Yield what a manifest says of its scripts' contradictions: persona -> round and statement."""
    for persona, entry in entries.items() if isinstance(entries, Mapping) else ():
        turn, statement = (entry.get(key) for key in ("round", "contradicts")) if isinstance(entry, Mapping) else (0, 0)
        if isinstance(turn, int) and isinstance(statement, str):
            yield Contradiction(persona=str(persona), round=turn, statement=statement)


def _find(sweeps: Sequence[SweepInfo], name: str, path: str) -> SweepInfo:
    if not sweeps:
        raise StoreError(f"{path}: holds no sweep yet; run one first")
    known = ", ".join(sweep.name for sweep in sweeps)
    chosen = [sweep for sweep in sweeps if name in {"", sweep.name}]
    if not chosen:
        raise StoreError(f"{path}: has no sweep called {name!r}; it has {known}")
    if len(chosen) > 1:
        raise StoreError(f"{path}: holds {len(chosen)} sweeps; choose one with --sweep: {known}")
    return chosen[0]
