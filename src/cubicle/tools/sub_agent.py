"""sub_agent: hands a task to a coding agent that works in the chat's sandbox."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from cubicle.tools.arguments import Arguments
from cubicle.tools.base import Answer, Call, TaskSupport, fail, schema

MODELS = ("sonnet", "opus", "haiku")
_MAX_TURNS = 1_000


@dataclass(frozen=True, slots=True)
class Task:
    """What the agent is asked to do."""

    prompt: str
    model: str | None = None
    resume_session_id: str | None = None
    max_turns: int | None = None


class SubAgent(Protocol):
    """Runs one task to its end, reporting through the call as it goes."""

    async def run(self, call: Call, task: Task) -> Answer: ...


class SubAgentTool:
    """The tool; the agent behind it is given, and may be missing."""

    name = "sub_agent"
    description = (
        "Hand a larger piece of work to a coding agent that works on its own in this same sandbox, with the same "
        "files, and reports back when it is done. Use it for tasks of many steps that you need not follow closely: "
        "write and test a program, refactor a project, research a code base. It knows nothing of this conversation, "
        "so put all it needs in `prompt`: the goal, the paths, the constraints, and what to report. It can take many "
        "minutes. The answer ends with a session id; give it as `resume_session_id` to go on with the same agent. "
        "For single commands and small edits use the other tools."
    )
    outlives_caller = True
    task_support: TaskSupport = "optional"
    schema = schema(
        {
            "prompt": {"type": "string", "description": "Task description"},
            "model": {"type": "string", "enum": list(MODELS), "description": "Model alias"},
            "resume_session_id": {"type": "string", "description": "Resume a prior agent session"},
            "max_turns": {"type": "number", "description": "Most turns that the agent may take"},
        },
        required=("prompt",),
    )

    def __init__(self, agent: SubAgent | None) -> None:
        self._agent = agent

    async def __call__(self, call: Call, arguments: Arguments) -> Answer:
        turns = arguments.optional_number("max_turns", 1, _MAX_TURNS)
        task = Task(
            arguments.text("prompt", "task"),
            arguments.optional_choice("model", MODELS),
            arguments.optional_text("resume_session_id"),
            None if turns is None else int(turns),
        )
        if self._agent is None:
            return fail(
                "sub_agent is not set up on this service: its operator must configure a coding agent (SUB_AGENT_CLI "
                "and ANTHROPIC_API_KEY or ANTHROPIC_AUTH_TOKEN). Do the task yourself with bash_tool and the file "
                "tools."
            )
        return await self._agent.run(call, task)
