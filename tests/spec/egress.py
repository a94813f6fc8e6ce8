"""What the egress proxy promises, clause by clause, row by row as in requirements.py."""

from __future__ import annotations

from tests.spec.requirements import Row

H, L, S, K = "egress/http::", "egress/limits::", "egress/secrets::", "egress/packages::"
C, W, N, B = "egress/transparent_proxy::", "egress/isolation::", "egress/namespace::", "egress/rules_file::"
R, P, U, T = "egress/policy::", "egress/clients::", "egress/upgrades::", "egress/hosts::"
V, Q = "worker/network::", "egress/lookups::"
ON_THE_WIRE = N + "the_policy_holds_on_the_wire"

EGRESS: list[Row] = [
    (
        "door",
        "HTTP CONNECT, plain HTTP and SOCKS5 on 127.0.0.1:3128",
        (ON_THE_WIRE, "egress/isolation::the_proxy_is_the_only_way_out"),
    ),
    ("egress", "SOCKS5 on a port of its own", (ON_THE_WIRE, "egress/parts::the_handshake")),
    ("egress", "On every driver the only way out", ("egress/isolation::the_proxy_is_the_only_way_out",)),
    (
        "worker",
        "In a process of its own; its death ends no command, and another one takes over",
        (
            V + "a_killed_worker_is_replaced_at_once_and_no_command_ends",
            V + "one_that_hangs_is_killed",
            V + "one_that_ends_again_and_again_is_started_less_and_less_often",
            V + "nothing_outlives_the_service",
            "worker/drivers::a_killed_worker_breaks_no_sandbox_of_any_driver",
        ),
    ),
    (
        "worker",
        "A flood of one chat leaves the others and the memory alone",
        (
            "worker/floods::a_flood_of_one_chat_leaves_the_others_and_the_memory_alone",
            "worker/drivers::a_flood_of_name_queries_leaves_the_others_alone",
            "worker/gateway::a_caller_that_sends_before_it_has_its_answer_is_cut_off",
        ),
    ),
    (
        "worker",
        "Look-ups cached, four at once for a chat, tenants in turn",
        (
            Q + "a_name_is_asked_for_once_by_those_who_wait_and_for_a_while_after",
            Q + "a_chat_has_four_at_once_and_the_rest_wait",
            Q + "tenants_take_turns_whoever_has_more_chats_and_names",
        ),
    ),
    ("programs", "curl", (H + "a_plain_request_arrives_as_the_server_expects_it", H + "a_large_file_comes_down_whole")),
    ("programs", "pip", (K + "pip_installs_from_an_index", P + "pip_downloads")),
    ("programs", "npm", (K + "npm_installs_from_a_registry", P + "npm_installs")),
    ("programs", "git", (P + "git_clones", S + "git_pushes_with_a_token_that_the_sandbox_never_sees")),
    ("programs", "apt", (K + "apt_fetches_from_an_archive",)),
    ("programs", "Node 24", (P + "node_24_fetches",)),
    ("programs", "Python", (P + "python_fetches", "egress/secrets::programs_trust_the_proxy")),
    ("programs", "Chromium", (K + "chromium_shows_a_page",)),
    ("programs", "WebSockets", (U + "a_websocket_passes",)),
    ("modes", "none", ("egress/http::without_a_network_the_proxy_still_says_why", R + "the_policy", ON_THE_WIRE)),
    ("modes", "allowlist", (R + "the_policy", ON_THE_WIRE)),
    ("modes", "open", (R + "the_policy", ON_THE_WIRE)),
    (
        "modes",
        "Per tenant",
        (
            "egress/fleet::each_chat_has_its_proxy_and_its_policy",
            B + "a_tenant_has_its_own_rules_and_limits_before_those_for_all",
        ),
    ),
    (
        "modes",
        "Per chat",
        (
            "egress/fleet::each_chat_has_its_proxy_and_its_policy",
            B + "a_chat_has_its_own_mode",
            B + "a_chat_of_a_tenant_comes_before_its_tenant",
        ),
    ),
    (
        "modes",
        "Reloaded without a restart, and a bad change leaves what was",
        (
            H + "rules_hold_as_soon_as_they_are_written",
            B + "a_changed_file_is_read_again",
            B + "a_change_that_cannot_be_used_leaves_the_rules_from_before",
        ),
    ),
    ("rules", "By domain, with wildcards", (R + "the_policy", ON_THE_WIRE)),
    ("rules", "Over-broad ones are refused", (R + "a_host_that_cannot_be_meant_is_refused",)),
    ("rules", "By CIDR and by port", (R + "the_policy", ON_THE_WIRE)),
    (
        "rules",
        "By method and path for plain HTTP",
        (
            R + "the_policy",
            H + "method_and_path_decide_about_plain_requests",
            "egress/fuzz::no_bytes_get_around_a_rule",
            U + "another_protocol_is_not_offered_to_the_server",
            U + "an_answer_that_begins_no_websocket_is_refused",
            U + "http_2_without_an_offer_is_refused",
            U + "a_body_has_one_end",
        ),
    ),
    (
        "names",
        "Resolved by the service, each address checked, and the one that was checked is dialled",
        (
            L + "a_name_is_looked_up_once_and_what_was_judged_is_dialled",
            L + "a_name_that_nothing_allows_is_never_looked_up",
            ON_THE_WIRE,
        ),
    ),
    (
        "names",
        "Private, loopback, link-local and metadata addresses are denied unless they are allowed",
        (
            R + "a_closed_address_is_denied_in_every_mode",
            R + "no_address_is_open_without_being_global",
            H + "the_host_and_its_networks_stay_closed",
            H + "an_address_in_disguise_is_refused",
            ON_THE_WIRE,
        ),
    ),
    ("limits", "Connections of a chat", (L + "a_chat_has_so_many_connections_at_once",)),
    ("limits", "Bytes of a chat", (L + "a_chat_has_so_many_bytes_a_day",)),
    (
        "audit",
        "Every decision is in the log",
        (ON_THE_WIRE, H + "a_denied_request_says_which_rule_and_whom_to_ask", L + "a_chat_has_so_many_bytes_a_day"),
    ),
    (
        "model",
        "A denied request tells which rule and whom to ask",
        (
            H + "a_denied_request_says_which_rule_and_whom_to_ask",
            P + "a_denied_program_shows_the_model_why",
            "tools/bash::a_command_that_the_network_door_refused_is_told_why",
            "tools/bash::a_command_that_asked_for_a_name_without_an_address_is_told",
        ),
    ),
    (
        "secrets",
        "Injected by rule for git push, unseen by the sandbox",
        (S + "git_pushes_with_a_token_that_the_sandbox_never_sees",),
    ),
    (
        "secrets",
        "Injected by rule for an API call, and for nobody else",
        (
            S + "a_token_is_added_inside_tls",
            S + "every_other_host_is_passed_through_untouched",
            S + "a_server_that_cannot_prove_itself_gets_no_token",
            T + "a_server_is_asked_for_the_name_that_was_judged",
            C + "a_secret_goes_to_the_name_that_was_looked_up",
            W + "a_secret_is_added_and_the_bundle_cannot_be_changed",
        ),
    ),
    (
        "captive",
        "Programs that ignore proxy variables obey the same policy",
        (
            C + "a_program_without_a_proxy_gets_through_by_name",
            C + "a_program_without_a_proxy_is_denied_as_any_other",
            C + "the_sandbox_cannot_undo_it",
        ),
    ),
]
