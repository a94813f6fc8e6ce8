"""Every sentence of the specification and of its decisions that can be tested, bound to the tests that show it.

A row is (where it stands, what it says, tests). A test is `file::function` under tests/, without `test_` and `.py`:
`mcp_api/protocol::every_version_of_the_handshake_is_negotiated` is
`tests/mcp_api/test_protocol.py::test_every_version_of_the_handshake_is_negotiated`. A row that waits for a part that is
not built yet has `pending(issue)` in place of tests.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pending:
    issue: int


def pending(issue: int) -> Pending:
    return Pending(issue)


Row = tuple[str, str, "tuple[str, ...] | Pending"]

P, R, S, F = "mcp_api/protocol::", "mcp_api/errors::", "mcp_api/streaming::", "mcp_api/resources::"
B, W, V = "tools/bash::", "tools/files::", "tools/view::"
C, H = "clients/clients::", "http_api/"

SPECIFICATION: list[Row] = [
    # 1. What the service does
    (
        "1",
        "Any MCP client can connect over Streamable HTTP",
        (C + "the_python_sdk", C + "the_typescript_sdk", C + "the_inspector"),
    ),
    ("1", "One sandbox per chat identifier", (P + "two_chats_have_two_sandboxes_and_letter_case_counts",)),
    ("1", "It exposes five tools", (P + "the_five_tools_are_listed_with_the_schemas_of_the_specification",)),
    ("1", "Uploaded files are MCP resources", (F + "uploads_are_listed_with_uri_name_and_type",)),
    (
        "1",
        "A per-chat system prompt in the instructions of initialize",
        (P + "initialize_answers_with_all_that_the_specification_names",),
    ),
    (
        "1",
        "The same text is in /home/assistant/README.md",
        (
            "prompt/provision::skills_and_readme_are_there_before_the_first_command_and_read_only",
            "prompt/provision::a_readme_that_a_command_took_away_is_back_within_a_minute",
            "http_api/visits::readme_and_skills_are_there_at_the_first_use_by_hand",
        ),
    ),
    ("1", "The prompt is not exposed through prompts/get", (P + "the_prompt_is_not_a_prompt_of_the_protocol",)),
    (
        "1",
        "Tool output streams as server-sent events on the same response",
        (S + "output_comes_as_progress_while_the_command_runs",),
    ),
    # 2. Resources and their fields
    ("2.1", "The session is identified by X-Chat-Id", (P + "two_chats_have_two_sandboxes_and_letter_case_counts",)),
    (
        "2.1",
        "initialize returns Mcp-Session-Id, a UUID, echoed later",
        (P + "initialize_mints_a_session_id_and_later_answers_echo_it",),
    ),
    (
        "2.2",
        "X-User-Email is in the log, with the tenant: in every line of a request or a chat",
        (
            R + "every_line_of_the_log_has_the_chat_the_request_the_tenant_and_the_user",
            "http_api/auth::the_log_names_tenant_and_user_of_every_request",
            "log::what_outlives_a_request_names_the_chat_and_who_used_it_last",
        ),
    ),
    (
        "2.2",
        "X-User-Email and X-User-Name (URL-encoded), X-MCP-Servers (commas)",
        ("core/caller::person_and_servers_are_read",),
    ),
    ("2.2", "Accept must include both types", (R + "both_types_must_be_named_in_accept",)),
    ("2.2", "Content-Type is application/json", (R + "refusals_come_in_their_order",)),
    (
        "2.3",
        "uri, name and mimeType of an uploaded file; the path is one encoded segment",
        (
            F + "uploads_are_listed_with_uri_name_and_type",
            F + "files_of_one_name_in_two_folders_are_told_apart_by_their_titles",
            F + "a_long_list_comes_in_parts",
            F + "names_that_are_no_text_are_listed_with_marks_in_their_place",
            "core/small_rules::a_resource_uri_is_read_back_as_it_was_written",
        ),
    ),
    (
        "2.3",
        "The chat is inside the URI because some clients do not resend X-Chat-Id on resource calls",
        (
            F + "a_caller_that_names_no_chat_reads_the_file_that_the_uri_names",
            F + "another_chats_file_is_as_unknown_as_one_that_is_not_there",
        ),
    ),
    (
        "2.3",
        "resources/read: text for text types, blob otherwise",
        (F + "text_is_read_as_text_and_the_rest_as_base64",),
    ),
    # 3. States and transitions
    ("3", "First use of a chat makes its sandbox", ("sandbox/fleet::first_calls_at_once_start_one_sandbox",)),
    (
        "3",
        "An upload is visible to resources/list as soon as the POST returns",
        (H + "chat/uploads::an_upload_is_in_the_sandbox_and_in_the_list_when_the_answer_comes",),
    ),
    ("3", "An open terminal WebSocket keeps the sandbox up", ("browser/terminal::an_open_terminal_is_a_lease",)),
    (
        "3",
        "An idle sandbox is stopped after CONTAINER_MAX_AGE_HOURS",
        ("sandbox/fleet::an_idle_sandbox_is_stopped_and_wakes_with_its_files",),
    ),
    (
        "3",
        "start-ttyd starts the terminal server lazily",
        ("browser/terminal::start_answers_once_the_terminal_takes_connections",),
    ),
    (
        "3",
        "The terminal session survives disconnects",
        ("browser/terminal::what_runs_in_the_terminal_survives_a_disconnect",),
    ),
    (
        "3",
        "A coding agent is seen live and taken over in that session, and survives disconnects of all kinds",
        (
            "agents/survival::a_person_sees_the_run_in_the_terminal",
            "agents/survival::a_person_can_take_the_session_over",
            "agents/survival::a_run_goes_on_when_its_caller_is_gone_and_tells_whoever_resumes",
            "agents/survival::a_killed_service_finds_the_run_again",
        ),
    ),
    # 4.1 Isolation
    ("4.1", "The five rows of SINGLE_USER_MODE", (R + "the_rows_of_the_isolation_table",)),
    (
        "4.1",
        "Without a chat id a warning is appended to every tool response",
        (R + "the_warning_is_on_every_tools_answer_failed_ones_too",),
    ),
    # 4.2 Methods
    (
        "4.2",
        "initialize: protocolVersion, capabilities with tools and resources, serverInfo, instructions",
        (P + "initialize_answers_with_all_that_the_specification_names",),
    ),
    (
        "4.2",
        "instructions are rendered fresh on each request",
        ("http_api/auth::the_instructions_are_rendered_fresh_for_each_initialize",),
    ),
    (
        "4.2",
        "tools/list: five tools with name, description, inputSchema",
        (P + "the_five_tools_are_listed_with_the_schemas_of_the_specification",),
    ),
    (
        "4.2",
        "tools/call: content of text blocks and isError",
        (P + "a_command_runs_on_every_path", S + "a_sub_agent_answers_like_any_tool"),
    ),
    (
        "4.2",
        "resources/list is scoped by X-Chat-Id",
        (
            F + "each_chat_is_told_of_its_own_files_only",
            F + "another_chats_file_is_as_unknown_as_one_that_is_not_there",
        ),
    ),
    (
        "4.2",
        "resources/read of text types and of the rest",
        (F + "text_is_read_as_text_and_the_rest_as_base64", "core/small_rules::types_go_by_name"),
    ),
    # 4.3 Tools
    ("4.3", "bash_tool streams stdout and stderr", (S + "output_comes_as_progress_while_the_command_runs",)),
    (
        "4.3",
        "Semantic exit codes: grep 1 is not an error",
        (B + "what_a_command_answers", "tools/exit_codes::exit_1_of_these_is_an_answer_and_2_is_not"),
    ),
    (
        "4.3",
        "bash_tool cwd",
        (B + "a_working_directory_is_used_under_both_names", B + "a_missing_working_directory_is_said"),
    ),
    ("4.3", "bash_tool timeout overrides COMMAND_TIMEOUT", (B + "the_usual_time_limit_is_the_setting",)),
    ("4.3", "bash_tool: command and description are required", (B + "a_missing_argument_is_named",)),
    (
        "4.3",
        "view: text with line numbers",
        (V + "text_comes_with_its_line_numbers", "tools/line_numbers::every_line_has_its_own_number"),
    ),
    ("4.3", "view: binary as base64", (V + "binary_files_come_as_base64_bounded",)),
    (
        "4.3",
        "view: images as an auto-resized thumbnail",
        (V + "a_small_image_comes_as_it_is", V + "a_large_image_comes_as_a_thumbnail_or_says_why_not"),
    ),
    (
        "4.3",
        "view_range: start and end, 1-indexed, inclusive",
        (
            V + "text_comes_with_its_line_numbers",
            "tools/line_numbers::a_range_shows_exactly_its_lines_or_says_how_many_there_are",
        ),
    ),
    ("4.3", "create_file makes missing directories", (W + "a_file_is_created_with_its_folders_then_overwritten",)),
    (
        "4.3",
        "str_replace replaces a single occurrence",
        (W + "one_occurrence_is_replaced", W + "replacing_agrees_with_python"),
    ),
    (
        "4.3",
        "str_replace fails on zero matches or several",
        (W + "no_occurrence_and_several_are_refused_and_change_nothing",),
    ),
    (
        "4.3",
        "sub_agent launches a coding agent in the sandbox",
        (
            "agents/claude::tools_work_in_the_sandbox_and_progress_is_told",
            "agents/others::it_answers_uses_tools_fails_and_resumes",
        ),
    ),
    (
        "4.3",
        "Servers named in X-MCP-Servers are passed to it",
        ("agents/walls::an_mcp_server_is_passed_on_and_used_without_its_credential",),
    ),
    (
        "4.3",
        "resume_session_id resumes a prior agent session",
        ("agents/claude::resuming_goes_on_with_the_new_prompt",),
    ),
    (
        "4.3",
        "model resolves through a per-alias variable",
        ("agents/claude::an_alias_stands_for_the_model_that_the_settings_name",),
    ),
    # 4.4 Plain HTTP endpoints
    (
        "4.4",
        "GET /system-prompt: plain text, X-Public-Base-URL, resolution rules 1 and 2",
        (H + "chat/prompt_and_skills::which_chat_a_prompt_is_for", H + "chat/prompt_and_skills::whose_prompt_it_is"),
    ),
    (
        "4.4",
        "The prompt includes skills, file URLs, mount paths and identity",
        ("prompt/system_prompt::it_says_what_a_model_needs",),
    ),
    (
        "4.4",
        "The prompt is cached for 60 seconds per pair",
        ("prompt/system_prompt::within_a_minute_a_pair_gets_the_same_text",),
    ),
    ("4.4", "GET /skill-list", (H + "chat/prompt_and_skills::the_skill_list_as_json_and_as_text",)),
    ("4.4", "GET /skill-mounts", (H + "chat/prompt_and_skills::skill_mounts_name_places_in_the_sandbox_only",)),
    ("4.4", "GET /mcp-info: tools, headers, endpoint", ("http_api/service::mcp_info_says_how_to_connect",)),
    ("4.4", "GET /health: one field, healthy", ("http_api/service::health_is_one_field_and_needs_no_key",)),
    (
        "4.4",
        "POST /api/uploads saves raw bytes",
        (H + "chat/uploads::an_upload_is_in_the_sandbox_and_in_the_list_when_the_answer_comes",),
    ),
    ("4.4", "GET /files returns the file", (H + "chat/files::a_file_carries_type_size_version_and_a_wall",)),
    (
        "4.4",
        "GET /preview returns a preview",
        ("http_api/pages/pages::the_page_learns_its_chat_file_capability_and_whether_it_is_embedded",),
    ),
    (
        "4.4",
        "GET /files/<chat>/archive returns a zip",
        (H + "chat/hostile::the_archive_holds_what_is_good_and_says_what_is_not",),
    ),
    ("4.4", "GET /browser status and json", ("browser/browser::every_address_leads_through_the_service",)),
    ("4.4", "WS /browser devtools", ("browser/browser::both_sockets_and_the_bare_one",)),
    (
        "4.4",
        "Terminal status, start-ttyd, WebSocket",
        (
            "browser/terminal::start_answers_once_the_terminal_takes_connections",
            "browser/terminal::a_person_types_and_sees_the_output",
        ),
    ),
    (
        "4.4",
        "Terminal sessions, processes, kill",
        (
            "browser/agents::sessions_are_listed_newest_first_and_read_page_by_page",
            "browser/agents::only_coding_agents_are_listed_and_killed",
            "agents/others::it_answers_uses_tools_fails_and_resumes",
        ),
    ),
    # 5. Authentication
    ("5", "A missing or wrong bearer key yields 401", (R + "a_missing_or_wrong_key_is_refused",)),
    ("5", "The right key is let in", (R + "the_right_key_is_let_in_whatever_the_case_of_its_scheme",)),
    ("5", "Without MCP_API_KEY there is no authentication", (R + "without_a_key_nobody_is_asked",)),
    (
        "5",
        "A managed deployment has one key per customer",
        (R + "a_key_of_one_tenant_does_not_open_the_chats_of_another",),
    ),
    ("5", "/system-prompt takes the same bearer header", (H + "chat/prompt_and_skills::the_key_is_asked_for",)),
    # 6. Events
    ("6", "Progress as server-sent events", (S + "output_comes_as_progress_while_the_command_runs",)),
    (
        "6",
        "A heartbeat every 15 seconds",
        (S + "the_heartbeat_comes_at_15_and_30_seconds", S + "a_silent_command_gives_signs_of_life"),
    ),
    # 7. Errors
    ("7.1", "401, 400, 415 as HTTP errors", (R + "refusals_come_in_their_order",)),
    (
        "7.1",
        "500 as an HTTP error, as long as the answer has not begun",
        (
            R + "a_failure_outside_of_the_protocol_is_a_500_without_a_word_of_it",
            "mcp_api/faults::an_unforeseen_error_of_a_method_is_a_500",
            "mcp_api/faults::instructions_that_cannot_be_made_are_a_500",
            "mcp_api/faults::a_tool_that_outlives_its_caller_fails_like_the_others",
            "mcp_api/faults::an_answer_that_has_begun_ends_with_the_error",
        ),
    ),
    (
        "7.1",
        "The reason of an HTTP error reaches the people behind a client",
        (C + "the_python_sdk_shows_why_it_was_refused", C + "the_typescript_sdks_show_why_they_were_refused"),
    ),
    ("7.2", "A command that exits non-zero is isError with its output", (B + "what_a_command_answers",)),
    ("7.2", "A time-out is isError", (B + "a_command_that_takes_too_long_is_ended_and_its_output_kept",)),
    ("7.2", "A path outside the roots is isError", (W + "a_path_outside_of_the_allowed_folders_is_refused",)),
    ("7.2", "old_str not unique is isError", (W + "no_occurrence_and_several_are_refused_and_change_nothing",)),
    # 8. Limits
    (
        "8",
        "COMMAND_TIMEOUT, 120 seconds unless set",
        (B + "the_usual_time_limit_is_the_setting", "spec/requirements::the_defaults_are_those_of_the_decisions"),
    ),
    (
        "8",
        "Output cap: first 15,000 plus last 15,000 characters",
        (B + "output_over_the_cap_keeps_both_ends", "tools/output::the_cap_is_30000_characters_in_two_halves"),
    ),
    (
        "8",
        "SUB_AGENT_MAX_TURNS, overridable by max_turns",
        ("agents/claude::the_run_stops_at_its_most_turns_and_can_go_on",),
    ),
    # 9. Versioning
    (
        "9",
        "The version is negotiated in initialize; 2024-11-05 works",
        (P + "every_version_of_the_handshake_is_negotiated",),
    ),
    ("9", "serverInfo.version is a string", (P + "initialize_answers_with_all_that_the_specification_names",)),
]
