/** An SVG, as an image: no scripts, nothing loaded. One that takes for ever to draw holds up this frame alone. */
import { element, Unshowable, type Viewer } from "./context";

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
  host.append(picture);
  await drawn();
};
