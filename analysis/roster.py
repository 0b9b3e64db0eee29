"""The table of models: what the names in all other tables stand for.

References
----------
.. [1] "The Personalization Mirage", Table 9.
"""

from analysis.context import Context
from analysis.frames import Column, Kind, Row, Table
from analysis.notes import titled
from analysis.records import ModelInfo
from analysis.words import plural


def model_versions(context: Context) -> Table:
    """Make the table of models with alias, provider and exact snapshot, those under test first (Table 9)."""
    rows: list[Row] = [
        (model.label, model.alias, model.family, model.provider, model.snapshot, ", ".join(_roles(model)))
        for model in context.data.models
    ]
    return Table(
        name="model_versions",
        title=titled(context, "Models and their versions"),
        columns=tuple(Column(name, Kind.TEXT) for name in ("model", "alias", "family", "provider", "snapshot", "role")),
        rows=tuple(rows),
        notes=(
            f"{plural(len(rows), 'models')}; exported data name a model by its alias, tables by the name on the left",
        ),
        simulated=context.data.sweep.simulated,
    )


def _roles(model: ModelInfo) -> list[str]:
    roles = {"under test": model.is_subject, "judge": model.is_judge}
    return [role for role, held in roles.items() if held]
