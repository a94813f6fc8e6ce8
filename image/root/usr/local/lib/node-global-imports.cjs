// Loaded into every Node program (NODE_OPTIONS): what an import statement does not find near its file, it finds in
// the folders of NODE_PATH, which Node itself asks for require() alone. A /node_modules would do as well, but npm
// takes the folder of the nearest node_modules for the project, and would install into / from any folder without one.
"use strict";
const { registerHooks } = require("node:module");
const { dirname } = require("node:path");
const { pathToFileURL } = require("node:url");

const BARE = /^(?:@[^/]+\/)?[a-z0-9][^:]*$/i;
const parents = (process.env.NODE_PATH ?? "")
  .split(":")
  .filter((folder) => folder.endsWith("/node_modules"))
  .map((folder) => pathToFileURL(`${dirname(folder)}/-`).href);

// A Node that somebody installed may be too old to have it.
registerHooks?.({
  resolve(specifier, context, next) {
    try {
      return next(specifier, context);
    } catch (error) {
      if (error.code !== "ERR_MODULE_NOT_FOUND" || !BARE.test(specifier)) throw error;
      for (const parentURL of parents) {
        try {
          return next(specifier, { ...context, parentURL });
        } catch {
          // The next folder may have it; if none has, the first error is the one to show.
        }
      }
      throw error;
    }
  },
});
