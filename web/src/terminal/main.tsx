import { Addresses, readPage } from "../common/page";
import { start } from "../common/start";
import { LazyTerminal } from "./lazy";

start(
  <main class="alone">
    <LazyTerminal addresses={new Addresses(readPage())} alone={true} />
  </main>,
);
