/** Line icons on a 16 by 16 grid, drawn for this project. */
const PATHS = {
  activity: "M1.5 8h3l2-5 3 10 2-5h3",
  files: "M2 3.5h4l1.5 2H14v7.5H2z",
  file: "M4 1.5h5l3.5 3.5v9.5h-8.5zM9 1.5V5h3.5",
  browser: "M1.5 2.5h13v11h-13zM1.5 5.5h13M3.5 4h.01M5.5 4h.01",
  terminal: "M1.5 2.5h13v11h-13zM4 6l2.5 2L4 10M8.5 10.5H12",
  agents: "M5 6.5h6v6H5zM8 6.5V3.5M8 3.5h.01M3 9v2M13 9v2M6.8 9h.01M9.2 9h.01",
  back: "M10 3L5 8l5 5",
  forward: "M6 3l5 5-5 5",
  reload: "M13 8a5 5 0 1 1-1.5-3.5M13 2v3h-3",
  close: "M4 4l8 8M12 4l-8 8",
  play: "M4.5 2.5l8 5.5-8 5.5z",
  plus: "M8 3v10M3 8h10",
  minus: "M3 8h10",
  search: "M7 2.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9zM10.5 10.5L14 14",
  sun: "M8 5a3 3 0 1 0 0 6 3 3 0 0 0 0-6zM8 1v1.5M8 13.5V15M1 8h1.5M13.5 8H15M3 3l1 1M12 12l1 1M3 13l1-1M12 4l1-1",
  moon: "M13 9.5A5.5 5.5 0 1 1 6.5 3 4.5 4.5 0 0 0 13 9.5z",
  download: "M8 2v8M4.5 7L8 10.5 11.5 7M2.5 13.5h11",
  upload: "M8 10.5V2.5M4.5 6L8 2.5 11.5 6M2.5 13.5h11",
  archive: "M2 3h12v3H2zM3 6v7.5h10V6M6.5 9h3",
  copy: "M5.5 5.5h8v8h-8zM10.5 5.5v-3h-8v8h3",
  paste: "M4 3h8v11H4zM6 1.5h4V4H6zM6 7.5h4M6 10h4",
  lock: "M3.5 7.5h9v6h-9zM5.5 7.5V5a2.5 2.5 0 0 1 5 0v2.5",
  open: "M9 2.5h4.5V7M13.5 2.5L7.5 8.5M12 9v4.5H2.5V4H7",
  keyboard: "M1.5 4h13v8h-13zM4 6.5h.01M6.5 6.5h.01M9 6.5h.01M11.5 6.5h.01M5 9.5h6",
  chevron: "M6 4l4 4-4 4",
  split: "M2 2.5h12v11H2zM8 2.5v11",
  code: "M5.5 4.5L2 8l3.5 3.5M10.5 4.5L14 8l-3.5 3.5",
  edit: "M2.5 13.5l.8-3.2 7.6-7.6 2.4 2.4-7.6 7.6zM9.5 4.1l2.4 2.4",
  eye: "M1.5 8S4 3.5 8 3.5 14.5 8 14.5 8 12 12.5 8 12.5 1.5 8 1.5 8zM8 6.5a1.5 1.5 0 1 0 0 3 1.5 1.5 0 0 0 0-3z",
  more: "M3.5 8h.01M8 8h.01M12.5 8h.01",
  trash: "M3 4.5h10M6 4.5v-2h4v2M4.5 4.5l.5 9h6l.5-9",
  text: "M4 1.5h5l3.5 3.5v9.5h-8.5zM6 7h4M6 9.5h4M6 12h2.5",
  picture: "M2 2.5h12v11H2zM2 11l3.5-3.5 3 3 2-2L14 12M10.5 5.5h.01",
  table: "M2 2.5h12v11H2zM2 6h12M2 9.5h12M6 2.5v11M10 2.5v11",
  pages: "M5 1.5h6l2.5 2.5v8H5zM5 4H2.5v10.5h8V12",
  slides: "M1.5 2.5h13v8h-13zM8 10.5v3M5 13.5h6",
  sound: "M6 12V3.5l7-1.5v8.5M6 12a2 1.5 0 1 1-.01-.5M13 10.500a2 1.500 0 1 1-.01-.5",
  film: "M2 3h12v10H2zM5 3v10M11 3v10M2 6.300h3M2 9.600h3M11 6.300h3M11 9.600h3",
  share:
    "M12 5.5a2 2 0 1 0 0-4 2 2 0 0 0 0 4zM4 10a2 2 0 1 0 0-4 2 2 0 0 0 0 4zM12 14.5a2 2 0 1 0 0-4 2 2 0 0 0 0 4zM5.8 7.1l4.4-2.6M5.8 8.9l4.4 2.6",
  pause: "M5 3v10M11 3v10",
  history: "M3 8a5 5 0 1 0 1.5-3.5M3 2v3h3M8 5.5V8l2 1.5",
  leave: "M9.5 3V2h-7v12h7v-1M6.5 8H14M11.5 5.5L14 8l-2.5 2.5",
  server: "M2 2.5h12v4.5H2zM2 9h12v4.5H2zM4.5 4.8h.01M4.5 11.2h.01",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name, class: extra = "" }: { name: IconName; class?: string }) {
  return (
    <svg class={`icon ${extra}`} viewBox="0 0 16 16" aria-hidden="true">
      <path d={PATHS[name]} />
    </svg>
  );
}
