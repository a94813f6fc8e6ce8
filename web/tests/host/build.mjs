// Bundles the host of the tests into one script: node build.mjs <folder>
import { join } from "node:path";
import { build } from "vite";

await build({
  configFile: false,
  logLevel: "warn",
  root: import.meta.dirname,
  build: {
    outDir: process.argv[2],
    emptyOutDir: false,
    target: "es2023",
    rolldownOptions: {
      input: join(import.meta.dirname, "host.ts"),
      output: { format: "iife", entryFileNames: "host.js", codeSplitting: false },
    },
  },
});
