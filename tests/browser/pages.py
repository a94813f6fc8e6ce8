"""Pages that the sandbox's browser shows in the tests; they are files of the sandbox itself."""

from __future__ import annotations

import asyncio
from typing import Any

from cubicle.browser import cdp, chromium
from cubicle.machine.machine import Machine

FOLDER = "/home/assistant/pages"

BUTTON = """<!doctype html><title>Button</title><body style="margin:0">
<button style="position:absolute;left:100px;top:100px;width:200px;height:100px"
 onclick="document.title='clicked '+(++n)">press</button>
<input id=field style="position:absolute;left:400px;top:100px;width:200px;height:30px">
<select id=list style="position:absolute;left:100px;top:300px;width:200px;height:30px"
 onchange="document.title='chose '+this.value"><option>one<option>two<option disabled>three</select>
<input id=day type=date style="position:absolute;left:400px;top:300px;width:200px;height:30px"
 onchange="document.title='day '+this.value">
<input id=file type=file style="position:absolute;left:400px;top:400px;width:300px;height:30px"
 onchange="document.title='file '+this.files[0].name">
<button style="position:absolute;left:100px;top:400px;width:200px;height:40px"
 onclick="document.title='said '+prompt('Your name?','nobody')">ask</button>
<script>let n = 0; field.onkeydown = e => keys.push(e.key); const keys = []</script>"""

MOVING = """<!doctype html><title>Moving</title><body style="margin:0;overflow:hidden;background:#234">
<script>
const boxes = Array.from({length: 60}, (_, i) => { const b = document.createElement('div');
 b.style.cssText = `position:absolute;width:120px;height:90px;background:hsl(${i*6} 80% 50%)`; document.body.append(b); return b; });
function step(t) { boxes.forEach((b, i) => { b.style.transform =
 `translate(${580+560*Math.sin(t/700+i)}px, ${300+290*Math.cos(t/900+i*2)}px)`; }); requestAnimationFrame(step); }
requestAnimationFrame(step);
</script>"""

FLIP = """<!doctype html><title>Flip</title><body style="margin:0;height:100vh;background:#fff"
 onmousedown="document.body.style.background = document.body.style.background === 'black' ? '#fff' : 'black'">"""


async def put(machine: Machine, name: str, content: str) -> str:
    """Have the page in the sandbox; its address."""
    await machine.write(f"{FOLDER}/{name}.html", content.encode())
    return f"file://{FOLDER}/{name}.html"


async def painted(machine: Machine) -> None:
    """Wait until the first page is on the screen: what is pressed before that, Chromium throws away."""
    async with asyncio.timeout(60):
        while not await evaluate(machine, "performance.getEntriesByType('paint').length"):
            await asyncio.sleep(0.05)


async def evaluate(machine: Machine, expression: str) -> Any:
    """What an expression is in the browser's first page, asked directly and not through the service's routes."""
    page = (await chromium.pages(machine) or [])[0]
    async with cdp.attached(machine, lambda event: None) as connection:
        attached = await connection.call("Target.attachToTarget", targetId=page["id"], flatten=True)
        answer = await connection.call(
            "Runtime.evaluate", attached["sessionId"], expression=expression, returnByValue=True
        )
    return answer["result"].get("value")
