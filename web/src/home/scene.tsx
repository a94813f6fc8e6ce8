/** A drawing of the workspace, for people who have not seen it: calls on the left, the browser on the right. */

const ROWS = [
  ["ok", 62, 96],
  ["ok", 48, 74],
  ["ok", 70, 88],
  ["bad", 40, 60],
  ["ok", 58, 104],
] as const;
const BARS = [38, 46, 60, 72, 84, 104];

export function Scene() {
  return (
    <svg class="scene" viewBox="0 0 480 300" aria-hidden="true">
      <rect class="scene-window" x="1" y="1" width="478" height="298" rx="14" />
      <path class="scene-line" d="M1 34h478M182 34v265" />
      {[20, 36, 52].map((x) => (
        <circle key={x} class="scene-knob" cx={x} cy="18" r="4.5" />
      ))}
      <g>
        {ROWS.map(([tone, verb, object], n) => (
          <g key={n} class="scene-row" style={{ "--turn": n }}>
            <rect class="scene-card" x="14" y={48 + n * 48} width="154" height="38" rx="8" />
            <circle class={`scene-dot ${tone}`} cx="29" cy={67 + n * 48} r="5" />
            <rect class="scene-word" x="42" y={58 + n * 48} width={verb} height="6" rx="3" />
            <rect class="scene-faint" x="42" y={71 + n * 48} width={object} height="5" rx="2.5" />
          </g>
        ))}
      </g>
      <rect class="scene-field" x="196" y="45" width="268" height="20" rx="10" />
      <rect class="scene-faint" x="208" y="52.5" width="96" height="5" rx="2.5" />
      <rect class="scene-paper" x="196" y="76" width="268" height="209" rx="8" />
      <rect class="scene-word" x="216" y="96" width="104" height="9" rx="4.5" />
      {BARS.map((height, n) => (
        <rect
          key={n}
          class="scene-bar"
          style={{ "--turn": n }}
          x={216 + n * 39}
          y={252 - height}
          width="26"
          height={height}
          rx="4"
        />
      ))}
      <path class="scene-line" d="M210 258h240" />
      <path class="scene-pointer" d="M0 0v17l4.5-4 3 7 3-1.3-3-6.7h6z" />
    </svg>
  );
}
