"""Which exits are answers: the judgement, and the scanner that finds the last command."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cubicle.tools.bash_syntax import last_command
from cubicle.tools.exit_codes import ANSWERS, judge, killed, out_of_memory, timed_out


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("grep x y", "grep"),
        ("cd x && grep y", "grep"),
        ("a | grep b", "grep"),
        ("a ||\n grep x", "grep"),
        ("grep x f\n", "grep"),
        ("grep x; echo done", "echo"),
        ("rg x | head", "head"),
        ("(cd x && grep y)", "grep"),
        ("{ grep x; }", "grep"),
        ("A=b C='d e' /usr/bin/grep 'x;y' \"$(echo ')' )\" f 2>/dev/null", "grep"),
        ("grep x > out 2>&1 # a | comment", "grep"),
        ("command grep x", "grep"),
        ("time grep x", "grep"),
        ("env A=b grep x", "grep"),
        ("grep \\\n x", "grep"),
        ("cat <<EOF\nfoo ' | bar\nEOF\ngrep x f", "grep"),
        ("cat <<-'E F' | grep x\n\tit's\n\tE F\n", "grep"),
        ("for i in a b; do echo $i; done; grep x f", "grep"),
        ("[[ a == b && c =~ ^(x|y)$ ]]", "[["),
        ("[ -f x ]", "["),
        ("test -f x", "test"),
        ("diff <(sort a) <(sort b)", "diff"),
        ("\\grep x", "grep"),
        ('"grep" x', "grep"),
        ('grep x <<< "$y"', "grep"),
        ("! grep x", None),
        ("! (grep x)", None),
        ("grep x &", None),
        ("if grep x; then echo; fi", None),
        ("while true; do grep x; done", None),
        ("case x in a) grep;; esac", None),
        ("$TOOL x", None),
        ("`which grep` x", None),
        ("grep 'x", None),
        ('grep "x', None),
        ("echo $(grep x", None),
        ("time -p grep x", None),
        ("", None),
        ("# grep x", None),
        ("A=b", None),
    ],
)
def test_the_last_command_is_found_or_said_to_be_unclear(text: str, name: str | None) -> None:
    assert last_command(text) == name


@given(st.text(max_size=200))
def test_no_text_breaks_the_scanner(text: str) -> None:
    last_command(text)


@given(st.text(alphabet="ab'\"\\$`(){}[]<>|&;!#\n \tE", max_size=80))
def test_no_text_of_shell_characters_breaks_the_scanner(text: str) -> None:
    last_command(text)


def test_deep_nesting_ends() -> None:
    assert last_command("$(" * 100_000) is None
    assert last_command('"$(' * 10_000) is None
    assert last_command("(" * 10_000 + "grep x") == "grep"


WORDS = st.lists(st.text(min_size=1, max_size=12).filter(lambda t: "\0" not in t), max_size=4)


@given(st.sampled_from(sorted(ANSWERS.keys() - {"[", "[["})), WORDS, st.sampled_from(["", "cd /x && ", "a; ", "b | "]))
def test_quoted_arguments_never_hide_the_command(name: str, arguments: list[str], before: str) -> None:
    assert last_command(f"{before}{name} {shlex.join(arguments)}") == name


@pytest.mark.parametrize("name", sorted(ANSWERS))
def test_exit_1_of_these_is_an_answer_and_2_is_not(name: str) -> None:
    command = {"[[": "[[ a == b ]]", "[": "[ a = b ]"}.get(name, f"{name} x y")
    verdict = judge(command, 1, printed=False)
    assert not verdict.error
    assert "[exit code 1" in verdict.note
    assert judge(command, 2, printed=False) == judge("false", 2, printed=False)
    assert judge(command, 2, printed=False).error


def test_find_with_output_is_an_answer_and_without_is_not() -> None:
    assert not judge("find / -name x", 1, printed=True).error
    assert judge("find /none", 1, printed=False).error


@given(st.integers(1, 255))
def test_other_exits_are_errors_that_say_their_code(code: int) -> None:
    verdict = judge("make all", code, printed=True)
    assert verdict.error
    assert verdict.note == f"[exit code {code}]"
    silent = judge("make all", code, printed=False).note
    assert "printed nothing" in silent
    assert silent.endswith(f"\n[exit code {code}]")


def test_other_ends_are_said_in_words() -> None:
    assert judge("anything", 0, printed=False).note == ""
    assert timed_out(2).note.startswith("[timed out after 2 s] ")
    assert timed_out(0.5).note.startswith("[timed out after 0.5 s] ")
    assert "`timeout`" in timed_out(2).note
    assert killed(9).note.startswith("[killed by SIGKILL] ")
    assert killed(63).error
    assert "out of memory (limit 2,048 MB)" in out_of_memory(2048).note
