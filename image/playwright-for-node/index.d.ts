export * from "playwright-core";
