/** Signing in, and what is asked of the agent how often. */

import { get } from "./api.js";
import { byId, setText, show } from "./dom.js";
import { Health } from "./health.js";
import { Instances } from "./instances.js";
import { Jobs } from "./jobs.js";
import { Log } from "./log.js";
import { Models } from "./models.js";
import { poll } from "./poll.js";
import { Resources } from "./resources.js";
import { forgetKey, storedKey, storeKey } from "./session.js";

const OFTEN_MS = 1500;
const SELDOM_MS = 4000;

function signIn(problem = "") {
  show(byId("app"), false);
  show(byId("sign-in"), true);
  setText(byId("sign-in-error"), problem);
  byId("key").focus();
}

async function tryKey(event) {
  event.preventDefault();
  storeKey(byId("key").value.trim());
  try {
    await get("resources");
  } catch (failure) {
    forgetKey();
    signIn(failure.status === 401 ? "The agent does not accept this key." : failure.message);
    return;
  }
  byId("key").value = "";
  enter();
  byId("instances-title").focus();
}

/** Leave for good: what the page held goes with it. */
function signOut() {
  forgetKey();
  location.reload();
}

function enter() {
  show(byId("sign-in"), false);
  show(byId("app"), true);
  const names = new Map(); // alias by instance id
  const health = new Health();
  const log = new Log();
  const resources = new Resources();
  const instances = new Instances(() => asking.instances.now(), (instance) => log.open(instance));
  const models = new Models(() => asking.pulls.now());
  const jobs = new Jobs(() => asking.jobs.now());

  const ask = (everyMs, path, use) => poll(everyMs, async () => {
    try {
      use(await get(path));
    } catch (failure) {
      if (failure.status === 401) signOut();
      else if (failure.status === 0) health.lost();
      else throw failure;
    }
  });
  const asking = {
    health: ask(SELDOM_MS, "health", (answer) => health.update(answer)),
    instances: ask(OFTEN_MS, "instances", (answer) => {
      for (const item of answer) names.set(item.id, item.config.alias);
      instances.update(answer);
    }),
    resources: ask(OFTEN_MS, "resources", (answer) => resources.update(answer, names)),
    pulls: ask(OFTEN_MS, "models/pulls", (answer) => models.updatePulls(answer)),
    models: ask(SELDOM_MS, "models", (answer) => models.updateModels(answer)),
    jobs: ask(SELDOM_MS, "jobs", (answer) => jobs.update(answer)),
  };
}

byId("sign-in").querySelector("form").onsubmit = tryKey;
byId("sign-out").onclick = signOut;
if (storedKey()) enter();
else signIn();
