/** A component whose code comes when it is first shown. */
import type { ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";

export function lazy<P extends object>(load: () => Promise<ComponentType<P>>): ComponentType<P> {
  let loaded: ComponentType<P> | null = null;
  return function Lazy(props: P) {
    const [Shown, show] = useState<ComponentType<P> | null>(() => loaded);
    const [failed, fail] = useState(false);
    useEffect(() => {
      if (loaded) return;
      load().then(
        (component) => {
          loaded = component;
          show(() => component);
        },
        () => fail(true),
      );
    }, []);
    if (Shown) return <Shown {...props} />;
    return (
      <div class="empty" role="status">
        {failed ? (
          <>
            <p>This part of the page could not be loaded.</p>
            <button type="button" onClick={() => location.reload()}>
              Reload
            </button>
          </>
        ) : (
          <p>Loading…</p>
        )}
      </div>
    );
  };
}
