/** What a person is called by others who look at the same browser; kept in this browser. */
import { stored } from "../common/stored";

const isText = (value: unknown): value is string => typeof value === "string";

export const driverName = stored("name", "", isText);
