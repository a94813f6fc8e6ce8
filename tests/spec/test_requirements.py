"""The table of requirements and the tests agree: no row without a test, no test of the doors without a row."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from cubicle.settings import Settings
from tests.spec.decisions import DECISIONS
from tests.spec.egress import EGRESS
from tests.spec.requirements import SPECIFICATION, Pending, Row

TESTS = Path(__file__).parent.parent
ROWS = SPECIFICATION + DECISIONS + EGRESS

# Tests in these files each show a sentence; what they show beyond it is listed below.
BOUND = ("mcp_api/protocol", "mcp_api/errors", "mcp_api/streaming", "mcp_api/resources", "tools/bash", "tools/files")
BOUND += (
    "mcp_api/subscriptions",
    "tools/view",
    "http_api/service",
    "clients/clients",
    "clients/conformance",
    "mcp_api/fuzz",
)  # type: ignore[assignment]
BEYOND = {
    "tools/files::a_text_in_many_pieces_is_written_and_edited_exactly",
    "tools/files::a_path_of_megabytes_is_refused_before_any_work",
    "mcp_api/protocol::notifications_are_accepted_without_an_answer",
    "mcp_api/protocol::a_notification_gets_no_answer_of_a_service_that_is_about_to_stop_either",
    "mcp_api/protocol::an_unknown_method_is_not_found",
    "mcp_api/protocol::prompts_and_completions_are_not_declared_and_empty_for_who_asks_all_the_same",
    "mcp_api/errors::bad_parameters_of_a_method_are_an_error_of_the_protocol",
    "mcp_api/errors::every_answer_carries_a_request_id",
    "mcp_api/resources::a_link_that_leads_out_is_neither_listed_nor_read",
    "mcp_api/resources::one_that_is_too_large_is_said_to_be_so",
    "mcp_api/resources::resource_templates_are_none",
    "mcp_api/streaming::a_sign_of_life_sent_as_the_tool_ends_is_the_last",
    "mcp_api/subscriptions::too_many_resources_at_once_are_refused",
    "mcp_api/subscriptions::what_was_not_asked_for_is_not_told",
    "tools/bash::a_flood_of_output_is_no_trouble",
    "tools/bash::files_stay_between_calls",
    "tools/bash::a_command_too_long_for_the_wire_is_refused_in_words",
    "tools/bash::nul_in_a_command_is_refused_in_words",
    "tools/bash::a_folder_of_megabytes_is_refused_before_any_work",
    "tools/bash::a_text_of_megabytes_is_no_number",
    "tools/files::a_path_that_is_not_absolute_is_named",
    "tools/files::a_directory_is_not_a_file",
    "tools/files::what_stands_in_the_way_of_a_path_is_said",
    "tools/files::pointless_edits_are_refused_in_words",
    "tools/files::a_missing_file_is_said",
    "tools/view::an_empty_file_says_so",
    "tools/view::a_file_is_asked_for_once_when_it_is_short",
    "tools/view::a_damaged_office_file_says_so",
    "tools/view::a_document_without_text_says_how_to_see_it",
    "tools/view::what_cannot_be_viewed_is_said",
}


@cache
def functions(name: str) -> frozenset[str]:
    """The tests of a file, by the names that rows use."""
    folder, _, stem = name.rpartition("/")
    path = TESTS / folder / f"test_{stem}.py"
    if not path.is_file():
        return frozenset()
    tree = ast.parse(path.read_text())
    found = (node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(function.removeprefix("test_") for function in found if function.startswith("test_"))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}: {row[1]}")
def test_every_row_has_its_tests_or_waits_for_an_issue(row: Row) -> None:
    _, sentence, tests = row
    assert sentence
    if isinstance(tests, Pending):
        assert tests.issue > 0
        return
    assert tests
    for test in tests:
        file, _, function = test.partition("::")
        assert function in functions(file), f"{test} is not there"


def test_every_test_of_the_apis_has_a_row() -> None:
    bound = {test for _, _, tests in ROWS if not isinstance(tests, Pending) for test in tests}
    there = {f"{file}::{function}" for file in BOUND for function in functions(file)}
    assert there - bound - BEYOND == set()
    assert BEYOND - there == set()


def test_the_defaults_are_those_of_the_decisions() -> None:
    settings = Settings(_env_file=None)  # type: ignore[call-arg]
    assert (settings.host, settings.port) == ("127.0.0.1", 8081)
    assert settings.mcp_paths == ("/mcp", "/mcp/computer_use")
    assert settings.command_timeout == 120
    assert settings.container_max_age_hours == 24
    assert settings.data_max_age_days == 30
    assert settings.max_upload_mb == 512
    assert (settings.sandbox_memory_mb, settings.sandbox_cpus, settings.sandbox_pids) == (2048, 2, 512)
    assert settings.sandbox_disk_mb == 10240
    assert settings.driver == "oci"
    assert settings.view_images == "text"
