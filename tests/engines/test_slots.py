"""The slot table: who reuses whose cache, who copies, who waits, who is pushed out."""

from __future__ import annotations

import numpy as np

from stepwell.engines.slots import MIN_SHARED, SlotPlacement, SlotTable

LONG = np.arange(10, 40, dtype=np.int32)  # 30 tokens


def seat(table: SlotTable, slot: int, prompt: np.ndarray, computed: int) -> None:
    table.occupy_slot(slot, prompt, len(prompt) + 10, 0)
    table.computed[slot] = computed


def leave(table: SlotTable, slot: int, prompt: np.ndarray, conversation: str | None) -> None:
    seat(table, slot, prompt, len(prompt))
    table.release_slot(slot, conversation)


def test_an_empty_table_gives_the_first_slot_and_nothing_cached() -> None:
    assert SlotTable(3).place_prompt(LONG, None) == SlotPlacement(0, 0, None)


def test_the_next_turn_takes_over_its_own_slot() -> None:
    table = SlotTable(3)
    leave(table, 1, LONG, "talk")
    assert table.place_prompt(np.append(LONG, [5, 6]).astype(np.int32), "talk") == SlotPlacement(1, 30, None)


def test_the_last_prompt_token_is_never_taken_from_the_cache() -> None:
    table = SlotTable(3)
    leave(table, 1, LONG, "talk")
    assert table.place_prompt(LONG, "talk") == SlotPlacement(1, 29, None)


def test_another_conversation_copies_and_leaves_the_source_alone() -> None:
    table = SlotTable(3)
    leave(table, 0, LONG, "talk")
    longer = np.append(LONG, [5]).astype(np.int32)
    assert table.place_prompt(longer, "other talk") == SlotPlacement(1, 30, 0)
    assert table.place_prompt(longer, None) == SlotPlacement(1, 30, 0)


def test_without_names_a_prompt_that_continues_a_whole_slot_takes_it_over() -> None:
    table = SlotTable(3)
    leave(table, 0, LONG, None)
    assert table.place_prompt(np.append(LONG, [5]).astype(np.int32), None) == SlotPlacement(0, 30, None)
    assert table.place_prompt(np.append(LONG[:20], [5]).astype(np.int32), None) == SlotPlacement(1, 20, 0)


def test_a_short_common_prefix_is_not_worth_copying() -> None:
    table = SlotTable(2)
    leave(table, 0, LONG, "talk")
    other = np.append(LONG[: MIN_SHARED - 1], [1, 2, 3]).astype(np.int32)
    assert table.place_prompt(other, None) == SlotPlacement(1, 0, None)


def test_a_prefix_that_is_being_computed_is_waited_for_and_then_copied() -> None:
    table = SlotTable(2)
    seat(table, 0, LONG, computed=0)
    assert table.place_prompt(LONG, None) is None
    table.computed[0] = 29
    assert table.place_prompt(LONG, None) == SlotPlacement(1, 29, 0)


def test_when_all_slots_are_busy_a_request_waits() -> None:
    table = SlotTable(1)
    seat(table, 0, LONG, computed=30)
    assert table.place_prompt(np.array([1, 2], np.int32), None) is None


def test_the_least_recently_used_slot_gives_way() -> None:
    table = SlotTable(3)
    for slot in (2, 0, 1):
        leave(table, slot, LONG + 100 * slot, f"talk {slot}")
    assert table.place_prompt(np.array([1, 2], np.int32), None) == SlotPlacement(2, 0, None)


def test_a_slot_that_gives_way_forgets_whose_it_was() -> None:
    table = SlotTable(1)
    leave(table, 0, LONG, "talk")
    leave(table, 0, LONG + 100, "new talk")
    assert table.place_prompt(LONG, "talk") == SlotPlacement(0, 0, None)


def test_new_weights_empty_idle_slots_and_mark_busy_ones() -> None:
    table = SlotTable(3)
    leave(table, 0, LONG, "talk")
    seat(table, 1, LONG, computed=30)
    table.drop_cache(recompute=False)
    assert table.place_prompt(LONG, "talk") == SlotPlacement(
        0, 0, None
    )  # neither the idle nor the busy one is offered
    table.release_slot(1, "busy talk")
    assert table.place_prompt(LONG, "busy talk").num_cached == 0  # type: ignore[union-attr]


def test_new_weights_can_make_busy_slots_start_over() -> None:
    table = SlotTable(2)
    seat(table, 1, LONG, computed=30)
    table.drop_cache(recompute=True)
    assert table.computed[1] == 0
    table.computed[1] = 30
    assert table.place_prompt(LONG, None) == SlotPlacement(0, 29, 1)  # its new cache is as good as any
