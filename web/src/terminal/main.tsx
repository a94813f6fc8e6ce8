import { Addresses, readPage } from "../common/page";
import { start } from "../common/start";
import { NowAlone } from "../workspace/nowalone";
import { LazyTerminal } from "./lazy";

const addresses = new Addresses(readPage());
start(
  <main class="alone">
    <NowAlone addresses={addresses} name="Terminal" />
    <LazyTerminal addresses={addresses} alone={true} />
  </main>,
);
