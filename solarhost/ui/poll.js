/** Asking again and again, one call at a time, and not while nobody looks. */

/** Calls `work()` now and `everyMs` after each call ended; returns `{stop(), now()}`. */
export function poll(everyMs, work) {
  let timer = 0;
  let running = false;
  let again = false;
  let stopped = false;

  async function tick() {
    clearTimeout(timer);
    if (stopped) return;
    if (running) {
      again = true;
      return;
    }
    running = true;
    try {
      if (!document.hidden) await work();
    } finally {
      running = false;
      if (!again && !stopped) timer = setTimeout(tick, everyMs);
    }
    if (again) {
      again = false;
      tick();
    }
  }

  const seen = () => document.hidden || tick();
  document.addEventListener("visibilitychange", seen);
  tick();
  return {
    now: tick,
    stop() {
      stopped = true;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", seen);
    },
  };
}
