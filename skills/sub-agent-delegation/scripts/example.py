"""example.py OUT_FOLDER: write a brief, see an unfinished one refused, check a change against it."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import brief


def main(folder):
    folder = os.path.abspath(folder)
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "TASK.md")
    if os.path.exists(path):
        os.remove(path)
    assert brief.main(["new", path]) == 0
    with open(path, encoding="utf-8") as file:
        form = file.read()
    assert len(brief.faults(form)) == len(brief.PARTS), "an empty form has every fault"

    program = os.path.join(folder, "hello.py")
    answers = {
        "Goal": "hello.py greets by name, for the people at the desk.",
        "Where": "%s, plain Python, no build." % program,
        "Known": "It prints only 'hello' now.",
        "Limits": "Only this file. No packages.",
        "Done when": "    test \"$('%s' '%s' Ann)\" = 'hello Ann'" % (sys.executable, program),
        "Report": "The diff and the output of the check.",
    }
    text = form
    for name, answer in answers.items():
        text = text.replace("(%s)" % brief.PARTS[name], answer)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    assert brief.main(["check", path]) == 0

    with open(program, "w", encoding="utf-8") as file:
        file.write("print('hello')\n")
    assert brief.main(["verify", path]) == 1, "work that is not done is found"
    with open(program, "w", encoding="utf-8") as file:
        file.write("import sys\nprint('hello', *sys.argv[1:])\n")
    assert brief.main(["verify", path]) == 0
    print("ok", path)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "delegation-example")
