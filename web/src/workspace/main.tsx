import { readPage } from "../common/page";
import { start } from "../common/start";
import { App, Embedded } from "./app";
import "./workspace.css";

const page = readPage();
start(page.embed && page.path ? <Embedded page={page} /> : <App page={page} />);
