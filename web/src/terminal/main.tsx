import { Addresses, readPage } from "../common/page";
import { start } from "../common/start";
import { LazyTerminal } from "./lazy";

start(<LazyTerminal addresses={new Addresses(readPage())} alone={true} />);
