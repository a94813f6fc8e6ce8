import { Addresses, readPage } from "../common/page";
import { start } from "../common/start";
import { LivePanel } from "./panel";

start(
  <main class="alone">
    <LivePanel addresses={new Addresses(readPage())} alone={true} />
  </main>,
);
