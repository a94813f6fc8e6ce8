import { lazy } from "../common/lazy";

export const LazyActivity = lazy(async () => (await import("./panel")).ActivityPanel);
