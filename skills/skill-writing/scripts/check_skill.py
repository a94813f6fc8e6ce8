"""check_skill.py FOLDER [--zip OUT.zip]: what keeps a folder from being a good skill; packages it when nothing does."""

import os
import re
import sys
import zipfile

MAX_LINES = 500
SECRET = re.compile(r"(?i)\b(?:api[_-]?key|password|secret|token)\b\s*[:=]\s*['\"]?[A-Za-z0-9_\-]{16,}")


def front_matter(text):
    """The top-level `key: value` lines between the two lines of ---, folded values joined; None without front matter."""
    found = re.match(r"---[ \t]*\n(.*?)^---[ \t]*$", text, re.DOTALL | re.MULTILINE)
    if not found:
        return None
    fields, key = {}, None
    for line in found[1].splitlines():
        start = re.match(r"([A-Za-z][\w-]*):\s*(.*)", line)
        if start:
            key = start[1]
            fields[key] = start[2].strip().strip("'\"") if start[2].strip() not in (">", "|", ">-", "|-") else ""
        elif key and line.strip():
            fields[key] = (fields[key] + " " + line.strip()).strip()
    return fields


def faults(folder):
    folder = os.path.abspath(folder)
    manifest = os.path.join(folder, "SKILL.md")
    if not os.path.isfile(manifest):
        return ["There is no SKILL.md."]
    with open(manifest, encoding="utf-8") as file:
        text = file.read()
    fields = front_matter(text)
    if fields is None:
        return ["SKILL.md does not begin with front matter between two lines of ---."]
    found = []
    name, description = fields.get("name", ""), fields.get("description", "")
    if len(name) > 64 or not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
        found.append("name must be a-z, 0-9 and single hyphens, at most 64 characters.")
    elif name != os.path.basename(folder):
        found.append("name is %s, but the folder is %s." % (name, os.path.basename(folder)))
    if not 1 <= len(description) <= 1024:
        found.append("description must have 1 to 1,024 characters.")
    elif not re.search(r"(?i)\b(use|when|whenever)\b", description):
        found.append("description does not say when to use the skill.")
    if "TODO" in text:
        found.append("SKILL.md still has a TODO.")
    if text.count("\n") > MAX_LINES:
        found.append("SKILL.md has more than %d lines: move details to references/." % MAX_LINES)
    for mentioned in sorted(set(re.findall(r"(?<![\w/])(?:scripts|references|assets)/[\w./-]*\w", text))):
        if not os.path.exists(os.path.join(folder, mentioned)):
            found.append("%s is named in SKILL.md but is not there." % mentioned)
    for path in files(folder):
        if os.path.islink(path):
            found.append("%s is a link: links are left out." % os.path.relpath(path, folder))
        elif os.path.getsize(path) > 8 << 20:
            found.append("%s is larger than 8 MiB." % os.path.relpath(path, folder))
        else:
            with open(path, encoding="utf-8", errors="replace") as file:
                if SECRET.search(file.read()):
                    found.append("%s seems to hold a secret." % os.path.relpath(path, folder))
    return found


def files(folder):
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f != "__pycache__")
        for name in sorted(names):
            if not name.startswith("."):
                yield os.path.join(root, name)


def package(folder, out):
    folder = os.path.abspath(folder)
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in files(folder):
            archive.write(path, os.path.relpath(path, os.path.dirname(folder)))


if __name__ == "__main__":
    if len(sys.argv) not in (2, 4) or sys.argv[2:3] not in ([], ["--zip"]):
        sys.exit(__doc__)
    listed = faults(sys.argv[1])
    print("\n".join(listed) or "nothing found")
    if listed:
        sys.exit(1)
    if len(sys.argv) == 4:
        package(sys.argv[1], sys.argv[3])
        print(sys.argv[3])
