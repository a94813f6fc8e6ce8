// Generated from the Python models by scripts/web-types. Do not edit: change the models and run it again.

/** One of the chats that were used last. */
export interface ChatCard {
  chat: string;
  state: string;
  used: number;
  tool: string;
  description: string;
  running: boolean;
  since: number;
  failed: boolean;
  output: string;
  picture: number;
}

/** The MCP client that came last. */
export interface ClientSeen {
  name: string;
  chat: string;
  at: number;
}

/** The demo of the person who looks. `says`: what the step does; of a demo that failed, why. */
export interface DemoState {
  chat: string;
  state: "none" | "playing" | "over" | "failed";
  step: number;
  steps: number;
  says: string;
}

/** What changes on the home page while somebody looks at it. */
export interface Home {
  now: number;
  client: ClientSeen | null;
  chats: ChatCard[];
  demo: DemoState;
}

/** What one member of the service tells another of a tenant: the newest of its chats and clients, and one demo. */
export interface OtherHome {
  chats: ChatCard[];
  clients: ClientSeen[];
  demo: DemoState;
}

/** An event of the stream: the parts of Home that changed. */
export interface HomePart {
  now?: number;
  client?: ClientSeen | null;
  chats?: ChatCard[];
  demo?: DemoState;
}

/** How MCP clients connect. `locked`: by a key; `knows_key`: POST …/key tells it to the person who asks. */
export interface Connection {
  url: string;
  locked: boolean;
  knows_key: boolean;
}

/** The key of the service, for the person who signed in with it. */
export interface ShownKey {
  key: string;
}
