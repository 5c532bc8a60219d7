"""Which test proves which scenario about people. A renamed or deleted test is noticed here."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SCENARIOS: dict[str, tuple[str, ...]] = {
    "1: an import without `people`: the first live message recalls the history, and forgetting leaves no word": (
        "e2e/test_moving_in.py::test_the_first_message_continues_the_chat_and_recalls_older_ones",
    ),
    "2: equal ids on two platforms are two people, also at a memory service": (
        "e2e/test_moving_in.py::test_equal_ids_on_two_platforms_are_two_people",
        "hermes/test_import_people.py::test_an_alias_for_one_id_does_not_join_two_people",
    ),
    "3: an imported IRC nick has no rights of a person with that name": (
        "e2e/test_moving_in.py::test_an_imported_nick_has_no_rights_of_a_person_with_that_name",
        "engine/test_people.py::test_no_way_to_read_a_person_shows_what_the_nick_said_before_the_link",
    ),
    "4: memory files are for their owner alone; without one they are left out": (
        "e2e/test_moving_in.py::test_a_memory_file_is_for_its_owner_alone",
        "hermes/test_import_people.py::test_the_only_person_of_chats_and_allow_lists_is_the_owner",
        "hermes/test_import_people.py::test_a_wrong_owner_is_corrected_by_another_import",
    ),
    "5: what a service knows under a bare id is recalled, and new messages go there": (
        "e2e/test_moving_in.py::test_what_the_service_knows_is_recalled_and_the_next_message_goes_there",
        "memories/honcho/test_peers.py::test_what_hermes_agent_stored_under_a_bare_id_is_found",
        "engine/test_peers.py::test_an_ambiguous_bare_id_has_no_effect_and_is_reported",
    ),
    "6: a person who is configured after weeks finds everything, and nothing is rewritten": (
        "e2e/test_people.py::test_a_person_who_is_configured_after_weeks_finds_everything",
        "engine/test_people.py::test_a_link_applies_to_what_was_said_before_and_rewrites_nothing",
    ),
    "7: an unlink takes it back at once, and a second link restores it": (
        "engine/test_people.py::test_an_unlink_takes_it_back_at_once_and_a_second_link_restores_it",
        "engine/test_people.py::test_an_unlink_ends_a_running_turn",
    ),
    "8: an alias that is edited in an outage or during a call applies to later messages only": (
        "engine/test_peers.py::test_an_alias_that_is_edited_in_an_outage",
        "engine/test_peers.py::test_an_edit_while_a_batch_is_in_flight_does_not_change_it",
    ),
    "9: a rekeying that dies at any point moves each item once": (
        "engine/test_rekey.py::test_a_death_at_every_call_of_the_memory",
        "engine/test_rekey.py::test_a_death_at_every_commit",
    ),
    "10: no canary crosses between people with any plug-in": (
        "hermes/memory/test_two_people.py::test_a_bundled_plugin_keeps_two_people_apart_or_serves_one",
        "e2e/test_canaries.py::test_a_link_and_its_end_show_no_canary_with_plugins",
        "e2e/test_canaries.py::test_no_order_of_events_shows_a_canary_with_any_service",
    ),
    "11: a leaking plug-in refuses the second person, turns go on, and `status` names it": (
        "e2e/test_people.py::test_a_leaking_plugin_refuses_the_second_person_and_turns_go_on",
        "hermes/memory/test_isolation.py::test_a_leaking_plugin_serves_only_the_owner_and_says_so",
    ),
    "12: a forwarded command is not run, a forwarded claim is no fact, and a forward alone cannot act": (
        "e2e/test_provenance.py::test_a_forwarded_command_is_not_run",
        "e2e/test_provenance.py::test_a_forward_alone_is_answered_and_cannot_act",
        "engine/test_provenance.py::test_a_forwarded_claim_is_noted_as_material",
    ),
    "13: a quote names its author, and no line can pose as a speaker": (
        "e2e/test_provenance.py::test_a_quoted_reply_names_its_author_and_nobody_can_be_imitated",
        "core/test_provenance.py::test_no_text_and_no_name_makes_a_line_that_begins_like_a_speaker",
    ),
    "14: a group sees no private title, and never continues a private session": (
        "engine/test_roles.py::test_sessions_in_a_group_shows_no_private_title",
        "engine/test_roles.py::test_a_private_session_is_never_continued_in_a_group",
        "engine/test_roles.py::test_ones_own_group_session_continues_in_a_direct_chat_as_a_branch",
    ),
    "15: a stranger in a shared group is refused what the table says, with a reason": (
        "engine/test_roles.py::test_every_cell_of_the_table_of_commands_holds",
        "engine/test_roles.py::test_every_cell_of_the_table_of_tools_holds",
        "engine/test_roles.py::test_a_person_in_a_shared_group_takes_back_own_notes_and_an_owner_all",
    ),
    "16: a role that is revoked between accept and run does not count": (
        "engine/test_roles.py::test_a_command_is_refused_if_the_role_was_revoked_before_it_runs",
        "engine/test_roles.py::test_a_turn_is_refused_if_its_sender_lost_access_before_it_runs",
        "engine/test_roles.py::test_a_background_task_is_refused_if_its_sender_lost_access_before_it_runs",
    ),
}
"""Tests of roles of credentials and of erasure are beside those parts."""


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_scenario_has_its_tests(scenario: str) -> None:
    for test in SCENARIOS[scenario]:
        file, _, name = test.partition("::")
        tree = ast.parse((Path(__file__).parent / file).read_text())
        found = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        assert name in found, f"{test} is gone: {scenario}"
