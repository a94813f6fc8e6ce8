export * from "playwright-core";
export { default } from "playwright-core";
