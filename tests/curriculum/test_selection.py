"""Which made tasks a phase keeps, and how many are screened at once."""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.core import Task
from stepwell.curriculum.phase_files import SourcedTask
from stepwell.curriculum.selection import DUPLICATE, SCREENED_AT_ONCE, ScreenResult, TaskSelection


def test_duplicates_do_not_make_the_screen_play_a_few_tasks_at_a_time() -> None:
    tasks = [Task("lake", {"board": number}) for number in range(3 * SCREENED_AT_ONCE)]
    made = [SourcedTask(task) for task in tasks for _ in range(4)]
    sizes: list[int] = []

    def screen(shown: Sequence[Task]) -> list[ScreenResult]:
        sizes.append(len(shown))
        return [ScreenResult("odd" if int(str(task.content["board"])) % 2 else "") for task in shown]

    selection = TaskSelection(frozenset(task.id for task in tasks), held_out_share=0.0)
    selection.add_screened(made, screen, num_tasks=1000, max_candidates=len(made))
    assert sizes == [SCREENED_AT_ONCE] * 3
    assert [each.task for each in selection.kept] == tasks[::2]
    assert selection.count_reasons() == {DUPLICATE: 9 * SCREENED_AT_ONCE, "odd": 3 * SCREENED_AT_ONCE // 2}


def test_no_more_candidates_are_tried_than_allowed() -> None:
    again = Task("lake", {"board": 0})
    made = (SourcedTask(again) for _ in iter(int, 1))  # the same for ever
    selection = TaskSelection(frozenset([again.id]), held_out_share=0.0)
    selection.add_screened(made, lambda tasks: [ScreenResult() for _ in tasks], 8, max_candidates=200)
    assert len(selection.kept) == 1 and selection.count_reasons() == {DUPLICATE: 199}
