"""The metrics of several workers on one page."""

from __future__ import annotations

from cubicle.metrics.merged import merged

PAGE = """# HELP calls Calls.
# TYPE calls counter
calls{tool="bash",note="a } b"} 3
# HELP up Whether it is.
# TYPE up gauge
up 1
"""


def test_every_sample_says_whose_it_is() -> None:
    assert merged({"1": PAGE, "2": PAGE.replace(" 3", " 4")}).splitlines() == [
        "# HELP calls Calls.",
        "# TYPE calls counter",
        'calls{worker="1",tool="bash",note="a } b"} 3',
        'calls{worker="2",tool="bash",note="a } b"} 4',
        "# HELP up Whether it is.",
        "# TYPE up gauge",
        'up{worker="1"} 1',
        'up{worker="2"} 1',
    ]


def test_a_page_of_one_worker_alone() -> None:
    assert merged({"1": "# TYPE up gauge\nup 1\n"}) == '# TYPE up gauge\nup{worker="1"} 1\n'
