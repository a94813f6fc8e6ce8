import { lazy } from "../common/lazy";

export const LazyTerminal = lazy(async () => (await import("./panel")).TerminalPanel);
