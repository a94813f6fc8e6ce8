/** An SVG, as an image: no scripts, nothing loaded. One that takes for ever to draw holds up this frame alone. */
import { element, Unshowable, type Viewer } from "./context";
import { zoomable } from "./zoom";

const drawn = () => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));

export const showSvg: Viewer = async (host, file) => {
  const address = URL.createObjectURL(new Blob([file.data], { type: "image/svg+xml" }));
  const picture = element("img");
  picture.alt = file.name;
  picture.src = address;
  try {
    await picture.decode();
  } catch {
    throw new Unshowable("It may be damaged, or of a kind that this browser does not know.");
  }
  const place = element("div", { class: "picture-place" }, picture);
  place.tabIndex = 0;
  const percent = element("span", { class: "summary", text: "Fits" });
  const zoom = zoomable(place, picture, (now) => {
    percent.textContent = now.percent === null ? "Fits" : `${now.percent} %`;
  });
  const button = (text: string, label: string, act: () => void) => {
    const made = element("button", { text });
    made.type = "button";
    made.setAttribute("aria-label", label);
    made.addEventListener("click", act);
    return made;
  };
  const tools = element(
    "div",
    { class: "pdf-tools" },
    button("−", "Smaller", () => zoom.by(0.8)),
    percent,
    button("+", "Larger", () => zoom.by(1.25)),
    button("Fit", "Fit the window", () => zoom.fit()),
    button("1:1", "Actual size", () => zoom.actual()),
  );
  host.append(tools, place);
  await drawn();
};
