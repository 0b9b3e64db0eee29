"""The life of a submission as a table."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.batch.stage import AT_PROVIDER, LIVE, STEPS, Stage, Step, step
from engine.errors import IllegalTransition


@given(stage=st.sampled_from(Stage), event=st.sampled_from(Step))
def test_a_step_is_in_the_table_or_an_error(stage: Stage, event: Step) -> None:
    """There is no third way."""
    if (stage, event) in STEPS:
        assert step(stage, event) is STEPS[stage, event]
    else:
        with pytest.raises(IllegalTransition):
            step(stage, event)


def test_a_batch_is_created_from_one_stage_only_and_never_again_once_it_may_exist() -> None:
    """Nothing leads from doubt, or from a batch that exists, back to before its creation."""
    assert [stage for stage, event in STEPS if event is Step.CREATE] == [Stage.UPLOADED]
    before = {Stage.BUILDING, Stage.READY, Stage.UPLOADED, Stage.CREATING}
    may_exist = {Stage.IN_DOUBT, Stage.OPEN, Stage.ENDED, Stage.SETTLED}
    assert not [(stage, event) for (stage, event), after in STEPS.items() if stage in may_exist and after in before]


def test_what_is_over_stays_over() -> None:
    """Closed and dropped batches have no steps."""
    assert {stage for stage, _ in STEPS} == LIVE
    assert {Stage.CLOSED, Stage.DROPPED}.isdisjoint(LIVE)


def test_every_stage_can_be_reached_and_left() -> None:
    """From building to an end."""
    assert set(STEPS.values()) == set(Stage) - {Stage.BUILDING}
    assert AT_PROVIDER < LIVE
