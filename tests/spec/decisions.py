"""The decisions where the specification is silent, row by row as in requirements.py."""

from __future__ import annotations

from tests.spec.requirements import B, C, F, P, R, Row, S, V, W

DECISIONS: list[Row] = [
    # Contradictions settled
    (
        "images",
        "An image is one line and a data: URI in text; VIEW_IMAGES=blocks gives a block",
        (V + "a_small_image_comes_as_it_is",),
    ),
    # MCP
    ("mcp", "Every path of MCP_PATHS answers", (P + "a_command_runs_on_every_path",)),
    (
        "mcp",
        "Handshake versions 2024-11-05 to 2025-11-25",
        (
            P + "every_version_of_the_handshake_is_negotiated",
            P + "an_unknown_version_is_answered_with_the_latest_of_the_handshake",
        ),
    ),
    (
        "mcp",
        "2026-07-28 on the same address, with instructions in server/discover",
        (
            P + "the_newer_era_discovers_and_calls",
            P + "the_newer_era_has_no_session_id",
            R + "an_unknown_version_is_refused_with_the_versions_there_are",
        ),
    ),
    (
        "mcp",
        "The official conformance suite passes but for fixtures",
        (
            "clients/conformance::nothing_fails_but_what_needs_fixtures",
            "clients/conformance::every_expected_failure_names_a_fixture_of_the_suite",
        ),
    ),
    ("mcp", "No state hangs on a session id", (P + "a_session_id_of_before_a_restart_is_good",)),
    (
        "mcp",
        "DELETE ends a session: 204, later 404",
        (
            P + "a_deleted_session_is_gone",
            P + "delete_without_a_session_says_what_is_missing",
            R + "one_tenant_cannot_end_the_mcp_session_of_another",
        ),
    ),
    ("mcp", "GET is 405", (P + "only_post_and_delete_are_methods",)),
    ("mcp", "Order of refusals", (R + "refusals_come_in_their_order",)),
    ("mcp", "Accept: both named, in any order, */* does not count", (R + "both_types_must_be_named_in_accept",)),
    ("mcp", "Bad JSON is 400/-32700; what is no message is refused", (R + "what_is_no_message_is_refused",)),
    (
        "mcp",
        "A body over 64 MB is 413",
        (
            R + "a_declared_body_over_the_limit_is_refused_unread",
            R + "a_streamed_body_over_the_limit_is_refused",
            R + "a_large_body_within_the_limit_is_taken",
        ),
    ),
    (
        "mcp",
        "Changes of a chat's uploads reach those who listen to this chat, and nobody else",
        (
            "mcp_api/subscriptions::an_upload_a_replacement_and_a_deletion_are_told",
            "mcp_api/subscriptions::nobody_hears_of_another_chat_or_of_another_tenant",
            "mcp_api/subscriptions::the_python_sdk_listens",
        ),
    ),
    (
        "mcp",
        "listChanged is offered only where it is delivered",
        ("mcp_api/subscriptions::each_era_says_what_it_can_tell",),
    ),
    (
        "mcp",
        "Listening streams are bounded, and end with their client or the service",
        (
            "mcp_api/subscriptions::streams_are_counted_and_one_that_was_left_is_free_again",
            "mcp_api/subscriptions::one_tenant_cannot_take_all_streams",
            "mcp_api/subscriptions::the_end_of_the_service_ends_the_streams",
        ),
    ),
    (
        "mcp",
        "Output goes out in batches of 100 ms",
        (
            S + "output_is_gathered_into_batches",
            S + "the_first_output_does_not_wait_for_the_distance_between_batches",
        ),
    ),
    (
        "mcp",
        "With a token as progress, else as log messages",
        (S + "output_comes_as_progress_while_the_command_runs", S + "without_a_token_output_comes_as_log_messages"),
    ),
    ("mcp", "In 2026-07-28 only with a token", (S + "in_the_newer_era_output_comes_only_with_a_token",)),
    (
        "mcp",
        "Heartbeat: progress where there is a token, always a comment line",
        (S + "a_silent_command_gives_signs_of_life",),
    ),
    (
        "mcp",
        "notifications/cancelled ends the command within a second",
        (S + "a_cancelled_command_is_gone_within_a_second",),
    ),
    (
        "mcp",
        "A cancel that fits more than one running call ends none of them",
        (
            S + "a_cancellation_that_fits_two_calls_ends_neither",
            S + "a_cancellation_that_may_mean_a_list_does_not_end_a_command",
        ),
    ),
    (
        "mcp",
        "Only a tool's call may be large, and none of mere structure",
        (R + "a_body_of_mere_structure_is_refused_before_it_is_built", R + "only_a_tool_call_may_be_large"),
    ),
    (
        "mcp",
        "Resources of a stopped sandbox are an error that says why it is down",
        ("mcp_api/faults::resources_of_a_stopped_sandbox_say_so_and_a_call_says_why_it_does_not_start",),
    ),
    (
        "mcp",
        "A client that disconnects ends its command within a second",
        (
            S + "a_client_that_hangs_up_ends_its_command_within_a_second",
            S + "in_the_newer_era_hanging_up_ends_the_command_too",
        ),
    ),
    (
        "mcp",
        "A sub_agent goes on when the client disconnects, and ends when cancelled",
        (
            S + "a_sub_agent_goes_on_when_the_client_hangs_up",
            S + "a_sub_agent_ends_when_it_is_cancelled",
            "agents/survival::a_run_goes_on_when_its_caller_is_gone_and_tells_whoever_resumes",
            "agents/claude::a_cancelled_call_ends_the_agent",
        ),
    ),
    ("mcp", "Unknown tool: -32602", (P + "an_unknown_tool_is_an_error_of_the_protocol",)),
    (
        "mcp",
        "Bad arguments: isError that names the argument",
        (
            P + "a_bad_argument_is_named_in_an_error_of_the_tool",
            W + "a_missing_argument_is_named",
            B + "a_time_limit_out_of_range_is_named",
        ),
    ),
    (
        "mcp",
        "Unknown resource: -32002, -32602 in the newer era; another chat's likewise",
        (F + "another_chats_file_is_as_unknown_as_one_that_is_not_there",),
    ),
    (
        "mcp",
        "Argument aliases",
        (
            W + "a_file_is_created_with_its_folders_then_overwritten",
            B + "a_working_directory_is_used_under_both_names",
            P + "sub_agent_without_an_agent_says_what_to_do",
        ),
    ),
    # Who is calling
    (
        "caller",
        "Header aliases, first that has a value",
        (
            R + "front_ends_own_headers_name_the_chat",
            "core/caller::the_first_name_that_has_a_value_wins",
            "core/caller::person_and_servers_are_read",
        ),
    ),
    (
        "caller",
        "Values are trimmed; empty and {{...}} are absent",
        (
            P + "blanks_around_a_chat_id_make_no_second_sandbox",
            "core/caller::empty_values_and_unfilled_templates_are_absent",
        ),
    ),
    (
        "caller",
        "What is no chat id is 400",
        (
            R + "what_is_no_chat_id_is_refused",
            "core/caller::a_chat_id_is_taken_exactly_when_it_has_the_right_characters",
        ),
    ),
    (
        "caller",
        "Names come from a digest of tenant and chat id",
        ("core/caller::digests_differ_exactly_when_chats_do",),
    ),
    ("caller", "Letter case makes two chats", (P + "two_chats_have_two_sandboxes_and_letter_case_counts",)),
    # Access
    (
        "access",
        "Every route but /health needs the key",
        (
            "http_api/service::health_is_one_field_and_needs_no_key",
            "http_api/service::mcp_info_needs_the_key_and_knows_the_mode_and_the_public_address",
        ),
    ),
    (
        "access",
        "A signed link opens its chat and nothing else, and leaves a cookie",
        (
            "http_api/chat/prompt_and_skills::the_link_in_a_prompt_opens_this_chat_and_nothing_else",
            "http_api/chat/prompt_and_skills::a_signed_visit_leaves_a_cookie_for_the_next_click",
        ),
    ),
    (
        "access",
        "Unknown hosts are refused when a list is set",
        (
            R + "an_unknown_host_is_refused_when_hosts_are_named",
            R + "without_a_key_a_loopback_service_answers_to_this_machine_alone",
        ),
    ),
    ("access", "WebSockets check the same, and their Origin", ("browser/terminal::foreign_pages_get_no_terminal",)),
    ("access", "A tenant never sees another's chats", (R + "a_key_of_one_tenant_does_not_open_the_chats_of_another",)),
    (
        "access",
        "Keys that are short or have blanks, and tenants with the operator's name, stop the start",
        (
            "core/caller::a_key_that_is_short_or_has_blanks_is_refused_wherever_it_stands",
            "core/caller::no_tenant_takes_the_operators_name",
            "cli/running::keys_that_cannot_be_used_stop_the_start",
        ),
    ),
    (
        "access",
        "The isolation report opens to the operator alone, by key or signed in",
        ("http_api/auth::the_isolation_report_opens_to_the_operator_alone",),
    ),
    (
        "access",
        "A chat's egress allowance outlives the service",
        (
            "egress/quota::a_restart_forgives_nothing_before_the_day_is_over",
            "egress/quota::a_killed_service_has_written_what_was_used",
        ),
    ),
    (
        "defaults",
        "A chat is removed with everything of it, its budget and allowance too",
        ("http_api/auth::nothing_is_left_of_a_chat_that_was_removed",),
    ),
    # HTTP answers
    (
        "http",
        "Errors are problem+json without stack, path or secret",
        (
            "http_api/service::unknown_addresses_and_methods_are_problems",
            "core/small_rules::a_problem_has_the_four_fields",
            R + "a_failure_of_the_service_shows_nothing_of_its_inside",
        ),
    ),
    ("http", "GET /mcp-info has its six fields", ("http_api/service::mcp_info_says_how_to_connect",)),
    (
        "http",
        "Uploads: multipart too, whole or not at all, limits, sub-folders",
        (
            "http_api/chat/uploads::a_form_with_a_file_is_taken_as_it_streams",
            "http_api/chat/uploads::over_the_limit_is_refused_and_nothing_is_kept",
            "http_api/chat/uploads::an_upload_that_breaks_off_leaves_nothing",
            "http_api/chat/uploads::an_encoded_slash_is_a_folder_too",
            "http_api/chat/traversal::uploads_refuse_it",
        ),
    ),
    (
        "http",
        "Uploads can be listed and deleted",
        (
            "http_api/chat/uploads::delete_removes_and_says_when_there_is_nothing",
            "http_api/chat/uploads::an_upload_is_listed_however_many_lie_there",
            "http_api/chat/uploads::a_list_that_is_cut_says_so",
        ),
    ),
    (
        "http",
        "Files: outputs, uploads, workspace; ranges; walls; listings",
        (
            "http_api/chat/files::outputs_come_first_then_uploads_then_the_workspace",
            "http_api/chat/files::a_root_is_named_whatever_lies_in_the_others",
            "http_api/chat/files::ranges",
            "http_api/chat/files::what_a_browser_could_run_has_no_rights",
            "http_api/chat/files::the_listing_of_the_top_has_all_three_roots",
            "http_api/chat/files::a_folder_that_cannot_be_read_is_not_there_and_hides_nothing_else",
            "http_api/chat/files::a_listing_says_when_there_is_more_than_it_holds",
        ),
    ),
    ("http", "Close codes 4401, 4404, 4503", ("browser/terminal::close_codes_and_bad_chat_ids",)),
    (
        "http",
        "A chat without a sandbox: reading creates nothing",
        (
            F + "a_chat_without_a_sandbox_has_no_resources_and_gets_no_sandbox",
            "http_api/chat/files::a_chat_without_a_sandbox_is_empty_and_stays_so",
            "browser/terminal::chats_without_a_sandbox_get_none_from_being_looked_at",
        ),
    ),
    # Tools
    ("tools", "Home, user and default directory", (B + "what_a_command_answers",)),
    (
        "tools",
        "Allowed roots, links resolved first",
        (
            W + "a_path_outside_of_the_allowed_folders_is_refused",
            W + "a_link_does_not_lead_out",
            W + "skills_and_uploads_can_be_seen_but_not_written",
        ),
    ),
    (
        "tools",
        "Output and errors interleaved in the order written; [exit code N] last",
        (B + "what_a_command_answers",),
    ),
    (
        "tools",
        "Judged on the last command of the last pipeline",
        (
            "tools/exit_codes::the_last_command_is_found_or_said_to_be_unclear",
            "tools/exit_codes::find_with_output_is_an_answer_and_without_is_not",
        ),
    ),
    (
        "tools",
        "A time-out keeps what was printed and says so",
        (B + "a_command_that_takes_too_long_is_ended_and_its_output_kept",),
    ),
    (
        "tools",
        "timeout is 1 to 86,400",
        (B + "a_time_limit_out_of_range_is_named", B + "a_time_limit_within_its_range_is_taken"),
    ),
    (
        "tools",
        "The cap counts characters and splits none",
        (
            B + "the_cap_counts_characters_and_splits_none",
            "tools/output::decoding_does_not_depend_on_where_the_bytes_are_cut",
        ),
    ),
    (
        "tools",
        "A command in the background does not hold the answer",
        (B + "a_command_in_the_background_does_not_hold_the_answer",),
    ),
    (
        "tools",
        "view_range -1 is the end; out of range says how many lines",
        (
            V + "an_empty_file_has_no_line_to_ask_for",
            V + "a_range_that_the_file_has_not_is_an_error_with_the_number_of_lines",
        ),
    ),
    (
        "tools",
        "A directory: two levels, sizes, no dot-files",
        (V + "a_directory_is_a_tree_of_two_levels_with_sizes_and_without_dot_files",),
    ),
    (
        "tools",
        "view over the cap is as bash",
        (V + "a_long_file_is_capped_and_its_end_numbered", "tools/line_numbers::the_cap_is_that_of_the_numbered_text"),
    ),
    (
        "tools",
        "PDF, docx, xlsx, pptx as text",
        (
            V + "office_files_come_as_their_text",
            V + "a_sheet_shows_dates_as_dates_and_formulas_that_were_never_calculated",
            V + "a_formula_that_cells_share_is_shown_as_it_reads_in_each",
            V + "a_sheet_that_counts_from_1904_shows_its_own_dates",
            V + "a_pdf_comes_as_its_text_or_says_what_is_missing",
        ),
    ),
    (
        "tools",
        "create_file says created or overwritten and the size; line ends are kept",
        (W + "a_file_is_created_with_its_folders_then_overwritten",),
    ),
    (
        "tools",
        "The warning is one more block that names the header",
        (R + "the_warning_is_on_every_tools_answer_failed_ones_too",),
    ),
    # Defaults
    ("defaults", "The defaults", ("spec/requirements::the_defaults_are_those_of_the_decisions",)),
    ("defaults", "SUB_AGENT_* defaults", ("cli/settings::a_default_is_shown_as_one_would_set_it",)),
    ("defaults", "Data is removed after its time", ("sandbox/fleet::after_its_time_everything_of_a_chat_is_removed",)),
    # What the issue asks to be shown
    ("shown", "Clients of other makers work", (C + "the_python_sdk", C + "the_typescript_sdk", C + "the_inspector")),
    ("shown", "Fuzzed bodies: no 500, no hang, no leak", ("mcp_api/fuzz::no_body_breaks_the_door",)),
    ("shown", "Many chats side by side", (S + "many_chats_wait_side_by_side",)),
]
