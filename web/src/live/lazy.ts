import { lazy } from "../common/lazy";

export const LazyLive = lazy(async () => (await import("./panel")).LivePanel);
