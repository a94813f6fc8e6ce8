/** The mark and the name of the product, on every page. */

export const NAME = "Cubicle";

export function Mark() {
  return (
    <svg class="mark" viewBox="0 0 32 32" aria-hidden="true">
      <rect x="2" y="2" width="28" height="28" rx="7" />
      <path d="M16 6.5l8.5 4.8v9.4L16 25.5l-8.5-4.8v-9.4z" />
      <path d="M7.5 11.3L16 16.1l8.5-4.8M16 16.1v9.4" />
    </svg>
  );
}

/** Leads home; for people who cannot go there, it only says where they are. `short`: the name only where there is room. */
export function Brand({ home, short = false }: { home?: string | undefined; short?: boolean }) {
  const inside = (
    <>
      <Mark />
      <span class={short ? "visually-hidden" : ""}>{NAME}</span>
    </>
  );
  return home === undefined ? (
    <span class="brand">{inside}</span>
  ) : (
    <a class="brand" href={home} title={`${NAME}: home`}>
      {inside}
    </a>
  );
}
