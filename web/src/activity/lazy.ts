import { lazy } from "../common/lazy";

export const LazyOutput = lazy(async () => (await import("./output")).Output);
export const LazyActivity = lazy(async () => (await import("./panel")).ActivityPanel);
