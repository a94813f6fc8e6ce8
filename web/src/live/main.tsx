import { Addresses, readPage } from "../common/page";
import { start } from "../common/start";
import { NowAlone } from "../workspace/nowalone";
import { LivePanel } from "./panel";

const addresses = new Addresses(readPage());
start(
  <main class="alone">
    <NowAlone addresses={addresses} name="Browser" />
    <LivePanel addresses={addresses} alone={true} />
  </main>,
);
