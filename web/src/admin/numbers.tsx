/** The numbers above the table, and how they came about. */
import { useSignal } from "@preact/signals";
import type { HistoryShown, Series, ServiceNumbers } from "./overview.generated";
import { cards, chartWords } from "./words";

export function Cards({ now }: { now: ServiceNumbers }) {
  return (
    <dl class="numbers">
      {cards(now).map((card) => (
        <div key={card.title} class={card.tone}>
          <dt>{card.title}</dt>
          <dd>
            <strong>{card.value}</strong>
            {card.more && <span class="muted">{card.more}</span>}
          </dd>
        </div>
      ))}
    </dl>
  );
}

const HEIGHT = 48;

function Bars({ series, name }: { series: Series; name: string }) {
  const most = Math.max(1, ...series.calls, ...series.denied, ...series.refused);
  const tall = (value: number) => (value ? Math.max(2, (value / most) * HEIGHT) : 0);
  const bars = series.calls.map((calls, n) => ({
    end: series.end - (series.calls.length - 1 - n) * series.step,
    calls: tall(calls),
    errors: tall(series.errors[n] ?? 0),
    other: tall((series.denied[n] ?? 0) + (series.refused[n] ?? 0)),
  }));
  const wide = 100 / bars.length;
  return (
    <svg
      class="bars"
      role="img"
      aria-label={chartWords(series, name)}
      viewBox={`0 0 100 ${HEIGHT}`}
      preserveAspectRatio="none"
    >
      {bars.map((bar, n) => (
        <g key={bar.end} transform={`translate(${n * wide} 0)`}>
          <rect class="calls" y={HEIGHT - bar.calls} width={wide * 0.8} height={bar.calls} />
          <rect class="errors" y={HEIGHT - bar.errors} width={wide * 0.8} height={bar.errors} />
          <rect class="other" x={wide * 0.55} y={HEIGHT - bar.other} width={wide * 0.25} height={bar.other} />
        </g>
      ))}
    </svg>
  );
}

export function History({ history }: { history: HistoryShown }) {
  const long = useSignal(false);
  const day = long.value ? history.day : undefined;
  return (
    <section class="history" aria-label="History">
      <div class="history-head">
        <h2>{day ? "Last 24 hours" : "Last hour"}</h2>
        <span class="key calls">calls</span>
        <span class="key errors">errors</span>
        <span class="key other">denied or refused</span>
        <span class="grow" />
        {history.day && (
          <div role="group" aria-label="Time span">
            <button type="button" aria-pressed={!day} onClick={() => (long.value = false)}>
              1 h
            </button>
            <button type="button" aria-pressed={!!day} onClick={() => (long.value = true)}>
              24 h
            </button>
          </div>
        )}
      </div>
      <Bars series={day ?? history.hour} name={day ? "By quarters of an hour" : "By the minute"} />
    </section>
  );
}
